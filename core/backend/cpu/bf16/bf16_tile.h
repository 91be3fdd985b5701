/*
 * bf16_tile: products of bf16 operands with sums in fp32, by the CPU's own instructions: AMX tiles
 * (tdpbf16ps), or AVX-512 BF16 (vdpbf16ps).
 *
 * Both take pairs of k: an operand's 32-bit word holds two of them, the even one in the lower half.
 *
 *     a  rows of 32 k (64 bytes), 16 of them per tile, which need not lie side by side
 *     b  [16 pairs of k][16 columns][2], 1 KiB, a tile
 *     c  [16][16] fp32, in rows that need not lie side by side
 *
 * An element of c is one chain of additions along k, the same whichever tile it stands in. The two
 * instructions add a pair's products in different orders, and so round differently. The packing
 * functions round fp32 to bf16 (bf16.h), and fill tiles with zeros outside the operand.
 */
#ifndef DPT_BACKEND_CPU_BF16_TILE_H
#define DPT_BACKEND_CPU_BF16_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/isa.h"

enum {
    DPT_BF16_SIDE = 16,  /* rows and columns of a tile of c */
    DPT_BF16_DEPTH = 32, /* k of a tile of a or b */
    DPT_BF16_TILE = 512, /* numbers in a tile of a or b */
};

/*
 * The numbers that a product of m x n tiles of c reads: for each tap, `steps` tiles along k.
 * Distances count bf16 numbers: a_row from row to row, a_tile from the first 16 rows to the next,
 * a_step and b_step along k, b_tile from the first 16 columns to the next, b_tap from tap to tap;
 * tap[i] is where a tap's a begins. c_tile: floats of c from the first 16 columns to the next.
 */
struct dpt_bf16_product {
    int m, n; /* 1 or 2 */
    int32_t taps;
    int64_t steps;
    const int64_t *tap;
    int64_t a_row, a_tile, a_step, b_tile, b_step, b_tap, c_tile;
};

struct dpt_bf16_kernels {
    enum dpt_isa isa;
    /* A tile's products are summed by themselves before c is added: with tiles of several products
     * c has the bits of the sum of these, but that it has no denormals. */
    bool adds_tiles;
    /* Around the products of a thread: sets up its tiles, and gives them back. depth: how many
     * numbers of a tile of a or b along k may be other than zero, an even number; the others need
     * not be read. */
    void (*begin)(int depth);
    void (*end)(void);
    /* c (+)= a b; rows of c are ldc floats apart. */
    void (*multiply)(const struct dpt_bf16_product *p, const uint16_t *a, const uint16_t *b,
                     bool add, float *c, int64_t ldc);
    /* Packs m x k numbers, at most 16 x 32, as a tile of a: of a matrix in rows of k, ldx apart, or
     * (`by_columns`) in rows of m. */
    void (*pack_a)(const float *x, int64_t ldx, int64_t m, int64_t k, uint16_t *a);
    void (*pack_a_columns)(const float *x, int64_t ldx, int64_t m, int64_t k, uint16_t *a);
    /* Packs k x n numbers, at most 32 x 16, as a tile of b: of a matrix in rows of n, or in rows of
     * k. */
    void (*pack_b)(const float *x, int64_t ldx, int64_t k, int64_t n, uint16_t *b);
    void (*pack_b_columns)(const float *x, int64_t ldx, int64_t k, int64_t n, uint16_t *b);
    /* to [m][n] (+)= a, or a + b if there is a b; rows of a and b have 32 floats, those of `to` are
     * ld apart. stream: past the caches; `to` and ld are whole lines of 16 floats. */
    void (*put)(const float *a, const float *b, bool add, bool stream, int64_t m, int64_t n,
                float *to, int64_t ld);
    /* What `put` does with a stream of 32 whole columns, and adds the square of each number to
     * lanes [m][32] (core/base/sum_of_squares.h). */
    void (*put_squared)(const float *a, const float *b, int64_t m, float *to, int64_t ld,
                        double *lanes);
};

/* The best of these instructions up to `most` that this machine has and the system lets the process
 * use; NULL: neither. */
const struct dpt_bf16_kernels *dpt_bf16_kernels(enum dpt_isa most);

/* The name of `kernels`, for messages: "AMX tiles". */
const char *dpt_bf16_name(const struct dpt_bf16_kernels *kernels);

#endif
