/*
 * targets: the scale that a job's targets (data.targets) are trained in.
 *
 * Trained are (t - mean) / std, a mean and a std for each output; everybody else is given numbers
 * in the units of the files: what a model gives becomes y * std + mean. Both are float32, as
 * checkpoints keep them, so that a model is used with the very scale that it was trained in. With a
 * transform, t is log(1 + t) or log(t) in all of this, and what a model gives its inverse.
 */
#ifndef DPT_DATA_TARGETS_H
#define DPT_DATA_TARGETS_H

#include <math.h>

#include "data/sets/dataset.h"
#include "data/sets/sampler.h"

struct dpt_target_scale {
    int32_t outputs;   /* of the model */
    bool used;         /* false: mean is 0, and std is 1 */
    float *mean, *std; /* [outputs]; std > 0 */
    enum dpt_target_transform transform;
    bool rates; /* outputs are logarithms of what is predicted, as with loss poisson */
};

/* "none", "log1p", "log": by enum dpt_target_transform. */
extern const char *const dpt_target_transforms[DPT_TARGET_TRANSFORM_COUNT];

/* Whether what is trained are not the targets themselves. */
static inline bool dpt_target_scale_changes(const struct dpt_target_scale *scale)
{
    return scale->used || scale->transform != DPT_TARGETS_PLAIN;
}

/* Room for so many outputs; targets are as they are. Release it in any case. Errors: RANK. */
enum dpt_status dpt_target_scale_init(struct dpt_target_scale *scale, int32_t outputs,
                                      struct dpt_error *err);
void dpt_target_scale_release(struct dpt_target_scale *scale);

/* Takes what a job gives: one number for all outputs, or one each. Errors: BAD_JOB. */
enum dpt_status dpt_target_scale_give(struct dpt_target_scale *scale,
                                      const struct dpt_normalize *given, struct dpt_error *err);
/*
 * Measures the targets of the samples that a sampler walks: mean and standard deviation (dividing
 * by their number) of each output, summed as doubles in the order of the samples, so that the rank
 * count cannot show. Samples of weight 0 do not count; an output that is always the same has std 1.
 * Errors: BAD_DATA (not finite).
 */
enum dpt_status dpt_target_scale_measure(struct dpt_target_scale *scale,
                                         const struct dpt_dataset *set,
                                         const struct dpt_sampler *sampler, struct dpt_error *err);

/* Whether what a model gives are not the predictions themselves. */
static inline bool dpt_target_scale_undoes(const struct dpt_target_scale *scale)
{
    return dpt_target_scale_changes(scale) || scale->rates;
}

/* Fails for a target of the set whose transform is none, or that is no count. key: of the set.
 * Errors: BAD_DATA. */
enum dpt_status dpt_target_scale_check(const struct dpt_target_scale *scale,
                                       const struct dpt_dataset *set, const char *key,
                                       struct dpt_error *err);

/* One row of targets as it is trained. */
void dpt_target_scale_apply(const struct dpt_target_scale *scale, const float *targets, float *out);
/* What a model gives for one output, in the units of the files. */
static inline double dpt_target_scale_undo(const struct dpt_target_scale *scale, int32_t output,
                                           float y)
{
    const double x = scale->used ? (double)y * scale->std[output] + scale->mean[output] : (double)y;

    return scale->transform == DPT_TARGETS_LOG1P                 ? expm1(x)
           : scale->transform == DPT_TARGETS_LOG || scale->rates ? exp(x)
                                                                 : x;
}
/* What that does after the scale, in the words of NumPy; NULL: nothing. */
const char *dpt_target_scale_inverse(const struct dpt_target_scale *scale);

/* The numbers of the samples that a sampler walks, in the order of the files, a run at a time. */
struct dpt_sample_run {
    int64_t at[256];
    int64_t first, n; /* n 0: before the first run */
};
/* The next run; false after the last. */
bool dpt_sample_run_next(struct dpt_sample_run *run, const struct dpt_sampler *sampler);

#endif
