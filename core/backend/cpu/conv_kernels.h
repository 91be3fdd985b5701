/*
 * conv_kernels: oneDNN's kernels for the passes of a convolution that are wanted, in one pair of
 * layouts.
 */
#ifndef DPT_BACKEND_CPU_CONV_KERNELS_H
#define DPT_BACKEND_CPU_CONV_KERNELS_H

#include <stdbool.h>

#include "core/backend/cpu/dnnl.h"
#include "core/base/error.h"

struct dpt_conv_request {
    struct dpt_dnnl *dnnl;
    const char *name; /* of the layer, for messages */
    struct dpt_conv_shape shape;
    bool data, weights; /* besides forward */
};

/* Zero-initialise: {0}. Owned; who takes one out puts NULL there. */
struct dpt_conv_kernels {
    struct dpt_kernel *forward, *data, *weights;
    enum dpt_layout x, y;
    int slow; /* how many are fallbacks */
};

/* Errors of both: BAD_JOB (oneDNN has none), RANK; then *k is empty. */
enum dpt_status dpt_conv_kernels_make(const struct dpt_conv_request *request, enum dpt_layout x,
                                      enum dpt_layout y, struct dpt_conv_kernels *k,
                                      struct dpt_error *err);
/*
 * oneDNN's own choice for forward, where the backward passes have fast kernels too. With few
 * channels they often have none in these layouts (a fallback is a hundred times slower); then the
 * pair with fewest fallbacks.
 */
enum dpt_status dpt_conv_kernels_choose(const struct dpt_conv_request *request,
                                        struct dpt_conv_kernels *best, struct dpt_error *err);
void dpt_conv_kernels_close(struct dpt_conv_kernels *k);

#endif
