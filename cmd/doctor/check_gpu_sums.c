/* Checks of sums in the memory of GPUs: how fast they are by MPI and by NCCL, and what NCCL's log
 * says it connects the GPUs by. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/comm/probe.h"
#include "core/train/setup/choose.h"

/* Floats of a sum: a short one, one of 4.2 MB, and the longest that a step gives NCCL at once. */
enum { SMALL = 32, LARGE = 1 << 20, LONGEST = 8 << 20 };
enum { ROUNDS = 20 };

static const double budget = 0.15; /* seconds */

/* --- how fast they are ------------------------------------------------------------------------ */

/* The GPU of this rank. link: by which NCCL sums; NULL: MPI does. */
struct gpu {
    const struct dpt_backend *backend;
    int number;
    void *link;
};

static enum dpt_status sum_once(const struct dpt_doctor *d, const struct gpu *gpu,
                                struct dpt_device_buffer *b, struct dpt_error *err)
{
    if (gpu->link != NULL)
        return gpu->backend->devices->links->sum(gpu->link, b, err);
    return dpt_group_sum_floats(&d->comm.world, b->at, b->at, (size_t)b->n, err);
}

/* Collective. Measures the seconds of a sum, from the call until it is there: the least of
 * several. */
static enum dpt_status time_sums(const struct dpt_doctor *d, const struct gpu *gpu, int n,
                                 double *seconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm.world;
    const double end = dpt_now() + budget;
    const struct dpt_device_memory *memory = &gpu->backend->devices->memory;
    struct dpt_device_buffer b = {0};
    double left = 1;

    *seconds = INFINITY;
    status = memory->open(gpu->number, 0, n, &b, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    for (int i = 0; i < ROUNDS && left > 0; i++) {
        double start;

        DPT_TRY(dpt_group_barrier(world, err));
        start = dpt_now();
        status = sum_once(d, gpu, &b, err);
        *seconds = fmin(*seconds, dpt_now() - start);
        DPT_TRY(dpt_group_agree(world, status, err));
        DPT_TRY(dpt_group_max(world, i < 2 ? 1 : end - dpt_now(), &left, err));
    }
    DPT_TRY(dpt_group_max(world, *seconds, seconds, err));
out:
    memory->close(&b);
    return status;
}

/* Collective. Whether each rank has a GPU, and more than one takes part; which is this rank's.
 * apart: no two share one. */
static enum dpt_status find_gpus(const struct dpt_doctor *d, bool able, struct gpu *gpu,
                                 bool *found, bool *apart, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_comm *comm = &d->comm;
    const int64_t bad = !able || d->gpus.own_bus[0] == '\0' || d->gpus.missing[0] != '\0';
    struct dpt_log mute = {.silent = true};
    struct dpt_rank_gpu *gpus = NULL;
    int64_t all_bad = bad;

    *found = *apart = false;
    DPT_TRY(dpt_group_sum_ints(&comm->world, &bad, &all_bad, 1, err));
    if (all_bad > 0 || comm->world.size == 1)
        return DPT_OK;
    DPT_TRY(
        dpt_choose_backend(comm, DPT_DEVICE_AUTO, &mute, &gpu->backend, &gpu->number, &gpus, err));
    *found = gpu->backend->devices != NULL;
    *apart = gpus != NULL && dpt_count_gpus(gpus, comm->world.size) == comm->world.size;
out:
    dpt_free(gpus);
    return status;
}

/* "390 GB/s" of a sum of n floats; the size. */
static const char *rate_text(const struct dpt_doctor *d, int n, double seconds, char rate[32])
{
    return dpt_show_bytes(dpt_bus_bandwidth(d->comm.world.size, 4.0 * n, seconds), rate);
}

/* Only where a lone message arrived on every node: an MPI that cannot do it would end the job. */
enum dpt_status dpt_doctor_gpu_sum(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_comm *comm = &d->comm;
    char how[DPT_CUDA_AWARE_TEXT], time[32], rate[32];
    bool found, apart, on_device;
    struct gpu gpu = {0};
    double seconds;

    DPT_TRY(find_gpus(d, comm->node.rank != 0 || d->gpus.message == 1, &gpu, &found, &apart, err));
    if (!found)
        return DPT_OK;
    DPT_TRY(dpt_comm_device_sums(comm, DPT_CUDA_AWARE_ON, &gpu.backend->devices->memory, gpu.number,
                                 LARGE, &on_device, how, err));
    DPT_TRY(time_sums(d, &gpu, LARGE, &seconds, err));
    dpt_show_seconds(seconds, time);
    dpt_doctor_say(d, DPT_DOCTOR_OK,
                   dpt_probe_claims_cuda() == 1
                       ? NULL
                       : "comm.cuda_aware: on uses it; `auto` only if MPI reports it",
                   "%s for 4.2 MB in GPU memory, bus bandwidth %s/s", time,
                   rate_text(d, LARGE, seconds, rate));
out:
    return status;
}

/* --- NCCL's log ------------------------------------------------------------------------------- */

/* What a rank's log says. It writes "via" for each connection that is made: "Channel 00/0 : 0[0] ->
 * 1[1] via P2P/CUMEM/read", "[send] via NET/Socket/0", from NCCL 2.14 on with few changes. */
struct heard {
    bool read;
    int peer, host, net; /* connections: GPU to GPU, by the host's memory, by the network */
    bool switched;       /* NVSwitch adds (NVLS) */
    bool disabled;       /* it says that peer memory is disabled, or could not be enabled */
    bool no_infiniband;  /* it has found no such device */
    char by[24];         /* "P2P/CUMEM": of the first connection between GPUs */
    char over[32];       /* "Socket", "IB": of the first connection by the network */
    char network[32];    /* of the network that it would take */
};

void dpt_doctor_listen(struct dpt_doctor *d)
{
    char path[64];
    int file;

    if (d->gpus.own_bus[0] == '\0' || getenv("NCCL_DEBUG") != NULL ||
        getenv("NCCL_DEBUG_FILE") != NULL)
        return;
    file = memfd_create("nccl-log", MFD_CLOEXEC); /* nothing is left of it, however this ends */
    if (file < 0)
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 1);
    setenv("NCCL_DEBUG_FILE", path, 1);
    d->nccl_log = file;
}

/* Copies a word that ends at one of `ends`; the first that is heard stays. */
static void keep(char *word, size_t size, const char *from, const char *ends)
{
    if (word[0] == '\0')
        snprintf(word, size, "%.*s", (int)strcspn(from, ends), from);
}

static void hear_line(struct heard *h, const char *line)
{
    const char *at;

    if ((at = strstr(line, " via P2P/")) != NULL) {
        h->peer++;
        keep(h->by, sizeof h->by, at + strlen(" via "), " \n");
    } else if (strstr(line, " via SHM/") != NULL) {
        h->host++;
    } else if ((at = strstr(line, " via NET/")) != NULL) {
        h->net++;
        keep(h->over, sizeof h->over, at + strlen(" via NET/"), "/\n");
    } else if ((at = strstr(line, "INFO Using network ")) != NULL) {
        keep(h->network, sizeof h->network, at + strlen("INFO Using network "), "\n");
    }
    h->switched = h->switched || strstr(line, "INFO NVLS comm ") != NULL;
    h->disabled = h->disabled || strstr(line, "P2P is disabled between ") != NULL ||
                  strstr(line, "Could not enable P2P between ") != NULL;
    h->no_infiniband = h->no_infiniband || strstr(line, "NET/IB : No device found") != NULL;
}

static void hear(struct dpt_doctor *d, struct heard *h)
{
    enum { MOST = 8 << 20 };
    struct stat file;
    size_t n;
    char *text;

    if (d->nccl_log == 0 || fstat(d->nccl_log, &file) != 0 || file.st_size == 0)
        return;
    n = file.st_size < MOST ? (size_t)file.st_size : MOST;
    text = dpt_region_alloc(&d->region, n + 1);
    if (text == NULL || dpt_pread_all(d->nccl_log, text, n, 0) != 0)
        return;
    text[n] = '\0';
    h->read = true;
    for (char *line = text; *line != '\0';) {
        char *end = line + strcspn(line, "\n");
        const bool last = *end == '\0';

        *end = '\0';
        hear_line(h, line);
        line = last ? end : end + 1;
    }
}

/* Says what connects the GPUs of a node. */
static void judge_node(struct dpt_doctor *d, const struct heard *all)
{
    const int ranks = d->comm.world.size;
    int n = 0, n_net = 0, host[ranks], net[ranks];
    const struct heard *first = NULL;
    bool disabled = false;
    char who[200];

    for (int r = 0; r < ranks; r++) {
        if (all[r].host > 0)
            host[n++] = r;
        if (all[r].net > 0)
            net[n_net++] = r;
        disabled = disabled || all[r].disabled;
        if (first == NULL && all[r].peer > 0)
            first = &all[r];
    }
    if (n > 0)
        dpt_doctor_add(
            d, (struct dpt_finding){.name = "NCCL's links", .level = DPT_DOCTOR_WARNING},
            disabled ? "its log says that P2P is disabled: `nvidia-smi topo -p2p r` says why; an "
                       "IOMMU or ACS (BIOS) may prevent it, and some GPUs cannot"
                     : "`nvidia-smi topo -m` shows what is between them; NCCL_P2P_LEVEL=SYS has "
                       "it try peer memory over any of that",
            "%s: through the host's memory (SHM), not from GPU to GPU",
            dpt_doctor_who(d, host, n, who, sizeof who));
    if (n_net > 0 && d->comm.nodes == 1)
        dpt_doctor_add(d, (struct dpt_finding){.name = "NCCL's links", .level = DPT_DOCTOR_WARNING},
                       "it has neither peer memory nor shared memory: look at NCCL_P2P_DISABLE and "
                       "NCCL_SHM_DISABLE, and at /dev/shm in containers",
                       "%s: through the network (NET/%s), though on one node",
                       dpt_doctor_who(d, net, n_net, who, sizeof who), all[net[0]].over);
    if (n == 0 && first != NULL)
        dpt_doctor_add(d, (struct dpt_finding){.name = "NCCL's links"}, NULL,
                       "on a node from GPU to GPU (%s)%s", first->by,
                       first->switched ? ", NVSwitch adds (NVLS)" : "");
}

/* Says what connects nodes. Each rank names a network, but on one node none is used. */
static void judge_network(struct dpt_doctor *d, const struct heard *all)
{
    const int ranks = d->comm.world.size;
    struct dpt_finding f = {.name = "NCCL's network"};
    int n = 0, list[ranks];
    bool no_infiniband = true;
    char who[200];

    for (int r = 0; r < ranks; r++)
        if (strcmp(all[r].network, "Socket") == 0) {
            list[n++] = r;
            no_infiniband = no_infiniband && all[r].no_infiniband;
        }
    if (d->comm.nodes == 1 && all[0].network[0] != '\0') {
        dpt_doctor_add(d, f, NULL, "%s, which ranks of one node do not use", all[0].network);
    } else if (n > 0) {
        f.level = DPT_DOCTOR_WARNING;
        dpt_doctor_add(d, f,
                       no_infiniband
                           ? "its log says that it found no InfiniBand or RoCE: if there is any, "
                             "containers need /dev/infiniband and libibverbs"
                           : "look at NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL_NET; NCCL_DEBUG=INFO "
                             "says more",
                       "TCP sockets for %s", dpt_doctor_who(d, list, n, who, sizeof who));
    } else if (all[0].network[0] != '\0') {
        dpt_doctor_add(d, f, NULL, "%s", all[0].network);
    }
}

/* Collective. */
static enum dpt_status tell_log(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct heard mine = {0};
    const struct heard *all;

    hear(d, &mine);
    DPT_DOCTOR_GATHER(all, d, &mine, sizeof mine, err);
    for (int r = 0; r < d->comm.world.size; r++)
        if (!all[r].read) {
            dpt_doctor_add(d, (struct dpt_finding){.name = "NCCL's links"}, NULL,
                           "not known: rank %d has no log of NCCL to read%s", r,
                           d->nccl_log == 0 ? ", since NCCL_DEBUG or NCCL_DEBUG_FILE is set" : "");
            return DPT_OK;
        }
    judge_node(d, all);
    judge_network(d, all);
out:
    return status;
}

/* --- by NCCL ---------------------------------------------------------------------------------- */

/* Collective. */
static enum dpt_status tell_sums(struct dpt_doctor *d, const struct gpu *gpu, const char *how,
                                 struct dpt_error *err)
{
    static const int sizes[] = {SMALL, LARGE, LONGEST};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    enum dpt_status status = DPT_OK;
    char time[SIZES][32], rate[SIZES][32];
    double seconds;

    for (int i = 0; i < SIZES; i++) {
        DPT_TRY(time_sums(d, gpu, sizes[i], &seconds, err));
        dpt_show_seconds(seconds, time[i]);
        rate_text(d, sizes[i], seconds, rate[i]);
    }
    dpt_ok(d, "%s: %s for 128 B, %s for 4.2 MB, %s for 33.6 MB; bus bandwidth %s/s and %s/s", how,
           time[0], time[1], time[2], rate[1], rate[2]);
out:
    return status;
}

/* Ranks that share a GPU, which NCCL does not take, have their warning already. */
enum dpt_status dpt_doctor_nccl(struct dpt_doctor *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_backend_devices *devices = NULL;
    char how[DPT_CUDA_AWARE_TEXT];
    bool found, apart;
    struct gpu gpu = {0};

    DPT_TRY(find_gpus(d, true, &gpu, &found, &apart, err));
    if (!found || !apart)
        return DPT_OK;
    devices = gpu.backend->devices;
    DPT_TRY(dpt_comm_transport(&d->comm, DPT_TRANSPORT_AUTO, devices->links, &devices->memory,
                               gpu.number, false, &gpu.link, how, err));
    if (gpu.link == NULL) {
        dpt_warning(d, "MPI sums the gradients of GPUs then, which is slower (comm.transport)",
                    "%s", how);
    } else {
        DPT_TRY(tell_sums(d, &gpu, how, err));
        DPT_TRY(tell_log(d, err));
    }
out:
    if (devices != NULL && devices->links != NULL)
        dpt_comm_unlink(&d->comm, devices->links, gpu.link);
    return status;
}
