/*
 * Graphs whose layers join two values, and values that several layers read: outputs, losses and
 * gradients are those of ref, gradients use memory that nobody else needs, and a chain takes no
 * more of it than two buffers, or three if backward has two branches.
 */
#include "core/backend/tests/left_out.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA

#include "core/backend/cuda/program/program_norms.h"
#include "core/backend/cuda/tests/program_scene.h"
#include "core/backend/tests/folding.h"
#include "core/backend/tests/whole_step.h"

enum { GRAPHS = 200, RESIDUALS = 48 };

/* After a flatten: a vector, and planes that are read as one, joined number by number or one after
 * the other. */
static int32_t join_flat(struct scene *s, int32_t at, struct draw *d)
{
    const int32_t flat = net_simple(&s->graph, at, DPT_OP_FLATTEN, 0);
    const int32_t numbers = s->graph.nodes[flat].out.c;
    const enum dpt_op join = draw_int(d, 0, 1) ? DPT_OP_ADD : DPT_OP_CONCAT;
    int32_t other = net_dense(&s->graph, flat, numbers, true);

    note(s, " flat %s", dpt_operations[join]->name);
    if (draw_int(d, 0, 1))
        other = net_simple(&s->graph, flat, DPT_OP_RELU, 0);
    return net_join(&s->graph, other, flat, join);
}

static void branches_init(struct scene *s, int seed)
{
    struct draw d = {(uint64_t)seed + 40000};
    int32_t at;

    *s = (struct scene){0};
    at = net_input(&s->graph, draw_int(&d, 1, 9), draw_int(&d, 2, 6), draw_int(&d, 2, 6));
    note(s, "graph %d", seed);
    at = net_branches(&s->graph, at, 10, &d);
    if (seed % 4 > 0)
        at = seed % 4 == 1   ? net_simple(&s->graph, at, DPT_OP_FLATTEN, 0)
             : seed % 4 == 2 ? net_simple(&s->graph, at, DPT_OP_GLOBAL_AVGPOOL, 0)
                             : join_flat(s, at, &d);
    if (seed % 4 > 0)
        at = net_dense(&s->graph, at, 7, true);
    for (int32_t i = 1; i < s->graph.n_nodes; i++)
        note(s, " %s(%d %d)", dpt_operations[s->graph.nodes[i].op]->name,
             s->graph.nodes[i].inputs[0], s->graph.nodes[i].inputs[1]);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                        .micro = draw_int(&d, 1, 5),
                                        .threads = 1,
                                        .training = true,
                                        .reproducible = seed % 3 != 0};
    s->params = net_params(&s->graph, &d);
    batch_fill(&s->batch, &s->graph, s->spec.micro, draw_int(&d, 1, s->spec.micro), true, &d);
}

static void agrees_with_ref(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPHS; i += net_every()) {
        struct scene s;

        branches_init(&s, i);
        if (i % 2)
            net_freeze(&s.graph, (uint64_t)i);
        compare(&s, 1);
        scene_release(&s);
    }
}

static void agrees_in_each_precision(void **state)
{
    (void)state;
    for (int precision = DPT_PRECISION_TF32; precision < DPT_PRECISIONS; precision++) {
        for (int i = 0; i < 20; i++) {
            struct scene s;

            branches_init(&s, i);
            s.spec.precision = (enum dpt_precision)precision;
            compare(&s, 1);
            scene_release(&s);
        }
    }
}

/* Steps of up to five micro-batches with synchronized norms. */
static void passes_agree_with_ref(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed += (uint64_t)net_every()) {
        struct dpt_metric_sums wanted, got;
        struct whole_step step;
        struct scene s;

        whole_step_init(&s, &step, seed);
        s.spec.threads = 1 + (int)(seed % 6 == 1);
        if (seed % 3 == 0)
            net_freeze(&s.graph, seed);
        float *g_ref = new_arena(&s), *g = new_arena(&s);

        whole_step_of(&s, &step, &dpt_backend_ref, 0, g_ref, &wanted);
        whole_step_of(&s, &step, &dpt_backend_cuda, s.spec.threads - 1, g, &got);
        assert_same_sums(&s, &got, &wanted);
        assert_device_gradients(&s, g, g_ref, precision_of(&s)->gradients);
        dpt_free(g_ref);
        dpt_free(g);
        whole_step_release(&step);
        scene_release(&s);
    }
}

/* --- batch norms and sums as one kernel ------------------------------------------------------- */

/* Separates layers that would be one kernel, by a dropout with rate 0, which keeps every number. */
static int32_t apart(struct scene *s, int32_t at, bool plain)
{
    return plain ? net_simple(&s->graph, at, DPT_OP_DROPOUT, 0) : at;
}

static int32_t norm_after(struct scene *s, int32_t at, int32_t channels, struct draw *d)
{
    static const struct dpt_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1};

    at = net_conv(&s->graph, at, channels, &same, draw_int(d, 0, 1));
    return net_simple(&s->graph, at, DPT_OP_BATCHNORM, 0.1F);
}

/* A residual network: norms whose output a sum or several layers read, after a ReLU or not, and
 * shortcuts of every kind. */
static void residual_init(struct scene *s, struct whole_step *step, int seed, bool plain)
{
    static const struct dpt_window one = {
        .kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    struct draw d = {(uint64_t)seed + 90000};
    int32_t channels = draw_int(&d, 1, 20), at;

    *s = (struct scene){0};
    note(s, "residual %d", seed);
    at = net_input(&s->graph, draw_int(&d, 1, 9), draw_int(&d, 2, 6), draw_int(&d, 2, 6));
    at = norm_after(s, at, channels, &d);
    if (draw_int(&d, 0, 1))
        at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    at = apart(s, at, plain);
    for (int k = draw_int(&d, 1, 3); k > 0; k--) {
        const int kind = draw_int(&d, 0, 2);
        int32_t start = at;

        if (kind > 0)
            channels = draw_int(&d, 1, 20);
        at = net_simple(&s->graph, norm_after(s, at, channels, &d), DPT_OP_RELU, 0);
        at = apart(s, norm_after(s, at, channels, &d), plain);
        if (kind == 1)
            start = apart(s, norm_after(s, start, channels, &d), plain);
        else if (kind == 2)
            start = net_conv(&s->graph, start, channels, &one, true);
        at = draw_int(&d, 0, 1) ? net_join(&s->graph, at, start, DPT_OP_ADD)
                                : net_join(&s->graph, start, at, DPT_OP_ADD);
        if (draw_int(&d, 0, 3) > 0)
            at = net_simple(&s->graph, at, DPT_OP_RELU, 0);
    }
    at = net_simple(&s->graph, at, draw_int(&d, 0, 1) ? DPT_OP_FLATTEN : DPT_OP_GLOBAL_AVGPOOL, 0);
    at = net_dense(&s->graph, at, 7, true);
    if (draw_int(&d, 0, 2) == 0)
        whole_step_norms(&s->graph, false, &d);
    s->outputs = (size_t)dpt_shape_size(&s->graph.nodes[at].out);
    whole_step_fill(step, &s->graph, draw_int(&d, 1, 3), draw_int(&d, 2, 5), true, &d);
    s->spec = (struct dpt_program_spec){.graph = &s->graph,
                                        .loss = {DPT_LOSS_CROSS_ENTROPY, 0.1f},
                                        .micro = step->micro,
                                        .threads = 1,
                                        .in_flight = step->n,
                                        .training = true,
                                        .precision = (enum dpt_precision)(seed % DPT_PRECISIONS),
                                        .reproducible = true};
    s->params = net_params(&s->graph, &d);
    for (int32_t k = 0; seed % 5 == 0 && k < s->graph.n_tensors; k++)
        s->graph.tensors[k].frozen = draw_int(&d, 0, 3) == 0;
    dpt_graph_freeze(&s->graph);
    s->batch = step->data[step->n - 1]; /* a short one */
}

/* A program's results for the last micro-batch, and for the step. */
struct given {
    float *y, *g, *g_step;
    struct dpt_metric_sums sums, sums_step;
};

static void give(struct given *given, const struct scene *s, const struct whole_step *step)
{
    void *gpu = open_program(cuda, s);
    struct dpt_error err;

    *given = (struct given){.g = new_arena(s), .g_step = new_arena(s)};
    given->y = dpt_alloc_array(s->outputs * (size_t)step->micro, sizeof(float));
    if (s->spec.precision == DPT_PRECISION_FP16)
        assert_int_equal(cuda->scale(gpu, 64, &err), DPT_OK);
    infer(cuda, s, gpu, given->y, &given->sums);
    train(cuda, s, gpu, 0, false, given->g, &given->sums);
    train(cuda, s, gpu, 0, true, given->g, &given->sums);
    whole_step_run(step, cuda, gpu, 0, &s->graph, s->params, given->g_step, &given->sums_step);
    cuda->close(gpu);
}

static void assert_given(const struct scene *s, const struct given *a, const struct given *b)
{
    const size_t bytes = (size_t)s->graph.arena * sizeof(float);

    if (memcmp(a->y, b->y, s->outputs * (size_t)s->batch.batch.count * sizeof(float)) != 0 ||
        memcmp(&a->sums, &b->sums, sizeof a->sums) != 0)
        fail_msg("%s: other outputs", s->text);
    if (memcmp(a->g, b->g, bytes) != 0)
        fail_msg("%s: another gradient", s->text);
    if (memcmp(a->g_step, b->g_step, bytes) != 0 ||
        memcmp(&a->sums_step, &b->sums_step, sizeof a->sums) != 0)
        fail_msg("%s: another gradient of a step", s->text);
}

/* Counts the launches of both passes for norms, sums and ReLUs, for joined norms, and for gradients
 * whose sum is left to them. */
static void count_joins(const struct scene *s, int *joined, int *more)
{
    struct dpt_cuda_memory_layout m;
    struct dpt_error err;

    assert_int_equal(dpt_cuda_memory_layout_make(&s->spec, s->spec.micro, &m, &err), DPT_OK);
    for (int32_t i = 0; i < s->graph.n_nodes; i++) {
        *joined += dpt_cuda_is_joined(&m, i);
        *more += m.node[i].more != DPT_CUDA_NONE;
    }
    dpt_cuda_memory_layout_release(&m);
}

/* In all precisions, with norms over micro-batches and whole steps: outputs, sums and gradients
 * have the bits that separate kernels give, from less memory. */
static void joined_norms_give_the_bits(void **state)
{
    int joined = 0, more = 0, apart_joined = 0, apart_more = 0;

    (void)state;
    for (int i = 0; i < RESIDUALS; i += net_every()) {
        struct whole_step step[2];
        struct dpt_program_bytes bytes[2];
        struct given given[2];
        struct dpt_error err;
        struct scene s[2];

        for (int plain = 0; plain < 2; plain++) {
            residual_init(&s[plain], &step[plain], i, plain);
            assert_int_equal(cuda->measure(&s[plain].spec, &bytes[plain], &err), DPT_OK);
            give(&given[plain], &s[plain], &step[plain]);
        }
        assert_given(&s[0], &given[0], &given[1]);
        assert_true(bytes[0].values <= bytes[1].values && bytes[0].scratch <= bytes[1].scratch);
        count_joins(&s[0], &joined, &more);
        count_joins(&s[1], &apart_joined, &apart_more);
        for (int plain = 0; plain < 2; plain++) {
            dpt_free(given[plain].y), dpt_free(given[plain].g), dpt_free(given[plain].g_step);
            step[plain].n--; /* the scene has the last one */
            whole_step_release(&step[plain]);
            scene_release(&s[plain]);
        }
    }
    assert_true(joined > RESIDUALS / net_every() && more > RESIDUALS / net_every());
    assert_true(apart_joined == 0 && apart_more == 0);
}

/* A norm whose output is not finite is named, and not the sum that computes it. */
static void joined_norms_are_named(void **state)
{
    int named = 0;

    (void)state;
    for (int i = 1; i < RESIDUALS; i += net_every()) {
        struct dpt_cuda_memory_layout m;
        struct whole_step step;
        struct dpt_error err;
        struct scene s;
        int32_t norm = 0;

        residual_init(&s, &step, i, false);
        s.spec.precision = DPT_PRECISION_FP32;
        assert_int_equal(dpt_cuda_memory_layout_make(&s.spec, s.spec.micro, &m, &err), DPT_OK);
        while (norm < s.graph.n_nodes && !dpt_cuda_is_joined(&m, norm))
            norm++;
        if (norm < s.graph.n_nodes) {
            const struct dpt_tensor *weight = &s.graph.tensors[s.graph.nodes[norm].weight];
            void *gpu = open_program(cuda, &s), *ref = open_program(&dpt_backend_ref, &s);
            struct dpt_nonfinite bad, bad_ref;

            /* The last sample's numbers are too large for it. */
            for (int64_t k = 0; k < weight->count; k++)
                s.params[weight->offset + k] = 1e28F;
            for (int64_t k = 0, n = dpt_shape_size(&s.graph.nodes[0].out); k < n; k++)
                s.batch.input[(s.batch.batch.count - 1) * n + k] *= 1e18F;
            assert_int_equal(cuda->refresh(gpu, 0, s.params, &err), DPT_OK);
            assert_int_equal(dpt_backend_ref.refresh(ref, 0, s.params, &err), DPT_OK);
            assert_int_equal(
                dpt_backend_ref.find_nonfinite(ref, 0, &s.batch.batch, s.params, &bad_ref, &err),
                DPT_OK);
            assert_int_equal(cuda->find_nonfinite(gpu, 0, &s.batch.batch, s.params, &bad, &err),
                             DPT_OK);
            assert_true(bad.node == bad_ref.node && bad.position == bad_ref.position);
            assert_int_equal(cuda->runs_in(gpu, norm, false), m.node[norm].joined);
            assert_int_equal(cuda->runs_in(gpu, norm, true), norm);
            named += bad.node == norm && bad.position == s.batch.batch.count - 1;
            cuda->close(gpu);
            dpt_backend_ref.close(ref);
        }
        dpt_cuda_memory_layout_release(&m);
        step.n--;
        whole_step_release(&step);
        scene_release(&s);
    }
    assert_true(named > RESIDUALS / net_every() / 3);
}

/* --- where gradients lie ---------------------------------------------------------------------- */

/* The gradients so far, on the way through backward: for each value, the bytes that hold it, and
 * whether they still do. */
struct held {
    int64_t first, last;
    bool there, lost;
};

/* held: n values, then the further part of each, which its own backward adds. */
static void write_range(struct held *held, int32_t n, int32_t to, int64_t first, int64_t last)
{
    for (int32_t i = 0; i < 2 * n; i++)
        held[i].lost |= i != to && held[i].first < last && first < held[i].last;
    held[to] = (struct held){first, last, true, false};
}

/* A node's pass: the values that it reads must be in memory. */
static void go_through(const struct scene *s, const struct dpt_cuda_memory_layout *m,
                       struct held *held, int32_t i)
{
    const struct dpt_graph_node *node = &s->graph.nodes[i];
    const struct dpt_cuda_op *op = dpt_cuda_ops[node->op];
    const struct dpt_cuda_node_layout *f = &m->node[i];
    const int64_t bytes = dpt_cuda_form_elements(f, s->spec.micro) * m->element;
    const int32_t n = s->graph.n_nodes;

    assert_true(held[i].there && !held[i].lost && held[i].first == f->dy);
    if (f->more != DPT_CUDA_NONE) { /* that part is there as well, and read first */
        assert_true(held[n + i].there && !held[n + i].lost && held[n + i].first == f->more);
        held[n + i] = (struct held){0};
    }
    if ((f->relu && op->fuses_relu) || f->more != DPT_CUDA_NONE)
        write_range(held, n, i, f->dz, f->dz + bytes);
    for (int32_t k = 0; k < node->n_inputs; k++) {
        const int32_t x = m->node[node->inputs[k]].tensor;
        const int64_t size = dpt_cuda_form_elements(&m->node[x], s->spec.micro) * m->element;

        if (f->dx[k] == DPT_CUDA_NONE)
            continue;
        assert_true(f->dx[k] + size <= m->bytes[DPT_CUDA_DY]);
        if (f->sum[k] == DPT_CUDA_NONE) {
            assert_true(!held[x].there || m->node[x].more == held[x].first);
            if (held[x].there)
                held[n + x] = held[x];
        } else {
            assert_true(held[x].there && !held[x].lost && held[x].first == f->sum[k]);
            /* Its own part is not written over what it is added to. */
            assert_true(op->passes_dy || f->dx[k] != f->sum[k]);
        }
        if (op->passes_dy && f->sum[k] == DPT_CUDA_NONE)
            held[x] = (struct held){f->dx[k], f->dx[k] + size, true, f->dx[k] != f->dz};
        else
            write_range(held, n, x, f->dx[k], f->dx[k] + size);
        /* A join that is not done reads dz for the other input. */
        assert_true(k + 1 == node->n_inputs || op->in_place || !held[i].lost);
    }
    held[i] = (struct held){0};
}

static void nothing_is_overwritten_that_is_read(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * GRAPHS; i++) {
        struct dpt_cuda_memory_layout m;
        struct whole_step step = {0};
        struct dpt_error err;
        struct held *held;
        struct scene s;
        int32_t last;

        if (i < 3 * GRAPHS)
            branches_init(&s, i);
        else
            residual_init(&s, &step, i, false);
        assert_int_equal(dpt_cuda_memory_layout_make(&s.spec, s.spec.micro, &m, &err), DPT_OK);
        held = dpt_alloc_array(2 * (size_t)s.graph.n_nodes, sizeof *held);
        last = m.node[m.last].tensor;
        assert_int_equal(m.node[m.last].dy, m.node[last].dy);
        held[last] = (struct held){m.node[last].dy, m.node[last].dy + 1, true, false};
        for (int32_t k = m.last; k > 0; k--) {
            if (m.node[k].live && !m.node[k].skipped && m.node[k].wants_dy)
                go_through(&s, &m, held, k);
        }
        dpt_free(held);
        dpt_cuda_memory_layout_release(&m);
        step.n -= step.n > 0;
        whole_step_release(&step);
        scene_release(&s);
    }
}

/* No more memory than for the two largest gradients that exist at the same time; with one branch,
 * as in stages. */
static void chains_take_two_buffers(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        int64_t at[2] = {DPT_CUDA_NONE, DPT_CUDA_NONE}, largest[2] = {0};
        struct dpt_cuda_memory_layout m;
        struct dpt_error err;
        struct scene s;

        scene_init(&s, (uint64_t)i);
        s.spec.last = s.graph.n_nodes;
        assert_int_equal(dpt_cuda_memory_layout_make(&s.spec, s.spec.micro, &m, &err), DPT_OK);
        for (int32_t k = m.last; k > 0; k--) {
            const struct dpt_cuda_node_layout *f = &m.node[k];
            const int64_t bytes = dpt_cuda_form_elements(f, s.spec.micro) * m.element;
            const int which = f->dy == at[0] || at[0] == DPT_CUDA_NONE ? 0 : 1;

            if (f->skipped || f->dy == DPT_CUDA_NONE)
                continue;
            assert_true(f->sum[0] == DPT_CUDA_NONE && f->dz == f->dy);
            assert_true(at[which] == DPT_CUDA_NONE || at[which] == f->dy);
            at[which] = f->dy;
            largest[which] = bytes > largest[which] ? bytes : largest[which];
        }
        assert_int_equal(m.bytes[DPT_CUDA_DY],
                         (largest[0] + 255) / 256 * 256 + (largest[1] + 255) / 256 * 256);
        dpt_cuda_memory_layout_release(&m);
        scene_release(&s);
    }
}

/* A third buffer, so that the chain need not wait for what the second branch has just begun to
 * read: the gradient that a layer with weights reads is not overwritten before the next such
 * layer. */
static void branches_take_three_buffers(void **state)
{
    int wide = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        int64_t places[4] = {DPT_CUDA_NONE, DPT_CUDA_NONE, DPT_CUDA_NONE, DPT_CUDA_NONE};
        int64_t read = DPT_CUDA_NONE;
        struct dpt_cuda_memory_layout m;
        struct dpt_error err;
        struct scene s;

        scene_init(&s, (uint64_t)i);
        assert_int_equal(dpt_cuda_memory_layout_make(&s.spec, s.spec.micro, &m, &err), DPT_OK);
        for (int32_t k = m.last; k > 0; k--) {
            const struct dpt_cuda_node_layout *f = &m.node[k];
            const enum dpt_operation_class kind = dpt_operation_of(&s.graph.nodes[k])->kind;
            int n = 0;

            if (f->skipped || f->dy == DPT_CUDA_NONE)
                continue;
            while (places[n] != DPT_CUDA_NONE && places[n] != f->dy)
                n++;
            assert_true(n < 3);
            places[n] = f->dy;
            assert_true(read == DPT_CUDA_NONE || f->dx[0] != read);
            wide += n == 2;
            if (kind == DPT_CLASS_CONV || kind == DPT_CLASS_GEMM)
                read = f->dz;
        }
        dpt_cuda_memory_layout_release(&m);
        scene_release(&s);
    }
    assert_true(wide > 20);
}

static void folds_norms_into_weights(void **state)
{
    (void)state;
    assert_folds(&dpt_backend_cuda, 1, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_ref),
        cmocka_unit_test(agrees_in_each_precision),
        cmocka_unit_test(passes_agree_with_ref),
        cmocka_unit_test(joined_norms_give_the_bits),
        cmocka_unit_test(joined_norms_are_named),
        cmocka_unit_test(nothing_is_overwritten_that_is_read),
        cmocka_unit_test(chains_take_two_buffers),
        cmocka_unit_test(branches_take_three_buffers),
        cmocka_unit_test(folds_norms_into_weights),
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
