#include "core/train/use/importance.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/rng.h"
#include "core/train/step/evaluate.h"
#include "data/tables/columns.h"

const char *dpt_importance_refused(const struct dpt_split *split)
{
    const struct dpt_dataset *set = split->set;

    return !set->shape.flat      ? "is of tables, and samples here are no rows"
           : set->memory == NULL ? "needs the samples in memory: data.cache: memory"
                                 : NULL;
}

/* Lists the columns: those of the table that the samples come from, or else each number. */
static enum dpt_status list_columns(const struct dpt_dataset *set, struct dpt_importances *result,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t size = (int32_t)dpt_shape_size(&set->shape);
    struct dpt_columns columns = {0};
    const char *from, *text = dpt_dataset_columns(set, &from);
    int32_t first = 0;

    if (text != NULL)
        DPT_TRY(dpt_columns_parse(&columns, text, from, err));
    if (dpt_columns_width(&columns) != (size_t)size) /* they do not match the samples */
        dpt_columns_release(&columns);
    result->at = dpt_region_alloc(&result->region, (size_t)size * sizeof *result->at);
    for (size_t i = 0; result->at != NULL && i < columns.n; i++) {
        const int32_t n = (int32_t)dpt_column_width(&columns.at[i]);

        if (n == 0)
            continue;
        result->at[result->n++] = (struct dpt_importance){
            .name = dpt_region_strdup(&result->region, columns.at[i].name), .first = first, .n = n};
        first += n;
    }
    for (; result->at != NULL && first < size; first++)
        result->at[result->n++] = (struct dpt_importance){
            .name = dpt_region_printf(&result->region, "%d", first + 1), .first = first, .n = 1};
    if (result->region.failed)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)size * sizeof *result->at));
out:
    dpt_columns_release(&columns);
    return status;
}

/* Evaluates the split as it is now. */
static enum dpt_status score(struct dpt_trainer *t, struct dpt_split *split, double *value,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_metric_sums sums = {0};

    DPT_TRY(dpt_trainer_evaluate(t, split, &sums, err));
    *value = !dpt_loss_judges(t->model.loss.kind) ? t->scores.r2
             : dpt_trainer_labels(t) > 1          ? t->scores.label_accuracy
                                                  : dpt_metric_sums_accuracy(&sums);
    if (t->comm->world.rank == 0 && !isfinite(*value))
        status =
            dpt_fail(err, DPT_BAD_DATA,
                     "data.%s: these samples have no score that a column could lower", split->name);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
out:
    return status;
}

/* What a shuffle needs: the split's samples, and whose features each of the set gets. */
struct shuffle {
    const struct dpt_split *split;
    int64_t *sample, *from;
};

static enum dpt_status prepare(struct shuffle *s, struct dpt_importances *result,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_split *split = s->split;
    const int64_t n = split->sampler.samples;
    const char *refused = dpt_importance_refused(split);

    if (refused != NULL)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "importance %s", refused));
    DPT_TRY(list_columns(split->set, result, err));
    DPT_TRY(DPT_ALLOCATE(s->sample, (size_t)n, "the samples", err));
    DPT_TRY(DPT_ALLOCATE(s->from, (size_t)split->set->samples, "the samples", err));
    dpt_sampler_samples(&split->sampler, 0, 0, n, s->sample);
out:
    return status;
}

static void shuffle(const struct shuffle *s, uint64_t seed, uint64_t key)
{
    const int64_t n = s->split->sampler.samples;

    for (int64_t i = 0; i < n; i++)
        s->from[s->sample[i]] =
            s->sample[dpt_permute(seed, DPT_RANDOM_IMPORTANCE, key, (uint64_t)n, (uint64_t)i)];
}

/* Scores a column's shuffles. */
static enum dpt_status measure(struct dpt_trainer *t, struct dpt_split *split, int repeats,
                               double whole, size_t column, const struct shuffle *s,
                               struct dpt_importance *i, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_exchange exchange = {.first = i->first, .n = i->n, .from = s->from};
    struct dpt_dataset *set = t->data.sets;
    double value, squares = 0;

    while (set != split->set) /* split->set is one of them */
        set++;
    for (int r = 0; r < repeats; r++) {
        shuffle(s, (uint64_t)t->job->seed, (uint64_t)r << 32 | column);
        set->exchange = &exchange;
        status = score(t, split, &value, err);
        set->exchange = NULL;
        DPT_TRY(status);
        i->drop += (whole - value) / repeats;
        squares += (whole - value) * (whole - value) / repeats;
    }
    i->spread = sqrt(fmax(squares - i->drop * i->drop, 0));
out:
    return status;
}

static int by_drop(const void *a, const void *b)
{
    const struct dpt_importance *one = a, *other = b;

    return one->drop != other->drop ? (one->drop < other->drop) - (one->drop > other->drop)
                                    : (one->first > other->first) - (one->first < other->first);
}

enum dpt_status dpt_importance_measure(struct dpt_trainer *t, struct dpt_split *split, int repeats,
                                       struct dpt_importances *result, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct shuffle s = {.split = split};
    double whole, shown = 0;

    result->score = !dpt_loss_judges(t->model.loss.kind) ? "R2"
                    : dpt_trainer_labels(t) > 1          ? "label accuracy"
                                                         : "accuracy";
    DPT_TRY(dpt_group_agree(&t->comm->world, prepare(&s, result, err), err));
    DPT_TRY(score(t, split, &whole, err));
    for (size_t k = 0; k < result->n; k++) {
        if (t->log != NULL)
            dpt_log_live_count(t->log, &shown, "shuffling columns", (int64_t)k, (int64_t)result->n);
        DPT_TRY(measure(t, split, repeats, whole, k, &s, &result->at[k], err));
    }
    qsort(result->at, result->n, sizeof *result->at, by_drop);
out:
    if (t->log != NULL)
        dpt_log_live(t->log, NULL);
    dpt_free(s.sample);
    dpt_free(s.from);
    return status;
}

void dpt_importances_release(struct dpt_importances *result)
{
    dpt_region_release(&result->region);
    *result = (struct dpt_importances){0};
}
