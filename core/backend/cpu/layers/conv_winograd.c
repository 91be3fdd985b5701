#include "core/backend/cpu/layers/conv_ways.h"

/* All passes by winograd.h. The gradient of the input is a convolution of the output's gradient
 * with kernels turned by half a circle. */

static struct dpt_winograd shape_of(const struct dpt_cpu_node *node)
{
    const struct dpt_window *window = &node->graph->window;
    struct dpt_winograd w = {.in_channels = node->in.c,
                             .out_channels = node->out.c,
                             .in = {node->in.h, node->in.w},
                             .out = {node->out.h, node->out.w},
                             .before = {window->before[0], window->before[1]},
                             .relu = node->relu,
                             .kernels = dpt_winograd_kernels(dpt_cpu_isa())};

    if (node->pool != NULL) {
        w.pool = true;
        w.relu |= node->pool->relu;
        w.pooled[0] = node->pool->out.h;
        w.pooled[1] = node->pool->out.w;
    }
    return w;
}

static bool is_plain_3x3(const struct dpt_cpu_node *node)
{
    const struct dpt_window *window = &node->graph->window;

    return window->kernel[0] == 3 && window->kernel[1] == 3 && dpt_conv_is_plain(window);
}

/* Backward reads and writes the same layouts, where oneDNN must have no fallback. */
static enum dpt_status fits_winograd(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                     enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    const struct dpt_winograd w = shape_of(node);

    (void)pass;
    *fits = is_plain_3x3(node) && dpt_winograd_pays(&w);
#if DPT_CPU_ONEDNN
    if (*fits)
        return dpt_conv_onednn_in_blocks(program, node, fits, err);
#else
    (void)program, (void)err;
#endif
    return DPT_OK;
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
    dpt_winograd_pack(&conv->winograd.w, dpt_conv_weights_of(run, node), false,
                      conv->winograd.weights);
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

/* --- the gradient of the input ---------------------------------------------------------------- */

static struct dpt_winograd shape_of_data(const struct dpt_cpu_node *node)
{
    const struct dpt_window *window = &node->graph->window;

    return (struct dpt_winograd){.in_channels = node->out.c,
                                 .out_channels = node->in.c,
                                 .in = {node->out.h, node->out.w},
                                 .out = {node->in.h, node->in.w},
                                 .before = {2 - window->before[0], 2 - window->before[1]},
                                 .kernels = dpt_winograd_kernels(dpt_cpu_isa())};
}

static enum dpt_status fits_winograd_data(struct dpt_cpu_program *program,
                                          struct dpt_cpu_node *node, enum dpt_conv_pass pass,
                                          bool *fits, struct dpt_error *err)
{
    const struct dpt_winograd w = shape_of_data(node);

    (void)program, (void)pass, (void)err;
    *fits = is_plain_3x3(node) && w.before[0] >= 0 && w.before[1] >= 0 &&
            node->x_layout == DPT_LAYOUT_C16 && node->y_layout == DPT_LAYOUT_C16 &&
            dpt_winograd_pays(&w);
    return DPT_OK;
}

static enum dpt_status plan_data(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    struct dpt_winograd *w = &conv->winograd_data.w;

    (void)pass, (void)err;
    *w = shape_of_data(node);
    dpt_cpu_want_scratch(program, dpt_winograd_scratch(w));
    dpt_cpu_copy(program, node, dpt_winograd_packed(w), &conv->winograd_data.weights);
    return DPT_OK;
}

static void refresh_data(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                         enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;

    (void)pass;
    dpt_winograd_pack(&conv->winograd_data.w, dpt_conv_weights_of(run, node), true,
                      conv->winograd_data.weights);
}

static void data(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_winograd_forward(&conv->winograd_data.w, run->program->spec.micro,
                         dpt_cpu_buffer(run, conv->dy), conv->winograd_data.weights, NULL,
                         run->scratch, dpt_cpu_buffer(run, node->dx), NULL);
}

const struct dpt_conv_way dpt_conv_winograd_data = {
    .name = "winograd",
    .fits = fits_winograd_data,
    .plan = plan_data,
    .refresh = refresh_data,
    .data = data,
};

/* --- the gradient of the weights -------------------------------------------------------------- */

/* Without what is computed after the convolution. */
static struct dpt_winograd shape_of_weights(const struct dpt_cpu_node *node)
{
    struct dpt_winograd w = shape_of(node);

    w.pool = w.relu = false;
    return w;
}

static enum dpt_status fits_winograd_weights(struct dpt_cpu_program *program,
                                             struct dpt_cpu_node *node, enum dpt_conv_pass pass,
                                             bool *fits, struct dpt_error *err)
{
    const struct dpt_winograd w = shape_of_weights(node);

    (void)program, (void)pass, (void)err;
    *fits = is_plain_3x3(node) && node->x_layout == DPT_LAYOUT_C16 &&
            node->y_layout == DPT_LAYOUT_C16 && dpt_winograd_pays(&w);
    return DPT_OK;
}

static enum dpt_status plan_weights(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    enum dpt_conv_pass pass, struct dpt_error *err)
{
    const struct dpt_winograd w = shape_of_weights(node);

    (void)pass, (void)err;
    dpt_cpu_want_scratch(program, dpt_winograd_weights_scratch(&w));
    return DPT_OK;
}

static void weights(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_winograd w = shape_of_weights(node);
    const float *dy = dpt_cpu_buffer(run, conv->dy);

    dpt_winograd_weights(&w, run->program->spec.micro, dpt_cpu_buffer(run, conv->back_x), dy,
                         run->add, run->scratch, dpt_cpu_gradient(run, node->graph->weight));
    if (conv->shape.bias)
        dpt_direct_bias(&conv->shape, dy, run->add, dpt_cpu_gradient(run, node->graph->bias));
}

const struct dpt_conv_way dpt_conv_winograd_weights = {
    .name = "winograd",
    .fits = fits_winograd_weights,
    .plan = plan_weights,
    .weights = weights,
};
