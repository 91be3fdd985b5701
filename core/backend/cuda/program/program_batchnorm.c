/* Batch norm, in custom kernels. Weight, bias and running statistics are read from the arena, where
 * each is a vector of channels followed by zeros. */
#include "core/backend/cuda/program/program_norms.h"

static struct dpt_cuda_cut cut_of(const struct dpt_cuda_node_layout *f, int64_t micro, int lanes)
{
    return dpt_cuda_bias_back_cut(micro * f->h * f->w, f->pitch, lanes);
}

static void place(const struct dpt_program_spec *spec, struct dpt_cuda_memory_layout *m,
                  int64_t micro, int32_t i)
{
    const struct dpt_cuda_node_layout *f = &m->node[i];
    const struct dpt_cuda_cut cut = cut_of(f, micro, m->lanes);
    const int64_t partial = 2 * cut.chunks * f->pitch * (int64_t)sizeof(double);
    const int64_t counters = cut.groups * (int64_t)sizeof(uint32_t);

    if (!spec->training)
        return;
    dpt_cuda_share(m, DPT_CUDA_PARTIAL, partial);
    dpt_cuda_share(m, DPT_CUDA_COUNTERS, counters);
}

/* The layout of a vector of channels. */
static struct dpt_cuda_layout layout(const struct dpt_graph *graph,
                                     const struct dpt_cuda_memory_layout *memory_layout, int32_t i,
                                     bool bias)
{
    const struct dpt_graph_node *node = &graph->nodes[i];
    const int32_t pitch = memory_layout->node[i].pitch;

    return (struct dpt_cuda_layout){.canonical =
                                        graph->tensors[bias ? node->bias : node->weight].offset,
                                    .outputs = 1,
                                    .inputs = node->in.c,
                                    .area = 1,
                                    .padded_outputs = 1,
                                    .padded_inputs = pitch};
}

static int64_t statistics_bytes(const struct dpt_cuda_node_layout *f, int64_t micro)
{
    (void)micro;
    return f->pitch * (int64_t)(DPT_CUDA_STATISTICS * sizeof(float) + 2 * sizeof(double));
}

static float *in_arena(const struct dpt_cuda_program *p, float *arena, int32_t tensor)
{
    return dpt_cuda_at(p, arena, dpt_cuda_tensor_of(p, tensor)->offset);
}

static struct dpt_cuda_batchnorm_args args_of(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    return (struct dpt_cuda_batchnorm_args){
        .x = dpt_cuda_value(p, dpt_cuda_before(p, i)),
        .weight = in_arena(p, p->params, node->weight),
        .bias = in_arena(p, p->params, node->bias),
        .mean = in_arena(p, p->params, node->mean),
        .variance = in_arena(p, p->params, node->variance),
        .control = p->control,
        .rows = (int64_t)p->micro * f->h * f->w,
        .area = f->h * f->w,
        .pitch = f->pitch,
        .channels = f->channels,
        .eps = node->attribute[DPT_BATCHNORM_EPS],
        .by_running = node->by_running,
    };
}

/* In training the micro-batch's contribution to the running statistics is written to their place in
 * the gradient. */
static struct dpt_cuda_batchnorm_args training_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    struct dpt_cuda_batchnorm_args args = args_of(p, i);

    args.statistics = (void *)(p->lists->values + dpt_cuda_node_layout_of(p, i)->saved);
    if (node->whole_step)
        args.sums =
            (void *)(args.statistics + DPT_CUDA_STATISTICS * dpt_cuda_node_layout_of(p, i)->pitch);
    args.means = in_arena(p, p->gradient, node->mean);
    args.variances = in_arena(p, p->gradient, node->variance);
    args.dweight = in_arena(p, p->gradient, node->weight);
    args.dbias = in_arena(p, p->gradient, node->bias);
    args.partial = p->lists->partial;
    args.counter = p->lists->counters;
    args.state = dpt_cuda_state_of(p);
    return args;
}

/* node: whose pass it is. */
static enum dpt_status add(struct dpt_cuda_program *p, int32_t node, int32_t norm,
                           enum dpt_cuda_list_kind kind, enum dpt_cuda_when when,
                           enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                           const struct dpt_cuda_batchnorm_args *args, struct dpt_error *err)
{
    struct dpt_cuda_entry entry = dpt_cuda_kernel_entry(p, node, pass, kernel, args);

    entry.when = when;
    entry.sums = args->sums != NULL &&
                         (pass == DPT_PASS_WEIGHTS || kernel == DPT_CUDA_K_batchnorm_statistics_f32)
                     ? norm
                     : 0;
    entry.add = offsetof(struct dpt_cuda_batchnorm_args, add);
    return dpt_cuda_add_entry(p, kind, &entry, err);
}

/* Writes y by the running statistics in evaluation, by the micro-batch's in training. with: NULL:
 * nothing is added. */
static enum dpt_status normalise(struct dpt_cuda_program *p, int32_t node, int32_t norm,
                                 enum dpt_cuda_kernel kernel, const void *with,
                                 struct dpt_error *err)
{
    const bool by_running = p->spec.graph->nodes[norm].by_running;
    struct dpt_cuda_batchnorm_args args = args_of(p, norm);
    enum dpt_status status = DPT_OK;

    args.y = dpt_cuda_value(p, node);
    args.with = with;
    DPT_TRY(add(p, node, norm, DPT_CUDA_FORWARD_LIST,
                by_running ? DPT_CUDA_ALWAYS : DPT_CUDA_EVALUATION, DPT_PASS_FORWARD, kernel, &args,
                err));
    if (!p->spec.training || by_running)
        goto out;
    args = training_args(p, norm);
    args.y = dpt_cuda_value(p, node);
    args.with = with;
    DPT_TRY(add(p, node, norm, DPT_CUDA_FORWARD_LIST, DPT_CUDA_TRAINING, DPT_PASS_FORWARD, kernel,
                &args, err));
out:
    return status;
}

static enum dpt_status forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_op *op = dpt_cuda_op_of(p, i);
    struct dpt_cuda_batchnorm_args args;
    enum dpt_status status = DPT_OK;

    if (p->spec.training && !p->spec.graph->nodes[i].by_running) {
        args = training_args(p, i);
        DPT_TRY(add(p, i, i, DPT_CUDA_FORWARD_LIST, DPT_CUDA_TRAINING, DPT_PASS_FORWARD,
                    DPT_CUDA_K_batchnorm_statistics_f32, &args, err));
    }
    if (!dpt_cuda_is_joined(&p->lists->memory_layout, i))
        DPT_TRY(normalise(p, i, i, dpt_cuda_node_layout_of(p, i)->relu ? op->relu : op->kernel,
                          NULL, err));
out:
    return status;
}

enum dpt_status dpt_cuda_norm_weights(struct dpt_cuda_program *p, int32_t node, int32_t norm,
                                      struct dpt_error *err)
{
    static const enum dpt_cuda_kernel kernels[2][2] = {
        {DPT_CUDA_K_batchnorm_weights_f32, DPT_CUDA_K_batchnorm_through_weights_f32},
        {DPT_CUDA_K_batchnorm_sum_weights_f32, DPT_CUDA_K_batchnorm_sum_through_weights_f32}};
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, node);
    struct dpt_cuda_batchnorm_args args = training_args(p, norm);
    const bool sum = f->more != DPT_CUDA_NONE;
    enum dpt_cuda_kernel kernel = kernels[sum][f->relu];

    if (f->relu && !sum && node == norm)
        kernel = DPT_CUDA_K_batchnorm_relu_weights_f32;
    args.dy = dpt_cuda_gradient(p, f->dy);
    args.with = dpt_cuda_gradient(p, f->more);
    if (f->relu && kernel != DPT_CUDA_K_batchnorm_relu_weights_f32)
        args.joined = dpt_cuda_value(p, node);
    if (args.with != NULL || args.joined != NULL)
        args.dz = dpt_cuda_gradient(p, f->dz);
    return add(p, node, norm, DPT_CUDA_BACKWARD_LIST, DPT_CUDA_ALWAYS, DPT_PASS_WEIGHTS, kernel,
               &args, err);
}

static enum dpt_status backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_op *op = dpt_cuda_op_of(p, i);
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    struct dpt_cuda_batchnorm_args args = training_args(p, i);
    enum dpt_status status = DPT_OK;

    if (!dpt_cuda_is_joined(&p->lists->memory_layout, i))
        DPT_TRY(dpt_cuda_norm_weights(p, i, i, err));
    args.dy = dpt_cuda_gradient(p, f->dz);
    args.y = dpt_cuda_gradient(p, f->dx[0]);
    if (f->dx[0] != DPT_CUDA_NONE) /* a sum has already passed the ReLU */
        DPT_TRY(dpt_cuda_add_kernel(p, i, DPT_PASS_BACKWARD,
                                    f->relu && f->more == DPT_CUDA_NONE ? op->relu_back : op->back,
                                    &args, err));
out:
    return status;
}

/* --- as part of a sum ------------------------------------------------------------------------- */

/* Finds the last of a sum's inputs that is a norm whose output only the sum reads. Backward
 * computes the norm's sums together with the sum's own pass, so no other synchronized norm may be
 * between them. */
void dpt_cuda_join_norms(const struct dpt_program_spec *spec,
                         struct dpt_cuda_memory_layout *memory_layout)
{
    const struct dpt_graph_node *nodes = spec->graph->nodes;

    for (int32_t i = 1; spec->training && i < spec->graph->n_nodes; i++) {
        struct dpt_cuda_node_layout *f = &memory_layout->node[i];
        int32_t norm = DPT_CUDA_NONE;

        for (int32_t k = 0; f->live && nodes[i].op == DPT_OP_ADD && k < DPT_MAX_INPUTS; k++) {
            const int32_t x = nodes[i].inputs[k];
            const struct dpt_cuda_node_layout *input = &memory_layout->node[x];

            if (nodes[x].op == DPT_OP_BATCHNORM && nodes[x].learns && input->reader == i &&
                !input->relu && dpt_program_computes(spec, x) == dpt_program_computes(spec, i))
                norm = x > norm ? x : norm;
        }
        for (int32_t k = norm + 1; norm != DPT_CUDA_NONE && k < i; k++)
            if (nodes[k].whole_step)
                norm = DPT_CUDA_NONE;
        if (norm == DPT_CUDA_NONE)
            continue;
        f->joined = norm;
        memory_layout->node[norm].joined = i;
    }
}

enum dpt_status dpt_cuda_joined_forward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const int32_t *inputs = p->spec.graph->nodes[i].inputs;

    return normalise(p, i, f->joined,
                     f->relu ? DPT_CUDA_K_batchnorm_add_relu_f32 : DPT_CUDA_K_batchnorm_add_f32,
                     dpt_cuda_value(p, inputs[inputs[0] == f->joined]), err);
}

enum dpt_status dpt_cuda_norm_alone(struct dpt_cuda_program *p, int32_t norm, struct dpt_error *err)
{
    struct dpt_cuda_batchnorm_args args = args_of(p, norm);

    args.y = dpt_cuda_gradient(p, dpt_cuda_node_layout_of(p, norm)->dy);
    return dpt_cuda_launch(&p->ctx.lib, &p->ctx.module, p->ctx.compute,
                           dpt_cuda_typed(p, DPT_CUDA_K_batchnorm_f32), &args, err);
}

const struct dpt_cuda_op dpt_cuda_batchnorm = {
    .forward = forward,
    .backward = backward,
    .place = place,
    .layout = layout,
    .saved = statistics_bytes,
    .kernel = DPT_CUDA_K_batchnorm_f32,
    .back = DPT_CUDA_K_batchnorm_back_f32,
    .relu = DPT_CUDA_K_batchnorm_relu_f32,
    .relu_back = DPT_CUDA_K_batchnorm_relu_back_f32,
    .fuses_relu = true,
    .in_place = true,
    .keeps_dy = true,
};
