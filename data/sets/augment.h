/*
 * augment: random crops and flips of training images.
 *
 * What happens to a sample is a pure function of (seed, epoch, sample): it does not depend on
 * ranks, threads, the batch size or where a run was stopped and resumed.
 */
#ifndef DPT_DATA_AUGMENT_H
#define DPT_DATA_AUGMENT_H

#include "core/backend/steps.h"
#include "data/sets/dataset.h"

/* Whether there is anything to do. */
bool dpt_augment_wanted(const struct dpt_augment *augment);

/* Whether it can be done to the samples of this set. Errors: BAD_JOB (they are no images, or
 * smaller than the padding). */
enum dpt_status dpt_augment_check(const struct dpt_augment *augment, const struct dpt_dataset *set,
                                  struct dpt_error *err);

/* What is drawn for a sample: where the window lies and whether it is mirrored. */
struct dpt_steps_move dpt_augment_draw(const struct dpt_augment *augment, uint64_t seed,
                                       int64_t epoch, int64_t sample);

/*
 * image, out: normalised floats [c][h][w] of one sample, different memory. The image is padded with
 * `crop_padding` pixels on each side that are zero before normalisation, a window of its own size
 * is cut out at one of the (2 crop_padding + 1)^2 places, all equally likely, and with `flip` every
 * other one is mirrored, left to right.
 */
void dpt_augment_sample(const struct dpt_augment *augment, const struct dpt_dataset *set,
                        uint64_t seed, int64_t epoch, int64_t sample, const float *image,
                        float *out);

#endif
