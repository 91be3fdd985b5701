/* The order in which tables tell runs: by what they monitor, the best first, and only those beside
 * each other that can be compared by it. */
#include <math.h>
#include <stdlib.h>

#include "cmd/runs.h"
#include "core/train/update/monitor.h"

#define VALID(monitor, words, member, basis)                                                       \
    [monitor] = {words, DPT_OF_EVAL(BEST, REAL, member, DPT_OF_ALL, basis)}

/* All that a job may monitor (checkpoint.monitor), of the best evaluation of data.valid. */
static const struct monitored {
    const char *words; /* for a person */
    struct dpt_figure figure;
} monitored[] = {
    VALID(DPT_MONITOR_LOSS, "best valid loss", loss, DPT_ON_LOSS),
    VALID(DPT_MONITOR_MAE, "best valid MAE", mae, DPT_ON_DATA),
    VALID(DPT_MONITOR_RMSE, "best valid RMSE", rmse, DPT_ON_DATA),
    VALID(DPT_MONITOR_ACCURACY, "best valid accuracy", accuracy, DPT_ON_SHARE),
    VALID(DPT_MONITOR_R2, "best valid R2", r2, DPT_ON_DATA),
    VALID(DPT_MONITOR_LABEL_ACCURACY, "best valid label accuracy", label_accuracy, DPT_ON_DATA),
    VALID(DPT_MONITOR_BALANCED_ACCURACY, "best valid balanced accuracy", balanced_accuracy,
          DPT_ON_DATA),
    VALID(DPT_MONITOR_PRECISION, "best valid precision", precision, DPT_ON_DATA),
    VALID(DPT_MONITOR_RECALL, "best valid recall", recall, DPT_ON_DATA),
    VALID(DPT_MONITOR_F1, "best valid F1", f1, DPT_ON_DATA),
    VALID(DPT_MONITOR_ROC_AUC, "best valid ROC AUC", roc_auc, DPT_ON_DATA),
    VALID(DPT_MONITOR_TOP5, "best valid top-5 accuracy", top5, DPT_ON_DATA),
};
_Static_assert(sizeof monitored / sizeof *monitored == DPT_MONITOR_AUTO, "each monitor has a row");

/* A run on its way to its place. */
struct place {
    size_t run;
    int group;
    double value; /* less is better; NAN: it has none */
};

static int best_first(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->group != y->group)
        return x->group - y->group;
    if (x->value != y->value && !isnan(x->value))
        return x->value < y->value ? -1 : 1;
    return x->run < y->run ? -1 : 1;
}

/* How many runs have a figure. */
static size_t count(const struct dpt_runs *runs, const struct monitored *m)
{
    size_t n = 0;

    for (size_t i = 0; i < runs->n; i++)
        n += !isnan(dpt_figure_number(&m->figure, &runs->at[i].history));
    return n;
}

/* What all runs that have evaluations monitor; where their jobs do not say it, or differ in it,
 * the accuracy if they have one, else the loss. AUTO: nothing was evaluated. */
static enum dpt_monitor find(const struct dpt_runs *runs)
{
    const struct monitored *loss = &monitored[DPT_MONITOR_LOSS];
    const size_t evaluated = count(runs, loss);
    enum dpt_monitor found = DPT_MONITOR_COUNT;

    for (size_t i = 0; i < runs->n; i++) {
        const char *said = dpt_runs_value(runs, i, "checkpoint.monitor");
        const enum dpt_monitor own = said != NULL ? dpt_monitor_find(said) : DPT_MONITOR_AUTO;

        if (isnan(dpt_figure_number(&loss->figure, &runs->at[i].history)))
            continue;
        found = found == DPT_MONITOR_COUNT || found == own ? own : DPT_MONITOR_AUTO;
    }
    if (evaluated == 0)
        return DPT_MONITOR_AUTO;
    if (found != DPT_MONITOR_AUTO && count(runs, &monitored[found]) == evaluated)
        return found;
    return count(runs, &monitored[DPT_MONITOR_ACCURACY]) == evaluated ? DPT_MONITOR_ACCURACY
                                                                      : DPT_MONITOR_LOSS;
}

/* The group of a run: that of the first one with the same basis. */
static int group_of(const struct dpt_runs *runs, const struct monitored *m, size_t run,
                    const struct place *before)
{
    int groups = 0;

    for (size_t i = 0; i < run; i++) {
        if (isnan(before[i].value))
            continue;
        if (dpt_runs_same_basis(runs, &m->figure, i, run))
            return before[i].group;
        groups = before[i].group >= groups ? before[i].group + 1 : groups;
    }
    return groups;
}

bool dpt_runs_sort(struct dpt_runs *runs)
{
    const enum dpt_monitor monitor = find(runs);
    const struct monitored *m = monitor != DPT_MONITOR_AUTO ? &monitored[monitor] : NULL;
    struct place *places = dpt_region_alloc(&runs->texts, runs->n * sizeof *places);

    runs->order = dpt_region_alloc(&runs->texts, runs->n * sizeof *runs->order);
    runs->group = dpt_region_alloc(&runs->texts, runs->n * sizeof *runs->group);
    if (runs->texts.failed)
        return false;
    for (size_t i = 0; i < runs->n; i++) {
        struct place *p = &places[i];

        *p = (struct place){i, 0, NAN};
        if (m == NULL)
            continue;
        p->value = dpt_figure_number(&m->figure, &runs->at[i].history);
        p->value *= dpt_monitor_falls(monitor) ? 1 : -1;
        /* Runs without a figure come last. */
        p->group = isnan(p->value) ? (int)runs->n : group_of(runs, m, i, places);
    }
    qsort(places, runs->n, sizeof *places, best_first);
    for (size_t i = 0; i < runs->n; i++) {
        runs->order[i] = places[i].run;
        runs->group[i] = places[i].group;
    }
    runs->sorted_by = m != NULL ? m->words : NULL;
    runs->sorted = m != NULL ? &m->figure : NULL;
    return true;
}

bool dpt_runs_sorted_by(const struct dpt_runs *runs, const struct dpt_figure *f)
{
    if (f->record != DPT_RECORD_BEST)
        return false;
    for (size_t i = 0; runs->sorted != NULL && i < runs->n; i++) {
        const double sorted = dpt_figure_number(runs->sorted, &runs->at[i].history);

        if (!isnan(sorted) && dpt_figure_number(f, &runs->at[i].history) != sorted)
            return false;
    }
    return true;
}

const char *dpt_runs_tell_order(const struct dpt_runs *runs, struct dpt_region *region)
{
    bool grouped = false;

    for (size_t i = 1; i < runs->n; i++)
        grouped = grouped || runs->group[i] != runs->group[0];
    if (runs->n < 2 || runs->sorted_by == NULL)
        return NULL;
    return dpt_region_printf(region, "Sorted by %s%s.", runs->sorted_by,
                             grouped ? ", those apart that cannot be compared by it" : "");
}
