/*
 * fake_matmul: what a call of the fake cublasLtMatmul computes, and by which algorithm. For the
 * fake libcublasLt only.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_MATMUL_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_MATMUL_H

#include "core/backend/cuda/tests/fake/fake.h"
#include "core/backend/cuda/tests/fake/fake_numbers.h"

#pragma GCC visibility push(default)
#include <cublasLt.h>
#pragma GCC visibility pop

/* A matrix as it lies in memory. */
struct fake_matrix {
    enum fake_type type;
    int64_t rows, cols, ld;
    bool by_rows;
};

struct fake_product {
    struct fake_matrix a, b, c, d;
    bool a_turned, b_turned, tf32;
    int epilogue;
    float alpha, beta;
    const float *alpha_at, *beta_at; /* on the device, or NULL */
    int64_t aux_ld;                  /* bits */
    void *bias, *aux;
    const void *at_a, *at_b, *at_c;
    void *at_d, *workspace;
    size_t workspace_bytes;
    int split;
    unsigned scheme; /* cublasLtReductionScheme_t */
    bool down;       /* sums from their ends */
    uint64_t noise;  /* added to the order in which parts meet */
};

/* Bytes from the first to the last element. */
size_t fake_matrix_bytes(const struct fake_matrix *m);
/* Rows, columns of the result, and the depth of its sums. */
int64_t fake_product_m(const struct fake_product *p);
int64_t fake_product_n(const struct fake_product *p);
int64_t fake_product_k(const struct fake_product *p);
void fake_product_run(void *gemm);

/* Bits of an epilogue. */
enum { FAKE_RELU = 2, FAKE_ADDS_BIAS = 4, FAKE_DRELU = 8, FAKE_SUMS_D = 16, FAKE_AUX = 128 };

/* --- descriptions: fake_cublaslt.c ------------------------------------------------------------ */

enum { FAKE_MAGIC = 0x6c74 };

/* As WRONG of the fake cuDNN. */
#define FAKE_WRONG(status, ...) (fakegpu_complain("cuBLASLt: " __VA_ARGS__), CUBLAS_STATUS_##status)

struct cublasLtContext {
    uint64_t magic;
    CUcontext context;
};

/* The objects to which the handles point; the opaque types are large enough in the library
 * itself. */
struct fake_operation {
    uint64_t magic;
    int32_t compute, scale, pointers, trans[3], epilogue, bias_type, sms;
    void *bias, *aux;
    int64_t aux_ld;
};

struct fake_layout {
    uint64_t magic;
    uint32_t type;
    int32_t order, batch;
    uint64_t rows, cols;
    int64_t ld, batch_stride;
};

struct fake_preference {
    uint64_t magic;
    uint32_t search, schemes, alignment[4], implementations;
    uint64_t workspace;
    float waves;
};

bool fake_is_alive(const void *object);

#endif
