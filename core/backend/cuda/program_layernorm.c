/* Normalising each sample: own kernels, weight and bias copied into the layout of the tensors. */
#include "core/backend/cuda/program.h"

static void place(const struct dpt_program_spec *spec, struct dpt_cuda_memory_layout *memory_layout,
                  int64_t micro, int32_t i)
{
    struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    const int64_t bytes = dpt_cuda_form_elements(f, 1) * memory_layout->element;

    (void)spec, (void)micro;
    f->weight =
        dpt_cuda_take(&memory_layout->bytes[DPT_CUDA_COPIES], bytes) / memory_layout->element;
    f->bias = dpt_cuda_take(&memory_layout->bytes[DPT_CUDA_COPIES], bytes) / memory_layout->element;
}

static struct dpt_cuda_layout layout(const struct dpt_graph *graph,
                                     const struct dpt_cuda_memory_layout *memory_layout, int32_t i,
                                     bool bias)
{
    const struct dpt_graph_node *node = &graph->nodes[i];
    const struct dpt_cuda_node_layout *f = &memory_layout->node[i];

    return (struct dpt_cuda_layout){.canonical =
                                        graph->tensors[bias ? node->bias : node->weight].offset,
                                    .outputs = 1,
                                    .inputs = f->channels,
                                    .area = f->h * f->w,
                                    .padded_outputs = 1,
                                    .padded_inputs = f->pitch};
}

/* Mean and scale. */
static int64_t statistics_bytes(const struct dpt_cuda_node_layout *f, int64_t micro)
{
    (void)f;
    return micro * 2 * (int64_t)sizeof(float);
}

/* passes: over the tensor, that are read or written. */
static struct dpt_cuda_layernorm_args args_of(const struct dpt_cuda_program *p, int32_t i,
                                              int64_t blocks, int passes)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const int64_t element = p->lists->memory_layout.element;

    return (struct dpt_cuda_layernorm_args){
        .counted = {.blocks = blocks,
                    .bytes = (passes * dpt_cuda_elements(p, i) + 2 * dpt_cuda_form_elements(f, 1)) *
                             element},
        .x = dpt_cuda_value(p, dpt_cuda_before(p, i)),
        .weight = dpt_cuda_copy(p, f->weight),
        .bias = dpt_cuda_copy(p, f->bias),
        .statistics = f->saved == DPT_CUDA_NONE ? NULL : (void *)(p->lists->values + f->saved),
        .n = p->micro,
        .channels = f->channels,
        .pitch = f->pitch,
        .area = f->h * f->w,
        .eps = node->attribute[0],
    };
}

static enum dpt_status forward(struct dpt_cuda_program *p, const struct dpt_cuda_op *op, int32_t i,
                               struct dpt_error *err)
{
    struct dpt_cuda_layernorm_args args = args_of(p, i, p->micro, 4);

    (void)op;
    args.y = dpt_cuda_value(p, i);
    return dpt_cuda_add_kernel(p, i, DPT_PASS_FORWARD, DPT_CUDA_K_layernorm_f32, &args, err);
}

static enum dpt_status backward(struct dpt_cuda_program *p, const struct dpt_cuda_op *op, int32_t i,
                                struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const int64_t vectors =
        dpt_cuda_form_elements(dpt_cuda_node_layout_of(p, i), 1) / p->lists->memory_layout.lanes;
    struct dpt_cuda_layernorm_args args =
        args_of(p, i, (vectors + DPT_CUDA_LAYERNORM_COLUMNS - 1) / DPT_CUDA_LAYERNORM_COLUMNS, 2);
    struct dpt_cuda_entry entry;
    enum dpt_status status = DPT_OK;

    (void)op;
    args.dy = dpt_cuda_gradient(p, i);
    args.dweight = p->gradient + dpt_cuda_tensor_of(p, node->weight)->offset;
    args.dbias = p->gradient + dpt_cuda_tensor_of(p, node->bias)->offset;
    args.state = dpt_cuda_state_of(p);
    entry = dpt_cuda_kernel_entry(p, i, DPT_PASS_WEIGHTS, DPT_CUDA_K_layernorm_weights_f32, &args);
    entry.add = offsetof(struct dpt_cuda_layernorm_args, add);
    DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &entry, err));
    if (!dpt_cuda_node_layout_of(p, i)->wants_dx)
        goto out;
    args = args_of(p, i, p->micro, 5);
    args.dy = dpt_cuda_gradient(p, i);
    args.y = dpt_cuda_gradient(p, dpt_cuda_before(p, i));
    DPT_TRY(
        dpt_cuda_add_kernel(p, i, DPT_PASS_BACKWARD, DPT_CUDA_K_layernorm_back_f32, &args, err));
out:
    return status;
}

const struct dpt_cuda_op dpt_cuda_layernorm = {
    .forward = forward,
    .backward = backward,
    .place = place,
    .layout = layout,
    .saved = statistics_bytes,
};
