/*
 * gemm: the matrix products of dense layers, for ranges of rows and columns that the caller
 * chooses.
 *
 *     forward   y  [r][o]  = sum_i x[r][i] w[o][i] + b[o]
 *     weights   dw [o][i] (+)= sum_r dy[r][o] x[r][i]
 *     data      dx [r][i]  = sum_o dy[r][o] w[o][i]
 *
 * Two things make them faster than a general product here. The weights, which are large, are never
 * transposed, only copied in pieces that stay in the cache; x, which is small, is transposed
 * instead. And each product is split by outputs or inputs, so that threads share a layer without
 * sharing a sum: an element is always the same chain of additions, whichever thread computes it
 * together with whatever else, so its bits depend on neither threads nor ranges. There are versions
 * for AVX-512, AVX2 with FMA and plain C, chosen at the call; the first two give the same bits.
 *
 * Arrays need no alignment, except the workspace; NaN and infinities are propagated.
 */
#ifndef DPT_BACKEND_CPU_GEMM_H
#define DPT_BACKEND_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/isa.h"

struct dpt_gemm {
    int64_t rows, inputs, outputs;
    enum dpt_isa isa;
    /* Sums over rows (weights and bias) are computed for each `sub_batch` rows, and these partial
     * sums are added along the tree of core/comm/sums/tree.h over 0, 1, …; 0: all rows are one sum.
     * At most DPT_SUB_BATCHES. */
    int64_t sub_batch;
    /* If a rank has only some weights of a layer: w of forward, and dw, begin with first_output; w
     * of data, in rows of `row` inputs (0: all), begins with first_input. */
    int64_t first_output, first_input, row;
    bool rounds; /* dy of the bias' gradient is rounded to bf16 (bf16.h) */
};

/* Rows whose sums are partial sums. */
static inline int64_t dpt_gemm_sub_batch(const struct dpt_gemm *p)
{
    return p->sub_batch > 0 && p->sub_batch < p->rows ? p->sub_batch : p->rows;
}

enum { DPT_SUB_BATCH_LEVELS = 9, DPT_SUB_BATCHES = 1 << (DPT_SUB_BATCH_LEVELS - 1) };

/*
 * Adds the last of `top` partial sums as long as they are siblings in the tree, when `done`
 * sub-batches are summed (0: all of them), until `least` are left. sums: [top][width]. Returns how
 * many are left.
 */
int dpt_sub_batches_join(float *sums, int64_t width, int top, int64_t done, int least);

/* Floats of workspace that any of the three products needs for any range; one for each thread,
 * aligned to 64 bytes. */
int64_t dpt_gemm_scratch(const struct dpt_gemm *p);

/* Floats of xt; `transpose` writes the inputs [first, last) of x to xt, which forward reads. */
int64_t dpt_gemm_transposed(const struct dpt_gemm *p);
void dpt_gemm_transpose(const struct dpt_gemm *p, const float *x, int64_t first, int64_t last,
                        float *xt);

/* to[j][i] = from[i][j] for i < m, j < n. */
void dpt_transpose(const float *from, int64_t ld_from, int64_t m, int64_t n, float *to,
                   int64_t ld_to);

/* Computes the outputs [first, last). bias: NULL: none. */
void dpt_gemm_forward(const struct dpt_gemm *p, const float *xt, const float *w, const float *bias,
                      int64_t first, int64_t last, float *scratch, float *y);
/* Computes the weights of the outputs [first, last). */
void dpt_gemm_weights(const struct dpt_gemm *p, const float *dy, const float *x, bool add,
                      int64_t first, int64_t last, float *scratch, float *dw);
/* Computes the gradient of the inputs [first, last). */
void dpt_gemm_data(const struct dpt_gemm *p, const float *dy, const float *w, int64_t first,
                   int64_t last, float *scratch, float *dx);

/* db[o] (+)= sum_r dy[r][o], for the outputs [first, last). */
void dpt_gemm_bias(const struct dpt_gemm *p, const float *dy, bool add, int64_t first, int64_t last,
                   float *db);

/* Forward and backward of whole layers with at most DPT_SMALL weights. db, dx: NULL: not wanted. */
enum { DPT_SMALL = 64 };
void dpt_small_forward(const struct dpt_gemm *p, const float *x, const float *w, const float *bias,
                       float *y);
void dpt_small_backward(const struct dpt_gemm *p, const float *dy, const float *x, const float *w,
                        bool add, float *dw, float *db, float *dx);

/*
 * One tile: c [8][16 v] (+)= the sum over k of a column of a times a row of b; v is 1, 2 or 3. a: 8
 * rows of k numbers, `lda` apart (STRIDED) or DPT_TILE_LINE apart (LINES), or [k][8] (TRANSPOSED).
 * b: [k][16 v], aligned. c: rows ldc apart. DPT_TILE_STREAM writes past the caches, to aligned
 * lines.
 */
enum { DPT_TILE_ROWS = 8, DPT_TILE_LANES = 16, DPT_TILE_MOST = 48, DPT_TILE_DEPTH = 512 };
enum { DPT_TILE_LINE = DPT_TILE_DEPTH + 16 };

enum dpt_tile_layout { DPT_TILE_STRIDED, DPT_TILE_LINES, DPT_TILE_TRANSPOSED };
enum dpt_tile_way { DPT_TILE_WRITE, DPT_TILE_ADD, DPT_TILE_STREAM };

/*
 * The memory to prefetch for the next tile: for each 16 of k, `lines` cache lines `step` floats
 * apart; those of the next 16 are `block` floats further. Pieces of long rows are on different
 * pages, which the hardware prefetcher does not follow, and prefetching them all at once would
 * delay the tile. NULL: nothing.
 */
struct dpt_tile_prefetch {
    const float *at;
    int64_t block, step;
    int lines;
};

typedef void dpt_tile(int64_t k, const float *a, int64_t lda, const float *b, enum dpt_tile_way way,
                      float *c, int64_t ldc, const struct dpt_tile_prefetch *prefetch);

/* Writes or adds a + b to c [m][n] as a tile does; a and b: [m][width], b may be NULL. */
void dpt_tile_put(const float *a, const float *b, int64_t width, enum dpt_tile_way way, int64_t m,
                  int64_t n, float *c, int64_t ldc);

/* Must be called after tiles that wrote past the caches, so that other threads see them. */
void dpt_tile_fence(void);

/* How wide the blocks of n columns are, the last one apart: as even as can be. */
int64_t dpt_gemm_block(int64_t n);

/* The tile for an instruction set, the width v and the layout of a. */
dpt_tile *dpt_tile_for(enum dpt_isa isa, int v, enum dpt_tile_layout layout);

#endif
