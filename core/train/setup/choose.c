#include "core/train/setup/choose.h"

#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/process.h"
#include "core/base/str.h"
#include "core/train/team.h"

static const char *const names[] = {DPT_DEVICE_KINDS(DPT_LIST_WORD)};

/* --- what this build has ---------------------------------------------------------------------- */

/* The first backend that computes on devices, or on CPUs; NULL: there is none. */
static const struct dpt_backend *find(bool devices)
{
    size_t i = 0;

    while (dpt_backends[i] != NULL && (dpt_backends[i]->devices != NULL) != devices)
        i++;
    return dpt_backends[i];
}

/* The backend with devices that this kind may mean; NULL: none. */
static const struct dpt_backend *find_accelerator(enum dpt_device_kind kind)
{
    return kind == DPT_DEVICE_AUTO || kind == DPT_DEVICE_CUDA ? find(true) : NULL;
}

int dpt_choose_count(enum dpt_device_kind kind)
{
    const struct dpt_backend *gpu = find_accelerator(kind);
    struct dpt_error ignored;
    int count = 0;

    return gpu != NULL && gpu->devices->count(&count, &ignored) == DPT_OK ? count : 0;
}

enum dpt_status dpt_choose_planned(enum dpt_device_kind kind, const struct dpt_backend **backend,
                                   struct dpt_error *err)
{
    if (kind == DPT_DEVICE_AUTO)
        *backend = dpt_choose_count(kind) > 0 ? find_accelerator(kind) : find(false);
    else
        *backend = dpt_backend_find(names[kind]);
    if (*backend == NULL)
        return dpt_fail(err, DPT_BAD_JOB,
                        "device.kind: this dptrain was built without '%s'; "
                        "`auto` takes what there is",
                        names[kind]);
    return DPT_OK;
}

/* --- before MPI ------------------------------------------------------------------------------- */

void dpt_choose_early(enum dpt_device_kind kind)
{
    const struct dpt_backend *gpu = find_accelerator(kind);
    const int local = dpt_launcher_local_rank();
    struct dpt_error ignored;

    if (gpu == NULL || local < 0)
        return;
    /* The driver starts threads, which may read the environment: we change it before. */
    dpt_launcher_prepare();
    if (dpt_choose_count(kind) > 0)
        gpu->devices->choose(local, &ignored);
}

/* --- who -------------------------------------------------------------------------------------- */

const char *dpt_choose_name_ranks(const struct dpt_comm *comm, const bool *is, char *buf,
                                  size_t size)
{
    enum { MOST = 8 };
    const int n = comm->world.size;
    struct dpt_str text = {0};
    int ranks = 0, listed = 0;
    const char *host = NULL;

    for (int r = 0; r < n; r++)
        ranks += is[r];
    dpt_str_printf(&text, "rank%s ", ranks == 1 ? "" : "s");
    dpt_str_ranks_where(&text, is, n);
    for (int r = 0; r < n; r++) {
        if (!is[r] || (host != NULL && strcmp(host, dpt_comm_host(comm, r)) == 0))
            continue;
        host = dpt_comm_host(comm, r);
        if (listed <= MOST)
            dpt_str_printf(&text, "%s%s", listed == 0 ? " (" : ", ", listed == MOST ? "..." : host);
        listed++;
    }
    dpt_str_printf(&text, ")");
    snprintf(buf, size, "%s", text.failed ? "some ranks" : text.text);
    dpt_str_release(&text);
    return buf;
}

/* --- together --------------------------------------------------------------------------------- */

static void find_devices(const struct dpt_backend *gpu, const struct dpt_comm *comm,
                         struct dpt_rank_gpu *mine, int *device, struct dpt_error *err)
{
    const int from_launcher = dpt_launcher_local_rank(),
              local = from_launcher >= 0 ? from_launcher : comm->node.rank;

    *mine = (struct dpt_rank_gpu){.first = comm->world.rank};
    if (gpu->devices->count(&mine->count, err) == DPT_OK &&
        gpu->devices->choose(local, err) == DPT_OK) {
        *device = local % mine->count;
        mine->usable = gpu->devices->info(*device, &mine->info, err) == DPT_OK;
    }
    if (!mine->usable)
        snprintf(mine->why, sizeof mine->why, "%.*s", (int)sizeof mine->why - 1, err->text);
}

/* Collective over the node, whose ranks alone can share a GPU. Ranks on parts of one (MIG) do: they
 * have the same address. */
static enum dpt_status find_first(const struct dpt_comm *comm, struct dpt_rank_gpu *mine,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_rank_gpu *all = NULL;
    int i = 0;

    status = DPT_ALLOCATE(all, (size_t)comm->node.size, "the list of GPUs", err);
    DPT_TRY(dpt_group_agree(&comm->node, status, err));
    DPT_TRY(dpt_group_allgather(&comm->node, mine, all, sizeof *mine, err));
    while (strcmp(all[i].info.bus, mine->info.bus) != 0)
        i++;
    mine->first = all[i].first;
out:
    dpt_free(all);
    return status;
}

int dpt_count_gpus(const struct dpt_rank_gpu *all, int ranks)
{
    int n = 0;

    for (int r = 0; r < ranks; r++)
        n += all[r].first == r;
    return n;
}

static void write_cpus(const cpu_set_t *cpus, char *text, size_t size)
{
    bool is[CPU_SETSIZE];
    struct dpt_str list = {0};

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        is[cpu] = CPU_ISSET(cpu, cpus) != 0;
    dpt_str_ranks_where(&list, is, CPU_SETSIZE);
    snprintf(text, size, "%s", list.failed ? "some" : list.text);
    dpt_str_release(&list);
}

/* Collective over the node. A copy between the GPU and memory of another NUMA node crosses the link
 * between them. If the launcher has bound the rank to CPUs of one node, all of them are near, or
 * none. */
static enum dpt_status bind_near(const struct dpt_comm *comm, struct dpt_rank_gpu *mine,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    cpu_set_t own, near;
    double given, left;
    bool bound = dpt_process_near(mine->info.bus, &own, &near) && CPU_COUNT(&near) > 0 &&
                 !CPU_EQUAL(&near, &own);

    DPT_TRY(dpt_core_share(&comm->node, &given, err));
    if (bound)
        bound = dpt_process_bind(&own, &near);
    DPT_TRY(dpt_core_share(&comm->node, &left, err));
    if (bound && left < given / 2 - 1e-6) {
        dpt_process_bind(&near, &own); /* what decodes samples needs the cores more */
        bound = false;
    }
    if (bound)
        write_cpus(&near, mine->cpus, sizeof mine->cpus);
out:
    return status;
}

/* Rank 0's warning that some GPUs do the work of several ranks. Parts of one (MIG) are as good as
 * GPUs. */
static void warn_shared(const struct dpt_comm *comm, struct dpt_log *log,
                        const struct dpt_rank_gpu *all, bool *marks)
{
    const int n = comm->world.size;
    int shared = 0, lowest = n;
    char who[200], text[400] = "";

    for (int r = 0; r < n; r++) {
        const int first = all[r].first;

        if (first == r || strstr(all[r].info.name, " MIG ") != NULL)
            continue;
        shared += !marks[first];
        marks[first] = true;
        lowest = first < lowest ? first : lowest;
    }
    for (int r = 0; r < n; r++)
        marks[r] = all[r].first == lowest;
    if (shared > 0)
        snprintf(text, sizeof text, "%s share GPU %s (%s)",
                 dpt_choose_name_ranks(comm, marks, who, sizeof who), all[lowest].info.bus,
                 all[lowest].info.name);
    if (shared > 1)
        dpt_log_warn(log, "%s, and %d more are shared: one rank per GPU is fastest", text,
                     shared - 1);
    else if (shared == 1)
        dpt_log_warn(log, "%s: one rank per GPU is fastest", text);
}

/* Rank 0's warning why `auto` computes on CPUs although there are GPUs. */
static void warn_missing(const struct dpt_comm *comm, struct dpt_log *log,
                         const struct dpt_rank_gpu *all, bool *without)
{
    const int n = comm->world.size;
    const char *why = NULL;
    bool some = false, shown = false;
    char who[200];

    for (int r = 0; r < n; r++) {
        without[r] = !all[r].usable;
        some |= all[r].usable;
        shown |= all[r].count > 0;
    }
    for (int r = 0; r < n && why == NULL; r++)
        if (without[r] && (some || all[r].count > 0))
            why = all[r].why;
    if (some)
        dpt_log_warn(log, "no GPU for %s: %s. So all ranks compute on CPUs",
                     dpt_choose_name_ranks(comm, without, who, sizeof who), why);
    else if (shown)
        dpt_log_warn(log, "the GPUs stay idle: %s", why);
}

/* Collective. *all: out, of every rank; rank 0 warns of what is odd about them. */
static enum dpt_status gather(const struct dpt_comm *comm, struct dpt_log *log,
                              const struct dpt_rank_gpu *mine, bool chosen,
                              struct dpt_rank_gpu **all, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)comm->world.size;
    bool *marks = NULL;

    status = DPT_ALLOCATE(*all, n, "the list of GPUs", err);
    if (status == DPT_OK)
        status = DPT_ALLOCATE(marks, n, "the list of GPUs", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    DPT_TRY(dpt_group_allgather(&comm->world, mine, *all, sizeof *mine, err));
    if (comm->world.rank == 0)
        (chosen ? warn_shared : warn_missing)(comm, log, *all, marks);
out:
    dpt_free(marks);
    return status;
}

enum dpt_status dpt_choose_backend(const struct dpt_comm *comm, enum dpt_device_kind kind,
                                   struct dpt_log *log, const struct dpt_backend **backend,
                                   int *device, struct dpt_rank_gpu **all, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_backend *gpu = find_accelerator(kind);
    struct dpt_rank_gpu mine;
    int64_t have[2]; /* ranks that can use a GPU; ranks whose driver shows one */

    *device = 0;
    *all = NULL;
    if (gpu == NULL)
        return dpt_choose_planned(kind, backend, err);
    find_devices(gpu, comm, &mine, device, err);
    if (kind == DPT_DEVICE_CUDA) {
        if (!mine.usable)
            status = dpt_fail(err, err->status, "device.kind: cuda: %s", mine.why);
        DPT_TRY(dpt_group_agree(&comm->world, status, err));
    }
    have[0] = mine.usable;
    have[1] = mine.count > 0;
    DPT_TRY(dpt_group_sum_ints(&comm->world, have, have, 2, err));
    if (have[0] == comm->world.size) {
        DPT_TRY(find_first(comm, &mine, err));
        DPT_TRY(bind_near(comm, &mine, err));
    }
    if (have[1] > 0)
        DPT_TRY(gather(comm, log, &mine, have[0] == comm->world.size, all, err));
    *backend = have[0] == comm->world.size ? gpu : find(false);
out:
    return status;
}
