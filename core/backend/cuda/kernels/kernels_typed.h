/*
 * kernels_typed: the kernels that exist for each type of tensor: their arguments, their rows and,
 * where kernels.cu has defined the type T, their source. Part of kernels.h, which says what they
 * have in common.
 *
 * "Passes" count how often a kernel reads or writes a whole tensor.
 */
#ifndef DPT_BACKEND_CUDA_KERNELS_TYPED_H
#define DPT_BACKEND_CUDA_KERNELS_TYPED_H

/* y = f(x). vectors: of 16 bytes. y may be x. 2 passes. */
struct dpt_cuda_act_args {
    const void *x;
    void *y;
    int64_t vectors;
    float attribute; /* the node's attribute 0 */
};

/* dx = dy f'(x). x: the activation's input or output, whichever its row keeps. dx may be dy. 3
 * passes. */
struct dpt_cuda_act_back_args {
    const void *x, *dy;
    void *dx;
    int64_t vectors;
    float attribute;
};

/* y[row][c] = x[row][c] + bias[c], or the ReLU of that. bias: [pitch] of the tensor's type. y may
 * be x. 2 passes. */
struct dpt_cuda_bias_args {
    const void *x, *bias;
    void *y;
    int64_t rows;
    int32_t pitch;
};

/*
 * dbias[c] = sum over rows of dy[row][c], for c < channels. The kernel with ReLU also computes dx =
 * dy if y > 0, else 0, and sums dx, in one pass over the rows: 3 passes instead of 5. partial: and
 * counter: see dpt_cuda_bias_back_cut. add: adds to dbias.
 * state: dbias, but not dx, is divided by its loss_scale; NULL: there is none.
 */
struct dpt_cuda_bias_back_args {
    const void *dy, *y;
    void *dx; /* may be dy; only with ReLU */
    float *dbias;
    double *partial;
    uint32_t *counter;
    int64_t rows;
    int32_t pitch, channels, add;
    const struct dpt_cuda_state *state;
};

/*
 * Pools. Forward reads x and writes y; max also writes the position of each maximum in its window
 * (index: 2 bytes for each element of y). Backward reads dY and the index and writes dX: a thread
 * for each input adds the outputs whose windows contain it, in their order, or, if windows do not
 * overlap (DPT_CUDA_POOL_TILED), a thread for each output writes its window.
 *
 * adaptive: means over the windows of adaptive_avgpool (core/backend/graph.h), which follow from
 * the sizes of input and output. bilinear: `kernel` is the factor between both.
 *
 * maxpool_relu computes a ReLU and the max-pool after it in one pass, from the ReLU's input.
 * maxpool_relu_back computes the gradient of the ReLU's input from the pool's output (y) instead of
 * the pool's input, since a maximum is positive in both or in neither. The bits are those of two
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

/* Whether the windows are side by side, so that no input is in two: then backward has a thread for
 * each window, and for the pixels after the last windows threads that write zeros. */
#define DPT_CUDA_POOL_TILED(a)                                                                     \
    ((a)->kernel[0] == (a)->stride[0] && (a)->kernel[1] == (a)->stride[1] &&                       \
     (a)->before[0] == 0 && (a)->before[1] == 0)

/* y = x mask, by the mask of dpt_dropout_mask, for values in forward and gradients in backward. The
 * mask is drawn again instead of stored: 2 passes. An element has the number c x area + pixel, also
 * after a flatten. Rows past `count` are set to zero. */
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
 * dpt_loss_rows for logits of the tensor's type. One of labels and targets is NULL. dy: NULL: not
 * wanted. weights: NULL: all are 1. metric_sums: added to, as sums over blocks of 8 rows. partial:
 * DPT_CUDA_LOSS_SUMS doubles for each 8 rows. state: dy, but not the loss, is multiplied by its
 * loss_scale; NULL: there is none.
 *
 * The last block to end also does the following: with `tail` it writes the metric sums there as the
 * words after a gradient, and zeros up to `words` words, and clears the metric sums. With
 * bias.dbias it computes bias_back of dy, of which one block must be enough
 * (dpt_cuda_bias_back_cut).
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
    float attribute;
    const struct dpt_cuda_state *state;
    float *tail;
    int32_t words;
    struct dpt_cuda_bias_back_args bias;
};

/* A tensor of the canonical arena, [outputs][inputs][area], and its copy
 * [padded_outputs][area][padded_inputs], whose padding is zero. For a dense layer after a flatten
 * of h x w, area = h w. */
enum dpt_cuda_type { DPT_CUDA_F32, DPT_CUDA_B16, DPT_CUDA_H16 };
struct dpt_cuda_layout {
    int64_t canonical, copy; /* elements from the start of each */
    int32_t outputs, inputs, area, padded_outputs, padded_inputs;
    /* In a list: the number of blocks of the tensors before this one (dpt_cuda_layout_blocks). A
     * launch may be for any part of the list. */
    uint32_t block;
    int32_t type; /* enum dpt_cuda_type of the copy; read by passes over the arena only */
};

/* The copies of an arena's tensors, for passes over the arena. number: for each 16 floats, the
 * number of their tensor in `list`, or DPT_CUDA_NO_COPY; NULL: there are no copies. at: device. */
enum { DPT_CUDA_NO_COPY = UINT16_MAX };
struct dpt_cuda_copies {
    const struct dpt_cuda_layout *list;
    const uint16_t *number;
    void *at;
    int64_t bytes; /* of all copies, for dpt_cuda_kernel_bytes */
};

/* to_layout: writes all copies from the arena, with the conversion of type (reads 4 bytes per
 * parameter, writes 2 or 4). from_layout: writes gradients in the copies' layout to the canonical
 * arena, converted; add: adds to it. state: the gradients are divided by its loss_scale; NULL:
 * there is none. */
struct dpt_cuda_layout_args {
    float *arena;
    void *copies;
    const struct dpt_cuda_layout *list; /* device */
    int32_t n;
    int64_t blocks; /* of all tensors */
    int32_t add;
    int64_t total; /* elements of all copies, for dpt_cuda_kernel_bytes */
    const struct dpt_cuda_state *state;
};

/*
 * Slices of `width` floats each, number `first` and n - 1 more, which lie one after another from
 * `arena` on. pack: writes each as a row of the type, for ranks to gather; unpack: writes what rows
 * have as floats, but not slice `own`. Behind a row's elements are the 16 floats each of those that
 * are not converted. exact: for each 16 floats from `arena` on, their number there, or
 * DPT_CUDA_NO_COPY. row: bytes from one to the next. Reads and writes each number once.
 */
struct dpt_cuda_slices_args {
    float *arena;
    void *rows;
    const uint16_t *exact;
    int64_t width, row;
    int32_t first, n, own; /* own: -1: there is none */
};

/* The crop and flip of one sample; see dpt_augment_sample. */
struct dpt_cuda_move {
    int16_t top, left; /* of the window, in pixels of the image: -padding … padding */
    int32_t flip;
};

/*
 * Copies several ranges. from: device memory, or pinned host memory, which has the same address on
 * the device. bytes: multiples of 4; vectors of 16 bytes are used if both addresses are aligned to
 * that. Ranges are added by dpt_cuda_add_feed.
 */
enum { DPT_CUDA_FEEDS = 6 };
struct dpt_cuda_feed {
    const void *from;
    void *to;
    int64_t bytes;
};
struct dpt_cuda_feed_args {
    struct dpt_cuda_feed feed[DPT_CUDA_FEEDS];
    int32_t n;
    int32_t blocks; /* that share each range */
};

/*
 * Writes samples index[control->first + row] of a data set on the device as activations, normalised
 * (x scale[c] + shift[c]). Each sample is read once and written once. index: NULL: sample number
 * control->first + row. scale: NULL: as they are, bit by bit, without shift. moves: [n], or NULL.
 * feed: ranges that the launch's first blocks copy; what the others read must not be among them.
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
    struct dpt_cuda_feed_args feed;
};

/* Sets *found to the number of the first element that is not finite. The caller sets it to
 * INT64_MAX before, which stays if there is none. 1 pass. */
struct dpt_cuda_scan_args {
    const void *x;
    int64_t n;
    uint64_t *found;
};

/*
 * Layers with a weight for each number of a sample or for each channel: [weight_area][pitch] of the
 * tensor's type, where weight_area is the area or 1.
 *
 * layernorm: y = (x - mean) scale weight + bias over each of `groups` groups of a sample's
 * channels, over all pixels, a block for each. statistics: out, mean, scale and rest of each
 * group; NULL: not wanted. layernorm_back: writes dx to y. prelu: y = x, or weight x if x < 0;
 * prelu_back writes dx to y, which may be dy; vectors: of 16 bytes.
 *
 * layernorm_weights: the sums over n samples of dy x' and dy, where x' = (x - mean) scale, to
 * dweight and dbias in canonical order, divided by state's loss_scale (NULL: there is none); add:
 * adds to them. prelu_weights: the sum of dy x if x is not positive, to dweight. Both sum `chunks`
 * of rows as dpt_cuda_scales_cut divides them; with several chunks the sums meet in `partial`, and
 * `counter` has one number for each of the cut's `groups`.
 */
struct dpt_cuda_scales_args {
    struct dpt_cuda_counted counted;
    const void *x, *dy, *weight, *bias;
    void *y;
    float *statistics, *dweight, *dbias;
    double *partial;
    uint32_t *counter;
    const struct dpt_cuda_state *state;
    int64_t vectors;
    int32_t n, channels, pitch, area, weight_area, groups, chunks, add;
    float eps;
};

/*
 * batchnorm: y = (x - mean) scale weight + bias for each channel, with mean and scale from
 * `statistics` or, if it is NULL, from the running mean and variance; 2 passes.
 *
 * statistics: [5][pitch]. batchnorm_statistics writes the micro-batch's means and scales, and what
 * the floats leave of the means, to its first three rows, and samples x mean and samples x
 * unbiased variance to `means` and `variances`.
 * batchnorm_weights writes the means of dy and of dy x', where x' = (x - mean) scale, to the last
 * two rows, and their sums to dbias and dweight, divided by state's loss_scale (NULL: there is
 * none). sums: [2][pitch], NULL if nobody reads them: the first kernel writes the means and the
 * sums of the squared differences from them there, the second one those of dy and of dy x'.
 *
 * batchnorm_back writes dx to y, which may be dy; 3 passes. _relu: with a ReLU after the norm. Rows
 * past the control's count do not count, and have no dx. weight, bias, mean, variance: floats, with
 * zeros after the last channel. add: adds to what is there. partial: two doubles for each channel
 * and chunk of dpt_cuda_bias_back_cut; counter: as for a bias.
 *
 * batchnorm_add: y = the norm's + with, or, _relu, the ReLU of that; 3 passes. batchnorm_sum… and
 * …through_weights also write dz, for all rows, and add it up in place of dy. sum: dy + with, the
 * gradients that two readers pass back. through: what goes on through the ReLU of a sum, which is
 * `joined`. They take one more pass for each of with, joined and dz, which may be dy or with. The
 * bits are those of one kernel for each.
 */
struct dpt_cuda_batchnorm_args {
    const void *x, *dy, *with, *joined;
    void *y, *dz;
    float *statistics, *means, *variances, *dweight, *dbias;
    const float *weight, *bias, *mean, *variance;
    double *partial, *sums;
    uint32_t *counter;
    const struct dpt_cuda_control *control;
    const struct dpt_cuda_state *state;
    int64_t rows;
    int32_t area, pitch, channels, add;
    int32_t by_running; /* 1: use the running ones despite `statistics`, for the sums of dy */
    float eps;
};

/* add: y = a + b; add_relu: its ReLU; multiply: y = a b. vectors: of 16 bytes. y may be a or b. 3
 * passes. */
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

/* concat: whole = the channels of first, then those of second, for each pixel. concat_back: splits
 * whole into first and second (NULL: not wanted). Zeros are written after the last channel. */
struct dpt_cuda_concat_args {
    void *whole, *first, *second;
    int64_t pixels;
    int32_t channels[2], pitch[2], whole_pitch;
};

/* flatten: writes n samples of planes as vectors in canonical order; flatten_back: the inverse.
 * Padding is written as zeros. */
struct dpt_cuda_flatten_args {
    const void *from;
    void *to;
    int32_t n, channels, area, pitch, flat_pitch;
};

/* The argument structs, without "_args". */
#define DPT_CUDA_TYPED_ARGUMENTS(X)                                                                \
    X(act)                                                                                         \
    X(act_back)                                                                                    \
    X(bias)                                                                                        \
    X(bias_back)                                                                                   \
    X(pool)                                                                                        \
    X(dropout)                                                                                     \
    X(loss)                                                                                        \
    X(layout)                                                                                      \
    X(slices) X(gather) X(scan) X(scales) X(join) X(join_back) X(concat) X(flatten) X(batchnorm)

/* X(name, kind of launch, argument, elements in 16 bytes, whether a block's threads synchronise) */
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
    X(maxpool_##t, pool, pool, lanes, false) X(maxpool_back_##t, window_back, pool, lanes, false)    \
    X(maxpool_relu_##t, pool, pool, lanes, false)                                                  \
    X(maxpool_relu_back_##t, window_back, pool, lanes, false)                                        \
    X(avgpool_##t, pool, pool, lanes, false) X(avgpool_back_##t, window_back, pool, lanes, false)    \
    X(adaptive_##t, pool, pool, lanes, false) X(adaptive_back_##t, pool_back, pool, lanes, false)  \
    X(bilinear_##t, pool, pool, lanes, false) X(bilinear_back_##t, pool_back, pool, lanes, false)  \
    X(dropout_##t, dropout, dropout, lanes, false) X(cross_entropy_##t, loss, loss, lanes, true)   \
    X(focal_##t, loss, loss, lanes, true) X(poisson_##t, loss, loss, lanes, true)                  \
    X(mse_##t, loss, loss, lanes, true) X(l1_##t, loss, loss, lanes, true)                         \
    X(huber_##t, loss, loss, lanes, true) X(quantile_##t, loss, loss, lanes, true)                 \
    X(binary_cross_entropy_##t, loss, loss, lanes, true)                                           \
    X(to_layout_##t, layout, layout, lanes, false)                                                 \
    X(from_layout_##t, from_layout, layout, lanes, false)                                          \
    X(pack_##t, slices, slices, lanes, false) X(unpack_##t, slices, slices, lanes, false)          \
    X(gather_u8_##t, gather_u8, gather, lanes, false)                                              \
    X(gather_f32_##t, gather_f32, gather, lanes, false)                                            \
    X(nonfinite_##t, scan, scan, lanes, false)                                                     \
    X(layernorm_##t, counted, scales, lanes, true)                                                 \
    X(layernorm_back_##t, counted, scales, lanes, true)                                            \
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
    X(batchnorm_add_##t, batchnorm, batchnorm, lanes, false)                                       \
    X(batchnorm_add_relu_##t, batchnorm, batchnorm, lanes, false)                                  \
    X(batchnorm_weights_##t, batchnorm_sums, batchnorm, lanes, true)                               \
    X(batchnorm_relu_weights_##t, batchnorm_sums, batchnorm, lanes, true)                          \
    X(batchnorm_sum_weights_##t, batchnorm_sums, batchnorm, lanes, true)                           \
    X(batchnorm_through_weights_##t, batchnorm_sums, batchnorm, lanes, true)                       \
    X(batchnorm_sum_through_weights_##t, batchnorm_sums, batchnorm, lanes, true)                   \
    X(batchnorm_back_##t, batchnorm, batchnorm, lanes, false)                                      \
    X(batchnorm_relu_back_##t, batchnorm, batchnorm, lanes, false)
// clang-format on

#endif

/* Included again for each type, so it stands after the guard. */
#ifdef T
#include "core/backend/cuda/kernels/kernels_bias.inc" /* also divides rows among threads, for the others */

#include "core/backend/cuda/kernels/kernels_batchnorm.inc"
#include "core/backend/cuda/kernels/kernels_join.inc"
#include "core/backend/cuda/kernels/kernels_layernorm.inc"
#include "core/backend/cuda/kernels/kernels_layout.inc"
#include "core/backend/cuda/kernels/kernels_loss.inc"
#include "core/backend/cuda/kernels/kernels_pointwise.inc"
#include "core/backend/cuda/kernels/kernels_pool.inc"
#include "core/backend/cuda/kernels/kernels_scales.inc"
#endif
