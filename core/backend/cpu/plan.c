#include "core/backend/cpu/program.h"
#include "core/backend/operation.h"
#include "core/base/memory.h"

const struct dpt_cpu_op *const dpt_cpu_ops[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_cpu_##name,
    DPT_OPERATIONS(X)
#undef X
};

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
    return DPT_OK;
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
    /* What takes each number by itself has the same layout on both sides. */
    const bool in_place = node->op->moves_nothing || node->listed ||
                          dpt_operation_of(node->graph)->kind == DPT_CLASS_POINTWISE;
    enum dpt_status status = DPT_OK;

    node->dx = in_place ? node->dy : dpt_cpu_take(program, node->x_floats);
    input->dy = node->dx;
    if (node->reorder != DPT_CPU_NONE) {
        input->dy = dpt_cpu_take(program, input->y_floats);
        DPT_TRY(dpt_cpu_reorder(program, node->op->moves_nothing ? &input->out : &node->in,
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
        total += dpt_round_up((size_t)program->buffers[i].floats, sizeof(float));
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
    worker->calls = dpt_alloc_array((size_t)program->n_calls, sizeof(struct dpt_call *));
    worker->metric_sums_of = dpt_alloc_array(
        (size_t)dpt_cpu_loss_chunks(program, program->spec.micro), sizeof *worker->metric_sums_of);
    if (worker->memory == NULL || worker->buffers == NULL || worker->calls == NULL ||
        worker->metric_sums_of == NULL)
        return dpt_fail_memory(err, "activations", (double)total * sizeof *worker->memory);
    at = worker->memory + scratch;
    for (int i = 1; i < program->n_buffers; i++) {
        worker->buffers[i] = at;
        at += dpt_round_up((size_t)program->buffers[i].floats, sizeof(float));
    }
    return bind_calls(program, number, worker->memory, err);
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum dpt_status reserve_tables(struct dpt_cpu_program *program, struct dpt_error *err)
{
    const size_t nodes = (size_t)program->n_nodes, rows = DPT_CPU_PER_NODE * nodes;

    program->nodes = dpt_alloc_array(nodes, sizeof *program->nodes);
    program->buffers = dpt_alloc_array(rows, sizeof *program->buffers);
    program->calls = dpt_alloc_array(rows, sizeof *program->calls);
    program->copies = dpt_alloc_array(rows, sizeof *program->copies);
    program->workers = dpt_alloc_array((size_t)program->spec.threads, sizeof *program->workers);
    if (program->nodes == NULL || program->buffers == NULL || program->calls == NULL ||
        program->copies == NULL || program->workers == NULL)
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

        if (node->skipped)
            continue;
        node->own = dpt_alloc(node->op->own);
        if (node->own == NULL)
            DPT_TRY(dpt_fail_memory(err, node->name, (double)node->op->own));
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
        .copies = program->copied,
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
    for (int i = 0; program->workers != NULL && i < program->spec.threads; i++) {
        struct dpt_cpu_worker *worker = &program->workers[i];

        for (int k = 0; worker->calls != NULL && k < program->n_calls; k++)
            dpt_call_close(worker->calls[k]);
        dpt_free(worker->calls);
        dpt_free(worker->metric_sums_of);
        dpt_free(worker->buffers);
        dpt_free(worker->memory);
    }
    for (int i = 0; i < program->n_calls; i++)
        dpt_kernel_close(program->calls[i].kernel);
    for (int32_t i = 0; program->nodes != NULL && i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        if (node->own != NULL && node->op->close != NULL)
            node->op->close(node);
        dpt_free(node->own);
    }
    for (int i = 0; i < program->n_copies; i++)
        dpt_free(program->copies[i]);
    dpt_dnnl_close(program->dnnl);
    dpt_free(program->workers);
    dpt_free(program->copies);
    dpt_free(program->calls);
    dpt_free(program->buffers);
    dpt_free(program->nodes);
    dpt_free(program);
}
