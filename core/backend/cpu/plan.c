#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/program.h"
#include "core/backend/operation.h"
#include "core/base/memory.h"

enum { PER_NODE = 8 };

const struct dpt_cpu_op *const dpt_cpu_ops[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_cpu_##name,
    DPT_OPERATIONS(X)
#undef X
};

/* --- buffers and calls ------------------------------------------------------------------------ */

int dpt_cpu_reserve(struct dpt_cpu_program *program, int64_t floats)
{
    program->floats[program->n_buffers] = floats;
    return program->n_buffers++;
}

/* The idle buffer that has to grow least, else the smallest that is large enough. */
int dpt_cpu_take(struct dpt_cpu_program *program, int64_t floats)
{
    int best = DPT_CPU_NONE;

    for (int i = 0; i < program->n_buffers; i++) {
        const int64_t have = program->floats[i];
        const int64_t best_has = best == DPT_CPU_NONE ? 0 : program->floats[best];

        if (program->idle[i] &&
            (best == DPT_CPU_NONE ||
             (have < floats ? have > best_has : best_has < floats || have < best_has)))
            best = i;
    }
    if (best == DPT_CPU_NONE)
        return dpt_cpu_reserve(program, floats);
    if (program->floats[best] < floats)
        program->floats[best] = floats;
    program->idle[best] = false;
    return best;
}

void dpt_cpu_give(struct dpt_cpu_program *program, int buffer)
{
    program->idle[buffer] = true;
}

void dpt_cpu_want_scratch(struct dpt_cpu_program *program, int64_t floats)
{
    if (floats > program->scratch)
        program->scratch = floats;
}

int dpt_cpu_call(struct dpt_cpu_program *program, struct dpt_kernel *kernel, int x, int y, int w,
                 int b)
{
    program->calls[program->n_calls] = (struct dpt_cpu_call){kernel, {x, y, w, b}};
    dpt_cpu_want_scratch(program, dpt_kernel_scratch(kernel));
    return program->n_calls++;
}

/* --- layouts ---------------------------------------------------------------------------------- */

/* Whether activations of this shape lie the same way in both. */
static bool same_memory(const struct dpt_shape *s, enum dpt_layout a, enum dpt_layout b)
{
    const int32_t block_a = dpt_layout_block(a, s->c), block_b = dpt_layout_block(b, s->c);

    if (block_a == block_b)
        return true;
    return s->h == 1 && s->w == 1 && s->c % block_a == 0 && s->c % block_b == 0;
}

static int64_t floats_of(const struct dpt_cpu_program *program, const struct dpt_shape *s,
                         enum dpt_layout layout)
{
    return program->spec.micro * dpt_layout_floats(layout, s->c, s->h, s->w);
}

enum dpt_layout dpt_cpu_input_layout(const struct dpt_cpu_program *program,
                                     const struct dpt_cpu_node *node)
{
    return program->nodes[node->input].y_layout;
}

/* A call that moves activations of this shape from one layout and buffer into others. */
static enum dpt_status plan_reorder(struct dpt_cpu_program *program, const struct dpt_shape *s,
                                    enum dpt_layout from, int x, enum dpt_layout to, int y,
                                    int *call, struct dpt_error *err)
{
    const int32_t dims[4] = {program->spec.micro, s->c, s->h, s->w};
    enum dpt_status status = DPT_OK;
    struct dpt_kernel *kernel;

    DPT_TRY(dpt_kernel_reorder(program->dnnl, dims, from, to, &kernel, err));
    *call = dpt_cpu_call(program, kernel, x, y, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

enum dpt_status dpt_cpu_read(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                             enum dpt_layout layout, struct dpt_error *err)
{
    const struct dpt_cpu_node *input = &program->nodes[node->input];
    /* A flatten's consumer sees a vector where its producer wrote planes: both are canonical. */
    const struct dpt_shape *shape = node->op->moves_nothing ? &input->out : &node->in;
    enum dpt_status status = DPT_OK;

    node->x_layout = layout;
    node->x_floats = floats_of(program, shape, layout);
    if (same_memory(shape, input->y_layout, layout)) {
        node->x = input->y;
    } else {
        node->x = dpt_cpu_reserve(program, node->x_floats);
        DPT_TRY(plan_reorder(program, shape, input->y_layout, input->y, layout, node->x,
                             &node->reorder, err));
    }
out:
    return status;
}

void dpt_cpu_write_nowhere(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                           enum dpt_layout layout)
{
    node->y_layout = layout;
    node->y_floats = floats_of(program, &node->out, layout);
}

void dpt_cpu_write(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                   enum dpt_layout layout)
{
    dpt_cpu_write_nowhere(program, node, layout);
    node->y = dpt_cpu_reserve(program, node->y_floats);
}

void dpt_cpu_write_over(struct dpt_cpu_node *node)
{
    node->y_layout = node->x_layout;
    node->y_floats = node->x_floats;
    node->y = node->x;
}

bool dpt_cpu_may_overwrite(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_node *before = &program->nodes[node->input];

    /* Back over all nodes whose output lies in this same buffer. */
    while (!before->op->keeps_output) {
        if (before->y != before->x)
            return true;
        before = &program->nodes[before->input];
    }
    return false;
}

/* --- the graph -------------------------------------------------------------------------------- */

static enum dpt_status read_node(struct dpt_cpu_program *program, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *from = &program->spec.graph->nodes[i];
    struct dpt_cpu_node *node = &program->nodes[i];

    node->graph = from;
    node->name = from->name;
    node->op = dpt_cpu_ops[from->op];
    node->in = from->in;
    node->out = from->out;
    if (i == 0)
        return DPT_OK;
    if (from->n_inputs != 1)
        return dpt_fail(err, DPT_BAD_JOB, "%s: backend cpu has no such layer of %d inputs",
                        from->name, (int)from->n_inputs);
    node->input = from->inputs[0];
    node->wants_dx = program->nodes[node->input].wants_dy;
    node->wants_dy = node->wants_dx || from->weight >= 0 || from->bias >= 0;
    program->nodes[node->input].consumers++;
    return dpt_operation_check(from, err);
}

/* The outputs are wanted in canonical layout, whatever the last node is. */
static void append_flatten(struct dpt_cpu_program *program)
{
    const int32_t last = program->n_nodes - 2;
    struct dpt_cpu_node *node = &program->nodes[last + 1], *input = &program->nodes[last];

    node->op = &dpt_cpu_flatten;
    node->name = "outputs";
    node->number = last;
    node->input = last;
    node->in = input->out;
    node->out = (struct dpt_shape){(int32_t)dpt_shape_size(&input->out), 1, 1, true};
    node->wants_dx = node->wants_dy = input->wants_dy;
    input->consumers++;
}

/* relu(max(window)) = max(relu(window)), on a quarter of the elements, and neither pass of the relu
 * itself is left. */
static void join_relu(struct dpt_cpu_program *program, struct dpt_cpu_node *pool)
{
    struct dpt_cpu_node *relu = &program->nodes[pool->input];

    if (pool->op != &dpt_cpu_maxpool || relu->op != &dpt_cpu_relu)
        return;
    relu->skipped = true;
    pool->relu = true;
    pool->input = relu->input;
}

/* Behind a max-pool most gradients of a convolution are zeros: it works on lists of the others. */
static void join_pool(struct dpt_cpu_program *program, struct dpt_cpu_node *pool)
{
    struct dpt_cpu_node *conv = &program->nodes[pool->input];

    if (pool->op != &dpt_cpu_maxpool || conv->op != &dpt_cpu_conv)
        return;
    for (int i = 0; i < 2; i++) {
        const struct dpt_window *w = &pool->graph->window;

        if (w->kernel[i] != 2 || w->stride[i] != 2 || w->before[i] != 0 || w->after[i] != 0)
            return;
    }
    conv->pool = pool;
    pool->listed = program->spec.training && dpt_cpu_conv_lists(conv);
}

static enum dpt_status read_graph(struct dpt_cpu_program *program, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int32_t i = 0; i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        node->number = i;
        node->x = node->y = node->dx = node->dy = DPT_CPU_NONE;
        node->reorder = node->reorder_back = node->argmax = DPT_CPU_NONE;
        if (i < program->n_nodes - 1)
            DPT_TRY(read_node(program, i, err));
    }
    append_flatten(program);
    for (int32_t i = 1; i < program->n_nodes; i++) {
        const struct dpt_cpu_node *before = &program->nodes[i - 1];

        if (before->consumers != 1) {
            status =
                dpt_fail(err, DPT_BAD_JOB, "%s: its output is read by %d layers; one it must be",
                         before->name, (int)before->consumers);
            goto out;
        }
        join_relu(program, &program->nodes[i]);
        join_pool(program, &program->nodes[i]);
    }
out:
    return status;
}

bool dpt_cpu_teams(const struct dpt_graph *graph)
{
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        if (!dpt_cpu_ops[graph->nodes[i].op]->shares)
            return false;
    }
    return true;
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Where a node's dx goes, and how it comes from there into the gradient of the input's output. */
static enum dpt_status place_gradient(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                      struct dpt_error *err)
{
    struct dpt_cpu_node *input = &program->nodes[node->input];
    const bool in_place = node->op->pointwise || node->op->moves_nothing || node->listed;
    enum dpt_status status = DPT_OK;

    node->dx = in_place ? node->dy : dpt_cpu_take(program, node->x_floats);
    input->dy = node->dx;
    if (node->reorder != DPT_CPU_NONE) {
        input->dy = dpt_cpu_take(program, input->y_floats);
        DPT_TRY(plan_reorder(program, node->op->moves_nothing ? &input->out : &node->in,
                             node->x_layout, node->dx, input->y_layout, input->dy,
                             &node->reorder_back, err));
    }
out:
    return status;
}

/* What nobody reads after this node's backward pass. */
static void give_back(struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    const int still_read = program->nodes[node->input].dy;

    if (node->dy != still_read)
        dpt_cpu_give(program, node->dy);
    if (node->wants_dx && node->dx != node->dy && node->dx != still_read)
        dpt_cpu_give(program, node->dx);
}

static enum dpt_status plan_gradients(struct dpt_cpu_program *program, struct dpt_error *err)
{
    struct dpt_cpu_node *last = &program->nodes[program->n_nodes - 1];
    enum dpt_status status = DPT_OK;

    last->dy = dpt_cpu_take(program, last->y_floats);
    for (int32_t i = program->n_nodes - 1; i > 0; i--) {
        struct dpt_cpu_node *node = &program->nodes[i];

        if (node->skipped || !node->wants_dy)
            continue;
        if (node->wants_dx)
            DPT_TRY(place_gradient(program, node, err));
        if (node->op->plan_backward != NULL)
            DPT_TRY(node->op->plan_backward(program, node, err));
        give_back(program, node);
    }
out:
    return status;
}

/* --- workers ---------------------------------------------------------------------------------- */

static enum dpt_status bind_calls(struct dpt_cpu_program *program, int number, float *scratch,
                                  struct dpt_error *err)
{
    struct dpt_cpu_worker *worker = &program->workers[number];
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < program->n_calls; i++) {
        const struct dpt_cpu_call *call = &program->calls[i];

        DPT_TRY(
            dpt_call_open(&worker->calls[i], program->dnnl, number, call->kernel, scratch, err));
        for (int role = 0; role < DPT_ROLE_COUNT; role++) {
            if (call->buffers[role] > DPT_CPU_INPUT)
                dpt_call_set(worker->calls[i], (enum dpt_role)role,
                             worker->buffers[call->buffers[role]]);
        }
    }
out:
    return status;
}

/* Floats of all buffers of a worker. */
static size_t buffer_floats(const struct dpt_cpu_program *program)
{
    size_t total = 0;

    for (int i = 1; i < program->n_buffers; i++)
        total += dpt_round_up((size_t)program->floats[i], sizeof(float));
    return total;
}

static enum dpt_status open_worker(struct dpt_cpu_program *program, int number,
                                   struct dpt_error *err)
{
    struct dpt_cpu_worker *worker = &program->workers[number];
    const size_t scratch = dpt_round_up((size_t)program->scratch, sizeof(float));
    const size_t total = scratch + buffer_floats(program);
    float *at;

    worker->memory = dpt_alloc_array(total, sizeof *worker->memory);
    worker->buffers = dpt_alloc_array((size_t)program->n_buffers, sizeof *worker->buffers);
    worker->calls = dpt_alloc_array((size_t)program->n_calls, sizeof *worker->calls);
    worker->metric_sums_of = dpt_alloc_array(
        (size_t)dpt_cpu_loss_chunks(program, program->spec.micro), sizeof *worker->metric_sums_of);
    if (worker->memory == NULL || worker->buffers == NULL || worker->calls == NULL ||
        worker->metric_sums_of == NULL)
        return dpt_fail_memory(err, "activations", (double)total * sizeof *worker->memory);
    program->bytes += (int64_t)(total * sizeof *worker->memory);
    at = worker->memory + scratch;
    for (int i = 1; i < program->n_buffers; i++) {
        worker->buffers[i] = at;
        at += dpt_round_up((size_t)program->floats[i], sizeof(float));
    }
    return bind_calls(program, number, worker->memory, err);
}

static void close_worker(struct dpt_cpu_program *program, struct dpt_cpu_worker *worker)
{
    for (int i = 0; worker->calls != NULL && i < program->n_calls; i++)
        dpt_call_close(worker->calls[i]);
    dpt_free(worker->calls);
    dpt_free(worker->metric_sums_of);
    dpt_free(worker->buffers);
    dpt_free(worker->memory);
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum dpt_status reserve_tables(struct dpt_cpu_program *program, struct dpt_error *err)
{
    const size_t nodes = (size_t)program->n_nodes, rows = PER_NODE * nodes;

    program->nodes = dpt_alloc_array(nodes, sizeof *program->nodes);
    program->floats = dpt_alloc_array(rows, sizeof *program->floats);
    program->idle = dpt_alloc_array(rows, sizeof *program->idle);
    program->calls = dpt_alloc_array(rows, sizeof *program->calls);
    program->workers = dpt_alloc_array((size_t)program->spec.threads, sizeof *program->workers);
    if (program->nodes == NULL || program->floats == NULL || program->idle == NULL ||
        program->calls == NULL || program->workers == NULL)
        return dpt_fail_memory(err, "the model", (double)rows * sizeof *program->calls);
    program->n_buffers = DPT_CPU_INPUT + 1;
    return DPT_OK;
}

/* Everything but the workers. */
static enum dpt_status plan_program(const struct dpt_program_spec *spec,
                                    struct dpt_cpu_program **planned, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cpu_program *program = *planned = dpt_alloc(sizeof *program);

    if (program == NULL)
        return dpt_fail_memory(err, "the model", sizeof *program);
    program->spec = *spec;
    program->n_nodes = spec->graph->n_nodes + 1;
    DPT_TRY(reserve_tables(program, err));
    DPT_TRY(dpt_dnnl_open(&program->dnnl, spec->threads, err));
    DPT_TRY(read_graph(program, err));
    for (int32_t i = 0; i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        if (!node->skipped)
            DPT_TRY(node->op->plan(program, node, err));
    }
    if (spec->training)
        DPT_TRY(plan_gradients(program, err));
out:
    return status;
}

enum dpt_status dpt_cpu_open(const struct dpt_program_spec *spec, void **opened,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cpu_program *program = NULL;

    *opened = NULL;
    DPT_TRY(plan_program(spec, &program, err));
    for (int i = 0; i < spec->threads; i++)
        DPT_TRY(open_worker(program, i, err));
    *opened = program;
out:
    if (status != DPT_OK)
        dpt_cpu_close(program);
    return status;
}

enum dpt_status dpt_cpu_measure(const struct dpt_program_spec *spec,
                                struct dpt_program_bytes *bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cpu_program *program = NULL;
    const int64_t workers = spec->threads, word = sizeof(float);

    DPT_TRY(plan_program(spec, &program, err));
    *bytes = (struct dpt_program_bytes){
        .values = workers * word * (int64_t)buffer_floats(program),
        .scratch = workers * word * (int64_t)dpt_round_up((size_t)program->scratch, sizeof(float)),
        .copies = program->bytes, /* there are no workers yet */
    };
out:
    dpt_cpu_close(program);
    return status;
}

void dpt_cpu_close(void *opened)
{
    struct dpt_cpu_program *program = opened;

    if (program == NULL)
        return;
    for (int i = 0; program->workers != NULL && i < program->spec.threads; i++)
        close_worker(program, &program->workers[i]);
    for (int i = 0; i < program->n_calls; i++)
        dpt_kernel_close(program->calls[i].kernel);
    for (int32_t i = 0; program->nodes != NULL && i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        if (node->op != NULL && node->op->close != NULL && node->own != NULL)
            node->op->close(node);
    }
    dpt_dnnl_close(program->dnnl);
    dpt_free(program->workers);
    dpt_free(program->calls);
    dpt_free(program->idle);
    dpt_free(program->floats);
    dpt_free(program->nodes);
    dpt_free(program);
}
