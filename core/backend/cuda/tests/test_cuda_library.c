/* Tests opening the driver, cuDNN, cuBLASLt and NCCL if they are missing, too old or in good order:
 * the messages, and the launch of kernels by their table; with a driver and an NCCL that this test
 * compiles. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/cuda/libraries/context.h"

#define TEXT_(name)     #name
#define X(name, needed) {TEXT_(name), needed},
static const struct {
    const char *name;
    bool needed;
} driver_functions[] = {DPT_CUDA_DRIVER_FUNCTIONS(X)};
#undef X

#define X(name, ...) #name,
static const char *const nccl_functions[] = {DPT_CUDA_NCCL_FUNCTIONS(X)};
#undef X

static char folder[] = "/tmp/dptrain-test-XXXXXX";

/* Functions of the driver that do something; the others return 0. */
static const char bodies[] =
    "int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }\n"
    "int cuInit(unsigned f) { (void)f; return INIT; }\n"
    "int cuDeviceGetCount(int *n) { *n = DEVICES; return 0; }\n"
    "int cuGetErrorName(int e, const char **s) { (void)e; *s = \"CUDA_ERROR_OF_TEST\"; return 0; "
    "}\n"
    "int cuGetErrorString(int e, const char **s) { (void)e; *s = \"as told\"; return 0; }\n"
    "int cuModuleLoadData(void **m, const unsigned *p)\n"
    "{ *m = (void *)p; return *p == 0xba55ed50 ? LOAD : 1; }\n"
    "int cuModuleGetFunction(const char **f, void *m, const char *name)\n"
    "{ (void)m; *f = name; return 0; }\n"
    "char launched[400];\n"
    "int sprintf(char *, const char *, ...);\n"
    "int cuLaunchKernel(const char *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned "
    "by,\n"
    "unsigned bz, unsigned shared, void *stream, long ***args, void **extra)\n"
    "{ (void)by, (void)bz, (void)shared, (void)stream, (void)extra;\n"
    "sprintf(launched, \"%s %u %u %u of %u: %ld\", f, x, y, z, bx, (long)(args[0][2])); return 0; "
    "}\n";

/* Compiles a driver; flags: -D of the above. missing: a function to leave out. false: no compiler.
 */
static bool make_driver(const char *path, const char *flags, const char *missing)
{
    char source[200], command[1000];
    FILE *f;

    snprintf(source, sizeof source, "%s/driver.c", folder);
    f = fopen(source, "w");
    assert_non_null(f);
    fputs(bodies, f);
    for (size_t i = 0; i < sizeof driver_functions / sizeof *driver_functions; i++) {
        char call[100];

        snprintf(call, sizeof call, "int %s(", driver_functions[i].name);
        if (strstr(bodies, call) == NULL && strcmp(driver_functions[i].name, missing) != 0)
            fprintf(f, "int %s(void) { return 0; }\n", driver_functions[i].name);
    }
    fputs("#ifdef OLDER\nint OLDER(void) { return 0; }\n#endif\n", f);
    fclose(f);
    snprintf(command, sizeof command, "cc -w -shared -fPIC %s -o %s %s 2>%s/log", flags, path,
             source, folder);
    return system(command) == 0;
}

/* Compiles an NCCL without one function. */
static bool make_nccl(const char *path, int version, const char *missing)
{
    char command[1000];
    FILE *f;

    snprintf(command, sizeof command, "cc -w -shared -fPIC -o %s -x c - 2>%s/log", path, folder);
    f = popen(command, "w");
    assert_non_null(f);
    fprintf(f, "int ncclGetVersion(int *v) { *v = %d; return 0; }\n", version);
    for (size_t i = 0; i < sizeof nccl_functions / sizeof *nccl_functions; i++)
        if (strcmp(nccl_functions[i], "ncclGetVersion") != 0 &&
            strcmp(nccl_functions[i], missing) != 0)
            fprintf(f, "int %s(void) { return 0; }\n", nccl_functions[i]);
    return pclose(f) == 0;
}

#define GOOD "-DVERSION=99000 -DDEVICES=2 -DINIT=0 -DLOAD=0"

static const char *fails(unsigned parts, const struct dpt_cuda_library_paths *places)
{
    static struct dpt_error err;
    struct dpt_cuda_library lib;

    assert_int_equal(dpt_cuda_library_open(&lib, parts, places, &err), DPT_BAD_JOB);
    assert_null(lib.handles[0]);
    assert_null(strchr(err.text, '\n'));
    return err.text;
}

static void says(const char *text, const char *what)
{
    if (strstr(text, what) == NULL)
        fail_msg("'%s' does not say '%s'", text, what);
}

/* The libraries keep memory until the end. LeakSanitizer's hook has this name.
 * NOLINTBEGIN(bugprone-reserved-identifier) */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcudnn\nleak:libcublasLt\n";
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void nothing_there(void **state)
{
    /* Nothing lies below a device. */
    const struct dpt_cuda_library_paths places = {
        "/dev/null/libcuda.so.1", "/dev/null/libcudnn.so.9", "/dev/null/libcublasLt.so.13",
        "/dev/null/libnccl.so.2"};
    const char *text;

    (void)state;
    text = fails(DPT_CUDA_DRIVER, &places);
    says(text, "NVIDIA driver");
    says(text, "install the driver");
    says(text, "/dev/null/libcuda.so.1");
    text = fails(DPT_CUDA_CUDNN, &places);
    says(text, "cuDNN 9");
    says(text, "DPTRAIN_CUDA_PATH");
    text = fails(DPT_CUDA_CUBLASLT, &places);
    says(text, "cuBLASLt");
    says(text, "DPTRAIN_CUDA_PATH");
    text = fails(DPT_CUDA_NCCL, &places);
    says(text, "NCCL not found");
    says(text, "DPTRAIN_CUDA_PATH");
}

/* Jobs can do without it, so it is opened only where it is named. */
static void an_nccl(void **state)
{
    static const struct {
        int version;
        const char *missing;
        const char *reported; /* NULL: it opens */
    } rows[] = {
        {22803, "", NULL},
        {21400, "", NULL},
        {21306, "", "is too old: 21306, and 2.14 or later is needed"},
        {2708, "ncclGetLastError", "is too old: it has no ncclGetLastError; 2.14 or later"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dpt_cuda_library lib;
        struct dpt_cuda_library_paths places = {.nccl = "/dev/null/libnccl.so.2"};
        struct dpt_error err;
        char path[200], text[128], want[200];

        snprintf(path, sizeof path, "%s/libcuda-nccl.so.1", folder);
        if (!make_driver(path, GOOD, ""))
            skip();
        places.driver = path;
        assert_int_equal(dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER, &places, &err), DPT_OK);
        assert_string_equal(dpt_cuda_library_path(&lib, DPT_CUDA_NCCL), "");
        dpt_cuda_library_close(&lib);
        snprintf(text, sizeof text, "%s/libnccl%zu.so.2", folder, i);
        assert_true(make_nccl(text, rows[i].version, rows[i].missing));
        places.nccl = text;
        if (rows[i].reported != NULL) {
            says(fails(DPT_CUDA_DRIVER | DPT_CUDA_NCCL, &places), rows[i].reported);
            says(fails(DPT_CUDA_NCCL, &places), text);
            continue;
        }
        if (dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER | DPT_CUDA_NCCL, &places, &err) != DPT_OK)
            fail_msg("row %zu: %s", i, err.text);
        assert_string_equal(dpt_cuda_library_path(&lib, DPT_CUDA_NCCL), text);
        assert_non_null(lib.ncclAllReduce);
        snprintf(want, sizeof want, "driver for CUDA 99.0, NCCL 2.%d.%d",
                 rows[i].version / 100 % 100, rows[i].version % 100);
        assert_string_equal(dpt_cuda_library_text(&lib, path), want);
        dpt_cuda_library_close(&lib);
    }
}

static void a_driver(void **state)
{
    static const struct {
        const char *flags, *missing;
        const char *reported; /* message of opening; NULL: it opens */
        const char *devices;  /* message of counting; NULL: two */
    } rows[] = {
        {GOOD, "", NULL, NULL},
        {GOOD, "cuEventQuery", "has no function cuEventQuery", NULL},
        {GOOD, "cuLaunchHostFunc", NULL, NULL}, /* can be done without */
        {"-DVERSION=11080 -DDEVICES=2 -DINIT=0 -DLOAD=0", "", "it can do CUDA 11.8", NULL},
        {"-DVERSION=99000 -DDEVICES=0 -DINIT=0 -DLOAD=0", "", NULL, "shows no GPU"},
        {"-DVERSION=99000 -DDEVICES=0 -DINIT=100 -DLOAD=0", "", NULL, "shows no GPU"},
        {"-DVERSION=99000 -DDEVICES=0 -DINIT=34 -DLOAD=0", "", NULL, "stub"},
        {"-DVERSION=99000 -DDEVICES=0 -DINIT=803 -DLOAD=0", "", NULL, "different versions"},
        {"-DVERSION=99000 -DDEVICES=0 -DINIT=999 -DLOAD=0", "", NULL,
         "cuInit: CUDA_ERROR_OF_TEST, as told (999)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dpt_cuda_library lib;
        struct dpt_cuda_library_paths places = {0};
        struct dpt_error err;
        char path[200], text[128];
        int count;

        snprintf(path, sizeof path, "%s/libcuda%zu.so.1", folder, i);
        if (!make_driver(path, rows[i].flags, rows[i].missing))
            skip();
        places.driver = path;
        if (rows[i].reported != NULL) {
            says(fails(DPT_CUDA_DRIVER, &places), rows[i].reported);
            continue;
        }
        if (dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER, &places, &err) != DPT_OK)
            fail_msg("row %zu: %s", i, err.text);
        assert_string_equal(dpt_cuda_library_text(&lib, text), "driver for CUDA 99.0");
        if (rows[i].devices != NULL) {
            setenv("CUDA_VISIBLE_DEVICES", "7", 1);
            assert_int_not_equal(dpt_cuda_library_devices(&lib, &count, &err), DPT_OK);
            says(err.text, rows[i].devices);
            if (strstr(err.text, "no GPU"))
                says(err.text, "CUDA_VISIBLE_DEVICES is \"7\"");
            unsetenv("CUDA_VISIBLE_DEVICES");
        } else {
            assert_int_equal(dpt_cuda_library_devices(&lib, &count, &err), DPT_OK);
            assert_int_equal(count, 2);
        }
        dpt_cuda_library_close(&lib);
        dpt_cuda_library_close(&lib);
    }
}

/* Missing optional functions are NULL, the others are not. */
static void launches(void **state)
{
    struct dpt_cuda_library lib;
    struct dpt_cuda_library_paths places = {0};
    struct dpt_cuda_module module;
    struct dpt_error err;
    struct dpt_cuda_act_args a = {.vectors = 1000};
    char path[200];
    const char *launched;
    size_t bytes;

    (void)state;
    snprintf(path, sizeof path, "%s/libcuda-launch.so.1", folder);
    if (!make_driver(path, GOOD, "cuLaunchHostFunc"))
        skip();
    places.driver = path;
    assert_int_equal(dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER, &places, &err), DPT_OK);
    assert_true(lib.cuLaunchHostFunc == NULL && lib.cuFuncGetAttribute != NULL);
    assert_non_null(dpt_cuda_module_image(&bytes));
    assert_true(bytes > 10000);
    if (dpt_cuda_module_load(&lib, &module, &err) != DPT_OK)
        fail_msg("%s", err.text);
    launched = dlsym(lib.handles[0], "launched");
    assert_non_null(launched);
    assert_int_equal(dpt_cuda_launch(&lib, &module, NULL, DPT_CUDA_K_relu_f32, &a, &err), DPT_OK);
    assert_string_equal(launched, "dpt_cuda_relu_f32 4 1 1 of 256: 1000");
    a.vectors = 0;
    assert_int_equal(dpt_cuda_launch(&lib, &module, NULL, DPT_CUDA_K_gelu_f32, &a, &err), DPT_OK);
    a.vectors = INT64_C(1) << 50;
    assert_int_equal(dpt_cuda_launch(&lib, &module, NULL, DPT_CUDA_K_tanh_f32, &a, &err),
                     DPT_BAD_JOB);
    says(err.text, "batch.micro");
    dpt_cuda_module_release(&lib, &module);
    dpt_cuda_library_close(&lib);
}

/* A driver from before a function had a second version, which takes the same arguments: its first
 * version is used. It is not used if the arguments differ. */
static void an_older_driver(void **state)
{
    struct dpt_cuda_library_paths places = {0};
    struct dpt_cuda_library lib;
    struct dpt_error err;
    char path[200];

    (void)state;
    snprintf(path, sizeof path, "%s/libcuda-older.so.1", folder);
    if (!make_driver(path, GOOD " -DOLDER=cuEventElapsedTime", "cuEventElapsedTime_v2"))
        skip();
    places.driver = path;
    assert_int_equal(dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER, &places, &err), DPT_OK);
    assert_non_null(lib.cuEventElapsedTime);
    assert_ptr_equal(lib.cuEventElapsedTime, dlsym(lib.handles[0], "cuEventElapsedTime"));
    assert_string_equal(dpt_cuda_library_path(&lib, DPT_CUDA_DRIVER), path);
    assert_string_equal(dpt_cuda_library_path(&lib, DPT_CUDA_CUDNN), "");
    dpt_cuda_library_close(&lib);
    snprintf(path, sizeof path, "%s/libcuda-oldest.so.1", folder);
    assert_true(make_driver(path, GOOD " -DOLDER=cuMemAlloc", "cuMemAlloc_v2"));
    says(fails(DPT_CUDA_DRIVER, &places), path);
    says(fails(DPT_CUDA_DRIVER, &places), "has no function cuMemAlloc_v2");
}

/* The driver's error for a GPU for which the image has no code. */
static void no_code(void **state)
{
    struct dpt_cuda_library lib;
    struct dpt_cuda_library_paths places = {0};
    struct dpt_cuda_module module;
    struct dpt_error err;
    char path[200];

    (void)state;
    snprintf(path, sizeof path, "%s/libcuda-code.so.1", folder);
    if (!make_driver(path, "-DVERSION=99000 -DDEVICES=1 -DINIT=0 -DLOAD=209", ""))
        skip();
    places.driver = path;
    assert_int_equal(dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER, &places, &err), DPT_OK);
    assert_int_equal(dpt_cuda_module_load(&lib, &module, &err), DPT_BAD_JOB);
    says(err.text, "without code for this GPU");
    dpt_cuda_library_close(&lib);
}

/* The libraries that are here, where they are. */
static void the_real_ones(void **state)
{
    struct dpt_cuda_library lib;
    struct dpt_error err;
    char text[128];

    (void)state;
    if (dpt_cuda_library_open(&lib, DPT_CUDA_CUDNN | DPT_CUDA_CUBLASLT, NULL, &err) != DPT_OK) {
        print_message("%s\n", err.text);
        skip();
    }
    print_message("%s\n", dpt_cuda_library_text(&lib, text));
    assert_true(lib.cudnn >= 90000 && lib.cublaslt >= 110000 && lib.driver == 0);
    assert_int_equal(dpt_cudnn_check(&lib, CUDNN_STATUS_NOT_SUPPORTED, "cudnnX(a, b)", &err),
                     DPT_BAD_JOB);
    says(err.text, "cuDNN: cudnnX: CUDNN_STATUS_NOT_SUPPORTED");
    assert_int_equal(dpt_cublaslt_check(&lib, CUBLAS_STATUS_INVALID_VALUE, "cublasLtX", &err),
                     DPT_INTERNAL);
    says(err.text, "cuBLASLt: cublasLtX: ");
    dpt_cuda_library_close(&lib);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int end(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_there),   cmocka_unit_test(a_driver),
        cmocka_unit_test(an_nccl),         cmocka_unit_test(launches),
        cmocka_unit_test(no_code),         cmocka_unit_test(the_real_ones),
        cmocka_unit_test(an_older_driver),
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
