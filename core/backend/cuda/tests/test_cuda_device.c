/* Tests cuDNN's plans on a device: their results, against sums written out; that they repeat their
 * bits; and that a description of the device leads to the same plans. DPT_CUDA_TESTS=device takes a
 * GPU: four shapes with two plans each, since GPU time may be short, and with DPT_HEAVY=1 all
 * shapes of test_cuda_plan.c; else the device that runs on the CPU takes small random ones.
 * (Kernels: test_cuda_device_*.c. Products: test_cuda_matmul.c.) */
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/on_kernels.h"

#include "core/backend/cuda/libraries/plan.h"
#include "core/backend/cuda/tests/device_text.h"
#include "core/backend/cuda/tests/shapes.h"
#include "core/backend/cuda/tests/tensor.h"

static const enum type type_of[DPT_PRECISIONS] = {F32, F32, B16, H16};
static const char *const pass_names[] = {"forward", "data", "filter"};
/* Tolerances: factors are rounded, and some engines transform what they multiply. */
static const double loss_of[DPT_PRECISIONS] = {0x1p-17, 0x1p-9, 0x1p-15, 0x1p-15};

enum { CHECKED = 200, RANDOM = 48, PLANS = 6, FEW_PLANS = 2, FEW_RANDOM = 8 };

/* Some of shapes.h: 3 channels, a 3x3 convolution, one with a stride, and 1x1. */
static const char *const few_shapes[] = {"cifar conv1", "cifar conv2", "3x3 stride 2", "1x1"};

static bool few(void)
{
    const char *heavy = getenv("DPT_HEAVY");

    return on.real && (heavy == NULL || strcmp(heavy, "1") != 0);
}

static bool is_chosen(const struct shape *shape)
{
    for (size_t i = 0; i < sizeof few_shapes / sizeof *few_shapes; i++) {
        if (strcmp(shape->what, few_shapes[i]) == 0)
            return true;
    }
    return !few();
}

static const int64_t workspace_limit = 256 << 20;
static int plans_run;

/* A convolution and its arrays on the host: x, w, y, bias. */
struct scene {
    struct dpt_graph_node node;
    struct dpt_cuda_conv conv;
    enum type type;
    size_t elements[DPT_CUDA_ARRAYS];
    void *at[DPT_CUDA_ARRAYS];
};

static float value(const struct scene *s, enum dpt_cuda_array array, size_t i)
{
    return element_get(s->type, s->at[array], i);
}

static size_t x_place(const struct scene *s, int64_t n, int64_t c, int64_t y, int64_t x)
{
    return (size_t)(((n * s->conv.x[2] + y) * s->conv.x[3] + x) * s->conv.x_pitch + c);
}

static size_t y_place(const struct scene *s, int64_t n, int64_t c, int64_t y, int64_t x)
{
    return (size_t)(((n * s->conv.y[2] + y) * s->conv.y[3] + x) * s->conv.y_pitch + c);
}

static size_t w_place(const struct scene *s, int64_t o, int64_t c, int64_t y, int64_t x)
{
    return (size_t)(((o * s->conv.w[2] + y) * s->conv.w[3] + x) * s->conv.w[1] + c);
}

/* Random numbers in rows of `pitch` whose first `used` count, the others are zero. */
static void fill(struct scene *s, enum dpt_cuda_array array, int64_t rows, int64_t pitch,
                 int64_t used, struct draw *d)
{
    s->elements[array] = (size_t)(rows * pitch);
    s->at[array] = dpt_alloc(s->elements[array] * bytes_of[s->type]);
    assert_non_null(s->at[array]);
    for (int64_t i = 0; i < rows * pitch; i++) {
        const double u = i % pitch < used ? 2 * draw_uniform(d) - 1 : 0;

        element_put(s->type, s->at[array], (size_t)i, (float)u);
    }
}

static void make_scene(struct scene *s, const struct dpt_graph_node *node, int64_t n,
                       enum dpt_precision precision, struct draw *d)
{
    const struct dpt_cuda_conv *c = &s->conv;
    const int64_t group = node->in.c / node->window.groups;
    const int64_t taps = (int64_t)node->window.kernel[0] * node->window.kernel[1];

    *s = (struct scene){.node = *node, .type = type_of[precision]};
    describe_conv(node, n, precision, &s->conv);
    fill(s, DPT_CUDA_X, n * c->x[2] * c->x[3], c->x_pitch, node->in.c, d);
    fill(s, DPT_CUDA_Y, n * c->y[2] * c->y[3], c->y_pitch, node->out.c, d);
    fill(s, DPT_CUDA_W, c->w[0] * taps, c->w[1], group, d);
    for (int64_t o = node->out.c; o < c->w[0]; o++)
        memset((char *)s->at[DPT_CUDA_W] + w_place(s, o, 0, 0, 0) * bytes_of[s->type], 0,
               (size_t)(taps * c->w[1]) * bytes_of[s->type]);
    fill(s, DPT_CUDA_BIAS, 1, c->y[1], node->out.c, d);
}

static void end_scene(struct scene *s)
{
    for (int i = 0; i < DPT_CUDA_ARRAYS; i++)
        dpt_free(s->at[i]);
}

/* The input that a tap of an output reads; -1: padding. */
static int64_t read_from(const struct scene *s, int axis, int64_t out, int64_t tap)
{
    const int64_t at =
        out * s->conv.stride[axis] - s->conv.before[axis] + tap * s->conv.dilation[axis];

    return at >= 0 && at < s->conv.x[2 + axis] ? at : -1;
}

/* A sum, and the sum of its terms without their signs. */
struct sum {
    double value, size;
};

static void add_term(struct sum *sum, float a, float b)
{
    sum->value += (double)a * (double)b;
    sum->size += fabs((double)a * (double)b);
}

static struct sum one_output(const struct scene *s, int64_t n, int64_t o, int64_t y, int64_t x)
{
    const int64_t group = s->node.in.c / s->node.window.groups;
    const int64_t first = o / (s->node.out.c / s->node.window.groups) * group;
    struct sum sum = {0};

    for (int64_t ky = 0; ky < s->conv.w[2]; ky++) {
        for (int64_t kx = 0; kx < s->conv.w[3]; kx++) {
            const int64_t iy = read_from(s, 0, y, ky), ix = read_from(s, 1, x, kx);

            for (int64_t c = 0; c < group && iy >= 0 && ix >= 0; c++)
                add_term(&sum, value(s, DPT_CUDA_X, x_place(s, n, first + c, iy, ix)),
                         value(s, DPT_CUDA_W, w_place(s, o, c, ky, kx)));
        }
    }
    return sum;
}

static struct sum one_input(const struct scene *s, int64_t n, int64_t c, int64_t y, int64_t x)
{
    const int64_t group = s->node.in.c / s->node.window.groups;
    const int64_t filters = s->node.out.c / s->node.window.groups, first = c / group * filters;
    struct sum sum = {0};

    for (int64_t oy = 0; oy < s->conv.y[2]; oy++) {
        for (int64_t ky = 0; ky < s->conv.w[2]; ky++) {
            if (read_from(s, 0, oy, ky) != y)
                continue;
            for (int64_t i = 0; i < s->conv.y[3] * s->conv.w[3]; i++) {
                const int64_t ox = i / s->conv.w[3], kx = i % s->conv.w[3];

                if (read_from(s, 1, ox, kx) != x)
                    continue;
                for (int64_t o = first; o < first + filters; o++)
                    add_term(&sum, value(s, DPT_CUDA_Y, y_place(s, n, o, oy, ox)),
                             value(s, DPT_CUDA_W, w_place(s, o, c % group, ky, kx)));
            }
        }
    }
    return sum;
}

static struct sum one_weight(const struct scene *s, int64_t o, int64_t c, int64_t ky, int64_t kx)
{
    const int64_t group = s->node.in.c / s->node.window.groups;
    const int64_t first = o / (s->node.out.c / s->node.window.groups) * group;
    struct sum sum = {0};

    for (int64_t y = 0; y < s->conv.y[2]; y++) {
        for (int64_t x = 0; x < s->conv.y[3]; x++) {
            const int64_t iy = read_from(s, 0, y, ky), ix = read_from(s, 1, x, kx);

            for (int64_t n = 0; n < s->conv.x[0] && iy >= 0 && ix >= 0; n++)
                add_term(&sum, value(s, DPT_CUDA_X, x_place(s, n, first + c, iy, ix)),
                         value(s, DPT_CUDA_Y, y_place(s, n, o, y, x)));
        }
    }
    return sum;
}

/* A random element of the result: its place, and the expected value. */
static size_t expect(const struct scene *s, const struct dpt_cuda_plans *plans,
                     enum dpt_cuda_pass pass, struct draw *d, struct sum *sum)
{
    const struct dpt_cuda_conv *c = &s->conv;
    const int32_t group = s->node.in.c / s->node.window.groups;
    const int64_t n = draw_int(d, 0, (int32_t)c->x[0] - 1);
    const int64_t o = draw_int(d, 0, s->node.out.c - 1);

    if (pass == DPT_CUDA_FORWARD) {
        const int64_t y = draw_int(d, 0, (int32_t)c->y[2] - 1);
        const int64_t x = draw_int(d, 0, (int32_t)c->y[3] - 1);

        *sum = one_output(s, n, o, y, x);
        sum->value += plans->bias ? (double)value(s, DPT_CUDA_BIAS, (size_t)o) : 0;
        sum->size += 1;
        sum->value = plans->relu && sum->value < 0 ? 0 : sum->value;
        return y_place(s, n, o, y, x);
    }
    if (pass == DPT_CUDA_BACKWARD_DATA) {
        const int64_t i = draw_int(d, 0, s->node.in.c - 1);
        const int64_t y = draw_int(d, 0, (int32_t)c->x[2] - 1);
        const int64_t x = draw_int(d, 0, (int32_t)c->x[3] - 1);

        *sum = one_input(s, n, i, y, x);
        return x_place(s, n, i, y, x);
    } else {
        const int64_t i = draw_int(d, 0, group - 1);
        const int64_t ky = draw_int(d, 0, (int32_t)c->w[2] - 1);
        const int64_t kx = draw_int(d, 0, (int32_t)c->w[3] - 1);

        *sum = one_weight(s, o, i, ky, kx);
        return w_place(s, o, i, ky, kx);
    }
}

static const enum dpt_cuda_array result_of[DPT_CUDA_PASSES] = {DPT_CUDA_Y, DPT_CUDA_X, DPT_CUDA_W};

/* Runs plan number p on the device's arrays; the result comes back to `got`. */
static void run_plan(struct dpt_cuda_plans *plans, int p, void *const *device, void *workspace,
                     const struct scene *s, enum dpt_cuda_array result, void *got)
{
    void *pointers[DPT_CUDA_ARRAYS];
    cudnnBackendDescriptor_t bound;
    struct dpt_error err;

    memcpy(pointers, device, sizeof pointers);
    if (!plans->bias)
        pointers[DPT_CUDA_BIAS] = NULL;
    if (dpt_cuda_plan_bind(plans, pointers, workspace, &bound, &err) != DPT_OK ||
        dpt_cudnn_check(&gpu.lib,
                        gpu.lib.cudnnBackendExecute(gpu.convolutions, plans->plan[p].plan, bound),
                        "cudnnBackendExecute", &err) != DPT_OK)
        fail_msg("%s: %s", plans->plan[p].tag, err.text);
    on_device_get(got, device[result], s->elements[result] * bytes_of[s->type]);
}

static void check_pass(const struct scene *s, enum dpt_cuda_pass pass, const char *what,
                       struct draw *d)
{
    const struct dpt_cuda_device device = {.handle = gpu.convolutions};
    const struct dpt_cuda_plan_request request = {.reproducible = draw_int(d, 0, 1),
                                                  .workspace = workspace_limit};
    const enum dpt_cuda_array result = result_of[pass];
    const size_t bytes = s->elements[result] * bytes_of[s->type];
    unsigned char *got[2] = {malloc(bytes), malloc(bytes)};
    void *at[DPT_CUDA_ARRAYS];
    struct dpt_cuda_plans plans;
    struct dpt_error err;

    assert_true(got[0] != NULL && got[1] != NULL);
    if (dpt_cuda_plans_build(&gpu.lib, &device, &s->conv, pass, &request, few() ? FEW_PLANS : PLANS,
                             &plans, &err))
        fail_msg("%s: %s", what, err.text);
    for (int i = 0; i < DPT_CUDA_ARRAYS; i++)
        at[i] = on_device_put(s->at[i], s->elements[i] * bytes_of[s->type]);
    for (int p = 0; p < plans.n; p++) {
        void *workspace = on_device_put(NULL, (size_t)plans.plan[p].workspace);

        run_plan(&plans, p, at, workspace, s, result, got[0]);
        run_plan(&plans, p, at, workspace, s, result, got[1]);
        if (!(plans.plan[p].notes >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1) &&
            memcmp(got[0], got[1], bytes) != 0)
            fail_msg("%s, %s: other bits the second time", what, plans.plan[p].tag);
        for (int i = 0; i < CHECKED; i++) {
            struct sum sum;
            const size_t place = expect(s, &plans, pass, d, &sum);
            const double is = (double)element_get(s->type, got[0], place);
            const double off = sum.size * loss_of[s->conv.precision] +
                               precision_of[s->type] * fabs(sum.value) + least_of[s->type];

            if (!(fabs(is - sum.value) <= off))
                fail_msg("%s, %s: element %zu is %.9g, not %.9g (%.3g off may be)", what,
                         plans.plan[p].tag, place, is, sum.value, off);
        }
        on_device_free(workspace);
        plans_run++;
    }
    for (int i = 0; i < DPT_CUDA_ARRAYS; i++)
        on_device_free(at[i]);
    dpt_cuda_plans_release(&plans);
    free(got[0]), free(got[1]);
}

/* Any window; or an ordinary one, which more than the general engine supports. */
static struct dpt_graph_node random_node(struct draw *d)
{
    const bool ordinary = draw_int(d, 0, 1);
    const int32_t groups = draw_int(d, 0, 3) ? 1 : draw_int(d, 1, 3);
    struct dpt_graph_node node = {.op = DPT_OP_CONV, .bias = draw_int(d, -1, 0)};

    node.in =
        (struct dpt_shape){groups * draw_int(d, 1, 9), draw_int(d, 1, 9), draw_int(d, 1, 9), false};
    node.window = draw_window(d, false, node.in.h, node.in.w);
    if (ordinary) {
        const int32_t half = draw_int(d, 0, 1), stride = draw_int(d, 1, 2);

        node.window = (struct dpt_window){.kernel = {2 * half + 1, 2 * half + 1},
                                          .stride = {stride, stride},
                                          .dilation = {1, 1},
                                          .before = {half, half},
                                          .after = {half, half}};
    }
    node.window.groups = groups;
    node.out = (struct dpt_shape){groups * draw_int(d, 1, 9),
                                  dpt_window_extent(&node.window, 0, node.in.h),
                                  dpt_window_extent(&node.window, 1, node.in.w), false};
    return node;
}

static void random_convolutions(void **state)
{
    (void)state;
    on_device_need();
    for (int i = 0; i < (few() ? FEW_RANDOM : RANDOM) * DPT_CUDA_PASSES; i++) {
        struct draw d = {(uint64_t)(i / DPT_CUDA_PASSES)};
        const struct dpt_graph_node node = random_node(&d);
        const enum dpt_precision precision =
            (enum dpt_precision)(i / DPT_CUDA_PASSES % DPT_PRECISIONS);
        const enum dpt_cuda_pass pass = (enum dpt_cuda_pass)(i % DPT_CUDA_PASSES);
        struct scene s;
        char what[96];

        snprintf(what, sizeof what, "number %d, %s, %s", i, dpt_precision_names[precision],
                 pass_names[pass]);
        make_scene(&s, &node, draw_int(&d, 1, 5), precision, &d);
        s.conv.relu = draw_int(&d, 0, 1);
        check_pass(&s, pass, what, &d);
        end_scene(&s);
    }
    print_message("%d plans\n", plans_run);
}

/* The shapes of networks, in all precisions; too much for the device that runs on the CPU. */
static void shapes_of_networks(void **state)
{
    (void)state;
    on_device_need();
    if (!on.real) {
        print_message("only on a GPU\n");
        skip();
    }
    for (int i = 0; i < SHAPES * DPT_PRECISIONS; i++) {
        const struct shape *shape = &shapes[i / DPT_PRECISIONS];
        const enum dpt_precision precision = (enum dpt_precision)(i % DPT_PRECISIONS);
        const struct dpt_graph_node node = node_of(shape);
        struct draw d = {(uint64_t)i + 9000};
        struct scene s;

        if (!is_chosen(shape))
            continue;
        make_scene(&s, &node, shape->n, precision, &d);
        s.conv.relu = true;
        for (int pass = 0; pass < DPT_CUDA_PASSES; pass++) {
            char what[96];

            snprintf(what, sizeof what, "%s, %s, %s", shape->what, dpt_precision_names[precision],
                     pass_names[pass]);
            check_pass(&s, (enum dpt_cuda_pass)pass, what, &d);
        }
        end_scene(&s);
    }
    print_message("%d plans\n", plans_run);
}

/* Plans made elsewhere rest on this: the description of a device leads to the device's own plans.
 * It is reported, not required, since heuristics may look at more than is described. */
static void described_as_it_is(void **state)
{
    const struct dpt_cuda_device device = {.handle = gpu.convolutions};
    const struct dpt_cuda_plan_request request = {.reproducible = true,
                                                  .workspace = workspace_limit};
    struct dpt_cuda_device described;
    struct dpt_str json = {0};
    struct dpt_error err;
    int same = 0, all = 0;

    (void)state;
    on_device_need();
    if (!on.real) {
        print_message("only on a GPU\n");
        skip();
    }
    if (device_text(&gpu.lib, &device, &json, &err) != DPT_OK ||
        dpt_cuda_device_described(&gpu.lib, json.text, &described, &err) != DPT_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < SHAPES * DPT_PRECISIONS * DPT_CUDA_PASSES; i++) {
        const struct shape *shape = &shapes[i / DPT_CUDA_PASSES / DPT_PRECISIONS];
        const struct dpt_graph_node node = node_of(shape);
        const enum dpt_cuda_pass pass = (enum dpt_cuda_pass)(i % DPT_CUDA_PASSES);
        struct dpt_cuda_plans plans[2];
        struct dpt_cuda_conv conv;

        if (!is_chosen(shape))
            continue;
        describe_conv(&node, shape->n, (enum dpt_precision)(i / DPT_CUDA_PASSES % DPT_PRECISIONS),
                      &conv);
        if (dpt_cuda_plans_build(&gpu.lib, &device, &conv, pass, &request, 1, &plans[0], &err) ||
            dpt_cuda_plans_build(&gpu.lib, &described, &conv, pass, &request, 1, &plans[1], &err))
            fail_msg("%s: %s", shape->what, err.text);
        same += strcmp(plans[0].plan[0].tag, plans[1].plan[0].tag) == 0;
        all++;
        dpt_cuda_plans_release(&plans[0]);
        dpt_cuda_plans_release(&plans[1]);
    }
    print_message("%d of %d first plans are those of the device's description:\n%s\n", same, all,
                  json.text);
    dpt_cuda_device_release(&gpu.lib, &described);
    dpt_str_release(&json);
}

static int its_main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_convolutions),
        cmocka_unit_test(shapes_of_networks),
        cmocka_unit_test(described_as_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return on_main(DPT_CUDA_CUDNN, its_main);
}
#else
#include "core/backend/tests/left_out.h"

int main(void)
{
    return left_out("built without CUDA");
}
#endif
