/*
 * augment: what is done to training samples, at random.
 *
 * Transforms change a sample, in the order of DPT_TRANSFORM_LIST; then it may be mixed with another
 * one of the same step (mix.h). What happens to a sample is a pure function of (seed, epoch,
 * sample): it does not depend on ranks, threads, the batch size or where a run was stopped and
 * resumed. What a transform computes is data/pictures/transform.h's.
 */
#ifndef DPT_DATA_AUGMENT_H
#define DPT_DATA_AUGMENT_H

#include "core/backend/steps.h"
#include "data/pictures/picture.h"
#include "data/sets/dataset.h"

/*
 * X(NAME, name, key): every transform, in the order in which they are applied. The table of
 * augment.c is made from this list. The key is part of what its random numbers are drawn for: never
 * renumber. MIX is no transform, and shares the keys.
 */
#define DPT_TRANSFORM_LIST(X)                                                                      \
    X(RESIZED_CROP, resized_crop, 1)                                                               \
    X(MOVE, move, 0) /* its numbers have a stream of their own */                                  \
    X(VERTICAL_FLIP, vertical_flip, 2)                                                             \
    X(AFFINE, affine, 3)                                                                           \
    X(BRIGHTNESS, brightness, 4)                                                                   \
    X(CONTRAST, contrast, 5)                                                                       \
    X(SATURATION, saturation, 6)                                                                   \
    X(HUE, hue, 7)                                                                                 \
    X(ERASE, erase, 8)                                                                             \
    X(NOISE, noise, 9)
enum { DPT_MIX_KEY = 10 };

/* A sample of an epoch, for which random numbers are drawn. */
struct dpt_augment_key {
    uint64_t seed;
    int64_t epoch, sample;
};

/* Four random words for a transform or the mixing, of as many as it takes: number 0, 1, … */
void dpt_augment_words(const struct dpt_augment_key *key, int transform, uint32_t number,
                       uint32_t word[4]);
/* A word as a number from `least` to `most`, uniform. */
double dpt_augment_between(uint32_t word, double least, double most);

/* Whether a transform or mixing is wanted; mixing; and nothing but crops and flips, which the
 * device can do with samples in its own memory (struct dpt_steps_move). */
bool dpt_augment_wanted(const struct dpt_augment *augment);
bool dpt_augment_mixes(const struct dpt_augment *augment);
bool dpt_augment_only_moves(const struct dpt_augment *augment);

/* Whether it can be done to the samples of this set. Errors: BAD_JOB (they are not images, smaller
 * than the padding, or lack what a transform needs). */
enum dpt_status dpt_augment_check(const struct dpt_augment *augment, const struct dpt_dataset *set,
                                  struct dpt_error *err);

/* What is drawn for a sample: where the window lies and whether it is mirrored. */
struct dpt_steps_move dpt_augment_draw(const struct dpt_augment *augment, uint64_t seed,
                                       int64_t epoch, int64_t sample);

/* Floats of memory that dpt_augment_sample needs. */
size_t dpt_augment_scratch(const struct dpt_augment *augment, const struct dpt_dataset *set);

/*
 * Makes of a stored sample the normalised floats [c][h][w] that a model trains with.
 *
 * crop_padding and flip: the image is padded with `crop_padding` pixels on each side that are zero
 * before normalisation, a window of the set's shape is cut out at one of the (2 crop_padding + 1)^2
 * places, more where data.crop makes images smaller, all equally likely, and with `flip` every
 * other one is mirrored, left to right. crop_area takes a part of what is stored. The others are as
 * the rows of data.augment say.
 */
void dpt_augment_sample(const struct dpt_augment *augment, const struct dpt_dataset *set,
                        const struct dpt_augment_key *key, const uint8_t *stored, float *out,
                        float *scratch);

/*
 * Whether crop_area takes its part of an image as it is in its file, which has more to show than
 * what it would be decoded to; then dpt_augment_picture makes the sample of it. Errors: RANK.
 */
bool dpt_augment_takes_pictures(const struct dpt_augment *augment, const struct dpt_dataset *set);
enum dpt_status dpt_augment_picture(const struct dpt_augment *augment,
                                    const struct dpt_dataset *set,
                                    const struct dpt_augment_key *key,
                                    const struct dpt_picture *picture, float *out, float *scratch,
                                    struct dpt_error *err);

#endif
