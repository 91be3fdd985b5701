/* cuDNN's plans for convolutions of many shapes, built without a GPU for one that is described:
 * every precision and pass has some, and their notes and workspace are as wanted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/cuda/libraries/plan.h"
#include "core/backend/cuda/tests/device_text.h"
#include "core/backend/cuda/tests/shapes.h"
#include "core/base/file.h"

#define DEVICE_FILE "core/backend/cuda/tests/h200-deviceprop.json"

enum { CONFIGS = 4 };

static const char *const pass_names[] = {"forward", "data", "filter"};

static struct dpt_cuda_library lib;
static struct dpt_cuda_device device;
static char reason[DPT_ERROR_TEXT]; /* why nothing can be tested here; empty: it can */

/* Descriptors that are made and destroyed, counted in front of cuDNN's own functions. */
static __typeof__(lib.cudnnBackendCreateDescriptor) create;
static __typeof__(lib.cudnnBackendDestroyDescriptor) destroy;
static long alive;

static cudnnStatus_t count_create(cudnnBackendDescriptorType_t type,
                                  cudnnBackendDescriptor_t *descriptor)
{
    const cudnnStatus_t result = create(type, descriptor);

    alive += result == CUDNN_STATUS_SUCCESS;
    return result;
}

static cudnnStatus_t count_destroy(cudnnBackendDescriptor_t descriptor)
{
    alive--;
    return destroy(descriptor);
}

/* cuDNN loads and unloads parts that keep memory, so LeakSanitizer is turned off, by the hook of
 * this name; descriptors are counted above. NOLINTBEGIN(bugprone-reserved-identifier) */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void need_device(void)
{
    if (*reason == '\0')
        return;
    print_message("%s\n", reason);
    skip();
}

static bool noted(const struct dpt_cuda_plan *plan, cudnnBackendNumericalNote_t note)
{
    return plan->notes >> note & 1;
}

/* Checks a plan of that precision. */
static void check_plan(const struct dpt_cuda_plan *plan, enum dpt_precision precision,
                       const struct dpt_cuda_plan_request *request, const char *what)
{
    char notes[32];

    snprintf(notes, sizeof notes, "notes %x", plan->notes);
    if (precision == DPT_PRECISION_FP32 && noted(plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
        fail_msg("%s: %s: tensor cores are not fp32", what, notes);
    if (noted(plan, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) && precision < DPT_PRECISION_BF16)
        fail_msg("%s: %s", what, notes);
    if (noted(plan, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
        fail_msg("%s: %s", what, notes);
    if (request->reproducible && noted(plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
        fail_msg("%s: %s", what, notes);
    if (plan->workspace < 0 || (request->workspace >= 0 && plan->workspace > request->workspace))
        fail_msg("%s: workspace of %lld bytes", what, (long long)plan->workspace);
    if (strncmp(plan->tag, "engine=", 7) != 0)
        fail_msg("%s: tag '%s'", what, plan->tag);
}

/* Each precision, each pass, with and without reproducibility: the plan's tag builds it again, and
 * it takes pointers. */
static void every_shape_has_plans(void **state)
{
    int general = 0;

    (void)state;
    need_device();
    for (int i = 0; i < SHAPES * DPT_PRECISIONS * DPT_CUDA_PASSES * 2; i++) {
        const struct shape *s = &shapes[i / (DPT_PRECISIONS * DPT_CUDA_PASSES * 2)];
        const enum dpt_precision precision = i / (DPT_CUDA_PASSES * 2) % DPT_PRECISIONS;
        const enum dpt_cuda_pass pass = i / 2 % DPT_CUDA_PASSES;
        const struct dpt_cuda_plan_request request = {.reproducible = i % 2, .workspace = 64 << 20};
        const struct dpt_graph_node node = node_of(s);
        struct dpt_cuda_plans plans, again;
        struct dpt_cuda_conv conv;
        struct dpt_error err;
        char what[128];
        cudnnBackendDescriptor_t bound;
        void *pointers[DPT_CUDA_ARRAYS] = {(void *)256, (void *)512, (void *)768, NULL};

        snprintf(what, sizeof what, "%s, %s, %s%s", s->what, dpt_precision_names[precision],
                 pass_names[pass], request.reproducible ? ", reproducible" : "");
        describe_conv(&node, s->n, precision, &conv);
        conv.relu = true;
        if (dpt_cuda_plans_build(&lib, &device, &conv, pass, &request, 1, &plans, &err) != DPT_OK)
            fail_msg("%s: %s", what, err.text);
        assert_int_equal(plans.n, 1);
        check_plan(&plans.plan[0], precision, &request, what);
        /* Engine 0 is cuDNN's general one, the last that heuristics offer. */
        if (plans.plan[0].engine == 0) {
            if (s - shapes < CONFIGS)
                fail_msg("%s: only the general engine", what);
            general++;
        }
        conv.bias = plans.bias;
        conv.relu = plans.relu;
        if (dpt_cuda_plans_rebuild(&lib, &device, &conv, pass, plans.plan[0].tag, &again, &err))
            fail_msg("%s: %s", what, err.text);
        assert_string_equal(again.plan[0].tag, plans.plan[0].tag);
        assert_int_equal(again.plan[0].workspace, plans.plan[0].workspace);
        assert_int_equal(again.plan[0].notes, plans.plan[0].notes);
        pointers[DPT_CUDA_BIAS] = plans.bias ? (void *)1024 : NULL;
        if (dpt_cuda_plan_bind(&plans, pointers, (void *)2048, &bound, &err) != DPT_OK)
            fail_msg("%s: %s", what, err.text);
        dpt_cuda_plans_release(&again);
        dpt_cuda_plans_release(&plans);
    }
    print_message("%d of %d plans are cuDNN's general engine\n", general,
                  SHAPES * DPT_PRECISIONS * DPT_CUDA_PASSES * 2);
}

/* The job files' convolutions: bias and ReLU in the same kernel, and tensor cores if they are
 * wanted, each channel count padded to 8. */
static void the_configs_are_fast(void **state)
{
    (void)state;
    need_device();
    for (int i = 0; i < CONFIGS * DPT_PRECISIONS; i++) {
        const struct dpt_graph_node node = node_of(&shapes[i / DPT_PRECISIONS]);
        const enum dpt_precision precision = i % DPT_PRECISIONS;
        const struct dpt_cuda_plan_request request = {.workspace = -1};

        for (int pass = 0; pass < DPT_CUDA_PASSES; pass++) {
            struct dpt_cuda_plans plans;
            struct dpt_cuda_conv conv;
            struct dpt_error err;
            bool cores = false;

            describe_conv(&node, 128, precision, &conv);
            if (precision == DPT_PRECISION_BF16 || precision == DPT_PRECISION_FP16)
                assert_true(conv.x[1] % 8 == 0 && conv.w[0] % 8 == 0 && conv.y[1] % 8 == 0);
            conv.relu = true;
            assert_int_equal(dpt_cuda_plans_build(&lib, &device, &conv, (enum dpt_cuda_pass)pass,
                                                  &request, 8, &plans, &err),
                             DPT_OK);
            if (pass == DPT_CUDA_FORWARD)
                assert_true(plans.bias && plans.relu);
            for (int p = 0; p < plans.n; p++) {
                cores |= noted(&plans.plan[p], CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
                for (int q = 0; q < p; q++) /* each with another one */
                    assert_string_not_equal(plans.plan[p].tag, plans.plan[q].tag);
            }
            assert_true(cores == (precision != DPT_PRECISION_FP32));
            dpt_cuda_plans_release(&plans);
        }
    }
}

/* A limit leaves other plans; if none is below it, the error has the counts. */
static void workspace_is_limited(void **state)
{
    const struct dpt_graph_node node = node_of(&shapes[1]);
    struct dpt_cuda_plan_request request = {.workspace = -1};
    struct dpt_cuda_plans plans;
    struct dpt_cuda_conv conv;
    struct dpt_error err;
    int64_t used;

    (void)state;
    need_device();
    describe_conv(&node, 128, DPT_PRECISION_TF32, &conv);
    assert_int_equal(dpt_cuda_plans_build(&lib, &device, &conv, DPT_CUDA_BACKWARD_FILTER, &request,
                                          1, &plans, &err),
                     DPT_OK);
    used = plans.plan[0].workspace;
    assert_true(used > 0);
    dpt_cuda_plans_release(&plans);
    request.workspace = used - 1;
    assert_int_equal(dpt_cuda_plans_build(&lib, &device, &conv, DPT_CUDA_BACKWARD_FILTER, &request,
                                          1, &plans, &err),
                     DPT_OK);
    assert_true(plans.plan[0].workspace < used);
    dpt_cuda_plans_release(&plans);
}

static void wrong_tags(void **state)
{
    static const char *const tags[] = {"", "engine", "engine=x", "engine=100000",
                                       "engine=48 2=99999"};
    const struct dpt_graph_node node = node_of(&shapes[1]);
    struct dpt_cuda_plans plans;
    struct dpt_cuda_conv conv;
    struct dpt_error err;

    (void)state;
    need_device();
    describe_conv(&node, 128, DPT_PRECISION_FP32, &conv);
    conv.bias = false;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        assert_int_not_equal(
            dpt_cuda_plans_rebuild(&lib, &device, &conv, DPT_CUDA_FORWARD, tags[i], &plans, &err),
            DPT_OK);
        assert_null(plans.plan);
    }
}

static void devices_are_described(void **state)
{
    struct dpt_cuda_device other;
    struct dpt_str json = {0};
    struct dpt_error err;

    (void)state;
    need_device();
    assert_int_equal(device_text(&lib, &device, &json, &err), DPT_OK);
    assert_non_null(strstr(json.text, "NVIDIA H200"));
    assert_int_equal(dpt_cuda_device_described(&lib, json.text, &other, &err), DPT_OK);
    dpt_cuda_device_release(&lib, &other);
    assert_int_equal(dpt_cuda_device_described(&lib, "{", &other, &err), DPT_BAD_JOB);
    assert_null(other.properties);
    dpt_str_release(&json);
}

static void pitches(void **state)
{
    (void)state;
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_FP32, 1), 1);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_FP32, 3), 3);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_FP32, 5), 8);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_TF32, 1), 4);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_TF32, 64), 64);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_BF16, 1), 8);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_BF16, 9), 16);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_FP16, 3), 8);
    assert_int_equal(dpt_cuda_pitch(DPT_PRECISION_FP16, 17), 24);
}

static int begin(void **state)
{
    struct dpt_error err;
    char *json = NULL;
    size_t length;

    (void)state;
    /* cuDNN takes cuBLASLt from memory, or from where the loader looks; it may be in neither
     * place. */
    if (dpt_cuda_library_open(&lib, DPT_CUDA_CUDNN | DPT_CUDA_CUBLASLT, NULL, &err) != DPT_OK) {
        strcpy(reason, err.text);
        return 0;
    }
    create = lib.cudnnBackendCreateDescriptor;
    destroy = lib.cudnnBackendDestroyDescriptor;
    lib.cudnnBackendCreateDescriptor = count_create;
    lib.cudnnBackendDestroyDescriptor = count_destroy;
    if (lib.cudnn < 90800) {
        strcpy(reason, "plans without a GPU need cuDNN 9.8 or later");
        return 0;
    }
    if (dpt_file_read(DEVICE_FILE, 1 << 16, DPT_IO, &json, &length, &err) != DPT_OK ||
        dpt_cuda_device_described(&lib, json, &device, &err) != DPT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    free(json);
    return 0;
}

static int end(void **state)
{
    (void)state;
    if (lib.cudnn != 0)
        dpt_cuda_device_release(&lib, &device);
    dpt_cuda_library_close(&lib);
    if (alive != 0)
        fprintf(stderr, "%ld descriptors were not destroyed\n", alive);
    return alive != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_has_plans), cmocka_unit_test(the_configs_are_fast),
        cmocka_unit_test(workspace_is_limited),  cmocka_unit_test(wrong_tags),
        cmocka_unit_test(devices_are_described), cmocka_unit_test(pitches),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
#else
#include "core/backend/tests/left_out.h"

int main(void)
{
    return left_out("built without CUDA");
}
#endif
