/* The graph: how the arena is laid out, what a window covers, how shapes are written. */
#include "core/backend/tests/net.h"

/* No chunk straddles tensors or, if it has several rows, cuts one; cut at multiples of a chunk's
 * rows a tensor has the same chunks. */
static void chunks_are_runs_of_rows(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct draw d = {seed};
        struct dpt_graph g = {0};
        struct dpt_chunks chunks;
        struct dpt_error err;
        size_t k = 0;

        for (int32_t i = 0, n = draw_int(&d, 1, 8); i < n; i++) {
            struct dpt_tensor tensor = {.n_dims = draw_int(&d, 1, 3), .state = i % 3 == 1};
            int32_t index;

            for (int j = 0; j < tensor.n_dims; j++)
                tensor.dims[j] = draw_int(&d, 1, j == 0 ? 70 : 60);
            assert_int_equal(dpt_graph_add_tensor(&g, &tensor, &index, &err), DPT_OK);
        }
        assert_int_equal(dpt_graph_chunks(&g, &chunks, &err), DPT_OK);
        assert_int_equal(chunks.n, dpt_graph_chunk_count(&g));
        assert_int_equal(chunks.begin[chunks.n], g.floats);
        for (int32_t i = 0; i < g.n_tensors; i++) {
            const struct dpt_tensor *t = &g.tensors[i];
            const size_t row = (size_t)(t->n_dims > 1 ? t->count / t->dims[0] : 1),
                         end = (size_t)(t->offset + t->count);

            if (t->state)
                continue;
            assert_int_equal(chunks.begin[k], t->offset);
            for (; k < chunks.n && chunks.begin[k] < end; k++) {
                const size_t at = chunks.begin[k] - (size_t)t->offset;
                const size_t next = chunks.begin[k + 1] < end ? chunks.begin[k + 1] : end;
                const size_t n = next - chunks.begin[k], rows = n / row;

                assert_true(n > 0 && n <= 1024);
                if (row > 1024) { /* in pieces of its own */
                    assert_true(at / row == (at + n - 1) / row && at % row % 1024 == 0);
                } else {
                    assert_true(at % row == 0 && n % row == 0);
                    assert_true(next == end ||
                                (at / row % rows == 0 && (rows & (rows - 1)) == 0 && 2 * n > 1024));
                }
            }
        }
        assert_int_equal(k, chunks.n);
        dpt_free(chunks.begin);
        dpt_graph_release(&g);
    }
}

/* Tensors follow each other from cache line to cache line, in order, without overlap, and the
 * arena's size is what they need. */
static void tensors_lie_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct draw d = {seed};
        struct dpt_graph g = {0};
        int64_t end = 0, parameters = 0;
        const int32_t n = draw_int(&d, 0, 40);

        for (int32_t i = 0; i < n; i++) {
            const int n_dims = draw_int(&d, 1, 4);
            struct dpt_tensor tensor = {.name = "layer/weight", .n_dims = n_dims};
            int64_t count = 1;
            const struct dpt_tensor *t;
            struct dpt_error err;
            int32_t index;

            for (int k = 0; k < n_dims; k++)
                count *= tensor.dims[k] = draw_int(&d, 1, 6);
            assert_int_equal(dpt_graph_add_tensor(&g, &tensor, &index, &err), DPT_OK);
            assert_int_equal(index, i);
            t = &g.tensors[i];
            assert_int_equal(t->count, count);
            assert_int_equal(t->offset % DPT_TENSOR_ALIGN, 0);
            assert_true(t->offset >= end && t->offset - end < DPT_TENSOR_ALIGN);
            assert_string_equal(t->name, "layer/weight");
            end = t->offset + t->count;
            parameters += count;
        }
        assert_int_equal(g.n_tensors, n);
        assert_int_equal(g.parameters, parameters);
        assert_int_equal(g.floats % DPT_TENSOR_ALIGN, 0);
        assert_true(g.floats >= end && g.floats - end < DPT_TENSOR_ALIGN);
        dpt_graph_release(&g);
        assert_null(g.tensors);
        dpt_graph_release(&g);
    }
}

/* Whatever order they are added in, learned tensors come first, and state after them. */
static void state_lies_after(void **state)
{
    const bool kinds[] = {false, true, true, false, false, true};
    enum { N = sizeof kinds / sizeof *kinds };
    struct dpt_graph g = {0};
    struct dpt_error err;
    int32_t index;

    (void)state;
    for (int32_t i = 0; i < N; i++) {
        const struct dpt_tensor tensor = {
            .name = "x", .n_dims = 1, .dims = {i % 2 == 0 ? 3 : 20 + 9 * i}, .state = kinds[i]};

        assert_int_equal(dpt_graph_add_tensor(&g, &tensor, &index, &err), DPT_OK);
    }
    for (int32_t i = 0; i < N; i++) {
        const struct dpt_tensor *t = &g.tensors[i];

        assert_int_equal(t->offset % DPT_TENSOR_ALIGN, 0);
        assert_true(t->state ? t->offset >= g.floats && t->offset + t->count <= g.arena
                             : t->offset + t->count <= g.floats);
        for (int32_t k = 0; k < i; k++)
            assert_true(t->offset + t->count <= g.tensors[k].offset ||
                        g.tensors[k].offset + g.tensors[k].count <= t->offset);
    }
    assert_int_equal(g.parameters, 3 + 47 + 3);
    assert_int_equal(g.floats, 16 + 48 + 16);
    assert_int_equal(g.arena, 80 + 32 + 16 + 80);
    dpt_graph_release(&g);
}

/* A graph of a norm of two channels: its weight, running mean and running variance. */
static void add_norm(struct dpt_graph *g, struct dpt_graph_node *node)
{
    int32_t *const numbers[] = {&node->weight, &node->mean, &node->variance};
    struct dpt_error err;

    for (int k = 0; k < 3; k++) {
        const struct dpt_tensor tensor = {.name = "x", .n_dims = 1, .dims = {2}, .state = k > 0};

        assert_int_equal(dpt_graph_add_tensor(g, &tensor, numbers[k], &err), DPT_OK);
    }
    assert_int_equal(dpt_graph_add(g, node, &node->bias, &err), DPT_OK);
}

/* Running statistics after a step, by hand. */
static void state_is_updated(void **state)
{
    struct dpt_graph g = {0};
    struct dpt_graph_node node = {.op = DPT_OP_BATCHNORM, .attribute = {0, 0.75f}};
    const float sum[] = {[0] = 9, [16] = 40, [17] = -8, [32] = 16, [33] = 4};
    float params[48] = {[0] = 7, [16] = 2, [17] = 4, [32] = 1, [33] = 3};

    (void)state;
    add_norm(&g, &node);
    dpt_graph_update_state(&g, &(struct dpt_step_samples){8, 32, 8}, sum, params);
    assert_true(params[0] == 7);
    assert_true(params[16] == 0.75f * 2 + 0.25f * 5 && params[17] == 0.75f * 4 - 0.25f);
    assert_true(params[32] == 0.75f + 0.25f * 2 && params[33] == 0.75f * 3 + 0.125f);
    dpt_graph_release(&g);
}

/* A step of few samples counts by its share of a whole step's, and a variance by the samples of the
 * micro-batches that have one. */
static void tiny_steps_count_little(void **state)
{
    static const struct {
        struct dpt_step_samples samples;
        bool planes, whole_step;
        float mean, variance; /* the share of the new value in the running one, which is 0 */
    } cases[] = {
        {{32, 32, 8}, false, false, 0.25f, 0.25f},
        {{8, 32, 8}, false, false, 0.25f, 0.25f},
        {{4, 32, 8}, false, false, 0.03125f, 0.03125f},
        {{1, 32, 8}, false, false, 0.0078125f, 0},
        {{1, 32, 8}, true, false, 0.0078125f, 0.0078125f},
        {{9, 32, 8}, false, false, 0.25f, 0.28125f},
        {{9, 32, 8}, true, false, 0.25f, 0.25f},
        {{9, 32, 8}, false, true, 0.25f, 0.25f},
        {{1, 32, 8}, false, true, 0.0078125f, 0},
        {{1, 1, 1}, true, false, 0.25f, 0.25f},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float samples = (float)cases[i].samples.step,
                    sum[48] = {[16] = samples, [32] = samples};
        const int32_t side = cases[i].planes ? 2 : 1;
        struct dpt_graph g = {0};
        struct dpt_graph_node node = {.op = DPT_OP_BATCHNORM,
                                      .in = {2, side, side, !cases[i].planes},
                                      .whole_step = cases[i].whole_step,
                                      .attribute = {0, 0.75f}};
        float params[48] = {0};

        add_norm(&g, &node);
        dpt_graph_update_state(&g, &cases[i].samples, sum, params);
        assert_true(params[16] == cases[i].mean);
        assert_true(params[32] == cases[i].variance);
        dpt_graph_release(&g);
    }
}

static void nodes_are_copied_in_order(void **state)
{
    struct dpt_graph g = {0};

    (void)state;
    for (int32_t i = 0; i < 1000; i++) {
        const struct dpt_graph_node node = {
            .op = DPT_OP_RELU, .weight = -1, .bias = -1, .attribute = {(float)i}};

        assert_int_equal(net_node(&g, &node), i);
    }
    assert_int_equal(g.n_nodes, 1000);
    for (int32_t i = 0; i < 1000; i++)
        assert_true(g.nodes[i].attribute[0] == (float)i);
    dpt_graph_release(&g);
}

static void too_many_parameters_are_refused(void **state)
{
    static const int64_t dims[][4] = {
        {INT64_MAX, 1, 1, 1},
        {INT64_C(1) << 40, INT64_C(1) << 40, 1, 1},
        {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX},
    };

    (void)state;
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        struct dpt_graph g = {0};
        struct dpt_tensor tensor = {.name = "huge/weight", .n_dims = 4};
        struct dpt_error err = {0};
        int32_t index = -7;

        memcpy(tensor.dims, dims[k], sizeof tensor.dims);
        assert_int_equal(dpt_graph_add_tensor(&g, &tensor, &index, &err), DPT_RANK);
        assert_non_null(strstr(err.text, "huge/weight"));
        assert_int_equal(index, -7);
        assert_int_equal(g.n_tensors, 0);
        dpt_graph_release(&g);
    }
}

/* The slow way: slide the kernel along the padded axis until it sticks out. */
static int32_t slide(const struct dpt_window *w, int axis, int32_t input)
{
    const int32_t end = w->before[axis] + input + w->after[axis];
    int32_t count = 0;

    for (int32_t at = 0; at + (w->kernel[axis] - 1) * w->dilation[axis] < end;
         at += w->stride[axis])
        count++;
    return count;
}

static void extent_is_what_sliding_counts(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        struct draw d = {seed};
        struct dpt_window w = {.groups = 1};
        const int32_t input = draw_int(&d, 1, 12);

        for (int axis = 0; axis < 2; axis++) {
            w.kernel[axis] = draw_int(&d, 1, 7);
            w.stride[axis] = draw_int(&d, 1, 5);
            w.dilation[axis] = draw_int(&d, 1, 4);
            w.before[axis] = draw_int(&d, 0, 3);
            w.after[axis] = draw_int(&d, 0, 3);
        }
        for (int axis = 0; axis < 2; axis++) {
            const int32_t got = dpt_window_extent(&w, axis, input), want = slide(&w, axis, input);

            if (want > 0)
                assert_int_equal(got, want);
            else
                assert_true(got <= 0);
        }
    }
}

static void shapes_read_well(void **state)
{
    const struct dpt_shape picture = {64, 7, 7, false}, vector = {3136, 1, 1, true};
    const struct dpt_shape huge = {INT32_MAX, INT32_MAX, INT32_MAX, false};
    char buf[40];

    (void)state;
    assert_string_equal(dpt_shape_text(&picture, buf), "64x7x7");
    assert_string_equal(dpt_shape_text(&vector, buf), "3136");
    assert_string_equal(dpt_shape_text(&huge, buf), "2147483647x2147483647x2147483647");
}

/* Each tensor of a part has the floats that it has in the whole, one after another; tensors of
 * other nodes have none. */
static void parts_have_their_own_tensors(void **state)
{
    enum { NODES = 7 };
    struct dpt_graph whole = {0}, part;
    struct dpt_error err;

    (void)state;
    for (int32_t i = 0; i < NODES; i++) {
        struct dpt_graph_node node = {
            .op = DPT_OP_DENSE, .weight = -1, .bias = -1, .mean = -1, .variance = -1};
        struct dpt_tensor weight = {.n_dims = 2, .dims = {i + 3, 5}};
        struct dpt_tensor running = {.n_dims = 1, .dims = {7 * i + 1}, .state = true};
        int32_t index;

        assert_int_equal(dpt_graph_add_tensor(&whole, &weight, &node.weight, &err), DPT_OK);
        if (i % 3 == 1)
            assert_int_equal(dpt_graph_add_tensor(&whole, &running, &node.mean, &err), DPT_OK);
        assert_int_equal(dpt_graph_add(&whole, &node, &index, &err), DPT_OK);
    }
    for (int32_t first = 0; first < NODES; first++)
        for (int32_t last = first + 1; last <= NODES; last++) {
            int64_t learned, running, parameters = 0;
            struct dpt_chunks chunks;

            assert_int_equal(dpt_graph_part(&whole, &(struct dpt_part){first, last, 0, 1}, &part,
                                            &learned, &running, &err),
                             DPT_OK);
            assert_int_equal(part.n_nodes, NODES);
            for (int32_t i = 0; i < NODES; i++) {
                const bool own = i >= first && i < last;
                const int32_t of_node[] = {part.nodes[i].weight, part.nodes[i].mean};

                for (int k = 0; k < 2 && of_node[k] >= 0; k++) {
                    const struct dpt_tensor *t = &part.tensors[of_node[k]];
                    const struct dpt_tensor *in = &whole.tensors[of_node[k]];
                    const int64_t from = k == 0 ? learned : running - part.floats;

                    assert_int_equal(t->count, own ? in->count : 0);
                    assert_int_equal(t->dims[0], in->dims[0]);
                    if (own)
                        assert_int_equal(t->offset + from, in->offset);
                    assert_true(t->offset + t->count <= (k == 0 ? part.floats : part.arena));
                    parameters += k == 0 ? t->count : 0;
                }
            }
            assert_int_equal(part.parameters, parameters);
            assert_int_equal(dpt_graph_chunks(&part, &chunks, &err), DPT_OK);
            assert_int_equal(chunks.n, last - first);
            dpt_free(chunks.begin);
            dpt_graph_release(&part);
        }
    dpt_graph_release(&whole);
}

/* Ranks that divide dense layers have each row once, in order, at places where a chunk of the norm
 * begins; together their chunks are those of the whole; narrow layers are whole on each rank. */
static void dense_layers_are_divided(void **state)
{
    static const int64_t widths[][2] = {{8192, 784}, {530, 1000}, {1000, 70}, {64, 1024},
                                        {63, 8192},  {64, 1023},  {16, 16},   {512, 2048}};
    const int32_t n = sizeof widths / sizeof *widths;
    struct dpt_graph whole = {0};
    struct dpt_error err = {0};

    (void)state;
    for (int32_t i = 0; i < n; i++) {
        struct dpt_graph_node node = {.op = DPT_OP_DENSE, .mean = -1, .variance = -1};
        struct dpt_tensor weight = {.n_dims = 2, .dims = {widths[i][0], widths[i][1]}};
        struct dpt_tensor bias = {.n_dims = 1, .dims = {widths[i][0]}};
        int32_t index;

        assert_int_equal(dpt_graph_add_tensor(&whole, &weight, &node.weight, &err), DPT_OK);
        assert_int_equal(dpt_graph_add_tensor(&whole, &bias, &node.bias, &err), DPT_OK);
        assert_int_equal(dpt_graph_add(&whole, &node, &index, &err), DPT_OK);
    }
    for (int ranks = 1; ranks <= 9; ranks += 1 + ranks / 3) {
        int64_t passed[2 * (sizeof widths / sizeof *widths)] = {0};
        size_t chunks[2 * (sizeof widths / sizeof *widths)] = {0};

        for (int rank = 0; rank < ranks; rank++) {
            struct dpt_graph part;
            int64_t learned, running;

            assert_int_equal(dpt_graph_part(&whole, &(struct dpt_part){0, n, rank, ranks}, &part,
                                            &learned, &running, &err),
                             DPT_OK);
            for (int32_t k = 0; k < whole.n_tensors; k++) {
                const struct dpt_tensor *t = &part.tensors[k], *in = &whole.tensors[k];
                const bool divided =
                    ranks > 1 && in->n_dims == 2 && in->dims[0] >= 64 && in->count >= 64 * 1024;

                assert_int_equal(dpt_graph_divided(&whole, k) != NULL && ranks > 1, divided);
                assert_int_equal(t->whole, in->count);
                assert_int_equal(dpt_tensor_whole_chunks(t), dpt_tensor_chunks(in));
                if (!divided) {
                    assert_int_equal(t->count, in->count);
                    continue;
                }
                assert_int_equal(t->first, passed[k]);
                assert_int_equal(dpt_tensor_chunks_before(t), chunks[k]);
                for (size_t c = 0; c < dpt_tensor_chunks(t); c++)
                    assert_int_equal(dpt_tensor_chunk(t, c) - (size_t)t->offset + (size_t)t->first,
                                     dpt_tensor_chunk(in, chunks[k] + c) - (size_t)in->offset);
                passed[k] += t->count;
                chunks[k] += dpt_tensor_chunks(t);
            }
            for (int32_t i = 0; i < n; i++) {
                const struct dpt_graph_node *node = &part.nodes[i];

                if (node->divided)
                    assert_int_equal(part.tensors[node->weight].count,
                                     (node->own_outputs.last - node->own_outputs.first) *
                                         widths[i][1]);
            }
            dpt_graph_release(&part);
        }
        for (int32_t k = 0; k < whole.n_tensors; k++)
            if (passed[k] > 0)
                assert_true(passed[k] == whole.tensors[k].count &&
                            chunks[k] == dpt_tensor_chunks(&whole.tensors[k]));
    }
    dpt_graph_release(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_lie_in_order),
        cmocka_unit_test(state_lies_after),
        cmocka_unit_test(chunks_are_runs_of_rows),
        cmocka_unit_test(parts_have_their_own_tensors),
        cmocka_unit_test(dense_layers_are_divided),
        cmocka_unit_test(state_is_updated),
        cmocka_unit_test(tiny_steps_count_little),
        cmocka_unit_test(nodes_are_copied_in_order),
        cmocka_unit_test(too_many_parameters_are_refused),
        cmocka_unit_test(extent_is_what_sliding_counts),
        cmocka_unit_test(shapes_read_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
