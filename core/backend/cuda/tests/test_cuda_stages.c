/*
 * Stages of a pipeline: programs that each compute a range of a graph's nodes, and give each other
 * what crosses a cut, compute the bits of a program of the whole graph, in any of their
 * micro-batches in flight. They report the same plans, and hold less.
 */
#include "core/backend/tests/left_out.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA

#include "core/backend/cuda/program/program.h"
#include "core/backend/cuda/tests/program_scene.h"
#include "core/comm/sums/tree.h"

enum { GRAPHS = 40, MOST = 4, IN_FLIGHT = 2, ROUNDING = 16 << 10 };

struct stage {
    struct dpt_graph graph;
    float *params, *gradient; /* of its own tensors */
    void *program;
};

struct stages {
    struct stage stage[MOST];
    int32_t first[MOST + 1];
    int n;
};

/* --- graphs and cuts -------------------------------------------------------------------------- */

/* Two groups of branches and a dense layer or two, each after a layer that may begin a stage. */
static void stages_init(struct scene *s, int seed)
{
    static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
    struct draw d = {(uint64_t)seed + 70000};
    int32_t at;

    *s = (struct scene){0};
    note(s, "graph %d", seed);
    at = net_input(&s->graph, draw_int(&d, 1, 9), draw_int(&d, 2, 6), draw_int(&d, 2, 6));
    for (int k = 0; k < 2; k++) {
        at = net_conv(&s->graph, at, draw_int(&d, 1, 12), &same, draw_int(&d, 0, 1));
        if (draw_int(&d, 0, 1))
            at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
        at = net_branches(&s->graph, at, 4, &d);
    }
    at = net_simple(&s->graph, at, draw_int(&d, 0, 1) ? DPT_OP_FLATTEN : DPT_OP_GLOBAL_AVGPOOL, 0);
    for (int k = draw_int(&d, 0, 1); k > 0; k--)
        at = net_simple(&s->graph, net_dense(&s->graph, at, draw_int(&d, 3, 20), true), DPT_OP_GELU,
                        0);
    at = net_dense(&s->graph, at, 7, true);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                        .micro = draw_int(&d, 2, 5),
                                        .threads = 1,
                                        .training = true,
                                        .precision = (enum dpt_precision)(seed % DPT_PRECISIONS),
                                        .reproducible = true};
    if (seed % 3 == 0)
        net_freeze(&s->graph, (uint64_t)seed);
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro), true, &d);
}

/* As dpt_mesh_may_begin (core/train/mesh/mesh.h). */
static bool may_begin(const struct dpt_graph *g, int32_t node)
{
    const struct dpt_graph_node *at = &g->nodes[node];

    if ((at->op != DPT_OP_CONV && at->op != DPT_OP_DENSE) || at->inputs[0] == 0)
        return false;
    for (int32_t i = node; i < g->n_nodes; i++)
        for (int32_t k = 0; k < g->nodes[i].n_inputs; k++)
            if (g->nodes[i].inputs[k] < node && g->nodes[i].inputs[k] != at->inputs[0])
                return false;
    return true;
}

static void cut(struct stages *all, const struct scene *s, struct draw *d)
{
    *all = (struct stages){.n = 1};
    for (int32_t i = 1; i < s->graph.n_nodes && all->n < MOST; i++)
        if (may_begin(&s->graph, i) && draw_int(d, 0, 2) > 0)
            all->first[all->n++] = i;
    all->first[all->n] = s->graph.n_nodes;
}

/* Copies a stage's tensors from an arena of the whole graph, or to it. */
static void copy_tensors(const struct scene *s, const struct dpt_graph *part, float *own,
                         float *whole, bool to_whole)
{
    for (int32_t k = 0; k < part->n_tensors; k++) {
        const size_t bytes = (size_t)part->tensors[k].count * sizeof *own;
        float *a = own + part->tensors[k].offset, *b = whole + s->graph.tensors[k].offset;

        memcpy(to_whole ? b : a, to_whole ? a : b, bytes);
    }
}

static void open_stage(struct stage *stage, const struct scene *s, int32_t first, int32_t last)
{
    struct dpt_program_spec spec = s->spec;
    struct dpt_program_bytes bytes, all;
    int64_t learned, state;
    struct dpt_error err;

    assert_int_equal(dpt_graph_part(&s->graph, &(struct dpt_part){first, last, 0, 1}, &stage->graph,
                                    &learned, &state, &err),
                     DPT_OK);
    stage->params = dpt_alloc_array((size_t)stage->graph.arena + 1, sizeof *stage->params);
    stage->gradient = dpt_alloc_array((size_t)stage->graph.arena + 1, sizeof *stage->params);
    copy_tensors(s, &stage->graph, stage->params, s->params, false);
    spec.graph = &stage->graph;
    spec.first = first;
    spec.last = last;
    spec.in_flight = IN_FLIGHT;
    if (cuda->open(&spec, &stage->program, &err) != DPT_OK)
        fail_msg("%s: nodes %d to %d: %s", s->text, first, last, err.text);
    assert_int_equal(cuda->refresh(stage->program, 0, stage->params, &err), DPT_OK);
    assert_int_equal(cuda->measure(&spec, &bytes, &err), DPT_OK);
    assert_int_equal(cuda->measure(&s->spec, &all, &err), DPT_OK);
    assert_true(bytes.values <= IN_FLIGHT * all.values && bytes.copies <= all.copies);
    assert_true(last - first == s->graph.n_nodes || bytes.copies < all.copies);
    /* The sizes differ by the workspace, the tables of layouts, and rounding up. */
    assert_in_range(cuda->bytes(stage->program) + ROUNDING, bytes.values + bytes.copies,
                    bytes.values + bytes.copies + bytes.scratch + 2 * ROUNDING);
}

/* --- passes ----------------------------------------------------------------------------------- */

/* The values that stage k gives the next one, or the gradients that it gets back. */
static void cross(const struct stages *all, int k, int flight, bool gradient)
{
    const struct stage *before = &all->stage[k], *after = &all->stage[k + 1];
    const int32_t node = all->first[k + 1];
    size_t floats, same;
    float *a = cuda->value(before->program, 0, flight, node, gradient, &floats);
    float *b = cuda->value(after->program, 0, flight, node, gradient, &same);

    assert_true(floats == same && floats > 0 && (a == NULL) == (b == NULL));
    assert_true(a != NULL || gradient);
    if (a != NULL)
        memcpy(gradient ? a : b, gradient ? b : a, floats * sizeof *a);
}

static struct dpt_pass pass_of(const struct stages *all, const struct scene *s, int k, int flight,
                               bool infers)
{
    return (struct dpt_pass){.flight = flight,
                             .first = all->first[k],
                             .last = all->first[k + 1],
                             .infers = infers,
                             .batch = &s->batch.batch,
                             .params = all->stage[k].params,
                             .state = all->stage[k].params,
                             .gradient = infers ? NULL : all->stage[k].gradient};
}

/* Also the loss; y: the outputs, of a pass that infers. */
static void go_forward(const struct stages *all, const struct scene *s, int flight, float *y,
                       struct dpt_metric_sums *sums)
{
    const size_t bytes = s->outputs * (size_t)s->batch.batch.count * sizeof *y;
    struct dpt_error err;
    size_t floats;

    for (int k = 0; k < all->n; k++) {
        const struct dpt_pass pass = pass_of(all, s, k, flight, y != NULL);
        void *program = all->stage[k].program;

        assert_int_equal(cuda->forward(program, 0, &pass, &err), DPT_OK);
        if (k + 1 < all->n) {
            cross(all, k, flight, false);
            continue;
        }
        assert_int_equal(cuda->loss(program, 0, &pass, sums, &err), DPT_OK);
        if (y != NULL)
            memcpy(y, cuda->value(program, 0, flight, s->graph.n_nodes, false, &floats), bytes);
    }
}

static void go_back(const struct stages *all, const struct scene *s, int flight)
{
    struct dpt_error err;

    for (int k = all->n - 1; k >= 0; k--) {
        const struct dpt_pass pass = pass_of(all, s, k, flight, false);

        assert_int_equal(cuda->backward(all->stage[k].program, 0, &pass, &err), DPT_OK);
        if (k > 0)
            cross(all, k - 1, flight, true);
    }
}

/* --- the same bits ---------------------------------------------------------------------------- */

static void assert_same_tensors(const struct scene *s, const float *a, const float *b)
{
    for (int32_t k = 0; k < s->graph.n_tensors; k++) {
        const struct dpt_tensor *t = &s->graph.tensors[k];

        if (memcmp(a + t->offset, b + t->offset, (size_t)t->count * sizeof *a) != 0)
            fail_msg("%s: the gradient of %s is another one", s->text, t->name);
    }
}

static void assert_bits(const struct scene *s, const struct stages *all, void *whole)
{
    const size_t bytes = s->outputs * (size_t)s->batch.batch.count * sizeof(float);
    float *g = new_arena(s), *g_stages = new_arena(s);
    float *y = dpt_alloc_array(bytes, 1), *y_stages = dpt_alloc_array(bytes, 1);

    for (int flight = IN_FLIGHT - 1; flight >= 0; flight--) {
        struct dpt_metric_sums wanted = {0}, got = {0};

        infer(cuda, s, whole, y, &wanted);
        go_forward(all, s, flight, y_stages, &got);
        assert_memory_equal(y, y_stages, bytes);
        train(cuda, s, whole, 0, false, g, &wanted);
        go_forward(all, s, flight, NULL, &got);
        go_back(all, s, flight);
        for (int k = 0; k < all->n; k++)
            copy_tensors(s, &all->stage[k].graph, all->stage[k].gradient, g_stages, true);
        assert_same_tensors(s, g, g_stages);
        assert_true(wanted.loss == got.loss && wanted.correct == got.correct);
    }
    dpt_free(g), dpt_free(g_stages), dpt_free(y), dpt_free(y_stages);
}

static void stages_are_the_whole(void **state)
{
    int cuts = 0;

    (void)state;
    for (int i = 0; i < GRAPHS; i += net_every()) {
        struct dpt_str wanted = {0}, got = {0};
        struct draw d = {(uint64_t)i};
        struct stages all;
        struct scene s;
        void *whole;

        stages_init(&s, i);
        cut(&all, &s, &d);
        cuts += all.n - 1;
        whole = open_program(cuda, &s);
        cuda->plans(whole, &wanted);
        for (int k = 0; k < all.n; k++) {
            open_stage(&all.stage[k], &s, all.first[k], all.first[k + 1]);
            dpt_str_clear(&got);
            cuda->plans(all.stage[k].program, &got);
            assert_string_equal(got.text, wanted.text);
        }
        assert_bits(&s, &all, whole);
        for (int k = 0; k < all.n; k++) {
            cuda->close(all.stage[k].program);
            dpt_graph_release(&all.stage[k].graph);
            dpt_free(all.stage[k].params);
            dpt_free(all.stage[k].gradient);
        }
        cuda->close(whole);
        dpt_str_release(&wanted);
        dpt_str_release(&got);
        scene_release(&s);
    }
    assert_true(cuts > GRAPHS / net_every());
}

/* --- sums on the device ----------------------------------------------------------------------- */

enum { LEAVES = 11 };

struct leaves {
    struct owned_batch data[LEAVES];
    float *gradient[LEAVES];
    int32_t n, adds;
};

/* The gradient of each micro-batch by itself, added by the host into the first one's arena: along
 * the tree or one after another. */
static void sum_on_host(struct scene *s, struct leaves *l)
{
    void *program = open_program(cuda, s);
    struct dpt_tree tree;

    dpt_tree_begin(&tree, l->n);
    for (int32_t k = 0; k < l->n; k++) {
        struct dpt_metric_sums sums = {0};

        l->gradient[k] = new_arena(s);
        s->batch = l->data[k];
        train(cuda, s, program, 0, false, l->gradient[k], &sums);
        if (s->spec.reproducible)
            dpt_tree_push(&tree, (struct dpt_block){k, 0}, l->gradient[k], (size_t)s->graph.arena,
                          NULL, NULL);
        for (int64_t i = 0; !s->spec.reproducible && k > 0 && i < s->graph.arena; i++)
            l->gradient[0][i] += l->gradient[k][i];
    }
    cuda->close(program);
}

/* Forward, and backward in two ranges, for the learned tensors alone. */
static void pass_in_ranges(struct scene *s, void *program, int32_t node, float *gradient,
                           float *state)
{
    struct dpt_pass pass = {.last = s->graph.n_nodes,
                            .batch = &s->batch.batch,
                            .params = s->params,
                            .state = s->params,
                            .gradient = state};
    struct dpt_metric_sums sums = {0};
    struct dpt_error err;

    assert_int_equal(cuda->forward(program, 0, &pass, &err), DPT_OK);
    assert_int_equal(cuda->loss(program, 0, &pass, &sums, &err), DPT_OK);
    pass.gradient = gradient;
    pass.first = node;
    assert_int_equal(cuda->backward(program, 0, &pass, &err), DPT_OK);
    pass.first = 0;
    pass.last = node;
    assert_int_equal(cuda->backward(program, 0, &pass, &err), DPT_OK);
}

/* The gradient is written with the last micro-batch, and not touched before. */
static void sum_on_device(struct scene *s, const struct leaves *l, bool passes, struct draw *d)
{
    float *g = new_arena(s), *state = new_arena(s);
    const int32_t node = draw_int(d, 1, s->graph.n_nodes - 1);
    struct dpt_program_bytes bytes, all;
    struct dpt_error err;
    void *program;
    int64_t held;

    program = open_program(cuda, s);
    held = cuda->bytes(program);
    assert_int_equal(cuda->adds(program), 1);
    cuda->close(program);
    s->spec.adds = l->adds;
    program = open_program(cuda, s);
    assert_int_equal(cuda->adds(program), l->adds);
    assert_int_equal(cuda->measure(&s->spec, &bytes, &err), DPT_OK);
    assert_int_equal(cuda->bytes(program), held + bytes.sums);
    s->spec.adds = 0;
    assert_int_equal(cuda->measure(&s->spec, &all, &err), DPT_OK);
    assert_true(all.sums == 0 && all.copies == bytes.copies && all.values == bytes.values);
    for (int64_t i = 0; i < s->graph.arena; i++)
        g[i] = 7;
    for (int32_t k = 0; k < l->n; k++) {
        struct dpt_metric_sums sums = {0};

        for (int64_t i = 0; i < s->graph.arena; i++)
            assert_true(g[i] == 7);
        s->batch = l->data[k];
        s->batch.batch.before = k;
        s->batch.batch.more = k + 1 < l->n;
        if (passes)
            pass_in_ranges(s, program, node, g, state);
        else
            train(cuda, s, program, 0, false, g, &sums);
    }
    for (int32_t k = 0; k < s->graph.n_tensors; k++) {
        const struct dpt_tensor *t = &s->graph.tensors[k];

        if (!(passes && t->state) &&
            memcmp(g + t->offset, l->gradient[0] + t->offset, (size_t)t->count * sizeof *g) != 0)
            fail_msg("%s: %d micro-batches: the sum of %s is another one", s->text, l->n, t->name);
    }
    cuda->close(program);
    dpt_free(g), dpt_free(state);
}

/* For any number of micro-batches, by whole passes and by ranges, the sums are bitwise those of the
 * host; and they take as much memory as is measured. */
static void sums_are_the_hosts(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPHS; i += net_every()) {
        struct draw d = {(uint64_t)i};
        struct leaves l = {.n = draw_int(&d, 1, LEAVES)};
        struct scene s;

        stages_init(&s, i);
        batch_release(&s.batch);
        s.spec.reproducible = i % 3 > 0;
        l.adds = draw_int(&d, l.n, LEAVES);
        for (int32_t k = 0; k < l.n; k++)
            batch_fill(&l.data[k], &s.graph, s.spec.micro, draw_int(&d, 1, s.spec.micro), true, &d);
        sum_on_host(&s, &l);
        sum_on_device(&s, &l, i % 2, &d);
        s.batch = l.data[0];
        for (int32_t k = 0; k < l.n; k++) {
            dpt_free(l.gradient[k]);
            if (k > 0)
                batch_release(&l.data[k]);
        }
        scene_release(&s);
    }
}

/* --- layouts ---------------------------------------------------------------------------------- */

enum { NAMES = 100 };

static char folder[] = "/tmp/dptrain-test-XXXXXX";

/* Begins a log; log_end gives its text, to be freed. */
static void log_begin(char path[NAMES])
{
    static int number;

    /* Another name each time, since the fake only notices changes. */
    snprintf(path, NAMES, "%s/%d", folder, number++);
    fake_set("FAKEGPU_LOG", path);
}

static char *log_end(const char *path)
{
    char *log;

    fake_set("FAKEGPU_LOG", NULL);
    log = read_file(path);
    unlink(path);
    return log;
}

/* The blocks of all launches of a kernel, of any type, from the log, which is freed. */
static int64_t blocks_in(char *log, const char *kernel, int *launches)
{
    char text[NAMES];
    int64_t blocks = 0;

    snprintf(text, sizeof text, "cuLaunchKernel dpt_cuda_%s_", kernel);
    *launches = 0;
    for (const char *at = log; (at = strstr(at, text)) != NULL; at++) {
        long long x, y;

        assert_int_equal(sscanf(at, "%*s %*s grid %lldx%lld", &x, &y), 2);
        blocks += x * y;
        (*launches)++;
    }
    free(log);
    return blocks;
}

/* The blocks in which some thread has something to convert. each: elements that a thread
 * converts. */
static int64_t blocks_of(const struct dpt_cuda_program *p, const struct dpt_cuda_layout_run *run,
                         int each)
{
    int64_t blocks = 0;

    for (int k = run->first; k < run->first + run->n; k++) {
        const struct dpt_cuda_layout *l = &p->lists->layouts[k];
        const int64_t n = each > 1 ? (int64_t)l->padded_outputs * l->padded_inputs * l->area
                                   : (int64_t)l->outputs * l->inputs * l->area;

        blocks += (n + each * DPT_CUDA_THREADS - 1) / (each * DPT_CUDA_THREADS);
    }
    return blocks;
}

/* Each range of nodes that is refreshed converts its own layouts, in one launch, or in none if it
 * has no weights; together they convert those of a refresh, with the same bits. Every block has
 * something to do, whatever the sizes of the weights. */
static void ranges_convert_their_own(void **state)
{
    (void)state;
    if (real_device()) /* it has no log */
        skip();
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < GRAPHS; i += 3) {
        struct dpt_metric_sums wanted = {0}, got = {0};
        int64_t blocks = 0, back;
        char path[NAMES];
        struct dpt_error err;
        struct scene s;
        int launches;

        stages_init(&s, i);
        void *whole = open_program(cuda, &s);
        const struct dpt_cuda_program *p = whole;
        float *g = new_arena(&s), *g_ranges = new_arena(&s), *zeros = new_arena(&s);

        log_begin(path);
        train(cuda, &s, whole, 0, false, g, &wanted);
        back = blocks_in(log_end(path), "from_layout", &launches);
        assert_int_equal(back,
                         blocks_of(p, &p->lists->back[0], 1) + blocks_of(p, &p->lists->back[1], 1));
        log_begin(path);
        assert_int_equal(cuda->refresh(whole, 0, zeros, &err), DPT_OK);
        const int64_t all = blocks_in(log_end(path), "to_layout", &launches);

        assert_int_equal(launches, 1);
        assert_int_equal(
            all, blocks_of(p, &p->lists->copied, (int)(16 / p->lists->memory_layout.element)));
        for (int32_t node = s.graph.n_nodes - 1; node >= 0; node--) {
            log_begin(path);
            assert_int_equal(
                cuda->refresh_nodes(whole, 0, s.params, s.params, node, node + 1, &err), DPT_OK);
            blocks += blocks_in(log_end(path), "to_layout", &launches);
            assert_true(launches == 0 || (launches == 1 && s.graph.nodes[node].weight >= 0));
        }
        if (blocks != all)
            fail_msg("%s: %d blocks by ranges, %d at once", s.text, (int)blocks, (int)all);
        train(cuda, &s, whole, 0, false, g_ranges, &got);
        assert_same_tensors(&s, g, g_ranges);
        cuda->close(whole);
        dpt_free(g), dpt_free(g_ranges), dpt_free(zeros);
        scene_release(&s);
    }
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_are_the_whole),
        cmocka_unit_test(sums_are_the_hosts),
        cmocka_unit_test(ranges_convert_their_own),
    };

    (void)argc;
    if (!cuda_begin(argv))
        return left_out("neither a GPU nor one that is faked");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return left_out("built without CUDA");
}

#endif
