#include "core/backend/cpu/program/program.h"
#include "core/backend/cpu/bf16/bf16_gemm.h"

#include <math.h>
#include <string.h>

#include "core/base/memory.h"

/* *bad: out, if the node's latest output holds a number that is not finite. A convolution that also
 * computes its pool, or a norm its sum, is checked for both nodes. */
static void look(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                 struct dpt_nonfinite *bad)
{
    const struct dpt_cpu_node *to = dpt_cpu_target(node);
    const int64_t n = to->y_floats / run->program->spec.micro;
    const float *y = dpt_cpu_buffer(run, to->y);
    const uint16_t *words = (const void *)y; /* of which a float's upper half is one */

    for (int64_t i = 0; !node->fused && i < n * run->batch->count; i++) {
        const bool finite = to->y_bf16 ? (words[i] & 0x7f80) != 0x7f80 : isfinite(y[i]);

        if (!finite) {
            *bad = (struct dpt_nonfinite){node->number, (int32_t)(i / n)};
            return;
        }
    }
}

/* Brings a node's inputs into its layout; whether any was in another one. */
static bool reorder_inputs(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    bool moves = false;

    for (int32_t k = 0; k < node->n_inputs; k++) {
        if (node->reorder[k] == DPT_CPU_NONE)
            continue;
        dpt_cpu_execute(run, node->reorder[k]);
        moves = true;
    }
    return moves;
}

/* The nodes [*first, *last) that a run goes over; the node that is added after the graph's last one
 * is one of them. */
static void range_of(const struct dpt_cpu_run *run, int32_t *first, int32_t *last)
{
    const struct dpt_cpu_program *program = run->program;
    const struct dpt_pass *pass = run->pass;

    *first = pass != NULL && pass->first > 1 ? pass->first : 1;
    *last = pass != NULL && pass->last < program->n_nodes - 1 ? pass->last : program->n_nodes;
}

/* The synchronized norm with this number; NULL: it is another node, or all are in one pass. */
static const struct dpt_cpu_node *norm_at(const struct dpt_cpu_run *run, int32_t number)
{
    const struct dpt_cpu_node *node = &run->program->nodes[number];

    return run->pass != NULL && node->graph != NULL && node->graph->whole_step ? node : NULL;
}

static void do_between(const struct dpt_cpu_run *run)
{
    if (run->pass != NULL && run->pass->between != NULL && run->thread == 0)
        run->pass->between(run->pass->arg);
}

/* The node's weights have their gradient: all threads are past it. What is added after the graph's
 * last node has that one's number. */
static void tell_passed(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    if (run->pass == NULL && run->batch->passed != NULL && run->thread == 0 && node->graph != NULL)
        run->batch->passed(run->batch->arg, node->number);
}

/* Looks at a node's output before a later one takes its place. All threads of a team call it, and
 * all ranks that share a layer continue together, whatever was found. */
static void look_once(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                      struct dpt_nonfinite *bad)
{
    if (run->thread == 0 && bad->node < 0)
        look(run, node, bad);
    dpt_cpu_barrier(run);
}

/* bad: NULL, or the place of the first value that is not finite; -1 before. */
static void run_forward(const struct dpt_cpu_run *run, struct dpt_nonfinite *bad)
{
    const struct dpt_cpu_node *norm;
    int32_t first, end;

    range_of(run, &first, &end);
    if (bad != NULL && first == 1)
        look_once(run, &run->program->nodes[0], bad);
    for (int32_t i = first; i < end; i++) {
        const struct dpt_cpu_node *node = &run->program->nodes[i];
        bool moves = node->op->forward != NULL;

        if (node->skipped)
            continue;
        if (norm_at(run, i) == NULL) /* else it was done with the norm's sums */
            moves |= reorder_inputs(run, node);
        if (node->op->forward != NULL)
            node->op->forward(run, node);
        if (moves)
            dpt_cpu_mark(run, node, DPT_PASS_FORWARD);
        if (node->op->forward != NULL)
            dpt_cpu_barrier(run);
        do_between(run);
        if (bad != NULL)
            look_once(run, node, bad);
    }
    norm = end < run->program->n_nodes ? norm_at(run, end) : NULL;
    if (norm != NULL) {
        reorder_inputs(run, norm);
        norm->op->sum_forward(run, norm);
        dpt_cpu_mark(run, norm, DPT_PASS_FORWARD);
    }
}

static void run_backward(const struct dpt_cpu_run *run)
{
    const struct dpt_cpu_node *norm;
    int32_t first, end;

    range_of(run, &first, &end);
    for (int32_t i = end - 1; i >= first; i--) {
        const struct dpt_cpu_node *node = &run->program->nodes[i];

        if (node->skipped || !node->wants_dy)
            continue;
        if (node->op->backward != NULL)
            node->op->backward(run, node);
        dpt_cpu_pass_back(run, node);
        if (dpt_cpu_moves_back(node)) {
            dpt_cpu_mark(run, node, DPT_PASS_BACKWARD);
            dpt_cpu_barrier(run);
            tell_passed(run, node);
        }
        do_between(run);
    }
    norm = norm_at(run, first - 1);
    if (norm != NULL && norm->wants_dy) {
        norm->op->sum_backward(run, norm);
        dpt_cpu_mark(run, norm, DPT_PASS_WEIGHTS);
    }
}

/* *status: out, that of the run from now on. */
static struct dpt_cpu_run begin(struct dpt_cpu_program *program, int worker,
                                const struct dpt_batch *batch, const float *params,
                                enum dpt_status *status, struct dpt_error *err)
{
    const int64_t sub_batch = dpt_cpu_sub_batch(program);
    const struct dpt_cpu_worker *first = &program->workers[worker * program->in_flight];

#if DPT_CPU_ONEDNN
    dpt_cpu_onednn_enter(program);
#endif
    *status = DPT_OK;
    return (struct dpt_cpu_run){
        .program = program,
        .worker = first,
        .scratch = first->memory,
        .threads = 1,
        .rows = batch != NULL ? (batch->count + sub_batch - 1) / sub_batch * sub_batch : 0,
        .batch = batch,
        .params = params,
        .state = params,
        .spans = first->spans,
        .status = status,
        .err = err,
    };
}

static const struct dpt_cpu_node *outputs_of(const struct dpt_cpu_program *program)
{
    return &program->nodes[program->n_nodes - 1];
}

static enum dpt_status refresh_nodes(void *opened, int worker, const float *params,
                                     const float *state, int32_t first, int32_t last,
                                     struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    enum dpt_status status;
    struct dpt_cpu_run run = begin(program, worker, NULL, params, &status, err);
    int task = 0;

    run.state = state;
    for (int32_t i = first; i < last; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];

        if (node->op->refresh != NULL && dpt_cpu_computes(program, node->number))
            node->op->refresh(&run, node, worker, &task);
    }
    return status;
}

static enum dpt_status refresh(void *opened, int worker, const float *params, struct dpt_error *err)
{
    const struct dpt_cpu_program *program = opened;

    return refresh_nodes(opened, worker, params, params, 0, program->n_nodes, err);
}

static void forget(void *opened, int32_t first, int32_t last)
{
    const struct dpt_cpu_program *program = opened;

    for (int i = 0; i < program->n_copies; i++)
        if (program->copies[i].node >= first && program->copies[i].node < last)
            dpt_decommit(*program->copies[i].at,
                         *program->copies[i].at + program->copies[i].floats);
}

/* The loss of some runs of rows, and its gradient. */
static void run_loss_part(const struct dpt_cpu_run *run)
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

/*
 * The loss of the outputs and its gradient, by runs of rows, whose sums are added in their order:
 * the same whoever computes them.
 */
static void run_loss(const struct dpt_cpu_run *run, struct dpt_metric_sums *metric_sums)
{
    const int64_t chunks = dpt_cpu_loss_chunks(run->program, 1);

    run_loss_part(run);
    if (run->spans != NULL)
        dpt_spans_mark(run->spans, DPT_SPAN_LOSS);
    dpt_cpu_barrier(run);
    for (int64_t i = 0; run->thread == 0 && i < dpt_cpu_loss_chunks(run->program, run->rows); i++)
        dpt_metric_sums_add(&metric_sums[i / chunks], &run->worker->metric_sums_of[i]);
}

/* The loss of an evaluation. */
static void tell_loss(const struct dpt_cpu_run *run, struct dpt_metric_sums *metric_sums)
{
    const struct dpt_cpu_node *last = outputs_of(run->program);

    dpt_loss_rows(&run->program->spec.loss, run->batch, last->out.c, (size_t)last->out.c,
                  dpt_cpu_buffer(run, last->y), NULL, metric_sums);
}

/* A team computes in the first worker's values. */
static void join_team(struct dpt_cpu_run *run, int worker)
{
    if (run->program->spec.team == NULL)
        return;
    run->worker = &run->program->workers[0];
    run->thread = worker;
    run->threads = run->program->spec.threads;
}

static enum dpt_status train(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    enum dpt_status status;
    struct dpt_cpu_run run = begin(opened, worker, batch, params, &status, err);

    run.gradient = gradient;
    run.adds = add;
    run.add = add || batch->before > 0;
    run.training = true;
    join_team(&run, worker);
    run_forward(&run, NULL);
    run_loss(&run, metric_sums);
    run_backward(&run);
    return status;
}

static struct dpt_cpu_run begin_pass(struct dpt_cpu_program *program, int worker,
                                     const struct dpt_pass *pass, enum dpt_status *status,
                                     struct dpt_error *err)
{
    struct dpt_cpu_run run = begin(program, worker, pass->batch, pass->params, status, err);

    run.state = pass->state;
    run.gradient = pass->gradient;
    run.add = pass->add;
    run.training = !pass->infers;
    run.pass = pass;
    if (run.training || pass->divided != NULL)
        join_team(&run, worker);
    run.worker += pass->flight;
    return run;
}

static enum dpt_status pass_forward(void *opened, int worker, const struct dpt_pass *pass,
                                    struct dpt_error *err)
{
    enum dpt_status status;
    const struct dpt_cpu_run run = begin_pass(opened, worker, pass, &status, err);

    run_forward(&run, pass->nonfinite);
    return status;
}

static enum dpt_status pass_loss(void *opened, int worker, const struct dpt_pass *pass,
                                 struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    enum dpt_status status;
    const struct dpt_cpu_run run = begin_pass(opened, worker, pass, &status, err);

    (pass->infers ? tell_loss : run_loss)(&run, metric_sums);
    return status;
}

static enum dpt_status pass_backward(void *opened, int worker, const struct dpt_pass *pass,
                                     struct dpt_error *err)
{
    enum dpt_status status;
    const struct dpt_cpu_run run = begin_pass(opened, worker, pass, &status, err);

    run_backward(&run);
    return status;
}

static float *value(const void *opened, int worker, int flight, int32_t node, bool gradient,
                    size_t *floats)
{
    const struct dpt_cpu_program *program = opened;
    const bool outputs = node >= program->spec.graph->n_nodes;
    const struct dpt_cpu_node *from =
        outputs ? outputs_of(program) : &program->nodes[program->nodes[node].inputs[0]];
    const int buffer = gradient ? from->dy : from->y;

    *floats = (size_t)from->y_floats;
    return buffer == DPT_CPU_NONE
               ? NULL
               : program->workers[worker * program->in_flight + flight].buffers[buffer];
}

static enum dpt_status infer(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_node *last = outputs_of(program);
    const size_t width = (size_t)last->out.c;
    enum dpt_status status;
    const struct dpt_cpu_run run = begin(program, worker, batch, params, &status, err);

    run_forward(&run, NULL);
    if (outputs != NULL)
        memcpy(outputs, dpt_cpu_buffer(&run, last->y),
               (size_t)batch->count * width * sizeof *outputs);
    if (metric_sums != NULL)
        tell_loss(&run, metric_sums);
    return status;
}

static bool folds(const struct dpt_cpu_program *program)
{
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];

        if (node->norm != NULL || (node->op == &dpt_cpu_conv && node->n_inputs > 1))
            return true;
    }
    return false;
}

static enum dpt_status find_nonfinite(void *opened, int worker, const struct dpt_batch *batch,
                                      const float *params, struct dpt_nonfinite *bad,
                                      struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    enum dpt_status status;
    const struct dpt_cpu_run run = begin(program, worker, batch, params, &status, err);

    *bad = (struct dpt_nonfinite){-1, -1};
    if (folds(program))
        return dpt_backend_find_plain(&dpt_backend_cpu, &program->spec, batch, params, bad, err);
    run_forward(&run, bad);
    return status;
}

static int32_t adds(const void *opened)
{
    const struct dpt_cpu_program *program = opened;

    return program->keeps ? dpt_cpu_kept(program)
                          : (int32_t)(program->spec.micro / dpt_cpu_sub_batch(program));
}

static void profile(void *opened, int worker, struct dpt_spans *spans)
{
    const struct dpt_cpu_program *program = opened;

    program->workers[worker * program->in_flight].spans = spans;
}

/* A relu or a batch norm may be part of another node's passes, a max-pool of its convolution's, and
 * an addition's forward pass of a norm's. */
static int32_t runs_in(const void *opened, int32_t node, bool backward)
{
    const struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_node *in = &program->nodes[program->nodes[node].within];

    if (!(backward ? in->listed : in->fused))
        return in->number;
    return in->inputs[in->n_inputs > 1 && program->nodes[in->inputs[1]].sum == in];
}

static const char *name_way(const void *opened, int32_t node, enum dpt_span_pass pass)
{
    const struct dpt_cpu_program *program = opened;
    const struct dpt_cpu_node *from = &program->nodes[node];

    return from->op->way != NULL && !from->skipped ? from->op->way(from, pass) : NULL;
}

#if !DPT_CPU_ONEDNN

static const char *name_set(enum dpt_isa isa)
{
    static const char *const names[DPT_ISA_COUNT] = {
        [DPT_ISA_PLAIN] = "custom kernels, generic CPU",
        [DPT_ISA_NEON] = "custom kernels, NEON",
        [DPT_ISA_AVX2] = "custom kernels, AVX2",
        [DPT_ISA_AVX512] = "custom kernels, AVX-512",
        [DPT_ISA_AVX512_BF16] = "custom kernels, AVX-512 BF16",
        [DPT_ISA_AMX] = "custom kernels, AVX-512 AMX",
    };

    return names[isa];
}

static const char *describe(void)
{
    return name_set(dpt_cpu_isa());
}

static const char *uses(void)
{
    return name_set(dpt_cpu_isa() < DPT_ISA_OWN ? dpt_cpu_isa() : DPT_ISA_OWN);
}

#endif

/* A layer's gradient of its input is a product of two matrices as they lie. */
static enum dpt_status gemm_fp32(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                                 float *c, struct dpt_error *err)
{
#if DPT_CPU_ONEDNN
    return dpt_dnnl_gemm(m, n, k, a, b, c, err);
#else
    const struct dpt_gemm p = {.rows = m, .inputs = n, .outputs = k, .isa = dpt_cpu_isa()};
    const int64_t floats = dpt_gemm_scratch(&p);
    float *scratch = dpt_alloc_array((size_t)floats, sizeof *scratch);

    if (scratch == NULL)
        return dpt_fail_memory(err, "a matrix product", (double)floats * sizeof *scratch);
    dpt_gemm_data(&p, a, b, 0, n, scratch, c);
    dpt_free(scratch);
    return DPT_OK;
#endif
}

static enum dpt_status gemm(enum dpt_precision precision, int64_t m, int64_t n, int64_t k,
                            const float *a, const float *b, float *c, struct dpt_error *err)
{
    const struct dpt_bf16_kernels *kernels = dpt_bf16_kernels(dpt_cpu_isa());

    return precision == DPT_PRECISION_BF16 && kernels != NULL
               ? dpt_bf16_product(kernels, m, n, k, a, b, c, err)
               : gemm_fp32(m, n, k, a, b, c, err);
}

static const char *bf16(void)
{
    const struct dpt_bf16_kernels *kernels = dpt_bf16_kernels(dpt_cpu_isa());

    return kernels != NULL ? dpt_bf16_name(kernels) : NULL;
}

const struct dpt_backend dpt_backend_cpu = {
    .name = "cpu",
    .summary = DPT_CPU_ONEDNN ? "oneDNN, custom kernels" : "custom kernels",
    .precisions = 1u << DPT_PRECISION_FP32 | 1u << DPT_PRECISION_BF16,
#if DPT_CPU_ONEDNN
    .describe = dpt_dnnl_describe,
    .uses = dpt_dnnl_uses,
    .limit = dpt_dnnl_limit,
#else
    .describe = describe,
    .uses = uses,
#endif
    .numerics = 2, /* other ways (conv_ways.h) compute some convolutions than in 1 */
    .isa = dpt_cpu_isa,
    .teams = dpt_cpu_teams,
    .open = dpt_cpu_open,
    .share = dpt_cpu_share_copies,
    .close = dpt_cpu_close,
    .adds = adds,
    .measure = dpt_cpu_measure,
    .refresh = refresh,
    .refresh_nodes = refresh_nodes,
    .forget = forget,
    .train = train,
    .forward = pass_forward,
    .loss = pass_loss,
    .backward = pass_backward,
    .value = value,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
    .profile = profile,
    .runs_in = runs_in,
    .way = name_way,
    .gemm = gemm,
    .bf16 = bf16,
};
