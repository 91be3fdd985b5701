#include "core/train/team.h"

#include <sched.h>

#include "core/base/memory.h"
#include "core/trace/profile.h"

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

void dpt_trainer_observe(struct dpt_trainer *t, struct dpt_profile *p)
{
    t->profile = p;
    dpt_pool_observe(t->team.pool, p != NULL ? &p->timeline : NULL);
    for (int i = 0; t->backend->profile != NULL && i < t->layout.threads; i++)
        t->backend->profile(t->model.program, i, p != NULL ? &p->timeline.threads[i] : NULL);
}
