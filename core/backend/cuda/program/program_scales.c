/* Layers with weights for each number of a sample, or for each channel: norms over a sample, PReLU.
 * They use custom kernels, and weights copied into the layout of the tensors. */
#include "core/backend/cuda/program/program.h"

/* Number of pixels with weights of their own: 1 if all pixels of a channel share one. After a
 * flatten each number is a channel. */
static int32_t weight_area(const struct dpt_graph_node *node, const struct dpt_cuda_node_layout *f)
{
    return node->op == DPT_OP_LAYERNORM || node->in.flat ? f->h * f->w : 1;
}

static struct dpt_cuda_cut cut_of(const struct dpt_graph_node *node,
                                  const struct dpt_cuda_memory_layout *memory_layout, int64_t micro,
                                  int32_t i)
{
    const struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    const int32_t area = weight_area(node, f);

    return dpt_cuda_scales_cut(micro * (f->h * f->w / area),
                               f->pitch / memory_layout->lanes * area);
}

static void place(const struct dpt_program_spec *spec, struct dpt_cuda_memory_layout *memory_layout,
                  int64_t micro, int32_t i)
{
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    const int64_t elements = (int64_t)f->pitch * weight_area(node, f);
    const int64_t bytes = elements * memory_layout->element;
    const struct dpt_cuda_cut cut = cut_of(node, memory_layout, micro, i);

    f->weight =
        dpt_cuda_take(&memory_layout->bytes[DPT_CUDA_COPIES], bytes) / memory_layout->element;
    if (node->bias >= 0)
        f->bias =
            dpt_cuda_take(&memory_layout->bytes[DPT_CUDA_COPIES], bytes) / memory_layout->element;
    if (spec->training && cut.chunks > 1) {
        dpt_cuda_share(memory_layout, DPT_CUDA_PARTIAL,
                       2 * cut.chunks * elements * (int64_t)sizeof(double));
        dpt_cuda_share(memory_layout, DPT_CUDA_COUNTERS, cut.groups * (int64_t)sizeof(uint32_t));
    }
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
                                    .area = weight_area(node, f),
                                    .padded_outputs = 1,
                                    .padded_inputs = f->pitch};
}

/* Bytes for mean, scale and rest of each group of channels in each sample; there are at most as
 * many groups as channels. */
static int64_t sample_bytes(const struct dpt_cuda_node_layout *f, int64_t micro)
{
    (void)f;
    return micro * 3 * (int64_t)sizeof(float);
}

static int64_t groups_bytes(const struct dpt_cuda_node_layout *f, int64_t micro)
{
    return micro * f->channels * 3 * (int64_t)sizeof(float);
}

/* passes: how often the tensor is read or written. */
static struct dpt_cuda_scales_args args_of(const struct dpt_cuda_program *p, int32_t i,
                                           int64_t blocks, int passes)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const int64_t element = p->lists->memory_layout.element;
    const int32_t area = weight_area(node, f), tensors = node->bias >= 0 ? 2 : 1;

    return (struct dpt_cuda_scales_args){
        .counted = {.blocks = blocks,
                    .bytes =
                        (passes * dpt_cuda_elements(p, i) + tensors * (int64_t)f->pitch * area) *
                        element},
        .x = dpt_cuda_value(p, dpt_cuda_before(p, i)),
        .weight = dpt_cuda_copy(p, f->weight),
        .bias = node->bias >= 0 ? dpt_cuda_copy(p, f->bias) : NULL,
        .statistics = f->saved == DPT_CUDA_NONE ? NULL : (void *)(p->lists->values + f->saved),
        .vectors = dpt_cuda_vectors(p, i),
        .n = p->micro,
        .channels = f->channels,
        .pitch = f->pitch,
        .area = f->h * f->w,
        .weight_area = area,
        .groups = node->op == DPT_OP_GROUPNORM ? node->window.groups : 1,
        .eps = node->attribute[0],
    };
}

/* Appends the gradient of the weights, from that of the output. */
static enum dpt_status add_weights(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_cut cut = cut_of(node, &p->lists->memory_layout, p->micro, i);
    struct dpt_cuda_scales_args args = args_of(p, i, cut.groups * cut.chunks, 2);
    struct dpt_cuda_entry entry;

    args.dy = dpt_cuda_gradient(p, dpt_cuda_node_layout_of(p, i)->dy);
    args.dweight = dpt_cuda_at(p, p->gradient, dpt_cuda_tensor_of(p, node->weight)->offset);
    args.dbias = node->bias >= 0
                     ? dpt_cuda_at(p, p->gradient, dpt_cuda_tensor_of(p, node->bias)->offset)
                     : NULL;
    args.chunks = (int32_t)cut.chunks;
    args.partial = p->lists->partial;
    args.counter = p->lists->counters;
    args.state = dpt_cuda_state_of(p);
    entry = dpt_cuda_kernel_entry(p, i, DPT_PASS_WEIGHTS, dpt_cuda_op_of(p, i)->weights, &args);
    entry.add = offsetof(struct dpt_cuda_scales_args, add);
    return dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &entry, err);
}

static bool is_norm(const struct dpt_cuda_program *p, int32_t i)
{
    return dpt_operation_of(&p->spec.graph->nodes[i])->kind == DPT_CLASS_NORM;
}

/* A norm has a block for each group of channels of a sample. */
static int64_t blocks_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];

    if (is_norm(p, i))
        return (int64_t)p->micro * (node->op == DPT_OP_GROUPNORM ? node->window.groups : 1);
    return (dpt_cuda_vectors(p, i) + DPT_CUDA_THREADS - 1) / DPT_CUDA_THREADS;
}

static enum dpt_status forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    struct dpt_cuda_scales_args args = args_of(p, i, blocks_of(p, i), is_norm(p, i) ? 4 : 2);

    args.y = dpt_cuda_value(p, i);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err);
}

/* The weights' gradient comes first, since dx may overwrite dy. */
static enum dpt_status backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    struct dpt_cuda_scales_args args = args_of(p, i, blocks_of(p, i), is_norm(p, i) ? 5 : 3);
    enum dpt_status status = DPT_OK;

    DPT_TRY(add_weights(p, i, err));
    if (f->dx[0] == DPT_CUDA_NONE)
        goto out;
    args.dy = dpt_cuda_gradient(p, f->dy);
    args.y = dpt_cuda_gradient(p, f->dx[0]);
    DPT_TRY(dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err));
out:
    return status;
}

#define SCALES(name, kernels, ...)                                                                 \
    const struct dpt_cuda_op dpt_cuda_##name = {.forward = forward,                                \
                                                .backward = backward,                              \
                                                .place = place,                                    \
                                                .layout = layout,                                  \
                                                .kernel = DPT_CUDA_K_##kernels##_f32,              \
                                                .back = DPT_CUDA_K_##kernels##_back_f32,           \
                                                .weights = DPT_CUDA_K_##kernels##_weights_f32,     \
                                                __VA_ARGS__}
SCALES(layernorm, layernorm, .saved = sample_bytes);
SCALES(groupnorm, layernorm, .saved = groups_bytes);
SCALES(prelu, prelu, .in_place = true);
