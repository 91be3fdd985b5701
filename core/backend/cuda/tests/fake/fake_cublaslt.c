/* The fake cuBLASLt's handles, and descriptions of products. */
#include <stdio.h>
#include <stdlib.h>

#include "core/backend/cuda/tests/fake/fake_matmul.h"

enum { VERSION = CUDA_VERSION / 1000 * 10000 };

/* The rows of a description: each has a number and the member that it names. */
struct member {
    int name;
    size_t at, bytes;
};
#define EPILOGUE(name) CUBLASLT_EPILOGUE_##name
#define SCHEME(name)   CUBLASLT_REDUCTION_SCHEME_##name
#define MEMBER(number, type, member)                                                               \
    {                                                                                              \
        number, offsetof(struct type, member), sizeof((struct type *)NULL)->member                 \
    }

static const struct member operation_members[] = {
    MEMBER(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, fake_operation, compute),
    MEMBER(CUBLASLT_MATMUL_DESC_SCALE_TYPE, fake_operation, scale),
    MEMBER(CUBLASLT_MATMUL_DESC_POINTER_MODE, fake_operation, pointers),
    MEMBER(CUBLASLT_MATMUL_DESC_TRANSA, fake_operation, trans[0]),
    MEMBER(CUBLASLT_MATMUL_DESC_TRANSB, fake_operation, trans[1]),
    MEMBER(CUBLASLT_MATMUL_DESC_TRANSC, fake_operation, trans[2]),
    MEMBER(CUBLASLT_MATMUL_DESC_EPILOGUE, fake_operation, epilogue),
    MEMBER(CUBLASLT_MATMUL_DESC_BIAS_POINTER, fake_operation, bias),
    MEMBER(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, fake_operation, bias_type),
    MEMBER(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, fake_operation, aux),
    MEMBER(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, fake_operation, aux_ld),
    MEMBER(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, fake_operation, sms),
    {-1, 0, 0},
};

static const struct member layout_members[] = {
    MEMBER(CUBLASLT_MATRIX_LAYOUT_TYPE, fake_layout, type),
    MEMBER(CUBLASLT_MATRIX_LAYOUT_ORDER, fake_layout, order),
    MEMBER(CUBLASLT_MATRIX_LAYOUT_ROWS, fake_layout, rows),
    MEMBER(CUBLASLT_MATRIX_LAYOUT_COLS, fake_layout, cols),
    MEMBER(CUBLASLT_MATRIX_LAYOUT_LD, fake_layout, ld),
    MEMBER(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, fake_layout, batch),
    MEMBER(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, fake_layout, batch_stride),
    {-1, 0, 0},
};

static const struct member preference_members[] = {
    MEMBER(CUBLASLT_MATMUL_PREF_SEARCH_MODE, fake_preference, search),
    MEMBER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, fake_preference, workspace),
    MEMBER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, fake_preference, schemes),
    MEMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, fake_preference, alignment[0]),
    MEMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, fake_preference, alignment[1]),
    MEMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, fake_preference, alignment[2]),
    MEMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, fake_preference, alignment[3]),
    MEMBER(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, fake_preference, waves),
    MEMBER(CUBLASLT_MATMUL_PREF_IMPL_MASK, fake_preference, implementations),
    {-1, 0, 0},
};

bool fake_is_alive(const void *object)
{
    return object != NULL && *(const uint64_t *)object == FAKE_MAGIC;
}

static cublasStatus_t set(void *object, const struct member *members, int name, const void *from,
                          size_t bytes)
{
    if (!fake_is_alive(object) || from == NULL)
        return FAKE_WRONG(INVALID_VALUE, "an attribute of nothing, or without a value");
    while (members->name >= 0 && members->name != name)
        members++;
    if (members->name < 0 || members->bytes != bytes)
        return FAKE_WRONG(INVALID_VALUE, "attribute %d of %zu bytes is not known here", name,
                          bytes);
    memcpy((char *)object + members->at, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t make(void *made, const void *from, size_t bytes)
{
    void *object = malloc(bytes);

    if (object == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(object, from, bytes);
    memcpy(made, &object, sizeof object);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(void *object)
{
    if (!fake_is_alive(object))
        return FAKE_WRONG(INVALID_VALUE, "what is destroyed is not there");
    *(uint64_t *)object = 0;
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

/* --- descriptions ----------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    const struct fake_operation o = {.magic = FAKE_MAGIC,
                                     .compute = (int32_t)compute,
                                     .scale = (int32_t)scale,
                                     .epilogue = EPILOGUE(DEFAULT),
                                     .bias_type = -1};

    FAKE(cublasLtMatmulDescCreate, CUBLAS_STATUS_ALLOC_FAILED, "%d", (int)compute);
    return make(made, &o, sizeof o);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t o)
{
    FAKE(cublasLtMatmulDescDestroy, CUBLAS_STATUS_INVALID_VALUE, "%s", "");
    return destroy(o);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t o,
                                              cublasLtMatmulDescAttributes_t name, const void *from,
                                              size_t bytes)
{
    FAKE(cublasLtMatmulDescSetAttribute, CUBLAS_STATUS_INVALID_VALUE, "%d", (int)name);
    return set(o, operation_members, (int)name, from, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    const struct fake_layout l = {.magic = FAKE_MAGIC,
                                  .type = (uint32_t)type,
                                  .order = CUBLASLT_ORDER_COL,
                                  .batch = 1,
                                  .rows = rows,
                                  .cols = cols,
                                  .ld = ld};

    FAKE(cublasLtMatrixLayoutCreate, CUBLAS_STATUS_ALLOC_FAILED, "%d %llux%llu", (int)type,
         (unsigned long long)rows, (unsigned long long)cols);
    return make(made, &l, sizeof l);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    FAKE(cublasLtMatrixLayoutDestroy, CUBLAS_STATUS_INVALID_VALUE, "%s", "");
    return destroy(l);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void *from, size_t bytes)
{
    FAKE(cublasLtMatrixLayoutSetAttribute, CUBLAS_STATUS_INVALID_VALUE, "%d", (int)name);
    return set(l, layout_members, (int)name, from, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    const struct fake_preference p = {
        .magic = FAKE_MAGIC, .schemes = SCHEME(MASK), .alignment = {256, 256, 256, 256}};

    FAKE(cublasLtMatmulPreferenceCreate, CUBLAS_STATUS_ALLOC_FAILED, "%s", "");
    return make(made, &p, sizeof p);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    FAKE(cublasLtMatmulPreferenceDestroy, CUBLAS_STATUS_INVALID_VALUE, "%s", "");
    return destroy(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *from, size_t bytes)
{
    FAKE(cublasLtMatmulPreferenceSetAttribute, CUBLAS_STATUS_INVALID_VALUE, "%d", (int)name);
    return set(p, preference_members, (int)name, from, bytes);
}

/* --- handles ---------------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDA_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    static const struct {
        cublasStatus_t status;
        const char *text;
    } texts[] = {
#define TEXT(name) {CUBLAS_STATUS_##name, "CUBLAS_STATUS_" #name}
        TEXT(SUCCESS),          TEXT(NOT_INITIALIZED), TEXT(ALLOC_FAILED),
        TEXT(INVALID_VALUE),    TEXT(ARCH_MISMATCH),   TEXT(MAPPING_ERROR),
        TEXT(EXECUTION_FAILED), TEXT(INTERNAL_ERROR),  TEXT(NOT_SUPPORTED),
#undef TEXT
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].status == status)
            return texts[i].text;
    }
    return "CUBLAS_STATUS of another kind";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    const struct cublasLtContext h = {FAKE_MAGIC, fakegpu_current()};

    FAKE(cublasLtCreate, CUBLAS_STATUS_NOT_INITIALIZED, "%s", "");
    if (h.context == NULL)
        return FAKE_WRONG(NOT_INITIALIZED, "a handle without a context");
    return make(handle, &h, sizeof h);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    FAKE(cublasLtDestroy, CUBLAS_STATUS_NOT_INITIALIZED, "%s", "");
    return destroy(handle);
}
