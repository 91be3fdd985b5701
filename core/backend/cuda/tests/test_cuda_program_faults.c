/*
 * Tests programs in which something fails: each call of the libraries, one at a time, memory that
 * does not suffice, damaged files of plans; with the fake device's log.
 */
#include "core/backend/cuda/tests/program_scene.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA

#include "core/backend/cuda/program/program.h"

static char folder[] = "/tmp/dptrain-test-XXXXXX";

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

/* A net with each kind of launch. */
static void net_init(struct scene *s, int32_t micro)
{
    const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    const struct dpt_window halve = {{2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1};
    struct draw d = {11};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, 2, 4, 4);
    at = net_simple(&s->graph, net_conv(&s->graph, at, 6, &same, true), DPT_OP_RELU, 0);
    at = net_pool(&s->graph, at, DPT_OP_MAXPOOL, &halve);
    at = net_simple(&s->graph, net_conv(&s->graph, at, 5, &same, true), DPT_OP_GELU, 0);
    at = net_simple(&s->graph, at, DPT_OP_FLATTEN, 0);
    at = net_simple(&s->graph, net_dense(&s->graph, at, 9, true), DPT_OP_RELU, 0);
    net_dense(&s->graph, net_simple(&s->graph, at, DPT_OP_DROPOUT, 0.3f), 4, true);
    s->outputs = 4;
    s->spec = (struct dpt_program_spec){
        .graph = &s->graph, .micro = micro, .threads = 1, .training = true};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, micro < 8 ? micro : 8, micro < 8 ? micro : 8, false, &d);
}

/* --- every call ------------------------------------------------------------------------------- */

static enum dpt_status whole_life(const struct scene *s, float *gradient, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_metric_sums metric_sums[4] = {{0}};
    void *program = NULL;
    float y[64];

    DPT_TRY(cuda->open(&s->spec, &program, err));
    DPT_TRY(cuda->refresh(program, 0, s->params, err));
    DPT_TRY(cuda->train(program, 0, &s->batch.batch, s->params, gradient, false, metric_sums, err));
    DPT_TRY(cuda->infer(program, 0, &s->batch.batch, s->params, y, metric_sums, err));
    DPT_TRY(cuda->scale(program, 2, err));
out:
    if ((status == DPT_OK) != (program != NULL) && status == DPT_OK)
        fail_msg("opened, and nothing is there");
    cuda->close(program);
    return status;
}

/* Whichever call fails, at whichever place: there is a status and a text, and nothing is leaked. */
static void failures(void **state)
{
    static const char *const calls[] = {"cuInit",
                                        "cuDeviceGetCount",
                                        "cuDeviceGet",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuModuleLoadData",
                                        "cuModuleGetFunction",
                                        "cuStreamCreateWithPriority",
                                        "cuEventCreate",
                                        "cuEventRecord",
                                        "cuEventSynchronize",
                                        "cuEventElapsedTime",
                                        "cuStreamBeginCapture",
                                        "cuStreamEndCapture",
                                        "cuGraphInstantiate",
                                        "cuGraphLaunch",
                                        "cuDeviceGetName",
                                        "cuMemGetInfo",
                                        "cuMemAlloc",
                                        "cuMemHostAlloc",
                                        "cuMemsetD8Async",
                                        "cuMemsetD32Async",
                                        "cuMemcpyHtoDAsync",
                                        "cuMemcpyDtoHAsync",
                                        "cuMemcpyDtoDAsync",
                                        "cuStreamSynchronize",
                                        "cuLaunchKernel",
                                        "cudnnCreate",
                                        "cudnnSetStream",
                                        "cudnnBackendCreateDescriptor",
                                        "cudnnBackendSetAttribute",
                                        "cudnnBackendGetAttribute",
                                        "cudnnBackendExecute",
                                        "cublasLtCreate",
                                        "cublasLtMatmulDescCreate",
                                        "cublasLtMatrixLayoutCreate",
                                        "cublasLtMatmulPreferenceCreate",
                                        "cublasLtMatmul"};
    char path[100], text[100];
    struct scene s;
    float *gradient;
    int hit = 0;

    (void)state;
    net_init(&s, 6);
    s.spec.sub_batch = 2;
    s.spec.adds = 9;
    gradient = new_arena(&s);
    fake_set("FAKEGPU_QUIET", "1");
    fake_set("FAKEGPU_LEAKS", "1");
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (int n = 1, stride = 1;; n += stride, stride += n > 8 ? n / 3 : n > 3) {
            struct dpt_error err = {.text = ""};
            enum dpt_status status;
            char *log;

            s.spec.reproducible = n % 2;
            /* Another name each time, since the fake only notices changes. */
            snprintf(path, sizeof path, "%s/%zu-%d", folder, c, n);
            fake_set("FAKEGPU_LOG", path);
            snprintf(text, sizeof text, "%s:%d", calls[c], n);
            fake_set("FAKEGPU_FAIL", text);
            status = whole_life(&s, gradient, &err);
            log = read_file(path);
            unlink(path);
            if (strstr(log, "fails on demand") == NULL) {
                assert_int_equal(status, DPT_OK);
                free(log);
                break;
            }
            hit++;
            if (status != DPT_OK && (*err.text == '\0' || strchr(err.text, '\n') != NULL))
                fail_msg("%s: '%s'", text, err.text);
            if (strstr(log, "leak:") != NULL)
                fail_msg("%s: %.300s", text, strstr(log, "leak:"));
            free(log);
        }
    assert_true(hit > 100);
    fake_set("FAKEGPU_FAIL", NULL), fake_set("FAKEGPU_LOG", NULL);
    fake_set("FAKEGPU_LEAKS", NULL), fake_set("FAKEGPU_QUIET", NULL);
    dpt_free(gradient);
    scene_release(&s);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The number after a word of a text. */
static int number_before(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    assert_non_null(at);
    while (at > text && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9')))
        at--;
    return atoi(at);
}

/* The error for a micro-batch that is too large names one that should fit. It fits, or, since
 * shapes do not determine the workspace of plans, the one named next does; and it is not much too
 * small. If none fits, that is reported. */
static void the_micro_that_fits(void **state)
{
    static const int64_t memories[] = {24 << 20, 48 << 20, 100 << 20};

    (void)state;
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++) {
        struct dpt_error err = {.text = ""};
        void *program = NULL;
        struct scene s;
        char text[32];
        int tries = 0;

        snprintf(text, sizeof text, "%lld", (long long)memories[i]);
        fake_set("FAKEGPU_MEMORY", text);
        net_init(&s, 2000000);
        s.spec.reproducible = true;
        while (cuda->open(&s.spec, &program, &err) != DPT_OK) {
            assert_int_equal(err.status, DPT_BAD_JOB);
            assert_null(program);
            assert_non_null(strstr(err.text, "batch.micro"));
            assert_null(strchr(err.text, '\n'));
            s.spec.micro = number_before(err.text, " should fit");
            assert_true(++tries < 4);
        }
        assert_true(tries > 0);
        cuda->close(program);
        s.spec.micro *= 3;
        assert_int_equal(cuda->open(&s.spec, &program, &err), DPT_BAD_JOB);
        scene_release(&s);
    }
    {
        struct dpt_error err = {.text = ""};
        void *program = NULL;
        struct scene s;

        fake_set("FAKEGPU_MEMORY", "4096");
        net_init(&s, 2);
        assert_int_equal(cuda->open(&s.spec, &program, &err), DPT_BAD_JOB);
        assert_non_null(strstr(err.text, "no batch.micro fits"));
        scene_release(&s);
    }
    fake_set("FAKEGPU_MEMORY", NULL);
}

/* --- plans ------------------------------------------------------------------------------------ */

static int timings(const char *log)
{
    int n = 0;

    for (const char *at = log; (at = strstr(at, "cuEventElapsedTime")) != NULL; at++)
        n++;
    return n;
}

/* Opens a program, and gives the number of timings that this took; tags: out, the caller frees. */
static int open_and_count(const struct scene *s, char **tags)
{
    static int number;
    struct dpt_str text = {0};
    struct dpt_error err;
    void *program = NULL;
    char path[100], *log;
    int n;

    snprintf(path, sizeof path, "%s/log%d", folder, number++);
    fake_set("FAKEGPU_LOG", path);
    if (cuda->open(&s->spec, &program, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_cuda_program_plans(program, &text);
    cuda->close(program);
    fake_set("FAKEGPU_LOG", NULL);
    log = read_file(path);
    unlink(path);
    n = timings(log);
    free(log);
    *tags = text.text;
    return n;
}

/* The first start times plans and stores the fastest; the next start takes these, whatever else is
 * in the file; damaged entries are measured again. */
static void plans_are_kept(void **state)
{
    char cache[100], path[128], *first, *again, *text;
    struct scene s;

    (void)state;
    snprintf(cache, sizeof cache, "%s/a/b", folder);
    snprintf(path, sizeof path, "%s/gpu-plans.txt", cache);
    net_init(&s, 4);
    s.spec.cache = cache;
    assert_true(open_and_count(&s, &first) > 0);
    assert_int_equal(open_and_count(&s, &again), 0);
    assert_string_equal(first, again);
    free(again);
    text = read_file(path);
    {
        struct dpt_str other = {0};

        dpt_str_printf(&other, "%.*sa line of others\n\nno tag\t\n%sthe last one",
                       (int)strcspn(text, "\n") + 1, text, strchr(text, '\n') + 1);
        write_file(path, other.text);
        dpt_str_release(&other);
    }
    assert_int_equal(open_and_count(&s, &again), 0);
    assert_string_equal(first, again);
    free(again);
    for (char *at = text; *at != '\0'; at++)
        if (*at == '\t' && (at[1] == '+' || at[1] == '-'))
            at[1] = 'x';
    write_file(path, text);
    assert_true(open_and_count(&s, &again) > 0);
    free(again);
    assert_int_equal(open_and_count(&s, &again), 0);
    free(again);
    /* Choices that were not measured in this way count for nothing. */
    free(text);
    text = read_file(path);
    write_file(path, strchr(text, '\n') + 1);
    assert_true(open_and_count(&s, &again) > 0);
    free(again);
    assert_int_equal(open_and_count(&s, &again), 0);
    free(again);
    free(text);
    text = read_file(path);
    assert_memory_equal(text, "# ", 2);
    free(text);
    /* Another micro-batch is another problem; known plans stay. */
    s.spec.micro = 5;
    assert_true(open_and_count(&s, &again) > 0);
    free(again);
    s.spec.micro = 4;
    assert_int_equal(open_and_count(&s, &again), 0);
    free(again);
    unlink(path);
    /* If bits must follow from the job, nothing is timed, read or written. */
    s.spec.reproducible = true;
    assert_int_equal(open_and_count(&s, &again), 0);
    assert_true(access(path, F_OK) != 0);
    free(first);
    free(again);
    rmdir(cache);
    *strrchr(cache, '/') = '\0';
    rmdir(cache);
    scene_release(&s);
}

/* A plan with so many knobs that its tag is too long is left out, and the others are taken. */
static void plans_without_a_name_are_left_out(void **state)
{
    static const char *const knobs[] = {"30", "40"};
    char *usual, *text;
    struct scene s;

    (void)state;
    net_init(&s, 4);
    s.spec.precision = DPT_PRECISION_TF32;
    s.spec.reproducible = true;
    open_and_count(&s, &usual);
    assert_non_null(strstr(usual, "engine=3 "));
    for (int k = 0; k < 2; k++) {
        fake_set("FAKEGPU_KNOBS", knobs[k]);
        open_and_count(&s, &text);
        assert_null(strstr(text, "engine=3 "));
        free(text);
    }
    fake_set("FAKEGPU_KNOBS", NULL);
    free(usual);
    scene_release(&s);
}

/* The text with this tag for each convolution; the first one gets a tag of no engine. */
static char *with_others(const char *text, const char *given, bool damaged)
{
    struct dpt_str other = {0};

    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        const size_t n = strcspn(line, "\n"), problem = strcspn(line, "\t") + 1;
        const size_t tag = problem + strcspn(line + problem, "\t") + 1;

        if (strncmp(line + problem, "conv ", 5) == 0) {
            dpt_str_add(&other, line, tag);
            dpt_str_printf(&other, "%s\n", damaged && line == text ? "-engine=x" : given);
        } else {
            dpt_str_add(&other, line, n + 1);
        }
    }
    assert_false(other.failed);
    return other.text;
}

/* Earlier choices are taken again, whether plans are timed or not; if one is not available the
 * choice is made as usual. */
static void plans_are_taken(void **state)
{
    char *first, *again, *given;
    struct scene s;

    (void)state;
    net_init(&s, 4);
    s.spec.reproducible = true;
    open_and_count(&s, &first);
    given = with_others(first, "-engine=0", false);
    assert_string_not_equal(first, given);
    for (int i = 0; i < 2; i++) {
        s.spec.plans = given;
        s.spec.reproducible = i == 0;
        assert_int_equal(open_and_count(&s, &again), 0);
        assert_string_equal(again, given);
        free(again);
    }
    free(given);
    s.spec.plans = given = with_others(first, "-engine=0", true);
    s.spec.reproducible = true;
    open_and_count(&s, &again);
    assert_memory_equal(again, first, strcspn(first, "\n"));
    assert_string_equal(strchr(again, '\n'), strchr(given, '\n'));
    free(again);
    /* A tag of another problem. */
    s.spec.micro = 5;
    open_and_count(&s, &again);
    assert_null(strstr(again, "engine=0\n"));
    free(again);
    free(given);
    free(first);
    scene_release(&s);
}

/* Writes the plans of a program as the cache's file has them: problem and tag, after its
 * heading. */
static void write_cache(const char *path, const char *plans)
{
    struct dpt_str text = {0};
    char *kept = read_file(path);

    dpt_str_add(&text, kept, strcspn(kept, "\n") + 1);
    for (const char *line = plans; *line != '\0'; line = strchr(line, '\n') + 1) {
        const char *problem = line + strcspn(line, "\t") + 1;

        dpt_str_add(&text, problem, strcspn(problem, "\n") + 1);
    }
    assert_false(text.failed);
    write_file(path, text.text);
    dpt_str_release(&text);
    free(kept);
}

static int64_t bytes_with(struct scene *s, const char *plans)
{
    struct dpt_error err;
    void *program = NULL;
    int64_t bytes;

    s->spec.plans = plans;
    if (cuda->open(&s->spec, &program, &err) != DPT_OK)
        fail_msg("%s", err.text);
    bytes = cuda->bytes(program);
    cuda->close(program);
    return bytes;
}

/* Plans chosen earlier may need a workspace for which other programs have left no memory. Then
 * other plans are taken that fit, and the faster ones stay in the file; if bits must follow from
 * the job, this is an error, which says so. */
static void plans_that_do_not_fit(void **state)
{
    char cache[100], path[128], memory[32], *first, *large, *small, *again, *kept, *after;
    float *g, *g_after;
    struct dpt_metric_sums sums = {0};
    struct dpt_error err = {.text = ""};
    void *program = NULL;
    int64_t least, most;
    struct scene s;

    (void)state;
    net_init(&s, 3000);
    s.spec.reproducible = true;
    open_and_count(&s, &first);
    large = with_others(first, "-engine=7 0=1", false);
    small = with_others(first, "-engine=0", false);
    least = bytes_with(&s, small);
    most = bytes_with(&s, large);
    assert_true(most > least + (2 << 20));
    snprintf(memory, sizeof memory, "%lld", (long long)(least + (most - least) / 2));
    fake_set("FAKEGPU_MEMORY", memory);
    s.spec.plans = large;
    assert_int_equal(cuda->open(&s.spec, &program, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "should fit; with `comm.reduction: reproducible` no kernels"));
    assert_null(strchr(err.text, '\n'));
    /* The plans of a checkpoint. */
    s.spec.reproducible = false;
    open_and_count(&s, &again);
    assert_string_not_equal(again, large);
    for (const char *a = again, *b = large; *b != '\0';
         a = strchr(a, '\n') + 1, b = strchr(b, '\n') + 1) {
        const size_t problem = strcspn(b, "\t") + 1, tag = problem + strcspn(b + problem, "\t");

        assert_memory_equal(a, b, tag);
        if (strncmp(b + problem, "conv ", 5) != 0) /* it needs less, so it stays */
            assert_memory_equal(a, b, strcspn(b, "\n"));
    }
    /* The plans taken work as they do when they are requested. */
    g = new_arena(&s), g_after = new_arena(&s);
    program = open_program(cuda, &s);
    train(cuda, &s, program, 0, false, g, &sums);
    cuda->close(program);
    s.spec.plans = again;
    program = open_program(cuda, &s);
    train(cuda, &s, program, 0, false, g_after, &sums);
    cuda->close(program);
    assert_memory_equal(g, g_after, (size_t)s.graph.arena * sizeof *g);
    free(again);
    /* The plans of the cache. */
    fake_set("FAKEGPU_MEMORY", NULL);
    snprintf(cache, sizeof cache, "%s/c", folder);
    snprintf(path, sizeof path, "%s/gpu-plans.txt", cache);
    s.spec.plans = NULL;
    s.spec.cache = cache;
    open_and_count(&s, &again);
    free(again);
    write_cache(path, large);
    kept = read_file(path);
    for (int round = 0; round < 3; round++) {
        fake_set("FAKEGPU_MEMORY", round == 1 ? memory : NULL);
        open_and_count(&s, &again);
        assert_true((strcmp(again, large) == 0) == (round != 1));
        free(again);
        after = read_file(path);
        assert_string_equal(after, kept);
        free(after);
    }
    unlink(path);
    rmdir(cache);
    dpt_free(g), dpt_free(g_after);
    free(first), free(large), free(small), free(kept);
    scene_release(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures),        cmocka_unit_test(the_micro_that_fits),
        cmocka_unit_test(plans_are_kept),  cmocka_unit_test(plans_without_a_name_are_left_out),
        cmocka_unit_test(plans_are_taken), cmocka_unit_test(plans_that_do_not_fit),
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

#else

int main(void)
{
    return left_out("built without CUDA");
}

#endif
