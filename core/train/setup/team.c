/* The threads of a rank, and a buffer for each. */
#include "core/base/memory.h"
#include "core/train/setup/parts.h"

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
