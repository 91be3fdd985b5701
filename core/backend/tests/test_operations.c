/*
 * The tables of operations, walked for every operation: its row, and the kernels of each backend in
 * this build. A missing entry would be followed as a pointer when a program runs.
 */
#include "core/backend/cpu/layers/conv_ways.h"
#include "core/backend/cpu/program/program.h"
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/cuda/program/program.h"
#endif
#include "core/backend/operation.h"
#include "core/backend/ref/ref.h"
#include "core/backend/tests/net.h"

/* A node of each operation that has all that one can have, after 4 planes of 5 x 6. */
static struct dpt_graph_node node_of(enum dpt_op op)
{
    struct dpt_graph_node node = {.op = op, .n_inputs = op != DPT_OP_INPUT, .weight = -1};

    node.bias = -1;
    node.in = (struct dpt_shape){4, 5, 6, false};
    if (op == DPT_OP_CONV || dpt_operations[op]->kind == DPT_CLASS_POOL)
        node.window = (struct dpt_window){{3, 3}, {1, 2}, {1, 1}, {1, 1}, {1, 1}, 1};
    if (op == DPT_OP_GROUPNORM)
        node.window.groups = 2;
    if (op == DPT_OP_CONV || op == DPT_OP_DENSE)
        node.out.c = 7;
    if (op == DPT_OP_ADAPTIVE_AVGPOOL)
        node.out.h = node.out.w = 2;
    if (dpt_operations[op]->kind == DPT_CLASS_JOIN) {
        node.n_inputs = 2;
        node.other = node.in;
    }
    if (op == DPT_OP_DENSE)
        node.in = (struct dpt_shape){120, 1, 1, true};
    dpt_operations[op]->shape(&node);
    return node;
}

/* Names are the field's and unique, and every row is complete. */
static void rows(void **state)
{
    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_operation *o = dpt_operations[op];
        const struct dpt_graph_node node = node_of((enum dpt_op)op);

        assert_non_null(o);
        assert_true(strlen(o->name) > 0);
        for (int other = 0; other < op; other++)
            assert_string_not_equal(o->name, dpt_operations[other]->name);
        assert_non_null(o->shape);
        assert_true(dpt_shape_size(&node.out) > 0);
        assert_true(o->kind != DPT_CLASS_POINTWISE ||
                    (node.in.c == node.out.c && node.in.h == node.out.h &&
                     node.in.w == node.out.w && node.in.flat == node.out.flat));
        assert_true(o->reached.forward > 0 && o->reached.backward > 0 && o->reached.call >= 0);
        for (int k = 1; k < DPT_MAX_ATTRIBUTES; k++)
            assert_true(o->attributes[k] == NULL || o->attributes[k - 1] != NULL);
    }
}

/* An operation with weights has its weight first, its bias second, and state after them; one that
 * multiplies by weights has work to do. */
static void tensors_and_work(void **state)
{
    static const char *const tensors[] = {"weight", "bias"};
    static const char *const states[] = {"running_mean", "running_var"};

    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_operation *o = dpt_operations[op];
        const struct dpt_graph_node node = node_of((enum dpt_op)op);
        const bool multiplies = o->kind == DPT_CLASS_CONV || o->kind == DPT_CLASS_GEMM;
        struct dpt_tensor t[DPT_MAX_TENSORS];
        const int n = dpt_operation_tensors(&node, t);

        assert_int_equal(dpt_operation_flops(&node) > 0, multiplies);
        assert_true(n <= DPT_MAX_TENSORS && (n > 0 || !multiplies));
        for (int k = 0; k < n; k++) {
            assert_string_equal(t[k].name, k < 2 ? tensors[k] : states[k - 2]);
            assert_int_equal(t[k].state, k >= 2);
            assert_true(t[k].n_dims >= 1 && t[k].n_dims <= 4);
            for (int i = 0; i < t[k].n_dims; i++)
                assert_true(t[k].dims[i] > 0);
            /* Weight decay is for weights that multiply (Loshchilov & Hutter 2019, and PyTorch's
             * own recipes): not for biases, nor for norms. */
            assert_int_equal(t[k].decay, multiplies && k == 0);
            assert_true(!t[k].decay || (t[k].fan_in > 0 && t[k].fan_out > 0));
        }
    }
    /* 3 x 3 on 5 x 6, a step of 1 x 2, a border of 1: 13 rows and 8 columns of taps are inside. */
    assert_true(dpt_operation_flops(&(struct dpt_graph_node){
                    .op = DPT_OP_CONV,
                    .in = {4, 5, 6, false},
                    .out = {7, 5, 3, false},
                    .window = {{3, 3}, {1, 2}, {1, 1}, {1, 1}, {1, 1}, 1}}) == 2. * 13 * 8 * 4 * 7);
}

/* Each step is an ONNX node; the last one's output is the operation's, the others' have names. */
static void onnx_steps(void **state)
{
    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_onnx_step *step = dpt_operations[op]->onnx;
        int n = 0;

        while (n < DPT_ONNX_STEPS && step[n].type != NULL)
            n++;
        assert_true(n > 0);
        for (int k = 0; k < n; k++) {
            assert_int_equal(step[k].result != NULL, k + 1 < n);
            for (int i = 0; i < DPT_ONNX_ATTRIBUTES; i++)
                assert_true(step[k].attribute[i].value != DPT_ONNX_FLOAT ||
                            dpt_operations[op]->attributes[step[k].attribute[i].number] != NULL);
        }
    }
}

static void ref_kernels(void **state)
{
    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_ref_op *row = dpt_ref_ops[op];

        assert_true((row->forward != NULL) != (row->forward_each != NULL));
        assert_true(op == DPT_OP_INPUT || (row->backward != NULL) != (row->backward_each != NULL));
    }
}

static void cpu_kernels(void **state)
{
    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_cpu_op *kernels = dpt_cpu_ops[op];

        assert_non_null(kernels->plan);
        assert_true(op == DPT_OP_INPUT || op == DPT_OP_FLATTEN ||
                    (kernels->forward != NULL && kernels->backward != NULL));
    }
}

/* The last way of all computes every pass, so that no convolution is without one. */
static void ways_of_convolutions(void **state)
{
    static const struct dpt_conv_way *const ways[] = {
#define X(name) &dpt_conv_##name,
        DPT_CONV_WAYS(X)
#undef X
    };
    const size_t n = sizeof ways / sizeof *ways;

    (void)state;
    for (size_t i = 0; i < n; i++) {
        const struct dpt_conv_way *way = ways[i];
        const bool gradients = way->data != NULL || way->weights != NULL;

        assert_true(way->name != NULL && way->fits != NULL && way->plan != NULL);
        assert_true(way->forward != NULL || way->backward != NULL || gradients);
        assert_true(way->backward == NULL || !gradients);
        assert_int_equal(way->refresh != NULL,
                         way->forward != NULL || way->backward != NULL || way->data != NULL);
    }
    assert_true(ways[n - 1]->forward != NULL && ways[n - 1]->data != NULL &&
                ways[n - 1]->weights != NULL);
}

#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
static void cuda_kernels(void **state)
{
    (void)state;
    for (int op = 0; op < DPT_OP_COUNT; op++) {
        const struct dpt_operation *o = dpt_operations[op];
        const struct dpt_cuda_op *cuda = dpt_cuda_ops[op];
        const struct dpt_graph_node node = node_of((enum dpt_op)op);
        struct dpt_tensor t[DPT_MAX_TENSORS];
        const bool weights = dpt_operation_tensors(&node, t) > 0;

        assert_int_equal(cuda->forward != NULL, op != DPT_OP_INPUT);
        assert_int_equal(cuda->backward != NULL, op != DPT_OP_INPUT);
        assert_int_equal(cuda->place != NULL, weights);
        assert_int_equal(cuda->layout != NULL, weights);
        assert_true(!cuda->takes_relu || cuda->relu != cuda->relu_back);
        assert_true((o->keeps & (DPT_KEEPS_INDEX | DPT_KEEPS_STATISTICS)) == 0 ||
                    cuda->saved != NULL);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),
        cmocka_unit_test(tensors_and_work),
        cmocka_unit_test(onnx_steps),
        cmocka_unit_test(ref_kernels),
        cmocka_unit_test(cpu_kernels),
        cmocka_unit_test(ways_of_convolutions),
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
        cmocka_unit_test(cuda_kernels),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
