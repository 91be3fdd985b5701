/* The device that runs on the CPU (fake.h): that it finds the errors it is made to find, and
 * computes right results. It is opened as a job opens it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/backend/cuda/tests/fake/fake_scene.h"

#if FAKE_SCENE
enum { SEEDS = 8, N = 1000 };

static void seed(int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    fake_set("FAKEGPU_SEED", text);
}

static void fill(float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        x[i] = value;
}

/* The host's memory is read when the copy is done, not before; and written no earlier. */
static void copies_are_late(void **state)
{
    float *from = pinned(N), *to = pinned(N);
    CUdeviceptr x = device(N);

    (void)state;
    for (int i = 0; i < SEEDS; i++) {
        seed(i);
        fill(from, N, 1);
        fill(to, N, 3);
        WORKS(cuMemcpyHtoDAsync(x, from, N * sizeof *from, one));
        WORKS(cuMemcpyDtoHAsync(to, x, N * sizeof *to, one));
        fill(from, N, 2);
        assert_true(to[0] == 3 && to[N - 1] == 3);
        WORKS(cuStreamSynchronize(one));
        assert_true(to[0] == 2 && to[N - 1] == 2);
    }
    WORKS(cuMemFree(x));
    WORKS(cuMemFreeHost(from));
    WORKS(cuMemFreeHost(to));
}

/* Pageable memory is read at once, and written before the call ends. */
static void pageable_memory(void **state)
{
    float from[N], to[N];
    CUdeviceptr x = device(N);

    (void)state;
    fill(from, N, 1);
    WORKS(cuMemcpyHtoDAsync(x, from, sizeof from, one));
    fill(from, N, 2);
    WORKS(cuMemcpyDtoHAsync(to, x, sizeof to, one));
    assert_true(to[0] == 1 && to[N - 1] == 1);
    to_device(x, from, sizeof from);
    to_host(to, x, sizeof to);
    assert_true(to[0] == 2);
    WORKS(cuMemFree(x));
}

/* Memory begins as NaNs. */
static void fresh_memory(void **state)
{
    CUdeviceptr x = device(N);
    float to[N];

    (void)state;
    WORKS(cuMemcpyDtoHAsync(to, x, sizeof to, one));
    for (int i = 0; i < N; i++)
        assert_true(to[i] != to[i]);
    WORKS(cuMemFree(x));
}

/* Two streams on the same memory: with an event in between the result is the same in every order of
 * work, without it not. */
static void events_order_streams(void **state)
{
    CUdeviceptr x = device(N);
    float *to = pinned(N);
    int wrong = 0;
    CUevent event;

    (void)state;
    WORKS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 2 * SEEDS; i++) {
        const bool ordered = i < SEEDS;

        seed(i % SEEDS);
        WORKS(cuMemsetD32Async(x, 0, N, one));
        WORKS(cuStreamSynchronize(one));
        WORKS(cuMemsetD32Async(x, 0x3f800000, N, one));
        WORKS(cuEventRecord(event, one));
        if (ordered)
            WORKS(cuStreamWaitEvent(two, event, 0));
        WORKS(cuMemcpyDtoHAsync(to, x, N * sizeof *to, two));
        WORKS(cuStreamSynchronize(two));
        if (ordered)
            assert_true(to[0] == 1);
        wrong += to[0] != 1;
        WORKS(cuCtxSynchronize());
        GIVES(CUDA_SUCCESS, cuEventQuery(event));
    }
    assert_in_range(wrong, 1, SEEDS - 1);
    WORKS(cuEventDestroy(event));
    WORKS(cuMemFreeHost(to));
    WORKS(cuMemFree(x));
}

static void add_one(void *value)
{
    ++*(int *)value;
}

/* Polling sees work done, and host functions run; they also run when nobody asks. */
static void progress(void **state)
{
    int calls = 0;
    CUevent event;
    long asked = 0;

    (void)state;
    WORKS(cuEventCreate(&event, 0));
    GIVES(CUDA_SUCCESS, cuEventQuery(event));
    WORKS(cuLaunchHostFunc(one, add_one, &calls));
    WORKS(cuEventRecord(event, one));
    assert_int_equal(calls, 0);
    while (lib.cuEventQuery(event) == CUDA_ERROR_NOT_READY)
        asked++;
    assert_int_equal(calls, 1);
    assert_true(asked < 1000);
    WORKS(cuLaunchHostFunc(one, add_one, &calls));
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) < 2)
        usleep(1000);
    WORKS(cuStreamSynchronize(one));
    WORKS(cuEventDestroy(event));
}

/* A graph forked and joined by events: each launch reads what is in memory then. Work that waits
 * for an event that the graph records comes after it. */
static void graphs(void **state)
{
    float *from = pinned(N), *to = pinned(2 * N);
    CUdeviceptr x = device(N), y = device(N);
    CUevent fork, join, outside;
    CUgraphExec exec;
    CUgraph graph;
    size_t n = 0;

    (void)state;
    WORKS(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    WORKS(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    WORKS(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    WORKS(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    WORKS(cuMemcpyHtoDAsync(x, from, N * sizeof *from, one));
    WORKS(cuEventRecord(fork, one));
    WORKS(cuStreamWaitEvent(two, fork, 0));
    WORKS(cuMemcpyDtoDAsync(y, x, N * sizeof *from, two));
    WORKS(cuMemcpyDtoHAsync(to + N, y, N * sizeof *from, two));
    WORKS(cuMemcpyDtoHAsync(to, x, N * sizeof *from, one));
    WORKS(cuEventRecordWithFlags(outside, one, CU_EVENT_RECORD_EXTERNAL));
    WORKS(cuEventRecord(join, two));
    WORKS(cuStreamWaitEvent(one, join, 0));
    WORKS(cuStreamEndCapture(one, &graph));
    WORKS(cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 5);
    WORKS(cuGraphInstantiate(&exec, graph, 0));
    WORKS(cuGraphDestroy(graph));
    for (int i = 0; i < SEEDS; i++) {
        seed(i);
        fill(from, N, (float)i);
        fill(to, 2 * N, -1);
        WORKS(cuGraphLaunch(exec, one));
        assert_true(to[0] == -1);
        WORKS(cuEventSynchronize(outside));
        assert_true(to[N - 1] == (float)i);
        WORKS(cuStreamSynchronize(one));
        assert_true(to[2 * N - 1] == (float)i);
    }
    WORKS(cuGraphLaunch(exec, one));
    WORKS(cuGraphLaunch(exec, two)); /* after the other */
    WORKS(cuGraphExecDestroy(exec));
    WORKS(cuCtxSynchronize());
    WORKS(cuEventDestroy(fork));
    WORKS(cuEventDestroy(join));
    WORKS(cuEventDestroy(outside));
    WORKS(cuMemFreeHost(from));
    WORKS(cuMemFreeHost(to));
    WORKS(cuMemFree(x));
    WORKS(cuMemFree(y));
}

/* Two nodes that may run at once are refused if one writes what the other one touches, and only
 * there. */
static void races(void **state)
{
    const CUdeviceptr x = device(N), y = device(N);
    int refused = 0, taken = 0;
    CUevent fork, join;

    (void)state;
    WORKS(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    WORKS(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    fake_set("FAKEGPU_QUIET", "1");
    for (uint64_t i = 0; i < 200; i++) {
        const uint64_t bits = i * 0x9E3779B97F4A7C15ull;
        const size_t a = bits % 16, b = bits / 16 % 16, n = 1 + bits / 256 % 6;
        const bool ordered = bits >> 40 & 1, reads[2] = {bits >> 41 & 1, bits >> 42 & 1};
        const bool meet = a < b + n && b < a + n && !(reads[0] && reads[1]);
        CUgraphExec exec = NULL;
        CUgraph graph;

        WORKS(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        WORKS(cuEventRecord(fork, one));
        WORKS(cuStreamWaitEvent(two, fork, 0));
        for (int k = 0; k < 2; k++) {
            const CUstream stream = k == 0 ? one : two;
            const CUdeviceptr at = x + (k == 0 ? a : b) * sizeof(float);

            if (k == 1 && ordered) {
                WORKS(cuEventRecord(fork, one));
                WORKS(cuStreamWaitEvent(two, fork, 0));
            }
            if (reads[k])
                WORKS(cuMemcpyDtoDAsync(y + (CUdeviceptr)k * N, at, n * sizeof(float), stream));
            else
                WORKS(cuMemsetD32Async(at, 1, n, stream));
        }
        WORKS(cuEventRecord(join, two));
        WORKS(cuStreamWaitEvent(one, join, 0));
        WORKS(cuStreamEndCapture(one, &graph));
        GIVES(meet && !ordered ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS,
              cuGraphInstantiate(&exec, graph, 0));
        *(exec == NULL ? &refused : &taken) += 1;
        if (exec != NULL)
            WORKS(cuGraphExecDestroy(exec));
        WORKS(cuGraphDestroy(graph));
    }
    assert_true(refused > 15 && taken > 50);
    fake_set("FAKEGPU_QUIET", NULL);
    WORKS(cuEventDestroy(fork));
    WORKS(cuEventDestroy(join));
    WORKS(cuMemFree(x));
    WORKS(cuMemFree(y));
}

/* Calls that a capture does not allow, their results, and the result of the capture's end. */
static CUdeviceptr there;
static CUevent before;
static float somewhere[N];

static CUresult allocates(void)
{
    CUdeviceptr at;

    return lib.cuMemAlloc(&at, 4);
}

static CUresult waits(void)
{
    return lib.cuStreamSynchronize(one);
}

static CUresult waits_for_all(void)
{
    return lib.cuCtxSynchronize();
}

static CUresult asks(void)
{
    return lib.cuEventQuery(before);
}

static CUresult copies_pageable(void)
{
    return lib.cuMemcpyHtoDAsync(there, somewhere, sizeof somewhere, one);
}

static CUresult depends(void)
{
    return lib.cuStreamWaitEvent(one, before, 0);
}

static CUresult forks(void)
{
    CUresult result = lib.cuEventRecord(before, one);

    if (result == CUDA_SUCCESS)
        result = lib.cuStreamWaitEvent(two, before, 0);
    return result == CUDA_SUCCESS ? lib.cuMemsetD32Async(there, 0, 1, two) : result;
}

static CUresult takes_part(void)
{
    return lib.cuStreamWaitEvent(one, before, CU_EVENT_WAIT_EXTERNAL);
}

static CUresult beyond(void)
{
    return lib.cuMemsetD32Async(there, 0, N + 1, one);
}

static void captures_that_fail(void **state)
{
    static const struct {
        CUresult (*act)(void);
        CUresult gives, ends;
    } rows[] = {
        {allocates, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {waits, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {waits_for_all, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {asks, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {copies_pageable, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {depends, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {beyond, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        {forks, CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_UNJOINED},
        {takes_part, CUDA_SUCCESS, CUDA_SUCCESS},
    };

    (void)state;
    there = device(N);
    WORKS(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CUgraph graph = NULL;

        WORKS(cuEventRecord(before, one));
        WORKS(cuStreamSynchronize(one));
        WORKS(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        assert_int_equal(rows[i].act(), rows[i].gives);
        GIVES(rows[i].ends, cuStreamEndCapture(one, &graph));
        assert_true((graph != NULL) == (rows[i].ends == CUDA_SUCCESS));
        if (graph != NULL)
            WORKS(cuGraphDestroy(graph));
        /* It is over: both streams work as before. */
        WORKS(cuMemsetD32Async(there, 0, N, one));
        WORKS(cuMemsetD32Async(there, 0, N, two));
        WORKS(cuCtxSynchronize());
    }
    WORKS(cuEventDestroy(before));
    WORKS(cuMemFree(there));
}

static void memory_has_an_end(void **state)
{
    size_t unused, total, now;
    CUdeviceptr x, y;

    (void)state;
    fake_set("FAKEGPU_MEMORY", "1000000");
    WORKS(cuMemGetInfo(&unused, &total));
    assert_int_equal(total, 1000000);
    WORKS(cuMemAlloc(&x, unused / 2));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&y, unused / 2 + 1024));
    WORKS(cuMemGetInfo(&now, &total));
    assert_in_range(unused - now, unused / 2, unused / 2 + 512);
    WORKS(cuMemFree(x));
    WORKS(cuMemGetInfo(&now, &total));
    assert_int_equal(now, unused);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(x));
    fake_set("FAKEGPU_MEMORY", NULL);
}

static void what_is_wrong_is_refused(void **state)
{
    CUdeviceptr x = device(N);
    float *host = pinned(N);
    CUevent event;

    (void)state;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(x, host, 4 * N + 1, one));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(x + 4, host, 4 * N, one));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(x, (CUdeviceptr)host, 4, one));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(x + 1, 0, 1, one));
    WORKS(cuEventCreate(&event, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(event, one, CU_EVENT_RECORD_EXTERNAL));
    WORKS(cuEventDestroy(event));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, one));
    WORKS(cuMemFree(x));
    WORKS(cuMemFreeHost(host));
}

/* A call fails when that is asked for, and only then. */
static void failures_on_demand(void **state)
{
    CUdeviceptr x[3];

    (void)state;
    fake_set("FAKEGPU_FAIL", "cuMemAlloc:2,cuStreamSynchronize:1:719");
    WORKS(cuMemAlloc(&x[0], 4));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&x[1], 4));
    WORKS(cuMemAlloc(&x[2], 4));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(one));
    WORKS(cuStreamSynchronize(one));
    fake_set("FAKEGPU_FAIL", NULL);
    WORKS(cuMemFree(x[0]));
    WORKS(cuMemFree(x[2]));
}

/* Runs a process of its own, and gives its exit status. */
static int outcome(void (*act)(void))
{
    const pid_t child = fork();
    int status = 0;

    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not the test's handler, which would continue */
        act();
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static CUdeviceptr touched;

static void touches(void)
{
    *(volatile float *)touched = 1;
}

static void touches_nothing(void)
{
    (void)touched;
}

static void the_host_cannot_touch_it(void **state)
{
    (void)state;
    touched = device(N);
    assert_int_equal(outcome(touches_nothing), 0);
    assert_int_not_equal(outcome(touches), 0);
    WORKS(cuMemFree(touched));
}

/* The work of such a process: it prints the devices, and leaves memory and a stream allocated. */
static int leave_things(void)
{
    char name[64], bus[32];
    size_t unused, total;
    CUdeviceptr x;
    int count;

    if (!fake_scene_open(&count))
        return 1;
    for (int i = 0; i < count; i++) {
        WORKS(cuDeviceGetName(name, sizeof name, i));
        WORKS(cuDeviceGetPCIBusId(bus, sizeof bus, i));
        printf("%s at %s; ", name, bus);
    }
    WORKS(cuDevicePrimaryCtxRetain(&context, 0));
    WORKS(cuCtxSetCurrent(context));
    WORKS(cuMemAlloc(&x, 1000));
    WORKS(cuMemGetInfo(&unused, &total));
    WORKS(cuStreamCreateWithPriority(&one, CU_STREAM_NON_BLOCKING, 0));
    WORKS(cuMemsetD8Async(x, 0, 1000, one));
    WORKS(cuStreamSynchronize(one));
    printf("%zu used; ", total - unused);
    fflush(stdout);
    WORKS(cuDevicePrimaryCtxRelease(0));
    return 0;
}

/* Its output, on stdout and stderr. */
static const char *reported(const char *environment)
{
    static char text[4000];
    char path[400], command[1000];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    FILE *f;

    assert_true(n > 0);
    path[n] = '\0';
    snprintf(command, sizeof command, "FAKEGPU_QUIET=0 %s %s leave 2>&1", environment, path);
    f = popen(command, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    pclose(f);
    return text;
}

static void says(const char *environment, const char *what, bool wanted)
{
    const char *text = reported(environment);

    if ((strstr(text, what) != NULL) != wanted)
        fail_msg("%s: '%s' %s '%s'", environment, text, wanted ? "lacks" : "has", what);
}

static void devices_that_are_visible(void **state)
{
    static const struct {
        const char *environment, *what;
    } rows[] = {
        {"FAKEGPU_DEVICES=1", "Fake GPU 0 at 0000:10:00.0; 1024 used"},
        {"FAKEGPU_DEVICES=3", "Fake GPU 0 at 0000:10:00.0; Fake GPU 1 at 0000:11:00.0; Fake GPU 2"},
        {"FAKEGPU_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0",
         "Fake GPU 2 at 0000:12:00.0; Fake GPU 0 at 0000:10:00.0; 1024"},
        {"FAKEGPU_DEVICES=3 CUDA_VISIBLE_DEVICES=1,7,2", "Fake GPU 1 at 0000:11:00.0; 1024"},
        {"FAKEGPU_DEVICES=2 CUDA_VISIBLE_DEVICES=GPU-5a4b7869-1e0f-3c2d-d2c3-f0e19687b401",
         "Fake GPU 1 at 0000:11:00.0; 1024"},
        {"FAKEGPU_DEVICES=2 CUDA_VISIBLE_DEVICES=", "shows no GPU"},
        {"FAKEGPU_DEVICES=0", "shows no GPU"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        says(rows[i].environment, rows[i].what, true);
}

/* What was not freed is reported on request; calls are logged; memory that is never freed is
 * counted for all processes that share the device. */
static void what_is_told(void **state)
{
    char path[] = "/tmp/dptrain-test-XXXXXX", text[200], line[200];
    const int file = mkstemp(path);
    int calls = 0, totals = 0;
    FILE *f;

    (void)state;
    assert_true(file >= 0);
    close(file);
    says("FAKEGPU_LEAKS=1", "fakegpu: leak: device memory 1 of 1000 bytes", true);
    says("FAKEGPU_LEAKS=1", "fakegpu: leak: stream", true);
    says("FAKEGPU_LEAKS=0", "fakegpu", false);
    snprintf(text, sizeof text, "FAKEGPU_LOG=%s", path);
    reported(text);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        calls += strcmp(line, "cuMemAlloc 1000\n") == 0;
        totals += strcmp(line, "total cuMemAlloc 1\n") == 0;
    }
    fclose(f);
    assert_true(calls == 1 && totals == 1);
    assert_int_equal(truncate(path, 0), 0);
    snprintf(text, sizeof text, "FAKEGPU_SHARED=%s", path);
    says(text, "1024 used", true);
    says(text, "2048 used", true);
    unlink(path);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return leave_things();

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_late),
        cmocka_unit_test(pageable_memory),
        cmocka_unit_test(fresh_memory),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(progress),
        cmocka_unit_test(graphs),
        cmocka_unit_test(races),
        cmocka_unit_test(captures_that_fail),
        cmocka_unit_test(memory_has_an_end),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(failures_on_demand),
        cmocka_unit_test(the_host_cannot_touch_it),
        cmocka_unit_test(devices_that_are_visible),
        cmocka_unit_test(what_is_told),
    };

    return cmocka_run_group_tests(tests, fake_scene_begin, fake_scene_end);
}
#else
FAKE_SCENE_WITHOUT
#endif
