/* Joins of two inputs: add, multiply, concat. */
#include "core/backend/cuda/program/program_norms.h"

static void *input_of(const struct dpt_cuda_program *p, int32_t i, int k)
{
    return dpt_cuda_value(p, p->spec.graph->nodes[i].inputs[k]);
}

enum dpt_status dpt_cuda_add_sum(struct dpt_cuda_program *p, int32_t node, int32_t form, int64_t a,
                                 int64_t b, int64_t y, struct dpt_error *err)
{
    const struct dpt_cuda_join_args args = {.a = dpt_cuda_gradient(p, a),
                                            .b = dpt_cuda_gradient(p, b),
                                            .y = dpt_cuda_gradient(p, y),
                                            .vectors = dpt_cuda_vectors(p, form)};

    return dpt_cuda_add_kernel(p, node, DPT_PASS_BACKWARD, DPT_CUDA_K_add_f32, &args, err);
}

static enum dpt_status forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_join_args args = {.a = input_of(p, i, 0),
                                            .b = input_of(p, i, 1),
                                            .y = dpt_cuda_value(p, i),
                                            .vectors = dpt_cuda_vectors(p, i)};

    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err);
}

static enum dpt_status add_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    return dpt_cuda_node_layout_of(p, i)->joined != DPT_CUDA_NONE
               ? dpt_cuda_joined_forward(p, i, err)
               : forward(p, i, err);
}

/* The gradient of an addition is passed on to both inputs; an input without other readers shares
 * its buffer. */
static enum dpt_status add_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    enum dpt_status status = DPT_OK;

    if (f->joined != DPT_CUDA_NONE)
        DPT_TRY(dpt_cuda_norm_weights(p, i, f->joined, err));
    else if (f->relu)
        DPT_TRY(dpt_cuda_relu_backward(p, i, err));
    for (int k = 0; k < DPT_MAX_INPUTS; k++) {
        if (f->sum[k] != DPT_CUDA_NONE)
            DPT_TRY(dpt_cuda_add_sum(p, i, i, f->sum[k], f->dz, f->dx[k], err));
    }
out:
    return status;
}

const struct dpt_cuda_op dpt_cuda_add = {
    .forward = add_forward,
    .backward = add_backward,
    .kernel = DPT_CUDA_K_add_f32,
    .relu = DPT_CUDA_K_add_relu_f32,
    .fuses_relu = true,
    .passes_dy = true,
};

static enum dpt_status multiply_backward(struct dpt_cuda_program *p, int32_t i,
                                         struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const struct dpt_cuda_join_back_args args = {.dy = dpt_cuda_gradient(p, f->dy),
                                                 .a = input_of(p, i, 0),
                                                 .b = input_of(p, i, 1),
                                                 .da = dpt_cuda_gradient(p, f->dx[0]),
                                                 .db = dpt_cuda_gradient(p, f->dx[1]),
                                                 .vectors = dpt_cuda_vectors(p, i)};

    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err);
}

const struct dpt_cuda_op dpt_cuda_multiply = {
    .forward = forward,
    .backward = multiply_backward,
    .kernel = DPT_CUDA_K_multiply_f32,
    .back = DPT_CUDA_K_multiply_back_f32,
    .in_place = true,
};

static struct dpt_cuda_concat_args concat_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *a = dpt_cuda_node_layout_of(p, node->inputs[0]),
                                      *b = dpt_cuda_node_layout_of(p, node->inputs[1]);

    return (struct dpt_cuda_concat_args){.pixels = (int64_t)p->micro * f->h * f->w,
                                         .channels = {a->channels, b->channels},
                                         .pitch = {a->pitch, b->pitch},
                                         .whole_pitch = f->pitch};
}

static enum dpt_status concat_forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    struct dpt_cuda_concat_args args = concat_args(p, i);

    args.whole = dpt_cuda_value(p, i);
    args.first = input_of(p, i, 0);
    args.second = input_of(p, i, 1);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err);
}

static enum dpt_status concat_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    struct dpt_cuda_concat_args args = concat_args(p, i);

    args.whole = dpt_cuda_gradient(p, f->dy);
    args.first = dpt_cuda_gradient(p, f->dx[0]);
    args.second = dpt_cuda_gradient(p, f->dx[1]);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err);
}

const struct dpt_cuda_op dpt_cuda_concat = {
    .forward = concat_forward,
    .backward = concat_backward,
    .kernel = DPT_CUDA_K_concat_f32,
    .back = DPT_CUDA_K_concat_back_f32,
};
