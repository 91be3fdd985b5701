/*
 * mix: two samples of a step become one, and so do their labels.
 *
 * mixup (Zhang et al. 2017) blends all of them; cutmix (Yun et al. 2019) puts a rectangle of the
 * one into the other. Each position of a step has a partner, one of the same step: a permutation of
 * its positions, a pure function of (seed, epoch, step). How much of both there is follows from
 * (seed, epoch, sample). So neither hangs on ranks, threads or micro-batches, only on which samples
 * make up the step. Both samples are augmented before (augment.h).
 */
#ifndef DPT_DATA_MIX_H
#define DPT_DATA_MIX_H

#include "data/pictures/transform.h"
#include "data/sets/augment.h"

/* The partner of a position of a step that has `count` of them; maybe the same. */
int32_t dpt_mix_partner(uint64_t seed, int64_t epoch, int64_t step, int32_t count,
                        int32_t position);

/* How a sample and its partner are mixed. */
struct dpt_mix {
    float share; /* of the sample in the labels; the partner has the rest */
    bool cut;
    struct dpt_box box; /* cut: where the partner is seen */
};
/* What is drawn for a sample: of mixup and cutmix the one that is wanted, or either as often. */
struct dpt_mix dpt_mix_draw(const struct dpt_augment *augment, const struct dpt_shape *shape,
                            const struct dpt_augment_key *key);

/* Mixes the partner's floats [c][h][w] into the sample's. */
void dpt_mix_input(const struct dpt_mix *mix, const struct dpt_shape *shape, const float *partner,
                   float *image);

/*
 * Shares of the two in a target, so that the loss of it, times *weight, is share x loss of the
 * sample + the rest x loss of the partner, each times its own weight. Both shares are `mix`'s where
 * the weights are 1.
 */
void dpt_mix_shares(const struct dpt_mix *mix, float own_weight, float partner_weight,
                    float share[2], float *weight);

#endif
