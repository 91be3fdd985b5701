/* The order in which tables tell runs: by what they monitor, the best first, and only those beside
 * each other that can be compared by it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/runs.h"

#define VALID(member, basis) DPT_OF_EVAL(BEST, REAL, member, DPT_OF_ALL, basis)

/* What a job may monitor (checkpoint.monitor), of the best evaluation of data.valid. */
static const struct monitored {
    const char *name;  /* in the job */
    const char *words; /* for a person */
    struct dpt_figure figure;
    int better; /* 1 where more is better, -1 where less is */
} monitored[] = {
    {"valid.accuracy", "best valid accuracy", VALID(accuracy, DPT_ON_SHARE), 1},
    {"valid.loss", "best valid loss", VALID(loss, DPT_ON_LOSS), -1},
    {"valid.mae", "best valid MAE", VALID(mae, DPT_ON_DATA), -1},
    {"valid.rmse", "best valid RMSE", VALID(rmse, DPT_ON_DATA), -1},
    {"valid.r2", "best valid R2", VALID(r2, DPT_ON_DATA), 1},
    {"valid.label_accuracy", "best valid label accuracy", VALID(label_accuracy, DPT_ON_DATA), 1},
    {"valid.balanced_accuracy", "best valid balanced accuracy",
     VALID(balanced_accuracy, DPT_ON_DATA), 1},
    {"valid.rare_recall", "best valid rare recall", VALID(rare_recall, DPT_ON_DATA), 1},
    {"valid.f1", "best valid F1", VALID(f1, DPT_ON_DATA), 1},
    {"valid.roc_auc", "best valid ROC AUC", VALID(roc_auc, DPT_ON_DATA), 1},
};
enum { ACCURACY, LOSS, MONITORED = sizeof monitored / sizeof *monitored };

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
 * the accuracy if they have one, else the loss. NULL: nothing was evaluated. */
static const struct monitored *find(const struct dpt_runs *runs)
{
    const size_t evaluated = count(runs, &monitored[LOSS]);
    const struct monitored *found = NULL;

    for (size_t k = 0; k < MONITORED && found == NULL; k++) {
        size_t say = 0;

        for (size_t i = 0; i < runs->n; i++) {
            const char *said = dpt_runs_value(runs, i, "checkpoint.monitor");

            say += said != NULL && strcmp(said, monitored[k].name) == 0 &&
                   !isnan(dpt_figure_number(&monitored[LOSS].figure, &runs->at[i].history));
        }
        if (say == evaluated && count(runs, &monitored[k]) == evaluated)
            found = &monitored[k];
    }
    if (evaluated == 0)
        return NULL;
    return found != NULL                                    ? found
           : count(runs, &monitored[ACCURACY]) == evaluated ? &monitored[ACCURACY]
                                                            : &monitored[LOSS];
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
    const struct monitored *m = find(runs);
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
        p->value = -m->better * dpt_figure_number(&m->figure, &runs->at[i].history);
        /* Those without a figure come last. */
        p->group = isnan(p->value) ? (int)runs->n : group_of(runs, m, i, places);
    }
    qsort(places, runs->n, sizeof *places, best_first);
    for (size_t i = 0; i < runs->n; i++) {
        runs->order[i] = places[i].run;
        runs->group[i] = places[i].group;
    }
    runs->sorted_by = m != NULL ? m->words : NULL;
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
