#include "core/train/layout/schedules.h"

#include "core/train/job/job.h"

static int32_t all(int stages, int stage, int32_t micro_batches)
{
    (void)stages, (void)stage;
    return micro_batches;
}

static int32_t until_the_end(int stages, int stage, int32_t micro_batches)
{
    return stages - stage < micro_batches ? stages - stage : micro_batches;
}

static int32_t one(int stages, int stage, int32_t micro_batches)
{
    (void)stages, (void)stage, (void)micro_batches;
    return 1;
}

const struct dpt_pipeline_schedule dpt_pipeline_schedules[DPT_PIPELINE_SCHEDULES] = {
    [DPT_PIPELINE_1F1B] = {"1f1b", true, until_the_end},
    [DPT_PIPELINE_GPIPE] = {"gpipe", true, all},
    [DPT_PIPELINE_FORWARD] = {"forward", false, one},
};

bool dpt_pipeline_next(struct dpt_pipeline_walk *walk, struct dpt_pipeline_action *action)
{
    const struct dpt_pipeline_schedule *s = walk->schedule;
    const int32_t most = s->under_way(walk->stages, walk->stage, walk->micro_batches);

    if (walk->forward < walk->micro_batches && (!s->back || walk->forward - walk->back < most))
        *action = (struct dpt_pipeline_action){false, walk->forward++};
    else if (s->back && walk->back < walk->micro_batches)
        *action = (struct dpt_pipeline_action){true, walk->back++};
    else
        return false;
    return true;
}
