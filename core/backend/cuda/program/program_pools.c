/* Pools: max, average, global and adaptive, and upsampling. */
#include "core/backend/cuda/program/program.h"

static struct dpt_cuda_pool_args pool_args(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i),
                                      *x = dpt_cuda_node_layout_of(p, dpt_cuda_before(p, i));
    const struct dpt_window *w = &node->window;
    const bool all = w->kernel[0] == 0; /* one window over the whole area */

    return (struct dpt_cuda_pool_args){
        .index = f->saved == DPT_CUDA_NONE ? NULL : (void *)(p->lists->values + f->saved),
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

static enum dpt_status forward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    struct dpt_cuda_pool_args args = pool_args(p, i);

    args.from = dpt_cuda_value(p, dpt_cuda_before(p, i));
    args.to = dpt_cuda_value(p, i);
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_FORWARD, &args, err);
}

static enum dpt_status backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    struct dpt_cuda_pool_args args = pool_args(p, i);

    args.from = dpt_cuda_gradient(p, f->dy);
    args.to = dpt_cuda_gradient(p, f->dx[0]);
    args.y = f->relu ? dpt_cuda_value(p, i) : NULL;
    return dpt_cuda_add_op_kernel(p, i, DPT_PASS_BACKWARD, &args, err);
}

/* Bytes of the positions of the maxima. */
static int64_t index_bytes(const struct dpt_cuda_node_layout *f, int64_t micro)
{
    return dpt_cuda_form_elements(f, micro) * (int64_t)sizeof(uint16_t);
}

#define POOL(name, kernels, ...)                                                                   \
    const struct dpt_cuda_op dpt_cuda_##name = {.forward = forward,                                \
                                                .backward = backward,                              \
                                                .kernel = DPT_CUDA_K_##kernels##_f32,              \
                                                .back = DPT_CUDA_K_##kernels##_back_f32,           \
                                                __VA_ARGS__}
POOL(maxpool, maxpool, .saved = index_bytes, .relu = DPT_CUDA_K_maxpool_relu_f32,
     .relu_back = DPT_CUDA_K_maxpool_relu_back_f32, .takes_relu = true);
POOL(avgpool, avgpool);
POOL(global_avgpool, avgpool); /* it has one window */
POOL(adaptive_avgpool, adaptive);
POOL(upsample, adaptive); /* to the nearest: windows of one number */
POOL(bilinear, bilinear);
