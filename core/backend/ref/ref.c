#include "core/backend/ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/list.h"
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
    bool gradient; /* parameters stand here or before: a gradient of its output is wanted */
};

struct program {
    struct dpt_program_spec spec;
    struct location *locations; /* of each node */
    int64_t words;              /* of a worker's memory */
    int64_t scratch;            /* where it lies; the largest that any node needs */
    float **workers;            /* memory of each */
    struct dpt_spans **spans;   /* of each worker; NULL: nobody asks where the time goes */
};

static bool takes_gradient(const struct dpt_graph *graph, const struct location *locations,
                           int32_t i)
{
    const struct dpt_graph_node *node = &graph->nodes[i];

    if (node->weight >= 0 || node->bias >= 0)
        return true;
    for (int32_t k = 0; k < node->n_inputs; k++) {
        if (locations[node->inputs[k]].gradient)
            return true;
    }
    return false;
}

/* Takes n words for each sample of the micro-batch; words are counted in *end. NOWHERE where it is
 * more than can be counted. */
static int64_t take(int64_t *end, int64_t samples, int64_t n)
{
    const int64_t start = *end;
    int64_t words;

    if (__builtin_mul_overflow(n, samples, &words) || words > INT64_MAX / 16 - start)
        return NOWHERE;
    *end = start + (words + DPT_TENSOR_ALIGN - 1) / DPT_TENSOR_ALIGN * DPT_TENSOR_ALIGN;
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

        *location =
            (struct location){.y = take(&program->words, spec->micro, out),
                              .dy = NOWHERE,
                              .saved = NOWHERE,
                              .gradient = takes_gradient(spec->graph, program->locations, i)};
        if (spec->training && location->gradient)
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

/* What the loops of this backend take for granted. */
static enum dpt_status check(const struct dpt_graph *graph, struct dpt_error *err)
{
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const enum dpt_status status = dpt_operation_check(node, err);

        if (status != DPT_OK)
            return status;
        if (node->n_inputs > 1)
            return dpt_fail(err, DPT_BAD_JOB, "%s: backend ref has no layer of %d inputs",
                            node->name, node->n_inputs);
    }
    return DPT_OK;
}

static void close_program(void *opened)
{
    struct program *program = opened;

    if (program == NULL)
        return;
    for (int i = 0; program->workers != NULL && i < program->spec.threads; i++)
        dpt_free(program->workers[i]);
    free(program->workers);
    free(program->spans);
    free(program->locations);
    free(program);
}

static enum dpt_status open_program(const struct dpt_program_spec *spec, void **opened,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct program *program = calloc(1, sizeof *program);

    *opened = NULL;
    if (program == NULL)
        return dpt_fail_memory(err, "the model", sizeof *program);
    program->spec = *spec;
    DPT_TRY(check(spec->graph, err));
    program->locations = calloc((size_t)spec->graph->n_nodes, sizeof *program->locations);
    program->workers = calloc((size_t)spec->threads, sizeof *program->workers);
    program->spans = calloc((size_t)spec->threads, sizeof *program->spans);
    if (program->locations == NULL || program->workers == NULL || program->spans == NULL) {
        status = dpt_fail_memory(err, "the model", sizeof *program);
        goto out;
    }
    DPT_TRY(plan(program, err));
    for (int i = 0; i < spec->threads; i++) {
        program->workers[i] = dpt_alloc_array((size_t)program->words, sizeof(float));
        if (program->workers[i] == NULL) {
            status = dpt_fail_memory(err, "activations", 4.0 * (double)program->words);
            goto out;
        }
    }
    *opened = program;
out:
    if (status != DPT_OK)
        close_program(program);
    return status;
}

static int64_t bytes(const void *opened)
{
    const struct program *program = opened;
    const int64_t nodes = program->spec.graph->n_nodes;

    return program->spec.threads * program->words * (int64_t)sizeof(float) +
           nodes * (int64_t)sizeof *program->locations;
}

static enum dpt_status measure(const struct dpt_program_spec *spec, struct dpt_program_bytes *sizes,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_program_spec one = *spec;
    void *opened = NULL;

    one.threads = 0; /* everything but the workers */
    DPT_TRY(open_program(&one, &opened, err));
    *sizes = (struct dpt_program_bytes){
        .values = spec->threads * ((struct program *)opened)->words * (int64_t)sizeof(float)};
out:
    close_program(opened);
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

/* params is read, gradient (NULL in a forward pass) is added to. */
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
        .out = (size_t)dpt_shape_size(&node->out),
        .y = memory + location->y,
        .scratch = memory + program->scratch,
    };

    if (node->n_inputs > 0)
        call.x = memory + program->locations[node->inputs[0]].y;
    if (node->weight >= 0) {
        call.weight = params + graph->tensors[node->weight].offset;
        call.dweight = gradient != NULL ? gradient + graph->tensors[node->weight].offset : NULL;
    }
    if (node->bias >= 0) {
        call.bias = params + graph->tensors[node->bias].offset;
        call.dbias = gradient != NULL ? gradient + graph->tensors[node->bias].offset : NULL;
    }
    return call;
}

static void mark(struct dpt_spans *spans, int what)
{
    if (spans != NULL)
        dpt_spans_mark(spans, what);
}

static void run_forward(const struct program *program, int worker, bool training,
                        const struct dpt_batch *batch, const float *params)
{
    float *memory = program->workers[worker];

    for (int32_t i = 0; i < program->spec.graph->n_nodes; i++) {
        struct dpt_ref_call call = call_of(program, i, memory, batch, params, NULL);

        call.training = training;
        if (training)
            call.saved = at(memory, program->locations[i].saved);
        dpt_ref_ops[call.node->op]->forward(&call);
        mark(program->spans[worker], dpt_span_node(i, DPT_PASS_FORWARD));
    }
}

/* A node that several others read collects the sum of what they pass back, so all but the last
 * start at zero. */
static void run_backward(const struct program *program, int worker, const struct dpt_batch *batch,
                         const float *params, float *gradient)
{
    const struct dpt_graph *graph = program->spec.graph;
    float *memory = program->workers[worker];

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
        call.saved = at(memory, program->locations[i].saved);
        dpt_ref_ops[call.node->op]->backward(&call);
        mark(program->spans[worker], dpt_span_node(i, DPT_PASS_BACKWARD));
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
    float *memory = program->workers[worker];

    (void)err;
    for (int32_t i = 0; !add && i < graph->n_tensors; i++)
        memset(gradient + graph->tensors[i].offset, 0,
               (size_t)graph->tensors[i].count * sizeof *gradient);
    run_forward(program, worker, true, batch, params);
    dpt_loss_rows(&program->spec.loss, batch, (int32_t)outputs, (size_t)outputs, memory + last->y,
                  at(memory, last->dy), metric_sums);
    mark(program->spans[worker], DPT_SPAN_LOSS);
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
    float *memory = program->workers[worker];
    const float *y = memory + program->locations[graph->n_nodes - 1].y;

    (void)err;
    run_forward(program, worker, false, batch, params);
    if (outputs != NULL)
        memcpy(outputs, y, (size_t)n * (size_t)batch->count * sizeof *outputs);
    if (metric_sums != NULL)
        dpt_loss_rows(&program->spec.loss, batch, (int32_t)n, (size_t)n, y, NULL, metric_sums);
    return DPT_OK;
}

static int32_t find_nonfinite(void *opened, int worker, int32_t count, int32_t *position)
{
    const struct program *program = opened;

    for (int32_t i = 0; i < program->spec.graph->n_nodes; i++) {
        const int64_t n = dpt_shape_size(&program->spec.graph->nodes[i].out);
        const float *y = program->workers[worker] + program->locations[i].y;

        for (int64_t k = 0; k < n * count; k++) {
            if (!isfinite(y[k])) {
                *position = (int32_t)(k / n);
                return i;
            }
        }
    }
    return -1;
}

static void profile(void *opened, int worker, struct dpt_spans *spans)
{
    ((struct program *)opened)->spans[worker] = spans;
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
    .bytes = bytes,
    .measure = measure,
    .refresh = refresh,
    .train = train,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
    .profile = profile,
    .gemm = gemm,
};
