#include "core/backend/bf16.h"
#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/program/program.h"
#include "core/backend/operation.h"
#include "core/base/memory.h"

#include <limits.h>

/* The functions that the program offers to kinds of layers: while it is planned, and while it
 * runs. */

/* --- buffers and calls ------------------------------------------------------------------------ */

int dpt_cpu_reserve(struct dpt_cpu_program *program, int64_t floats)
{
    const int buffer = dpt_cpu_take(program, floats);

    program->buffers[buffer].taken = 0;
    return buffer;
}

int dpt_cpu_take(struct dpt_cpu_program *program, int64_t floats)
{
    program->buffers[program->n_buffers] =
        (struct dpt_cpu_buffer_plan){.floats = (int64_t)dpt_round_up((size_t)floats, sizeof(float)),
                                     .owners = 1,
                                     .wanted = program->planning,
                                     .taken = program->n_taken++,
                                     .given = INT_MAX};
    return program->n_buffers++;
}

int dpt_cpu_share(struct dpt_cpu_program *program, int buffer)
{
    if (buffer > DPT_CPU_INPUT)
        program->buffers[buffer].owners++;
    return buffer;
}

void dpt_cpu_give(struct dpt_cpu_program *program, int buffer)
{
    if (buffer > DPT_CPU_INPUT && --program->buffers[buffer].owners == 0)
        program->buffers[buffer].given = program->n_taken;
}

int dpt_cpu_take_rounded(struct dpt_cpu_program *program, int buffer, int64_t floats)
{
    return dpt_cpu_rounds(program) ? dpt_cpu_take(program, floats) : buffer;
}

void dpt_cpu_give_rounded(struct dpt_cpu_program *program, int buffer, int rounded)
{
    if (rounded != buffer)
        dpt_cpu_give(program, rounded);
}

void dpt_cpu_copy(struct dpt_cpu_program *program, const struct dpt_cpu_node *node, int64_t floats,
                  float **copy)
{
    const int64_t room =
        program->planning ? (int64_t)dpt_round_up((size_t)floats, sizeof **copy) : 0;

    program->copies[program->n_copies].at = copy;
    program->copies[program->n_copies].node = node->number;
    program->copies[program->n_copies++].floats = room;
    program->copied += room * (int64_t)sizeof **copy;
}

enum dpt_isa dpt_cpu_isa(void)
{
    const enum dpt_isa here = dpt_isa_here();

#if DPT_CPU_ONEDNN
    return dpt_dnnl_isa() < here ? dpt_dnnl_isa() : here;
#else
    return here;
#endif
}

/* --- layouts ---------------------------------------------------------------------------------- */

/* Whether activations of this shape lie the same way in both. */
static bool same_memory(const struct dpt_shape *s, enum dpt_memory_layout a,
                        enum dpt_memory_layout b)
{
    const int32_t block_a = dpt_layout_block(a, s->c), block_b = dpt_layout_block(b, s->c);

    if (block_a == block_b)
        return true;
    return s->h == 1 && s->w == 1 && s->c % block_a == 0 && s->c % block_b == 0;
}

static int64_t floats_of(const struct dpt_cpu_program *program, const struct dpt_shape *s,
                         enum dpt_memory_layout layout)
{
    return program->spec.micro * dpt_layout_floats(layout, s->c, s->h, s->w);
}

enum dpt_memory_layout dpt_cpu_input_layout(const struct dpt_cpu_program *program,
                                            const struct dpt_cpu_node *node)
{
    return program->nodes[node->inputs[0]].y_layout;
}

enum dpt_status dpt_cpu_reorder(struct dpt_cpu_program *program, const struct dpt_shape *s,
                                enum dpt_memory_layout from, int x, enum dpt_memory_layout to,
                                int y, int *call, struct dpt_error *err)
{
    const bool to_planes = to == DPT_LAYOUT_NCHW;
    const int64_t pixels = (int64_t)s->h * s->w;

    if ((to_planes ? from : to) == DPT_LAYOUT_C16 && (to_planes || from == DPT_LAYOUT_NCHW) &&
        (!DPT_CPU_ONEDNN || dpt_moves_blocks(s->c, pixels))) {
        *call = program->n_calls++;
        program->calls[*call] = (struct dpt_cpu_call){.buffers = {x, y, DPT_CPU_NONE, DPT_CPU_NONE},
                                                      .channels = s->c,
                                                      .pixels = pixels,
                                                      .to_planes = to_planes};
        return DPT_OK;
    }
#if DPT_CPU_ONEDNN
    return dpt_cpu_onednn_reorder(program, s, from, x, to, y, call, err);
#else
    return dpt_fail(err, DPT_INTERNAL, "no code between layouts %d and %d", (int)from, (int)to);
#endif
}

unsigned dpt_cpu_keeps(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    if (!program->spec.training || !node->wants_dy || node->graph == NULL)
        return DPT_KEEPS_NOTHING;
    return dpt_operation_of(node->graph)->keeps |
           (node->relu && node->op->takes_relu ? DPT_KEEPS_OUTPUT : DPT_KEEPS_NOTHING);
}

static enum dpt_status read_input(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  int32_t i, struct dpt_error *err)
{
    const struct dpt_cpu_node *input = &program->nodes[node->inputs[i]];
    const enum dpt_memory_layout layout = node->x_layout;
    const struct dpt_shape *shape = &input->out;
    enum dpt_status status = DPT_OK;

    node->floats[i] = floats_of(program, shape, layout);
    node->xs[i] = input->y;
    if (!same_memory(shape, input->y_layout, layout)) {
        node->xs[i] = dpt_cpu_take(program, node->floats[i]);
        DPT_TRY(dpt_cpu_reorder(program, shape, input->y_layout, input->y, layout, node->xs[i],
                                &node->reorder[i], err));
        dpt_cpu_give(program, input->y);
    }
out:
    return status;
}

enum dpt_status dpt_cpu_read(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                             enum dpt_memory_layout layout, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    node->x_layout = layout;
    for (int32_t i = 0; i < node->n_inputs; i++)
        DPT_TRY(read_input(program, node, i, err));
out:
    return status;
}

/* Puts the output into the buffer, which its readers own, and backward if it reads the output. */
static void write_to(struct dpt_cpu_program *program, struct dpt_cpu_node *node, int buffer)
{
    const bool stays = dpt_cpu_keeps(program, node) & DPT_KEEPS_OUTPUT;

    node->y = buffer;
    for (int32_t i = 0; i < node->consumers + stays; i++)
        dpt_cpu_share(program, buffer);
}

void dpt_cpu_write(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                   enum dpt_memory_layout layout)
{
    node->y_layout = layout;
    node->y_floats = floats_of(program, &node->out, layout);
    if (dpt_cpu_target(node) == node) {
        write_to(program, node,
                 dpt_cpu_take(program, node->y_bf16 ? node->y_floats / 2 : node->y_floats));
        dpt_cpu_give(program, node->y);
    }
}

/* Whether the node's output may lie in x: nobody needs what is there once this node has read it, or
 * the output is the same. */
static bool may_overwrite(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node,
                          int x)
{
    int own = 0;

    if (node->op->forward == NULL)
        return true;
    for (int32_t i = 0; i < node->n_inputs; i++)
        own += node->xs[i] == x;
    return x != DPT_CPU_INPUT && !(dpt_cpu_keeps(program, node) & DPT_KEEPS_INPUT) &&
           program->buffers[x].owners == own;
}

enum dpt_status dpt_cpu_read_and_write_over(struct dpt_cpu_program *program,
                                            struct dpt_cpu_node *node,
                                            enum dpt_memory_layout layout, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int32_t i = 0;

    DPT_TRY(dpt_cpu_read(program, node, layout, err));
    if (node->fused)
        goto out;
    while (i < node->n_inputs && !may_overwrite(program, node, node->xs[i]))
        i++;
    if (i == node->n_inputs) {
        dpt_cpu_write(program, node, layout);
    } else {
        node->y_layout = layout;
        node->y_floats = node->x_floats;
        write_to(program, node, node->xs[i]);
    }
out:
    return status;
}

/* --- running ---------------------------------------------------------------------------------- */

float *dpt_cpu_buffer(const struct dpt_cpu_run *run, int buffer)
{
    /* Nobody writes into the input: it has a buffer's type only because it is one to its readers.
     */
    if (buffer == DPT_CPU_INPUT)
        return (float *)(uintptr_t)run->batch->input;
    return run->worker->buffers[buffer];
}

const float *dpt_cpu_round(const struct dpt_cpu_run *run, int buffer, int rounded, int64_t first,
                           int64_t last)
{
    const float *from = dpt_cpu_buffer(run, buffer);

    if (rounded == buffer)
        return from;
    dpt_bf16_round(last - first, from + first, dpt_cpu_buffer(run, rounded) + first);
    return dpt_cpu_buffer(run, rounded);
}

void dpt_cpu_execute(const struct dpt_cpu_run *run, int call)
{
    const struct dpt_cpu_call *plan = &run->program->calls[call];

#if DPT_CPU_ONEDNN
    if (plan->kernel != NULL) {
        dpt_cpu_onednn_execute(run, call);
        return;
    }
#endif
    dpt_move_blocks(run->program->spec.micro, plan->channels, plan->pixels, plan->to_planes,
                    dpt_cpu_buffer(run, plan->buffers[DPT_ROLE_X]),
                    dpt_cpu_buffer(run, plan->buffers[DPT_ROLE_Y]));
}

const float *dpt_cpu_param(const struct dpt_cpu_run *run, int32_t tensor)
{
    const struct dpt_tensor *tensors = run->program->spec.graph->tensors;

    if (tensor < 0)
        return NULL;
    return (tensors[tensor].state ? run->state : run->params) + tensors[tensor].offset;
}

float *dpt_cpu_gradient(const struct dpt_cpu_run *run, int32_t tensor)
{
    const struct dpt_graph *graph = run->program->spec.graph;

    if (tensor < 0)
        return NULL;
    if (graph->tensors[tensor].frozen)
        return dpt_cpu_buffer(run, run->program->unwanted);
    return run->gradient + graph->tensors[tensor].offset;
}

void dpt_cpu_part(const struct dpt_cpu_run *run, int64_t n, int64_t step, int64_t *first,
                  int64_t *last)
{
    const int64_t steps = (n + step - 1) / step;

    *first = steps * run->thread / run->threads * step;
    *last = steps * (run->thread + 1) / run->threads * step;
    *last = *last < n ? *last : n;
    *first = *first < *last ? *first : *last;
}

void dpt_cpu_sum_rows(const struct dpt_cpu_run *run, struct dpt_gemm sums, int64_t n,
                      const float *rows, int32_t tensor)
{
    int64_t first, last;

    sums.rows = run->rows;
    dpt_cpu_part(run, n, DPT_LANES, &first, &last);
    dpt_gemm_bias(&sums, rows, run->add, first, last, dpt_cpu_gradient(run, tensor));
}

struct dpt_cpu_floats dpt_cpu_floats_part(const struct dpt_cpu_run *run, int64_t floats)
{
    int64_t first, last;

    dpt_cpu_part(run, floats / run->program->spec.micro * run->rows, DPT_LANES, &first, &last);
    return (struct dpt_cpu_floats){first, last - first};
}

void dpt_cpu_barrier(const struct dpt_cpu_run *run)
{
    if (run->threads == 1)
        return;
    dpt_pool_barrier(run->program->spec.team);
    if (run->spans != NULL)
        dpt_spans_mark(run->spans, DPT_SPAN_WAIT_THREADS);
}

void dpt_cpu_barrier_within(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                            enum dpt_span_pass pass)
{
    if (run->threads == 1)
        return;
    dpt_cpu_mark(run, node, pass);
    dpt_cpu_barrier(run);
}
