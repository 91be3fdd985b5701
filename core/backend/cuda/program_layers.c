/* What each layer's passes enqueue, with all arguments. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program_private.h"

typedef enum dpt_status layer(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err);

/* --- where things are ------------------------------------------------------------------------- */

void *dpt_cuda_value(const struct dpt_cuda_program *p, int32_t i)
{
    return p->lists->values + dpt_cuda_form_of(p, dpt_cuda_form_of(p, i)->tensor)->y;
}

void *dpt_cuda_gradient(const struct dpt_cuda_program *p, int32_t i)
{
    const int dy = dpt_cuda_form_of(p, i)->dy;

    return dy == DPT_CUDA_NONE ? NULL : p->lists->dy[dy];
}

static int64_t elements(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);

    return (int64_t)p->micro * f->h * f->w * f->pitch;
}

/* In a list of numbers of the tensors' type. */
static void *copy_at(const struct dpt_cuda_program *p, int64_t place)
{
    return p->lists->copies + place * p->lists->forms.element;
}

static void *weight_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);

    return f->direct
               ? (void *)(p->params + dpt_cuda_tensor_of(p, p->spec.graph->nodes[i].weight)->offset)
               : copy_at(p, f->weight);
}

static void *bias_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);

    return f->bias == DPT_CUDA_NONE
               ? (void *)(p->params + dpt_cuda_tensor_of(p, p->spec.graph->nodes[i].bias)->offset)
               : copy_at(p, f->bias);
}

/* --- entries ---------------------------------------------------------------------------------- */

/* kernel: for tensors of the program's type. */
static enum dpt_status add_kernel(struct dpt_cuda_program *p, enum dpt_cuda_stage stage, int32_t i,
                                  enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                  const void *args, struct dpt_error *err)
{
    struct dpt_cuda_entry entry = {.what = DPT_CUDA_KERNEL,
                                   .node = i,
                                   .span = dpt_span_node(i, pass),
                                   .kernel = dpt_cuda_typed(p, kernel)};

    memcpy(&entry.args, args, dpt_cuda_kernel_argument(entry.kernel));
    return dpt_cuda_add_entry(p, stage, &entry, err);
}

static enum dpt_status add_forward(struct dpt_cuda_program *p, int32_t i,
                                   enum dpt_cuda_kernel kernel, const void *args,
                                   struct dpt_error *err)
{
    return add_kernel(p, DPT_CUDA_FORWARD_LIST, i, DPT_PASS_FORWARD, kernel, args, err);
}

static enum dpt_status add_backward(struct dpt_cuda_program *p, int32_t i,
                                    enum dpt_cuda_kernel kernel, const void *args,
                                    struct dpt_error *err)
{
    return add_kernel(p, DPT_CUDA_BACKWARD_LIST, i, DPT_PASS_BACKWARD, kernel, args, err);
}

/* --- convolutions and dense layers ------------------------------------------------------------ */

static enum dpt_status add_math(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                struct dpt_cuda_math **made, struct dpt_error *err)
{
    static const struct {
        enum dpt_cuda_stage stage;
        enum dpt_span_pass pass;
    } of[DPT_CUDA_PASSES] = {
        [DPT_CUDA_FORWARD] = {DPT_CUDA_FORWARD_LIST, DPT_PASS_FORWARD},
        [DPT_CUDA_BACKWARD_DATA] = {DPT_CUDA_BACKWARD_LIST, DPT_PASS_BACKWARD},
        [DPT_CUDA_BACKWARD_FILTER] = {DPT_CUDA_BACKWARD_LIST, DPT_PASS_WEIGHTS},
    };
    struct dpt_cuda_math *m = calloc(1, sizeof *m), **end = &p->lists->maths;
    struct dpt_cuda_entry entry = {
        .what = DPT_CUDA_MATH, .node = i, .span = dpt_span_node(i, of[pass].pass), .math = m};

    *made = m;
    if (m == NULL)
        return dpt_fail_memory(err, "a layer's plan", sizeof *m);
    while (*end != NULL)
        end = &(*end)->next;
    *end = m;
    m->name = p->spec.graph->nodes[i].name;
    m->pass = pass;
    return dpt_cuda_add_entry(p, of[pass].stage, &entry, err);
}

/* Its multiplications and additions are those of real channels. */
static enum dpt_status add_conv(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                struct dpt_cuda_math **made, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i),
                               *x = dpt_cuda_form_of(p, dpt_cuda_before(p, i));
    const enum dpt_precision precision = p->spec.precision;
    struct dpt_cuda_conv conv;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m;

    dpt_cuda_conv_describe(node, p->micro, precision, &conv);
    conv.relu = pass == DPT_CUDA_FORWARD && f->relu;
    conv.bias = pass == DPT_CUDA_FORWARD && node->bias >= 0;
    conv.x_pitch = x->pitch;
    conv.y_pitch = f->pitch;
    if (node->window.groups == 1) {
        conv.x[1] = conv.w[1] = x->pitch;
        conv.y[1] = conv.w[0] = f->pitch;
    }
    DPT_TRY(add_math(p, i, pass, &m, err));
    m->conv = conv;
    m->flops = 2. * (double)p->micro * (double)dpt_shape_size(&node->out) * node->in.c /
               node->window.groups * node->window.kernel[0] * node->window.kernel[1];
    m->bytes = (elements(p, i) + elements(p, dpt_cuda_before(p, i)) +
                conv.w[0] * conv.w[1] * conv.w[2] * conv.w[3]) *
               p->lists->forms.element;
    m->pointers[DPT_CUDA_X] = dpt_cuda_value(p, dpt_cuda_before(p, i));
    m->pointers[DPT_CUDA_W] = weight_of(p, i);
    m->pointers[DPT_CUDA_Y] = dpt_cuda_value(p, i);
    if (conv.bias)
        m->pointers[DPT_CUDA_BIAS] = bias_of(p, i);
    if (pass != DPT_CUDA_FORWARD)
        m->pointers[DPT_CUDA_Y] = dpt_cuda_gradient(p, i);
    if (pass == DPT_CUDA_BACKWARD_DATA)
        m->pointers[DPT_CUDA_X] = dpt_cuda_gradient(p, dpt_cuda_before(p, i));
    if (pass == DPT_CUDA_BACKWARD_FILTER)
        m->pointers[DPT_CUDA_W] = p->lists->dweights + f->dweight;
    DPT_TRY(dpt_cuda_choose(p, m, err));
    *made = m;
out:
    return status;
}

static void dense_product(const struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                          struct dpt_cuda_product *product)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i),
                               *x = dpt_cuda_form_of(p, dpt_cuda_before(p, i));
    const int64_t area = (int64_t)x->h * x->w;
    const struct dpt_cuda_dense dense = {
        .precision = p->spec.precision,
        .n = p->micro,
        .inputs = area * x->channels,
        .outputs = node->out.c,
        .area = f->flat ? 1 : area,
        .x_pitch = area * x->pitch,
        .y_pitch = f->pitch,
        .bias = node->bias >= 0,
        .relu = f->relu,
        .canonical = f->straight,
    };

    dpt_cuda_dense_product(&dense, pass, product);
    /* The arena has no rows of zeros behind the last output. */
    if (f->direct && pass == DPT_CUDA_FORWARD)
        product->columns = dense.outputs;
    if (f->direct && pass == DPT_CUDA_BACKWARD_DATA)
        product->depth = dense.outputs;
}

static enum dpt_status add_dense(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                 struct dpt_cuda_math **made, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m;

    DPT_TRY(add_math(p, i, pass, &m, err));
    m->dense = true;
    dense_product(p, i, pass, &m->product);
    m->flops = 2. * (double)p->micro * (double)dpt_cuda_tensor_of(p, node->weight)->count;
    m->bytes = (int64_t)dpt_cuda_product_bytes(&m->product);
    m->factors = (struct dpt_cuda_factors){.a = dpt_cuda_value(p, dpt_cuda_before(p, i)),
                                           .b = weight_of(p, i),
                                           .d = dpt_cuda_value(p, i)};
    if (pass == DPT_CUDA_FORWARD && node->bias >= 0)
        m->factors.bias = bias_of(p, i);
    if (pass != DPT_CUDA_FORWARD)
        m->factors.a = dpt_cuda_gradient(p, i);
    if (pass == DPT_CUDA_BACKWARD_DATA)
        m->factors.d = dpt_cuda_gradient(p, dpt_cuda_before(p, i));
    if (pass == DPT_CUDA_BACKWARD_FILTER) {
        m->factors.b = dpt_cuda_value(p, dpt_cuda_before(p, i));
        m->factors.d = f->straight
                           ? (void *)(p->gradient + dpt_cuda_tensor_of(p, node->weight)->offset)
                           : (void *)(p->lists->dweights + f->dweight);
    }
    DPT_TRY(dpt_cuda_choose(p, m, err));
    *made = m;
out:
    return status;
}

static enum dpt_status add_pass(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                struct dpt_cuda_math **made, struct dpt_error *err)
{
    return p->spec.graph->nodes[i].op == DPT_OP_CONV ? add_conv(p, i, pass, made, err)
                                                     : add_dense(p, i, pass, made, err);
}

/* What the library has not fused is done behind it, in place. */
static enum dpt_status weights_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m = NULL;

    DPT_TRY(add_pass(p, i, DPT_CUDA_FORWARD, &m, err));
    if (p->spec.graph->nodes[i].bias >= 0 && !m->bias) {
        const struct dpt_cuda_bias_args args = {.x = dpt_cuda_value(p, i),
                                                .y = dpt_cuda_value(p, i),
                                                .bias = bias_of(p, i),
                                                .rows = (int64_t)p->micro * f->h * f->w,
                                                .pitch = f->pitch};

        DPT_TRY(add_forward(p, i, f->relu ? DPT_CUDA_K_bias_relu_f32 : DPT_CUDA_K_bias_f32, &args,
                            err));
    } else if (f->relu && !m->relu) {
        const struct dpt_cuda_act_args args = {.x = dpt_cuda_value(p, i),
                                               .y = dpt_cuda_value(p, i),
                                               .vectors = elements(p, i) / p->lists->forms.lanes};

        DPT_TRY(add_forward(p, i, DPT_CUDA_K_relu_f32, &args, err));
    }
out:
    return status;
}

/* Through the ReLU, where there is one, and the bias's gradient in the same pass. */
static enum dpt_status bias_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);
    void *dy = dpt_cuda_gradient(p, i);

    if (node->bias >= 0) {
        const struct dpt_cuda_bias_back_args args = {
            .dy = dy,
            .y = f->relu ? dpt_cuda_value(p, i) : NULL,
            .dx = f->relu ? dy : NULL,
            .dbias = p->gradient + dpt_cuda_tensor_of(p, node->bias)->offset,
            .partial = (float *)p->lists->sums,
            .counter = p->lists->counters,
            .rows = (int64_t)p->micro * f->h * f->w,
            .pitch = f->pitch,
            .channels = node->out.c,
            .state = dpt_cuda_state_of(p),
        };

        return add_kernel(p, DPT_CUDA_BACKWARD_LIST, i, DPT_PASS_WEIGHTS,
                          f->relu ? DPT_CUDA_K_bias_relu_back_f32 : DPT_CUDA_K_bias_back_f32, &args,
                          err);
    }
    if (f->relu) {
        const struct dpt_cuda_act_back_args args = {.x = dpt_cuda_value(p, i),
                                                    .dy = dy,
                                                    .dx = dy,
                                                    .vectors =
                                                        elements(p, i) / p->lists->forms.lanes};

        return add_backward(p, i, DPT_CUDA_K_relu_back_f32, &args, err);
    }
    return DPT_OK;
}

static enum dpt_status weights_backward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_form *x = dpt_cuda_form_of(p, dpt_cuda_before(p, i));
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m;

    DPT_TRY(bias_backward(p, i, err));
    DPT_TRY(add_pass(p, i, DPT_CUDA_BACKWARD_FILTER, &m, err));
    if (!dpt_cuda_form_of(p, i)->wants_dx)
        goto out;
    /* With groups nobody writes what is behind the last channel, and in this buffer it is not zero:
     * the layer before multiplies by it. */
    if (node->op == DPT_OP_CONV && node->window.groups > 1 && x->pitch != x->channels) {
        const struct dpt_cuda_entry fill = {.what = DPT_CUDA_FILL,
                                            .node = i,
                                            .span = dpt_span_node(i, DPT_PASS_BACKWARD),
                                            .to = dpt_cuda_gradient(p, dpt_cuda_before(p, i)),
                                            .bytes = elements(p, dpt_cuda_before(p, i)) *
                                                     p->lists->forms.element};

        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
    }
    DPT_TRY(add_pass(p, i, DPT_CUDA_BACKWARD_DATA, &m, err));
out:
    return status;
}

/* --- pools ------------------------------------------------------------------------------------ */

static struct dpt_cuda_pool_args pool_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i),
                               *x = dpt_cuda_form_of(p, dpt_cuda_before(p, i));
    const struct dpt_window *w = &node->window;
    const bool all = node->op == DPT_OP_GLOBAL_AVGPOOL;

    return (struct dpt_cuda_pool_args){
        .index = f->index == DPT_CUDA_NONE ? NULL : (uint16_t *)(p->lists->values + f->index),
        .n = p->micro,
        .h = x->h,
        .w = x->w,
        .oh = f->h,
        .ow = f->w,
        .pitch = f->pitch,
        .kernel = {all ? x->h : w->kernel[0], all ? x->w : w->kernel[1]},
        .stride = {all ? 1 : w->stride[0], all ? 1 : w->stride[1]},
        .before = {all ? 0 : w->before[0], all ? 0 : w->before[1]},
    };
}

static enum dpt_status pool_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    static const enum dpt_cuda_kernel kernels[DPT_OP_COUNT] = {
        [DPT_OP_MAXPOOL] = DPT_CUDA_K_maxpool_f32,
        [DPT_OP_AVGPOOL] = DPT_CUDA_K_avgpool_f32,
        [DPT_OP_GLOBAL_AVGPOOL] = DPT_CUDA_K_meanpool_f32,
    };
    struct dpt_cuda_pool_args args = pool_args(p, i);

    args.from = dpt_cuda_value(p, dpt_cuda_before(p, i));
    args.to = dpt_cuda_value(p, i);
    return add_forward(p, i,
                       dpt_cuda_form_of(p, i)->relu ? DPT_CUDA_K_maxpool_relu_f32
                                                    : kernels[p->spec.graph->nodes[i].op],
                       &args, err);
}

static enum dpt_status pool_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    static const enum dpt_cuda_kernel kernels[DPT_OP_COUNT] = {
        [DPT_OP_MAXPOOL] = DPT_CUDA_K_maxpool_back_f32,
        [DPT_OP_AVGPOOL] = DPT_CUDA_K_avgpool_back_f32,
        [DPT_OP_GLOBAL_AVGPOOL] = DPT_CUDA_K_meanpool_back_f32,
    };
    struct dpt_cuda_pool_args args = pool_args(p, i);
    const bool relu = dpt_cuda_form_of(p, i)->relu;

    args.from = dpt_cuda_gradient(p, i);
    args.to = dpt_cuda_gradient(p, dpt_cuda_before(p, i));
    args.y = relu ? dpt_cuda_value(p, i) : NULL;
    return add_backward(
        p, i, relu ? DPT_CUDA_K_maxpool_relu_back_f32 : kernels[p->spec.graph->nodes[i].op], &args,
        err);
}

/* --- element by element ----------------------------------------------------------------------- */

static enum dpt_status act_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    static const enum dpt_cuda_kernel kernels[DPT_OP_COUNT] = {
        [DPT_OP_RELU] = DPT_CUDA_K_relu_f32,
        [DPT_OP_GELU] = DPT_CUDA_K_gelu_f32,
        [DPT_OP_TANH] = DPT_CUDA_K_tanh_f32,
        [DPT_OP_SIGMOID] = DPT_CUDA_K_sigmoid_f32,
    };
    const struct dpt_cuda_act_args args = {.x = dpt_cuda_value(p, dpt_cuda_before(p, i)),
                                           .y = dpt_cuda_value(p, i),
                                           .vectors = elements(p, i) / p->lists->forms.lanes};

    return add_forward(p, i, kernels[p->spec.graph->nodes[i].op], &args, err);
}

static enum dpt_status act_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    static const enum dpt_cuda_kernel kernels[DPT_OP_COUNT] = {
        [DPT_OP_RELU] = DPT_CUDA_K_relu_back_f32,
        [DPT_OP_GELU] = DPT_CUDA_K_gelu_back_f32,
        [DPT_OP_TANH] = DPT_CUDA_K_tanh_back_f32,
        [DPT_OP_SIGMOID] = DPT_CUDA_K_sigmoid_back_f32,
    };
    const enum dpt_op op = p->spec.graph->nodes[i].op;
    const struct dpt_cuda_act_back_args args = {
        .x = dpt_cuda_value(p, op == DPT_OP_GELU ? dpt_cuda_before(p, i) : i),
        .dy = dpt_cuda_gradient(p, i),
        .dx = dpt_cuda_gradient(p, dpt_cuda_before(p, i)),
        .vectors = elements(p, i) / p->lists->forms.lanes};

    return add_backward(p, i, kernels[op], &args, err);
}

static struct dpt_cuda_dropout_args dropout_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_form *f = dpt_cuda_form_of(p, i);

    return (struct dpt_cuda_dropout_args){.sample = p->sample,
                                          .control = p->control,
                                          .n = p->micro,
                                          .channels = f->channels,
                                          .pitch = f->pitch,
                                          .area = f->h * f->w,
                                          .node = i,
                                          .rate = p->spec.graph->nodes[i].attribute[0]};
}

static enum dpt_status dropout_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    struct dpt_cuda_list *list = &p->lists->list[DPT_CUDA_FORWARD_LIST];
    struct dpt_cuda_dropout_args args = dropout_args(p, i);
    const struct dpt_cuda_entry copy = {.what = DPT_CUDA_COPY,
                                        .when = DPT_CUDA_EVALUATION,
                                        .node = i,
                                        .span = dpt_span_node(i, DPT_PASS_FORWARD),
                                        .to = dpt_cuda_value(p, i),
                                        .from = dpt_cuda_value(p, dpt_cuda_before(p, i)),
                                        .bytes = elements(p, i) * p->lists->forms.element};
    enum dpt_status status = DPT_OK;

    args.x = copy.from;
    args.y = copy.to;
    DPT_TRY(add_forward(p, i, DPT_CUDA_K_dropout_f32, &args, err));
    list->entry[list->n - 1].when = DPT_CUDA_TRAINING;
    DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_FORWARD_LIST, &copy, err));
out:
    return status;
}

static enum dpt_status dropout_backward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err)
{
    struct dpt_cuda_dropout_args args = dropout_args(p, i);

    args.x = dpt_cuda_gradient(p, i);
    args.y = dpt_cuda_gradient(p, dpt_cuda_before(p, i));
    return add_backward(p, i, DPT_CUDA_K_dropout_f32, &args, err);
}

static const struct {
    layer *forward, *backward;
} layers[DPT_OP_COUNT] = {
    [DPT_OP_CONV] = {weights_forward, weights_backward},
    [DPT_OP_DENSE] = {weights_forward, weights_backward},
    [DPT_OP_MAXPOOL] = {pool_forward, pool_backward},
    [DPT_OP_AVGPOOL] = {pool_forward, pool_backward},
    [DPT_OP_GLOBAL_AVGPOOL] = {pool_forward, pool_backward},
    [DPT_OP_DROPOUT] = {dropout_forward, dropout_backward},
    [DPT_OP_RELU] = {act_forward, act_backward},
    [DPT_OP_GELU] = {act_forward, act_backward},
    [DPT_OP_TANH] = {act_forward, act_backward},
    [DPT_OP_SIGMOID] = {act_forward, act_backward},
};

enum dpt_status dpt_cuda_layer_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    return layers[p->spec.graph->nodes[i].op].forward(p, i, err);
}

enum dpt_status dpt_cuda_layer_backward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err)
{
    return layers[p->spec.graph->nodes[i].op].backward(p, i, err);
}
