/* Tests what is asked of cuBLASLt for a product and how its answers are used, with answers made up
 * here. The attributes' names and sizes are tested with the real library, which takes them without
 * a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/cuda/libraries/matmul.h"
#include "core/backend/tests/net.h"

static struct dpt_cuda_gemm square_product(enum dpt_precision precision)
{
    return (struct dpt_cuda_gemm){.precision = precision,
                                  .rows = 64,
                                  .columns = 64,
                                  .depth = 64,
                                  .b_transposed = true,
                                  .a_pitch = 64,
                                  .b_pitch = 64,
                                  .d_pitch = 64};
}

/* A library that answers as the test sets it. */
static struct {
    cublasLtMatmulHeuristicResult_t results[4];
    int n;
    cublasStatus_t status, check;
    bool knows_epilogues;
    /* The requests that it got. */
    uint32_t epilogue, schemes, alignment;
    uint64_t workspace;
    int alive, searches;
} told;

static cublasStatus_t made(void *descriptor)
{
    *(void **)descriptor = &told;
    told.alive++;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t ended(void)
{
    told.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t make_operation(cublasLtMatmulDesc_t *d, cublasComputeType_t c,
                                     cudaDataType_t t)
{
    (void)c;
    assert_int_equal(t, CUDA_R_32F);
    return made(d);
}

static cublasStatus_t end_operation(cublasLtMatmulDesc_t d)
{
    (void)d;
    return ended();
}

static cublasStatus_t set_operation(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name,
                                    const void *value, size_t size)
{
    (void)d;
    if (name == CUBLASLT_MATMUL_DESC_EPILOGUE)
        memcpy(&told.epilogue, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t make_matrix_layout(cublasLtMatrixLayout_t *d, cudaDataType t, uint64_t rows,
                                         uint64_t columns, int64_t pitch)
{
    (void)t, (void)columns;
    assert_true((int64_t)rows <= pitch);
    return made(d);
}

static cublasStatus_t end_matrix_layout(cublasLtMatrixLayout_t d)
{
    (void)d;
    return ended();
}

static cublasStatus_t make_preference(cublasLtMatmulPreference_t *d)
{
    return made(d);
}

static cublasStatus_t end_preference(cublasLtMatmulPreference_t d)
{
    (void)d;
    return ended();
}

static cublasStatus_t set_preference(cublasLtMatmulPreference_t d,
                                     cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                     size_t size)
{
    (void)d;
    if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&told.schemes, value, size);
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&told.workspace, value, size);
    if (name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        memcpy(&told.alignment, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t answer(cublasLtHandle_t h, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a,
                             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                             cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t p, int most,
                             cublasLtMatmulHeuristicResult_t results[], int *n)
{
    (void)h, (void)o, (void)a, (void)b, (void)c, (void)d, (void)p;
    told.searches++;
    *n = 0;
    if (told.status != CUBLAS_STATUS_SUCCESS)
        return told.status;
    for (; *n < told.n && *n < most; (*n)++)
        results[*n] = told.results[*n];
    if (told.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !told.knows_epilogues)
        *n = 0;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_algorithm(cublasLtHandle_t h, cublasLtMatmulDesc_t o,
                                      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                      const cublasLtMatmulAlgo_t *algo,
                                      cublasLtMatmulHeuristicResult_t *result)
{
    (void)h, (void)o, (void)a, (void)b, (void)c, (void)d, (void)algo;
    result->workspaceSize = 4711;
    return told.check;
}

/* Writes all words but the upper half of word 5. */
static cublasStatus_t initialise(cublasLtHandle_t h, cublasComputeType_t compute, cudaDataType_t s,
                                 cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
                                 cudaDataType_t d, int id, cublasLtMatmulAlgo_t *algo)
{
    (void)h, (void)compute, (void)s, (void)a, (void)b, (void)c, (void)d;
    for (int i = 0; i < 8; i++)
        algo->data[i] = i == 0 ? (uint64_t)id : i == 5 ? algo->data[i] & ~UINT64_C(0xffffffff) : 0;
    return CUBLAS_STATUS_SUCCESS;
}

/* Algorithms made up here: they have words for the split, the scheme and the numerics. */
static cublasStatus_t configuration(const cublasLtMatmulAlgo_t *algo,
                                    cublasLtMatmulAlgoConfigAttributes_t name, void *value,
                                    size_t size, size_t *written)
{
    const uint32_t found = name == CUBLASLT_ALGO_CONFIG_ID                 ? (uint32_t)algo->data[0]
                           : name == CUBLASLT_ALGO_CONFIG_SPLITK_NUM       ? (uint32_t)algo->data[1]
                           : name == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? (uint32_t)algo->data[2]
                                                                           : 0;

    assert_int_equal(size, sizeof found);
    memcpy(value, &found, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t capability(const cublasLtMatmulAlgo_t *algo,
                                 cublasLtMatmulAlgoCapAttributes_t name, void *value, size_t size,
                                 size_t *written)
{
    assert_int_equal(name, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS);
    memcpy(value, &algo->data[3], size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

static const char *status_text(cublasStatus_t status)
{
    (void)status;
    return "some text";
}

static const struct dpt_cuda_library telling = {
    .cublaslt = 130102,
    .cublasLtMatmulDescCreate = make_operation,
    .cublasLtMatmulDescDestroy = end_operation,
    .cublasLtMatmulDescSetAttribute = set_operation,
    .cublasLtMatrixLayoutCreate = make_matrix_layout,
    .cublasLtMatrixLayoutDestroy = end_matrix_layout,
    .cublasLtMatmulPreferenceCreate = make_preference,
    .cublasLtMatmulPreferenceDestroy = end_preference,
    .cublasLtMatmulPreferenceSetAttribute = set_preference,
    .cublasLtMatmulAlgoGetHeuristic = answer,
    .cublasLtMatmulAlgoCheck = check_algorithm,
    .cublasLtMatmulAlgoInit = initialise,
    .cublasLtMatmulAlgoConfigGetAttribute = configuration,
    .cublasLtMatmulAlgoCapGetAttribute = capability,
    .cublasLtGetStatusString = status_text,
};

static cublasLtMatmulHeuristicResult_t algorithm(uint64_t id, uint64_t split, uint64_t scheme,
                                                 uint64_t numerics, size_t workspace)
{
    return (cublasLtMatmulHeuristicResult_t){.algo = {{id, split, scheme, numerics}},
                                             .workspaceSize = workspace};
}

/* The bytes that cuBLASLt leaves unwritten in an algorithm are in no tag, so that tags do not
 * differ from process to process; the bytes that it writes are. */
static void tags_hold_what_is_written(void **state)
{
    static const uint64_t words[3] = {0x100000007, 0x200000007, 0x100000008};
    const struct dpt_cuda_plan_request request = {.reproducible = true, .workspace = -1};
    const struct dpt_cuda_gemm p = square_product(DPT_PRECISION_FP32);
    struct dpt_cuda_gemms gemms[3];
    struct dpt_error err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        memset(&told, 0, sizeof told);
        told.results[0] = algorithm(1, 1, 0, CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA, 0);
        told.results[0].algo.data[5] = words[i];
        told.n = 1;
        assert_int_equal(dpt_cuda_gemms_build(&telling, NULL, &p, &request, 1, &gemms[i], &err),
                         DPT_OK);
    }
    assert_string_equal(gemms[0].algorithm[0].tag, gemms[1].algorithm[0].tag);
    assert_string_not_equal(gemms[0].algorithm[0].tag, gemms[2].algorithm[0].tag);
    for (int i = 0; i < 3; i++)
        dpt_cuda_gemms_release(&gemms[i]);
}

/* Each precision refuses algorithms that compute in another one; the order of the others stays. */
static void unsuited_algorithms(void **state)
{
    const struct dpt_cuda_plan_request request = {.reproducible = true, .workspace = 1000};
    struct dpt_cuda_gemms gemms;
    struct dpt_cuda_gemm p;
    struct dpt_error err;

    (void)state;
    memset(&told, 0, sizeof told);
    told.results[0] = algorithm(1, 1, 0, CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA, 0);
    told.results[1] =
        algorithm(2, 4, CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA, 0);
    told.results[2] = algorithm(3, 1, 0, CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA, 1001);
    told.results[3] = algorithm(4, 4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA, 1000);
    told.n = 4;
    p = square_product(DPT_PRECISION_FP32);
    assert_int_equal(dpt_cuda_gemms_build(&telling, NULL, &p, &request, 4, &gemms, &err), DPT_OK);
    assert_int_equal(gemms.n, 1);
    assert_int_equal(gemms.algorithm[0].algo.data[0], 4);
    assert_int_equal(gemms.algorithm[0].split, 4);
    assert_int_equal(told.workspace, 1000);
    assert_int_equal(told.alignment, 16);
    assert_false(told.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE);
    dpt_cuda_gemms_release(&gemms);
    /* tf32 needs tensor cores; in place is fine if bits need not repeat */
    p.precision = DPT_PRECISION_TF32;
    assert_int_equal(dpt_cuda_gemms_build(
                         &telling, NULL, &p,
                         &(struct dpt_cuda_plan_request){.reproducible = false, .workspace = -1}, 3,
                         &gemms, &err),
                     DPT_OK);
    assert_int_equal(gemms.n, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gemms.algorithm[i].algo.data[0], i + 1);
    assert_true(told.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE);
    dpt_cuda_gemms_release(&gemms);
    /* parts of a bf16 result must meet in fp32 */
    p.precision = DPT_PRECISION_BF16;
    assert_int_equal(dpt_cuda_gemms_build(
                         &telling, NULL, &p,
                         &(struct dpt_cuda_plan_request){.reproducible = false, .workspace = -1}, 4,
                         &gemms, &err),
                     DPT_OK);
    assert_int_equal(told.schemes, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    assert_int_equal(gemms.n, 3);
    assert_int_equal(gemms.algorithm[1].algo.data[0], 3);
    dpt_cuda_gemms_release(&gemms);
    assert_int_equal(told.alive, 0);
}

static void nothing_suits(void **state)
{
    const struct dpt_cuda_plan_request request = {.reproducible = true, .workspace = 0};
    struct dpt_cuda_gemms gemms;
    struct dpt_cuda_gemm p;
    struct dpt_error err;

    (void)state;
    memset(&told, 0, sizeof told);
    told.results[0] = algorithm(1, 1, 0, CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA, 0);
    told.results[1] = algorithm(2, 1, 0, CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA, 1);
    told.results[2].state = CUBLAS_STATUS_NOT_SUPPORTED;
    told.n = 3;
    p = square_product(DPT_PRECISION_FP32);
    assert_int_equal(dpt_cuda_gemms_build(&telling, NULL, &p, &request, 4, &gemms, &err),
                     DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "64 x 64 x 64: of 3 that it offers, 1 are of another"));
    assert_null(gemms.algorithm);
    told.status = CUBLAS_STATUS_NOT_SUPPORTED; /* "no heuristic for this": none are offered */
    assert_int_equal(dpt_cuda_gemms_build(&telling, NULL, &p, &request, 4, &gemms, &err),
                     DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "of 0 that it offers"));
    told.status = CUBLAS_STATUS_EXECUTION_FAILED; /* that is the device's error */
    assert_int_equal(dpt_cuda_gemms_build(&telling, NULL, &p, &request, 4, &gemms, &err), DPT_RANK);
    assert_int_equal(told.alive, 0);
}

/* An epilogue that is not offered is left to the caller, which is reported. */
static void epilogues_may_be_missing(void **state)
{
    const struct dpt_cuda_plan_request request = {.reproducible = false, .workspace = -1};
    struct dpt_cuda_gemms gemms;
    struct dpt_cuda_gemm p;
    struct dpt_error err;

    (void)state;
    memset(&told, 0, sizeof told);
    told.results[0] = algorithm(1, 1, 0, 0, 0);
    told.n = 1;
    for (int i = 0; i < 2 * DPT_CUDA_EPILOGUES; i++) {
        const enum dpt_cuda_epilogue asked = (enum dpt_cuda_epilogue)(i / 2);

        told.knows_epilogues = i % 2;
        told.searches = 0;
        p = square_product(DPT_PRECISION_BF16);
        p.epilogue = asked;
        assert_int_equal(dpt_cuda_gemms_build(&telling, NULL, &p, &request, 4, &gemms, &err),
                         DPT_OK);
        assert_int_equal(gemms.epilogue, told.knows_epilogues ? asked : DPT_CUDA_PLAIN);
        assert_int_equal(told.searches, 1 + (asked != DPT_CUDA_PLAIN && !told.knows_epilogues));
        dpt_cuda_gemms_release(&gemms);
    }
    assert_int_equal(told.alive, 0);
}

/* A tag is the algorithm; a tag of another version, or one that is garbled or refused by the
 * library, is an error. */
static void tags(void **state)
{
    static const char *const wrong[] = {"",
                                        "algo=1",
                                        "cublaslt=130102 data=",
                                        "cublaslt=130102 data=x",
                                        "cublaslt=x data=1",
                                        "cublaslt=130102 data=1.",
                                        "cublaslt=130102 data=1.2.3.4.5.6.7.8.9",
                                        "cublaslt=130102 data=1 2",
                                        "cublaslt=130000 data=1"};
    struct dpt_cuda_gemms gemms, again;
    struct dpt_cuda_gemm p;
    struct dpt_error err;

    (void)state;
    memset(&told, 0, sizeof told);
    told.n = 1;
    p = square_product(DPT_PRECISION_FP16);
    for (int seed = 0; seed < 100; seed++) {
        struct draw d = {(uint64_t)seed};

        told.results[0] = algorithm((uint64_t)seed, 1, 0, 0, 0);
        for (int i = 4; i < draw_int(&d, 4, 8); i++)
            told.results[0].algo.data[i] = draw_bits(&d) >> draw_int(&d, 0, 63);
        assert_int_equal(dpt_cuda_gemms_build(
                             &telling, NULL, &p,
                             &(struct dpt_cuda_plan_request){.reproducible = true, .workspace = -1},
                             1, &gemms, &err),
                         DPT_OK);
        assert_true(strlen(gemms.algorithm[0].tag) < DPT_CUDA_TAG - 1);
        assert_int_equal(
            dpt_cuda_gemms_rebuild(&telling, NULL, &p, gemms.algorithm[0].tag, &again, &err),
            DPT_OK);
        assert_memory_equal(&again.algorithm[0].algo, &gemms.algorithm[0].algo,
                            sizeof(cublasLtMatmulAlgo_t));
        assert_string_equal(again.algorithm[0].tag, gemms.algorithm[0].tag);
        assert_int_equal(again.algorithm[0].workspace, 4711);
        dpt_cuda_gemms_release(&again);
        dpt_cuda_gemms_release(&gemms);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(dpt_cuda_gemms_rebuild(&telling, NULL, &p, wrong[i], &again, &err),
                         DPT_BAD_JOB);
    told.check = CUBLAS_STATUS_NOT_SUPPORTED;
    assert_int_equal(
        dpt_cuda_gemms_rebuild(&telling, NULL, &p, "cublaslt=130102 data=1", &again, &err),
        DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "does not take the algorithm"));
    assert_int_equal(told.alive, 0);
}

/* The real library makes descriptors without a GPU, and looks at the name and the size of each
 * attribute; only the search needs a GPU. */
static void attributes(void **state)
{
    const struct dpt_cuda_plan_request request = {.reproducible = true, .workspace = -1};
    struct dpt_cuda_library lib = {0};
    struct dpt_cuda_gemms gemms;
    struct dpt_cuda_gemm p;
    struct dpt_error err;

    (void)state;
    if (dpt_cuda_library_open(&lib, DPT_CUDA_CUBLASLT, NULL, &err) != DPT_OK) {
        print_message("%s\n", err.text);
        skip();
    }
    for (int i = 0; i < DPT_CUDA_EPILOGUES * DPT_PRECISIONS; i++) {
        p = square_product((enum dpt_precision)(i % DPT_PRECISIONS));
        p.epilogue = (enum dpt_cuda_epilogue)(i / DPT_PRECISIONS);
        if (dpt_cuda_gemms_build(&lib, NULL, &p, &request, 1, &gemms, &err) == DPT_OK)
            dpt_cuda_gemms_release(&gemms);
        else if (strstr(err.text, "cublasLtMatmulAlgoGetHeuristic") == NULL &&
                 strstr(err.text, "of 0 that it offers") == NULL)
            fail_msg("epilogue %d: %s", p.epilogue, err.text);
    }
    dpt_cuda_library_close(&lib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_hold_what_is_written),
        cmocka_unit_test(unsuited_algorithms),
        cmocka_unit_test(nothing_suits),
        cmocka_unit_test(epilogues_may_be_missing),
        cmocka_unit_test(tags),
        cmocka_unit_test(attributes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "core/backend/tests/left_out.h"

int main(void)
{
    return left_out("built without CUDA");
}
#endif
