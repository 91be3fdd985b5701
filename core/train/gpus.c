#include "core/train/run.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/base/str.h"

enum { LISTED = 8 };

/* The first rank of each device. */
static void mark_first(const struct dpt_trainer *t, struct dpt_gpu *all)
{
    for (int r = 0; r < t->comm->world.size; r++) {
        all[r].first = true;
        for (int i = 0; i < r && all[r].first; i++)
            all[r].first = strcmp(all[i].info.bus, all[r].info.bus) != 0 ||
                           strcmp(dpt_comm_host(t->comm, i), dpt_comm_host(t->comm, r)) != 0;
    }
}

enum dpt_status dpt_gpus_allgather(const struct dpt_trainer *t, struct dpt_gpu **all,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_gpu mine = {0};

    *all = NULL;
    if (t->backend->devices == NULL)
        return DPT_OK;
    status = DPT_ALLOCATE(*all, (size_t)world->size, "the list of GPUs", err);
    if (status == DPT_OK)
        status = t->backend->devices->info(t->gpu, &mine.info, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_allgather(world, &mine, *all, sizeof mine, err));
    if (world->rank == 0)
        mark_first(t, *all);
out:
    return status;
}

static int count_devices(const struct dpt_trainer *t, const struct dpt_gpu *all)
{
    int n = 0;

    for (int r = 0; r < t->comm->world.size; r++)
        n += all[r].first;
    return n;
}

/* "2 x NVIDIA H100 80GB HBM3 of 85.0 GB" for each kind. */
static void list_kinds(const struct dpt_trainer *t, const struct dpt_gpu *all, struct dpt_str *out)
{
    const int ranks = t->comm->world.size;

    for (int r = 0; r < ranks; r++) {
        int n = 0, before = 0;

        for (int i = 0; i < ranks; i++) {
            const bool same = strcmp(all[i].info.name, all[r].info.name) == 0 && all[i].first;

            n += same;
            before += same && i < r;
        }
        if (before > 0 || !all[r].first)
            continue;
        dpt_str_printf(out, "%s", out->length > 0 ? ", " : "");
        if (n > 1)
            dpt_str_printf(out, "%d x ", n);
        dpt_str_printf(out, "%s of %.3g GB", all[r].info.name, (double)all[r].info.memory / 1e9);
    }
}

/* "0000:17:00.0, 0000:65:00.0, ...", of the first devices. */
static void list_addresses(const struct dpt_trainer *t, const struct dpt_gpu *all,
                           struct dpt_str *out)
{
    int listed = 0;

    for (int r = 0; r < t->comm->world.size && listed <= LISTED; r++) {
        if (!all[r].first)
            continue;
        dpt_str_printf(out, "%s%s", listed == 0 ? "" : ", ",
                       listed == LISTED ? "..." : all[r].info.bus);
        listed++;
    }
}

void dpt_gpus_log(const struct dpt_trainer *t, const struct dpt_gpu *all)
{
    const int ranks = t->comm->world.size, devices = count_devices(t, all);
    struct dpt_str text = {0};

    list_kinds(t, all, &text);
    if (ranks > 1 && devices == ranks)
        dpt_str_printf(&text, ", one a rank");
    else if (ranks > 1)
        dpt_str_printf(&text, " for %d ranks", ranks);
    dpt_log_info(t->log, "  device   %s: %s; %s", t->backend->name, text.text,
                 dpt_job_precision(t->job));
    dpt_str_clear(&text);
    list_addresses(t, all, &text);
    dpt_log_info(t->log, "           at %s; %s", text.text, all[0].info.driver);
    for (int r = 1; r < ranks; r++)
        if (strcmp(all[r].info.driver, all[0].info.driver) != 0) {
            dpt_log_warn(t->log, "rank %d (%s) has other libraries: %s", r,
                         dpt_comm_host(t->comm, r), all[r].info.driver);
            break;
        }
    if (ranks > 1)
        dpt_log_info(t->log, "  sums     in GPU memory: %s",
                     t->aware[0] != '\0' ? t->aware : "no (these steps are summed on the host)");
    dpt_str_clear(&text);
    if (t->backend->determinism != NULL)
        t->backend->determinism(t->model.program, &text);
    if (text.length > 0)
        dpt_log_info(t->log, "           %s", text.text);
    if (text.length > 0 && t->job->device.deterministic)
        dpt_log_info(t->log, "           device.deterministic: false takes the faster ones");
    dpt_str_release(&text);
}

void dpt_gpus_metrics(const struct dpt_trainer *t, const struct dpt_gpu *all, struct dpt_metrics *m)
{
    dpt_metrics_text(m, "gpu", all[0].info.name);
    dpt_metrics_text(m, "gpu_bus", all[0].info.bus);
    dpt_metrics_int(m, "gpu_memory", all[0].info.memory);
    dpt_metrics_int(m, "gpus", count_devices(t, all));
    dpt_metrics_text(m, "gpu_library", all[0].info.driver);
    dpt_metrics_text(m, "precision", dpt_job_precision(t->job));
    if (t->aware[0] != '\0')
        dpt_metrics_text(m, "cuda_aware", t->aware);
}
