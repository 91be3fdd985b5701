/* Convolutions and dense layers: what cuDNN and cuBLASLt compute, and what they leave to do. */
#include <stdlib.h>

#include "core/backend/cuda/program_private.h"

/* --- where things are ------------------------------------------------------------------------- */

static void *weight_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    return f->direct
               ? (void *)(p->params + dpt_cuda_tensor_of(p, p->spec.graph->nodes[i].weight)->offset)
               : dpt_cuda_copy(p, f->weight);
}

static void *bias_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    return f->bias == DPT_CUDA_NONE
               ? (void *)(p->params + dpt_cuda_tensor_of(p, p->spec.graph->nodes[i].bias)->offset)
               : dpt_cuda_copy(p, f->bias);
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
    m->flops = p->micro * dpt_operation_flops(&p->spec.graph->nodes[i]);
    return dpt_cuda_add_entry(p, of[pass].stage, &entry, err);
}

static enum dpt_status add_conv(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                struct dpt_cuda_math **made, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));
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
    m->bytes = (dpt_cuda_elements(p, i) + dpt_cuda_elements(p, dpt_cuda_before(p, i)) +
                conv.w[0] * conv.w[1] * conv.w[2] * conv.w[3]) *
               p->lists->memory_layout.element;
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
                          struct dpt_cuda_gemm *gemm)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));
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

    dpt_cuda_dense_gemm(&dense, pass, gemm);
    /* The arena has no rows of zeros behind the last output. */
    if (f->direct && pass == DPT_CUDA_FORWARD)
        gemm->columns = dense.outputs;
    if (f->direct && pass == DPT_CUDA_BACKWARD_DATA)
        gemm->depth = dense.outputs;
}

static enum dpt_status add_dense(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                 struct dpt_cuda_math **made, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m;

    DPT_TRY(add_math(p, i, pass, &m, err));
    m->dense = true;
    dense_product(p, i, pass, &m->gemm);
    m->bytes = (int64_t)dpt_cuda_gemm_bytes(&m->gemm);
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

typedef enum dpt_status add_pass(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                 struct dpt_cuda_math **made, struct dpt_error *err);

/* What the library has not fused is done behind it, in place. */
static enum dpt_status weights_forward(struct dpt_cuda_program *p, int32_t i, add_pass *add,
                                       struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m = NULL;

    DPT_TRY(add(p, i, DPT_CUDA_FORWARD, &m, err));
    if (p->spec.graph->nodes[i].bias >= 0 && !m->bias) {
        const struct dpt_cuda_bias_args args = {.x = dpt_cuda_value(p, i),
                                                .y = dpt_cuda_value(p, i),
                                                .bias = bias_of(p, i),
                                                .rows = (int64_t)p->micro * f->h * f->w,
                                                .pitch = f->pitch};

        struct dpt_cuda_entry entry =
            dpt_cuda_kernel_entry(p, i, DPT_PASS_FORWARD,
                                  f->relu ? DPT_CUDA_K_bias_relu_f32 : DPT_CUDA_K_bias_f32, &args);

        entry.to = args.y;
        entry.bytes = dpt_cuda_elements(p, i) * p->lists->memory_layout.element;
        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_FORWARD_LIST, &entry, err));
    } else if (f->relu && !m->relu) {
        const struct dpt_cuda_act_args args = {.x = dpt_cuda_value(p, i),
                                               .y = dpt_cuda_value(p, i),
                                               .vectors = dpt_cuda_elements(p, i) /
                                                          p->lists->memory_layout.lanes};

        DPT_TRY(dpt_cuda_add_kernel(p, i, DPT_PASS_FORWARD, DPT_CUDA_K_relu_f32, &args, err));
    }
out:
    return status;
}

/* Through the ReLU, where there is one, and the bias's gradient in the same pass. */
static enum dpt_status bias_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
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

        struct dpt_cuda_entry entry = dpt_cuda_kernel_entry(
            p, i, DPT_PASS_WEIGHTS,
            f->relu ? DPT_CUDA_K_bias_relu_back_f32 : DPT_CUDA_K_bias_back_f32, &args);

        entry.add = offsetof(struct dpt_cuda_bias_back_args, add);
        entry.to = args.dbias;
        entry.bytes = args.channels * (int64_t)sizeof(float);
        return dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &entry, err);
    }
    if (f->relu) {
        const struct dpt_cuda_act_back_args args = {.x = dpt_cuda_value(p, i),
                                                    .dy = dy,
                                                    .dx = dy,
                                                    .vectors = dpt_cuda_elements(p, i) /
                                                               p->lists->memory_layout.lanes};

        return dpt_cuda_add_kernel(p, i, DPT_PASS_BACKWARD, DPT_CUDA_K_relu_back_f32, &args, err);
    }
    return DPT_OK;
}

/* clear: the layer before multiplies by all of this one's gradient, and the library leaves out what
 * is behind the last channel, which in this buffer is not zero. */
static enum dpt_status weights_backward(struct dpt_cuda_program *p, int32_t i, add_pass *add,
                                        bool clear, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m;

    DPT_TRY(bias_backward(p, i, err));
    DPT_TRY(add(p, i, DPT_CUDA_BACKWARD_FILTER, &m, err));
    if (!dpt_cuda_node_layout_of(p, i)->wants_dx)
        goto out;
    if (clear) {
        const int32_t before = dpt_cuda_before(p, i);
        const struct dpt_cuda_entry fill = {.what = DPT_CUDA_FILL,
                                            .node = i,
                                            .span = dpt_span_node(i, DPT_PASS_BACKWARD),
                                            .to = dpt_cuda_gradient(p, before),
                                            .bytes = dpt_cuda_elements(p, before) *
                                                     p->lists->memory_layout.element};

        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
    }
    DPT_TRY(add(p, i, DPT_CUDA_BACKWARD_DATA, &m, err));
out:
    return status;
}

/* --- memory and layouts ----------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A tensor of floats is followed by zeros up to a multiple of 16 of them: only others are copied.
 */
static void place_bias(struct dpt_cuda_memory_layout *memory_layout, int64_t micro,
                       struct dpt_cuda_node_layout *f)
{
    const int64_t rows = micro * f->h * f->w;

    if (memory_layout->element != sizeof(float))
        f->bias = dpt_cuda_take(&memory_layout->sizes.copies, f->pitch * memory_layout->element) /
                  memory_layout->element;
    memory_layout->partial = larger(
        memory_layout->partial, dpt_cuda_bias_back_partial(rows, f->pitch, memory_layout->lanes));
    memory_layout->counters = larger(
        memory_layout->counters,
        dpt_cuda_bias_back_cut(rows, f->pitch, memory_layout->lanes).groups + f->pitch / 128);
}

static struct dpt_cuda_layout bias_layout(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];

    return (struct dpt_cuda_layout){.canonical = dpt_cuda_tensor_of(p, node->bias)->offset,
                                    .outputs = 1,
                                    .inputs = node->out.c,
                                    .area = 1,
                                    .padded_outputs = 1,
                                    .padded_inputs = dpt_cuda_node_layout_of(p, i)->pitch};
}

/* --- dense ------------------------------------------------------------------------------------ */

static void place_dense(const struct dpt_program_spec *spec,
                        struct dpt_cuda_memory_layout *memory_layout, int64_t micro, int32_t i)
{
    enum { WORKSPACE = 32 << 20 };
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    const struct dpt_cuda_node_layout *x = &memory_layout->node[node->inputs[0]];
    const int64_t area = (int64_t)x->h * x->w;

    f->flat = area == 1 || (x->channels == 1 && x->pitch == 1);
    f->direct =
        f->flat && memory_layout->element == sizeof(float) && area * x->pitch == area * x->channels;
    /* A gradient with a loss scale is not the arena's. */
    f->straight = f->flat && spec->precision != DPT_PRECISION_FP16;
    if (!f->direct)
        f->weight = dpt_cuda_take(&memory_layout->sizes.copies,
                                  f->pitch * area * x->pitch * memory_layout->element) /
                    memory_layout->element;
    if (spec->training && !f->straight)
        f->dweight = dpt_cuda_take(&memory_layout->sizes.dweights,
                                   f->pitch * area * x->pitch * (int64_t)sizeof(float));
    memory_layout->sizes.workspace = larger(memory_layout->sizes.workspace, WORKSPACE);
    if (node->bias >= 0)
        place_bias(memory_layout, micro, f);
}

static struct dpt_cuda_layout dense_layout(const struct dpt_cuda_program *p, int32_t i, bool bias)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));

    if (bias)
        return bias_layout(p, i);
    return (struct dpt_cuda_layout){.canonical = dpt_cuda_tensor_of(p, node->weight)->offset,
                                    .outputs = node->out.c,
                                    .inputs = x->channels,
                                    .area = x->h * x->w,
                                    .padded_outputs = dpt_cuda_node_layout_of(p, i)->pitch,
                                    .padded_inputs = x->pitch};
}

static enum dpt_status dense_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    return weights_forward(p, i, add_dense, err);
}

static enum dpt_status dense_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    return weights_backward(p, i, add_dense, false, err);
}

const struct dpt_cuda_op dpt_cuda_dense = {
    .forward = dense_forward,
    .backward = dense_backward,
    .place = place_dense,
    .layout = dense_layout,
    .fuses_relu = true,
    .float_gradients = true,
};

/* --- convolutions ----------------------------------------------------------------------------- */

static void place_conv(const struct dpt_program_spec *spec,
                       struct dpt_cuda_memory_layout *memory_layout, int64_t micro, int32_t i)
{
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    const struct dpt_window *w = &node->window;
    struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    const struct dpt_cuda_node_layout *x = &memory_layout->node[node->inputs[0]];
    const int64_t inputs = w->groups == 1 ? x->pitch : node->in.c / w->groups;
    const int64_t outputs = w->groups == 1 ? f->pitch : node->out.c;
    const int64_t bytes = inputs * outputs * w->kernel[0] * w->kernel[1] * memory_layout->element;

    f->weight = dpt_cuda_take(&memory_layout->sizes.copies, bytes) / memory_layout->element;
    if (spec->training)
        f->dweight = dpt_cuda_take(&memory_layout->sizes.dweights, bytes);
    memory_layout->sizes.workspace =
        larger(memory_layout->sizes.workspace,
               (dpt_cuda_form_elements(x, micro) + dpt_cuda_form_elements(f, micro)) *
                   memory_layout->element);
    if (node->bias >= 0)
        place_bias(memory_layout, micro, f);
}

static struct dpt_cuda_layout conv_layout(const struct dpt_cuda_program *p, int32_t i, bool bias)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_window *w = &node->window;
    const int32_t inputs = node->in.c / w->groups;

    if (bias)
        return bias_layout(p, i);
    return (struct dpt_cuda_layout){
        .canonical = dpt_cuda_tensor_of(p, node->weight)->offset,
        .outputs = node->out.c,
        .inputs = inputs,
        .area = w->kernel[0] * w->kernel[1],
        .padded_outputs = w->groups > 1 ? node->out.c : dpt_cuda_node_layout_of(p, i)->pitch,
        .padded_inputs =
            w->groups > 1 ? inputs : dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i))->pitch};
}

static enum dpt_status conv_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    return weights_forward(p, i, add_conv, err);
}

static enum dpt_status conv_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));

    return weights_backward(
        p, i, add_conv, p->spec.graph->nodes[i].window.groups > 1 && x->pitch != x->channels, err);
}

const struct dpt_cuda_op dpt_cuda_conv = {
    .forward = conv_forward,
    .backward = conv_backward,
    .place = place_conv,
    .layout = conv_layout,
    .fuses_relu = true,
};
