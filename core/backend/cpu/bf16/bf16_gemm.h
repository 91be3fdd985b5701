/*
 * bf16_gemm: the products of gemm.h with operands in bf16, by bf16_tile.h's instructions.
 *
 * The small operands, x and dy, are packed once for all threads; the weights, which are large, are
 * read where they lie in fp32, and rounded in pieces that stay in the cache. As in gemm.h an
 * element's bits depend on neither threads nor ranges.
 */
#ifndef DPT_BACKEND_CPU_BF16_GEMM_H
#define DPT_BACKEND_CPU_BF16_GEMM_H

#include "core/backend/cpu/bf16/bf16_tile.h"
#include "core/backend/cpu/fp32/gemm.h"
#include "core/base/error.h"

enum { DPT_BF16_SEVERAL = 16 };

/* What an operand is packed for. */
enum dpt_bf16_operand {
    DPT_BF16_INPUTS,      /* x, for forward */
    DPT_BF16_GRADIENT,    /* dy, for data */
    DPT_BF16_INPUT_ROWS,  /* x, for weights */
    DPT_BF16_OUTPUT_ROWS, /* dy, for weights: from output first_output on */
    DPT_BF16_OPERANDS
};

struct dpt_bf16_gemm {
    struct dpt_gemm p;
    const struct dpt_bf16_kernels *kernels;
    /* All weights, packed before: worth it if few rows share the work. NULL: they are read from
     * w. */
    const float *forward_weights, *data_weights;
    /* Micro-batches of p.rows rows, at most DPT_BF16_SEVERAL, whose gradients of the weights are
     * summed from the first to the last, with the bits that sums of the gradients have: their
     * packed operands lie one after another. 0: one. */
    int32_t several;
    /* Where `weights` may write the sums of squares of its result's pieces, in their order
     * (dpt_batch.squares). NULL: nowhere. */
    double *squares;
};

/* Floats of a packed operand, and of each thread's workspace. */
int64_t dpt_bf16_gemm_packed(const struct dpt_gemm *p, enum dpt_bf16_operand operand);
int64_t dpt_bf16_gemm_scratch(const struct dpt_gemm *p);

/* Packs the columns [first, last) of an operand, from a multiple of 32 (counted from first_output)
 * up to one or to its end. */
void dpt_bf16_gemm_pack(const struct dpt_bf16_gemm *g, enum dpt_bf16_operand operand,
                        const float *from, int64_t first, int64_t last, float *packed);

/* Floats of the packed weights; and packs the weights of the outputs, or (`data`) inputs, [first,
 * last), from a multiple of 32 on. The whole layer must be there. */
int64_t dpt_bf16_gemm_packed_weights(const struct dpt_gemm *p, bool data);
void dpt_bf16_gemm_pack_weights(const struct dpt_bf16_gemm *g, bool data, const float *w,
                                int64_t first, int64_t last, float *packed);

/* Do what dpt_gemm_forward, dpt_gemm_weights and dpt_gemm_data do. weights: `first` is a multiple
 * of 16, counted from first_output. */
void dpt_bf16_gemm_forward(const struct dpt_bf16_gemm *g, const float *inputs, const float *w,
                           const float *bias, int64_t first, int64_t last, float *scratch,
                           float *y);
void dpt_bf16_gemm_weights(const struct dpt_bf16_gemm *g, const float *output_rows,
                           const float *input_rows, bool add, int64_t first, int64_t last,
                           float *scratch, float *dw);
void dpt_bf16_gemm_data(const struct dpt_bf16_gemm *g, const float *gradient, const float *w,
                        int64_t first, int64_t last, float *scratch, float *dx);

/* C [m][n] = A [m][k] B [k][n]. Errors: RANK. */
enum dpt_status dpt_bf16_product(const struct dpt_bf16_kernels *kernels, int64_t m, int64_t n,
                                 int64_t k, const float *a, const float *b, float *c,
                                 struct dpt_error *err);

#endif
