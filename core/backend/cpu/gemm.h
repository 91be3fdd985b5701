/*
 * gemm: the matrix products of dense layers, for the ranges of rows and columns that a caller asks
 * for.
 *
 *     forward   y  [r][o]  = sum_i x[r][i] w[o][i] + b[o]
 *     weights   dw [o][i] (+)= sum_r dy[r][o] x[r][i]
 *     data      dx [r][i]  = sum_o dy[r][o] w[o][i]
 *
 * What makes them faster than a general product here: the weights, which are large, are only ever
 * copied, in pieces that stay in the cache, whichever way the product goes through them; what is
 * transposed is x, which is small. And each is computed by ranges of outputs or inputs, so that
 * threads share a layer without sharing a sum: an element is always the same chain of additions,
 * whoever computes it and whatever else is computed with it, so its bits depend on neither threads
 * nor ranges. AVX-512, AVX2 with FMA or plain C, chosen when called; the first two give the same
 * bits.
 *
 * All arrays but the scratch memory may lie anywhere; NaN and infinities pass through.
 */
#ifndef DPT_BACKEND_CPU_GEMM_H
#define DPT_BACKEND_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/isa.h"

struct dpt_gemm {
    int64_t rows, inputs, outputs;
    enum dpt_isa isa;
    /* The sums over rows, weights and bias, are made for each `sub_batch` rows by themselves, and
     * added up along the tree of core/comm/tree.h over 0, 1, …; 0: all rows in one. At most
     * DPT_SUB_BATCHES. */
    int64_t sub_batch;
};

enum { DPT_SUB_BATCH_LEVELS = 9, DPT_SUB_BATCHES = 1 << (DPT_SUB_BATCH_LEVELS - 1) };

/*
 * sums: `top` partial sums of `width` floats each, one behind the other. Adds up the last ones
 * where they are siblings in the tree once `done` sub-batches are summed (0: all of them), until
 * `least` are left. Returns how many are left.
 */
int dpt_sub_batches_join(float *sums, int64_t width, int top, int64_t done, int least);

/* Scratch floats that any of the three wants, for any range; a thread each, aligned to 64 bytes. */
int64_t dpt_gemm_scratch(const struct dpt_gemm *p);

/* The size of xt in floats; and the transpose of x into xt, which the forward pass reads, for the
 * inputs [first, last). */
int64_t dpt_gemm_transposed(const struct dpt_gemm *p);
void dpt_gemm_transpose(const struct dpt_gemm *p, const float *x, int64_t first, int64_t last,
                        float *xt);

/* For the outputs [first, last). bias: NULL: none. */
void dpt_gemm_forward(const struct dpt_gemm *p, const float *xt, const float *w, const float *bias,
                      int64_t first, int64_t last, float *scratch, float *y);
/* For the outputs [first, last). */
void dpt_gemm_weights(const struct dpt_gemm *p, const float *dy, const float *x, bool add,
                      int64_t first, int64_t last, float *scratch, float *dw);
/* For the inputs [first, last). */
void dpt_gemm_data(const struct dpt_gemm *p, const float *dy, const float *w, int64_t first,
                   int64_t last, float *scratch, float *dx);

/* db[o] (+)= sum_r dy[r][o], for the outputs [first, last). */
void dpt_gemm_bias(const struct dpt_gemm *p, const float *dy, bool add, int64_t first, int64_t last,
                   float *db);

/* The forward and backward pass of whole layers of at most DPT_SMALL weights. db, dx: NULL: not
 * wanted. */
enum { DPT_SMALL = 64 };
void dpt_small_forward(const struct dpt_gemm *p, const float *x, const float *w, const float *bias,
                       float *y);
void dpt_small_backward(const struct dpt_gemm *p, const float *dy, const float *x, const float *w,
                        bool add, float *dw, float *db, float *dx);

/*
 * One tile: c [8][16 v] (+)= the sum over k of a column of a by a row of b; v is 1, 2 or 3. a: 8
 * rows of k, STRIDED lda apart, LINES DPT_TILE_LINE; or TRANSPOSED [k][8]. b [k][16 v], aligned. c:
 * rows ldc apart. stream: past the caches, to lines that are aligned.
 */
enum { DPT_TILE_ROWS = 8, DPT_TILE_LANES = 16, DPT_TILE_MOST = 48, DPT_TILE_DEPTH = 512 };
enum { DPT_TILE_LINE = DPT_TILE_DEPTH + 16 };

enum dpt_tile_layout { DPT_TILE_STRIDED, DPT_TILE_LINES, DPT_TILE_TRANSPOSED };
enum dpt_tile_way { DPT_TILE_WRITE, DPT_TILE_ADD, DPT_TILE_STREAM };

/*
 * What will be read after this tile: for each 16 of k, `lines` lines `step` floats apart, and those
 * of the next 16 lie `block` floats further. Pieces of long rows lie on a page each, so the machine
 * does not foresee them; asked for all at once they would hold up the tile. NULL: nothing.
 */
struct dpt_tile_prefetch {
    const float *at;
    int64_t block, step;
    int lines;
};

typedef void dpt_tile(int64_t k, const float *a, int64_t lda, const float *b, enum dpt_tile_way way,
                      float *c, int64_t ldc, const struct dpt_tile_prefetch *prefetch);

/* c [m][n] (+)= a + b [m][width], b NULL: a; as a tile puts its sums where they belong. */
void dpt_tile_put(const float *a, const float *b, int64_t width, enum dpt_tile_way way, int64_t m,
                  int64_t n, float *c, int64_t ldc);

/* After tiles that went past the caches: other threads see them from here. */
void dpt_tile_fence(void);

/* Which tile for an instruction set, for the width v and the form of a. */
dpt_tile *dpt_tile_for(enum dpt_isa isa, int v, enum dpt_tile_layout layout);

#endif
