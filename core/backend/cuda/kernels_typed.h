/*
 * kernels_typed: the kernels that there are for each type of tensor: their arguments, their rows
 * and, where kernels.cu has defined the type, T, their source. Part of kernels.h, which says what
 * all of them have in common.
 */
#ifndef DPT_BACKEND_CUDA_KERNELS_TYPED_H
#define DPT_BACKEND_CUDA_KERNELS_TYPED_H

/* y = f(x) for vectors of 16 bytes. 2 reads and writes of the tensor: in place allowed. */
struct dpt_cuda_act_args {
    const void *x;
    void *y;
    int64_t vectors;
    float attribute; /* the node's first one */
};

/* dx = dy f'; x: what the activation's row says that the slope is computed from. dx may be dy. 3
 * passes. */
struct dpt_cuda_act_back_args {
    const void *x, *dy;
    void *dx;
    int64_t vectors;
    float attribute;
};

/* y[row][c] = x[row][c] + bias[c], or the ReLU of it. bias: `pitch` elements of the tensor's type.
 * In place allowed. 2 passes. */
struct dpt_cuda_bias_args {
    const void *x, *bias;
    void *y;
    int64_t rows;
    int32_t pitch;
};

/*
 * dbias[c] = sum over rows of dy[row][c], for c < channels. With ReLU: dx = dy where y > 0, else 0,
 * and the sum is of dx, in the same pass: 3 passes instead of 5. partial: as
 * dpt_cuda_bias_back_cut says; counter: one for each 128 channels, at least. add: to what is
 * in dbias. state: dbias is divided by its loss_scale (dx is not); NULL: there is none.
 */
struct dpt_cuda_bias_back_args {
    const void *dy, *y;
    void *dx; /* may be dy; only with ReLU */
    float *dbias, *partial;
    uint32_t *counter;
    int64_t rows;
    int32_t pitch, channels, add;
    const struct dpt_cuda_state *state;
};

/*
 * Pools. Forward reads x, writes y; max also writes where in its window the maximum was (index: 2
 * bytes for each element of y). Backward reads y as dY and index, writes x as dX: each input looks
 * for the outputs whose windows it lies in, in their order.
 *
 * adaptive: averages over the windows of adaptive_avgpool (core/backend/graph.h), which follow from
 * the two areas. bilinear: kernel says how many times as high and as wide y is.
 *
 * With a ReLU in front of a max-pool both are one pass. maxpool_relu: x is the ReLU's input.
 * maxpool_relu_back: dX is the gradient of the ReLU's input; it needs the pool's output (y), not
 * its input, since what was passed on is positive in both or in neither. The bits are those of two
 * kernels.
 */
struct dpt_cuda_pool_args {
    const void *from; /* x, or dy */
    void *to;         /* y, or dx */
    uint16_t *index;
    int32_t n, h, w, oh, ow, pitch;
    int32_t kernel[2], stride[2], before[2];
    const void *y; /* maxpool_relu_back: the pool's output */
};

/* y = x mask, the mask of dpt_dropout_mask; forward on values, backward on gradients: 2 passes, no
 * mask is kept. An element's number is c x area + pixel, also behind a flatten. Rows behind `count`
 * get zeros. */
struct dpt_cuda_dropout_args {
    const void *x;
    void *y;
    const int64_t *sample; /* for each row */
    const struct dpt_cuda_control *control;
    int32_t n, channels, pitch, area;
    int32_t node;
    float rate;
};

/*
 * dpt_loss_rows for logits of the tensor's type. labels or targets: the other is NULL. dy: NULL:
 * not wanted. weights: NULL: 1 each. metric_sums: added to; its sum is over blocks of 8 rows. partial:
 * DPT_CUDA_LOSS_SUMS doubles for each 8 rows. state: dy is multiplied by its loss_scale (loss is
 * not); NULL: there is none.
 */
struct dpt_cuda_loss_args {
    const void *y;
    void *dy;
    const int32_t *labels;
    const float *targets; /* [n][outputs] */
    const float *weights; /* [n] */
    const struct dpt_cuda_control *control;
    struct dpt_cuda_metric_sums *metric_sums;
    double *partial;
    uint32_t *counter;
    int32_t n, outputs, pitch;
    float smoothing;
    const struct dpt_cuda_state *state;
};

/* A tensor of the canonical arena, [outputs][inputs][area], and its copy [padded_outputs][area]
 * [padded_inputs], zero where it is padded. Dense layers behind a flatten of h x w: area = h w. */
struct dpt_cuda_layout {
    int64_t canonical, copy; /* elements from the start of each */
    int32_t outputs, inputs, area, padded_outputs, padded_inputs;
};

/* to_layout: all copies from the arena, cast (4 bytes a parameter read, 2 or 4 written).
 * from_layout: gradients of that layout into the canonical arena, cast; add: to what is there;
 * state: divided by its loss_scale; NULL: there is none. */
struct dpt_cuda_layout_args {
    float *arena;
    void *copies;
    const struct dpt_cuda_layout *list; /* device */
    int32_t n;
    int64_t largest; /* elements of the largest copy */
    int32_t add;
    int64_t total; /* elements of all copies, for dpt_cuda_kernel_bytes */
    const struct dpt_cuda_state *state;
};

/* A crop and flip of one sample; see dpt_augment_sample. */
struct dpt_cuda_move {
    int16_t top, left; /* of the window, in pixels of the image: -padding … padding */
    int32_t flip;
};

/*
 * Samples index[control->first + row] of a data set on the device, normalised (x scale[c] +
 * shift[c]) and laid out as activations. Reads a sample once, writes it once. moves: for each row,
 * or NULL.
 */
struct dpt_cuda_gather_args {
    const void *data; /* uint8 or float */
    const int64_t *index;
    const float *scale, *shift;
    const struct dpt_cuda_move *moves;
    const struct dpt_cuda_control *control;
    void *out;
    int64_t channel_stride, pixel_stride; /* of the data, in elements */
    int32_t n, channels, h, w, pitch;
};

/* *found = the number of the first element that is not finite, or stays as it is (the caller sets
 * it to INT64_MAX). Read once. */
struct dpt_cuda_scan_args {
    const void *x;
    int64_t n;
    uint64_t *found;
};

/*
 * Layers that have weights for each number of a sample, or for each channel: [weight_area][pitch] of
 * the tensor's type, where weight_area is the area or 1.
 *
 * layernorm: y = (x - mean) scale weight + bias over each of `groups` runs of a sample's channels,
 * at all pixels, a block each; statistics: out: mean and scale of each; NULL: not wanted.
 * layernorm_back: dx, to y. prelu: y = x, or weight x where x < 0; prelu_back: dx, to y, may be dy;
 * `vectors` of 16 bytes.
 *
 * layernorm_weights: the sums of dy x' and dy over n samples, x' being what is normalised, to
 * dweight and dbias in canonical order, divided by state's loss_scale (NULL: there is none); add: to
 * what is there. prelu_weights: those of dy x where x is not positive, to dweight. Both in `chunks`
 * of rows, as dpt_cuda_scales_cut says; where there are several, they are added in `partial`, and
 * `counter` has one for each of the cut's `groups`.
 */
enum { DPT_CUDA_SCALES_COLUMNS = 8 };
struct dpt_cuda_scales_args {
    struct dpt_cuda_counted counted;
    const void *x, *dy, *weight, *bias;
    void *y;
    float *statistics, *dweight, *dbias, *partial;
    uint32_t *counter;
    const struct dpt_cuda_state *state;
    int64_t vectors;
    int32_t n, channels, pitch, area, weight_area, groups, chunks, add;
    float eps;
};

/*
 * batchnorm: y = (x - mean) scale weight + bias for each channel, by `statistics` or, where it is
 * NULL, by the running mean and variance; 2 passes. statistics: [4][pitch]: the micro-batch's means
 * and scales, by batchnorm_statistics, which also gives samples x mean and samples x unbiased
 * variance to `means` and `variances`; then the means of dy and of dy x', x' being what is
 * normalised, by batchnorm_weights, which gives their sums to dbias and dweight, divided by state's
 * loss_scale (NULL: there is none). batchnorm_back: dx, to y, which may be dy; 3 passes. _relu:
 * with a ReLU behind it. Only the control's count of samples counts, and only they have a dx. weight,
 * bias, mean, variance: floats, and zeros behind the last channel. add: to what is there. partial:
 * two doubles for each channel and chunk of dpt_cuda_bias_back_cut; counter: as a bias's.
 */
struct dpt_cuda_batchnorm_args {
    const void *x, *dy;
    void *y;
    float *statistics, *means, *variances, *dweight, *dbias;
    const float *weight, *bias, *mean, *variance;
    double *partial;
    uint32_t *counter;
    const struct dpt_cuda_control *control;
    const struct dpt_cuda_state *state;
    int64_t rows;
    int32_t area, pitch, channels, add;
    float eps;
};

/* add, add_relu, multiply: y = a + b and so on for vectors of 16 bytes. y may be a or b. 3 passes.
 */
struct dpt_cuda_join_args {
    const void *a, *b;
    void *y;
    int64_t vectors;
};

/* multiply_back: da = dy b, db = dy a; NULL: not wanted. One of them may be dy. */
struct dpt_cuda_join_back_args {
    const void *dy, *a, *b;
    void *da, *db;
    int64_t vectors;
};

/* Each pixel's channels of first, then those of second, make those of whole: concat. concat_back:
 * from whole into first and second (NULL: not wanted). Zeros behind the last channel. */
struct dpt_cuda_concat_args {
    void *whole, *first, *second;
    int64_t pixels;
    int32_t channels[2], pitch[2], whole_pitch;
};

/* flatten: n samples of planes into vectors, in canonical order; flatten_back: and back. Zeros
 * where they are padded. */
struct dpt_cuda_flatten_args {
    const void *from;
    void *to;
    int32_t n, channels, area, pitch, flat_pitch;
};

/* Whose names have "_args" behind. */
#define DPT_CUDA_TYPED_ARGUMENTS(X)                                                                \
    X(act)                                                                                         \
    X(act_back)                                                                                    \
    X(bias)                                                                                        \
    X(bias_back)                                                                                   \
    X(pool)                                                                                        \
    X(dropout)                                                                                     \
    X(loss)                                                                                        \
    X(layout) X(gather) X(scan) X(scales) X(join) X(join_back) X(concat) X(flatten) X(batchnorm)

/* X(name, kind of launch, argument, elements of 16 bytes, whether a block's threads wait for each
 * other) */
// clang-format off
#define DPT_CUDA_ACTIVATION(context, NAME, name, ...)                                              \
    DPT_CUDA_ACTIVATION_(name, DPT_BARE context)
#define DPT_CUDA_ACTIVATION_(name, ...) DPT_CUDA_ACTIVATION_KERNELS(name, __VA_ARGS__)
#define DPT_CUDA_ACTIVATION_KERNELS(name, X, t, lanes)                                             \
    X(name##_##t, act, act, lanes, false) X(name##_back_##t, act_back, act_back, lanes, false)
#define DPT_CUDA_TYPED(X, t, lanes)                                                                \
    DPT_ACTIVATIONS(DPT_CUDA_ACTIVATION, (X, t, lanes)) X(bias_##t, bias, bias, lanes, false)      \
    X(bias_relu_##t, bias, bias, lanes, false)                                                     \
    X(bias_back_##t, bias_back, bias_back, lanes, true)                                            \
    X(bias_relu_back_##t, bias_back, bias_back, lanes, true)                                       \
    X(maxpool_##t, pool, pool, lanes, false) X(maxpool_back_##t, pool_back, pool, lanes, false)    \
    X(maxpool_relu_##t, pool, pool, lanes, false)                                                  \
    X(maxpool_relu_back_##t, pool_back, pool, lanes, false)                                        \
    X(avgpool_##t, pool, pool, lanes, false) X(avgpool_back_##t, pool_back, pool, lanes, false)    \
    X(adaptive_##t, pool, pool, lanes, false) X(adaptive_back_##t, pool_back, pool, lanes, false)  \
    X(bilinear_##t, pool, pool, lanes, false) X(bilinear_back_##t, pool_back, pool, lanes, false)  \
    X(dropout_##t, dropout, dropout, lanes, false) X(cross_entropy_##t, loss, loss, lanes, true)   \
    X(mse_##t, loss, loss, lanes, true) X(to_layout_##t, layout, layout, lanes, false)             \
    X(from_layout_##t, from_layout, layout, lanes, false)                                          \
    X(gather_u8_##t, gather_u8, gather, lanes, false)                                              \
    X(gather_f32_##t, gather_f32, gather, lanes, false)                                            \
    X(nonfinite_##t, scan, scan, lanes, false)                                                     \
    X(layernorm_##t, counted, scales, lanes, true) X(layernorm_back_##t, counted, scales, lanes, true) \
    X(layernorm_weights_##t, counted, scales, lanes, true)                                         \
    X(prelu_##t, counted, scales, lanes, false) X(prelu_back_##t, counted, scales, lanes, false)   \
    X(prelu_weights_##t, counted, scales, lanes, true)                                             \
    X(add_##t, join, join, lanes, false) X(add_relu_##t, join, join, lanes, false)                 \
    X(multiply_##t, join, join, lanes, false)                                                      \
    X(multiply_back_##t, join_back, join_back, lanes, false)                                       \
    X(concat_##t, concat, concat, lanes, false)                                                    \
    X(concat_back_##t, concat_back, concat, lanes, false)                                          \
    X(flatten_##t, flatten, flatten, lanes, false)                                                 \
    X(flatten_back_##t, flatten_back, flatten, lanes, false)                                       \
    X(batchnorm_statistics_##t, batchnorm_sums, batchnorm, lanes, true)                            \
    X(batchnorm_##t, batchnorm, batchnorm, lanes, false)                                           \
    X(batchnorm_relu_##t, batchnorm, batchnorm, lanes, false)                                      \
    X(batchnorm_weights_##t, batchnorm_sums, batchnorm, lanes, true)                               \
    X(batchnorm_relu_weights_##t, batchnorm_sums, batchnorm, lanes, true)                          \
    X(batchnorm_back_##t, batchnorm, batchnorm, lanes, false)                                      \
    X(batchnorm_relu_back_##t, batchnorm, batchnorm, lanes, false)
// clang-format on

#endif

/* Once for each type, behind the guard. */
#ifdef T
#include "core/backend/cuda/kernels_batchnorm.inc"
#include "core/backend/cuda/kernels_bias.inc"
#include "core/backend/cuda/kernels_join.inc"
#include "core/backend/cuda/kernels_layernorm.inc"
#include "core/backend/cuda/kernels_layout.inc"
#include "core/backend/cuda/kernels_loss.inc"
#include "core/backend/cuda/kernels_pointwise.inc"
#include "core/backend/cuda/kernels_pool.inc"
#include "core/backend/cuda/kernels_scales.inc"
#endif
