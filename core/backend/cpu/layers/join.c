#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/program/program.h"

/* Joins of two values, in a layout that both have. In a team each thread takes a part of it. */

/* The layout of both inputs; if they differ, that of the input which comes from a convolution.
 * Vectors are passed to layers that take them as they are. */
static enum dpt_memory_layout common_layout(const struct dpt_cpu_program *program,
                                            const struct dpt_cpu_node *node)
{
    const enum dpt_memory_layout first = dpt_cpu_input_layout(program, node);
    const enum dpt_memory_layout other = program->nodes[node->inputs[1]].y_layout;

    if (first != other && node->in.flat)
        return DPT_LAYOUT_NCHW;
    return first != DPT_LAYOUT_NCHW ? first : other;
}

/* The elements that this thread computes. */
struct part {
    int64_t first, n;
    const float *x, *other;
};

static struct part part_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    int64_t first, last;

    dpt_cpu_floats_part(run, node->y_floats, &first, &last);
    return (struct part){.first = first,
                         .n = last - first,
                         .x = dpt_cpu_buffer(run, node->x) + first,
                         .other = dpt_cpu_buffer(run, node->other) + first};
}

static enum dpt_status plan_pairs(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cpu_read(program, node, common_layout(program, node), err));
    if (!node->fused)
        dpt_cpu_write_over(program, node);
out:
    return status;
}

/* --- add -------------------------------------------------------------------------------------- */

static enum dpt_status add_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                   struct dpt_error *err)
{
    (void)err;
    if (!node->fused) {
        const struct part part = part_of(run, node);

        (node->relu ? dpt_add_relu : dpt_add)(part.n, part.x, part.other,
                                              dpt_cpu_buffer(run, node->y) + part.first);
    }
    return DPT_OK;
}

/* Both inputs get the same gradient: without a relu, the output's. */
static enum dpt_status add_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    const int dx = node->wants_dx ? node->dx : node->dx_other;
    int64_t first, last;

    (void)err;
    dpt_cpu_floats_part(run, node->y_floats, &first, &last);
    if (node->relu && !node->passed && dx != DPT_CPU_NONE)
        dpt_relu_back(last - first, 0, dpt_cpu_buffer(run, node->y) + first,
                      dpt_cpu_buffer(run, node->dy) + first, dpt_cpu_buffer(run, dx) + first);
    return DPT_OK;
}

const struct dpt_cpu_op dpt_cpu_add = {.plan = plan_pairs,
                                       .forward = add_forward,
                                       .backward = add_backward,
                                       .shares = true,
                                       .takes_relu = true};

/* --- multiply --------------------------------------------------------------------------------- */

static enum dpt_status multiply_forward(const struct dpt_cpu_run *run,
                                        const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct part part = part_of(run, node);

    (void)err;
    dpt_multiply(part.n, part.x, part.other, dpt_cpu_buffer(run, node->y) + part.first);
    return DPT_OK;
}

/* The second one may be written over dy. */
static enum dpt_status multiply_backward(const struct dpt_cpu_run *run,
                                         const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct part part = part_of(run, node);
    const float *dy = dpt_cpu_buffer(run, node->dy) + part.first;

    (void)err;
    if (node->wants_dx)
        dpt_multiply(part.n, dy, part.other, dpt_cpu_buffer(run, node->dx) + part.first);
    if (node->wants_dx_other)
        dpt_multiply(part.n, dy, part.x, dpt_cpu_buffer(run, node->dx_other) + part.first);
    return DPT_OK;
}

const struct dpt_cpu_op dpt_cpu_multiply = {
    .plan = plan_pairs, .forward = multiply_forward, .backward = multiply_backward, .shares = true};

/* --- concat ----------------------------------------------------------------------------------- */

/* Blocks of channels follow one another if the first input fills its last one. */
static enum dpt_status plan_concat(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                   struct dpt_error *err)
{
    enum dpt_memory_layout layout = common_layout(program, node);
    enum dpt_status status = DPT_OK;

    if (node->in.c % dpt_layout_block(layout, node->in.c) != 0)
        layout = DPT_LAYOUT_NCHW;
    DPT_TRY(dpt_cpu_read(program, node, layout, err));
    dpt_cpu_write(program, node, layout);
out:
    return status;
}

/* Rows of both inputs, which stand side by side in a row of the output: samples, or pixels. */
struct rows {
    int64_t first, last;
    int64_t width[DPT_MAX_INPUTS];
};

static struct rows rows_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const int64_t pixels = node->x_layout == DPT_LAYOUT_NHWC ? (int64_t)node->in.h * node->in.w : 1;
    const int64_t micro = run->program->spec.micro;
    struct rows rows = {
        .width = {node->x_floats / micro / pixels, node->other_floats / micro / pixels}};

    dpt_cpu_part(run, run->rows * pixels, 1, &rows.first, &rows.last);
    return rows;
}

static enum dpt_status concat_forward(const struct dpt_cpu_run *run,
                                      const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct rows rows = rows_of(run, node);
    float *y = dpt_cpu_buffer(run, node->y);

    (void)err;
    for (int32_t i = 0; i < DPT_MAX_INPUTS; y += rows.width[i++]) {
        const float *x = dpt_cpu_buffer(run, node->xs[i]);

        for (int64_t row = rows.first; row < rows.last; row++)
            memcpy(y + row * (rows.width[0] + rows.width[1]), x + row * rows.width[i],
                   (size_t)rows.width[i] * sizeof *y);
    }
    return DPT_OK;
}

static enum dpt_status concat_backward(const struct dpt_cpu_run *run,
                                       const struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct rows rows = rows_of(run, node);
    const float *dy = dpt_cpu_buffer(run, node->dy);

    (void)err;
    for (int32_t i = 0; i < DPT_MAX_INPUTS; dy += rows.width[i++]) {
        float *dx = node->wants[i] ? dpt_cpu_buffer(run, node->dxs[i]) : NULL;

        for (int64_t row = rows.first; dx != NULL && row < rows.last; row++)
            memcpy(dx + row * rows.width[i], dy + row * (rows.width[0] + rows.width[1]),
                   (size_t)rows.width[i] * sizeof *dx);
    }
    return DPT_OK;
}

const struct dpt_cpu_op dpt_cpu_concat = {
    .plan = plan_concat, .forward = concat_forward, .backward = concat_backward, .shares = true};
