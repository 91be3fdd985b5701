/* The device's kernels for layers and losses, run on the host, against the reference backend and
 * dpt_loss_rows over random shapes. */
#include "core/backend/tests/net.h"

#include "core/backend/ref/ref.h"

#include "core/backend/cuda/tests/tensor.h"

/* One layer of ref on n samples, forward and backward. */
struct layer {
    struct dpt_graph_node node;
    struct dpt_ref_call call;
    float *x, *y, *dy, *dx;
    void *saved;
};

static void layer_run(struct layer *l, const struct dpt_ref_op *op, size_t n, bool add,
                      const struct dpt_batch *batch, struct draw *d)
{
    l->call = (struct dpt_ref_call){.node = &l->node,
                                    .batch = batch,
                                    .index = 7,
                                    .training = true,
                                    .count = n,
                                    .in = (size_t)dpt_shape_size(&l->node.in),
                                    .out = (size_t)dpt_shape_size(&l->node.out)};
    l->y = dpt_alloc_array(n * l->call.out, sizeof(float));
    l->saved = dpt_alloc_array(n * l->call.out, sizeof(float));
    l->dx = add ? random_values(d, n * l->call.in) : dpt_alloc_array(n * l->call.in, sizeof(float));
    l->call.x = l->x;
    l->call.y = l->y;
    l->call.saved = l->saved;
    dpt_ref_compute(op, &l->call, false);
}

static void layer_back(struct layer *l, const struct dpt_ref_op *op)
{
    l->call.dy = l->dy;
    l->call.dx = l->dx;
    dpt_ref_compute(op, &l->call, true);
}

static void layer_release(struct layer *l)
{
    dpt_free(l->x);
    dpt_free(l->y);
    dpt_free(l->dy);
    dpt_free(l->dx);
    dpt_free(l->saved);
}

static struct dpt_shape random_shape(struct draw *d)
{
    const int32_t c = draw_int(d, 1, 70);
    const int32_t h = draw_int(d, 1, 9), w = draw_int(d, 1, 9);

    return (struct dpt_shape){c, h, w, false};
}

static void activations(void **state)
{
    static const struct {
        const struct dpt_operation *operation;
        const struct dpt_ref_op *op;
        enum dpt_cuda_kernel forward[TYPES], back[TYPES];
    } rows[] = {
#define X(C, NAME, name, ...)                                                                      \
    {&dpt_operation_##name, &dpt_ref_##name, OF_ALL(name), OF_ALL(name##_back)},
        DPT_ACTIVATIONS(X, 0)
#undef X
    };
    enum { ROWS = sizeof rows / sizeof *rows };

    (void)state;
    for (int seed = 0; seed < 24 * ROWS; seed++) {
        struct draw d = {(uint64_t)seed};
        const enum type type = (enum type)(seed % TYPES);
        const size_t n = (size_t)draw_int(&d, 1, 5), which = (size_t)seed / TYPES / 2 % ROWS;
        const struct dpt_operation *row = rows[which].operation;
        const double tolerance = row->traits & DPT_EXACT ? 0 : 3e-7;
        struct layer l = {.node = {.in = random_shape(&d), .attribute = {0.3f}}};
        struct device_tensor x, y, dy, dx;

        l.node.out = l.node.in;
        x = tensor_make(type, n, &l.node.in), y = tensor_make(type, n, &l.node.in);
        dy = tensor_make(type, n, &l.node.in), dx = tensor_make(type, n, &l.node.in);
        l.x = random_values(&d, n * x.c * x.pixels);
        l.dy = random_values(&d, n * x.c * x.pixels);
        if (seed / TYPES % 4 < 2)
            l.x[0] = NAN;
        tensor_fill(&x, l.x);
        tensor_fill(&dy, l.dy);
        layer_run(&l, rows[which].op, n, false, NULL, &d);
        tensor_fill(&dx, l.dx);
        dpt_emulate(rows[which].forward[type],
                    &(struct dpt_cuda_act_args){
                        x.at, y.at, (int64_t)tensor_elements(&x) / lanes_of[type], 0.3f});
        tensor_check(&y, l.y, tolerance, row->name, seed);
        tensor_fill(&y, l.y); /* backward from the very same values */
        layer_back(&l, rows[which].op);
        dpt_emulate(rows[which].back[type],
                    &(struct dpt_cuda_act_back_args){
                        row->keeps & DPT_KEEPS_INPUT ? x.at : y.at, dy.at, dx.at,
                        (int64_t)tensor_elements(&x) / lanes_of[type], 0.3f});
        tensor_check(&dx, l.dx, tolerance, row->name, seed);
        layer_release(&l);
        dpt_free(x.at), dpt_free(y.at), dpt_free(dy.at), dpt_free(dx.at);
    }
}

static struct dpt_cuda_pool_args pool_args(const struct dpt_graph_node *node, size_t n,
                                           size_t pitch)
{
    struct dpt_cuda_pool_args a = {.n = (int32_t)n,
                                   .h = node->in.h,
                                   .w = node->in.w,
                                   .oh = node->out.h,
                                   .ow = node->out.w,
                                   .pitch = (int32_t)pitch};

    for (int axis = 0; axis < 2; axis++) {
        a.kernel[axis] = node->window.kernel[axis];
        a.stride[axis] = node->window.stride[axis];
        a.before[axis] = node->window.before[axis];
    }
    return a;
}

/* Max-pool to the bit: the same place of the maximum, the same order of the gradients' sums. */
static void pools(void **state)
{
    static const struct {
        const char *name;
        const struct dpt_ref_op *op;
        enum dpt_cuda_kernel forward[TYPES], back[TYPES];
        double tolerance, back_tolerance;
    } rows[] = {
#define POOL(name, ref, tolerance, back)                                                           \
    {#name, &dpt_ref_##ref, OF_ALL(name), OF_ALL(name##_back), tolerance, back}
        POOL(maxpool, maxpool, 0, 0),        POOL(avgpool, avgpool, 0, 0),
        POOL(avgpool, global_avgpool, 0, 0), POOL(adaptive, adaptive_avgpool, 0, 0),
        POOL(adaptive, upsample, 0, 0),      POOL(bilinear, bilinear, 0, 0),
    };

    (void)state;
    for (int seed = 0; seed < 250; seed++) {
        struct draw d = {(uint64_t)seed + 1000};
        const enum type type = (enum type)(seed % TYPES);
        const size_t n = (size_t)draw_int(&d, 1, 4), which = (size_t)seed / TYPES / 2 % 6;
        struct layer l = {.node = {.in = random_shape(&d)}};
        struct device_tensor x, y, dy, dx;
        struct dpt_cuda_pool_args a;

        l.node.window = draw_window(&d, true, l.node.in.h, l.node.in.w);
        l.node.out = (struct dpt_shape){l.node.in.c, 1, 1, true};
        if (which < 2) {
            l.node.out.h = dpt_window_extent(&l.node.window, 0, l.node.in.h);
            l.node.out.w = dpt_window_extent(&l.node.window, 1, l.node.in.w);
        } else {
            l.node.window = (struct dpt_window){0}; /* the global one has none */
        }
        if (which == 3) {
            l.node.op = DPT_OP_ADAPTIVE_AVGPOOL;
            l.node.out.h = draw_int(&d, 1, 14);
            l.node.out.w = draw_int(&d, 1, 14);
        } else if (which > 3) {
            l.node.op = which == 4 ? DPT_OP_UPSAMPLE : DPT_OP_BILINEAR;
            for (int axis = 0; axis < 2; axis++)
                l.node.window.kernel[axis] = draw_int(&d, 1, 3);
            dpt_operations[l.node.op]->shape(&l.node);
        }
        x = tensor_make(type, n, &l.node.in), dx = tensor_make(type, n, &l.node.in);
        y = tensor_make(type, n, &l.node.out), dy = tensor_make(type, n, &l.node.out);
        l.x = random_values(&d, n * x.c * x.pixels);
        l.dy = random_values(&d, n * y.c * y.pixels);
        for (size_t i = 0; i < n * x.c * x.pixels; i++) /* many that are equal */
            l.x[i] = seed % 5 ? (float)(int)(2 * l.x[i]) : l.x[i];
        if (seed % 7 == 0)
            l.x[n * x.c * x.pixels / 2] = NAN;
        tensor_fill(&x, l.x);
        tensor_fill(&dy, l.dy);
        layer_run(&l, rows[which].op, n, false, NULL, &d);
        tensor_fill(&dx, l.dx);
        a = pool_args(&l.node, n, x.pitch);
        for (int axis = 0; which == 2 && axis < 2; axis++) { /* one window over all */
            a.kernel[axis] = axis == 0 ? a.h : a.w;
            a.stride[axis] = 1;
            a.before[axis] = 0;
        }
        a.from = x.at;
        a.to = y.at;
        a.index = which == 0 ? dpt_alloc(tensor_elements(&y) * sizeof *a.index) : NULL;
        dpt_emulate(rows[which].forward[type], &a);
        tensor_check(&y, l.y, rows[which].tolerance, rows[which].name, seed);
        layer_back(&l, rows[which].op);
        a.from = dy.at;
        a.to = dx.at;
        dpt_emulate(rows[which].back[type], &a);
        tensor_check(&dx, l.dx, rows[which].back_tolerance, rows[which].name, seed);
        dpt_free(a.index);
        layer_release(&l);
        dpt_free(x.at), dpt_free(y.at), dpt_free(dy.at), dpt_free(dx.at);
    }
}

/* ReLU and max-pool in one pass: the bits of one after the other, both ways, including sums of
 * overlapping windows and NaN. */
static void pools_after_relu(void **state)
{
    static const enum dpt_cuda_kernel relu[] = OF_ALL(relu), relu_back[] = OF_ALL(relu_back),
                                      pool[] = OF_ALL(maxpool), pool_back[] = OF_ALL(maxpool_back),
                                      both[] = OF_ALL(maxpool_relu),
                                      both_back[] = OF_ALL(maxpool_relu_back);

    (void)state;
    for (int seed = 0; seed < 120; seed++) {
        struct draw d = {(uint64_t)seed + 5000};
        const enum type type = (enum type)(seed % TYPES);
        const size_t n = (size_t)draw_int(&d, 1, 4);
        struct dpt_graph_node node = {.in = random_shape(&d)};
        struct device_tensor x, r, dr, dx[2], y[2], dy;
        struct dpt_cuda_pool_args a;
        uint16_t *index[2];
        int64_t vectors;

        node.window = draw_window(&d, true, node.in.h, node.in.w);
        node.out = (struct dpt_shape){node.in.c, dpt_window_extent(&node.window, 0, node.in.h),
                                      dpt_window_extent(&node.window, 1, node.in.w), false};
        x = tensor_random(type, n, &node.in, &d), r = tensor_make(type, n, &node.in);
        dr = tensor_make(type, n, &node.in), dy = tensor_random(type, n, &node.out, &d);
        for (size_t i = 0; seed % 5 && i < tensor_elements(&x); i++) /* many that are equal */
            tensor_put(&x, i, (float)(int)(2 * tensor_get(&x, i)));
        if (seed % 7 == 0)
            tensor_put(&x, tensor_elements(&x) / 2, NAN);
        if (seed % 7 < 2)
            tensor_put(&dy, tensor_elements(&dy) / 2, seed & 1 ? NAN : INFINITY);
        vectors = (int64_t)tensor_elements(&x) / lanes_of[type];
        for (int k = 0; k < 2; k++) {
            struct draw same = {(uint64_t)seed + 6000};

            y[k] = tensor_make(type, n, &node.out);
            dx[k] = tensor_random(type, n, &node.in, &same);
            index[k] = dpt_alloc(tensor_elements(&dy) * sizeof *index[k]);
        }
        a = pool_args(&node, n, x.pitch);
        dpt_emulate(relu[type], &(struct dpt_cuda_act_args){x.at, r.at, vectors, 0});
        a.from = r.at, a.to = y[0].at, a.index = index[0];
        dpt_emulate(pool[type], &a);
        a.from = x.at, a.to = y[1].at, a.index = index[1];
        dpt_emulate(both[type], &a);
        assert_memory_equal(y[0].at, y[1].at, tensor_bytes(&dy));
        assert_memory_equal(index[0], index[1], tensor_elements(&dy) * sizeof **index);
        a.from = dy.at, a.to = dr.at;
        dpt_emulate(pool_back[type], &a);
        dpt_emulate(relu_back[type],
                    &(struct dpt_cuda_act_back_args){r.at, dr.at, dx[0].at, vectors, 0});
        a.to = dx[1].at, a.y = y[1].at;
        dpt_emulate(both_back[type], &a);
        for (size_t i = 0; i < tensor_elements(&x); i++) /* a NaN's sign does not count */
            assert_true(tensor_same(&dx[0], &dx[1], i));
        for (int k = 0; k < 2; k++)
            dpt_free(y[k].at), dpt_free(dx[k].at), dpt_free(index[k]);
        dpt_free(x.at), dpt_free(r.at), dpt_free(dr.at), dpt_free(dy.at);
    }
}

/* The mask is that of the host, for each (seed, step, sample, node, element). */
static void dropout(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 2000};
        const enum type type = (enum type)(seed % TYPES);
        const size_t n = (size_t)draw_int(&d, 1, 4);
        int64_t sample[4] = {draw_int(&d, 0, 1 << 30), draw_int(&d, 0, 9), 1, 0};
        struct dpt_batch batch = {
            .sample = sample, .seed = draw_bits(&d), .step = (uint64_t)draw_int(&d, 0, 100000)};
        struct dpt_cuda_control control = {
            .seed = batch.seed, .step = batch.step, .count = draw_int(&d, 0, (int32_t)n)};
        struct layer l = {.node = {.in = random_shape(&d), .attribute = {0.4f}}};
        struct device_tensor x, y;

        if (seed / TYPES % 3 == 0)
            l.node.in.h = l.node.in.w = 1;
        l.node.out = l.node.in;
        x = tensor_make(type, n, &l.node.in), y = tensor_make(type, n, &l.node.in);
        l.x = random_values(&d, n * x.c * x.pixels);
        tensor_fill(&x, l.x);
        layer_run(&l, &dpt_ref_dropout, n, false, &batch, &d);
        for (size_t i = (size_t)control.count * x.c * x.pixels; i < n * x.c * x.pixels; i++)
            l.y[i] = 0;
        dpt_emulate(OF(type, dropout), &(struct dpt_cuda_dropout_args){.x = x.at,
                                                                       .y = y.at,
                                                                       .sample = sample,
                                                                       .control = &control,
                                                                       .n = (int32_t)n,
                                                                       .channels = (int32_t)x.c,
                                                                       .pitch = (int32_t)x.pitch,
                                                                       .area = (int32_t)x.pixels,
                                                                       .node = 7,
                                                                       .rate = 0.4f});
        tensor_check(&y, l.y, 0, "dropout", seed);
        layer_release(&l);
        dpt_free(x.at), dpt_free(y.at);
    }
}

/* Sums over all rows in double; with ReLU also its own backward pass; in any order of the blocks
 * the same bits. */
static void biases(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 3000};
        const enum type type = (enum type)(seed % TYPES);
        const bool relu = seed / TYPES & 1, add = seed / TYPES & 2;
        const struct dpt_shape shape = {draw_int(&d, 1, seed % 5 ? 40 : 400), draw_int(&d, 1, 40),
                                        draw_int(&d, 1, 20), false};
        const size_t n = (size_t)draw_int(&d, 1, 3);
        struct device_tensor x = tensor_make(type, n, &shape), y = tensor_make(type, n, &shape),
                             dy = tensor_make(type, n, &shape), dx = tensor_make(type, n, &shape),
                             bias = tensor_make(type, 1, &(struct dpt_shape){shape.c, 1, 1, true});
        const size_t all = n * x.c * x.pixels;
        float *xs = random_values(&d, all), *dys = random_values(&d, all);
        float *bs = random_values(&d, x.c), *want = random_values(&d, all);
        float sums[2][401], *start = random_values(&d, x.c);
        uint32_t counter[16] = {0};
        struct dpt_cuda_bias_back_args back = {
            .dy = dy.at,
            .y = relu ? y.at : NULL,
            .dx = relu ? dx.at : NULL,
            .partial =
                dpt_alloc_array((size_t)dpt_cuda_bias_back_cut((int64_t)(n * x.pixels),
                                                               (int32_t)x.pitch, lanes_of[type])
                                        .chunks *
                                    x.pitch,
                                sizeof(double)),
            .counter = counter,
            .rows = (int64_t)(n * x.pixels),
            .pitch = (int32_t)x.pitch,
            .channels = (int32_t)x.c,
            .add = add};

        tensor_fill(&x, xs), tensor_fill(&bias, bs), tensor_fill(&dy, dys);
        for (size_t i = 0; i < all; i++) {
            const float v = xs[i] + bs[i / x.pixels % x.c];

            want[i] = relu && v < 0 ? 0 : v;
        }
        dpt_emulate(relu ? OF(type, bias_relu) : OF(type, bias),
                    &(struct dpt_cuda_bias_args){x.at, bias.at, y.at, back.rows, back.pitch});
        tensor_check(&y, want, 0, "bias", seed);
        for (int run = 0; run < 2; run++) {
            memcpy(sums[run], start, x.c * sizeof *start);
            sums[run][x.c] = 77;
            back.dbias = sums[run];
            emulated_backwards = run == 1;
            dpt_emulate(relu ? OF(type, bias_relu_back) : OF(type, bias_back), &back);
            assert_true(sums[run][x.c] == 77);
        }
        emulated_backwards = false;
        assert_memory_equal(sums[0], sums[1], x.c * sizeof(float));
        for (size_t i = 0; i < all; i++)
            if (relu && !(tensor_get(&y, tensor_place(&y, i)) > 0))
                dys[i] *= 0;
        if (relu)
            tensor_check(&dx, dys, 0, "ReLU's gradient", seed);
        for (size_t c = 0; c < x.c; c++) {
            double sum = add ? (double)start[c] : 0, size = fabs(sum);

            for (size_t i = 0; i < n; i++)
                for (size_t p = 0; p < x.pixels; p++) {
                    sum += (double)dys[(i * x.c + c) * x.pixels + p];
                    size += fabs((double)dys[(i * x.c + c) * x.pixels + p]);
                }
            if (!(fabs(sum - (double)sums[0][c]) <= 1e-6 * (1 + size)))
                fail_msg("bias gradient, seed %d, channel %zu: %.9g, not %.9g", seed, c,
                         (double)sums[0][c], sum);
        }
        for (size_t i = 0; i < 16; i++)
            assert_int_equal(counter[i], 0);
        dpt_free(xs), dpt_free(dys), dpt_free(bs), dpt_free(want), dpt_free(start);
        dpt_free(x.at), dpt_free(y.at), dpt_free(dy.at), dpt_free(dx.at), dpt_free(bias.at);
        dpt_free(back.partial);
    }
}

/* Sums, gradients and counts are those of dpt_loss_rows; rows after the count, and the padding
 * after a row, get zeros. */
static void losses(void **state)
{
    static const enum dpt_cuda_kernel loss_kernels[DPT_LOSSES][TYPES] = {
#define X(NAME, name) [DPT_LOSS_##NAME] = OF_ALL(name),
        DPT_LOSS_LIST(X)
#undef X
    };

    (void)state;
    for (int seed = 0; seed < 240; seed++) {
        struct draw d = {(uint64_t)seed + 4000};
        const enum type type = (enum type)(seed % TYPES);
        const int form = seed / TYPES;
        const enum dpt_loss_kind kind = (enum dpt_loss_kind)(form % DPT_LOSSES);
        const bool classes = dpt_loss_has_classes(kind), soft = (form & 2) || !classes;
        const int32_t n = draw_int(&d, 1, seed % 5 ? 20 : 300), count = draw_int(&d, 0, n);
        const int32_t outputs = draw_int(&d, 1, form % 4 ? 12 : 150);
        struct dpt_shape shape = {outputs, 1, 1, true};
        struct device_tensor y = tensor_make(type, (size_t)n, &shape),
                             dy = tensor_make(type, (size_t)n, &shape);
        const struct dpt_loss loss = {kind, form & 4 ? 0.1f : 0.0f};
        float *ys = random_values(&d, (size_t)n * y.c),
              *targets = random_values(&d, (size_t)n * y.c);
        float *want = dpt_alloc_array((size_t)n * y.c, sizeof *want);
        int32_t *labels = dpt_alloc_array((size_t)n, sizeof *labels);
        float *weights = random_values(&d, (size_t)n);
        struct dpt_batch batch = {.count = count,
                                  .labels = soft ? NULL : labels,
                                  .targets = soft ? targets : NULL,
                                  .weights = form & 8 ? weights : NULL};
        struct dpt_cuda_control control = {.count = count};
        struct dpt_cuda_metric_sums got[2] = {{0.5, 3, 10, 9}, {0.5, 3, 10, 9}};
        struct dpt_metric_sums metric_sums = {0.5, 3, 10, 9};
        double *partial = dpt_alloc_array(3 * ((size_t)n / 8 + 1), sizeof *partial);
        uint32_t counter = 0;
        struct dpt_cuda_grid grid;
        float tail[16], bias[2][160];
        struct dpt_cuda_bias_back_args back = {.dy = dy.at,
                                               .partial = dpt_alloc_array(y.pitch, sizeof *partial),
                                               .counter = &counter,
                                               .rows = n,
                                               .pitch = (int32_t)y.pitch,
                                               .channels = outputs,
                                               .add = seed % 2};
        const bool sums =
            dpt_cuda_kernel_grid(OF(type, bias_back), &back, &grid) && grid.x == 1 && grid.y == 1;

        for (int32_t i = 0; i < n; i++) {
            float *row = targets + (size_t)i * y.c, sum = 0;

            labels[i] = draw_int(&d, 0, outputs - 1);
            weights[i] = draw_int(&d, 0, 3) ? fabsf(weights[i]) : 0;
            for (int32_t j = 0; j < outputs; j++)
                sum += fabsf(row[j]);
            for (int32_t j = 0; classes && j < outputs; j++) /* probabilities */
                row[j] = fabsf(row[j]) / sum;
        }
        if (seed % 10 == 3)
            ys[0] = NAN;
        if (seed % 10 == 4)
            ys[y.c / 2] = form & 8 ? INFINITY : -INFINITY;
        if (seed % 10 == 5)
            targets[0] = NAN;
        for (size_t i = 0; i < (size_t)n * y.c; i++)
            ys[i] *= 4;
        tensor_fill(&y, ys);
        dpt_loss_rows(&loss, &batch, outputs, y.c, ys, want, &metric_sums);
        for (int run = 0; run < 2; run++) {
            memset(dy.at, 0x7f, tensor_elements(&dy) * bytes_of[type]);
            emulated_backwards = run == 1;
            dpt_emulate(loss_kernels[kind][type],
                        &(struct dpt_cuda_loss_args){.y = y.at,
                                                     .dy = dy.at,
                                                     .labels = soft ? NULL : labels,
                                                     .targets = soft ? targets : NULL,
                                                     .weights = batch.weights,
                                                     .control = &control,
                                                     .metric_sums = &got[run],
                                                     .partial = partial,
                                                     .counter = &counter,
                                                     .n = n,
                                                     .outputs = outputs,
                                                     .pitch = (int32_t)y.pitch,
                                                     .attribute = loss.attribute});
        }
        emulated_backwards = false;
        assert_memory_equal(&got[0], &got[1], sizeof got[0]);
        /* A loss whose last block does further work: one kernel has the bits of two. */
        for (int k = 0; k < 160; k++)
            bias[0][k] = bias[1][k] = (float)k;
        back.dbias = bias[0];
        if (sums)
            dpt_emulate(OF(type, bias_back), &back);
        back.dbias = sums ? bias[1] : NULL;
        memset(tail, 0x7f, sizeof tail);
        dpt_emulate(loss_kernels[kind][type],
                    &(struct dpt_cuda_loss_args){.y = y.at,
                                                 .dy = dy.at,
                                                 .labels = soft ? NULL : labels,
                                                 .targets = soft ? targets : NULL,
                                                 .weights = batch.weights,
                                                 .control = &control,
                                                 .metric_sums = &got[1],
                                                 .partial = partial,
                                                 .counter = &counter,
                                                 .n = n,
                                                 .outputs = outputs,
                                                 .pitch = (int32_t)y.pitch,
                                                 .attribute = loss.attribute,
                                                 .tail = tail,
                                                 .words = 16,
                                                 .bias = back});
        for (int k = 0; k < 160; k++) /* a NaN's payload does not count */
            assert_true(bias[0][k] == bias[1][k] || (isnan(bias[0][k]) && isnan(bias[1][k])));
        assert_int_equal(counter, 0);
        assert_true(tail[DPT_CUDA_TAIL_SAMPLES] == (float)(got[0].samples + count));
        assert_true(tail[DPT_CUDA_TAIL_WEIGHT] == (float)(2 * got[0].weight - 9));
        assert_true(!isfinite(got[0].loss) ||
                    fabs((double)tail[DPT_CUDA_TAIL_LOSS] - (2 * got[0].loss - 0.5)) <=
                        1e-6 * (1 + fabs(got[0].loss)));
        for (int k = DPT_CUDA_TAIL_SUMS; k < 16; k++)
            assert_true(tail[k] == 0);
        assert_true(got[1].loss == 0 && got[1].correct == 0 && got[1].samples == 0 &&
                    got[1].weight == 0);
        tensor_check(&dy, want, 1e-6, "dy of a loss", seed);
        for (size_t i = 0; i < (size_t)n; i++)
            for (size_t j = y.c; j < y.pitch; j++)
                assert_true(tensor_get(&dy, i * y.pitch + j) == 0);
        if (!isfinite(metric_sums.loss)
                ? isfinite(got[0].loss) || isnan(metric_sums.loss) != isnan(got[0].loss)
                : !(fabs(metric_sums.loss - got[0].loss) <= 1e-6 * (1 + fabs(metric_sums.loss))))
            fail_msg("seed %d: loss %.12g, not %.12g", seed, got[0].loss, metric_sums.loss);
        assert_true(fabs(got[0].correct - metric_sums.correct) <= 1e-12 * metric_sums.correct);
        assert_int_equal(got[0].samples, metric_sums.samples);
        assert_true(fabs(got[0].weight - metric_sums.weight) <= 1e-12 * metric_sums.weight);
        dpt_free(weights), dpt_free(back.partial);
        dpt_free(ys), dpt_free(targets), dpt_free(want), dpt_free(labels), dpt_free(partial);
        dpt_free(y.at), dpt_free(dy.at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations), cmocka_unit_test(pools),  cmocka_unit_test(pools_after_relu),
        cmocka_unit_test(dropout),     cmocka_unit_test(biases), cmocka_unit_test(losses),
    };

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}
