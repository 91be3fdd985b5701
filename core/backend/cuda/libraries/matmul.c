#include "core/backend/cuda/libraries/matmul.h"
#include "core/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * cuBLASLt's matrices are column-major, ours row-major. Memory read in the other order is the
 * transposed matrix: a row-major [rows][columns] with a pitch is a column-major columns x rows with
 * that leading dimension. So instead of D = A B, cuBLASLt is asked for D^T = B^T A^T, which needs
 * no copy of any of the three: our B is its first factor and our A its second, its m is the number
 * of our columns, its n that of our rows. A matrix that is transposed here is transposed there. A
 * bias, which cuBLASLt adds to the rows of its D, is added to our columns.
 */

#define FLAG(name) CUBLASLT_NUMERICAL_IMPL_FLAGS_##name

/* The types of a precision, and what an algorithm for it must not do. */
static const struct kind {
    cudaDataType_t type;
    cublasComputeType_t compute;
    uint64_t forbidden;
} kinds[DPT_PRECISIONS] = {
    [DPT_PRECISION_FP32] = {CUDA_R_32F, CUBLAS_COMPUTE_32F,
                            FLAG(TENSOR_OP_MASK) | FLAG(ACCUMULATOR_16F) | FLAG(INPUT_16F) |
                                FLAG(INPUT_16BF) | FLAG(INPUT_TF32)},
    [DPT_PRECISION_TF32] = {CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32,
                            FLAG(ACCUMULATOR_16F) | FLAG(INPUT_16F) | FLAG(INPUT_16BF)},
    [DPT_PRECISION_BF16] = {CUDA_R_16BF, CUBLAS_COMPUTE_32F, FLAG(ACCUMULATOR_16F)},
    [DPT_PRECISION_FP16] = {CUDA_R_16F, CUBLAS_COMPUTE_32F, FLAG(ACCUMULATOR_16F)},
};

static const cublasLtEpilogue_t epilogues[DPT_CUDA_EPILOGUES] = {
    [DPT_CUDA_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,
    [DPT_CUDA_BIASED] = CUBLASLT_EPILOGUE_BIAS,
    [DPT_CUDA_RELU] = CUBLASLT_EPILOGUE_RELU,
    [DPT_CUDA_BIASED_RELU] = CUBLASLT_EPILOGUE_RELU_BIAS,
};

enum { ALIGNMENT = 16, MAX_RESULTS = 64, WORDS = sizeof((cublasLtMatmulAlgo_t *)NULL)->data / 8 };
enum { MATRICES = 3 };

static const int64_t largest_workspace = 1 << 30;

/* How many algorithms were left out for which reason, for the message. */
struct rejected {
    int offered, numerics, scheme, workspace, failed;
};

void dpt_cuda_dense_gemm(const struct dpt_cuda_dense *dense, enum dpt_cuda_pass pass,
                         struct dpt_cuda_gemm *gemm)
{
    const bool canonical = dense->canonical && dense->area == 1;
    const struct dpt_cuda_gemm gemms[DPT_CUDA_PASSES] = {
        [DPT_CUDA_FORWARD] = {.rows = dense->n,
                              .columns = dense->y_pitch,
                              .depth = dense->x_pitch,
                              .b_transposed = true,
                              .a_pitch = dense->x_pitch,
                              .b_pitch = dense->x_pitch,
                              .d_pitch = dense->y_pitch,
                              .epilogue = dense->bias && dense->relu ? DPT_CUDA_BIASED_RELU
                                          : dense->bias              ? DPT_CUDA_BIASED
                                          : dense->relu              ? DPT_CUDA_RELU
                                                                     : DPT_CUDA_PLAIN},
        [DPT_CUDA_BACKWARD_DATA] = {.rows = dense->n,
                                    .columns = dense->x_pitch,
                                    .depth = dense->y_pitch,
                                    .a_pitch = dense->y_pitch,
                                    .b_pitch = dense->x_pitch,
                                    .d_pitch = dense->x_pitch},
        [DPT_CUDA_BACKWARD_FILTER] = {.rows = canonical ? dense->outputs : dense->y_pitch,
                                      .columns = canonical ? dense->inputs : dense->x_pitch,
                                      .depth = dense->n,
                                      .a_transposed = true,
                                      .a_pitch = dense->y_pitch,
                                      .b_pitch = dense->x_pitch,
                                      .d_pitch = canonical ? dense->inputs : dense->x_pitch,
                                      .wide = true},
    };

    *gemm = gemms[pass];
    gemm->precision = dense->precision;
}

static enum dpt_status set(const struct dpt_cuda_gemms *gemms, cublasLtMatmulDescAttributes_t name,
                           const void *value, size_t size, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = gemms->lib;

    return dpt_cublaslt_check(
        lib, lib->cublasLtMatmulDescSetAttribute(gemms->operation, name, value, size),
        "cublasLtMatmulDescSetAttribute", err);
}

/* Describes a matrix of `lines` lines of `length` elements in memory. */
static enum dpt_status make_layout(const struct dpt_cuda_library *lib, cudaDataType_t type,
                                   int64_t lines, int64_t length, int64_t pitch,
                                   cublasLtMatrixLayout_t *made, struct dpt_error *err)
{
    return dpt_cublaslt_check(
        lib, lib->cublasLtMatrixLayoutCreate(made, type, (uint64_t)length, (uint64_t)lines, pitch),
        "cublasLtMatrixLayoutCreate", err);
}

/* Makes the descriptors of a product with this epilogue. */
static enum dpt_status make_descriptors(const struct dpt_cuda_library *lib, cublasLtHandle_t handle,
                                        const struct dpt_cuda_gemm *p,
                                        enum dpt_cuda_epilogue epilogue, int most,
                                        struct dpt_cuda_gemms *gemms, struct dpt_error *err)
{
    const struct kind *kind = &kinds[p->precision];
    const cudaDataType_t result = p->wide ? CUDA_R_32F : kind->type;
    const cublasOperation_t first = p->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t fused = epilogues[epilogue];
    enum dpt_status status = DPT_OK;

    *gemms =
        (struct dpt_cuda_gemms){.lib = lib, .handle = handle, .gemm = *p, .epilogue = epilogue};
    DPT_TRY(DPT_ALLOCATE(gemms->algorithm, (size_t)most, "the algorithms of a product", err));
    DPT_CUBLASLT_TRY(lib, cublasLtMatmulDescCreate(&gemms->operation, kind->compute, CUDA_R_32F));
    DPT_TRY(set(gemms, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first, err));
    DPT_TRY(set(gemms, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second, err));
    DPT_TRY(set(gemms, CUBLASLT_MATMUL_DESC_EPILOGUE, &fused, sizeof fused, err));
    if (epilogue != DPT_CUDA_PLAIN && epilogue != DPT_CUDA_RELU) {
        /* The bias is not read before the product runs, but the heuristics ask for its
         * alignment. */
        gemms->bias = (const void *)(uintptr_t)ALIGNMENT;
        DPT_TRY(
            set(gemms, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &gemms->bias, sizeof gemms->bias, err));
    }
    DPT_TRY(make_layout(lib, kind->type, p->a_transposed ? p->depth : p->rows,
                        p->a_transposed ? p->rows : p->depth, p->a_pitch, &gemms->a, err));
    DPT_TRY(make_layout(lib, kind->type, p->b_transposed ? p->columns : p->depth,
                        p->b_transposed ? p->depth : p->columns, p->b_pitch, &gemms->b, err));
    DPT_TRY(make_layout(lib, result, p->rows, p->columns, p->d_pitch, &gemms->d, err));
out:
    return status;
}

/* The schemes by which the parts of a sum may be added. */
static uint32_t schemes_of(const struct dpt_cuda_gemm *p, bool reproducible)
{
    const bool narrow = !p->wide && kinds[p->precision].type != CUDA_R_32F;

    if (narrow) /* the other schemes add in D's type */
        return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE |
           (reproducible ? 0 : CUBLASLT_REDUCTION_SCHEME_INPLACE);
}

static enum dpt_status make_preference(const struct dpt_cuda_library *lib, uint32_t schemes,
                                       uint64_t workspace, cublasLtMatmulPreference_t *made,
                                       struct dpt_error *err)
{
    const uint32_t alignment = ALIGNMENT;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } rows[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment},
    };
    enum dpt_status status = DPT_OK;

    DPT_CUBLASLT_TRY(lib, cublasLtMatmulPreferenceCreate(made));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        DPT_CUBLASLT_TRY(lib, cublasLtMatmulPreferenceSetAttribute(*made, rows[i].name,
                                                                   rows[i].value, rows[i].size));
out:
    return status;
}

/* Returns an attribute of an algorithm's configuration, or 0 if it has none. */
static uint32_t configured(const struct dpt_cuda_library *lib, const cublasLtMatmulAlgo_t *algo,
                           cublasLtMatmulAlgoConfigAttributes_t name)
{
    uint32_t value = 0;
    size_t written;

    if (lib->cublasLtMatmulAlgoConfigGetAttribute == NULL ||
        lib->cublasLtMatmulAlgoConfigGetAttribute(algo, name, &value, sizeof value, &written) !=
            CUBLAS_STATUS_SUCCESS)
        return 0;
    return value;
}

/*
 * Clears the bits of an algorithm that cuBLASLt never writes: what the heuristics return has there
 * what lay on their stack, so that the tags of one algorithm, and with them the bytes of a
 * checkpoint, would differ from process to process. Version 13.1 leaves two bytes of word 4. They
 * are those that keep what was there before an algorithm of this number is initialised.
 */
static void clear_unwritten(const struct dpt_cuda_gemms *gemms, cublasLtMatmulAlgo_t *algo)
{
    const struct dpt_cuda_library *lib = gemms->lib;
    const struct kind *kind = &kinds[gemms->gemm.precision];
    const cudaDataType_t result = gemms->gemm.wide ? CUDA_R_32F : kind->type;
    const int id = (int)configured(lib, algo, CUBLASLT_ALGO_CONFIG_ID);
    cublasLtMatmulAlgo_t made[2];

    for (int k = 0; k < 2; k++) {
        memset(&made[k], k == 0 ? 0 : 0xff, sizeof made[k]);
        if (lib->cublasLtMatmulAlgoInit == NULL ||
            lib->cublasLtMatmulAlgoInit(gemms->handle, kind->compute, CUDA_R_32F, kind->type,
                                        kind->type, result, result, id,
                                        &made[k]) != CUBLAS_STATUS_SUCCESS)
            return;
    }
    for (int i = 0; i < WORDS; i++)
        algo->data[i] &= ~(made[0].data[i] ^ made[1].data[i]);
}

/* Fills in the description of an algorithm, and its tag. */
static void read_algorithm(const struct dpt_cuda_gemms *gemms,
                           const cublasLtMatmulHeuristicResult_t *result,
                           struct dpt_cuda_algorithm *a)
{
    const struct dpt_cuda_library *lib = gemms->lib;
    const cublasLtMatmulAlgo_t *algo = &a->algo;
    size_t written, used;
    int words = WORDS;

    *a = (struct dpt_cuda_algorithm){.algo = result->algo,
                                     .workspace = (int64_t)result->workspaceSize};
    clear_unwritten(gemms, &a->algo);
    a->split = (int32_t)configured(lib, algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    a->scheme = configured(lib, algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    if (lib->cublasLtMatmulAlgoCapGetAttribute == NULL ||
        lib->cublasLtMatmulAlgoCapGetAttribute(algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS,
                                               &a->numerics, sizeof a->numerics,
                                               &written) != CUBLAS_STATUS_SUCCESS)
        a->numerics = 0;
    while (words > 1 && algo->data[words - 1] == 0)
        words--;
    used = (size_t)snprintf(a->tag, sizeof a->tag,
                            "algo=%" PRIu32 " tile=%" PRIu32 " stages=%" PRIu32 " split=%" PRId32
                            " scheme=%" PRIu32 " cublaslt=%d data=",
                            configured(lib, algo, CUBLASLT_ALGO_CONFIG_ID),
                            configured(lib, algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
                            configured(lib, algo, CUBLASLT_ALGO_CONFIG_STAGES_ID), a->split,
                            a->scheme, lib->cublaslt);
    for (int i = 0; i < words; i++)
        used += (size_t)snprintf(a->tag + used, sizeof a->tag - used, "%s%" PRIx64,
                                 i > 0 ? "." : "", algo->data[i]);
}

bool dpt_cuda_algorithm_varies(const struct dpt_cuda_algorithm *a)
{
    return a->split > 1 && a->scheme & CUBLASLT_REDUCTION_SCHEME_INPLACE;
}

/* Adds an algorithm that the heuristics offer to the list if it is suitable. */
static void consider(struct dpt_cuda_gemms *gemms, const cublasLtMatmulHeuristicResult_t *result,
                     uint32_t schemes, bool varying, int64_t workspace, struct rejected *rejected)
{
    struct dpt_cuda_algorithm *a = &gemms->algorithm[gemms->n];

    rejected->offered++;
    if (result->state != CUBLAS_STATUS_SUCCESS) {
        rejected->failed++;
        return;
    }
    read_algorithm(gemms, result, a);
    if (a->numerics & kinds[gemms->gemm.precision].forbidden)
        rejected->numerics++;
    else if ((a->split > 1 && a->scheme & ~schemes) || (varying && !dpt_cuda_algorithm_varies(a)))
        rejected->scheme++;
    else if (a->workspace > workspace)
        rejected->workspace++;
    else
        gemms->n++;
}

/* Finds algorithms with this epilogue; finding none is not an error. */
static enum dpt_status search(const struct dpt_cuda_library *lib, cublasLtHandle_t handle,
                              const struct dpt_cuda_gemm *gemm, enum dpt_cuda_epilogue epilogue,
                              const struct dpt_cuda_plan_request *request, int most,
                              struct dpt_cuda_gemms *gemms, struct rejected *rejected,
                              struct dpt_error *err)
{
    const uint32_t schemes = schemes_of(gemm, request->reproducible);
    const int64_t workspace = request->workspace < 0 ? largest_workspace : request->workspace;
    cublasLtMatmulHeuristicResult_t *results = NULL;
    cublasLtMatmulPreference_t preference = NULL;
    enum dpt_status status = DPT_OK;
    cublasStatus_t offered;
    int n = 0;

    *rejected = (struct rejected){0};
    DPT_TRY(make_descriptors(lib, handle, gemm, epilogue, most, gemms, err));
    DPT_TRY(make_preference(lib, schemes, (uint64_t)workspace, &preference, err));
    DPT_TRY(DPT_ALLOCATE(results, MAX_RESULTS, "the algorithms of a product", err));
    offered =
        lib->cublasLtMatmulAlgoGetHeuristic(handle, gemms->operation, gemms->b, gemms->a, gemms->d,
                                            gemms->d, preference, MAX_RESULTS, results, &n);
    if (offered == CUBLAS_STATUS_NOT_SUPPORTED || offered == CUBLAS_STATUS_INVALID_VALUE)
        n = 0; /* the heuristics do not support such a product */
    else
        DPT_TRY(dpt_cublaslt_check(lib, offered, "cublasLtMatmulAlgoGetHeuristic", err));
    for (int i = 0; i < n && i < MAX_RESULTS && gemms->n < most; i++)
        consider(gemms, &results[i], schemes, request->varying, workspace, rejected);
out:
    dpt_free(results);
    if (preference != NULL)
        lib->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

enum dpt_status dpt_cuda_gemms_build(const struct dpt_cuda_library *lib, cublasLtHandle_t handle,
                                     const struct dpt_cuda_gemm *gemm,
                                     const struct dpt_cuda_plan_request *request, int most,
                                     struct dpt_cuda_gemms *gemms, struct dpt_error *err)
{
    enum dpt_cuda_epilogue epilogue = gemm->epilogue;
    enum dpt_status status = DPT_OK;
    struct rejected rejected;

    *gemms = (struct dpt_cuda_gemms){0};
    for (;; epilogue = DPT_CUDA_PLAIN) {
        DPT_TRY(search(lib, handle, gemm, epilogue, request, most, gemms, &rejected, err));
        if (gemms->n > 0 || epilogue == DPT_CUDA_PLAIN)
            break;
        dpt_cuda_gemms_release(gemms);
    }
    if (gemms->n == 0)
        status = dpt_fail(
            err, DPT_BAD_JOB,
            "cuBLASLt has no algorithm for a product of %" PRId64 " x %" PRId64 " x %" PRId64
            ": of %d that it offers, %d are of another precision, %d add up in another way, %d "
            "cannot do it after all, %d need more workspace",
            gemm->rows, gemm->columns, gemm->depth, rejected.offered, rejected.numerics,
            rejected.scheme, rejected.failed, rejected.workspace);
out:
    if (status != DPT_OK)
        dpt_cuda_gemms_release(gemms);
    return status;
}

/* Reads the version and the algorithm from a tag; false if the text is no tag. */
static bool parse_tag(const char *tag, int *version, cublasLtMatmulAlgo_t *algo)
{
    const char *at = strstr(tag, "cublaslt=");
    int used = 0, words = 0;

    *algo = (cublasLtMatmulAlgo_t){0};
    if (at == NULL || sscanf(at, "cublaslt=%d data=%n", version, &used) != 1 || used == 0)
        return false;
    for (at += used; words < WORDS; words++) {
        if (sscanf(at, "%16" SCNx64 "%n", &algo->data[words], &used) != 1)
            return false;
        at += used;
        if (*at == '\0')
            return true;
        if (*at++ != '.')
            return false;
    }
    return false;
}

enum dpt_status dpt_cuda_gemms_rebuild(const struct dpt_cuda_library *lib, cublasLtHandle_t handle,
                                       const struct dpt_cuda_gemm *gemm, const char *tag,
                                       struct dpt_cuda_gemms *gemms, struct dpt_error *err)
{
    cublasLtMatmulHeuristicResult_t result = {0};
    enum dpt_status status = DPT_OK;
    int version;

    *gemms = (struct dpt_cuda_gemms){0};
    if (!parse_tag(tag, &version, &result.algo))
        return dpt_fail(err, DPT_BAD_JOB, "'%s' is not the tag of a cuBLASLt algorithm", tag);
    if (version != lib->cublaslt)
        return dpt_fail(err, DPT_BAD_JOB,
                        "an algorithm of cuBLASLt %d.%d.%d cannot be taken by version %d.%d.%d",
                        version / 10000, version / 100 % 100, version % 100, lib->cublaslt / 10000,
                        lib->cublaslt / 100 % 100, lib->cublaslt % 100);
    DPT_TRY(make_descriptors(lib, handle, gemm, gemm->epilogue, 1, gemms, err));
    if (lib->cublasLtMatmulAlgoCheck(handle, gemms->operation, gemms->b, gemms->a, gemms->d,
                                     gemms->d, &result.algo, &result) != CUBLAS_STATUS_SUCCESS) {
        status = dpt_fail(err, DPT_BAD_JOB,
                          "cuBLASLt does not take the algorithm '%s' for a product of %" PRId64
                          " x %" PRId64 " x %" PRId64,
                          tag, gemm->rows, gemm->columns, gemm->depth);
        goto out;
    }
    read_algorithm(gemms, &result, &gemms->algorithm[0]);
    gemms->n = 1;
out:
    if (status != DPT_OK)
        dpt_cuda_gemms_release(gemms);
    return status;
}

void dpt_cuda_gemms_release(struct dpt_cuda_gemms *gemms)
{
    const cublasLtMatrixLayout_t layouts[MATRICES] = {gemms->a, gemms->b, gemms->d};

    for (int i = 0; i < MATRICES; i++) {
        if (layouts[i] != NULL)
            gemms->lib->cublasLtMatrixLayoutDestroy(layouts[i]);
    }
    if (gemms->operation != NULL)
        gemms->lib->cublasLtMatmulDescDestroy(gemms->operation);
    dpt_free(gemms->algorithm);
    *gemms = (struct dpt_cuda_gemms){0};
}

enum dpt_status dpt_cuda_gemms_run(struct dpt_cuda_gemms *gemms, int which,
                                   const struct dpt_cuda_factors *arrays, void *workspace,
                                   CUstream stream, struct dpt_error *err)
{
    const struct dpt_cuda_algorithm *a = &gemms->algorithm[which];
    const float one = 1, before = gemms->gemm.add;
    enum dpt_status status = DPT_OK;

    if (gemms->bias != NULL && gemms->bias != arrays->bias) {
        DPT_TRY(
            set(gemms, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &arrays->bias, sizeof arrays->bias, err));
        gemms->bias = arrays->bias;
    }
    DPT_CUBLASLT_TRY(gemms->lib, cublasLtMatmul(gemms->handle, gemms->operation, &one, arrays->b,
                                                gemms->b, arrays->a, gemms->a, &before, arrays->d,
                                                gemms->d, arrays->d, gemms->d, &a->algo, workspace,
                                                (size_t)a->workspace, (cudaStream_t)stream));
out:
    return status;
}
