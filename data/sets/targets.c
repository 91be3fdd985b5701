#include "data/sets/targets.h"

#include <math.h>

#include "core/base/memory.h"

enum dpt_status dpt_target_scale_init(struct dpt_target_scale *scale, int32_t outputs,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *scale = (struct dpt_target_scale){.outputs = outputs};
    DPT_TRY(DPT_ALLOCATE(scale->mean, (size_t)outputs, "the scale of the targets", err));
    DPT_TRY(DPT_ALLOCATE(scale->std, (size_t)outputs, "the scale of the targets", err));
out:
    return status;
}

void dpt_target_scale_release(struct dpt_target_scale *scale)
{
    dpt_free(scale->mean);
    dpt_free(scale->std);
    *scale = (struct dpt_target_scale){0};
}

enum dpt_status dpt_target_scale_give(struct dpt_target_scale *scale,
                                      const struct dpt_normalize *given, struct dpt_error *err)
{
    const struct {
        const char *name;
        const struct dpt_reals *list;
        float *to;
    } lists[] = {{"mean", &given->mean, scale->mean}, {"std", &given->std, scale->std}};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const struct dpt_reals *list = lists[i].list;

        if (list->n != 1 && list->n != (size_t)scale->outputs)
            return dpt_fail(err, DPT_BAD_JOB,
                            "data.targets.normalize.%s has %zu numbers, the model has %d output%s: "
                            "give one number, or one per output",
                            lists[i].name, list->n, scale->outputs, scale->outputs == 1 ? "" : "s");
        for (int32_t k = 0; k < scale->outputs; k++)
            lists[i].to[k] = (float)list->at[list->n == 1 ? 0 : k];
    }
    scale->used = true;
    return DPT_OK;
}

bool dpt_sample_run_next(struct dpt_sample_run *run, const struct dpt_sampler *sampler)
{
    const int64_t room = sizeof run->at / sizeof run->at[0];
    struct dpt_sampler ordered = *sampler;

    ordered.shuffle = DPT_SHUFFLE_NONE;
    run->first += run->n;
    run->n = ordered.samples - run->first < room ? ordered.samples - run->first : room;
    if (run->n > 0)
        dpt_sampler_samples(&ordered, 0, run->first, run->n, run->at);
    return run->n > 0;
}

const char *const dpt_target_transforms[] = {DPT_TARGET_TRANSFORMS(DPT_LIST_WORD)};

static double transformed(enum dpt_target_transform transform, float target)
{
    return transform == DPT_TARGETS_PLAIN ? target
           : transform == DPT_TARGETS_LOG ? log(target)
                                          : log1p(target);
}

const char *dpt_target_scale_inverse(const struct dpt_target_scale *scale)
{
    static const char *const names[DPT_TARGET_TRANSFORM_COUNT] = {
        [DPT_TARGETS_LOG1P] = "expm1", [DPT_TARGETS_LOG] = "exp"};

    return scale->rates ? "exp" : names[scale->transform];
}

enum dpt_status dpt_target_scale_check(const struct dpt_target_scale *scale,
                                       const struct dpt_dataset *set, const char *key,
                                       struct dpt_error *err)
{
    const enum dpt_target_transform transform = scale->transform;
    const int64_t width = set->target_width;
    char where[256];

    if ((transform == DPT_TARGETS_PLAIN && !scale->rates) || set->targets == NULL)
        return DPT_OK;
    for (int64_t i = 0; i < set->samples * width; i++) {
        const float t = set->targets[i];

        if (t > 0 || (t == 0 && transform != DPT_TARGETS_LOG) ||
            (set->weights != NULL && set->weights[i / width] == 0))
            continue;
        if (scale->rates)
            return dpt_fail(err, DPT_BAD_DATA,
                            "data.%s: %s: the target is %g; loss poisson is for counts and other "
                            "numbers from 0",
                            key, dpt_dataset_where(set, i / width, where), (double)t);
        return dpt_fail(err, DPT_BAD_DATA,
                        "data.%s: %s: the target is %g; data.targets.transform: %s is for numbers "
                        "%s 0%s",
                        key, dpt_dataset_where(set, i / width, where), (double)t,
                        dpt_target_transforms[transform],
                        transform == DPT_TARGETS_LOG ? "above" : "from",
                        transform == DPT_TARGETS_LOG && t == 0 ? "; log1p takes it, too" : "");
    }
    return DPT_OK;
}

/* The sums of each output's targets, or with `mean` of the squares of what they differ by from it;
 * gives how many samples count. */
static int64_t sum_up(const struct dpt_dataset *set, const struct dpt_sampler *sampler,
                      enum dpt_target_transform transform, const double *mean, double *sum)
{
    const int32_t width = set->target_width;
    int64_t samples = 0;

    for (struct dpt_sample_run run = {0}; dpt_sample_run_next(&run, sampler);)
        for (int64_t i = 0; i < run.n; i++) {
            const float *row = set->targets + run.at[i] * width;

            if (set->weights != NULL && set->weights[run.at[i]] == 0)
                continue;
            samples++;
            for (int32_t k = 0; k < width; k++) {
                const double t = transformed(transform, row[k]);

                sum[k] += mean == NULL ? t : (t - mean[k]) * (t - mean[k]);
            }
        }
    return samples;
}

enum dpt_status dpt_target_scale_measure(struct dpt_target_scale *scale,
                                         const struct dpt_dataset *set,
                                         const struct dpt_sampler *sampler, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double *mean = NULL, *squares = NULL;
    int64_t samples;

    DPT_TRY(DPT_ALLOCATE(mean, (size_t)scale->outputs, "the scale of the targets", err));
    DPT_TRY(DPT_ALLOCATE(squares, (size_t)scale->outputs, "the scale of the targets", err));
    samples = sum_up(set, sampler, scale->transform, NULL, mean);
    for (int32_t k = 0; k < scale->outputs; k++)
        mean[k] /= (double)(samples > 0 ? samples : 1);
    sum_up(set, sampler, scale->transform, mean, squares);
    for (int32_t k = 0; k < scale->outputs; k++) {
        const double std = sqrt(squares[k] / (double)(samples > 0 ? samples : 1));

        if (!isfinite((float)mean[k]) || !isfinite((float)std))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "data.targets.normalize: auto: target %d of the training samples has "
                             "mean %g and standard deviation %g",
                             k, mean[k], std));
        scale->mean[k] = (float)mean[k];
        /* What remains of a constant is rounding, no spread. */
        scale->std[k] = std > 1e-7 * fabs(mean[k]) && (float)std > 0 ? (float)std : 1;
    }
    scale->used = true;
out:
    dpt_free(mean);
    dpt_free(squares);
    return status;
}

void dpt_target_scale_apply(const struct dpt_target_scale *scale, const float *targets, float *out)
{
    for (int32_t k = 0; k < scale->outputs; k++) {
        const float t = (float)transformed(scale->transform, targets[k]);

        out[k] = scale->used ? (t - scale->mean[k]) / scale->std[k] : t;
    }
}
