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
    return (enum dpt_monitor)dpt_find(name, names, DPT_MONITOR_AUTO);
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

/* The kinds of losses whose evaluations give a value. */
enum { OF_NUMBERS = 1, OF_CLASSES = 2, OF_LABELS = 4, OF_JUDGEMENTS = OF_CLASSES | OF_LABELS };
static const int suits[DPT_MONITOR_COUNT] = {
    [DPT_MONITOR_LOSS] = OF_NUMBERS | OF_JUDGEMENTS,
    [DPT_MONITOR_MAE] = OF_NUMBERS,
    [DPT_MONITOR_RMSE] = OF_NUMBERS,
    [DPT_MONITOR_ACCURACY] = OF_JUDGEMENTS,
    [DPT_MONITOR_R2] = OF_NUMBERS,
    [DPT_MONITOR_LABEL_ACCURACY] = OF_LABELS,
    [DPT_MONITOR_BALANCED_ACCURACY] = OF_CLASSES,
    [DPT_MONITOR_PRECISION] = OF_JUDGEMENTS,
    [DPT_MONITOR_RECALL] = OF_JUDGEMENTS,
    [DPT_MONITOR_F1] = OF_JUDGEMENTS,
    [DPT_MONITOR_ROC_AUC] = OF_JUDGEMENTS,
    [DPT_MONITOR_TOP5] = OF_CLASSES,
    [DPT_MONITOR_AUTO] = OF_NUMBERS | OF_JUDGEMENTS,
};

bool dpt_monitor_suits(int monitor, enum dpt_loss_kind loss)
{
    return suits[monitor] & (dpt_loss_has_classes(loss) ? OF_CLASSES
                             : dpt_loss_judges(loss)    ? OF_LABELS
                                                        : OF_NUMBERS);
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
