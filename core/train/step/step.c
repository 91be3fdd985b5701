#include "core/train/step/engine.h"

#include "core/train/layout/shares.h"
#include "core/train/update/schedule.h"

void dpt_step_sum(const struct dpt_trainer *t, int32_t all, int32_t first, int32_t end, int32_t i,
                  int32_t n, struct dpt_batch *batch)
{
    const bool tree = dpt_layout_along_tree(&t->layout);
    int32_t at = i, next = i + n;

    for (int32_t k = first; t->team.adds > t->layout.at_once && k <= i; k = next) {
        at = k;
        next = tree ? k + dpt_share_at_once(t->team.adds, all, k, end) : end;
    }
    batch->before = i - at;
    batch->more = i + n < next;
}

void dpt_step_flags(const struct dpt_trainer *t, bool failed, float flags[DPT_FLAGS])
{
    flags[DPT_FLAG_FAILED] = failed;
    flags[DPT_FLAG_SAVE] = t->requests.save;
    flags[DPT_FLAG_SIGNAL] = t->requests.signal;
    flags[DPT_FLAG_CLOCK] = t->requests.clock;
    flags[DPT_FLAG_WRITES] = t->requests.writes;
}

void dpt_step_read_flags(const struct dpt_trainer *t, struct dpt_step_result *result)
{
    result->save = t->reduction.reduced_flags[DPT_FLAG_SAVE] > 0;
    result->signal = t->reduction.reduced_flags[DPT_FLAG_SIGNAL] > 0;
    result->clock = t->reduction.reduced_flags[DPT_FLAG_CLOCK] > 0;
    result->writes = t->reduction.reduced_flags[DPT_FLAG_WRITES] > 0;
}

double dpt_step_rate(const struct dpt_trainer *t)
{
    const struct dpt_schedule_point point = {t->progress.step, t->steps, t->steps_per_epoch,
                                             t->progress.plateau.drops};

    return dpt_schedule_rate(&t->job->schedule, t->lr, &point);
}

enum dpt_status dpt_step_check_count(const struct dpt_trainer *t, int64_t counted, int32_t total,
                                     struct dpt_error *err)
{
    if (counted == total)
        return DPT_OK;
    return dpt_fail(err, DPT_INTERNAL, "step %lld: the ranks counted %lld of %d samples",
                    (long long)t->progress.step + 1, (long long)counted, total);
}

enum dpt_status dpt_step_fail(const struct dpt_trainer *t, enum dpt_status status,
                              struct dpt_error *err)
{
    dpt_error_prefix(err, "step %lld: ", (long long)t->progress.step + 1);
    return status;
}

void dpt_step_advance(struct dpt_trainer *t, int64_t samples)
{
    t->progress.step++;
    t->progress.samples += samples;
    if (++t->progress.epoch_step == t->steps_per_epoch) {
        t->progress.epoch_step = 0;
        t->progress.epoch++;
    }
}
