#include "core/backend/cpu/layers/conv_ways.h"

/* All passes of any shape by oneDNN's kernels. */

enum {
    FEW = 16,  /* pixels of a plane */
    MANY = 64, /* channels */
};

/* With AVX2 direct.h is faster, but in groups of channels. With AVX-512 it is on few pixels, where
 * it leaves out what is added around the plane: 512 channels on 2 x 2 take 0.6 of the time. */
static bool is_preferred(const struct dpt_cpu_node *node)
{
    const struct dpt_window *w = &node->graph->window;

    if (w->groups > 1 || dpt_cpu_isa() < DPT_ISA_AVX2)
        return true;
    return dpt_cpu_isa() != DPT_ISA_AVX2 &&
           (w->kernel[0] * w->kernel[1] == 1 || node->out.h * node->out.w > FEW ||
            node->in.c < MANY || node->out.c < MANY);
}

/* Requests kernels for the passes that no other way computes. */
static struct dpt_conv_request request_of(const struct dpt_cpu_program *program,
                                          const struct dpt_cpu_node *node)
{
    const bool backward = program->spec.training && !dpt_conv_listed(node);

    return (struct dpt_conv_request){.dnnl = program->dnnl,
                                     .name = node->name,
                                     .shape = dpt_cpu_conv_shape(program, node),
                                     .data = backward && node->wants_dx,
                                     .weights = backward};
}

enum dpt_status dpt_conv_onednn_in_blocks(struct dpt_cpu_program *program,
                                          const struct dpt_cpu_node *node, bool *yes,
                                          struct dpt_error *err)
{
    const struct dpt_conv_request request = request_of(program, node);
    struct dpt_conv *conv = node->own;
    struct dpt_conv_kernels *k = &conv->onednn.kernels;
    enum dpt_status status = DPT_OK;

    *yes = true;
    if (!request.weights || !is_preferred(node))
        return DPT_OK;
    status = dpt_conv_kernels_make(&request, DPT_LAYOUT_C16, DPT_LAYOUT_C16, k, err);
    *yes = status == DPT_OK && k->slow == 0;
    dpt_kernel_close(k->pass[DPT_CONV_FORWARD]);
    k->pass[DPT_CONV_FORWARD] = NULL;
    if (!*yes)
        dpt_conv_kernels_close(k);
    return status == DPT_BAD_JOB ? DPT_OK : status;
}

static enum dpt_status fits_onednn(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                   enum dpt_conv_pass pass, bool *fits, struct dpt_error *err)
{
    (void)program, (void)pass, (void)err;
    *fits = is_preferred(node);
    return DPT_OK;
}

/* --- planning --------------------------------------------------------------------------------- */

/* A kernel as a call, which owns it from here. */
static int take_call(struct dpt_cpu_program *program, struct dpt_conv *conv,
                     enum dpt_conv_pass pass, int x, int y, int w, int b)
{
    struct dpt_kernel *kernel = conv->onednn.kernels.pass[pass];

    conv->onednn.kernels.pass[pass] = NULL;
    return dpt_cpu_call(program, kernel, x, y, w, b);
}

static enum dpt_status open_copy(struct dpt_cpu_program *program, const struct dpt_cpu_node *node,
                                 enum dpt_conv_pass pass, struct dpt_conv_copy *copy,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_conv *conv = node->own;
    const struct dpt_kernel *kernel = conv->onednn.kernels.pass[pass];
    struct dpt_kernel *pack;

    dpt_cpu_copy(program, node, kernel->floats[DPT_ROLE_W], &copy->weights);
    DPT_TRY(dpt_kernel_reorder_weights(program->dnnl, &conv->shape, kernel, DPT_WEIGHTS_PACK, &pack,
                                       err));
    copy->call =
        dpt_cpu_call(program, pack, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

static enum dpt_status plan_forward(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    struct dpt_conv_kernels *k = &conv->onednn.kernels;
    const struct dpt_conv_request request = request_of(program, node);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_conv_kernels_choose(&request, k, err));
    DPT_TRY(dpt_cpu_read(program, node, k->x, err));
    conv->x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    dpt_cpu_write(program, node, k->y);
    DPT_TRY(open_copy(program, node, DPT_CONV_FORWARD, &conv->onednn.forward_weights, err));
    conv->onednn.forward =
        take_call(program, conv, DPT_CONV_FORWARD, conv->x, node->y, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

static enum dpt_status plan_data(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    enum dpt_status status = DPT_OK;

    DPT_TRY(open_copy(program, node, DPT_CONV_BACKWARD_DATA, &conv->onednn.data_weights, err));
    conv->onednn.data = take_call(program, conv, DPT_CONV_BACKWARD_DATA, node->dx, conv->dy,
                                  DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

/* oneDNN 3 cannot add to the gradient if its own order pads the channels: it unpacks into a buffer
 * then, and dpt_accumulate adds, with the same bits. */
static enum dpt_status plan_unpack(struct dpt_cpu_program *program, struct dpt_conv *conv,
                                   struct dpt_error *err)
{
    const struct dpt_kernel *kernel = conv->onednn.kernels.pass[DPT_CONV_BACKWARD_WEIGHTS];
    enum dpt_status status = DPT_OK;
    struct dpt_kernel *unpack;

    conv->onednn.unpacked = DPT_CPU_NONE;
    for (int add = 0; add < 2; add++) {
        status = dpt_kernel_reorder_weights(program->dnnl, &conv->shape, kernel,
                                            add ? DPT_WEIGHTS_UNPACK_ADD : DPT_WEIGHTS_UNPACK,
                                            &unpack, err);
        if (status == DPT_BAD_JOB && add) {
            conv->onednn.unpacked = dpt_cpu_take(program, conv->n_weights);
            conv->onednn.unpack[add] = conv->onednn.unpack[0];
            return DPT_OK;
        }
        DPT_TRY(status);
        conv->onednn.unpack[add] = dpt_cpu_call(program, unpack, conv->onednn.dw, DPT_CPU_NONE,
                                                DPT_CPU_NONE, DPT_CPU_NONE);
    }
out:
    return status;
}

static enum dpt_status plan_weights(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const struct dpt_kernel *kernel = conv->onednn.kernels.pass[DPT_CONV_BACKWARD_WEIGHTS];
    enum dpt_status status = DPT_OK;

    conv->onednn.dw = dpt_cpu_take(program, kernel->floats[DPT_ROLE_W]);
    conv->onednn.db = dpt_cpu_take(program, conv->shape.out_channels);
    DPT_TRY(plan_unpack(program, conv, err));
    conv->onednn.weights =
        take_call(program, conv, DPT_CONV_BACKWARD_WEIGHTS, conv->back_x, conv->dy, conv->onednn.dw,
                  conv->shape.bias ? conv->onednn.db : DPT_CPU_NONE);
    dpt_cpu_give(program, conv->onednn.dw);
    dpt_cpu_give(program, conv->onednn.db);
    dpt_cpu_give(program, conv->onednn.unpacked);
out:
    return status;
}

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            enum dpt_conv_pass pass, struct dpt_error *err)
{
    return pass == DPT_CONV_FORWARD         ? plan_forward(program, node, err)
           : pass == DPT_CONV_BACKWARD_DATA ? plan_data(program, node, err)
                                            : plan_weights(program, node, err);
}

/* --- running ---------------------------------------------------------------------------------- */

static void refresh(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                    enum dpt_conv_pass pass)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_conv_copy *copy =
        pass == DPT_CONV_FORWARD ? &conv->onednn.forward_weights : &conv->onednn.data_weights;

    dpt_cpu_set(run, copy->call, DPT_ROLE_X, dpt_conv_weights_of(run, node));
    dpt_cpu_set(run, copy->call, DPT_ROLE_Y, copy->weights);
    dpt_cpu_execute(run, copy->call);
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_cpu_round(run, node->x, conv->x, 0, node->x_floats);
    dpt_cpu_set(run, conv->onednn.forward, DPT_ROLE_W, conv->onednn.forward_weights.weights);
    if (conv->shape.bias)
        dpt_cpu_set(run, conv->onednn.forward, DPT_ROLE_B, dpt_conv_bias_of(run, node));
    dpt_cpu_execute(run, conv->onednn.forward);
    if (node->relu)
        dpt_relu(node->y_floats, 0, dpt_cpu_buffer(run, node->y), dpt_cpu_buffer(run, node->y));
}

static void data(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    dpt_cpu_set(run, conv->onednn.data, DPT_ROLE_W, conv->onednn.data_weights.weights);
    dpt_cpu_execute(run, conv->onednn.data);
}

static void weights(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const int unpack = conv->onednn.unpack[run->add], unpacked = conv->onednn.unpacked;
    const bool adds = run->add && unpacked != DPT_CPU_NONE;
    float *dw = dpt_cpu_gradient(run, node->graph->weight);

    dpt_cpu_execute(run, conv->onednn.weights);
    dpt_cpu_set(run, unpack, DPT_ROLE_Y, adds ? dpt_cpu_buffer(run, unpacked) : dw);
    dpt_cpu_execute(run, unpack);
    if (adds)
        dpt_accumulate(conv->n_weights, dpt_cpu_buffer(run, unpacked), true, dw);
    if (conv->shape.bias)
        dpt_accumulate(conv->shape.out_channels, dpt_cpu_buffer(run, conv->onednn.db), run->add,
                       dpt_cpu_gradient(run, node->graph->bias));
}

const struct dpt_conv_way dpt_conv_onednn = {
    .name = "oneDNN",
    .fits = fits_onednn,
    .plan = plan,
    .refresh = refresh,
    .forward = forward,
    .data = data,
    .weights = weights,
};
