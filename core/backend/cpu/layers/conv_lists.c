#include "core/backend/cpu/layers/conv_ways.h"

/* Both gradients by sparse.h. */

static struct dpt_sparse_shape sparse_shape(const struct dpt_cpu_node *node)
{
    const struct dpt_window *w = &node->graph->window;

    return (struct dpt_sparse_shape){.in_channels = node->in.c,
                                     .out_channels = node->out.c,
                                     .in = {node->in.h, node->in.w},
                                     .out = {node->out.h, node->out.w},
                                     .kernel = {w->kernel[0], w->kernel[1]},
                                     .before = {w->before[0], w->before[1]},
                                     .pooled = {node->pool->out.h, node->pool->out.w},
                                     .x = node->x_layout,
                                     .y = node->y_layout,
                                     .wants_dx = node->wants_dx};
}

bool dpt_cpu_conv_lists(const struct dpt_cpu_node *conv)
{
    const struct dpt_sparse_shape shape = sparse_shape(conv);

    return dpt_conv_is_plain(&conv->graph->window) && dpt_sparse_fits(&shape);
}

static enum dpt_status fits_lists(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    (void)program, (void)pass, (void)err;
    *fits = dpt_conv_listed(node);
    return DPT_OK;
}

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const struct dpt_sparse_shape shape = sparse_shape(node);
    enum dpt_status status = DPT_OK;

    (void)pass;
    DPT_TRY(dpt_sparse_open(&shape, dpt_cpu_isa(), &conv->lists.sparse, err));
    conv->lists.scratch = dpt_cpu_reserve(program, dpt_sparse_scratch(conv->lists.sparse));
    if (node->wants_dx)
        dpt_cpu_copy(program, node, dpt_sparse_packed(conv->lists.sparse), &conv->lists.weights);
out:
    return status;
}

static void refresh(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                    enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;

    (void)pass;
    dpt_sparse_pack(conv->lists.sparse, dpt_conv_weights_of(run, node), conv->lists.weights);
}

static void backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_sparse_work work = {
        .count = run->batch->count,
        .micro = run->program->spec.micro,
        .x = dpt_cpu_round(run, node->x, conv->back_x, 0, node->x_floats),
        .dy = dpt_cpu_round(run, node->dy, conv->dy, 0, node->pool->y_floats),
        .argmax = (const void *)dpt_cpu_buffer(run, node->pool->argmax),
        .packed = conv->lists.weights,
        .scratch = dpt_cpu_buffer(run, conv->lists.scratch),
        .add = run->add,
        .dw = dpt_cpu_gradient(run, node->graph->weight),
        .db = dpt_cpu_gradient(run, node->graph->bias),
        .dx = node->wants_dx ? dpt_cpu_buffer(run, node->dx) : NULL,
    };

    dpt_sparse_backward(conv->lists.sparse, &work);
}

const struct dpt_conv_way dpt_conv_lists = {
    .name = "lists",
    .fits = fits_lists,
    .plan = plan,
    .refresh = refresh,
    .backward = backward,
};
