#include "core/backend/ref/ref.h"

#include <math.h>
#include <string.h>

#include "core/backend/bf16.h"
#include "core/backend/operation.h"
#include "core/base/memory.h"

const struct dpt_ref_op *const dpt_ref_ops[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_ref_##name,
    DPT_OPERATIONS(X)
#undef X
};

enum { NOWHERE = -1 };

/* Where a node's arrays lie in the memory of a micro-batch in flight, in words of 4 bytes; NOWHERE:
 * it has none. */
struct location {
    int64_t y, dy, saved;
};

/* The memory of a worker for each micro-batch that it may have in flight. */
struct flight {
    float *memory;
    struct dpt_spans *spans; /* the first one's; NULL: no profile is recorded */
};

struct program {
    struct dpt_program_spec spec;
    struct location *locations; /* of each node */
    int64_t words;              /* of a micro-batch in flight */
    int64_t scratch;            /* where it lies; the largest that any node needs */
    struct {
        int64_t x, weight, dy; /* likewise */
    } rounded;                 /* operands in bf16 */
    int per_worker, n_flights;
    struct flight *flights;
};

/* Takes n words for each sample of the micro-batch; words are counted in *end. NOWHERE if it is
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

/* Whether there is a place for a node's output: it is computed, or read by one that is. */
static bool is_there(const struct dpt_program_spec *spec, int32_t number)
{
    bool there = dpt_program_computes(spec, number);

    for (int32_t i = number + 1; i < spec->graph->n_nodes && !there; i++)
        for (int32_t k = 0; k < spec->graph->nodes[i].n_inputs; k++)
            there = there ||
                    (spec->graph->nodes[i].inputs[k] == number && dpt_program_computes(spec, i));
    return there;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Plans the memory for rounded operands of the products of computed nodes. */
static void plan_rounded(struct program *program)
{
    const struct dpt_program_spec *spec = &program->spec;
    int64_t x = 0, weight = 0, dy = 0;

    for (int32_t i = 0; i < spec->graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &spec->graph->nodes[i];

        if (spec->precision != DPT_PRECISION_BF16 || !dpt_bf16_rounds(node) ||
            !dpt_program_computes(spec, i))
            continue;
        x = larger(x, dpt_shape_size(&node->in));
        dy = larger(dy, spec->training ? dpt_shape_size(&node->out) : 0);
        weight = larger(weight, spec->graph->tensors[node->weight].count);
        if (node->divided)
            weight = larger(weight, dpt_shape_size(&node->out) *
                                        (node->own_inputs.last - node->own_inputs.first));
    }
    program->rounded.x = take(&program->words, spec->micro, x);
    program->rounded.weight = take(&program->words, 1, weight);
    program->rounded.dy = take(&program->words, spec->micro, dy);
}

/* All outputs stay until the next micro-batch: the backward pass and find_bad read them. */
static enum dpt_status plan(struct program *program, struct dpt_error *err)
{
    const struct dpt_program_spec *spec = &program->spec;
    int64_t scratch = 0;

    for (int32_t i = 0; i < spec->graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &spec->graph->nodes[i];
        const struct dpt_ref_op *op = dpt_ref_ops[node->op];
        const int64_t out = dpt_shape_size(&node->out);
        struct location *location = &program->locations[i];

        *location = (struct location){.dy = NOWHERE, .saved = NOWHERE};
        if (!is_there(spec, i))
            continue;
        *location = (struct location){
            .y = take(&program->words, spec->micro, out), .dy = NOWHERE, .saved = NOWHERE};
        if (spec->training && node->learns)
            location->dy = take(&program->words, spec->micro, out);
        if (spec->training && op->saved != NULL && dpt_program_computes(spec, i))
            location->saved = take(&program->words, spec->micro, (int64_t)op->saved(node));
        if (op->scratch != NULL && (int64_t)op->scratch(node) > scratch &&
            dpt_program_computes(spec, i))
            scratch = (int64_t)op->scratch(node);
        if (location->y == NOWHERE)
            return dpt_fail(err, DPT_RANK, "%s: more memory than there can be", node->name);
    }
    program->scratch = take(&program->words, 1, scratch);
    plan_rounded(program);
    return DPT_OK;
}

static void close_program(void *opened)
{
    struct program *program = opened;

    if (program == NULL)
        return;
    for (int i = 0; program->flights != NULL && i < program->n_flights; i++)
        dpt_free(program->flights[i].memory);
    dpt_free(program->flights);
    dpt_free(program->locations);
    dpt_free(program);
}

/* Everything but the workers' memory; to be closed even if it failed. */
static enum dpt_status open_plan(const struct dpt_program_spec *spec, struct program **opened,
                                 struct dpt_error *err)
{
    struct program *program = *opened = dpt_alloc(sizeof *program);

    if (program == NULL)
        return dpt_fail_memory(err, "the model", sizeof *program);
    program->spec = *spec;
    program->per_worker = spec->in_flight > 1 ? spec->in_flight : 1;
    program->n_flights = spec->threads * program->per_worker;
    program->locations = dpt_alloc_array((size_t)spec->graph->n_nodes, sizeof *program->locations);
    program->flights = dpt_alloc_array((size_t)program->n_flights, sizeof *program->flights);
    if (program->locations == NULL || program->flights == NULL)
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
    for (int i = 0; i < program->n_flights; i++) {
        struct flight *flight = &program->flights[i];

        DPT_TRY(DPT_ALLOCATE(flight->memory, (size_t)program->words, "activations", err));
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
    *sizes = (struct dpt_program_bytes){.values = program->n_flights * program->words *
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

static struct flight *flight_of(const struct program *program, int worker, int flight)
{
    return &program->flights[worker * program->per_worker + flight];
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

/* What passes over nodes have in common. */
struct run {
    const struct program *program;
    float *memory;
    struct dpt_spans *spans;
    const struct dpt_batch *batch;
    const float *params, *state;
    float *gradient; /* NULL in evaluation */
    bool add, training;
    const struct dpt_pass *pass; /* NULL: over all of them */
    int32_t first, last;
};

/* Over all nodes. */
static struct run run_of(const struct program *program, int worker, int flight,
                         const struct dpt_batch *batch, const float *params, float *gradient)
{
    return (struct run){
        .program = program,
        .memory = flight_of(program, worker, flight)->memory,
        .spans = flight_of(program, worker, 0)->spans,
        .batch = batch,
        .params = params,
        .state = params,
        .gradient = gradient,
        .training = gradient != NULL,
        .last = program->spec.graph->n_nodes,
    };
}

static const float *rounded(float *memory, int64_t n, const float *x)
{
    dpt_bf16_round(n, x, memory);
    return memory;
}

/* Rounds the input and the weights in bf16. */
static void round_input(const struct run *run, struct dpt_ref_call *call)
{
    const struct program *program = run->program;
    const int32_t weight = call->node->weight;

    if (program->spec.precision != DPT_PRECISION_BF16 || !dpt_bf16_rounds(call->node))
        return;
    call->columns = run->memory + program->rounded.weight;
    call->x = rounded(run->memory + program->rounded.x, (int64_t)(call->in * call->count), call->x);
    call->weight = rounded(call->columns, program->spec.graph->tensors[weight].count, call->weight);
}

static struct dpt_ref_call call_of(const struct run *run, int32_t index)
{
    const struct program *program = run->program;
    const struct dpt_graph *graph = program->spec.graph;
    const struct dpt_graph_node *node = &graph->nodes[index];
    const struct location *location = &program->locations[index];
    struct dpt_ref_call call = {
        .node = node,
        .batch = run->batch,
        .index = index,
        .training = run->training,
        .count = (size_t)run->batch->count,
        .in = (size_t)dpt_shape_size(&node->in),
        .other = (size_t)dpt_shape_size(&node->other),
        .out = (size_t)dpt_shape_size(&node->out),
        .x = run->batch->input,
        .y = run->memory + location->y,
        .scratch = run->memory + program->scratch,
        .pass = run->pass,
    };

    if (node->n_inputs > 0)
        call.x = run->memory + program->locations[node->inputs[0]].y;
    if (node->n_inputs > 1)
        call.x_other = run->memory + program->locations[node->inputs[1]].y;
    if (call.training)
        call.saved = at(run->memory, location->saved);
    call.weight = tensor_in(program, run->params, node->weight);
    call.bias = tensor_in(program, run->params, node->bias);
    call.mean = tensor_in(program, run->state, node->mean);
    call.variance = tensor_in(program, run->state, node->variance);
    call.dweight = sum_in(program, run->gradient, node->weight);
    call.dbias = sum_in(program, run->gradient, node->bias);
    call.means = sum_in(program, run->gradient, node->mean);
    call.variances = sum_in(program, run->gradient, node->variance);
    round_input(run, &call);
    return call;
}

/* Describes a node's backward pass. */
static struct dpt_ref_call back_call_of(const struct run *run, int32_t index)
{
    const struct location *locations = run->program->locations;
    struct dpt_ref_call call = call_of(run, index);

    call.dy = run->memory + locations[index].dy;
    if (call.columns != NULL)
        call.dy = rounded(run->memory + run->program->rounded.dy, (int64_t)(call.out * call.count),
                          call.dy);
    call.dx = at(run->memory, locations[call.node->inputs[0]].dy);
    if (call.node->n_inputs > 1)
        call.dx_other = at(run->memory, locations[call.node->inputs[1]].dy);
    return call;
}

static void mark(struct dpt_spans *spans, int what)
{
    if (spans != NULL)
        dpt_spans_mark(spans, what);
}

/* Writes zeros to the gradients of two tensors: unless they are added to; or, with `frozen`, of
 * those that do not learn, whose gradient is not wanted. */
static void clear(const struct run *run, int32_t a, int32_t b, bool frozen)
{
    const struct dpt_tensor *all = run->program->spec.graph->tensors;
    const int32_t tensors[] = {a, b};

    for (int k = 0; k < 2; k++)
        if (tensors[k] >= 0 && (frozen ? all[tensors[k]].frozen : !run->add))
            memset(sum_in(run->program, run->gradient, tensors[k]), 0,
                   (size_t)all[tensors[k]].count * sizeof(float));
}

/* Whether a pass over some nodes computes a part of a synchronized norm at this node. */
static bool is_norm(const struct run *run, int32_t index)
{
    const struct dpt_graph *graph = run->program->spec.graph;

    return run->pass != NULL && index > 0 && index < graph->n_nodes &&
           graph->nodes[index].whole_step;
}

/* A node that several others read collects the sum of what they pass back, so it starts at zero. */
static void clear_inputs(const struct run *run, const struct dpt_graph_node *node)
{
    for (int32_t k = 0; k < node->n_inputs; k++) {
        const struct dpt_graph_node *input = &run->program->spec.graph->nodes[node->inputs[k]];
        const size_t n = (size_t)dpt_shape_size(&input->out) * (size_t)run->batch->count;
        float *dy = at(run->memory, run->program->locations[node->inputs[k]].dy);

        if (dy != NULL)
            memset(dy, 0, n * sizeof *dy);
    }
}

static void run_forward(const struct run *run)
{
    for (int32_t i = run->first; i < run->last; i++) {
        const struct dpt_ref_call call = call_of(run, i);

        if (call.training)
            clear_inputs(run, call.node);
        if (call.training)
            clear(run, call.node->mean, call.node->variance, false);
        dpt_ref_compute(dpt_ref_ops[call.node->op], &call, false);
        mark(run->spans, dpt_span_node(i, DPT_PASS_FORWARD));
    }
    if (is_norm(run, run->last)) {
        const struct dpt_ref_call call = call_of(run, run->last);

        dpt_ref_ops[call.node->op]->sum_forward(&call);
        mark(run->spans, dpt_span_node(run->last, DPT_PASS_FORWARD));
    }
}

static void run_loss(const struct run *run, struct dpt_metric_sums *metric_sums)
{
    const struct program *program = run->program;
    const int32_t n = program->spec.graph->n_nodes;
    const struct location *last = &program->locations[n - 1];
    const int64_t outputs = dpt_shape_size(&program->spec.graph->nodes[n - 1].out);

    dpt_loss_rows(&program->spec.loss, run->batch, (int32_t)outputs, (size_t)outputs,
                  run->memory + last->y, run->training ? at(run->memory, last->dy) : NULL,
                  metric_sums);
    mark(run->spans, DPT_SPAN_LOSS);
}

/* The gradients of a synchronized norm's tensors come with its sums. */
static void run_backward(const struct run *run)
{
    const struct dpt_graph *graph = run->program->spec.graph;
    const struct location *locations = run->program->locations;

    for (int32_t i = run->last - 1; i >= run->first; i--) {
        if (!is_norm(run, i))
            clear(run, graph->nodes[i].weight, graph->nodes[i].bias, false);
        if (i > 0 && locations[i].dy != NOWHERE) {
            const struct dpt_ref_call call = back_call_of(run, i);

            dpt_ref_compute(dpt_ref_ops[call.node->op], &call, true);
            mark(run->spans, dpt_span_node(i, DPT_PASS_BACKWARD));
        }
        clear(run, graph->nodes[i].weight, graph->nodes[i].bias, true);
        if (run->pass == NULL && run->batch->passed != NULL)
            run->batch->passed(run->batch->arg, i);
    }
    if (is_norm(run, run->first - 1) && locations[run->first - 1].dy != NOWHERE) {
        const struct dpt_ref_call call = back_call_of(run, run->first - 1);

        clear(run, call.node->weight, call.node->bias, false);
        dpt_ref_ops[call.node->op]->sum_backward(&call);
        mark(run->spans, dpt_span_node(run->first - 1, DPT_PASS_WEIGHTS));
    }
    if (is_norm(run, run->first - 1))
        clear(run, graph->nodes[run->first - 1].weight, graph->nodes[run->first - 1].bias, true);
}

static enum dpt_status train(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct run run = run_of(opened, worker, 0, batch, params, gradient);

    (void)err;
    run.add = add;
    run_forward(&run);
    run_loss(&run, metric_sums);
    run_backward(&run);
    return DPT_OK;
}

static struct run run_of_pass(const struct program *program, int worker,
                              const struct dpt_pass *pass)
{
    struct run run =
        run_of(program, worker, pass->flight, pass->batch, pass->params, pass->gradient);

    run.state = pass->state;
    run.add = pass->add;
    run.training = !pass->infers;
    run.pass = pass;
    run.first = pass->first;
    run.last = pass->last;
    return run;
}

/* Finds the first value that a run has computed and that is not finite. */
static struct dpt_nonfinite find_bad(const struct run *run)
{
    const struct program *program = run->program;

    for (int32_t i = run->first; i < run->last; i++) {
        const int64_t n = dpt_shape_size(&program->spec.graph->nodes[i].out);
        const float *y = run->memory + program->locations[i].y;

        for (int64_t k = 0; k < n * run->batch->count; k++)
            if (!isfinite(y[k]))
                return (struct dpt_nonfinite){i, (int32_t)(k / n)};
    }
    return (struct dpt_nonfinite){-1, -1};
}

static enum dpt_status pass_forward(void *opened, int worker, const struct dpt_pass *pass,
                                    struct dpt_error *err)
{
    const struct run run = run_of_pass(opened, worker, pass);

    (void)err;
    run_forward(&run);
    if (pass->nonfinite != NULL && pass->nonfinite->node < 0)
        *pass->nonfinite = find_bad(&run);
    return DPT_OK;
}

static enum dpt_status pass_loss(void *opened, int worker, const struct dpt_pass *pass,
                                 struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const struct run run = run_of_pass(opened, worker, pass);

    (void)err;
    run_loss(&run, metric_sums);
    return DPT_OK;
}

static enum dpt_status pass_backward(void *opened, int worker, const struct dpt_pass *pass,
                                     struct dpt_error *err)
{
    const struct run run = run_of_pass(opened, worker, pass);

    (void)err;
    run_backward(&run);
    return DPT_OK;
}

static float *value(const void *opened, int worker, int flight, int32_t node, bool gradient,
                    size_t *floats)
{
    const struct program *program = opened;
    const struct dpt_graph *graph = program->spec.graph;
    const int32_t from = node < graph->n_nodes ? graph->nodes[node].inputs[0] : node - 1;
    const struct location *location = &program->locations[from];

    *floats = (size_t)(dpt_shape_size(&graph->nodes[from].out) * program->spec.micro);
    return at(flight_of(program, worker, flight)->memory, gradient ? location->dy : location->y);
}

static enum dpt_status infer(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const struct program *program = opened;
    const struct dpt_graph *graph = program->spec.graph;
    const int64_t n = dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
    const struct run run = run_of(program, worker, 0, batch, params, NULL);
    const float *y = run.memory + program->locations[graph->n_nodes - 1].y;

    (void)err;
    run_forward(&run);
    if (outputs != NULL)
        memcpy(outputs, y, (size_t)n * (size_t)batch->count * sizeof *outputs);
    if (metric_sums != NULL)
        dpt_loss_rows(&program->spec.loss, batch, (int32_t)n, (size_t)n, y, NULL, metric_sums);
    return DPT_OK;
}

static enum dpt_status find_nonfinite(void *opened, int worker, const struct dpt_batch *batch,
                                      const float *params, struct dpt_nonfinite *bad,
                                      struct dpt_error *err)
{
    const struct run run = run_of(opened, worker, 0, batch, params, NULL);

    (void)err;
    run_forward(&run);
    *bad = find_bad(&run);
    return DPT_OK;
}

static void profile(void *opened, int worker, struct dpt_spans *spans)
{
    flight_of(opened, worker, 0)->spans = spans;
}

/* All products are fp32. */
static enum dpt_status gemm(enum dpt_precision precision, int64_t m, int64_t n, int64_t k,
                            const float *a, const float *b, float *c, struct dpt_error *err)
{
    (void)precision, (void)err;
    memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
    dpt_ref_matmul_add((size_t)m, (size_t)n, (size_t)k, (struct dpt_ref_matrix){a, (size_t)k, 1},
                       (struct dpt_ref_matrix){b, (size_t)n, 1}, c, (size_t)n);
    return DPT_OK;
}

static const char *bf16(void)
{
    return NULL;
}

const struct dpt_backend dpt_backend_ref = {
    .name = "ref",
    .summary = "plain C loops, any shape: for tests",
    .precisions = 1u << DPT_PRECISION_FP32 | 1u << DPT_PRECISION_BF16,
    .describe = dpt_ref_describe,
    .uses = dpt_ref_describe,
    .numerics = 1,
    .isa = dpt_isa_here,
    .open = open_program,
    .close = close_program,
    .measure = measure,
    .refresh = refresh,
    .train = train,
    .forward = pass_forward,
    .loss = pass_loss,
    .backward = pass_backward,
    .value = value,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
    .profile = profile,
    .gemm = gemm,
    .bf16 = bf16,
};
