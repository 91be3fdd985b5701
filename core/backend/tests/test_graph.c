/* The graph: how the arena is laid out, what a window covers, how shapes are written. */
#include "core/backend/tests/net.h"

/* Tensors follow each other from cache line to cache line, in order, none over another, and what
 * they need is what is counted. */
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

static void nodes_are_copied_in_order(void **state)
{
    struct dpt_graph g = {0};

    (void)state;
    for (int32_t i = 0; i < 1000; i++) {
        const struct dpt_graph_node node = {.op = DPT_OP_RELU, .attribute = {(float)i}};

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_lie_in_order),
        cmocka_unit_test(nodes_are_copied_in_order),
        cmocka_unit_test(too_many_parameters_are_refused),
        cmocka_unit_test(extent_is_what_sliding_counts),
        cmocka_unit_test(shapes_read_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
