#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/program/program.h"
#include "core/backend/operation.h"

/* Elementwise layers, in any layout, and flatten. */

/* Sigmoid would turn the zeros that fill up a block into halves, and oneDNN counts on the zeros. */
static void clear_filling(const struct dpt_cpu_node *node, int64_t samples, float *y)
{
    const int32_t block = dpt_layout_block(node->y_layout, node->out.c);
    const int32_t used = node->out.c % block;
    const int64_t pixels = (int64_t)node->out.h * node->out.w;
    const int64_t sample = dpt_layout_floats(node->y_layout, node->out.c, node->out.h, node->out.w);

    for (int64_t i = 0; used != 0 && i < samples; i++) {
        float *last = y + (i + 1) * sample - pixels * block;

        for (int64_t k = 0; k < pixels; k++)
            memset(last + k * block + used, 0, (size_t)(block - used) * sizeof *last);
    }
}

/* The loops go over whole cache lines, which buffers have and the caller's input may not. */
static const float *whole_lines(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                                struct dpt_cpu_floats part)
{
    float *y = dpt_cpu_buffer(run, node->y) + part.first;

    if (node->x != DPT_CPU_INPUT)
        return dpt_cpu_buffer(run, node->x) + part.first;
    memcpy(y, run->batch->input + part.first, (size_t)part.n * sizeof *y);
    return y;
}

static const struct {
    void (*forward)(int64_t n, float a, const float *x, float *y);
    void (*backward)(int64_t n, float a, const float *known, const float *dy, float *dx);
} activations[DPT_OP_COUNT] = {
#define X(C, NAME, name, ...) [DPT_OP_##NAME] = {dpt_##name, dpt_##name##_back},
    DPT_ACTIVATIONS(X, 0)
#undef X
};

static enum dpt_status plan_activation(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                       struct dpt_error *err)
{
    const float zeros[DPT_LANES] __attribute__((aligned(64))) = {0};
    float y[DPT_LANES] __attribute__((aligned(64)));
    enum dpt_status status = DPT_OK;

    activations[node->graph->op].forward(1, node->graph->attribute[0], zeros, y);
    node->filled = y[0] != 0;
    DPT_TRY(dpt_cpu_read_and_write_over(program, node, dpt_cpu_input_layout(program, node), err));
    node->known = dpt_operation_of(node->graph)->keeps & DPT_KEEPS_INPUT ? node->x : node->y;
out:
    return status;
}

static void activation_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);
    float *y = dpt_cpu_buffer(run, node->y);

    activations[node->graph->op].forward(part.n, node->graph->attribute[0],
                                         whole_lines(run, node, part), y + part.first);
    if (node->filled)
        clear_filling(node, run->rows, y);
}

static void activation_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);

    if (node->wants_dx)
        activations[node->graph->op].backward(
            part.n, node->graph->attribute[0], dpt_cpu_buffer(run, node->known) + part.first,
            dpt_cpu_buffer(run, node->dy) + part.first, dpt_cpu_buffer(run, node->dx) + part.first);
}

#define X(C, NAME, name, ...)                                                                      \
    const struct dpt_cpu_op dpt_cpu_##name = {                                                     \
        .plan = plan_activation,                                                                   \
        .forward = activation_forward,                                                             \
        .backward = activation_backward,                                                           \
        .shares = true,                                                                            \
    };
DPT_ACTIVATIONS(X, 0)
#undef X

/* --- dropout ---------------------------------------------------------------------------------- */

struct dropout {
    int mask;      /* buffer, in the layout of the output */
    int canonical; /* buffer: one sample's mask */
};

static enum dpt_status plan_dropout(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dropout *dropout = node->own;

    DPT_TRY(dpt_cpu_read_and_write_over(program, node, dpt_cpu_input_layout(program, node), err));
    if (program->spec.training) {
        dropout->mask = dpt_cpu_reserve(program, node->y_floats);
        dropout->canonical = dpt_cpu_reserve(program, dpt_shape_size(&node->out));
    }
out:
    return status;
}

/* Moves numbers from [c][pixel] to [c / block][pixel][block]. */
static void arrange(const float *from, int32_t channels, int64_t pixels, int32_t block, float *to)
{
    for (int32_t c = 0; c < channels; c++) {
        float *lane = to + c / block * pixels * block + c % block;

        for (int64_t i = 0; i < pixels; i++)
            lane[i * block] = from[c * pixels + i];
    }
}

static void make_mask(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dropout *dropout = node->own;
    const struct dpt_batch *batch = run->batch;
    const int64_t n = dpt_shape_size(&node->out),
                  sample = node->y_floats / run->program->spec.micro;
    const int32_t block = dpt_layout_block(node->y_layout, node->out.c);
    float *mask = dpt_cpu_buffer(run, dropout->mask);
    float *canonical = dpt_cpu_buffer(run, dropout->canonical);
    int64_t first, last;

    dpt_cpu_part(run, batch->count, 1, &first, &last);
    for (int64_t i = first; i < last; i++) {
        float *to = block == 1 ? mask + i * sample : canonical;

        dpt_dropout_mask(batch->seed, batch->step, batch->sample[i], node->number,
                         node->graph->attribute[0], (size_t)n, to);
        if (block != 1)
            arrange(canonical, node->out.c, (int64_t)node->out.h * node->out.w, block,
                    mask + i * sample);
    }
}

static void dropout_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dropout *dropout = node->own;
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);
    const float *x = whole_lines(run, node, part);
    float *y = dpt_cpu_buffer(run, node->y) + part.first;

    if (run->training) {
        make_mask(run, node); /* by samples */
        dpt_cpu_barrier_within(run, node, DPT_PASS_FORWARD);
        dpt_multiply(part.n, x, dpt_cpu_buffer(run, dropout->mask) + part.first, y);
    } else if (x != y) {
        memcpy(y, x, (size_t)part.n * sizeof *y);
    }
}

static void dropout_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dropout *dropout = node->own;
    const struct dpt_cpu_floats part = dpt_cpu_floats_part(run, node->y_floats);

    if (node->wants_dx)
        dpt_multiply(part.n, dpt_cpu_buffer(run, node->dy) + part.first,
                     dpt_cpu_buffer(run, dropout->mask) + part.first,
                     dpt_cpu_buffer(run, node->dx) + part.first);
}

const struct dpt_cpu_op dpt_cpu_dropout = {
    .plan = plan_dropout,
    .forward = dropout_forward,
    .backward = dropout_backward,
    .own = sizeof(struct dropout),
    .shares = true,
};

/* --- input and flatten ------------------------------------------------------------------------ */

/* The input is the caller's, who wants it back as it was. */
static enum dpt_status plan_input(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  struct dpt_error *err)
{
    (void)err;
    node->y = DPT_CPU_INPUT;
    node->y_floats = program->spec.micro * dpt_shape_size(&node->out);
    node->y_layout = DPT_LAYOUT_NCHW;
    return DPT_OK;
}

const struct dpt_cpu_op dpt_cpu_input = {.plan = plan_input};

static enum dpt_status plan_flatten(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                    struct dpt_error *err)
{
    return dpt_cpu_read_and_write_over(program, node, DPT_LAYOUT_NCHW, err);
}

const struct dpt_cpu_op dpt_cpu_flatten = {.plan = plan_flatten, .shares = true};
