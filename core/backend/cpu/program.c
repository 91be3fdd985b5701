#include "core/backend/cpu/program.h"

#include <math.h>
#include <string.h>

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
        if (!node->op->moves_nothing || node->reorder != DPT_CPU_NONE)
            dpt_cpu_mark(run, node, DPT_PASS_FORWARD);
        if (!node->op->moves_nothing)
            dpt_cpu_barrier(run);
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
        if (!node->op->moves_nothing || node->reorder_back != DPT_CPU_NONE)
            dpt_cpu_mark(run, node, DPT_PASS_BACKWARD);
        if (!node->op->moves_nothing)
            dpt_cpu_barrier(run);
    }
out:
    return status;
}

static struct dpt_cpu_run begin(struct dpt_cpu_program *program, int worker,
                                const struct dpt_batch *batch, const float *params)
{
    const int64_t sub_batch = dpt_cpu_sub_batch(program);

    dpt_dnnl_one_thread(program->dnnl);
    return (struct dpt_cpu_run){
        .program = program,
        .worker = &program->workers[worker],
        .scratch = program->workers[worker].memory,
        .threads = 1,
        .rows = batch != NULL ? (batch->count + sub_batch - 1) / sub_batch * sub_batch : 0,
        .batch = batch,
        .params = params,
        .spans = program->workers[worker].spans,
    };
}

static const struct dpt_cpu_node *outputs_of(const struct dpt_cpu_program *program)
{
    return &program->nodes[program->n_nodes - 1];
}

static enum dpt_status refresh(void *opened, int worker, const float *params, struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_run run = begin(program, worker, NULL, params);
    enum dpt_status status = DPT_OK;
    int task = 0;

    for (int32_t i = 1; i < program->n_nodes; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];

        if (node->op->refresh != NULL)
            DPT_TRY(node->op->refresh(&run, node, worker, &task, err));
    }
out:
    return status;
}

/*
 * The loss of the outputs and its gradient, by runs of rows, whose sums are added in their order:
 * the same whoever computes them.
 */
static void run_loss(const struct dpt_cpu_run *run)
{
    const struct dpt_cpu_program *program = run->program;
    const struct dpt_cpu_node *last = outputs_of(program);
    const struct dpt_batch *batch = run->batch;
    const int64_t width = last->out.c, sub_batch = dpt_cpu_sub_batch(program);
    const float *y = dpt_cpu_buffer(run, last->y);
    float *dy = dpt_cpu_buffer(run, last->dy);
    const int64_t chunks = dpt_cpu_loss_chunks(program, 1);
    int64_t begin, end;

    dpt_cpu_part(run, dpt_cpu_loss_chunks(program, run->rows), 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = i / chunks * sub_batch + i % chunks * DPT_CPU_LOSS_ROWS;
        const int64_t next = (i / chunks + 1) * sub_batch;
        const int64_t left = (next < batch->count ? next : batch->count) - row;
        struct dpt_metric_sums *sum = &run->worker->metric_sums_of[i];
        struct dpt_batch rows = *batch;

        rows.count = (int32_t)(left < DPT_CPU_LOSS_ROWS ? left : DPT_CPU_LOSS_ROWS);
        rows.labels = batch->labels != NULL ? batch->labels + row : NULL;
        rows.targets = batch->targets != NULL ? batch->targets + row * width : NULL;
        rows.weights = batch->weights != NULL ? batch->weights + row : NULL;
        *sum = (struct dpt_metric_sums){0};
        if (left <= 0)
            continue;
        dpt_loss_rows(&program->spec.loss, &rows, last->out.c, (size_t)width, y + row * width,
                      dy + row * width, sum);
    }
    if (run->thread == 0)
        memset(dy + batch->count * width, 0,
               (size_t)((run->rows - batch->count) * width) * sizeof *dy);
}

static void add_losses(const struct dpt_cpu_run *run, struct dpt_metric_sums *metric_sums)
{
    const int64_t chunks = dpt_cpu_loss_chunks(run->program, 1);

    for (int64_t i = 0; i < dpt_cpu_loss_chunks(run->program, run->rows); i++)
        dpt_metric_sums_add(&metric_sums[i / chunks], &run->worker->metric_sums_of[i]);
}

static enum dpt_status train(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    struct dpt_cpu_run run = begin(program, worker, batch, params);
    enum dpt_status status = DPT_OK;

    run.gradient = gradient;
    run.add = add;
    run.training = true;
    if (program->spec.team != NULL) { /* all on the first one's values */
        run.worker = &program->workers[0];
        run.thread = worker;
        run.threads = program->spec.threads;
    }
    DPT_TRY(run_forward(&run, err));
    run_loss(&run);
    if (run.spans != NULL)
        dpt_spans_mark(run.spans, DPT_SPAN_LOSS);
    dpt_cpu_barrier(&run);
    if (run.thread == 0)
        add_losses(&run, metric_sums);
    DPT_TRY(run_backward(&run, err));
out:
    return status;
}

static enum dpt_status infer(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_node *last = outputs_of(program);
    const size_t width = (size_t)last->out.c;
    const struct dpt_cpu_run run = begin(program, worker, batch, params);
    enum dpt_status status = DPT_OK;
    const float *y;

    DPT_TRY(run_forward(&run, err));
    y = dpt_cpu_buffer(&run, last->y);
    if (outputs != NULL)
        memcpy(outputs, y, (size_t)batch->count * width * sizeof *outputs);
    if (metric_sums != NULL)
        dpt_loss_rows(&program->spec.loss, batch, last->out.c, width, y, NULL, metric_sums);
out:
    return status;
}

/*
 * The input is not looked at: it was the caller's, and is gone. Where a relu wrote over its input,
 * or a max-pool computed it, the node before stands for both; neither makes a number non-finite.
 */
static int32_t find_nonfinite(void *opened, int worker, int32_t count, int32_t *position)
{
    const struct dpt_cpu_program *program = opened;

    for (int32_t i = 1; i < program->n_nodes - 1; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];
        const int64_t n = node->y_floats / program->spec.micro;

        if (node->skipped || node->y == DPT_CPU_INPUT || node->y == DPT_CPU_NONE)
            continue;
        for (int64_t k = 0; k < n * count; k++) {
            if (!isfinite(program->workers[worker].buffers[node->y][k])) {
                *position = (int32_t)(k / n);
                return node->fused ? node->input : node->number;
            }
        }
    }
    return -1;
}

static void profile(void *opened, int worker, struct dpt_spans *spans)
{
    ((struct dpt_cpu_program *)opened)->workers[worker].spans = spans;
}

/* A relu that its max-pool computes is part of the pool's passes; and the pool may be part of its
 * convolution's. */
static int32_t runs_in(const void *opened, int32_t node, bool backward)
{
    const struct dpt_cpu_program *program = opened;

    while (program->nodes[node].skipped)
        node++;
    if (backward ? program->nodes[node].listed : program->nodes[node].fused)
        node = program->nodes[node].input;
    return node;
}

const struct dpt_backend dpt_backend_cpu = {
    .name = "cpu",
    .summary = "oneDNN, own matrix products",
    .precisions = 1u << DPT_PRECISION_FP32,
    .describe = dpt_dnnl_describe,
    .uses = dpt_dnnl_uses,
    .isa = dpt_dnnl_isa,
    .limit = dpt_dnnl_limit,
    .teams = dpt_cpu_teams,
    .open = dpt_cpu_open,
    .close = dpt_cpu_close,
    .measure = dpt_cpu_measure,
    .refresh = refresh,
    .train = train,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
    .profile = profile,
    .runs_in = runs_in,
    .gemm = dpt_dnnl_gemm,
};
