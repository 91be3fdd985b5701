#include "core/backend/cpu/program.h"

#include <math.h>
#include <string.h>

#include "core/backend/cpu/kernels.h"
#include "core/backend/list.h"

float *dpt_cpu_buffer(const struct dpt_cpu_run *run, int buffer)
{
    /* Nobody writes into the input: it has a buffer's type only because it is one to its readers.
     */
    if (buffer == DPT_CPU_INPUT)
        return (float *)(uintptr_t)run->batch->input;
    return run->slot->buffers[buffer];
}

void dpt_cpu_set(const struct dpt_cpu_run *run, int call, enum dpt_role role, const float *memory)
{
    dpt_call_set(run->slot->calls[call], role, memory);
}

enum dpt_status dpt_cpu_execute(const struct dpt_cpu_run *run, int call, struct dpt_error *err)
{
    const struct dpt_cpu_call *plan = &run->program->calls[call];

    for (int role = 0; role < DPT_ROLE_COUNT; role++) {
        if (plan->buffers[role] == DPT_CPU_INPUT)
            dpt_cpu_set(run, call, (enum dpt_role)role, run->batch->input);
    }
    return dpt_call_run(run->slot->calls[call], err);
}

int64_t dpt_cpu_offset(const struct dpt_cpu_program *program, int32_t tensor)
{
    return program->spec.graph->tensors[tensor].offset;
}

static enum dpt_status run_forward(const struct dpt_cpu_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int32_t i = 1; i < run->program->n_nodes; i++) {
        const struct dpt_cpu_node *node = &run->program->nodes[i];

        if (node->skipped)
            continue;
        if (node->reorder != DPT_CPU_NONE)
            DPT_TRY(dpt_cpu_execute(run, node->reorder, err));
        DPT_TRY(node->op->forward(run, node, err));
    }
out:
    return status;
}

static enum dpt_status run_backward(const struct dpt_cpu_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int32_t i = run->program->n_nodes - 1; i > 0; i--) {
        const struct dpt_cpu_node *node = &run->program->nodes[i];

        if (node->skipped || !node->wants_dy)
            continue;
        DPT_TRY(node->op->backward(run, node, err));
        if (node->reorder_back != DPT_CPU_NONE)
            DPT_TRY(dpt_cpu_execute(run, node->reorder_back, err));
    }
out:
    return status;
}

static struct dpt_cpu_run begin(struct dpt_cpu_program *program, int slot,
                                const struct dpt_batch *batch, const float *params)
{
    dpt_dnnl_one_thread(program->dnnl);
    return (struct dpt_cpu_run){
        .program = program, .slot = &program->slots[slot], .batch = batch, .params = params};
}

static const struct dpt_cpu_node *outputs_of(const struct dpt_cpu_program *program)
{
    return &program->nodes[program->n_nodes - 1];
}

static enum dpt_status refresh(void *opened, int slot, const float *params, struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_run run = begin(program, slot, NULL, params);
    enum dpt_status status = DPT_OK;
    int task = 0;

    for (int32_t i = 1; i < program->n_nodes; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];

        if (node->op->refresh != NULL)
            DPT_TRY(node->op->refresh(&run, node, slot, &task, err));
    }
out:
    return status;
}

static enum dpt_status train(void *opened, int slot, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_tally *tally, struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_node *last = outputs_of(program);
    const size_t width = (size_t)last->out.c, count = (size_t)batch->count;
    struct dpt_cpu_run run = begin(program, slot, batch, params);
    enum dpt_status status = DPT_OK;
    float *dy;

    run.gradient = gradient;
    run.add = add;
    run.training = true;
    DPT_TRY(run_forward(&run, err));
    dy = dpt_cpu_buffer(&run, last->dy);
    dpt_loss_rows(&program->spec.loss, batch, last->out.c, width, dpt_cpu_buffer(&run, last->y), dy,
                  tally);
    memset(dy + count * width, 0, ((size_t)program->spec.micro - count) * width * sizeof *dy);
    DPT_TRY(run_backward(&run, err));
out:
    return status;
}

static enum dpt_status infer(void *opened, int slot, const struct dpt_batch *batch,
                             const float *params, float *outputs, struct dpt_tally *tally,
                             struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_node *last = outputs_of(program);
    const size_t width = (size_t)last->out.c;
    const struct dpt_cpu_run run = begin(program, slot, batch, params);
    enum dpt_status status = DPT_OK;
    const float *y;

    DPT_TRY(run_forward(&run, err));
    y = dpt_cpu_buffer(&run, last->y);
    if (outputs != NULL)
        memcpy(outputs, y, (size_t)batch->count * width * sizeof *outputs);
    if (tally != NULL)
        dpt_loss_rows(&program->spec.loss, batch, last->out.c, width, y, NULL, tally);
out:
    return status;
}

/*
 * The input is not looked at: it was the caller's, and is gone. Where a relu wrote over its input,
 * or a max-pool computed it, the node before stands for both; neither makes a number non-finite.
 */
static int32_t find_nonfinite(void *opened, int slot, int32_t count, int32_t *position)
{
    const struct dpt_cpu_program *program = opened;

    for (int32_t i = 1; i < program->n_nodes - 1; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];
        const int64_t n = node->y_floats / program->spec.micro;

        if (node->skipped || node->y == DPT_CPU_INPUT)
            continue;
        for (int64_t k = 0; k < n * count; k++) {
            if (!isfinite(program->slots[slot].buffers[node->y][k])) {
                *position = (int32_t)(k / n);
                return node->number;
            }
        }
    }
    return -1;
}

static int64_t bytes(const void *opened)
{
    return ((const struct dpt_cpu_program *)opened)->bytes;
}

const struct dpt_backend dpt_backend_cpu = {
    .name = "cpu",
    .summary = "oneDNN, a thread for each micro-batch",
    .describe = dpt_dnnl_describe,
    .open = dpt_cpu_open,
    .close = dpt_cpu_close,
    .bytes = bytes,
    .refresh = refresh,
    .train = train,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
};
