/* Tests which calls whole steps make of the driver, and what happens if one of them fails, with the
 * fake device's log. */
#include "core/backend/cuda/tests/steps_device.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#define LOOKS_INSIDE 1
#include "core/backend/cuda/steps/steps.h"
#else
#define LOOKS_INSIDE 0 /* without the toolkit there are no headers of the driver */
#endif

static char folder[] = "/tmp/dptrain-test-XXXXXX";

/* --- the log ---------------------------------------------------------------------------------- */

static int lines_with(const char *text, const char *word)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word))
        n += at == text || at[-1] == '\n';
    return n;
}

/* With one rank a step is one launch. */
static void one_launch(void **state)
{
    struct scene_plan plan = random_plan(601);
    struct scene_result result;
    char path[100];
    struct scene s;
    char *text;

    (void)state;
    snprintf(path, sizeof path, "%s/log", folder);
    fake_set("FAKEGPU_LOG", path);
    plan.steps = 9;
    plan.micros = 3;
    scene_open(&s, &plan);
    device_run(&s, &result);
    fake_set("FAKEGPU_LOG", NULL);
    text = read_file(path);
    assert_int_equal(lines_with(text, "cuGraphLaunch"), plan.steps);
    /* One for each staging buffer, and the short step. */
    assert_in_range(lines_with(text, "cuGraphInstantiate"), plan.staging_buffers,
                    plan.staging_buffers + 1);
    assert_int_equal(lines_with(text, "fakegpu:"), 0);
    free(text);
    unlink(path);
    result_close(&result);
    scene_close(&s);
}

/* The steps 1 ... last of a job, read after each `every` of them. */
static void run_reading(const struct scene *s, int every, struct scene_result *r)
{
    const struct dpt_loss_scale scale =
        dpt_loss_scale_start(s->plan.precision == DPT_PRECISION_FP16, 1);
    struct dpt_error err;
    struct device d;

    result_open(r, s);
    OK(device_open(&d, s, &err));
    OK(cuda->steps->put(d.steps, r->params, r->slot, &scale, &err));
    for (int step = 1; step <= s->plan.steps; step += every) {
        const int left = s->plan.steps + 1 - step, n = left < every ? left : every;

        OK(device_steps(&d, step, step + n - 1, &err));
        if (step % 2 == 0)
            OK(cuda->steps->launch(d.steps, &err));
        else
            device_read(&d, &r->state);
        assert_int_equal(cuda->steps->held(d.steps), 0);
    }
    OK(cuda->steps->get(d.steps, r->params, r->slot, r->gradient, &err));
    device_read(&d, &r->state);
    device_close(&d);
}

static void same_results(const struct scene *s, const struct scene_result *a,
                         const struct scene_result *b)
{
    const size_t bytes = (size_t)s->graph.arena * sizeof(float);

    assert_memory_equal(a->params, b->params, bytes);
    assert_memory_equal(a->gradient, b->gradient, bytes);
    for (int k = 0; k < s->rule.slots; k++)
        assert_memory_equal(a->slot[k], b->slot[k], bytes);
    same_state(&a->state, &b->state);
}

/* Several steps in one launch, whoever fills the staging buffers, in any order that streams allow,
 * and read in between or not: they have the bits of steps that are launched one by one. */
static void several_steps_a_launch(void **state)
{
    char path[100], text[16];

    (void)state;
    snprintf(path, sizeof path, "%s/several", folder);
    for (uint64_t seed = 0; seed < 20; seed += (uint64_t)net_every()) {
        struct scene_plan plan = random_plan(seed + 1200);
        struct scene_result one, several, between;
        struct scene s;
        char *log;

        plan.stored = true;
        plan.steps = 14;
        plan.precision = (enum dpt_precision)(seed % DPT_PRECISIONS);
        plan.weighted = seed % 5 == 1;
        plan.weightless = seed % 5 == 1 ? 6 : 0;
        scene_open(&s, &plan);
        device_run(&s, &one);
        s.plan.at_once = 2 + (int)(seed % 3);
        s.plan.threaded = seed % 2;
        snprintf(text, sizeof text, "%d", (int)seed + 1);
        fake_set("FAKEGPU_SEED", text);
        fake_set("FAKEGPU_LOG", path);
        device_run(&s, &several);
        fake_set("FAKEGPU_LOG", NULL);
        run_reading(&s, 1 + (int)(seed % 7), &between);
        fake_set("FAKEGPU_SEED", NULL);
        same_results(&s, &one, &several);
        same_results(&s, &one, &between);
        log = read_file(path);
        unlink(path);
        /* Steps before the first multiple, some at the end, and a short step are launched alone. */
        assert_in_range(lines_with(log, "cuGraphLaunch"), 4,
                        14 / s.plan.at_once + 2 * (s.plan.at_once - 1) + 1);
        free(log);
        result_close(&one), result_close(&several), result_close(&between);
        scene_close(&s);
    }
}

/* Only short steps of one rank whose samples are on the device. */
static void long_steps_stand_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct scene_plan plan = random_plan(1300);
        struct dpt_error err;
        struct device d;
        struct scene s;

        plan.net = 0, plan.micro = 8, plan.micros = i == 1 ? 1 << 13 : 2, plan.at_once = 4;
        plan.hidden = 5000;
        plan.stored = i != 2;
        plan.reduces = i == 3;
        plan.bucket = 1000;
        scene_open(&s, &plan);
        OK(device_open(&d, &s, &err));
        assert_int_equal(d.staging_buffers, i == 0 ? 8 : plan.staging_buffers);
        device_close(&d);
        scene_close(&s);
    }
}

#if LOOKS_INSIDE
/* The next step's samples, which are large, do not come before this one's gradient: with seed 0 the
 * fake does only what is waited for, and what comes before it on the same stream. */
static void samples_keep_no_bucket_waiting(void **state)
{
    struct scene_plan plan = random_plan(602);
    const struct dpt_loss_scale scale = dpt_loss_scale_start(false, 1);
    const struct dpt_cuda_steps *steps;
    struct dpt_error err;
    struct scene_result r;
    float *at, *tail;
    struct device d;
    struct scene s;
    size_t n;

    (void)state;
    fake_set("FAKEGPU_SEED", "0");
    fake_set("FAKEGPU_IDLE_MS", "0");
    plan.stored = plan.threaded = plan.on_device = false;
    plan.reduces = true;
    plan.steps = 2, plan.staging_buffers = 2;
    scene_open(&s, &plan);
    result_open(&r, &s);
    OK(device_open(&d, &s, &err));
    OK(cuda->steps->put(d.steps, r.params, r.slot, &scale, &err));
    OK(fill(&d, 0, &err));
    OK(fill(&d, 1, &err));
    OK(cuda->steps->compute(d.steps, 0, scene_micros(&s, 0), plan.seed, 0, &err));
    OK(cuda->steps->bucket(d.steps, 0, &at, &n, &tail, &err));
    steps = d.steps;
    fake_set("FAKEGPU_HANG", "1"); /* polling does not make work progress */
    assert_int_equal(steps->p->ctx.lib.cuEventQuery(steps->staging_buffers[1].uploaded),
                     CUDA_ERROR_NOT_READY);
    fake_set("FAKEGPU_HANG", NULL);
    device_close(&d);
    result_close(&r);
    scene_close(&s);
    fake_set("FAKEGPU_SEED", NULL);
    fake_set("FAKEGPU_IDLE_MS", NULL);
}

/* Of queued steps one after the other is waited for, which a watchdog sees. */
static void queued_steps_are_waited_for_one_by_one(void **state)
{
    const struct dpt_loss_scale scale = dpt_loss_scale_start(false, 1);
    struct scene_plan plan = random_plan(601);
    struct dpt_device_waits waits = {0};
    const struct dpt_cuda_steps *steps;
    struct scene_result r;
    struct dpt_error err;
    struct device d;
    struct scene s;

    (void)state;
    plan.threaded = false;
    plan.at_once = 1;
    plan.steps = plan.staging_buffers = 3;
    scene_open(&s, &plan);
    result_open(&r, &s);
    OK(device_open(&d, &s, &err));
    steps = d.steps;
    OK(cuda->steps->put(d.steps, r.params, r.slot, &scale, &err));
    OK(device_steps(&d, 1, 3, &err));
    steps->p->ctx.waits = &waits;
    OK(cuda->steps->read(d.steps, &r.state, &err));
    steps->p->ctx.waits = NULL;
    assert_true(waits.ended >= 3 + 3); /* and the streams */
    assert_true(waits.begun == waits.ended);
    device_close(&d);
    result_close(&r);
    scene_close(&s);
}
#endif

/* A job on one stream, as it is profiled, and as graphs with two branches. */
static void run_profiled(const struct scene *s, struct scene_result *r)
{
    const struct dpt_loss_scale scale =
        dpt_loss_scale_start(s->plan.precision == DPT_PRECISION_FP16, 1);
    struct dpt_span_sum sums[DPT_SPAN_NODES + 64 * DPT_SPAN_PASSES] = {{0}};
    struct dpt_spans spans = {.sum = sums};
    struct dpt_error err;
    struct device d;

    result_open(r, s);
    OK(device_open(&d, s, &err));
    OK(cuda->steps->put(d.steps, r->params, r->slot, &scale, &err));
    cuda->profile(d.program, 0, &spans);
    dpt_spans_begin(&spans);
    OK(device_steps(&d, 1, s->plan.steps, &err));
    cuda->profile(d.program, 0, NULL);
    OK(cuda->steps->read(d.steps, &r->state, &err));
    OK(cuda->steps->get(d.steps, r->params, r->slot, r->gradient, &err));
    device_close(&d);
}

/* The second branch of backward runs as early as possible, as late as possible, and at random: the
 * bits are those of one stream. And the fake refuses a graph in which both may touch the same
 * memory at once. */
static void two_branches(void **state)
{
    static const char *const orders[] = {"2", "3", "5", "9"};

    (void)state;
    for (uint64_t seed = 0; seed < 24; seed += (uint64_t)net_every()) {
        struct scene_plan plan = random_plan(seed + 1000);
        struct scene_result one, two;
        struct scene s;

        plan.net = (int)(seed % 3);
        plan.precision = (enum dpt_precision)(seed / 3 % DPT_PRECISIONS);
        plan.grouped = seed % 5 == 4;
        plan.reduces = seed % 2;
        plan.bucket = seed % 4 == 1 ? 1 : 1000;
        plan.steps = 3;
        scene_open(&s, &plan);
        run_profiled(&s, &one);
        for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
            fake_set("FAKEGPU_SEED", orders[k]);
            device_run(&s, &two);
            assert_memory_equal(one.params, two.params, (size_t)s.graph.arena * sizeof(float));
            assert_memory_equal(one.gradient, two.gradient, (size_t)s.graph.arena * sizeof(float));
            assert_memory_equal(&one.state, &two.state, sizeof one.state);
            result_close(&two);
        }
        fake_set("FAKEGPU_SEED", NULL);
        result_close(&one);
        scene_close(&s);
    }
}

/* The calls whose failure is tried. A capture that cannot be ended stays, and its memory is not
 * freed: so that call is last. */
static const char *const calls[] = {
    "cuMemAlloc",         "cuMemHostAlloc",         "cuMemcpyHtoDAsync",   "cuMemcpyDtoHAsync",
    "cuMemsetD8Async",    "cuMemsetD32Async",       "cuEventCreate",       "cuEventRecord",
    "cuEventSynchronize", "cuStreamWaitEvent",      "cuStreamSynchronize", "cuGraphLaunch",
    "cuGraphInstantiate", "cuStreamBeginCapture",   "cuLaunchKernel",      "cuCtxSetCurrent",
    "cuMemGetInfo",       "cuEventRecordWithFlags", "cudnnBackendExecute", "cublasLtMatmul",
    "cuStreamEndCapture"};

/* The job with the nth call of a function failing. false: there is no nth. */
static bool fails_well(const struct scene *s, const char *call, int n)
{
    struct dpt_error err = {.text = ""};
    struct scene_result r;
    enum dpt_status status;
    char text[100], path[100];
    char *log, *at;

    /* Another name each time, since the fake only notices changes. */
    snprintf(path, sizeof path, "%s/%d-%s-%d", folder, s->plan.reduces, call, n);
    fake_set("FAKEGPU_LOG", path);
    snprintf(text, sizeof text, "%s:%d", call, n);
    fake_set("FAKEGPU_FAIL", text);
    result_open(&r, s);
    status = device_try(s, &r, &err);
    result_close(&r);
    log = read_file(path);
    unlink(path);
    at = strstr(log, "fails on demand");
    if (at != NULL) {
        /* Failures while everything is closed are not reported; and it is no error that the data
         * set does not fit. */
        if (status == DPT_OK && strcmp(call, "cuMemAlloc") != 0 &&
            strstr(at, "cuMemcpyDtoHAsync") != NULL)
            fail_msg("%s fails, and nobody says so", text);
        if (status != DPT_OK && (*err.text == '\0' || strchr(err.text, '\n') != NULL))
            fail_msg("%s: '%s'", text, err.text);
        if (strstr(log, "leak:") != NULL && strcmp(call, "cuStreamEndCapture") != 0)
            fail_msg("%s: %.300s", text, strstr(log, "fakegpu:"));
    }
    free(log);
    return at != NULL;
}

/* Whichever call fails, at whichever place: there is a status and a text, and nothing is leaked. */
static void failures(void **state)
{
    struct scene_plan plan = random_plan(700);
    int hit = 0;

    (void)state;
    fake_set("FAKEGPU_QUIET", "1");
    fake_set("FAKEGPU_LEAKS", "1");
    plan.net = 1;
    plan.micro = 2, plan.micros = 2, plan.steps = 4, plan.staging_buffers = 2;
    plan.stored = true;
    plan.at_once = 2;
    plan.bucket = 1000;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (int reduces = 0; reduces < 2; reduces++) {
            struct scene s;

            plan.reduces = reduces == 1;
            scene_open(&s, &plan);
            for (int n = 1, stride = 1; fails_well(&s, calls[c], n); n += stride, hit++)
                stride += n > 6;
            scene_close(&s);
        }
    assert_true(hit > 100);
    fake_set("FAKEGPU_FAIL", NULL), fake_set("FAKEGPU_LOG", NULL), fake_set("FAKEGPU_LEAKS", NULL);
    fake_set("FAKEGPU_QUIET", NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch),
        cmocka_unit_test(several_steps_a_launch),
        cmocka_unit_test(long_steps_stand_alone),
#if LOOKS_INSIDE
        cmocka_unit_test(samples_keep_no_bucket_waiting),
        cmocka_unit_test(queued_steps_are_waited_for_one_by_one),
#endif
        cmocka_unit_test(two_branches),
        cmocka_unit_test(failures)
    };
    int failed;

    (void)argc;
    if (real_device() || !cuda_begin(argv))
        return left_out("there is no GPU that is faked");
    if (mkdtemp(folder) == NULL)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
