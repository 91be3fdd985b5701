#include "core/train/run/run.h"

#include <string.h>

#include "core/base/str.h"
#include "core/train/setup/choose.h"

enum { LISTED = 8 };

/* Adds "2 x NVIDIA H100 80GB HBM3 of 85.0 GB" for each kind. */
static void list_kinds(const struct dpt_trainer *t, struct dpt_str *out)
{
    const int ranks = t->comm->world.size;

    for (int r = 0; r < ranks; r++) {
        int n = 0, i = 0;

        for (; i < ranks; i++) {
            const bool same =
                t->gpus[i].first == i && strcmp(t->gpus[i].info.name, t->gpus[r].info.name) == 0;

            if (same && i < r)
                break;
            n += same;
        }
        if (i < r || t->gpus[r].first != r)
            continue;
        dpt_str_printf(out, "%s", out->length > 0 ? ", " : "");
        if (n > 1)
            dpt_str_printf(out, "%d x ", n);
        dpt_str_printf(out, "%s of %.3g GB", t->gpus[r].info.name,
                       (double)t->gpus[r].info.memory / 1e9);
    }
}

/* Adds "0000:17:00.0, 0000:65:00.0, ...", the first devices' addresses. */
static void list_addresses(const struct dpt_trainer *t, struct dpt_str *out)
{
    int listed = 0;

    for (int r = 0; r < t->comm->world.size && listed <= LISTED; r++) {
        if (t->gpus[r].first != r)
            continue;
        dpt_str_printf(out, "%s%s", listed == 0 ? "" : ", ",
                       listed == LISTED ? "..." : t->gpus[r].info.bus);
        listed++;
    }
}

static void log_sums(const struct dpt_trainer *t)
{
    const bool host = t->aware[0] == '\0';

    if (t->comm->world.size == 1)
        return;
    if (t->link != NULL) {
        dpt_log_info(t->log, "  sums     by %s", t->transport);
        return;
    }
    dpt_log_info(t->log, "  sums     in GPU memory: %s",
                 host ? "no (these steps are summed on the host)" : t->aware);
    if (t->transport[0] != '\0')
        dpt_log_info(t->log, "           by NCCL: %s", t->transport);
}

/* Says which ranks have bound their threads beside their GPUs. */
static void log_cpus(const struct dpt_trainer *t)
{
    const int ranks = t->comm->world.size;
    bool is[ranks];
    int first = -1, n = 0;
    char who[200];

    for (int r = 0; r < ranks; r++) {
        is[r] = t->gpus[r].cpus[0] != '\0';
        first = is[r] && first < 0 ? r : first;
        n += is[r];
    }
    if (n == 1 && ranks == 1)
        dpt_log_info(t->log, "           threads on CPUs %s, the GPU's NUMA node", t->gpus[0].cpus);
    else if (n > 0)
        dpt_log_info(t->log, "           threads on their GPU's NUMA node: %s; rank %d on CPUs %s",
                     n == ranks ? "all ranks" : dpt_choose_name_ranks(t->comm, is, who, sizeof who),
                     first, t->gpus[first].cpus);
}

void dpt_gpus_log(const struct dpt_trainer *t)
{
    const int ranks = t->comm->world.size, devices = dpt_count_gpus(t->gpus, ranks);
    struct dpt_str text = {0};

    list_kinds(t, &text);
    if (ranks > 1 && devices == ranks)
        dpt_str_printf(&text, ", one per rank");
    else if (ranks > 1)
        dpt_str_printf(&text, " for %d ranks", ranks);
    dpt_log_info(t->log, "  device   %s: %s; %s", t->backend->name, text.text,
                 dpt_job_precision(t->job));
    dpt_str_clear(&text);
    list_addresses(t, &text);
    dpt_log_info(t->log, "           at %s; %s", text.text, t->gpus[0].info.driver);
    log_cpus(t);
    for (int r = 1; r < ranks; r++)
        if (strcmp(t->gpus[r].info.driver, t->gpus[0].info.driver) != 0) {
            dpt_log_warn(t->log, "rank %d (%s) has other libraries: %s", r,
                         dpt_comm_host(t->comm, r), t->gpus[r].info.driver);
            break;
        }
    log_sums(t);
    dpt_str_clear(&text);
    if (t->backend->determinism != NULL)
        t->backend->determinism(t->model.program, &text);
    if (text.length > 0)
        dpt_log_info(t->log, "           %s", text.text);
    if (text.length > 0 && t->job->device.deterministic)
        dpt_log_info(t->log, "           device.deterministic: false takes the faster ones");
    dpt_str_clear(&text);
    t->backend->devices->startup(&text);
    dpt_log_detail(t->log, "           started in %s", text.text);
    dpt_str_release(&text);
}

void dpt_gpus_metrics(const struct dpt_trainer *t, struct dpt_metrics *m)
{
    dpt_metrics_text(m, "gpu", t->gpus[0].info.name);
    dpt_metrics_text(m, "gpu_bus", t->gpus[0].info.bus);
    if (t->gpus[0].cpus[0] != '\0')
        dpt_metrics_text(m, "gpu_cpus", t->gpus[0].cpus);
    dpt_metrics_int(m, "gpu_memory", t->gpus[0].info.memory);
    dpt_metrics_int(m, "gpus", dpt_count_gpus(t->gpus, t->comm->world.size));
    dpt_metrics_text(m, "gpu_library", t->gpus[0].info.driver);
    dpt_metrics_text(m, "precision", dpt_job_precision(t->job));
    if (t->aware[0] != '\0')
        dpt_metrics_text(m, "cuda_aware", t->aware);
    if (t->transport[0] != '\0')
        dpt_metrics_text(m, "transport", t->link == NULL ? "MPI" : t->transport);
}
