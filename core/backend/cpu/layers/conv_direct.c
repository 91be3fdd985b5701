#include "core/backend/cpu/layers/conv_ways.h"

#include "core/backend/cpu/fp32/depthwise.h"

/* All passes of any shape by direct.h, and by depthwise.h if a group is a channel. */

static bool is_blocks(const struct dpt_cpu_node *node)
{
    return node->x_layout == DPT_LAYOUT_C16 && node->y_layout == DPT_LAYOUT_C16;
}

static enum dpt_status fits_direct(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                   enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    (void)program, (void)err;
    *fits = pass == DPT_CONV_FORWARD || is_blocks(node) ||
            (pass == DPT_CONV_BACKWARD_WEIGHTS && node->x_layout == DPT_LAYOUT_NCHW);
    return DPT_OK;
}

static enum dpt_status fits_depthwise(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                      enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    const struct dpt_conv *conv = node->own;

    (void)program, (void)err;
    *fits = dpt_depthwise_fits(&conv->shape) && (pass == DPT_CONV_FORWARD || is_blocks(node));
    return DPT_OK;
}

static bool is_backward(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    return program->spec.training && node->wants_dy && !dpt_conv_listed(node);
}

/* The input as it is, if it is in planes and no gradient goes back to it. */
static enum dpt_status plan_operands(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                     bool planes, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const bool has_planes = dpt_cpu_input_layout(program, node) == DPT_LAYOUT_NCHW;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cpu_read(program, node,
                         planes && has_planes && !(is_backward(program, node) && node->wants_dx)
                             ? DPT_LAYOUT_NCHW
                             : DPT_LAYOUT_C16,
                         err));
    conv->x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    dpt_cpu_write(program, node, DPT_LAYOUT_C16);
out:
    return status;
}

static const float *read_input(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    return dpt_cpu_round(run, node->x, conv->x, 0, node->x_floats);
}

static void apply_relu(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    if (node->relu)
        dpt_relu(node->y_floats, 0, dpt_cpu_buffer(run, node->y), dpt_cpu_buffer(run, node->y));
}

/* --- direct ----------------------------------------------------------------------------------- */

/* The first pass that goes this way opens what all of them share. */
static enum dpt_status open_direct(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                   struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const bool backward = is_backward(program, node);
    const struct dpt_direct_shape shape = {.conv = conv->shape,
                                           .x = node->x_layout,
                                           .backward = backward,
                                           .wants_dx = backward && node->wants_dx,
                                           .isa = dpt_cpu_isa()};
    enum dpt_status status = DPT_OK;

    if (conv->direct.conv == NULL)
        DPT_TRY(dpt_direct_open(&shape, &conv->direct.conv, err));
    dpt_cpu_want_scratch(program, dpt_direct_scratch(conv->direct.conv));
out:
    return status;
}

static enum dpt_status plan_direct(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                   enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const bool data = pass == DPT_CONV_BACKWARD_DATA;
    enum dpt_status status = DPT_OK;

    if (pass == DPT_CONV_FORWARD)
        DPT_TRY(plan_operands(program, node, true, err));
    DPT_TRY(open_direct(program, node, err));
    if (pass != DPT_CONV_BACKWARD_WEIGHTS)
        dpt_cpu_copy(program, node, dpt_direct_packed(conv->direct.conv, data),
                     data ? &conv->direct.data : &conv->direct.weights);
out:
    return status;
}

static void refresh_direct(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                           enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;
    const bool data = pass == DPT_CONV_BACKWARD_DATA;

    dpt_direct_pack(conv->direct.conv, data, dpt_conv_weights_of(run, node),
                    data ? conv->direct.data : conv->direct.weights);
}

static void forward_direct(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_direct_forward(conv->direct.conv, read_input(run, node), conv->direct.weights,
                       dpt_conv_bias_of(run, node), run->scratch, dpt_cpu_buffer(run, node->y));
    apply_relu(run, node);
}

static void data_direct(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_direct_data(conv->direct.conv, dpt_cpu_buffer(run, conv->dy), conv->direct.data,
                    run->scratch, dpt_cpu_buffer(run, node->dx));
}

static void weights_direct(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_direct_weights(conv->direct.conv, dpt_cpu_buffer(run, conv->back_x),
                       dpt_cpu_buffer(run, conv->dy), run->add, run->scratch,
                       dpt_cpu_gradient(run, node->graph->weight),
                       dpt_cpu_gradient(run, node->graph->bias));
}

const struct dpt_conv_way dpt_conv_direct = {
    .name = "direct",
    .fits = fits_direct,
    .plan = plan_direct,
    .refresh = refresh_direct,
    .forward = forward_direct,
    .data = data_direct,
    .weights = weights_direct,
};

/* --- depthwise -------------------------------------------------------------------------------- */

static enum dpt_status plan_depthwise(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                      enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    enum dpt_status status = DPT_OK;

    if (pass == DPT_CONV_FORWARD)
        DPT_TRY(plan_operands(program, node, false, err));
    dpt_cpu_want_scratch(program, dpt_depthwise_scratch(&conv->shape));
    if (pass != DPT_CONV_BACKWARD_WEIGHTS)
        dpt_cpu_copy(program, node, conv->n_weights,
                     pass == DPT_CONV_FORWARD ? &conv->direct.weights : &conv->direct.data);
out:
    return status;
}

/* They are as they were, but for rounding or a batch norm. */
static void refresh_depthwise(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                              enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;

    dpt_accumulate(conv->n_weights, dpt_conv_weights_of(run, node), false,
                   pass == DPT_CONV_FORWARD ? conv->direct.weights : conv->direct.data);
}

static void forward_depthwise(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_depthwise_forward(&conv->shape, read_input(run, node), conv->direct.weights,
                          dpt_conv_bias_of(run, node), run->scratch, dpt_cpu_buffer(run, node->y));
    apply_relu(run, node);
}

static void data_depthwise(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_depthwise_data(&conv->shape, dpt_cpu_buffer(run, conv->dy), conv->direct.data, run->scratch,
                       dpt_cpu_buffer(run, node->dx));
}

static void weights_depthwise(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const float *dy = dpt_cpu_buffer(run, conv->dy);

    dpt_depthwise_weights(&conv->shape, dpt_cpu_buffer(run, conv->back_x), dy, run->add,
                          run->scratch, dpt_cpu_gradient(run, node->graph->weight));
    if (node->graph->bias >= 0)
        dpt_direct_bias(&conv->shape, dy, run->add, dpt_cpu_gradient(run, node->graph->bias));
}

const struct dpt_conv_way dpt_conv_depthwise = {
    .name = "depthwise",
    .fits = fits_depthwise,
    .plan = plan_depthwise,
    .refresh = refresh_depthwise,
    .forward = forward_depthwise,
    .data = data_depthwise,
    .weights = weights_depthwise,
};
