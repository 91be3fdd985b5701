/*
 * Graphs whose layers join two values, and values that several layers read: outputs, losses and
 * gradients are those of ref, gradients lie where nobody else needs the memory, and a chain takes
 * no more of it than two buffers, or three where backward has two branches.
 */
#include "core/backend/tests/left_out.h"

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA

#include "core/backend/cuda/program.h"
#include "core/backend/cuda/tests/program_scene.h"
#include "core/backend/tests/folding.h"
#include "core/backend/tests/whole_step.h"

enum { GRAPHS = 200 };

/* Behind a flatten: a vector and planes that are read as one, number by number or one behind the
 * other. */
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

/* Steps of up to five micro-batches, whose norms take the statistics of all of them. */
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

/* --- where gradients lie ---------------------------------------------------------------------- */

/* Gradients so far, while backward is gone through: of each value, which bytes have it, and whether
 * they still do. */
struct held {
    int64_t first, last;
    bool there, lost;
};

static void write_range(struct held *held, int32_t n, int32_t to, int64_t first, int64_t last)
{
    for (int32_t i = 0; i < n; i++)
        held[i].lost |= i != to && held[i].first < last && first < held[i].last;
    held[to] = (struct held){first, last, true, false};
}

/* A node's pass: what it reads must be there. */
static void go_through(const struct scene *s, const struct dpt_cuda_memory_layout *m,
                       struct held *held, int32_t i)
{
    const struct dpt_graph_node *node = &s->graph.nodes[i];
    const struct dpt_cuda_op *op = dpt_cuda_ops[node->op];
    const struct dpt_cuda_node_layout *f = &m->node[i];
    const int64_t bytes = dpt_cuda_form_elements(f, s->spec.micro) * m->element;
    const int32_t n = s->graph.n_nodes;

    assert_true(held[i].there && !held[i].lost && held[i].first == f->dy);
    if (f->relu && op->fuses_relu)
        write_range(held, n, i, f->dz, f->dz + bytes);
    for (int32_t k = 0; k < node->n_inputs; k++) {
        const int32_t x = m->node[node->inputs[k]].tensor;
        const int64_t size = dpt_cuda_form_elements(&m->node[x], s->spec.micro) * m->element;

        if (f->dx[k] == DPT_CUDA_NONE)
            continue;
        assert_true(f->dx[k] + size <= m->bytes[DPT_CUDA_DY]);
        if (f->sum[k] == DPT_CUDA_NONE) {
            assert_false(held[x].there);
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
    for (int i = 0; i < 3 * GRAPHS; i++) {
        struct dpt_cuda_memory_layout m;
        struct dpt_error err;
        struct held *held;
        struct scene s;
        int32_t last;

        branches_init(&s, i);
        assert_int_equal(dpt_cuda_memory_layout_make(&s.spec, s.spec.micro, &m, &err), DPT_OK);
        held = dpt_alloc_array((size_t)s.graph.n_nodes, sizeof *held);
        last = m.node[m.last].tensor;
        assert_int_equal(m.node[m.last].dy, m.node[last].dy);
        held[last] = (struct held){m.node[last].dy, m.node[last].dy + 1, true, false};
        for (int32_t k = m.last; k > 0; k--) {
            if (m.node[k].live && !m.node[k].skipped && m.node[k].wants_dy)
                go_through(&s, &m, held, k);
        }
        dpt_free(held);
        dpt_cuda_memory_layout_release(&m);
        scene_release(&s);
    }
}

/* The two largest gradients that are there at the same time, and no more; where there is one
 * branch, as in stages. */
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

/* A third one, so that the chain need not wait for what the second branch has just begun to read:
 * what a layer with weights reads is not written before the next such layer is there. */
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
