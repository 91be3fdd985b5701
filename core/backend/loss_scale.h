/*
 * loss_scale: what keeps small gradients in 16-bit floats.
 *
 * Half floats end at 6e-8, and gradients of activations are often below. So the loss's derivative
 * is multiplied by a power of two, which all gradients behind it then have in them, and what goes
 * into the arena is divided by it again, exactly (Micikevicius et al., "Mixed precision training",
 * 2018). A scale that is too large shows: gradients become infinite. The update is then left out
 * and the scale halved; after DPT_LOSS_SCALE_PATIENCE updates without that it is doubled.
 *
 * All ranks decide by the same reduced gradient, so they have the same scale. The device has its
 * own copy of the rule (norm in core/backend/cuda/kernels.h) for steps that the host does not see.
 */
#ifndef DPT_BACKEND_LOSS_SCALE_H
#define DPT_BACKEND_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_LOSS_SCALE_LEAST = 1,
    DPT_LOSS_SCALE_FIRST = 65536, /* for means, as elsewhere */
    DPT_LOSS_SCALE_MOST = 1 << 24,
    DPT_LOSS_SCALE_PATIENCE = 2000
};

struct dpt_loss_scale {
    float scale;       /* a power of two; 1: none */
    int32_t good;      /* updates since it last changed */
    int64_t overflows; /* updates that were left out, since it was too large for them */
};

/* fp16: whether gradients are half floats; else the scale is 1. micro: samples over which they are
 * summed: DPT_LOSS_SCALE_FIRST is for means, so the scale begins at that over this, at most. */
struct dpt_loss_scale dpt_loss_scale_start(bool fp16, int32_t micro);

/*
 * After a gradient was reduced, where the gradients are scaled. finite: whether its norm is. Not to
 * be called where the loss itself is not finite: no scale mends that.
 *
 * *mended: out. true: the scale was too large and is smaller now, the update is to be left out and
 * counted here; false: the gradient is fit for use, or (not finite) no scale makes it so.
 */
void dpt_loss_scale_step(struct dpt_loss_scale *s, bool finite, bool *mended);

#endif
