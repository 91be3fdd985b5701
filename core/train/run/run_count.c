/* What the steps of a run gave, and when it is fetched if a device takes them. */
#include <math.h>

#include "core/base/clock.h"
#include "core/train/run/run.h"
#include "core/train/step/engine.h"

void dpt_run_spend(struct dpt_run *run, double seconds)
{
    run->training += seconds;
    run->window.seconds += seconds;
    run->epoch.seconds += seconds;
}

static void add(struct dpt_metric_sums *metric_sums, const struct dpt_step_result *result)
{
    metric_sums->loss += result->loss;
    metric_sums->correct += result->correct;
    metric_sums->samples += result->samples;
    metric_sums->weight += result->weight;
}

void dpt_run_count(struct dpt_run *run, const struct dpt_step_result *result)
{
    run->norm = result->norm;
    if (isnan(run->first_loss) && result->weight > 0)
        run->first_loss = result->loss / result->weight;
    add(&run->window.metric_sums, result);
    add(&run->epoch.metric_sums, result);
    run->counted += result->samples;
}

void dpt_run_count_skipped(struct dpt_run *run, const struct dpt_step_result *result)
{
    const struct dpt_trainer *t = &run->trainer;
    const bool first = run->weightless == 0 && result->weightless > 0;

    run->skipped += result->skipped;
    run->weightless += result->weightless;
    if (!dpt_run_leads(run))
        return;
    if (first)
        dpt_log_warn(
            t->log,
            "step %lld: the weights of %s samples sum to 0, so it has no update; more such "
            "steps are counted at the end",
            (long long)t->progress.step,
            result->deferred ? "a step's (this one's or one before)" : "its");
    if (result->deferred && result->skipped > 0)
        dpt_log_warn(t->log, "step %lld: not a number: since the last line %lld step%s skipped",
                     (long long)t->progress.step, (long long)result->skipped,
                     result->skipped == 1 ? " was" : "s were");
    if (result->overflows > 0)
        dpt_log_detail(t->log,
                       "step %lld: %lld update%s left out, since the loss scale was too large for "
                       "half floats; it is %g now",
                       (long long)t->progress.step, (long long)result->overflows,
                       result->overflows == 1 ? " was" : "s were", (double)t->scale.scale);
}

/* Takes the results that `ask`, dpt_trainer_settle or dpt_trainer_peek, gives. */
static enum dpt_status learn(struct dpt_run *run,
                             enum dpt_status (*ask)(struct dpt_trainer *t,
                                                    struct dpt_step_result *since,
                                                    struct dpt_error *err),
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double start = dpt_now();
    struct dpt_step_result since;

    DPT_TRY(ask(&run->trainer, &since, err));
    dpt_run_spend(run, dpt_now() - start);
    since.deferred = true;
    dpt_run_count_skipped(run, &since);
    dpt_run_count(run, &since);
out:
    return status;
}

enum dpt_status dpt_run_settle(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;

    if (!t->layout.on_device || run->learned_step == t->progress.step)
        return DPT_OK;
    DPT_TRY(learn(run, dpt_trainer_settle, err));
    run->learned_step = t->progress.step;
out:
    return status;
}

enum dpt_status dpt_run_peek(struct dpt_run *run, struct dpt_error *err)
{
    return run->trainer.layout.on_device ? learn(run, dpt_trainer_peek, err) : DPT_OK;
}

enum dpt_status dpt_run_fetch(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!run->trainer.layout.on_device)
        return DPT_OK;
    DPT_TRY(dpt_run_settle(run, err));
    DPT_TRY(dpt_run_agree(run, dpt_trainer_fetch(&run->trainer, false, err), err));
out:
    return status;
}
