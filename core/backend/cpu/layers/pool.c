#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/program/program.h"

/* Whether the convolution that computes it keeps argmaxes of a byte each (bf16_conv.h). */
static bool in_bytes(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    return node->fused && dpt_cpu_conv_bf16(program, &program->nodes[node->inputs[0]]) != NULL;
}

/* Pools take any layout: a window is the same for all channels. The global one has a window over
 * all. */
static enum dpt_status plan_pool(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 struct dpt_error *err)
{
    const struct dpt_window whole = {.kernel = {node->in.h, node->in.w},
                                     .stride = {node->in.h, node->in.w}};
    const struct dpt_window *w =
        node->op == &dpt_cpu_global_avgpool ? &whole : &node->graph->window;
    const enum dpt_memory_layout layout = dpt_cpu_input_layout(program, node);
    const int32_t block = dpt_layout_block(layout, node->in.c);
    enum dpt_status status = DPT_OK;
    struct dpt_pool_shape *shape = node->own;

    *shape = (struct dpt_pool_shape){
        .planes = (int64_t)program->spec.micro * ((node->in.c + block - 1) / block),
        .block = block,
        .in = {node->in.h, node->in.w},
        .out = {node->out.h, node->out.w},
        .kernel = {w->kernel[0], w->kernel[1]},
        .stride = {w->stride[0], w->stride[1]},
        .before = {w->before[0], w->before[1]},
    };
    DPT_TRY(dpt_cpu_read(program, node, layout, err));
    if (!node->fused)
        dpt_cpu_write(program, node, layout);
    if (node->op == &dpt_cpu_maxpool && program->spec.training && node->wants_dx)
        node->argmax = dpt_cpu_reserve(program, node->y_floats / (in_bytes(program, node) ? 4 : 1));
out:
    return status;
}

/* Workers hold words of 4 bytes; these are whole numbers. */
static int32_t *argmaxes(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    return node->argmax == DPT_CPU_NONE ? NULL : (void *)dpt_cpu_buffer(run, node->argmax);
}

static void maxpool_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    if (node->fused)
        return;
    dpt_maxpool(node->own, node->relu, dpt_cpu_buffer(run, node->x), dpt_cpu_buffer(run, node->y),
                run->training ? argmaxes(run, node) : NULL);
}

static void maxpool_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    if (!node->listed)
        dpt_maxpool_back(node->own, dpt_cpu_buffer(run, node->dy), argmaxes(run, node),
                         dpt_cpu_buffer(run, node->dx));
}

const struct dpt_cpu_op dpt_cpu_maxpool = {
    .plan = plan_pool,
    .forward = maxpool_forward,
    .backward = maxpool_backward,
    .own = sizeof(struct dpt_pool_shape),
};

static void avgpool_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    dpt_avgpool(node->own, dpt_cpu_buffer(run, node->x), dpt_cpu_buffer(run, node->y));
}

static void avgpool_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    dpt_avgpool_back(node->own, dpt_cpu_buffer(run, node->dy), dpt_cpu_buffer(run, node->dx));
}

#define AVERAGE                                                                                    \
    {                                                                                              \
        .plan = plan_pool, .forward = avgpool_forward, .backward = avgpool_backward,               \
        .own = sizeof(struct dpt_pool_shape),                                                      \
    }
const struct dpt_cpu_op dpt_cpu_avgpool = AVERAGE, dpt_cpu_global_avgpool = AVERAGE;
