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

static enum dpt_status plan_pairs(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  struct dpt_error *err)
{
    return dpt_cpu_read_and_write_over(program, node, common_layout(program, node), err);
}

/* --- add -------------------------------------------------------------------------------------- */

static void add_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);

    if (!node->fused)
        (node->relu ? dpt_add_relu : dpt_add)(part.n, dpt_cpu_buffer(run, node->x) + part.first,
                                              dpt_cpu_buffer(run, node->other) + part.first,
                                              dpt_cpu_buffer(run, node->y) + part.first);
}

/* Both inputs get the same gradient: without a relu, the output's. */
static void add_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);
    const int dx = node->wants_dx ? node->dx : node->dx_other;

    if (node->relu && !node->passed && dx != DPT_CPU_NONE)
        dpt_relu_back(part.n, 0, dpt_cpu_buffer(run, node->y) + part.first,
                      dpt_cpu_buffer(run, node->dy) + part.first,
                      dpt_cpu_buffer(run, dx) + part.first);
}

const struct dpt_cpu_op dpt_cpu_add = {.plan = plan_pairs,
                                       .forward = add_forward,
                                       .backward = add_backward,
                                       .shares = true,
                                       .takes_relu = true};

/* --- multiply --------------------------------------------------------------------------------- */

/* One buffer's part times the other's. */
static void multiply(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int a, int b,
                     int product)
{
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);

    dpt_multiply(part.n, dpt_cpu_buffer(run, a) + part.first, dpt_cpu_buffer(run, b) + part.first,
                 dpt_cpu_buffer(run, product) + part.first);
}

static void multiply_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    multiply(run, node, node->x, node->other, node->y);
}

/* The second one may be written over dy. */
static void multiply_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    if (node->wants_dx)
        multiply(run, node, node->dy, node->other, node->dx);
    if (node->wants_dx_other)
        multiply(run, node, node->dy, node->x, node->dx_other);
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

static void concat_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct rows rows = rows_of(run, node);
    float *y = dpt_cpu_buffer(run, node->y);

    for (int32_t i = 0; i < DPT_MAX_INPUTS; y += rows.width[i++]) {
        const float *x = dpt_cpu_buffer(run, node->xs[i]);

        for (int64_t row = rows.first; row < rows.last; row++)
            memcpy(y + row * (rows.width[0] + rows.width[1]), x + row * rows.width[i],
                   (size_t)rows.width[i] * sizeof *y);
    }
}

static void concat_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct rows rows = rows_of(run, node);
    const float *dy = dpt_cpu_buffer(run, node->dy);

    for (int32_t i = 0; i < DPT_MAX_INPUTS; dy += rows.width[i++]) {
        float *dx = node->wants[i] ? dpt_cpu_buffer(run, node->dxs[i]) : NULL;

        for (int64_t row = rows.first; dx != NULL && row < rows.last; row++)
            memcpy(dx + row * rows.width[i], dy + row * (rows.width[0] + rows.width[1]),
                   (size_t)rows.width[i] * sizeof *dx);
    }
}

const struct dpt_cpu_op dpt_cpu_concat = {
    .plan = plan_concat, .forward = concat_forward, .backward = concat_backward, .shares = true};
