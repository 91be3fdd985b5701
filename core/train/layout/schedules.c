#include "core/train/layout/schedules.h"

int32_t dpt_pipeline_in_flight(int schedule, int stages, int stage, int32_t micro_batches)
{
    const int32_t most = schedule == DPT_PIPELINE_FORWARD ? 1
                         : schedule == DPT_PIPELINE_GPIPE ? micro_batches
                                                          : stages - stage;

    return most < micro_batches ? most : micro_batches;
}

bool dpt_pipeline_next(struct dpt_pipeline_walk *walk, struct dpt_pipeline_action *action)
{
    const bool back = walk->schedule != DPT_PIPELINE_FORWARD;
    const int32_t most =
        dpt_pipeline_in_flight(walk->schedule, walk->stages, walk->stage, walk->micro_batches);

    if (walk->forward < walk->micro_batches && (!back || walk->forward - walk->back < most))
        *action = (struct dpt_pipeline_action){false, walk->forward++};
    else if (back && walk->back < walk->micro_batches)
        *action = (struct dpt_pipeline_action){true, walk->back++};
    else
        return false;
    return true;
}
