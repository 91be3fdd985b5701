/* The fake cuBLASLt's algorithms: for which products they are, and their execution. */
#include <stdio.h>
#include <time.h>

#include "core/backend/cuda/tests/fake/fake_matmul.h"

enum { WORKSPACE_ALIGNMENT = 256 };

#define FLAG(name)     CUBLASLT_NUMERICAL_IMPL_FLAGS_##name
#define SCHEME(name)   CUBLASLT_REDUCTION_SCHEME_##name
#define EPILOGUE(name) CUBLASLT_EPILOGUE_##name

static bool type_of(uint32_t type, enum fake_type *known)
{
    *known = type == CUDA_R_32F ? FAKE_F32 : type == CUDA_R_16F ? FAKE_F16 : FAKE_B16;
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

static bool read_matrix(const void *given, struct fake_matrix *m)
{
    const struct fake_layout *l = given;

    if (!fake_is_alive(l) || !type_of(l->type, &m->type) || l->batch != 1 || l->rows == 0 ||
        l->cols == 0 || (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW))
        return false;
    m->rows = (int64_t)l->rows;
    m->cols = (int64_t)l->cols;
    m->ld = l->ld;
    m->by_rows = l->order == CUBLASLT_ORDER_ROW;
    return m->ld >= (m->by_rows ? m->cols : m->rows);
}

/* The epilogues that exist; bias gradients only if everything is fp32. */
static bool has_epilogue(const struct fake_product *p)
{
    static const int known[] = {
        EPILOGUE(DEFAULT),   EPILOGUE(RELU),          EPILOGUE(RELU_AUX), EPILOGUE(BIAS),
        EPILOGUE(RELU_BIAS), EPILOGUE(RELU_AUX_BIAS), EPILOGUE(DRELU),    EPILOGUE(DRELU_BGRAD),
        EPILOGUE(BGRADA),    EPILOGUE(BGRADB),
    };

    if (p->a.type != FAKE_F32 &&
        (p->epilogue == (int)EPILOGUE(BGRADA) || p->epilogue == (int)EPILOGUE(BGRADB)))
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i] == p->epilogue)
            return true;
    }
    return false;
}

static bool is_shaped(const struct fake_product *p)
{
    const int64_t k = p->b_turned ? p->b.cols : p->b.rows;

    return k == fake_product_k(p) && p->d.rows == fake_product_m(p) &&
           p->d.cols == fake_product_n(p) && p->c.rows == p->d.rows && p->c.cols == p->d.cols &&
           p->c.type == p->d.type;
}

static cublasStatus_t read_product(const struct fake_operation *o, const void *a, const void *b,
                                   const void *c, const void *d, struct fake_product *p)
{
    *p = (struct fake_product){.split = 1};
    if (!fake_is_alive(o) || !read_matrix(a, &p->a) || !read_matrix(b, &p->b) ||
        !read_matrix(c, &p->c) || !read_matrix(d, &p->d))
        return FAKE_WRONG(INVALID_VALUE, "a matrix or operation that is not described well");
    p->a_turned = o->trans[0] == CUBLAS_OP_T;
    p->b_turned = o->trans[1] == CUBLAS_OP_T;
    p->epilogue = o->epilogue;
    p->bias = o->bias;
    p->aux = o->aux;
    p->aux_ld = o->aux_ld;
    if (!is_shaped(p) || o->trans[2] != CUBLAS_OP_N)
        return FAKE_WRONG(INVALID_VALUE, "matrices that do not fit together");
    if (o->scale != CUDA_R_32F || p->a.type != p->b.type ||
        (p->d.type != p->a.type && p->d.type != FAKE_F32) || !has_epilogue(p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (o->bias_type >= 0) {
        enum fake_type type;

        if (!type_of((uint32_t)o->bias_type, &type) || type != p->d.type)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    p->tf32 = o->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p->a.type == FAKE_F32;
    if (o->compute != CUBLAS_COMPUTE_32F && o->compute != CUBLAS_COMPUTE_32F_PEDANTIC && !p->tf32)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- algorithms ------------------------------------------------------------------------------- */

static const struct algorithm {
    uint64_t id;
    bool tensor;   /* for TF32 and 16 bits, if all pitches are of whole vectors */
    bool unusable; /* offered, but then cannot be used */
    int split;
    unsigned scheme;
} algorithms[] = {
    {21, true, false, 1, SCHEME(NONE)},          {27, true, true, 1, SCHEME(NONE)},
    {26, true, false, 4, SCHEME(INPLACE)},       {24, true, false, 3, SCHEME(COMPUTE_TYPE)},
    {25, true, false, 2, SCHEME(OUTPUT_TYPE)},   {14, false, false, 4, SCHEME(INPLACE)},
    {11, false, false, 2, SCHEME(COMPUTE_TYPE)}, {12, false, false, 3, SCHEME(OUTPUT_TYPE)},
    {10, false, false, 1, SCHEME(NONE)},
};

enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

/* The words of an algorithm: its number, the alignment that it was promised, its purpose. The last
 * words are not written, as in cuBLASLt, so the heuristics' results have garbage there. */
enum { WORD_ID, WORD_ALIGNMENT, WORD_PROBLEM, WORD_GARBAGE };

static const struct algorithm *algorithm_of(const cublasLtMatmulAlgo_t *algo)
{
    for (int i = 0; i < ALGORITHMS; i++) {
        if (algo != NULL && algorithms[i].id == algo->data[WORD_ID])
            return &algorithms[i];
    }
    return NULL;
}

/* An algorithm is made for types, not for sizes. */
static uint64_t problem_of(const struct fake_product *p)
{
    return 1 + (uint64_t)p->a.type + 4 * (uint64_t)p->d.type + 16 * p->tf32 +
           32 * (uint64_t)p->epilogue;
}

static bool whole(const struct fake_matrix *m)
{
    return m->ld * (int64_t)fake_size(m->type) % 16 == 0;
}

static bool suits(const struct algorithm *a, const struct fake_product *p)
{
    const bool half = p->a.type != FAKE_F32;

    if (a->tensor)
        return (half || p->tf32) && whole(&p->a) && whole(&p->b) && whole(&p->d);
    return !half || a->split == 1;
}

static size_t workspace_of(const struct algorithm *a, const struct fake_product *p)
{
    return a->split > 1 ? (size_t)(a->split * p->d.rows * p->d.cols) * 4 : 0;
}

static uint64_t numerics_of(const struct algorithm *a, uint64_t problem)
{
    const uint64_t type = (problem - 1) % 4;
    const uint64_t input = type == FAKE_F16   ? FLAG(INPUT_16F)
                           : type == FAKE_B16 ? FLAG(INPUT_16BF)
                           : a->tensor        ? FLAG(INPUT_TF32)
                                              : FLAG(INPUT_32F);

    return (a->tensor ? FLAG(HMMA) : FLAG(FMA)) | FLAG(ACCUMULATOR_32F) | input;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t o,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t request, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *n)
{
    const struct fake_preference *w = (const struct fake_preference *)request;
    struct fake_product p;
    cublasStatus_t status;
    uint64_t alignment;

    FAKE(cublasLtMatmulAlgoGetHeuristic, CUBLAS_STATUS_NOT_SUPPORTED, "%d", most);
    *n = 0;
    if (!fake_is_alive(handle) || !fake_is_alive(w))
        return FAKE_WRONG(INVALID_VALUE, "no handle or no preference");
    status = read_product((const struct fake_operation *)o, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    alignment = w->alignment[0];
    for (int i = 1; i < 4; i++)
        alignment = w->alignment[i] < alignment ? w->alignment[i] : alignment;
    for (int i = 0; i < ALGORITHMS && *n < most; i++) {
        const struct algorithm *one = &algorithms[i];
        cublasLtMatmulHeuristicResult_t *r = &results[*n];

        if (!suits(one, &p) || workspace_of(one, &p) > w->workspace ||
            (one->split > 1 && !(one->scheme & w->schemes)) || (one->tensor && alignment < 16))
            continue;
        memset(r, 0, sizeof *r);
        r->algo.data[WORD_ID] = one->id;
        r->algo.data[WORD_ALIGNMENT] = alignment;
        r->algo.data[WORD_PROBLEM] = problem_of(&p);
        r->algo.data[WORD_GARBAGE] = (uintptr_t)results;
        r->workspaceSize = workspace_of(one, &p);
        r->state = one->unusable ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 0.5f;
        (*n)++;
    }
    return *n > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                      cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *algo)
{
    (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    FAKE(cublasLtMatmulAlgoInit, CUBLAS_STATUS_INVALID_VALUE, "%d", id);
    if (!fake_is_alive(handle) || algo == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    algo->data[WORD_ID] = (uint64_t)id;
    algo->data[WORD_ALIGNMENT] = algo->data[WORD_PROBLEM] = 0;
    for (size_t i = WORD_GARBAGE + 1; i < sizeof algo->data / sizeof *algo->data; i++)
        algo->data[i] = 0;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(const struct fake_product *p, const cublasLtMatmulAlgo_t *algo)
{
    const struct algorithm *a = algorithm_of(algo);

    return a != NULL && !a->unusable && suits(a, p) && algo->data[WORD_PROBLEM] == problem_of(p)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t o,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    cublasLtMatmulAlgo_t given;
    struct fake_product p;
    cublasStatus_t status;

    FAKE(cublasLtMatmulAlgoCheck, CUBLAS_STATUS_NOT_SUPPORTED, "%s", "");
    if (!fake_is_alive(handle) || algo == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    given = *algo; /* which may lie in *result */
    status = read_product((const struct fake_operation *)o, a, b, c, d, &p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check(&p, &given);
    if (status != CUBLAS_STATUS_SUCCESS || result == NULL)
        return status;
    memset(result, 0, sizeof *result);
    result->algo = given;
    result->workspaceSize = workspace_of(algorithm_of(&given), &p);
    result->wavesCount = 0.5f;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t give(const void *value, size_t bytes, void *to, size_t capacity,
                           size_t *written)
{
    if (written != NULL)
        *written = bytes;
    if (capacity < bytes)
        return capacity == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void *to, size_t capacity, size_t *written)
{
    const struct algorithm *a = algorithm_of(algo);
    uint32_t value;

    FAKE(cublasLtMatmulAlgoConfigGetAttribute, CUBLAS_STATUS_INVALID_VALUE, "%d", (int)name);
    if (a == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    value = name == CUBLASLT_ALGO_CONFIG_ID                 ? (uint32_t)a->id
            : name == CUBLASLT_ALGO_CONFIG_SPLITK_NUM       ? (uint32_t)a->split
            : name == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? a->scheme
                                                            : 1;
    return give(&value, sizeof value, to, capacity, written);
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t name, void *to,
                                                 size_t capacity, size_t *written)
{
    const struct algorithm *a = algorithm_of(algo);
    uint64_t numerics;

    FAKE(cublasLtMatmulAlgoCapGetAttribute, CUBLAS_STATUS_INVALID_VALUE, "%d", (int)name);
    if (a == NULL || name != CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS)
        return CUBLAS_STATUS_INVALID_VALUE;
    numerics = numerics_of(a, algo->data[WORD_PROBLEM]);
    return give(&numerics, sizeof numerics, to, capacity, written);
}

/* --- execution -------------------------------------------------------------------------------- */

static bool aligned(const void *at, uint64_t to)
{
    return (uintptr_t)at % to == 0;
}

static cublasStatus_t check_pointers(const struct fake_product *p, uint64_t alignment)
{
    if (!aligned(p->at_a, alignment) || !aligned(p->at_b, alignment) ||
        !aligned(p->at_d, alignment) || (p->beta != 0 && !aligned(p->at_c, alignment)))
        return FAKE_WRONG(NOT_SUPPORTED, "a matrix is not aligned to %llu bytes, as was promised",
                          (unsigned long long)alignment);
    if (p->workspace_bytes > 0 &&
        (p->workspace == NULL || !aligned(p->workspace, WORKSPACE_ALIGNMENT)))
        return FAKE_WRONG(INVALID_VALUE, "no workspace, or one that is not aligned to %d bytes",
                          WORKSPACE_ALIGNMENT);
    if (p->beta != 0 && p->at_c == p->at_d && memcmp(&p->c, &p->d, sizeof p->c) != 0)
        return FAKE_WRONG(INVALID_VALUE, "C is D, in another layout");
    return CUBLAS_STATUS_SUCCESS;
}

static void add_ranges(const struct fake_product *p, struct fakegpu_work *work)
{
    const bool summed = p->epilogue & FAKE_ADDS_BIAS || p->epilogue & FAKE_SUMS_D ||
                        p->epilogue == (int)EPILOGUE(BGRADA) ||
                        p->epilogue == (int)EPILOGUE(BGRADB);
    const int64_t n = p->epilogue == (int)EPILOGUE(BGRADB) ? p->d.cols : p->d.rows;

    fakegpu_add_range(work, p->at_a, fake_matrix_bytes(&p->a), FAKEGPU_DEVICE, false);
    fakegpu_add_range(work, p->at_b, fake_matrix_bytes(&p->b), FAKEGPU_DEVICE, false);
    fakegpu_add_range(work, p->at_d, fake_matrix_bytes(&p->d), FAKEGPU_DEVICE, true);
    if (p->beta != 0 || p->beta_at != NULL)
        fakegpu_add_range(work, p->at_c, fake_matrix_bytes(&p->c), FAKEGPU_DEVICE, false);
    if (summed)
        fakegpu_add_range(work, p->bias, (size_t)n * fake_size(p->d.type), FAKEGPU_DEVICE,
                          !(p->epilogue & FAKE_ADDS_BIAS));
    if (p->epilogue & FAKE_AUX)
        fakegpu_add_range(work, p->aux, (size_t)(p->aux_ld / 8 * p->d.cols), FAKEGPU_DEVICE, true);
    if (p->alpha_at != NULL)
        fakegpu_add_range(work, p->alpha_at, 4, FAKEGPU_EITHER, false);
    if (p->beta_at != NULL)
        fakegpu_add_range(work, p->beta_at, 4, FAKEGPU_EITHER, false);
    fakegpu_add_range(work, p->workspace, p->workspace_bytes, FAKEGPU_DEVICE, true);
}

/* Parts that are added in place come in any order. */
static uint64_t noise(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (fakegpu_chance() ^ (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15ull) >> 8;
}

static void run(void *data)
{
    struct fake_product *p = data;

    fakegpu_look("cuBLASLt", p->at_a, fake_matrix_bytes(&p->a));
    fakegpu_look("cuBLASLt", p->at_b, fake_matrix_bytes(&p->b));
    if (p->split > 1 && p->scheme == SCHEME(INPLACE))
        p->noise = noise();
    fake_product_run(p);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t o, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t bytes, cudaStream_t stream)
{
    const struct algorithm *one = algorithm_of(algo);
    struct fakegpu_work work = {.run = run};
    struct fake_product p;
    cublasStatus_t status;

    FAKE(cublasLtMatmul, CUBLAS_STATUS_EXECUTION_FAILED, "algorithm %lld",
         one != NULL ? (long long)one->id : -1);
    if (!fake_is_alive(handle) || handle->context != fakegpu_current())
        return FAKE_WRONG(NOT_INITIALIZED, "no handle, or one of another context");
    status =
        read_product((const struct fake_operation *)o, a_layout, b_layout, c_layout, d_layout, &p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check(&p, algo);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    p.at_a = a, p.at_b = b, p.at_c = c, p.at_d = d;
    if (((const struct fake_operation *)o)->pointers == CUBLASLT_POINTER_MODE_DEVICE)
        p.alpha_at = alpha, p.beta_at = beta;
    else
        p.alpha = *(const float *)alpha, p.beta = *(const float *)beta;
    p.workspace = workspace;
    p.workspace_bytes = workspace_of(one, &p);
    if (p.workspace_bytes > bytes)
        return FAKE_WRONG(INVALID_VALUE, "a workspace of %zu bytes, and the algorithm needs %zu",
                          bytes, p.workspace_bytes);
    p.split = one->split;
    p.scheme = one->scheme;
    p.down = p.tf32 || p.a.type != FAKE_F32;
    p.tf32 &= one->tensor;
    status = check_pointers(&p, algo->data[WORD_ALIGNMENT]);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    snprintf(work.name, sizeof work.name, "cuBLASLt's algorithm %lld", (long long)one->id);
    work.data = &p;
    work.bytes = sizeof p;
    add_ranges(&p, &work);
    return fakegpu_enqueue((CUstream)stream, &work) == CUDA_SUCCESS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
