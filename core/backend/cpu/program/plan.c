#include "core/backend/cpu/program/program.h"
#include "core/backend/operation.h"
#include "core/base/memory.h"

const struct dpt_cpu_op *const dpt_cpu_ops[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_cpu_##name,
    DPT_OPERATIONS(X)
#undef X
};

/* --- the graph -------------------------------------------------------------------------------- */

static void read_node(struct dpt_cpu_program *program, int32_t number)
{
    const struct dpt_graph_node *from = &program->spec.graph->nodes[number];
    struct dpt_cpu_node *node = &program->nodes[number];

    node->graph = from;
    node->name = from->name;
    node->op = dpt_cpu_ops[from->op];
    node->in = from->in;
    node->out = from->out;
    node->n_inputs = from->n_inputs;
    node->wants_dy = from->learns;
    for (int32_t i = 0; i < from->n_inputs; i++) {
        struct dpt_cpu_node *input = &program->nodes[from->inputs[i]];

        node->inputs[i] = from->inputs[i];
        node->wants[i] = input->wants_dy;
        input->consumers++;
    }
}

/* The outputs are wanted in canonical layout, whatever the last node is, since the loss reads
 * them. */
static void append_flatten(struct dpt_cpu_program *program)
{
    const int32_t last = program->n_nodes - 2;
    struct dpt_cpu_node *node = &program->nodes[last + 1], *input = &program->nodes[last];

    node->op = &dpt_cpu_flatten;
    node->name = "outputs";
    node->number = last;
    node->n_inputs = 1;
    node->inputs[0] = last;
    node->in = input->out;
    node->out = (struct dpt_shape){(int32_t)dpt_shape_size(&input->out), 1, 1, true};
    node->wants_dx = node->wants_dy = input->wants_dy;
    node->consumers = 1;
    input->consumers++;
}

/* A relu whose value, or what it reads, another node needs too is left as it is. */
static bool is_relu(const struct dpt_cpu_node *node)
{
    return node->op == &dpt_cpu_relu && !node->skipped;
}

/* relu(max(window)) = max(relu(window)), on a quarter of the elements, and neither pass of the relu
 * itself is left. */
static void join_relu(struct dpt_cpu_program *program, struct dpt_cpu_node *pool)
{
    struct dpt_cpu_node *relu = &program->nodes[pool->inputs[0]];

    if (pool->op != &dpt_cpu_maxpool || !is_relu(relu) || relu->consumers > 1)
        return;
    relu->skipped = true;
    relu->within = pool->number;
    pool->relu = true;
    pool->inputs[0] = relu->inputs[0];
}

/* From here the node is part of the one before it, whose output is read by its readers. */
static void join_to(struct dpt_cpu_node *node, struct dpt_cpu_node *before)
{
    node->skipped = true;
    node->within = before->number;
    before->consumers = node->consumers;
}

/* If nobody else reads the relu's input, both are computed in one pass. */
static void join_relu_to(struct dpt_cpu_program *program, struct dpt_cpu_node *relu)
{
    struct dpt_cpu_node *before = &program->nodes[relu->inputs[0]];
    const bool takes =
        before->op->takes_relu || (before->op->takes_norm && !program->spec.training);

    if (!is_relu(relu) || !takes || before->relu || before->consumers > 1)
        return;
    join_to(relu, before);
    before->relu = true;
}

/* By running statistics a batch norm is a factor and a shift for each channel, which the weights
 * before it can take: one pass less over the values. */
static void join_norm_to(struct dpt_cpu_program *program, struct dpt_cpu_node *norm)
{
    struct dpt_cpu_node *before = &program->nodes[norm->inputs[0]];

    if (program->spec.training || program->spec.plain || norm->op != &dpt_cpu_batchnorm ||
        !before->op->takes_norm || before->norm != NULL || before->relu || before->n_inputs > 1 ||
        before->consumers > 1)
        return;
    join_to(norm, before);
    before->norm = norm->graph;
}

/* In evaluation a convolution adds what is there already to what it gives, as it writes it: the
 * same sums in the same order, and two passes less over the values. */
static void join_add_to(struct dpt_cpu_program *program, struct dpt_cpu_node *add)
{
    const bool second = add->inputs[1] > add->inputs[0];
    const int32_t other = add->inputs[second ? 0 : 1];
    struct dpt_cpu_node *before = &program->nodes[add->inputs[second ? 1 : 0]];

    if (program->spec.training || program->spec.plain || add->op != &dpt_cpu_add ||
        before->op != &dpt_cpu_conv || dpt_cpu_conv_bf16(program, before) == NULL ||
        before->number == other || before->relu || before->n_inputs > 1 || before->consumers > 1)
        return;
    join_to(add, before);
    before->inputs[before->n_inputs++] = other;
}

/* In training the batch norm that is computed last adds the other value to its own as it writes it:
 * a pass less over both. */
static void join_sum(struct dpt_cpu_program *program, struct dpt_cpu_node *add)
{
    struct dpt_cpu_node *norm;

    if (!program->spec.training || add->op != &dpt_cpu_add || add->inputs[0] == add->inputs[1])
        return;
    norm = &program->nodes[add->inputs[add->inputs[1] > add->inputs[0]]];
    if (norm->op == &dpt_cpu_batchnorm && !norm->relu && norm->consumers == 1 &&
        dpt_cpu_computes(program, norm->number) && dpt_cpu_computes(program, add->number))
        norm->sum = add;
}

/* With a max-pool after it most gradients of a convolution are zeros: it works on lists of the
 * others. */
static void join_pool(struct dpt_cpu_program *program, struct dpt_cpu_node *pool)
{
    struct dpt_cpu_node *conv = &program->nodes[pool->inputs[0]];

    if (pool->op != &dpt_cpu_maxpool || conv->op != &dpt_cpu_conv || conv->consumers > 1 ||
        conv->n_inputs > 1)
        return;
    for (int i = 0; i < 2; i++) {
        const struct dpt_window *w = &pool->graph->window;

        if (w->kernel[i] != 2 || w->stride[i] != 2 || w->before[i] != 0 || w->after[i] != 0)
            return;
    }
    conv->pool = pool;
    pool->listed = program->spec.training &&
                   (dpt_cpu_conv_bf16(program, conv) != NULL || dpt_cpu_conv_lists(conv));
}

static void read_graph(struct dpt_cpu_program *program)
{
    for (int32_t i = 0; i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        node->number = node->within = i;
        node->y = node->dy = node->argmax = node->adder = DPT_CPU_NONE;
        for (int k = 0; k < DPT_MAX_INPUTS; k++) {
            node->xs[k] = node->dxs[k] = node->add[k].sum = DPT_CPU_NONE;
            node->reorder[k] = node->reorder_back[k] = DPT_CPU_NONE;
            node->add[k].known = DPT_CPU_NONE;
        }
        if (i < program->n_nodes - 1)
            read_node(program, i);
    }
    append_flatten(program);
    for (int32_t i = 1; i < program->n_nodes; i++)
        join_relu(program, &program->nodes[i]);
    for (int32_t i = 1; i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        for (int32_t k = 0; k < node->n_inputs; k++)
            node->inputs[k] = program->nodes[node->inputs[k]].within;
        join_norm_to(program, node);
        join_add_to(program, node);
        join_sum(program, node);
        join_relu_to(program, node);
        join_pool(program, node);
    }
}

bool dpt_cpu_teams(const struct dpt_graph *graph)
{
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        if (!dpt_cpu_ops[graph->nodes[i].op]->shares)
            return false;
    }
    return true;
}

/* --- workers ---------------------------------------------------------------------------------- */

/* Floats of all buffers of a worker. */
static size_t buffer_floats(const struct dpt_cpu_program *program)
{
    const size_t folded = dpt_round_up((size_t)program->folded, sizeof(float));
    const size_t total = (size_t)program->value_floats;

    return total > folded ? total : folded;
}

/* A team computes in the first worker's values; the other workers infer, one micro-batch each. */
static bool has_values(const struct dpt_cpu_program *program, int number)
{
    return program->spec.team == NULL || number < program->in_flight ||
           number % program->in_flight == 0;
}

/* The memory of one micro-batch in flight. One thread computes all of a worker's micro-batches, one
 * at a time, so the first one's workspace serves all of them. */
static enum dpt_status open_flight(struct dpt_cpu_program *program, int number,
                                   struct dpt_error *err)
{
    struct dpt_cpu_worker *worker = &program->workers[number];
    const size_t scratch = number % program->in_flight == 0
                               ? dpt_round_up((size_t)program->scratch, sizeof(float))
                               : 0;
    const size_t total = scratch + (has_values(program, number) ? buffer_floats(program) : 0);

    worker->memory = dpt_alloc_array(total, sizeof *worker->memory);
    worker->buffers = dpt_alloc_array((size_t)program->n_buffers, sizeof *worker->buffers);
    worker->calls = dpt_alloc_array((size_t)program->n_calls, sizeof(struct dpt_call *));
    worker->metric_sums_of = dpt_alloc_array(
        (size_t)dpt_cpu_loss_chunks(program, program->spec.micro), sizeof *worker->metric_sums_of);
    if (worker->memory == NULL || worker->buffers == NULL || worker->calls == NULL ||
        worker->metric_sums_of == NULL)
        return dpt_fail_memory(err, "activations", (double)total * sizeof *worker->memory);
    worker->values = worker->memory + scratch;
    for (int i = 1; i < program->n_buffers; i++)
        worker->buffers[i] = worker->values + program->buffers[i].at;
#if DPT_CPU_ONEDNN
    return dpt_cpu_onednn_bind(program, number, err);
#else
    return DPT_OK;
#endif
}

/* --- what is derived from the parameters ------------------------------------------------------ */

/* From this many bytes on the ranks of a node share the copies: smaller copies are in each core's
 * caches, and waiting for the others in each refresh costs more than it saves. */
enum { WORTH_SHARING = 16 << 20 };

static bool is_worth_sharing(const struct dpt_cpu_program *program)
{
    return program->copied >= WORTH_SHARING;
}

static void place_copies(struct dpt_cpu_program *program, float *memory)
{
    for (int i = 0; i < program->n_copies; i++) {
        *program->copies[i].at = memory;
        memory += program->copies[i].floats;
    }
}

static enum dpt_status open_own_copies(struct dpt_cpu_program *program, struct dpt_error *err)
{
    program->ranks = 1;
    program->rank = 0;
    program->own_copies = dpt_reserve((size_t)program->copied);
    if (program->own_copies == NULL)
        return dpt_fail_memory(err, "weights", (double)program->copied);
    place_copies(program, program->own_copies);
    return DPT_OK;
}

/* Collective over node. Whether all of its ranks have as many copies as this one. */
static enum dpt_status have_alike(const struct dpt_cpu_program *program,
                                  const struct dpt_group *node, bool *alike, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double most, least;

    DPT_TRY(dpt_group_max(node, (double)program->copied, &most, err));
    DPT_TRY(dpt_group_max(node, -(double)program->copied, &least, err));
    *alike = most + least == 0;
out:
    return status;
}

enum dpt_status dpt_cpu_share_copies(void *opened, const struct dpt_group *node, bool *shared,
                                     struct dpt_error *err)
{
    struct dpt_cpu_program *program = opened;
    enum dpt_status status = DPT_OK;
    bool alike;

    *shared = false;
    DPT_TRY(have_alike(program, node, &alike, err));
    if (node->size <= 1 || !alike || !is_worth_sharing(program))
        return DPT_OK;
    dpt_unreserve(program->own_copies, (size_t)program->copied);
    program->own_copies = NULL;
    if (dpt_shared_open(&program->shared, node, (size_t)program->copied, err) != DPT_OK)
        return open_own_copies(program, err);
    program->ranks = node->size;
    program->rank = node->rank;
    place_copies(program, program->shared.bytes);
    *shared = true;
out:
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum dpt_status reserve_tables(struct dpt_cpu_program *program, struct dpt_error *err)
{
    const size_t nodes = (size_t)program->n_nodes, rows = DPT_CPU_PER_NODE * nodes;

    program->nodes = dpt_alloc_array(nodes, sizeof *program->nodes);
    program->buffers = dpt_alloc_array(rows, sizeof *program->buffers);
    program->calls = dpt_alloc_array(rows, sizeof *program->calls);
    program->copies = dpt_alloc_array(rows, sizeof *program->copies);
    program->workers = dpt_alloc_array((size_t)program->spec.threads * (size_t)program->in_flight,
                                       sizeof *program->workers);
    if (program->nodes == NULL || program->buffers == NULL || program->calls == NULL ||
        program->copies == NULL || program->workers == NULL)
        return dpt_fail_memory(err, "the model", (double)rows * sizeof *program->calls);
    program->n_buffers = DPT_CPU_INPUT + 1;
    return DPT_OK;
}

/* Gives back the inputs that a node has read, unless its backward pass reads them. */
static void let_go(struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    if (dpt_cpu_keeps(program, node) & DPT_KEEPS_INPUT)
        return;
    for (int32_t i = 0; i < node->n_inputs; i++)
        dpt_cpu_give(program, node->xs[i]);
}

/* If a node learns only some of its tensors, the gradients of the others go here. */
static void reserve_unwanted(struct dpt_cpu_program *program)
{
    const struct dpt_graph *graph = program->spec.graph;
    int64_t most = 0;

    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const int32_t tensors[] = {graph->nodes[i].weight, graph->nodes[i].bias};

        for (int k = 0; k < 2 && graph->nodes[i].learns; k++)
            if (tensors[k] >= 0 && graph->tensors[tensors[k]].frozen &&
                graph->tensors[tensors[k]].count > most)
                most = graph->tensors[tensors[k]].count;
    }
    program->unwanted = most > 0 ? dpt_cpu_reserve(program, most) : DPT_CPU_NONE;
}

/* Values that a computed node reads from a node that is not computed, or gives to one, are wanted
 * too. */
static void want_values(struct dpt_cpu_program *program)
{
    for (int32_t i = 0; i < program->n_nodes; i++) {
        const struct dpt_cpu_node *node = &program->nodes[i];

        for (int32_t k = 0; k < node->n_inputs && dpt_cpu_computes(program, node->number); k++) {
            const struct dpt_cpu_node *input = &program->nodes[node->inputs[k]];
            const int buffers[] = {node->y,      node->dy, node->xs[k],
                                   node->dxs[k], input->y, input->dy};

            for (size_t b = 0; b < sizeof buffers / sizeof *buffers && !node->skipped; b++)
                if (buffers[b] > DPT_CPU_INPUT)
                    program->buffers[buffers[b]].wanted = true;
        }
    }
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
    program->in_flight = spec->in_flight > 1 ? spec->in_flight : 1;
    program->n_nodes = spec->graph->n_nodes + 1;
    DPT_TRY(reserve_tables(program, err));
#if DPT_CPU_ONEDNN
    DPT_TRY(dpt_cpu_onednn_open(program, err));
#endif
    read_graph(program);
    for (int32_t i = 0; i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        program->planning = dpt_cpu_computes(program, node->number);
        if (node->skipped)
            continue;
        node->own = dpt_alloc(node->op->own);
        if (node->own == NULL)
            DPT_TRY(dpt_fail_memory(err, node->name, (double)node->op->own));
        DPT_TRY(node->op->plan(program, node, err));
        let_go(program, node);
    }
    program->planning = true;
    program->refreshed = DPT_CPU_NONE;
    if (spec->training) {
        reserve_unwanted(program);
        if (program->folded > 0)
            program->refreshed = dpt_cpu_reserve(program, program->folded);
        DPT_TRY(dpt_cpu_plan_gradients(program, err));
    }
    want_values(program);
    DPT_TRY(dpt_cpu_place_buffers(program, err));
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
    DPT_TRY(open_own_copies(program, err));
    for (int i = 0; i < spec->threads * program->in_flight; i++)
        DPT_TRY(open_flight(program, i, err));
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
    int64_t in_flight = 0;

    DPT_TRY(plan_program(spec, &program, err));
    for (int i = 0; i < workers * program->in_flight; i++)
        in_flight += has_values(program, i);
    *bytes = (struct dpt_program_bytes){
        .values = in_flight * word * (int64_t)buffer_floats(program),
        .scratch = workers * word * (int64_t)dpt_round_up((size_t)program->scratch, sizeof(float)),
        .copies = program->copied,
        .shares_copies = is_worth_sharing(program),
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
#if DPT_CPU_ONEDNN
    dpt_cpu_onednn_close(program);
#endif
    for (int i = 0; program->workers != NULL && i < program->spec.threads * program->in_flight;
         i++) {
        struct dpt_cpu_worker *worker = &program->workers[i];

        dpt_free(worker->calls);
        dpt_free(worker->metric_sums_of);
        dpt_free(worker->buffers);
        dpt_free(worker->memory);
    }
    for (int32_t i = 0; program->nodes != NULL && i < program->n_nodes; i++) {
        struct dpt_cpu_node *node = &program->nodes[i];

        if (node->own != NULL && node->op->close != NULL)
            node->op->close(node);
        dpt_free(node->own);
    }
    dpt_unreserve(program->own_copies, (size_t)program->copied);
    dpt_shared_close(&program->shared);
    dpt_free(program->workers);
    dpt_free(program->copies);
    dpt_free(program->calls);
    dpt_free(program->buffers);
    dpt_free(program->nodes);
    dpt_free(program);
}
