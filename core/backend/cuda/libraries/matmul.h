/*
 * matmul: dense layers, and matrix products in general, as cuBLASLt computes them.
 *
 * A matrix product D = A B (or D += A B) of row-major matrices is described by a struct
 * dpt_cuda_gemm; a dense layer makes three of them. dpt_cuda_gemms_build asks cuBLASLt's heuristics
 * for algorithms, leaves out those that are unsuitable, and keeps the others in heuristic order, as
 * plan.h does for convolutions: the first one is used if results must not depend on timings, else
 * the caller times them. A tag names an algorithm, and the algorithm can be built again from it.
 *
 * The products of a layer with inputs [n][area][pitch] (an image of h x w after a flatten: area = h
 * w, else 1) and weights as to_layout copies them, [padded outputs][area][padded inputs], are:
 *
 *     forward           Y [n][y_pitch]  = X W^T + bias, or ReLU of that
 *     backward data     dX [n][x_pitch] = dY W
 *     backward filter   dW [outputs][x_pitch] = dY^T X
 *
 * A, B, Y, dX and the bias, which has y_pitch elements, have the precision's type; dW is fp32 in
 * every precision. dW has the layout of the weights' copy (from_layout_f32 converts it, with the
 * padded inputs of the precision). If `canonical` is set and the area is 1 it has the arena's
 * layout, [outputs][inputs] without padding: then it can be written or added there directly, and no
 * layout kernel runs (which would also divide by the loss scale). The padding of X, W and dY must
 * be zero.
 *
 * Sums are fp32 in every precision, also between the parts of a sum (split-K): algorithms that add
 * parts in a 16-bit type are left out. fp32 is CUBLAS_COMPUTE_32F, by which cuBLAS promises 32 bits
 * or more throughout, never TF32; algorithms that report the use of tensor cores are left out too.
 *
 * Rules of cuBLASLt, as documented for CUDA 12 and 13:
 * - Pointers must be aligned to 16 bytes (the heuristics are told so), the workspace to 256. Any
 *   pitch works, but tensor cores are used only with pitches of whole vectors of 16 bytes, which
 *   dpt_cuda_pitch gives; a canonical gradient is not padded, so it may go without them.
 * - A bias has one element for each column of D, packed, of D's type. ReLU comes after it. GELU's
 *   epilogue is the tanh approximation, so it is not used here.
 * - Results have the same bits in each run of the same version on GPUs of the same architecture and
 * number of multiprocessors, as long as no two streams share a workspace. `reproducible` also
 * leaves
 *   out algorithms that add the parts of a sum in place, one after another.
 *
 * Without a GPU only dpt_cuda_dense_gemm works: cublasLtCreate fails there
 * (CUBLAS_STATUS_NOT_INITIALIZED), and there are no heuristics without a handle.
 *
 * Threads: what is built belongs to one thread at a time; a handle may be shared.
 */
#ifndef DPT_BACKEND_CUDA_MATMUL_H
#define DPT_BACKEND_CUDA_MATMUL_H

#include "core/backend/cuda/libraries/plan.h"

/* What is applied to a product before it is stored. */
enum dpt_cuda_epilogue {
    DPT_CUDA_PLAIN,
    DPT_CUDA_BIASED,      /* A B + bias, which has an element for each column */
    DPT_CUDA_RELU,        /* max(A B, 0) */
    DPT_CUDA_BIASED_RELU, /* max(A B + bias, 0) */
    DPT_CUDA_EPILOGUES
};

/* D [rows][columns] = A [rows][depth] B [depth][columns]. A pitch is the number of elements from
 * one line of the matrix in memory to the next. */
struct dpt_cuda_gemm {
    enum dpt_precision precision;
    int64_t rows, columns, depth;
    bool a_transposed, b_transposed; /* A is stored as [depth][rows], B as [columns][depth] */
    int64_t a_pitch, b_pitch, d_pitch;
    bool wide; /* D is fp32 whatever the precision */
    bool add;  /* D += A B; not with a bias or ReLU */
    enum dpt_cuda_epilogue epilogue;
};

/* A dense layer for n samples. */
struct dpt_cuda_dense {
    enum dpt_precision precision;
    int64_t n;
    int64_t inputs, outputs;  /* of the node, without padding */
    int64_t area;             /* pixels of its input; 1 if the input is not an image */
    int64_t x_pitch, y_pitch; /* elements of a sample, with padding: area * pitch, padded outputs */
    bool bias, relu;          /* to be fused into the forward pass */
    bool canonical;           /* the weights' gradient has the arena's layout; only with area 1 */
};

/* One algorithm for a product. */
struct dpt_cuda_algorithm {
    cublasLtMatmulAlgo_t algo;
    /* "algo=66 tile=23 stages=8 split=1 scheme=0 cublaslt=130000 data=…": a readable description,
     * then the version and the algorithm's 64 bytes, from which it is built again; cuBLASLt's
     * header allows to store them for use with the same version. */
    char tag[DPT_CUDA_TAG];
    int64_t workspace; /* bytes */
    int32_t split;     /* parts of each sum */
    uint32_t scheme;   /* how they are added: cublasLtReductionScheme_t */
    uint64_t numerics; /* CUBLASLT_NUMERICAL_IMPL_FLAGS_…; 0: unknown */
};

/* The algorithms for a product, and the descriptors that they use. Zero-initialise: {0}. */
struct dpt_cuda_gemms {
    const struct dpt_cuda_library *lib; /* borrowed */
    cublasLtHandle_t handle;            /* borrowed */
    struct dpt_cuda_gemm gemm;
    enum dpt_cuda_epilogue epilogue; /* what is fused into them: gemm.epilogue or PLAIN */
    struct dpt_cuda_algorithm *algorithm;
    int n;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    const void *bias; /* the address that `operation` holds */
};

/* Arrays on the device. bias: NULL if there is none. */
struct dpt_cuda_factors {
    const void *a, *b;
    void *d;
    const void *bias;
};

/* Describes the product of a dense layer in a pass. forward: a = X, b = W; backward data: a = dY,
 * b = W; backward filter: a = dY, b = X. */
void dpt_cuda_dense_gemm(const struct dpt_cuda_dense *dense, enum dpt_cuda_pass pass,
                         struct dpt_cuda_gemm *gemm);
/*
 * Finds at most `most` algorithms (request->workspace < 0 allows 1 GiB of workspace). The epilogue
 * is fused if cuBLASLt offers that, else gemms->epilogue is PLAIN. Errors: BAD_JOB: no algorithm is
 * suitable (the message says how many were offered and why each was left out); RANK.
 */
enum dpt_status dpt_cuda_gemms_build(const struct dpt_cuda_library *lib, cublasLtHandle_t handle,
                                     const struct dpt_cuda_gemm *gemm,
                                     const struct dpt_cuda_plan_request *request, int most,
                                     struct dpt_cuda_gemms *gemms, struct dpt_error *err);
/* Builds the one algorithm that a tag names, with gemm->epilogue fused. Errors: BAD_JOB: the text
 * is no tag, it is of another version of cuBLASLt, or cuBLASLt refuses it for this product here. */
enum dpt_status dpt_cuda_gemms_rebuild(const struct dpt_cuda_library *lib, cublasLtHandle_t handle,
                                       const struct dpt_cuda_gemm *gemm, const char *tag,
                                       struct dpt_cuda_gemms *gemms, struct dpt_error *err);
/* Whether an algorithm's results may change in the last bits from run to run. */
bool dpt_cuda_algorithm_varies(const struct dpt_cuda_algorithm *algorithm);
void dpt_cuda_gemms_release(struct dpt_cuda_gemms *gemms);

/* Enqueues algorithm number `which` on a stream, or adds it to the graph that is being captured
 * there. workspace: as many bytes as the algorithm needs, used by no other stream meanwhile.
 * Errors: RANK, INTERNAL. */
enum dpt_status dpt_cuda_gemms_run(struct dpt_cuda_gemms *gemms, int which,
                                   const struct dpt_cuda_factors *arrays, void *workspace,
                                   CUstream stream, struct dpt_error *err);

#endif
