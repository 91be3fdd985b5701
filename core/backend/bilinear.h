/*
 * bilinear: the inputs and weights of each output of a bilinear upsampling along one axis. Pixels
 * are sampled at their centres, as by PyTorch's F.interpolate(mode="bilinear",
 * align_corners=False).
 */
#ifndef DPT_BACKEND_BILINEAR_H
#define DPT_BACKEND_BILINEAR_H

#include <stdint.h>

/* An output is (1 - share) times input `first` plus `share` times input `second`. If share is 0
 * both are the same input, so that no other one is read. */
struct dpt_bilinear {
    int32_t first, second;
    float share;
};

/* Output i of an axis that is `factor` times as long as its n inputs. */
static inline struct dpt_bilinear dpt_bilinear_at(int32_t i, int32_t factor, int32_t n)
{
    /* (i + 1/2) / factor - 1/2, in steps of 1 / (2 factor). */
    const int64_t step = 2 * (int64_t)factor, at = 2 * (int64_t)i + 1 - factor;
    struct dpt_bilinear b = {0};

    if (at <= 0)
        return b;
    b.first = b.second = (int32_t)(at / step);
    if (b.first + 1 < n && at % step > 0) {
        b.second++;
        b.share = (float)(at % step) / (float)step;
    }
    return b;
}

#endif
