#include "core/backend/cpu/layers/conv_ways.h"

/* Forward by winograd.h. */

static struct dpt_winograd shape_of(const struct dpt_cpu_node *node)
{
    const struct dpt_window *window = &node->graph->window;
    struct dpt_winograd w = {.in_channels = node->in.c,
                             .out_channels = node->out.c,
                             .in = {node->in.h, node->in.w},
                             .out = {node->out.h, node->out.w},
                             .before = {window->before[0], window->before[1]},
                             .relu = node->relu,
                             .kernels = dpt_winograd_kernels(dpt_dnnl_isa())};

    if (node->pool != NULL) {
        w.pool = true;
        w.relu |= node->pool->relu;
        w.pooled[0] = node->pool->out.h;
        w.pooled[1] = node->pool->out.w;
    }
    return w;
}

/* Backward reads and writes the same layouts, and must have no fallback there. */
static enum dpt_status fits_winograd(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                     enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    const struct dpt_window *window = &node->graph->window;
    const struct dpt_winograd w = shape_of(node);

    (void)pass;
    *fits = false;
    if (window->kernel[0] != 3 || window->kernel[1] != 3 || !dpt_conv_is_plain(window) ||
        !dpt_winograd_pays(&w))
        return DPT_OK;
    return dpt_conv_onednn_in_blocks(program, node, fits, err);
}

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conv *conv = node->own;
    struct dpt_winograd *w = &conv->winograd.w;

    (void)pass;
    *w = shape_of(node);
    DPT_TRY(dpt_cpu_read(program, node, DPT_LAYOUT_C16, err));
    conv->x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    dpt_conv_write_output(program, node);
    dpt_cpu_want_scratch(program, dpt_winograd_scratch(w));
    dpt_cpu_copy(program, node, dpt_winograd_packed(w), &conv->winograd.weights);
out:
    return status;
}

static void refresh(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                    enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;

    (void)pass;
    dpt_winograd_pack(&conv->winograd.w, dpt_conv_weights_of(run, node), conv->winograd.weights);
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_cpu_node *to = node->pool != NULL ? node->pool : node;

    dpt_winograd_forward(&conv->winograd.w, run->program->spec.micro,
                         dpt_cpu_round(run, node->x, conv->x, 0, node->x_floats),
                         conv->winograd.weights, dpt_conv_bias_of(run, node), run->scratch,
                         dpt_cpu_buffer(run, to->y), dpt_conv_argmax(run, node));
}

const struct dpt_conv_way dpt_conv_winograd = {
    .name = "winograd",
    .fits = fits_winograd,
    .plan = plan,
    .refresh = refresh,
    .forward = forward,
};
