/*
 * targets: the scale that a job's targets (data.targets) are trained in.
 *
 * Trained are (t - mean) / std, a mean and a std for each output; everybody else is given numbers
 * in the units of the files: what a model gives becomes y * std + mean. Both are float32, as
 * checkpoints keep them, so that a model is used with the very scale that it was trained in.
 */
#ifndef DPT_DATA_TARGETS_H
#define DPT_DATA_TARGETS_H

#include "data/sets/sampler.h"

struct dpt_target_scale {
    int32_t outputs;   /* of the model */
    bool used;         /* false: targets are trained as they are */
    float *mean, *std; /* [outputs]; std > 0 */
};

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

/* One row of targets as it is trained. */
void dpt_target_scale_apply(const struct dpt_target_scale *scale, const float *targets, float *out);
/* What a model gives for one output, in the units of the files. */
static inline double dpt_target_scale_undo(const struct dpt_target_scale *scale, int32_t output,
                                           float y)
{
    return scale->used ? (double)y * scale->std[output] + scale->mean[output] : (double)y;
}

/* The numbers of the samples that a sampler walks, in the order of the files, a run at a time. */
struct dpt_sample_run {
    int64_t at[256];
    int64_t first, n; /* n 0: before the first run */
};
/* The next run; false behind the last. */
bool dpt_sample_run_next(struct dpt_sample_run *run, const struct dpt_sampler *sampler);

#endif
