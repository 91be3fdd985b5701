/* How much the classes of training samples count (data.class_weights). */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/sets/parts.h"

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

/* The number of a class that the job names; -1: none. */
static int32_t class_called(const struct dpt_dataset *set, const char *name)
{
    const struct dpt_shard *named = set->parts->named;
    const size_t n = named != NULL ? named->names.n : 0;
    const size_t found = dpt_find(name, named != NULL ? named->names.at : NULL, n);
    char *end;
    const long number = strtol(name, &end, 10);

    if (found < n)
        return (int32_t)found;
    return name[0] >= '0' && name[0] <= '9' && *end == '\0' && number < set->target_width
               ? (int32_t)number
               : -1;
}

static enum dpt_status unknown_class(const struct dpt_dataset *set, const char *name,
                                     struct dpt_error *err)
{
    const struct dpt_shard *named = set->parts->named;
    const char *near = named != NULL ? dpt_nearest(name, named->names.at, named->names.n) : NULL;

    return dpt_fail(err, DPT_BAD_JOB,
                    "data.class_weights: '%s' is no class of the training samples%s%s%s", name,
                    near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                    near != NULL ? "'?" : ": they are numbered from 0");
}

/* Multiplies the weights by what the job says of each class. */
static enum dpt_status weigh_classes(struct dpt_dataset *set, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_class_weight_conf *conf = set->parts->class_weights;
    const size_t classes = (size_t)set->target_width;
    float *weights = set->parts->weighed.bytes;
    double *of = NULL;

    if (conf->named.n == 0 && conf->list.n < classes)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "data.class_weights: has %zu weight%s, the training samples have %zu "
                         "classes",
                         conf->list.n, conf->list.n == 1 ? "" : "s", classes));
    DPT_TRY(DPT_ALLOCATE(of, classes, "the classes", err));
    for (size_t k = 0; k < classes; k++)
        of[k] = conf->named.n == 0 ? conf->list.at[k] : 1;
    for (size_t i = 0; i < conf->named.n; i++) {
        const int32_t class = class_called(set, conf->named.names[i]);

        if (class < 0)
            DPT_TRY(unknown_class(set, conf->named.names[i], err));
        if ((size_t) class < classes)
            of[class] = conf->named.at[i];
    }
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
