/* Convolutions and dense layers: the parts that cuDNN and cuBLASLt compute, and the rest. */
#include <stdlib.h>

#include "core/backend/cuda/program/program.h"
#include "core/base/memory.h"

static bool is_dense(const struct dpt_graph_node *node)
{
    return dpt_operation_of(node)->kind == DPT_CLASS_GEMM;
}

static bool is_grouped(const struct dpt_graph_node *node)
{
    return !is_dense(node) && node->window.groups > 1;
}

/* --- memory ----------------------------------------------------------------------------------- */

static struct dpt_cuda_layout layout(const struct dpt_graph *graph,
                                     const struct dpt_cuda_memory_layout *m, int32_t i, bool bias)
{
    const struct dpt_graph_node *node = &graph->nodes[i];
    const struct dpt_cuda_node_layout *f = &m->node[i], *x = &m->node[node->inputs[0]];
    const int32_t *kernel = node->window.kernel;
    const int32_t inputs = is_dense(node) ? x->channels : node->in.c / node->window.groups;

    if (bias)
        return (struct dpt_cuda_layout){.canonical = graph->tensors[node->bias].offset,
                                        .outputs = 1,
                                        .inputs = node->out.c,
                                        .area = 1,
                                        .padded_outputs = 1,
                                        .padded_inputs = f->pitch};
    return (struct dpt_cuda_layout){.canonical = graph->tensors[node->weight].offset,
                                    .outputs = node->out.c,
                                    .inputs = inputs,
                                    .area = is_dense(node) ? x->h * x->w : kernel[0] * kernel[1],
                                    .padded_outputs = is_grouped(node) ? node->out.c : f->pitch,
                                    .padded_inputs = is_grouped(node) ? inputs : x->pitch};
}

/* A bias is copied only if it is not in floats: in the arena it is followed by zeros up to a
 * multiple of 16 floats, as kernels need it. */
static void place_bias(struct dpt_cuda_memory_layout *m, int64_t micro,
                       struct dpt_cuda_node_layout *f)
{
    const struct dpt_cuda_cut cut = dpt_cuda_bias_back_cut(micro * f->h * f->w, f->pitch, m->lanes);

    if (m->element != sizeof(float))
        f->bias = dpt_cuda_take(&m->bytes[DPT_CUDA_COPIES], f->pitch * m->element) / m->element;
    dpt_cuda_share(m, f->relu ? DPT_CUDA_PARTIAL : DPT_CUDA_PARTIAL_ASIDE,
                   cut.chunks * f->pitch * (int64_t)sizeof(double));
    dpt_cuda_share(m, f->relu ? DPT_CUDA_COUNTERS : DPT_CUDA_COUNTERS_ASIDE,
                   cut.groups * (int64_t)sizeof(uint32_t));
}

static void place(const struct dpt_program_spec *spec, struct dpt_cuda_memory_layout *m,
                  int64_t micro, int32_t i)
{
    enum { WORKSPACE = 32 << 20 };
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    struct dpt_cuda_node_layout *f = &m->node[i];
    const struct dpt_cuda_node_layout *x = &m->node[node->inputs[0]];
    const struct dpt_cuda_layout l = layout(spec->graph, m, i, false);
    const int64_t elements = dpt_cuda_copy_elements(&l);
    const bool dense = is_dense(node), image = x->h * x->w > 1;

    f->flat = dense && (!image || (x->channels == 1 && x->pitch == 1));
    f->direct = f->flat && m->element == sizeof(float) && x->pitch == x->channels;
    /* A gradient with a loss scale must be divided by it on the way to the arena. */
    f->straight = f->flat && spec->precision != DPT_PRECISION_FP16;
    f->copied = f->direct ? 0 : elements;
    if (!f->direct)
        f->weight = dpt_cuda_take(&m->bytes[DPT_CUDA_COPIES], elements * m->element) / m->element;
    if (spec->training && !f->straight)
        f->dweight = dpt_cuda_take(&m->bytes[DPT_CUDA_DWEIGHTS],
                                   elements * (dense ? (int64_t)sizeof(float) : m->element));
    dpt_cuda_share(m, DPT_CUDA_WORKSPACE,
                   dense ? WORKSPACE
                         : (dpt_cuda_form_elements(x, micro) + dpt_cuda_form_elements(f, micro)) *
                               m->element);
    if (node->bias >= 0)
        place_bias(m, micro, f);
}

/* --- plans ------------------------------------------------------------------------------------ */

static void *bias_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    return f->bias == DPT_CUDA_NONE
               ? (void *)dpt_cuda_at(p, p->params,
                                     dpt_cuda_tensor_of(p, p->spec.graph->nodes[i].bias)->offset)
               : dpt_cuda_copy(p, f->bias);
}

/* The address of the weights or their gradient: the copy's, or the arena's if the layout is the
 * same. */
static struct dpt_cuda_array_at weights_of(const struct dpt_cuda_program *p, int32_t i,
                                           bool gradient)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const struct dpt_tensor *tensor = dpt_cuda_tensor_of(p, node->weight);
    const struct dpt_cuda_layout l = layout(p->spec.graph, &p->lists->memory_layout, i, false);
    const int64_t floats = (int64_t)sizeof(float), elements = dpt_cuda_copy_elements(&l);
    const int64_t element = p->lists->memory_layout.element;

    if (gradient ? f->straight : f->direct)
        return (struct dpt_cuda_array_at){
            dpt_cuda_at(p, gradient ? p->gradient : p->params, tensor->offset),
            tensor->count * floats};
    if (gradient)
        return (struct dpt_cuda_array_at){p->lists->dweights + f->dweight,
                                          elements * (is_dense(node) ? floats : element)};
    return (struct dpt_cuda_array_at){dpt_cuda_copy(p, f->weight), elements * element};
}

static void describe_conv(const struct dpt_cuda_program *p, int32_t i, struct dpt_cuda_math *m)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));

    dpt_cuda_conv_describe(&p->spec.graph->nodes[i], p->micro, p->spec.precision, x->pitch,
                           f->pitch, &m->conv);
    m->conv.bias = m->conv.bias && m->pass == DPT_CUDA_FORWARD;
    m->conv.relu = f->relu && m->pass == DPT_CUDA_FORWARD;
}

static void describe_dense(const struct dpt_cuda_program *p, int32_t i, struct dpt_cuda_math *m)
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

    dpt_cuda_dense_gemm(&dense, m->pass, &m->gemm);
    /* In the arena no rows of zeros follow the last output. */
    if (f->direct && m->pass == DPT_CUDA_FORWARD)
        m->gemm.columns = dense.outputs;
    if (f->direct && m->pass == DPT_CUDA_BACKWARD_DATA)
        m->gemm.depth = dense.outputs;
}

static enum dpt_status add_math(struct dpt_cuda_program *p, int32_t i, enum dpt_cuda_pass pass,
                                struct dpt_cuda_math **made, struct dpt_error *err)
{
    static const struct {
        enum dpt_cuda_list_kind list;
        enum dpt_span_pass pass;
    } of[DPT_CUDA_PASSES] = {
        [DPT_CUDA_FORWARD] = {DPT_CUDA_FORWARD_LIST, DPT_PASS_FORWARD},
        [DPT_CUDA_BACKWARD_DATA] = {DPT_CUDA_BACKWARD_LIST, DPT_PASS_BACKWARD},
        [DPT_CUDA_BACKWARD_FILTER] = {DPT_CUDA_BACKWARD_LIST, DPT_PASS_WEIGHTS},
    };
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const int64_t element = p->lists->memory_layout.element;
    const int32_t before = dpt_cuda_before(p, i);
    struct dpt_cuda_math *m = NULL, **end = &p->lists->maths;
    struct dpt_cuda_entry entry = {.what = DPT_CUDA_MATH,
                                   .node = i,
                                   .span = dpt_span_node(i, of[pass].pass),
                                   .aside = pass == DPT_CUDA_BACKWARD_FILTER};
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(m, 1, "a layer's plan", err));
    *made = entry.math = m;
    while (*end != NULL)
        end = &(*end)->next;
    *end = m;
    m->name = node->name;
    m->dense = is_dense(node);
    m->pass = pass;
    m->flops = p->micro * dpt_operation_flops(node);
    (m->dense ? describe_dense : describe_conv)(p, i, m);
    m->array[DPT_CUDA_X] = (struct dpt_cuda_array_at){
        pass == DPT_CUDA_BACKWARD_DATA ? dpt_cuda_gradient(p, f->dx[0]) : dpt_cuda_value(p, before),
        dpt_cuda_elements(p, before) * element};
    m->array[DPT_CUDA_W] = weights_of(p, i, pass == DPT_CUDA_BACKWARD_FILTER);
    m->array[DPT_CUDA_Y] = (struct dpt_cuda_array_at){
        pass == DPT_CUDA_FORWARD ? dpt_cuda_value(p, i) : dpt_cuda_gradient(p, f->dz),
        dpt_cuda_elements(p, i) * element};
    if (pass == DPT_CUDA_FORWARD && node->bias >= 0)
        m->array[DPT_CUDA_BIAS].at = bias_of(p, i);
    DPT_TRY(dpt_cuda_add_entry(p, of[pass].list, &entry, err));
    DPT_TRY(dpt_cuda_choose(p, m, err));
out:
    return status;
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Adds bias and ReLU in place after the library's plan, if they are not fused into it. */
static enum dpt_status forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m = NULL;

    DPT_TRY(add_math(p, i, DPT_CUDA_FORWARD, &m, err));
    if (p->spec.graph->nodes[i].bias >= 0 && !m->bias) {
        const struct dpt_cuda_bias_args args = {.x = dpt_cuda_value(p, i),
                                                .y = dpt_cuda_value(p, i),
                                                .bias = bias_of(p, i),
                                                .rows = (int64_t)p->micro * f->h * f->w,
                                                .pitch = f->pitch};

        DPT_TRY(dpt_cuda_add_kernel(p, i, DPT_PASS_FORWARD,
                                    f->relu ? DPT_CUDA_K_bias_relu_f32 : DPT_CUDA_K_bias_f32, &args,
                                    err));
    } else if (f->relu && !m->relu) {
        const struct dpt_cuda_act_args args = {.x = dpt_cuda_value(p, i),
                                               .y = dpt_cuda_value(p, i),
                                               .vectors = dpt_cuda_vectors(p, i)};

        DPT_TRY(dpt_cuda_add_kernel(p, i, DPT_PASS_FORWARD, DPT_CUDA_K_relu_f32, &args, err));
    }
out:
    return status;
}

/* Computes backward of the ReLU, if there is one, and the bias's gradient in one pass. */
static enum dpt_status bias_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    if (node->bias >= 0) {
        const struct dpt_cuda_bias_back_args args = {
            .dy = dpt_cuda_gradient(p, f->dy),
            .y = f->relu ? dpt_cuda_value(p, i) : NULL,
            .dx = f->relu ? dpt_cuda_gradient(p, f->dz) : NULL,
            .dbias = dpt_cuda_at(p, p->gradient, dpt_cuda_tensor_of(p, node->bias)->offset),
            .partial = f->relu ? p->lists->partial : p->lists->partial_aside,
            .counter = f->relu ? p->lists->counters : p->lists->counters_aside,
            .rows = (int64_t)p->micro * f->h * f->w,
            .pitch = f->pitch,
            .channels = node->out.c,
            .state = dpt_cuda_state_of(p),
        };

        struct dpt_cuda_entry entry = dpt_cuda_kernel_entry(
            p, i, DPT_PASS_WEIGHTS,
            f->relu ? DPT_CUDA_K_bias_relu_back_f32 : DPT_CUDA_K_bias_back_f32, &args);

        entry.add = offsetof(struct dpt_cuda_bias_back_args, add);
        entry.aside = !f->relu; /* else it also gives dz */
        return dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &entry, err);
    }
    return f->relu ? dpt_cuda_relu_backward(p, i, err) : DPT_OK;
}

static enum dpt_status backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const int32_t before = dpt_cuda_before(p, i);
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *x = dpt_cuda_node_layout_of(p, before);
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_math *m;

    DPT_TRY(bias_backward(p, i, err));
    if (dpt_graph_updates(p->spec.graph, p->spec.graph->nodes[i].weight))
        DPT_TRY(add_math(p, i, DPT_CUDA_BACKWARD_FILTER, &m, err));
    if (f->dx[0] == DPT_CUDA_NONE)
        goto out;
    /* The layer before multiplies by this gradient with its padding, and the library does not write
     * the padding, which in a reused buffer is not zero. */
    if (is_grouped(&p->spec.graph->nodes[i]) && x->pitch != x->channels) {
        const struct dpt_cuda_entry fill = {.what = DPT_CUDA_FILL,
                                            .node = i,
                                            .span = dpt_span_node(i, DPT_PASS_BACKWARD),
                                            .to = dpt_cuda_gradient(p, f->dx[0]),
                                            .bytes = dpt_cuda_elements(p, before) *
                                                     p->lists->memory_layout.element};

        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
    }
    DPT_TRY(add_math(p, i, DPT_CUDA_BACKWARD_DATA, &m, err));
out:
    return status;
}

const struct dpt_cuda_op dpt_cuda_dense = {
    .forward = forward,
    .backward = backward,
    .place = place,
    .layout = layout,
    .fuses_relu = true,
    .float_gradients = true,
};

const struct dpt_cuda_op dpt_cuda_conv = {
    .forward = forward,
    .backward = backward,
    .place = place,
    .layout = layout,
    .fuses_relu = true,
};
