#include "core/train/setup/choose.h"

#include <stdio.h>
#include <string.h>

#include "core/backend/devices.h"
#include "core/base/memory.h"

enum { DIFFERENT = 4 }; /* ways of computing that a line names */

/* How a rank computes. */
struct numerics {
    char text[192];
    int32_t isa; /* enum dpt_isa; -1: a device's */
};

enum dpt_status dpt_numerics_limit(const struct dpt_backend *backend, const struct dpt_job *job,
                                   struct dpt_error *err)
{
    const enum dpt_isa wanted = (enum dpt_isa)job->device.isa, machine = dpt_isa_machine();

    if (wanted == DPT_ISA_PLAIN) /* `auto` */
        return DPT_OK;
    if (machine == DPT_ISA_PLAIN)
        return dpt_fail(err, DPT_BAD_JOB,
                        "device.isa: %s: this machine has none of these sets: leave it `auto`",
                        dpt_isa_names[wanted]);
    if ((machine == DPT_ISA_NEON) != (wanted == DPT_ISA_NEON))
        return dpt_fail(err, DPT_BAD_JOB,
                        "device.isa: %s: this is an %s machine, which has %s: take that or `auto`",
                        dpt_isa_names[wanted], DPT_ARM64 ? "arm64" : "x86-64",
                        dpt_isa_names[machine]);
    if (machine < wanted)
        return dpt_fail(err, DPT_BAD_JOB, "device.isa: %s: this machine has %s at most",
                        dpt_isa_names[wanted], dpt_isa_names[machine]);
    dpt_isa_limit(wanted);
    return backend->limit != NULL ? backend->limit(wanted, err) : DPT_OK;
}

static struct numerics numerics_of(const struct dpt_backend *backend, int device,
                                   const struct dpt_job *job)
{
    struct numerics mine = {.isa = backend->isa != NULL ? (int32_t)backend->isa() : -1};
    struct dpt_device_info info;
    struct dpt_error ignored;
    const char *bf16 = backend->bf16 != NULL && job->device.precision == DPT_PRECISION_BF16
                           ? backend->bf16()
                           : NULL;
    char kind[32] = "";

    if (backend->devices != NULL && backend->devices->info(device, &info, &ignored) == DPT_OK)
        snprintf(kind, sizeof kind, ", sm_%d%d", info.major, info.minor);
    snprintf(mine.text, sizeof mine.text, "%s %.120s%s, %s%s%s, dptrain %s", backend->name,
             backend->describe(), kind, dpt_job_precision(job), bf16 != NULL ? " by " : "",
             bf16 != NULL ? bf16 : "", DPT_VERSION);
    return mine;
}

/* "rank 0 (node07) computes with cpu ...; ranks 1-3 (node08) with cpu ..." */
static void list_numerics(const struct dpt_comm *comm, const struct numerics *all, bool *same,
                          struct dpt_str *out)
{
    const int n = comm->world.size;
    int listed = 0;
    char who[200];

    for (int first = 0; first < n; first++) {
        bool leads = true;
        int ranks = 0;

        for (int r = 0; r < n; r++) {
            same[r] = strcmp(all[r].text, all[first].text) == 0;
            leads = leads && !(same[r] && r < first);
            ranks += same[r];
        }
        if (!leads || listed > DIFFERENT)
            continue;
        if (listed++ == DIFFERENT)
            dpt_str_printf(out, "; others with others");
        else
            dpt_str_printf(out, "%s%s %s %s", listed == 1 ? "" : "; ",
                           dpt_choose_name_ranks(comm, same, who, sizeof who),
                           listed > 1   ? "with"
                           : ranks == 1 ? "computes with"
                                        : "compute with",
                           all[first].text);
    }
}

/* Suggests what would make the ranks alike, if their instructions differ: a set that all have. On
 * arm64 only one set can be chosen; oneDNN decides on the others. */
static void advise(const struct numerics *all, int n, struct dpt_str *out)
{
    int32_t least = all[0].isa, most = all[0].isa;
    bool sve = false;

    for (int r = 0; r < n; r++) {
        sve = sve || strstr(all[r].text, "SVE") != NULL;
        least = all[r].isa < least ? all[r].isa : least;
        most = all[r].isa > most ? all[r].isa : most;
    }
    if (least > DPT_ISA_PLAIN && (least < most || sve))
        dpt_str_printf(out, "set device.isa: %s, which all of them have", dpt_isa_names[least]);
    else
        dpt_str_printf(out, "give all ranks the same program, libraries and environment");
}

static enum dpt_status judge(const struct dpt_comm *comm, const struct numerics *all, bool *same,
                             const struct dpt_job *job, struct dpt_log *log, struct dpt_error *err)
{
    const bool strict = job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE;
    enum dpt_status status = DPT_OK;
    struct dpt_str list = {0}, advice = {0};
    int differ = 0;

    for (int r = 1; r < comm->world.size; r++)
        differ += strcmp(all[r].text, all[0].text) != 0;
    if (differ == 0)
        return DPT_OK;
    list_numerics(comm, all, same, &list);
    advise(all, comm->world.size, &advice);
    if (list.failed || advice.failed)
        status = dpt_fail_memory(err, "the list of ranks", 0);
    else if (strict)
        status = dpt_fail(err, DPT_BAD_JOB,
                          "the ranks do not compute alike, which comm.reduction: reproducible "
                          "needs: %s; %s",
                          list.text, advice.text);
    else
        dpt_log_warn(log, "the ranks do not compute alike, and round differently: %s; %s",
                     list.text, advice.text);
    dpt_str_release(&list);
    dpt_str_release(&advice);
    return status;
}

enum dpt_status dpt_numerics_check(const struct dpt_comm *comm, const struct dpt_backend *backend,
                                   int device, const struct dpt_job *job, struct dpt_log *log,
                                   struct dpt_error *err)
{
    const size_t n = (size_t)comm->world.size;
    enum dpt_status status = dpt_numerics_limit(backend, job, err);
    struct numerics *all = NULL, mine;
    bool *same = NULL;

    if (n == 1)
        return status;
    if (status == DPT_OK)
        status = DPT_ALLOCATE(all, n, "the list of ranks", err);
    if (status == DPT_OK)
        status = DPT_ALLOCATE(same, n, "the list of ranks", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    mine = numerics_of(backend, device, job);
    DPT_TRY(dpt_group_allgather(&comm->world, &mine, all, sizeof mine, err));
    DPT_TRY(judge(comm, all, same, job, log, err));
out:
    dpt_free(all);
    dpt_free(same);
    return status;
}

enum dpt_status dpt_numerics_precision(const struct dpt_backend *backend, const struct dpt_job *job,
                                       struct dpt_error *err)
{
    if ((backend->precisions & 1U << job->device.precision) != 0)
        return DPT_OK;
    return dpt_fail(
        err, DPT_BAD_JOB,
        "device.precision: %s needs device.kind: cuda; %s, which this would run on, has "
        "fp32 and bf16; take bf16",
        dpt_job_precision(job), backend->name);
}
