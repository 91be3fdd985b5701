#include "core/backend/cpu/kernels.h"
#include "core/backend/cpu/program.h"
#include "core/base/memory.h"

/* Pools take any layout: a window is the same for all channels. */
struct pool {
    struct dpt_pool_shape shape;
};

static void close_pool(struct dpt_cpu_node *node)
{
    dpt_free(node->own);
}

static enum dpt_status plan_pool(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 const struct dpt_window *w, bool keeps_argmax,
                                 struct dpt_error *err)
{
    const enum dpt_layout layout = dpt_cpu_input_layout(program, node);
    const int32_t block = dpt_layout_block(layout, node->in.c);
    enum dpt_status status = DPT_OK;
    struct pool *pool = node->own = dpt_alloc(sizeof *pool);

    if (pool == NULL)
        return dpt_fail_memory(err, node->name, sizeof *pool);
    pool->shape = (struct dpt_pool_shape){
        .planes = (int64_t)program->spec.micro * ((node->in.c + block - 1) / block),
        .block = block,
        .in = {node->in.h, node->in.w},
        .out = {node->out.h, node->out.w},
    };
    for (int i = 0; i < 2; i++) {
        pool->shape.kernel[i] = w->kernel[i];
        pool->shape.stride[i] = w->stride[i];
        pool->shape.before[i] = w->before[i];
    }
    DPT_TRY(dpt_cpu_read(program, node, layout, err));
    dpt_cpu_write(program, node, layout);
    if (keeps_argmax && program->spec.training && node->wants_dx)
        node->argmax = dpt_cpu_reserve(program, node->y_floats);
out:
    return status;
}

/* --- max -------------------------------------------------------------------------------------- */

static enum dpt_status plan_maxpool(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    return plan_pool(program, node, &node->graph->window, true, err);
}

/* Workers hold words of 4 bytes; these are whole numbers. */
static int32_t *argmaxes(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    return node->argmax == DPT_CPU_NONE ? NULL : (void *)dpt_cpu_buffer(run, node->argmax);
}

static enum dpt_status maxpool_forward(const struct dpt_cpu_run *run,
                                       const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct pool *pool = node->own;

    (void)err;
    if (node->fused)
        return DPT_OK;
    dpt_maxpool(&pool->shape, node->relu, dpt_cpu_buffer(run, node->x),
                dpt_cpu_buffer(run, node->y), run->training ? argmaxes(run, node) : NULL);
    return DPT_OK;
}

static enum dpt_status maxpool_backward(const struct dpt_cpu_run *run,
                                        const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct pool *pool = node->own;

    (void)err;
    if (!node->listed)
        dpt_maxpool_back(&pool->shape, dpt_cpu_buffer(run, node->dy), argmaxes(run, node),
                         dpt_cpu_buffer(run, node->dx));
    return DPT_OK;
}

const struct dpt_cpu_op dpt_cpu_maxpool = {
    .plan = plan_maxpool,
    .forward = maxpool_forward,
    .backward = maxpool_backward,
    .close = close_pool,
};

/* --- average ---------------------------------------------------------------------------------- */

static enum dpt_status plan_avgpool(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    return plan_pool(program, node, &node->graph->window, false, err);
}

/* One window over all. */
static enum dpt_status plan_global_avgpool(struct dpt_cpu_program *program,
                                           struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct dpt_window whole = {.kernel = {node->in.h, node->in.w},
                                     .stride = {node->in.h, node->in.w}};

    return plan_pool(program, node, &whole, false, err);
}

static enum dpt_status avgpool_forward(const struct dpt_cpu_run *run,
                                       const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct pool *pool = node->own;

    (void)err;
    dpt_avgpool(&pool->shape, dpt_cpu_buffer(run, node->x), dpt_cpu_buffer(run, node->y));
    return DPT_OK;
}

static enum dpt_status avgpool_backward(const struct dpt_cpu_run *run,
                                        const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct pool *pool = node->own;

    (void)err;
    dpt_avgpool_back(&pool->shape, dpt_cpu_buffer(run, node->dy), dpt_cpu_buffer(run, node->dx));
    return DPT_OK;
}

const struct dpt_cpu_op dpt_cpu_avgpool = {
    .plan = plan_avgpool,
    .forward = avgpool_forward,
    .backward = avgpool_backward,
    .close = close_pool,
};

const struct dpt_cpu_op dpt_cpu_global_avgpool = {
    .plan = plan_global_avgpool,
    .forward = avgpool_forward,
    .backward = avgpool_backward,
    .close = close_pool,
};
