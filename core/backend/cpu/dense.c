#include "core/backend/cpu/kernels.h"
#include "core/backend/cpu/program.h"

/* y = x W^T + b, on the canonical weights where they lie: matrix products pack what they need by
 * themselves. */

static enum dpt_status plan_dense(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cpu_read(program, node, DPT_LAYOUT_NCHW, err));
    dpt_cpu_write(program, node, DPT_LAYOUT_NCHW);
out:
    return status;
}

static enum dpt_status dense_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                     struct dpt_error *err)
{
    const int32_t rows = run->program->spec.micro, outputs = node->out.c;
    float *y = dpt_cpu_buffer(run, node->y);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_dnnl_product(
        false, true, rows, outputs, dpt_shape_size(&node->in), dpt_cpu_buffer(run, node->x),
        run->params + dpt_cpu_offset(run->program, node->graph->weight), false, y, err));
    if (node->graph->bias >= 0)
        dpt_add_rows(rows, outputs, run->params + dpt_cpu_offset(run->program, node->graph->bias),
                     y);
out:
    return status;
}

static enum dpt_status dense_backward(const struct dpt_cpu_run *run,
                                      const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const int32_t rows = run->program->spec.micro, outputs = node->out.c;
    const int64_t inputs = dpt_shape_size(&node->in);
    const int64_t weight = dpt_cpu_offset(run->program, node->graph->weight);
    const float *dy = dpt_cpu_buffer(run, node->dy);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_dnnl_product(true, false, outputs, inputs, rows, dy, dpt_cpu_buffer(run, node->x),
                             run->add, run->gradient + weight, err));
    if (node->graph->bias >= 0)
        dpt_sum_rows(rows, outputs, dy, run->add,
                     run->gradient + dpt_cpu_offset(run->program, node->graph->bias));
    if (node->wants_dx)
        DPT_TRY(dpt_dnnl_product(false, false, rows, inputs, outputs, dy, run->params + weight,
                                 false, dpt_cpu_buffer(run, node->dx), err));
out:
    return status;
}

const struct dpt_cpu_op dpt_cpu_dense = {
    .plan = plan_dense,
    .forward = dense_forward,
    .backward = dense_backward,
};
