/*
 * conv_weights: the gradient of a convolution's weights, by one of two ways: oneDNN's kernel, which
 * leaves it in an order of its own; or, if a micro-batch has fewer output pixels than the
 * convolution has outputs, as one product (gemm.h) of the output's gradient and the unrolled
 * patches of the input, which writes it where it belongs. oneDNN's kernel does little work for each
 * weight there, and all weights go to memory and back: for 512 to 512 channels of 2 x 2 pixels the
 * product takes a third of the time.
 */
#ifndef DPT_BACKEND_CPU_CONV_WEIGHTS_H
#define DPT_BACKEND_CPU_CONV_WEIGHTS_H

#include "core/backend/cpu/program/program.h"

struct dpt_conv_weights {
    struct dpt_conv_shape shape;
    int x, dy, dw, db; /* buffers */
    int call;          /* oneDNN's; NONE: there is nothing to compute */
    int unpack[2];     /* calls; the second one adds, unless it writes to `unpacked` */
    int unpacked;      /* buffer of the gradient in canonical order, or NONE */
    bool unrolls;      /* the second way */
    struct dpt_gemm product;
    int patches, rows; /* buffers: [pixel][input][tap], and dy as [pixel][output] */
};

/* Plans the pass, for x and dy in these buffers. kernel: oneDNN's, which is taken if it is used.
 * Errors: BAD_JOB, RANK. */
enum dpt_status dpt_conv_weights_plan(struct dpt_cpu_program *program,
                                      const struct dpt_cpu_node *node,
                                      const struct dpt_conv_shape *shape,
                                      struct dpt_kernel **kernel, int x, int dy,
                                      struct dpt_conv_weights *w, struct dpt_error *err);
/* Writes, or adds if the run adds, the gradients of weights and bias. */
void dpt_conv_weights_run(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                          const struct dpt_conv_weights *w);

#endif
