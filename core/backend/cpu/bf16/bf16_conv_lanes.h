/*
 * bf16_conv_lanes: the loops of bf16_conv.c that are compiled for AVX-512 BF16.
 *
 * A table says which pixel stands at each place of a line; -1: zeros. If the gradient of a pool is
 * spread it has 4 x window + which of the window's four.
 */
#ifndef DPT_BACKEND_CPU_BF16_CONV_LANES_H
#define DPT_BACKEND_CPU_BF16_CONV_LANES_H

#include <stdbool.h>
#include <stdint.h>

/* One sample: in blocks of 16 channels, planes of `plane` numbers apart, or in planes of one. */
struct dpt_bf16_pixels {
    const void *x; /* floats or, in blocks and without argmax, numbers rounded already */
    bool bf16;
    const int8_t *argmax; /* NULL: pixels are read as they are */
    const int32_t *table;
    int64_t places, plane; /* places: a multiple of 32 */
    int32_t channels;
    bool planes;
};

/* Products [places][32] of whole rows, `pitch` places apart, of two blocks of channels, and where
 * they go. */
struct dpt_bf16_result {
    const float *sum;
    int32_t rows, columns, pitch;
    const float *bias;  /* of the first block's first channel; NULL: none */
    const float *added; /* to the sum, before the relu; laid out as y; NULL: nothing */
    const float *known; /* laid out as y: if it is not positive the result is 0; NULL: nowhere */
    bool relu, pool;
    float *y;       /* where the first one goes; of a pool: the first window's */
    int8_t *argmax; /* likewise; NULL: not wanted */
    int64_t plane;  /* from the first block to the second, */
    int64_t line;   /* from row to row, */
    int64_t step;   /* and from column to column, in floats of y */
    int32_t blocks; /* 1 or 2 */
};

struct dpt_bf16_conv_lanes {
    /* Writes a line of pixels of `lanes` channels each: 4, 8, 16 or a multiple of 32. */
    void (*line)(const struct dpt_bf16_pixels *pixels, int32_t lanes, uint16_t *to);
    /* Writes a line channel by channel, each `ld` numbers after the one before. */
    void (*planes)(const struct dpt_bf16_pixels *pixels, int64_t ld, uint16_t *to);
    /* Writes a line as tiles of b, with the pixels along k: [place / 32][tile], `tiles` of them. If
     * a max-pool's gradient is spread the table has an entry for two places, which are in one row:
     * 2 x window + which of its rows. */
    void (*tiles)(const struct dpt_bf16_pixels *pixels, int32_t tiles, uint16_t *to);
    /* Adds each channel's rounded numbers of `n` pixels (or windows whose argmax is not -1). */
    void (*sum)(const struct dpt_bf16_pixels *pixels, int64_t n, float *sum);
    void (*give)(const struct dpt_bf16_result *result);
    /* Rounds and packs weights as a tile of b: pair i of column n are the numbers from[2 i] and
     * from[2 i + 1] (-1: zero) from w + n * step on, for n < columns. */
    void (*pack)(const float *w, const int32_t from[32], int64_t step, int32_t columns,
                 uint16_t *to);
    /* dw[o * filter + i] (+)= sums[at[i] + o] for i < n and o < outputs, at most 16. */
    void (*gather)(const float *sums, const int32_t *at, int64_t n, int32_t outputs, bool add,
                   float *dw, int64_t filter);
};

/* Empty if dpt_bf16_kernels gives none. */
extern const struct dpt_bf16_conv_lanes dpt_bf16_conv_lanes;

#endif
