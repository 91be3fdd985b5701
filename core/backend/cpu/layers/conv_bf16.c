#include "core/backend/cpu/layers/conv_ways.h"

/* All passes by the CPU's own instructions for bf16.
 *
 * oneDNN 3.7.2's kernels for bf16 would make resnet20's step at most 6 % faster, not counting that
 * results are written as fp32 and weights packed at each step. That is not worth a second set of
 * bits for each version of the library. */
/* Whether fp32's instructions are faster than AVX-512 BF16, which multiplies at most twice as many:
 * before a max-pool they leave out three in four products, and of few channels this way multiplies
 * mostly zeros. */
static bool is_faster_in_fp32(const struct dpt_cpu_node *conv)
{
    return conv->in.c <= DPT_BF16_FEW || (conv->pool != NULL && dpt_cpu_conv_lists(conv));
}

const struct dpt_bf16_kernels *dpt_cpu_conv_bf16(const struct dpt_cpu_program *program,
                                                 const struct dpt_cpu_node *conv)
{
    const struct dpt_bf16_kernels *kernels =
        dpt_cpu_rounds(program) && conv->graph->window.groups == 1 ? dpt_bf16_kernels(dpt_cpu_isa())
                                                                   : NULL;

    return kernels != NULL && kernels->isa < DPT_ISA_AMX && is_faster_in_fp32(conv) ? NULL
                                                                                    : kernels;
}

static enum dpt_status fits_bf16(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    (void)pass, (void)err;
    *fits = dpt_cpu_conv_bf16(program, node) != NULL;
    return DPT_OK;
}

static enum dpt_status plan_forward(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conv *conv = node->own;
    const bool backward = program->spec.training && node->wants_dy;
    const bool planes = node->in.c <= DPT_BF16_FEW && !(backward && node->wants_dx) &&
                        node->n_inputs == 1 &&
                        dpt_cpu_input_layout(program, node) == DPT_LAYOUT_NCHW;
    struct dpt_bf16_conv_shape shape = {.in_channels = node->in.c,
                                        .out_channels = node->out.c,
                                        .in = {node->in.h, node->in.w},
                                        .out = {node->out.h, node->out.w},
                                        .window = node->graph->window,
                                        .x = planes ? DPT_LAYOUT_NCHW : DPT_LAYOUT_C16,
                                        .x_bf16 = program->nodes[node->inputs[0]].y_bf16,
                                        .relu = node->relu,
                                        .backward = backward,
                                        .wants_dx = node->wants_dx};

    if (node->pool != NULL) {
        shape.pool = true;
        shape.relu |= node->pool->relu;
        shape.pooled[0] = node->pool->out.h;
        shape.pooled[1] = node->pool->out.w;
    }
    DPT_TRY(dpt_bf16_conv_open(&shape, dpt_cpu_conv_bf16(program, node), program->spec.micro,
                               &conv->bf16.conv, err));
    DPT_TRY(dpt_cpu_read(program, node, shape.x, err));
    conv->x = node->x;
    dpt_conv_write_output(program, node);
    dpt_cpu_want_scratch(program, dpt_bf16_conv_scratch(conv->bf16.conv));
    dpt_cpu_copy(program, node, dpt_bf16_conv_packed(conv->bf16.conv, false), &conv->bf16.weights);
out:
    return status;
}

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;

    if (pass == DPT_CONV_FORWARD)
        return plan_forward(program, node, err);
    if (node->wants_dx)
        dpt_cpu_copy(program, node, dpt_bf16_conv_packed(conv->bf16.conv, true), &conv->bf16.data);
    return DPT_OK;
}

static void refresh(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                    enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;
    const bool data = pass == DPT_CONV_BACKWARD_DATA;

    dpt_bf16_conv_pack(conv->bf16.conv, data, dpt_conv_weights_of(run, node),
                       data ? conv->bf16.data : conv->bf16.weights);
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_cpu_node *to = node->pool != NULL ? node->pool : node;

    dpt_bf16_conv_forward(conv->bf16.conv, run->program->spec.micro, dpt_cpu_buffer(run, node->x),
                          conv->bf16.weights, dpt_conv_bias_of(run, node),
                          node->n_inputs > 1 ? dpt_cpu_buffer(run, node->other) : NULL,
                          run->scratch, dpt_cpu_buffer(run, to->y), dpt_conv_argmax(run, node));
}

static void backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_graph *graph = run->program->spec.graph;
    const bool adds = node->add[0].within;
    const int known = adds ? node->add[0].known : DPT_CPU_NONE;
    const struct dpt_bf16_conv_work work = {
        .count = run->batch->count,
        .micro = run->program->spec.micro,
        .x = dpt_cpu_buffer(run, node->x),
        .dy = dpt_cpu_buffer(run, node->dy),
        .dy_bf16 = node->dy_bf16,
        .argmax = node->pool != NULL ? (void *)dpt_cpu_buffer(run, node->pool->argmax) : NULL,
        .packed = conv->bf16.data,
        .scratch = run->scratch,
        .add = run->add,
        .dw = dpt_graph_updates(graph, node->graph->weight)
                  ? dpt_cpu_gradient(run, node->graph->weight)
                  : NULL,
        .db = dpt_cpu_gradient(run, node->graph->bias),
        .dx = node->wants_dx ? dpt_cpu_buffer(run, node->dx) : NULL,
        .added = adds ? dpt_cpu_buffer(run, node->add[0].a) : NULL,
        .known = known != DPT_CPU_NONE ? dpt_cpu_buffer(run, known) : NULL,
    };

    dpt_bf16_conv_backward(conv->bf16.conv, &work);
}

const struct dpt_conv_way dpt_conv_bf16 = {
    .name = "bf16",
    .fits = fits_bf16,
    .plan = plan,
    .refresh = refresh,
    .forward = forward,
    .backward = backward,
    .rounds = true,
};
