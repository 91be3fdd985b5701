/* Checks of GPUs: which there are, and which rank has which. */
#include <stdlib.h>
#include <string.h>

#include "cmd/doctor/doctor.h"
#include "core/base/process.h"
#include "core/comm/probe.h"

void dpt_doctor_driver(struct dpt_doctor *d)
{
    const struct dpt_gpu_query *g = &d->gpus;

    if (!g->library)
        dpt_ok(d, "no NVIDIA driver: the ranks compute on CPUs");
    else if (g->nvml[0] != '\0' && g->code != 0)
        dpt_warning(d, "check that `nvidia-smi` works there; after an update of the driver: reboot",
                    "%s", g->nvml);
    else if (g->code != 0)
        dpt_warning(d, "no GPU can be used: check that `nvidia-smi` works there", "libcuda: %s",
                    g->why);
    else
        dpt_ok(d, "NVIDIA %s, for CUDA up to %d.%d", g->version[0] != '\0' ? g->version : "driver",
               g->driver / 1000, g->driver % 1000 / 10);
}

void dpt_doctor_libraries(struct dpt_doctor *d)
{
    const struct dpt_gpu_query *g = &d->gpus;

    if (g->missing[0] != '\0')
        dpt_warning(d, "until then the ranks compute on CPUs", "%s", g->missing);
    else if (g->libraries[0] != '\0')
        dpt_ok(d, "%s", g->libraries);
}

void dpt_doctor_library_files(struct dpt_doctor *d)
{
    for (int i = 0; i < DPT_DEVICE_LIBRARIES; i++) {
        const struct dpt_device_library *l = &d->gpus.library_files[i];

        if (l->path[0] != '\0')
            dpt_doctor_add(d, (struct dpt_finding){.name = l->name}, NULL, "%s", l->path);
        else if (l->name[0] != '\0' && d->gpus.count > 1)
            dpt_doctor_add(d, (struct dpt_finding){.name = l->name, .level = DPT_DOCTOR_WARNING},
                           "install it (pip: nvidia-nccl-cu13), or name its folder with "
                           "DPTRAIN_CUDA_PATH",
                           "not found: the GPUs' gradients go through the host's memory");
    }
}

/* Writes a line for each run of equal devices. */
static void tell_devices(struct dpt_doctor *d)
{
    const struct dpt_gpu_query *g = &d->gpus;
    const int known = g->count < DPT_GPU_QUERY_MOST ? g->count : DPT_GPU_QUERY_MOST;

    for (int i = 0; i < known; i++) {
        char has[32], name[DPT_DOCTOR_NAME], advice[DPT_DOCTOR_LINE];
        struct dpt_finding f = {.name = name};
        int last = i;

        while (last + 1 < known && strcmp(g->gpu[last + 1].name, g->gpu[i].name) == 0)
            last++;
        snprintf(name, sizeof name, last > i ? "devices %d-%d" : "device %d", i, last);
        for (int k = i; k <= last; k++)
            if (g->gpu[k].available >= 0 && g->gpu[k].available < 0.5 * g->gpu[k].memory) {
                f.level = DPT_DOCTOR_WARNING;
                snprintf(advice, sizeof advice,
                         "others use it: device %d has %s free (nvidia-smi shows who)", k,
                         dpt_show_bytes(g->gpu[k].available, has));
            }
        dpt_doctor_add(d, f, f.level != DPT_DOCTOR_OK ? advice : NULL, "%s, %s, compute %d.%d",
                       g->gpu[i].name, dpt_show_bytes(g->gpu[i].memory, has), g->gpu[i].major,
                       g->gpu[i].minor);
        i = last;
    }
}

void dpt_doctor_devices(struct dpt_doctor *d)
{
    const struct dpt_gpu_query *g = &d->gpus;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    if (!g->library || g->code != 0)
        return;
    tell_devices(d);
    if (g->count == 0)
        dpt_warning(d, "ask for GPUs (sbatch --gpus), or unset it", "none to be seen%s%s",
                    visible != NULL ? ", CUDA_VISIBLE_DEVICES=" : "",
                    visible != NULL ? visible : "");
    else if (dpt_gpu_backend() == NULL)
        dpt_warning(d, "they stay idle: this one computes on CPUs",
                    "%d, but this dptrain was built without CUDA", g->count);
}

void dpt_doctor_cuda_aware(struct dpt_doctor *d)
{
    const struct dpt_gpu_query *g = &d->gpus;
    const int claims = d->alone ? -1 : dpt_probe_claims_cuda();

    if (g->code != 0 || g->count == 0)
        return;
    if (g->message == 1)
        dpt_ok(d, "yes: a message between device memory arrived%s",
               claims == 0 ? ", though it reports no" : "");
    else if (g->message < 0)
        dpt_ok(d, "not tried: %s", g->why);
    else if (claims == 1)
        dpt_warning(d, "do not rely on it: gradients go through the host's memory instead",
                    "MPI reports it, but a message did not arrive%s%s",
                    g->why[0] != '\0' ? ": " : "", g->why);
    else
        dpt_ok(d, "no: gradients go through the host's memory");
}

void dpt_doctor_peers(struct dpt_doctor *d)
{
    const struct dpt_gpu_query *g = &d->gpus;
    char more[40] = "";

    if (g->code != 0 || g->count < 2)
        return;
    if (g->apart > 1)
        snprintf(more, sizeof more, ", nor in %d more pair%s", g->apart - 1,
                 g->apart > 2 ? "s" : "");
    if (g->apart > 0)
        dpt_warning(d,
                    "they copy through the host's memory: `nvidia-smi topo -p2p r` says why; an "
                    "IOMMU or ACS (BIOS) may prevent it, and some GPUs cannot",
                    "none between devices %d and %d%s", g->first[0], g->first[1], more);
    else
        dpt_ok(d, "between all %d devices", g->count);
}

/* A rank that may use both kinds of CPUs binds itself (core/train/setup/choose.c). */
void dpt_doctor_near(struct dpt_doctor *d)
{
    cpu_set_t own, near;

    if (d->gpus.own_bus[0] != '\0' && dpt_process_near(d->gpus.own_bus, &own, &near) &&
        CPU_COUNT(&near) == 0)
        dpt_warning(d, "mpirun --bind-to none, srun --cpu-bind=none: it then binds itself",
                    "bound to CPUs of another NUMA node than its GPU's");
}

/* --- which rank has which --------------------------------------------------------------------- */

/* A rank's GPU, whose bus address is empty if it has none, and the GPUs that it sees. */
struct own {
    char bus[32], name[64];
    char seen[DPT_GPU_QUERY_MOST][32];
    int count, node; /* GPUs that it sees, and those that its node has */
    bool variable;   /* CUDA_VISIBLE_DEVICES is set */
};

/* The ranks that have the same as `first`, on the same host where it is the device itself. */
static int find_same(const struct dpt_doctor *d, const struct own *all, int first, bool device,
                     int *same)
{
    int n = 0;

    for (int r = 0; r < d->comm.world.size; r++) {
        const bool equal =
            device ? strcmp(all[r].bus, all[first].bus) == 0 &&
                         strcmp(dpt_comm_host(&d->comm, r), dpt_comm_host(&d->comm, first)) == 0
                   : strcmp(all[r].name, all[first].name) == 0;

        if (equal)
            same[n++] = r;
    }
    return n;
}

static bool sees(const struct own *rank, const char *bus)
{
    for (int i = 0; i < rank->count && i < DPT_GPU_QUERY_MOST; i++)
        if (strcmp(rank->seen[i], bus) == 0)
            return true;
    return rank->count > DPT_GPU_QUERY_MOST;
}

/* Tells which ranks do not see all GPUs of their node. It does harm if others of the job have
 * these, or if the ranks share what they see; else it may be all that the job was given. A process
 * sees one part (MIG) of a divided GPU at most. */
static void judge_hidden(struct dpt_doctor *d, const struct own *all)
{
    const int ranks = d->comm.world.size;
    const char *advice;
    int n = 0, list[ranks];
    bool harm = false;
    char who[200];

    for (int r = 0; r < ranks; r++) {
        bool hidden = all[r].count < all[r].node, here = false;

        for (int i = 0; i < ranks; i++) {
            if (i == r || strcmp(dpt_comm_host(&d->comm, i), dpt_comm_host(&d->comm, r)) != 0)
                continue;
            hidden = hidden || !sees(&all[r], all[i].bus);
            here = here || !sees(&all[r], all[i].bus) || strcmp(all[i].bus, all[r].bus) == 0;
        }
        if (!hidden || all[r].bus[0] == '\0' || strstr(all[r].name, " MIG ") != NULL)
            continue;
        harm = harm || here;
        list[n++] = r;
    }
    if (n == 0)
        return;
    advice =
        getenv("SLURM_JOB_ID") != NULL
            ? "GPUs that a rank does not see cannot copy to its own: sbatch --gpus-per-node=N, "
              "without --gpus-per-task and --gpu-bind"
        : all[list[0]].variable ? "GPUs that a rank does not see cannot copy to its own: unset "
                                  "it, a rank takes the GPU of its number on the node"
                                : "GPUs that a rank does not see cannot copy to its own: give "
                                  "the container or control group all (docker --gpus all)";
    dpt_doctor_add(d,
                   (struct dpt_finding){.name = "hidden GPUs",
                                        .level = harm ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK},
                   advice, "%s hides GPUs from %s, which see%s %d of %d",
                   all[list[0]].variable ? "CUDA_VISIBLE_DEVICES" : "a control group",
                   dpt_doctor_who(d, list, n, who, sizeof who), n == 1 ? "s" : "",
                   all[list[0]].count, all[list[0]].node);
}

static void judge_ranks(struct dpt_doctor *d, const struct own *all)
{
    const int ranks = d->comm.world.size;
    char who[200];
    int with = 0, n = 0, list[ranks];

    for (int r = 0; r < ranks; r++) {
        with += all[r].bus[0] != '\0';
        if (all[r].bus[0] == '\0')
            list[n++] = r;
    }
    if (with == 0)
        return;
    if (n > 0) {
        dpt_warning(d, "`auto` then takes CPUs: sbatch --gpus-per-node=N, and N ranks per node",
                    "no GPU for %s", dpt_doctor_who(d, list, n, who, sizeof who));
        return;
    }
    for (int r = 0; r < ranks; r++) {
        n = find_same(d, all, r, true, list);
        if (n == 1 || strstr(all[r].name, " MIG ") != NULL)
            continue;
        dpt_warning(d, "one rank per GPU is fastest: start fewer", "%s share GPU %s",
                    dpt_doctor_who(d, list, n, who, sizeof who), all[r].bus);
        return;
    }
    n = find_same(d, all, 0, false, list);
    if (n < ranks)
        dpt_warning(d, "each step waits for the slowest rank", "%s for %s, others for the rest",
                    all[0].name, dpt_doctor_who(d, list, n, who, sizeof who));
    else
        dpt_ok(d, ranks == 1 ? "it has a GPU" : "a GPU each");
}

enum dpt_status dpt_doctor_gpu_ranks(struct dpt_doctor *d, struct dpt_error *err)
{
    struct own mine;
    const struct own *all;

    mine = (struct own){.count = d->gpus.count, .node = d->gpus.node};
    mine.variable = getenv("CUDA_VISIBLE_DEVICES") != NULL;
    memcpy(mine.bus, d->gpus.own_bus, sizeof mine.bus);
    memcpy(mine.name, d->gpus.own_name, sizeof mine.name);
    for (int i = 0; i < DPT_GPU_QUERY_MOST; i++)
        memcpy(mine.seen[i], d->gpus.gpu[i].bus, sizeof mine.seen[i]);
    all = dpt_doctor_gather(d, &mine, sizeof mine, err);
    if (all != NULL) {
        judge_ranks(d, all);
        judge_hidden(d, all);
    }
    return all != NULL ? DPT_OK : err->status;
}
