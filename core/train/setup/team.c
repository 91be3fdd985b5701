/* The threads of a rank: work that all of them do, and micro-batches that they take alone or as a
 * team. */
#include "core/train/setup/team.h"

#include <sched.h>

#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/setup/parts.h"

enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    cpu_set_t mine, *all = NULL;

    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        CPU_SET(0, &mine);
    *cores = 0;
    DPT_TRY(DPT_ALLOCATE(all, (size_t)node->size, "the list of cores", err));
    DPT_TRY(dpt_group_allgather(node, &mine, all, sizeof mine, err));
    for (int core = 0; core < CPU_SETSIZE; core++) {
        int users = 0;

        if (!CPU_ISSET(core, &mine))
            continue;
        for (int rank = 0; rank < node->size; rank++)
            users += CPU_ISSET(core, &all[rank]) != 0;
        *cores += 1.0 / users;
    }
out:
    dpt_free(all);
    return status;
}

enum dpt_status dpt_trainer_run(struct dpt_trainer *t, void (*work)(void *arg, int thread),
                                void *arg, struct dpt_error *err)
{
    for (int i = 0; i < t->layout.threads; i++)
        t->team.workers[i].status = DPT_OK;
    dpt_pool_run(t->team.pool, work, arg);
    for (int i = 0; i < t->layout.threads; i++)
        if (t->team.workers[i].status != DPT_OK) {
            *err = t->team.workers[i].err;
            return err->status;
        }
    return DPT_OK;
}

void dpt_trainer_barrier(const struct dpt_trainer *t, int thread)
{
    if (t->layout.threads == 1)
        return;
    dpt_pool_barrier(t->team.pool);
    dpt_profile_mark(t->profile, thread, DPT_SPAN_WAIT_THREADS);
}

/* Fills this thread's part of each of n micro-batches, one behind the other in the first one's
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

/* --- opening ---------------------------------------------------------------------------------- */

enum dpt_status dpt_trainer_open_team(struct dpt_trainer *t, int32_t most, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset bare = {.shape = t->model.graph.nodes[0].out,
                                     .target = DPT_TARGET_CLASS};
    const struct dpt_batch_form of_given = {.set = &bare};
    const struct dpt_batch_form *form = t->data.given != NULL   ? &of_given
                                        : t->data.train.present ? &t->data.train.form
                                        : t->data.test.present  ? &t->data.test.form
                                                                : &t->data.valid.form;

    DPT_TRY(DPT_ALLOCATE(t->team.workers, (size_t)t->layout.threads, "the threads", err));
    for (int i = 0; i < t->layout.threads; i++)
        DPT_TRY(dpt_batch_buffer_open(&t->team.workers[i].buffer, form, most, err));
    if (t->team.pool == NULL)
        DPT_TRY(dpt_pool_open(&t->team.pool, t->layout.threads, t->team.spin, err));
out:
    return status;
}

void dpt_trainer_close_team(struct dpt_trainer *t)
{
    for (int i = 0; t->team.workers != NULL && i < t->layout.threads; i++)
        dpt_batch_buffer_close(&t->team.workers[i].buffer);
    dpt_free(t->team.workers);
    t->team.workers = NULL;
}

void dpt_trainer_observe(struct dpt_trainer *t, struct dpt_profile *p)
{
    t->profile = p;
    dpt_pool_observe(t->team.pool, p != NULL ? &p->timeline : NULL);
    for (int i = 0; t->backend->profile != NULL && i < t->layout.threads; i++)
        t->backend->profile(t->model.program, i, p != NULL ? &p->timeline.threads[i] : NULL);
}
