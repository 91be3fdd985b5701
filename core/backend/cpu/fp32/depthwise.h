/*
 * depthwise: convolutions with a group for each channel, one output from each input.
 *
 * Lanes are channels: a block of 16 is a convolution of planes, which are copied with zeros around
 * them. Any window, stride and dilation; activations are in blocks of 16 channels. Bits depend on
 * the shape only, not on the instruction set. NaN and infinities are propagated; what the lanes
 * after the last channel hold is not defined.
 */
#ifndef DPT_BACKEND_CPU_DEPTHWISE_H
#define DPT_BACKEND_CPU_DEPTHWISE_H

#include "core/backend/cpu/layout.h"

bool dpt_depthwise_fits(const struct dpt_conv_shape *shape);
/* Floats of a thread's workspace, aligned to 64 bytes. */
int64_t dpt_depthwise_scratch(const struct dpt_conv_shape *shape);

/* Weights are canonical. bias: NULL: none. */
void dpt_depthwise_forward(const struct dpt_conv_shape *shape, const float *x, const float *weights,
                           const float *bias, float *scratch, float *y);
void dpt_depthwise_data(const struct dpt_conv_shape *shape, const float *dy, const float *weights,
                        float *scratch, float *dx);
/* Writes or adds the gradient of the weights; dpt_direct_bias has that of the bias. */
void dpt_depthwise_weights(const struct dpt_conv_shape *shape, const float *x, const float *dy,
                           bool add, float *scratch, float *dw);

#endif
