/* Tests measurements on the (fake) GPU: launches repeated by a graph, on numbers that are not zero,
 * without leaving a trace. The fake's clock advances by the time set for each kind of work. */
#include "core/backend/cuda/tests/program_scene.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA

#include <cudnn_graph.h>

#include "core/backend/cuda/program/program.h"

static char folder[] = "/tmp/dptrain-test-XXXXXX";

/* Convolutions with and without groups, whose channels are padded, and dense layers. */
static void net_init(struct scene *s, enum dpt_precision precision)
{
    const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    const struct dpt_window apart = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 3};
    struct draw d = {11};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, 2, 4, 4);
    at = net_simple(&s->graph, net_conv(&s->graph, at, 6, &same, true), DPT_OP_RELU, 0);
    at = net_simple(&s->graph, net_conv(&s->graph, at, 9, &apart, true), DPT_OP_GELU, 0);
    at = net_simple(&s->graph, net_conv(&s->graph, at, 5, &same, true), DPT_OP_RELU, 0);
    at = net_simple(&s->graph, at, DPT_OP_FLATTEN, 0);
    at = net_simple(&s->graph, net_dense(&s->graph, at, 9, true), DPT_OP_RELU, 0);
    net_dense(&s->graph, net_simple(&s->graph, at, DPT_OP_DROPOUT, 0.3f), 4, true);
    s->outputs = 4;
    s->spec = (struct dpt_program_spec){
        .graph = &s->graph, .micro = 5, .threads = 1, .training = true, .precision = precision};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, 5, 5, false, &d);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* Opens a program, and gives its choices and the device's log meanwhile; the caller frees both. */
static void *open_as(const struct scene *s, const char *takes, char **tags, char **log)
{
    static int number;
    struct dpt_str text = {0};
    struct dpt_error err;
    void *program = NULL;
    char path[100];

    snprintf(path, sizeof path, "%s/log%d", folder, number++);
    fake_set("FAKEGPU_LOG", path);
    fake_set("FAKEGPU_TAKES", takes);
    if (cuda->open(&s->spec, &program, &err) != DPT_OK)
        fail_msg("%s", err.text);
    fake_set("FAKEGPU_TAKES", NULL), fake_set("FAKEGPU_LOG", NULL);
    dpt_cuda_program_plans(program, &text);
    *tags = text.text;
    *log = read_file(path);
    unlink(path);
    return program;
}

/* The tag at the end of the line that begins so. */
static void assert_tag(const char *tags, const char *what, const char *tag)
{
    const char *line = strstr(tags, what);

    if (line == NULL)
        fail_msg("no %s in %s", what, tags);
    line = strchr(strchr(line, '\t') + 1, '\t') + 1;
    if (strncmp(line, tag, strlen(tag)) != 0)
        fail_msg("%s: %.*s instead of %s", what, (int)strcspn(line, "\n"), line, tag);
}

static int lines(const char *log, const char *text)
{
    int n = 0;

    for (const char *at = log; (at = strstr(at, text)) != NULL; at++)
        n++;
    return n;
}

/* The plan that is the fastest in a graph is taken, not the one that is launched the fastest, and
 * no other plan stays alive. */
static void graphs_are_timed(void **state)
{
    char *tags, *log, created[64], destroyed[64];
    struct scene s;
    void *program;
    int convolutions = 0;

    (void)state;
    net_init(&s, DPT_PRECISION_FP32);
    program = open_as(&s,
                      "engine 7:50:600,engine 8:800:200,engine 0:10:900,"
                      "algorithm 11:50:600,algorithm 12:900:200,algorithm 10:10:700",
                      &tags, &log);
    assert_tag(tags, "conv1 forward", "+engine=8\n");
    assert_tag(tags, "conv1 filter", "-engine=8\n");
    assert_tag(tags, "conv5 data", "-engine=8\n");
    assert_tag(tags, "dense8 forward", "+algo=12 ");
    assert_null(strstr(log, "reads zeros"));
    snprintf(created, sizeof created, "cudnnBackendCreateDescriptor %d\n",
             CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    snprintf(destroyed, sizeof destroyed, "cudnnBackendDestroyDescriptor %d\n",
             CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    for (const char *at = tags; *at != '\0'; at = strchr(at, '\n') + 1)
        convolutions += strncmp(strchr(at, '\t') + 1, "conv ", 5) == 0;
    assert_true(convolutions == 8);
    assert_int_equal(lines(log, created) - lines(log, destroyed), convolutions);
    free(tags), free(log);
    cuda->close(program);
    scene_release(&s);
}

/* A plan that cannot be captured is not taken if others can, however fast it is; if none can, the
 * first that works is taken. */
static void some_cannot_be_captured(void **state)
{
    char *tags, *log;
    struct scene s;

    (void)state;
    net_init(&s, DPT_PRECISION_FP32);
    cuda->close(open_as(&s, "engine 8:1:-1,engine 7:300:300,engine 0:900:900,algorithm:300:300",
                        &tags, &log));
    assert_tag(tags, "conv1 forward", "+engine=7 ");
    assert_tag(tags, "conv1 filter", "-engine=7 ");
    free(tags), free(log);
    cuda->close(open_as(&s, "engine:1:-1,algorithm:1:-1", &tags, &log));
    assert_tag(tags, "conv1 forward", "+engine=7 ");
    assert_tag(tags, "dense8 forward", "+algo=11 ");
    free(tags), free(log);
    scene_release(&s);
}

/* Plans whose bits vary from run to run are timed, too, and taken if the job allows it; the cost of
 * the others is reported, also if it was measured at an earlier start. A run that does not allow
 * such plans does not take those of a run that does. */
static void bits_have_a_price(void **state)
{
    static const char takes[] = "engine 9:1:200,engine 7:1:500,engine:1:900,"
                                "algorithm 14:1:250,algorithm:1:500";
    static const char *const prices[] = {
        "deterministic kernels take 77.4 % more time (conv5 filter: 500 us against 200 us)",
        "kernels that do not repeat their bits take 43.6 % less time (conv5 filter: 200 us against "
        "500 us)",
    };
    char *tags, *log, *varying = NULL, cache[100], path[128];
    struct scene s;

    (void)state;
    snprintf(cache, sizeof cache, "%s/cache", folder);
    snprintf(path, sizeof path, "%s/gpu-plans.txt", cache);
    net_init(&s, DPT_PRECISION_FP32);
    s.spec.cache = cache;
    for (int i = 0; i < 4; i++) {
        const int allowed = i % 2;
        struct dpt_str text = {0};
        void *program;

        s.spec.varying = allowed;
        program = open_as(&s, takes, &tags, &log);
        assert_int_equal(strstr(log, "cuEventElapsedTime") != NULL, i < 2);
        assert_tag(tags, "conv1 filter", allowed ? "-engine=9\n" : "-engine=7 ");
        assert_tag(tags, "conv1 forward", "+engine=7 ");
        assert_tag(tags, "dense8 filter", allowed ? "-algo=14 " : "-algo=11 ");
        cuda->determinism(program, &text);
        assert_string_equal(text.text, prices[allowed]);
        dpt_str_release(&text);
        cuda->close(program);
        if (i == 1)
            varying = tags;
        else
            free(tags);
        free(log);
    }
    unlink(path), rmdir(cache);
    s.spec.cache = NULL;
    s.spec.plans = varying;
    for (int i = 0; i < 3; i++) {
        s.spec.varying = i == 2;
        s.spec.reproducible = i == 1;
        cuda->close(open_as(&s, takes, &tags, &log));
        assert_tag(tags, "conv1 filter", i == 2 ? "-engine=9\n" : "-engine=7 ");
        free(tags), free(log);
    }
    free(varying);
    scene_release(&s);
}

/* A program whose plans were timed computes like one that was given the same plans. */
static void timing_leaves_nothing(void **state)
{
    (void)state;
    for (int precision = 0; precision < DPT_PRECISIONS; precision++) {
        struct dpt_metric_sums metric_sums_of[2] = {{0}};
        float *gradients[2];
        char *tags = NULL, *again, *log;
        struct scene s;

        net_init(&s, (enum dpt_precision)precision);
        for (int i = 0; i < 2; i++) {
            void *program = open_as(&s, "engine:300:300,algorithm:300:300", &again, &log);
            struct dpt_error err;

            assert_int_equal(strstr(log, "cuEventElapsedTime") == NULL, i);
            assert_null(strstr(log, "reads zeros"));
            if (i == 1)
                assert_string_equal(again, tags);
            gradients[i] = new_arena(&s);
            assert_int_equal(cuda->refresh(program, 0, s.params, &err), DPT_OK);
            train(cuda, &s, program, 0, false, gradients[i], &metric_sums_of[i]);
            cuda->close(program);
            s.spec.plans = i == 0 ? (tags = again) : NULL;
            free(log);
        }
        assert_memory_equal(gradients[0], gradients[1], (size_t)s.graph.floats * sizeof(float));
        assert_memory_equal(&metric_sums_of[0], &metric_sums_of[1], sizeof metric_sums_of[0]);
        dpt_free(gradients[0]), dpt_free(gradients[1]);
        free(tags), free(again);
        scene_release(&s);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_are_timed),
        cmocka_unit_test(some_cannot_be_captured),
        cmocka_unit_test(bits_have_a_price),
        cmocka_unit_test(timing_leaves_nothing),
    };
    int failed;

    (void)argc;
    if (real_device() || !cuda_begin(argv))
        return left_out("there is no GPU that is faked");
    if (mkdtemp(folder) == NULL)
        return 1;
    fake_set("FAKEGPU_QUIET", "1"); /* a capture that ends is logged */
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
