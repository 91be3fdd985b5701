/* How a thread, or a team of them, gets micro-batches and computes them by itself. */
#include "core/trace/profile.h"
#include "core/train/step/step.h"
#include "core/train/team.h"

/* Fills this thread's part of each of n micro-batches, one after the other in the first one's
 * buffer. */
static enum dpt_status fill_part(struct dpt_trainer *t, int thread,
                                 const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                 const struct dpt_batch_buffer *whole, struct dpt_batch *batch,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_batch_form *form = &t->data.train.form;
    const size_t micro = (size_t)t->data.train.sampler.micro;
    int32_t count = 0;

    for (int32_t i = 0; i < n; i++) {
        struct dpt_batch_buffer buffer = dpt_batch_buffer_from(whole, form, (size_t)i * micro);

        DPT_TRY(dpt_loader_fill_part(t->data.train.loader, view, micro_batch + i, thread,
                                     t->layout.threads, &buffer,
                                     t->team.workers[thread].buffer.scratch, batch, err));
        count += batch->count;
    }
    batch->count = count;
    batch->input = whole->input;
    batch->sample = whole->sample;
    batch->labels = batch->labels != NULL ? whole->labels : NULL;
    batch->targets = batch->targets != NULL ? whole->targets : NULL;
    batch->weights = batch->weights != NULL ? whole->weights : NULL;
out:
    return status;
}

/* Each fills its part of the rows; all learn whether all could. */
static enum dpt_status fill_together(struct dpt_trainer *t, int thread,
                                     const struct dpt_step_view *view, int32_t micro_batch,
                                     int32_t n, const struct dpt_batch_buffer *buffer,
                                     struct dpt_batch *batch, struct dpt_error *err)
{
    struct dpt_worker *worker = &t->team.workers[thread];

    worker->filled = fill_part(t, thread, view, micro_batch, n, buffer, batch, &worker->err);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    dpt_trainer_barrier(t, thread);
    for (int i = 0; i < t->layout.threads; i++) {
        if (t->team.workers[i].filled == DPT_OK)
            continue;
        *err = t->team.workers[i].err;
        return err->status;
    }
    return DPT_OK;
}

enum dpt_status dpt_trainer_fill(struct dpt_trainer *t, int thread,
                                 const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                 struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->layout.together)
        return fill_together(t, thread, view, micro_batch, n, buffer, batch, err);
    DPT_TRY(dpt_loader_fill(t->data.train.loader, view, micro_batch, buffer, batch, err));
    dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
out:
    return status;
}

enum dpt_status dpt_trainer_train(struct dpt_trainer *t, int thread,
                                  const struct dpt_step_view *view, int32_t micro_batch, int32_t n,
                                  struct dpt_batch *batch, float *gradient, bool add,
                                  struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_trainer_fill(t, thread, view, micro_batch, n,
                             &t->team.workers[t->layout.together ? 0 : thread].buffer, batch, err));
    DPT_TRY(t->backend->train(t->model.program, thread, batch, t->arenas.params, gradient, add,
                              metric_sums, err));
out:
    return status;
}
