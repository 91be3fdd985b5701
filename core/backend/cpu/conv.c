#include <string.h>

#include "core/backend/cpu/kernels.h"
#include "core/backend/cpu/program.h"
#include "core/base/memory.h"

/* The kernels of the passes that are wanted, in one pair of layouts. */
struct kernels {
    struct dpt_kernel *forward, *data, *weights;
    enum dpt_layout x, y;
    int slow; /* how many are fallbacks */
};

/*
 * Each pass may want its weights in an order of its own. Copies in these orders, shared by all
 * slots, are renewed in refresh; the gradient of the weights comes in such an order too and is put
 * into the canonical one.
 */
struct copy {
    int call; /* canonical order -> the pass's; NONE: the pass is not wanted */
    float *weights;
};

struct conv {
    struct dpt_conv_shape shape;
    struct kernels kernels; /* those that are no calls yet */
    struct copy forward_weights, data_weights;
    int forward, data, weights, unpack; /* calls */
    int dw, dw_canonical, db;           /* buffers */
    int64_t n_weights;
};

static struct dpt_conv_shape shape_of(const struct dpt_cpu_program *program,
                                      const struct dpt_cpu_node *node)
{
    const struct dpt_window *w = &node->graph->window;
    struct dpt_conv_shape shape = {.n = program->spec.micro,
                                   .groups = w->groups,
                                   .in_channels = node->in.c,
                                   .out_channels = node->out.c,
                                   .in = {node->in.h, node->in.w},
                                   .out = {node->out.h, node->out.w},
                                   .bias = node->graph->bias >= 0};

    for (int i = 0; i < 2; i++) {
        shape.kernel[i] = w->kernel[i];
        shape.stride[i] = w->stride[i];
        shape.dilation[i] = w->dilation[i];
        shape.before[i] = w->before[i];
        shape.after[i] = w->after[i];
    }
    return shape;
}

static void close_kernels(struct kernels *k)
{
    dpt_kernel_close(k->forward);
    dpt_kernel_close(k->data);
    dpt_kernel_close(k->weights);
    *k = (struct kernels){0};
}

static enum dpt_status make_kernels(struct dpt_cpu_program *program,
                                    const struct dpt_cpu_node *node, enum dpt_layout x,
                                    enum dpt_layout y, struct kernels *k, struct dpt_error *err)
{
    const struct dpt_conv_shape shape = shape_of(program, node);
    enum dpt_status status = DPT_OK;

    *k = (struct kernels){0};
    DPT_TRY(dpt_kernel_conv(program->dnnl, DPT_CONV_FORWARD, &shape, x, y, &k->forward, err));
    k->x = dpt_kernel_layout(k->forward, DPT_ROLE_X);
    k->y = dpt_kernel_layout(k->forward, DPT_ROLE_Y);
    k->slow = dpt_kernel_slow(k->forward);
    if (k->x == DPT_LAYOUT_ANY || k->y == DPT_LAYOUT_ANY) {
        status = dpt_fail(err, DPT_BAD_JOB, "oneDNN chose a layout that is not known here");
        goto out;
    }
    if (program->spec.training && node->wants_dx) {
        DPT_TRY(dpt_kernel_conv(program->dnnl, DPT_CONV_BACKWARD_DATA, &shape, k->x, k->y, &k->data,
                                err));
        k->slow += dpt_kernel_slow(k->data);
    }
    if (program->spec.training) {
        DPT_TRY(dpt_kernel_conv(program->dnnl, DPT_CONV_BACKWARD_WEIGHTS, &shape, k->x, k->y,
                                &k->weights, err));
        k->slow += dpt_kernel_slow(k->weights);
    }
out:
    if (status != DPT_OK)
        close_kernels(k);
    return status;
}

/*
 * oneDNN's own choice for forward, where the backward passes have fast kernels too. With few
 * channels they often have none in these layouts (a fallback is a hundred times slower); then the
 * pair with fewest fallbacks.
 */
static enum dpt_status choose_kernels(struct dpt_cpu_program *program,
                                      const struct dpt_cpu_node *node, struct kernels *best,
                                      struct dpt_error *err)
{
    static const enum dpt_layout wishes[][2] = {
        {DPT_LAYOUT_ANY, DPT_LAYOUT_ANY},   {DPT_LAYOUT_C16, DPT_LAYOUT_C16},
        {DPT_LAYOUT_C8, DPT_LAYOUT_C8},     {DPT_LAYOUT_NHWC, DPT_LAYOUT_NHWC},
        {DPT_LAYOUT_NCHW, DPT_LAYOUT_NCHW},
    };
    enum dpt_status status = DPT_BAD_JOB;
    struct kernels k;

    *best = (struct kernels){0};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        status = make_kernels(program, node, wishes[i][0], wishes[i][1], &k, err);
        if (status == DPT_OK && (best->forward == NULL || k.slow < best->slow)) {
            close_kernels(best);
            *best = k;
        } else if (status == DPT_OK) {
            close_kernels(&k);
        }
        if (status != DPT_OK && status != DPT_BAD_JOB)
            break;
        if (best->forward != NULL && best->slow == 0)
            break;
    }
    if (best->forward == NULL)
        return status == DPT_BAD_JOB
                   ? dpt_fail(err, status, "%s: oneDNN has no convolution of this shape",
                              node->name)
                   : status;
    return DPT_OK;
}

static enum dpt_status open_copy(struct dpt_cpu_program *program, const struct conv *conv,
                                 const struct dpt_kernel *kernel, struct copy *copy,
                                 struct dpt_error *err)
{
    const int64_t floats = dpt_kernel_floats(kernel, DPT_ROLE_W);
    enum dpt_status status = DPT_OK;
    struct dpt_kernel *pack;

    copy->weights = dpt_alloc_array((size_t)floats, sizeof *copy->weights);
    if (copy->weights == NULL)
        return dpt_fail_memory(err, "weights", (double)floats * sizeof *copy->weights);
    program->bytes += floats * (int64_t)sizeof *copy->weights;
    DPT_TRY(dpt_kernel_reorder_weights(program->dnnl, &conv->shape, kernel, false, &pack, err));
    copy->call =
        dpt_cpu_call(program, pack, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

static void close_conv(struct dpt_cpu_node *node)
{
    struct conv *conv = node->own;

    close_kernels(&conv->kernels);
    dpt_free(conv->forward_weights.weights);
    dpt_free(conv->data_weights.weights);
    dpt_free(conv);
}

static enum dpt_status plan_conv(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct conv *conv = node->own = dpt_alloc(sizeof *conv);
    struct kernels *k;

    if (conv == NULL)
        return dpt_fail_memory(err, node->name, sizeof *conv);
    k = &conv->kernels;
    conv->shape = shape_of(program, node);
    conv->n_weights = program->spec.graph->tensors[node->graph->weight].count;
    conv->forward_weights.call = conv->data_weights.call = DPT_CPU_NONE;
    DPT_TRY(choose_kernels(program, node, k, err));
    DPT_TRY(dpt_cpu_read(program, node, k->x, err));
    dpt_cpu_write(program, node, k->y);
    DPT_TRY(open_copy(program, conv, k->forward, &conv->forward_weights, err));
    conv->forward = dpt_cpu_call(program, k->forward, node->x, node->y, DPT_CPU_NONE, DPT_CPU_NONE);
    k->forward = NULL;
out:
    return status;
}

static enum dpt_status plan_conv_backward(struct dpt_cpu_program *program,
                                          struct dpt_cpu_node *node, struct dpt_error *err)
{
    struct conv *conv = node->own;
    struct kernels *k = &conv->kernels;
    enum dpt_status status = DPT_OK;
    struct dpt_kernel *unpack;

    if (node->wants_dx) {
        DPT_TRY(open_copy(program, conv, k->data, &conv->data_weights, err));
        conv->data = dpt_cpu_call(program, k->data, node->dx, node->dy, DPT_CPU_NONE, DPT_CPU_NONE);
        k->data = NULL;
    }
    conv->dw = dpt_cpu_take(program, dpt_kernel_floats(k->weights, DPT_ROLE_W));
    conv->dw_canonical = dpt_cpu_take(program, conv->n_weights);
    conv->db = dpt_cpu_take(program, conv->shape.out_channels);
    DPT_TRY(
        dpt_kernel_reorder_weights(program->dnnl, &conv->shape, k->weights, true, &unpack, err));
    conv->unpack =
        dpt_cpu_call(program, unpack, conv->dw, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE);
    conv->weights = dpt_cpu_call(program, k->weights, node->x, node->dy, conv->dw,
                                 conv->shape.bias ? conv->db : DPT_CPU_NONE);
    k->weights = NULL;
    dpt_cpu_give(program, conv->dw);
    dpt_cpu_give(program, conv->dw_canonical);
    dpt_cpu_give(program, conv->db);
out:
    return status;
}

static enum dpt_status refresh_copy(const struct dpt_cpu_run *run, const struct copy *copy,
                                    const float *weights, int turn, int *task,
                                    struct dpt_error *err)
{
    if (copy->call == DPT_CPU_NONE || (*task)++ % run->program->spec.threads != turn)
        return DPT_OK;
    dpt_cpu_set(run, copy->call, DPT_ROLE_X, weights);
    dpt_cpu_set(run, copy->call, DPT_ROLE_Y, copy->weights);
    return dpt_cpu_execute(run, copy->call, err);
}

static enum dpt_status refresh_conv(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                    int turn, int *task, struct dpt_error *err)
{
    const struct conv *conv = node->own;
    const float *weights = run->params + dpt_cpu_offset(run->program, node->graph->weight);
    enum dpt_status status = DPT_OK;

    DPT_TRY(refresh_copy(run, &conv->forward_weights, weights, turn, task, err));
    DPT_TRY(refresh_copy(run, &conv->data_weights, weights, turn, task, err));
out:
    return status;
}

static enum dpt_status conv_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    const struct conv *conv = node->own;

    dpt_cpu_set(run, conv->forward, DPT_ROLE_W, conv->forward_weights.weights);
    if (conv->shape.bias)
        dpt_cpu_set(run, conv->forward, DPT_ROLE_B,
                    run->params + dpt_cpu_offset(run->program, node->graph->bias));
    return dpt_cpu_execute(run, conv->forward, err);
}

static enum dpt_status weight_gradient(const struct dpt_cpu_run *run,
                                       const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct conv *conv = node->own;
    float *dw = run->gradient + dpt_cpu_offset(run->program, node->graph->weight);
    float *canonical = run->add ? dpt_cpu_buffer(run, conv->dw_canonical) : dw;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cpu_execute(run, conv->weights, err));
    dpt_cpu_set(run, conv->unpack, DPT_ROLE_Y, canonical);
    DPT_TRY(dpt_cpu_execute(run, conv->unpack, err));
    if (run->add)
        dpt_accumulate(conv->n_weights, canonical, dw);
    if (conv->shape.bias)
        dpt_sum_rows(1, conv->shape.out_channels, dpt_cpu_buffer(run, conv->db), run->add,
                     run->gradient + dpt_cpu_offset(run->program, node->graph->bias));
out:
    return status;
}

static enum dpt_status conv_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                     struct dpt_error *err)
{
    const struct conv *conv = node->own;
    enum dpt_status status = DPT_OK;

    DPT_TRY(weight_gradient(run, node, err));
    if (node->wants_dx) {
        dpt_cpu_set(run, conv->data, DPT_ROLE_W, conv->data_weights.weights);
        DPT_TRY(dpt_cpu_execute(run, conv->data, err));
    }
out:
    return status;
}

const struct dpt_cpu_op dpt_cpu_conv = {
    .plan = plan_conv,
    .plan_backward = plan_conv_backward,
    .refresh = refresh_conv,
    .forward = conv_forward,
    .backward = conv_backward,
    .close = close_conv,
};
