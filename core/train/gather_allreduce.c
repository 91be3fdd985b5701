#include <string.h>

#include "core/base/memory.h"
#include "core/train/gather.h"

static size_t arena_floats(const struct dpt_trainer *t)
{
    return (size_t)t->graph.floats + DPT_TAIL_WORDS;
}

static enum dpt_status open_sums(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t floats = arena_floats(t);

    for (int i = 0; i < t->threads && status == DPT_OK; i++) {
        t->workers[i].gradient = dpt_alloc_array(floats, sizeof(float));
        if (t->workers[i].gradient == NULL)
            status = dpt_fail_memory(err, "a gradient", (double)floats * sizeof(float));
    }
    t->reduced = t->workers[0].gradient;
    if (t->comm->world.size > 1 && status == DPT_OK) {
        t->reduced = dpt_alloc_array(floats, sizeof(float));
        if (t->reduced == NULL)
            status = dpt_fail_memory(err, "the reduced gradient", (double)floats * sizeof(float));
    }
    return dpt_group_agree(&t->comm->world, status, err);
}

static void close_sums(struct dpt_trainer *t)
{
    if (t->workers != NULL && t->reduced != t->workers[0].gradient)
        dpt_free(t->reduced);
    for (int i = 0; t->workers != NULL && i < t->threads; i++)
        dpt_free(t->workers[i].gradient);
}

static void begin(struct dpt_trainer *t, const struct dpt_step_view *view)
{
    (void)view;
    for (int i = 0; i < t->threads; i++) {
        t->workers[i].done = 0;
        memset(&t->workers[i].tally, 0, sizeof t->workers[i].tally);
    }
}

static float *target(struct dpt_trainer *t, int thread, bool *add)
{
    *add = t->workers[thread].done > 0;
    return t->workers[thread].gradient;
}

static void done(struct dpt_trainer *t, int thread, int32_t micro_batch, float *gradient,
                 const struct dpt_tally *tally)
{
    struct dpt_worker *worker = &t->workers[thread];

    (void)micro_batch;
    (void)gradient;
    worker->done++;
    worker->tally.loss += tally->loss;
    worker->tally.correct += tally->correct;
    worker->tally.samples += tally->samples;
}

static void add_part(void *arg, int thread)
{
    struct dpt_trainer *t = arg;
    float *restrict sum = t->workers[0].gradient;
    size_t begin, end;

    dpt_thread_part((size_t)t->graph.floats, thread, t->threads, &begin, &end);
    for (int k = 1; k < t->threads; k++) {
        const float *restrict other = t->workers[k].gradient;

        if (t->workers[k].done == 0)
            continue;
        for (size_t i = begin; i < end; i++)
            sum[i] += other[i];
    }
}

/* The rank's gradient and tail, in the first worker's arena: it has a micro-batch whenever the rank
 * has one. */
static void sum_rank(struct dpt_trainer *t, const float flags[DPT_FLAGS])
{
    float *sum = t->workers[0].gradient, *tail = sum + t->graph.floats;
    const bool failed = flags[DPT_FLAG_FAILED] > 0;
    struct dpt_tally all = {0};

    memset(tail, 0, DPT_TAIL_WORDS * sizeof *tail);
    memcpy(tail + DPT_TAIL_FLAGS, flags, DPT_FLAGS * sizeof *flags);
    if (failed || t->workers[0].done == 0)
        memset(sum, 0, (size_t)t->graph.floats * sizeof *sum);
    if (failed)
        return;
    if (t->threads > 1)
        dpt_pool_run(t->pool, add_part, t);
    for (int i = 0; i < t->threads; i++) {
        all.loss += t->workers[i].tally.loss;
        all.correct += t->workers[i].tally.correct;
        all.samples += t->workers[i].tally.samples;
    }
    tail[DPT_TAIL_LOSS] = (float)all.loss;
    tail[DPT_TAIL_SAMPLES] = (float)all.samples;
    tail[DPT_TAIL_CORRECT] = (float)all.correct;
}

static enum dpt_status sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                           const float flags[DPT_FLAGS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    (void)view;
    sum_rank(t, flags);
    DPT_TRY(dpt_group_sum_floats(&t->comm->world, t->workers[0].gradient, t->reduced,
                                 arena_floats(t), err));
    memcpy(t->said, t->reduced + t->graph.floats + DPT_TAIL_FLAGS, sizeof t->said);
out:
    return status;
}

const struct dpt_gather_type dpt_gather_allreduce = {
    .name = "allreduce",
    .open = open_sums,
    .close = close_sums,
    .begin = begin,
    .target = target,
    .done = done,
    .sum = sum,
};
