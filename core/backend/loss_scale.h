/*
 * loss_scale: dynamic loss scaling, which keeps small gradients from becoming zero in 16-bit
 * floats.
 *
 * The smallest half float is 6e-8, and gradients of activations are often smaller. So the
 * derivative of the loss is multiplied by a power of two, which scales all gradients of backward,
 * and the gradient of each parameter is divided by it again, which is exact (Micikevicius et al.,
 * "Mixed precision training", 2018). If the scale is too large, gradients become infinite: the
 * update is skipped and the scale halved. After DPT_LOSS_SCALE_PATIENCE updates without overflow it
 * is doubled.
 *
 * All ranks decide by the same reduced gradient, so they have the same scale. The device has its
 * own copy of this rule (norm in core/backend/cuda/kernels/kernels.h) for steps that the host does
 * not see.
 */
#ifndef DPT_BACKEND_LOSS_SCALE_H
#define DPT_BACKEND_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_LOSS_SCALE_LEAST = 1,
    DPT_LOSS_SCALE_FIRST = 65536, /* for gradients of mean losses, as in other frameworks */
    DPT_LOSS_SCALE_MOST = 1 << 24,
    DPT_LOSS_SCALE_PATIENCE = 2000
};

struct dpt_loss_scale {
    float scale;       /* a power of two; 1: none */
    int32_t good;      /* updates since it last changed */
    int64_t overflows; /* updates that were skipped after an overflow */
};

/* The scale to begin with. fp16: whether gradients are half floats; else the scale is 1. micro: the
 * number of samples over which gradients are summed: since DPT_LOSS_SCALE_FIRST is meant for means,
 * the scale begins at most at that divided by `micro`. */
struct dpt_loss_scale dpt_loss_scale_start(bool fp16, int32_t micro);

/*
 * Adapts the scale after a gradient was reduced, if gradients are scaled. finite: whether its norm
 * is. Must not be called if the loss itself is not finite, since no scale helps there.
 *
 * *mended: out. true: the scale was too large and is smaller now; the update must be skipped, and
 * is counted here. false: the gradient can be used, or is not finite at any scale.
 */
void dpt_loss_scale_step(struct dpt_loss_scale *s, bool finite, bool *mended);

#endif
