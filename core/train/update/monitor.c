#include "core/train/update/monitor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FALLS(name, word) [name] = true,
static const bool falls[DPT_MONITOR_COUNT] = {DPT_MONITORS_FALLING(FALLS)};
static const char *const names[] = {DPT_MONITORS_OR_AUTO(DPT_LIST_WORD)};

const char *dpt_monitor_name(int monitor)
{
    return names[monitor];
}

enum dpt_monitor dpt_monitor_find(const char *name)
{
    int monitor = 0;

    while (monitor < DPT_MONITOR_AUTO && strcmp(names[monitor], name) != 0)
        monitor++;
    return (enum dpt_monitor)monitor;
}

bool dpt_monitor_falls(int monitor)
{
    return falls[monitor];
}

/* The row of the score that is monitored; NULL: it is the loss or the accuracy. */
static const struct dpt_score *score_of(int monitor)
{
    const char *word = strchr(names[monitor], '.') + 1;

    for (const struct dpt_score *row = dpt_scores; row->name != NULL; row++)
        if (strcmp(row->name, word) == 0)
            return row;
    return NULL;
}

bool dpt_monitor_suits(int monitor, enum dpt_loss_kind loss)
{
    switch ((enum dpt_monitor)monitor) {
    case DPT_MONITOR_MAE:
    case DPT_MONITOR_RMSE:
    case DPT_MONITOR_R2:
        return !dpt_loss_judges(loss);
    case DPT_MONITOR_ACCURACY:
    case DPT_MONITOR_PRECISION:
    case DPT_MONITOR_RECALL:
    case DPT_MONITOR_F1:
    case DPT_MONITOR_ROC_AUC:
        return dpt_loss_judges(loss);
    case DPT_MONITOR_LABEL_ACCURACY:
        return loss == DPT_LOSS_BINARY_CROSS_ENTROPY;
    case DPT_MONITOR_BALANCED_ACCURACY:
    case DPT_MONITOR_TOP5:
        return dpt_loss_has_classes(loss);
    case DPT_MONITOR_LOSS:
    case DPT_MONITOR_AUTO:
    case DPT_MONITOR_COUNT:
        break;
    }
    return true;
}

double dpt_monitor_value(int monitor, const struct dpt_metric_sums *sums,
                         const struct dpt_scores *scores)
{
    if (monitor == DPT_MONITOR_LOSS)
        return dpt_metric_sums_loss(sums);
    if (monitor == DPT_MONITOR_ACCURACY)
        return dpt_metric_sums_accuracy(sums);
    return dpt_score_value(scores, score_of(monitor));
}

void dpt_monitor_waits(int monitor, const struct dpt_watch *watch, struct dpt_str *out)
{
    dpt_str_printf(out, "%s has ", names[monitor]);
    if (watch->step < 0)
        dpt_str_printf(out, "been no number");
    else
        dpt_str_printf(out, "not %s %.4g", falls[monitor] ? "fallen below" : "risen above",
                       watch->best);
    dpt_str_printf(out, " for %lld evaluation%s", (long long)watch->waits,
                   watch->waits == 1 ? "" : "s");
}

void dpt_watch_begin(struct dpt_watch *watch, const char *name)
{
    if (strcmp(watch->monitor, name) == 0)
        return;
    *watch = (struct dpt_watch){.step = -1};
    snprintf(watch->monitor, sizeof watch->monitor, "%s", name);
}

/* Whether a value is better than the best one by more than min_delta. */
static bool is_better(const struct dpt_patience *how, double value, double best)
{
    const double sign = falls[how->monitor] ? -1 : 1;
    const double bar =
        how->relative ? best * (1 + sign * how->min_delta) : best + sign * how->min_delta;

    return falls[how->monitor] ? value < bar : value > bar;
}

bool dpt_watch_take(struct dpt_watch *watch, const struct dpt_patience *how, double value,
                    int64_t step)
{
    const bool better = watch->step < 0 ? !isnan(value) : is_better(how, value, watch->best);

    watch->waits = better ? 0 : watch->waits + 1;
    if (better) {
        watch->best = value;
        watch->step = step;
    }
    return better;
}
