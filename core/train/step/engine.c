#include "core/train/step/engine.h"

#include "core/trace/profile.h"
#include "core/train/step/average.h"
#include "core/train/step/evaluate.h"

enum dpt_status dpt_trainer_step(struct dpt_trainer *t, struct dpt_step_result *result,
                                 struct dpt_error *err)
{
    enum dpt_status status;

    dpt_profile_begin(t->profile, t->progress.step + 1);
    status = t->engine->step(t, result, err);
    dpt_profile_end(t->profile, DPT_SPAN_STEP);
    return status;
}

enum dpt_status dpt_trainer_settle(struct dpt_trainer *t, struct dpt_step_result *since,
                                   struct dpt_error *err)
{
    *since = (struct dpt_step_result){0};
    return t->engine->settle != NULL ? t->engine->settle(t, since, err) : DPT_OK;
}

enum dpt_status dpt_trainer_peek(struct dpt_trainer *t, struct dpt_step_result *since,
                                 struct dpt_error *err)
{
    *since = (struct dpt_step_result){0};
    return t->engine->peek != NULL ? t->engine->peek(t, since, err) : DPT_OK;
}

enum dpt_status dpt_trainer_fetch(struct dpt_trainer *t, bool gradient, struct dpt_error *err)
{
    return t->engine->fetch != NULL ? t->engine->fetch(t, gradient, err) : DPT_OK;
}

enum dpt_status dpt_trainer_refresh(struct dpt_trainer *t, struct dpt_error *err)
{
    return t->engine->refresh(t, err);
}

/* Collective. Exchanges the weights and their average, and all that is derived from them. */
static enum dpt_status take_average(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_group_agree(&t->comm->world, dpt_trainer_fetch(t, false, err), err));
    DPT_TRY(dpt_average_exchange(t, err));
    DPT_TRY(dpt_group_agree(&t->comm->world, dpt_trainer_refresh(t, err), err));
out:
    return status;
}

enum dpt_status dpt_trainer_evaluate(struct dpt_trainer *t, struct dpt_split *split,
                                     struct dpt_metric_sums *total, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, back;
    struct dpt_error other;

    if (!dpt_average_is_kept(t))
        return dpt_evaluate_split(t, split, total, err);
    DPT_TRY(take_average(t, err));
    status = dpt_evaluate_split(t, split, total, err);
    back = take_average(t, status == DPT_OK ? err : &other);
    status = status == DPT_OK ? back : status;
out:
    return status;
}

enum dpt_status dpt_trainer_seek(struct dpt_trainer *t, struct dpt_error *err)
{
    dpt_trainer_stop_prefetching(t);
    return dpt_loader_seek(t->data.train.loader, t->progress.epoch, t->progress.epoch_step, err);
}

void dpt_trainer_stop_prefetching(struct dpt_trainer *t)
{
    if (t->engine != NULL && t->engine->stop_prefetching != NULL)
        t->engine->stop_prefetching(t);
}
