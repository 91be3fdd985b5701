#include "core/plan/plan.h"

#include <stdio.h>

/* What a job is changed to. */
struct change {
    char text[64];        /* as --set takes it */
    const char *job_text; /* the unchanged job's */
    struct dpt_job job;
    struct dpt_plan_spec spec;
};

/* What the job needs and may have: of the node's memory or, if that is enough, of the GPU's. */
struct demand {
    double need, limit; /* bytes; limit -1: unknown */
    const char *where;
};

static struct demand demand_of(const struct dpt_plan *p)
{
    if (p->gpu.name[0] != '\0' && p->device_bytes > p->gpu.memory)
        return (struct demand){p->device_bytes, p->gpu.memory, "the GPU"};
    return (struct demand){p->node, p->available, "this node"};
}

static bool fits(const struct demand *d)
{
    return d->limit < 0 || d->need <= d->limit;
}

static bool plan_change(const struct change *c, struct demand *demand)
{
    struct dpt_plan plan;
    struct dpt_error ignored;
    const bool planned = dpt_plan_open(&plan, &c->job, &c->spec, c->job_text, &ignored) == DPT_OK;

    if (planned)
        *demand = demand_of(&plan);
    dpt_plan_close(&plan);
    return planned;
}

/* --- the options that shrink a job ------------------------------------------------------------ */

/* Half the samples of a pass, again and again until they fit. */
static bool smaller_micro(const struct dpt_plan *p, struct change *c)
{
    struct demand demand;
    int32_t micro = p->data.train.sampler.micro;

    if (micro <= 1)
        return false;
    do {
        micro /= 2;
        c->job.batch.micro = micro;
    } while (plan_change(c, &demand) && !fits(&demand) && micro > 1);
    snprintf(c->text, sizeof c->text, "batch.micro=%d", micro);
    return true;
}

static bool one_thread(const struct dpt_plan *p, struct change *c)
{
    c->job.device.threads = 1;
    return p->layout.threads > 1;
}

static bool no_cache(const struct dpt_plan *p, struct change *c)
{
    c->job.data.cache = DPT_CACHE_NONE;
    return dpt_dataset_in_memory(p->data.train.set, &p->job->data, p->available);
}

static bool half_floats(const struct dpt_plan *p, struct change *c)
{
    c->job.device.precision = DPT_PRECISION_BF16;
    return p->backend->precisions >> DPT_PRECISION_BF16 & 1 &&
           p->job->device.precision < DPT_PRECISION_BF16;
}

static bool no_checkpoint(const struct dpt_plan *p, struct change *c)
{
    c->job.checkpoint.every = (struct dpt_every){.unit = DPT_NEVER};
    return p->job->checkpoint.every.unit != DPT_NEVER;
}

static bool fewer_ranks(const struct dpt_plan *p, struct change *c)
{
    c->spec.ranks = c->spec.node_ranks = 1;
    return p->spec.node_ranks > 1;
}

static const struct {
    const char *text;
    bool (*make)(const struct dpt_plan *p, struct change *c); /* whether the job has changed then */
} changes[] = {
    {"", smaller_micro}, /* says which */
    {"device.threads=1", one_thread},
    {"data.cache=none", no_cache},
    {"device.precision=bf16", half_floats},
    {"checkpoint.every=never", no_checkpoint},
    {"one rank per node", fewer_ranks},
};
enum { CHANGES = sizeof changes / sizeof changes[0] };

/* --- the text --------------------------------------------------------------------------------- */

static void write_change(const struct demand *now, const struct demand *then, const char *text,
                         struct dpt_str *out)
{
    dpt_str_printf(out, "\n  %8.2f GB  with %s%s", then->need / 1e9, text,
                   fits(then) && !fits(now) ? ": fits" : "");
}

static void write_changes(const struct dpt_plan *p, const char *job_text, const struct demand *now,
                          struct dpt_str *out)
{
    const struct change as_it_is = {.job_text = job_text, .job = *p->job, .spec = p->spec};
    struct change all = as_it_is;
    struct demand then;
    bool enough = false;
    int n = 0;

    for (int i = 0; i < CHANGES; i++) {
        struct change one = as_it_is;

        snprintf(one.text, sizeof one.text, "%s", changes[i].text);
        /* A change that saves less than a twentieth is not worth listing. */
        if (!changes[i].make(p, &one) || !plan_change(&one, &then) ||
            !(then.need < 0.95 * now->need))
            continue;
        if (n == 0)
            dpt_str_printf(out, "; it would need");
        write_change(now, &then, one.text, out);
        enough = enough || fits(&then);
        changes[i].make(p, &all);
        n++;
    }
    if (n == 0)
        dpt_str_printf(out, "; no option makes it much smaller");
    if (n > 1 && plan_change(&all, &then)) {
        write_change(now, &then, "all of these", out);
        enough = enough || fits(&then);
    }
    if (!enough)
        dpt_str_printf(out,
                       "\nmore ranks do not help by themselves: `dptrain plan --mesh auto` says "
                       "whether a\nmodel divided among them fits (parallel); else a smaller "
                       "model, or a machine with\nmore memory does; sgd keeps 4 bytes per weight "
                       "less than adam");
}

void dpt_plan_advise(const struct dpt_job *job, const struct dpt_plan_spec *spec,
                     const char *job_text, struct dpt_str *out)
{
    struct dpt_plan plan;
    struct dpt_error ignored;
    struct demand now;

    if (dpt_plan_open(&plan, job, spec, job_text, &ignored) == DPT_OK) {
        now = demand_of(&plan);
        dpt_str_printf(out, "it needs %.2f GB on %s", now.need / 1e9, now.where);
        if (now.limit >= 0)
            dpt_str_printf(out, ", where %.2f GB are free%s", now.limit / 1e9,
                           fits(&now) ? ":\na limit of the process (ulimit -v) stands below that"
                                      : "");
        dpt_str_printf(out, "\n`dptrain plan` says for what");
        write_changes(&plan, job_text, &now, out);
    }
    dpt_plan_close(&plan);
}
