#include "core/backend/ref/ref.h"

#include <math.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"

const struct dpt_ref_op *const dpt_ref_ops[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_ref_##name,
    DPT_OPERATIONS(X)
#undef X
};

enum { NOWHERE = -1 };

/* Where a node's arrays lie in a worker's memory, in words of 4 bytes; NOWHERE: it has none. */
struct location {
    int64_t y, dy, saved;
};

struct worker {
    float *memory;
    struct dpt_spans *spans; /* NULL: nobody asks where the time goes */
};

struct program {
    struct dpt_program_spec spec;
    struct location *locations; /* of each node */
    int64_t words;              /* of a worker's memory */
    int64_t scratch;            /* where it lies; the largest that any node needs */
    struct worker *workers;
};

/* Takes n words for each sample of the micro-batch; words are counted in *end. NOWHERE where it is
 * more than can be counted. */
static int64_t take(int64_t *end, int64_t samples, int64_t n)
{
    const int64_t start = *end;
    int64_t words;

    if (__builtin_mul_overflow(n, samples, &words) || words > INT64_MAX / 16 - start)
        return NOWHERE;
    *end = start + (int64_t)dpt_round_up((size_t)words, sizeof(float));
    return start;
}

/* All outputs stay until the next micro-batch: the backward pass and find_nonfinite read them. */
static enum dpt_status plan(struct program *program, struct dpt_error *err)
{
    const struct dpt_program_spec *spec = &program->spec;
    int64_t scratch = 0;

    for (int32_t i = 0; i < spec->graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &spec->graph->nodes[i];
        const struct dpt_ref_op *op = dpt_ref_ops[node->op];
        const int64_t out = dpt_shape_size(&node->out);
        struct location *location = &program->locations[i];

        *location = (struct location){
            .y = take(&program->words, spec->micro, out), .dy = NOWHERE, .saved = NOWHERE};
        if (spec->training && node->learns)
            location->dy = take(&program->words, spec->micro, out);
        if (spec->training && op->saved != NULL)
            location->saved = take(&program->words, spec->micro, (int64_t)op->saved(node));
        if (op->scratch != NULL && (int64_t)op->scratch(node) > scratch)
            scratch = (int64_t)op->scratch(node);
        if (location->y == NOWHERE)
            return dpt_fail(err, DPT_RANK, "%s: more memory than there can be", node->name);
    }
    program->scratch = take(&program->words, 1, scratch);
    return DPT_OK;
}

static void close_program(void *opened)
{
    struct program *program = opened;

    if (program == NULL)
        return;
    for (int i = 0; program->workers != NULL && i < program->spec.threads; i++)
        dpt_free(program->workers[i].memory);
    dpt_free(program->workers);
    dpt_free(program->locations);
    dpt_free(program);
}

/* Everything but the workers' memory; to be closed also where it failed. */
static enum dpt_status open_plan(const struct dpt_program_spec *spec, struct program **opened,
                                 struct dpt_error *err)
{
    struct program *program = *opened = dpt_alloc(sizeof *program);

    if (program == NULL)
        return dpt_fail_memory(err, "the model", sizeof *program);
    program->spec = *spec;
    program->locations = dpt_alloc_array((size_t)spec->graph->n_nodes, sizeof *program->locations);
    program->workers = dpt_alloc_array((size_t)spec->threads, sizeof *program->workers);
    if (program->locations == NULL || program->workers == NULL)
        return dpt_fail_memory(err, "the model", sizeof *program);
    return plan(program, err);
}

static enum dpt_status open_program(const struct dpt_program_spec *spec, void **opened,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct program *program = NULL;

    *opened = NULL;
    DPT_TRY(open_plan(spec, &program, err));
    for (int i = 0; i < spec->threads; i++) {
        program->workers[i].memory = dpt_alloc_array((size_t)program->words, sizeof(float));
        if (program->workers[i].memory == NULL)
            DPT_TRY(dpt_fail_memory(err, "activations", 4.0 * (double)program->words));
    }
    *opened = program;
    program = NULL;
out:
    close_program(program);
    return status;
}

static enum dpt_status measure(const struct dpt_program_spec *spec, struct dpt_program_bytes *sizes,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct program *program = NULL;

    DPT_TRY(open_plan(spec, &program, err));
    *sizes = (struct dpt_program_bytes){.values = spec->threads * program->words *
                                                  (int64_t)sizeof(float)};
out:
    close_program(program);
    return status;
}

/* Nothing here is derived from the parameters. */
static enum dpt_status refresh(void *opened, int worker, const float *params, struct dpt_error *err)
{
    (void)opened, (void)worker, (void)params, (void)err;
    return DPT_OK;
}

static float *at(float *memory, int64_t location)
{
    return location == NOWHERE ? NULL : memory + location;
}

/* A tensor in an arena; NULL: there is no arena, or -1 for no tensor. */
static const float *tensor_in(const struct program *program, const float *arena, int32_t tensor)
{
    return arena == NULL || tensor < 0 ? NULL : arena + program->spec.graph->tensors[tensor].offset;
}

static float *sum_in(const struct program *program, float *arena, int32_t tensor)
{
    return (float *)(uintptr_t)tensor_in(program, arena, tensor);
}

/* params is read, gradient (NULL in evaluation) is added to. */
static struct dpt_ref_call call_of(const struct program *program, int32_t index, float *memory,
                                   const struct dpt_batch *batch, const float *params,
                                   float *gradient)
{
    const struct dpt_graph *graph = program->spec.graph;
    const struct dpt_graph_node *node = &graph->nodes[index];
    const struct location *location = &program->locations[index];
    struct dpt_ref_call call = {
        .node = node,
        .batch = batch,
        .index = index,
        .count = (size_t)batch->count,
        .in = (size_t)dpt_shape_size(&node->in),
        .other = (size_t)dpt_shape_size(&node->other),
        .out = (size_t)dpt_shape_size(&node->out),
        .x = batch->input,
        .y = memory + location->y,
        .scratch = memory + program->scratch,
    };

    if (node->n_inputs > 0)
        call.x = memory + program->locations[node->inputs[0]].y;
    if (node->n_inputs > 1)
        call.x_other = memory + program->locations[node->inputs[1]].y;
    call.weight = tensor_in(program, params, node->weight);
    call.bias = tensor_in(program, params, node->bias);
    call.mean = tensor_in(program, params, node->mean);
    call.variance = tensor_in(program, params, node->variance);
    call.dweight = sum_in(program, gradient, node->weight);
    call.dbias = sum_in(program, gradient, node->bias);
    call.means = sum_in(program, gradient, node->mean);
    call.variances = sum_in(program, gradient, node->variance);
    return call;
}

static void mark(struct dpt_spans *spans, int what)
{
    if (spans != NULL)
        dpt_spans_mark(spans, what);
}

/* gradient: NULL in evaluation. */
static void run_forward(const struct program *program, int worker, const struct dpt_batch *batch,
                        const float *params, float *gradient)
{
    const bool training = gradient != NULL;
    float *memory = program->workers[worker].memory;

    for (int32_t i = 0; i < program->spec.graph->n_nodes; i++) {
        struct dpt_ref_call call = call_of(program, i, memory, batch, params, gradient);

        call.training = training;
        if (training)
            call.saved = at(memory, program->locations[i].saved);
        dpt_ref_ops[call.node->op]->forward(&call);
        mark(program->workers[worker].spans, dpt_span_node(i, DPT_PASS_FORWARD));
    }
}

/* A node that several others read collects the sum of what they pass back, so all but the last
 * start at zero. */
static void run_backward(const struct program *program, int worker, const struct dpt_batch *batch,
                         const float *params, float *gradient)
{
    const struct dpt_graph *graph = program->spec.graph;
    float *memory = program->workers[worker].memory;

    for (int32_t i = 0; i + 1 < graph->n_nodes; i++) {
        const size_t n = (size_t)dpt_shape_size(&graph->nodes[i].out) * (size_t)batch->count;

        if (program->locations[i].dy != NOWHERE)
            memset(memory + program->locations[i].dy, 0, n * sizeof *memory);
    }
    for (int32_t i = graph->n_nodes - 1; i > 0; i--) {
        struct dpt_ref_call call = call_of(program, i, memory, batch, params, gradient);

        if (program->locations[i].dy == NOWHERE)
            continue;
        call.training = true;
        call.dy = memory + program->locations[i].dy;
        call.dx = at(memory, program->locations[call.node->inputs[0]].dy);
        if (call.node->n_inputs > 1)
            call.dx_other = at(memory, program->locations[call.node->inputs[1]].dy);
        call.saved = at(memory, program->locations[i].saved);
        dpt_ref_ops[call.node->op]->backward(&call);
        mark(program->workers[worker].spans, dpt_span_node(i, DPT_PASS_BACKWARD));
    }
}

static enum dpt_status train(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const struct program *program = opened;
    const struct dpt_graph *graph = program->spec.graph;
    const struct location *last = &program->locations[graph->n_nodes - 1];
    const int64_t outputs = dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
    float *memory = program->workers[worker].memory;

    (void)err;
    for (int32_t i = 0; !add && i < graph->n_tensors; i++)
        memset(gradient + graph->tensors[i].offset, 0,
               (size_t)graph->tensors[i].count * sizeof *gradient);
    run_forward(program, worker, batch, params, gradient);
    dpt_loss_rows(&program->spec.loss, batch, (int32_t)outputs, (size_t)outputs, memory + last->y,
                  at(memory, last->dy), metric_sums);
    mark(program->workers[worker].spans, DPT_SPAN_LOSS);
    run_backward(program, worker, batch, params, gradient);
    return DPT_OK;
}

static enum dpt_status infer(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const struct program *program = opened;
    const struct dpt_graph *graph = program->spec.graph;
    const int64_t n = dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
    float *memory = program->workers[worker].memory;
    const float *y = memory + program->locations[graph->n_nodes - 1].y;

    (void)err;
    run_forward(program, worker, batch, params, NULL);
    if (outputs != NULL)
        memcpy(outputs, y, (size_t)n * (size_t)batch->count * sizeof *outputs);
    if (metric_sums != NULL)
        dpt_loss_rows(&program->spec.loss, batch, (int32_t)n, (size_t)n, y, NULL, metric_sums);
    return DPT_OK;
}

static enum dpt_status find_nonfinite(void *opened, int worker, const struct dpt_batch *batch,
                                      const float *params, int32_t *node, int32_t *position,
                                      struct dpt_error *err)
{
    const struct program *program = opened;

    (void)err;
    *node = -1;
    run_forward(program, worker, batch, params, NULL);
    for (int32_t i = 0; i < program->spec.graph->n_nodes; i++) {
        const int64_t n = dpt_shape_size(&program->spec.graph->nodes[i].out);
        const float *y = program->workers[worker].memory + program->locations[i].y;

        for (int64_t k = 0; k < n * batch->count; k++) {
            if (!isfinite(y[k])) {
                *node = i;
                *position = (int32_t)(k / n);
                return DPT_OK;
            }
        }
    }
    return DPT_OK;
}

static void profile(void *opened, int worker, struct dpt_spans *spans)
{
    ((struct program *)opened)->workers[worker].spans = spans;
}

static enum dpt_status gemm(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                            float *c, struct dpt_error *err)
{
    (void)err;
    memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
    dpt_ref_matmul_add((size_t)m, (size_t)n, (size_t)k, (struct dpt_ref_matrix){a, (size_t)k, 1},
                       (struct dpt_ref_matrix){b, (size_t)n, 1}, c, (size_t)n);
    return DPT_OK;
}

const struct dpt_backend dpt_backend_ref = {
    .name = "ref",
    .summary = "plain C loops, any shape: for tests, and where there is no library",
    .precisions = 1u << DPT_PRECISION_FP32,
    .describe = dpt_ref_describe,
    .uses = dpt_ref_describe,
    .isa = dpt_isa_here,
    .open = open_program,
    .close = close_program,
    .measure = measure,
    .refresh = refresh,
    .train = train,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
    .profile = profile,
    .gemm = gemm,
};
