/* Operations on each number by itself: activations and dropout; and flatten. */
#include "core/backend/cuda/program/program.h"

const struct dpt_cuda_op dpt_cuda_input = {0};

/* --- flatten, if it moves something -------------------------------------------------------- */

static struct dpt_cuda_flatten_args flatten_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));

    return (struct dpt_cuda_flatten_args){.n = p->micro,
                                          .channels = x->channels,
                                          .area = x->h * x->w,
                                          .pitch = x->pitch,
                                          .flat_pitch = f->pitch};
}

static enum dpt_status flatten_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    struct dpt_cuda_flatten_args args = flatten_args(p, i);

    args.from = dpt_cuda_value(p, dpt_cuda_before(p, i));
    args.to = dpt_cuda_value(p, i);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err);
}

static enum dpt_status flatten_backward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err)
{
    struct dpt_cuda_flatten_args args = flatten_args(p, i);

    args.from = dpt_cuda_gradient(p, dpt_cuda_node_layout_of(p, i)->dy);
    args.to = dpt_cuda_gradient(p, dpt_cuda_node_layout_of(p, i)->dx[0]);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err);
}

const struct dpt_cuda_op dpt_cuda_flatten = {
    .forward = flatten_forward,
    .backward = flatten_backward,
    .kernel = DPT_CUDA_K_flatten_f32,
    .back = DPT_CUDA_K_flatten_back_f32,
};

/* --- activations ------------------------------------------------------------------------------ */

static enum dpt_status forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_act_args args = {.x = dpt_cuda_value(p, dpt_cuda_before(p, i)),
                                           .y = dpt_cuda_value(p, i),
                                           .vectors = dpt_cuda_vectors(p, i),
                                           .attribute = p->spec.graph->nodes[i].attribute[0]};

    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err);
}

static enum dpt_status backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const bool by_input = dpt_operation_of(node)->keeps & DPT_KEEPS_INPUT;
    const struct dpt_cuda_act_back_args args = {
        .x = dpt_cuda_value(p, by_input ? dpt_cuda_before(p, i) : i),
        .dy = dpt_cuda_gradient(p, f->dy),
        .dx = dpt_cuda_gradient(p, f->dx[0]),
        .vectors = dpt_cuda_vectors(p, i),
        .attribute = node->attribute[0]};

    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err);
}

enum dpt_status dpt_cuda_relu_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const struct dpt_cuda_act_back_args args = {.x = dpt_cuda_value(p, i),
                                                .dy = dpt_cuda_gradient(p, f->dy),
                                                .dx = dpt_cuda_gradient(p, f->dz),
                                                .vectors = dpt_cuda_vectors(p, i)};

    return dpt_cuda_add_kernel(p, i, DPT_PASS_BACKWARD, DPT_CUDA_K_relu_back_f32, &args, err);
}

#define X(C, NAME, name, ...)                                                                      \
    const struct dpt_cuda_op dpt_cuda_##name = {.forward = forward,                                \
                                                .backward = backward,                              \
                                                .kernel = DPT_CUDA_K_##name##_f32,                 \
                                                .back = DPT_CUDA_K_##name##_back_f32,              \
                                                .in_place = true};
DPT_ACTIVATIONS(X, 0)
#undef X

/* --- dropout ---------------------------------------------------------------------------------- */

static struct dpt_cuda_dropout_args dropout_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

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
                                        .bytes = dpt_cuda_elements(p, i) *
                                                 p->lists->memory_layout.element};
    enum dpt_status status = DPT_OK;

    args.x = copy.from;
    args.y = copy.to;
    DPT_TRY(dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err));
    list->entry[list->n - 1].when = DPT_CUDA_TRAINING;
    DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_FORWARD_LIST, &copy, err));
out:
    return status;
}

static enum dpt_status dropout_backward(struct dpt_cuda_program *p, int32_t i,
                                        struct dpt_error *err)
{
    struct dpt_cuda_dropout_args args = dropout_args(p, i);

    args.x = dpt_cuda_gradient(p, dpt_cuda_node_layout_of(p, i)->dy);
    args.y = dpt_cuda_gradient(p, dpt_cuda_node_layout_of(p, i)->dx[0]);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err);
}

const struct dpt_cuda_op dpt_cuda_dropout = {
    .forward = dropout_forward,
    .backward = dropout_backward,
    .kernel = DPT_CUDA_K_dropout_f32,
    .back = DPT_CUDA_K_dropout_f32,
    .in_place = true,
};
