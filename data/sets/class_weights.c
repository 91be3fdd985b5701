/* How much the classes of training samples count (data.class_weights). */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/sets/parts.h"
#include "data/tables/columns.h"

enum dpt_status dpt_dataset_take_class_weights(struct dpt_dataset *set,
                                               const struct dpt_dataset_spec *spec,
                                               struct dpt_error *err)
{
    const struct dpt_data_conf *conf = spec->conf;

    if (spec->paths != &conf->train || conf->class_weights.how == DPT_CLASSES_ALIKE)
        return DPT_OK;
    if (set->target == DPT_TARGET_CLASS)
        set->parts->class_weights = &conf->class_weights;
    else if (spec->binary)
        set->parts->label_weights = &conf->class_weights;
    else
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.class_weights: the training samples have targets, not classes that "
                        "could be balanced");
    if (set->parts->label_weights != NULL && (conf->augment.mixup > 0 || conf->augment.cutmix > 0))
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.class_weights: does not go with mixup and cutmix, whose labels are "
                        "between 0 and 1");
    return DPT_OK;
}

/* --- classes ---------------------------------------------------------------------------------- */

/* Changes the weights so that all classes together count the same, and all samples what they did.
 */
static enum dpt_status balance_classes(struct dpt_dataset *set, struct dpt_error *err)
{
    float *weights = set->parts->weighed.bytes;
    double *sum, all = 0;
    int32_t there = 0;

    if (DPT_ALLOCATE(sum, (size_t)set->target_width, "the classes", err) != DPT_OK)
        return err->status;
    for (int64_t i = 0; i < set->samples; i++)
        sum[set->labels[i]] += (double)weights[i];
    for (int32_t k = 0; k < set->target_width; k++) {
        there += sum[k] > 0;
        all += sum[k];
    }
    for (int64_t i = 0; i < set->samples; i++)
        if (weights[i] > 0)
            weights[i] = (float)((double)weights[i] * all / (there * sum[set->labels[i]]));
    dpt_free(sum);
    return DPT_OK;
}

/* What classes, or labels, are called: by an attribute of their files, or as a table's columns. */
struct called {
    const char *const *names;
    size_t n;
    struct dpt_columns columns;
    const char **of_columns;
};

static enum dpt_status find_names(const struct dpt_dataset *set, struct called *called,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shard *named = set->parts->named, *table = set->parts->table;

    called->names = named != NULL ? named->names.at : NULL;
    called->n = named != NULL ? named->names.n : 0;
    if (set->target == DPT_TARGET_CLASS || called->n > 0 || table == NULL)
        return DPT_OK;
    DPT_TRY(dpt_columns_parse(&called->columns, table->columns, table->path, err));
    DPT_TRY(DPT_ALLOCATE(called->of_columns, called->columns.n_labels + 1, "the labels", err));
    for (; called->n < called->columns.n_labels; called->n++)
        called->of_columns[called->n] = called->columns.at[called->columns.labels[called->n]].name;
    called->names = called->of_columns;
out:
    return status;
}

/* The number that a name is; n: it is none. */
static size_t number_of(const char *name, size_t n)
{
    char *end;
    const size_t number = name[0] >= '0' && name[0] <= '9' ? strtoul(name, &end, 10) : n;

    return number < n && *end == '\0' ? number : n;
}

/* Fills the weights of n classes, or labels, by what the job says. */
static enum dpt_status take_given(const struct dpt_dataset *set,
                                  const struct dpt_class_weight_conf *conf, double *of, size_t n,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *what = set->target == DPT_TARGET_CLASS ? "class" : "label", *near;
    struct called called = {0};

    if (conf->named.n == 0 && conf->list.n < n)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "data.class_weights: has %zu weight%s, the training samples have %zu "
                         "%s",
                         conf->list.n, conf->list.n == 1 ? "" : "s", n,
                         set->target == DPT_TARGET_CLASS ? "classes" : "labels"));
    DPT_TRY(find_names(set, &called, err));
    for (size_t k = 0; k < n; k++)
        of[k] = conf->named.n == 0 ? conf->list.at[k] : 1;
    for (size_t i = 0; i < conf->named.n; i++) {
        const char *name = conf->named.names[i];
        size_t k = dpt_find(name, called.names, called.n);

        if (k == called.n)
            k = number_of(name, n);
        near = k < n ? NULL : dpt_nearest(name, called.names, called.n);
        if (k >= n && k >= called.n)
            DPT_TRY(dpt_fail(
                err, DPT_BAD_JOB, "data.class_weights: '%s' is no %s of the training samples%s%s%s",
                name, what, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?" : ": they are numbered from 0"));
        if (k < n) /* a class that has a name may have no sample */
            of[k] = conf->named.at[i];
    }
out:
    dpt_columns_release(&called.columns);
    dpt_free((void *)called.of_columns);
    return status;
}

/* Multiplies the weights by what the job says of each class. */
static enum dpt_status weigh_classes(struct dpt_dataset *set, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    float *weights = set->parts->weighed.bytes;
    double *of = NULL;

    DPT_TRY(DPT_ALLOCATE(of, (size_t)set->target_width, "the classes", err));
    DPT_TRY(take_given(set, set->parts->class_weights, of, (size_t)set->target_width, err));
    for (int64_t i = 0; i < set->samples; i++)
        weights[i] = (float)((double)weights[i] * of[set->labels[i]]);
out:
    dpt_free(of);
    return status;
}

enum dpt_status dpt_dataset_weigh(struct dpt_dataset *set, struct dpt_error *err)
{
    float *weights = set->parts->weighed.bytes;

    for (int64_t i = 0; !dpt_dataset_has_weights(set->parts) && i < set->samples; i++)
        weights[i] = 1;
    return (set->parts->class_weights->how == DPT_CLASSES_BALANCED ? balance_classes
                                                                   : weigh_classes)(set, err);
}

/* --- labels that hold or not ------------------------------------------------------------------ */

/* How many samples a label does not hold for, to each that it does; by their weights. */
static void balance_labels(const struct dpt_dataset *set, double *of)
{
    for (int32_t k = 0; k < set->target_width; k++) {
        double sum[2] = {0, 0};

        for (int64_t i = 0; i < set->samples; i++)
            sum[set->targets[i * set->target_width + k] > 0] +=
                set->weights != NULL ? (double)set->weights[i] : 1;
        of[k] = sum[0] > 0 && sum[1] > 0 ? sum[0] / sum[1] : 1;
    }
}

enum dpt_status dpt_dataset_weigh_labels(struct dpt_dataset *set, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_class_weight_conf *conf = set->parts->label_weights;
    const size_t n = (size_t)set->target_width;
    double *of = NULL;

    for (int64_t i = 0; i < set->samples * set->target_width; i++)
        if (set->targets[i] != 0 && set->targets[i] != 1)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "data.train: sample %lld: a label is %g; data.class_weights is for "
                             "labels that are 0 or 1",
                             (long long)(i / set->target_width), (double)set->targets[i]));
    DPT_TRY(DPT_ALLOCATE(of, n, "the labels", err));
    DPT_TRY(DPT_ALLOCATE(set->parts->positive, n, "the labels", err));
    if (conf->how == DPT_CLASSES_BALANCED)
        balance_labels(set, of);
    else
        DPT_TRY(take_given(set, conf, of, n, err));
    for (size_t k = 0; k < n; k++) /* 0 would be no 1 any more */
        set->parts->positive[k] = (float)(of[k] > 0 ? of[k] : 1e-30);
    set->positive = set->parts->positive;
out:
    dpt_free(of);
    return status;
}
