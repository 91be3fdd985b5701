#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/program/program.h"
#include "core/backend/operation.h"

/* Places gradients in memory, and passes them from a node to the nodes that it reads. */

/* Whether dx is dy unchanged. */
static bool passes_on(const struct dpt_cpu_node *node)
{
    return node->op->backward == NULL || node->listed ||
           (node->op == &dpt_cpu_add && (!node->relu || node->passed));
}

bool dpt_cpu_moves_back(const struct dpt_cpu_node *node)
{
    bool moves = node->listed || !passes_on(node);

    for (int32_t i = 0; i < node->n_inputs; i++)
        moves = moves || node->reorder_back[i] != DPT_CPU_NONE || node->add[i].sum != DPT_CPU_NONE;
    return moves;
}

/* --- planning --------------------------------------------------------------------------------- */

/* An elementwise node has the same layout on both sides, and may write over dy if nobody else reads
 * dy, not even for its own second gradient. */
static bool over_dy(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node,
                    int32_t i)
{
    const bool last = i + 1 == node->n_inputs || !node->wants[i + 1];
    const bool by_itself =
        node->op == &dpt_cpu_add || (node->op == &dpt_cpu_multiply && last) ||
        (node->graph != NULL && dpt_operation_of(node->graph)->kind == DPT_CLASS_POINTWISE);

    return by_itself && program->buffers[node->dy].owners == 1;
}

/* The buffer of an input's gradient. */
static int place(struct dpt_cpu_program *program, const struct dpt_cpu_node *node, int32_t i)
{
    const struct dpt_cpu_node *input = &program->nodes[node->inputs[i]];

    if (node->op == &dpt_cpu_add && i > 0 && node->wants[0])
        return dpt_cpu_share(program, node->dx);
    if (passes_on(node) || over_dy(program, node, i))
        return dpt_cpu_share(program, node->dy);
    return dpt_cpu_take(program, node->floats[i] / (input->dy_bf16 ? 2 : 1));
}

/* Whether the node's own backward pass can write the sum to where its share of it would lie. */
static bool adds_within(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    return node->op == &dpt_cpu_conv && dpt_cpu_conv_bf16(program, node) != NULL;
}

/* Adds a gradient to the one that others passed back, in whichever buffer belongs to nobody else.
 */
static void add_up(struct dpt_cpu_program *program, struct dpt_cpu_node *node, int32_t i, int dx)
{
    struct dpt_cpu_node *input = &program->nodes[node->inputs[i]];
    const int before = input->dy;

    if (program->buffers[dx].owners == 1)
        input->dy = dpt_cpu_share(program, dx);
    else if (program->buffers[before].owners == 1)
        input->dy = dpt_cpu_share(program, before);
    else
        input->dy = dpt_cpu_take(program, input->y_floats);
    node->add[i].a = before;
    node->add[i].b = dx;
    node->add[i].sum = input->dy;
    node->add[i].within = adds_within(program, node) && input->dy == node->dxs[i];
    input->adder = node->number;
    input->adder_input = i;
    dpt_cpu_give(program, before);
    dpt_cpu_give(program, dx);
}

static enum dpt_status plan_back(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 int32_t i, struct dpt_error *err)
{
    struct dpt_cpu_node *input = &program->nodes[node->inputs[i]];
    enum dpt_status status = DPT_OK;
    int dx = node->dxs[i];

    if (node->reorder[i] != DPT_CPU_NONE) {
        dx = dpt_cpu_take(program, input->y_floats);
        DPT_TRY(dpt_cpu_reorder(program, &input->out, node->x_layout, node->dxs[i], input->y_layout,
                                dx, &node->reorder_back[i], err));
        dpt_cpu_give(program, node->dxs[i]);
    }
    if (input->dy == DPT_CPU_NONE)
        input->dy = dx;
    else
        add_up(program, node, i, dx);
out:
    return status;
}

/* If the gradient of a relu after an addition was summed here, it passes the relu as it is written:
 * one pass less over both. */
static void pass_with_sum(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    const int32_t adder = node->adder;

    if (node->op != &dpt_cpu_add || !node->relu || adder == DPT_CPU_NONE ||
        !dpt_cpu_computes(program, node->number) || !dpt_cpu_computes(program, adder))
        return;
    node->passed = true;
    program->nodes[adder].add[node->adder_input].known = node->y;
}

static enum dpt_status plan_node(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 struct dpt_error *err)
{
    const unsigned keeps = dpt_cpu_keeps(program, node);
    enum dpt_status status = DPT_OK;

    pass_with_sum(program, node);
    for (int32_t i = 0; i < node->n_inputs; i++)
        if (node->wants[i])
            node->dxs[i] = place(program, node, i);
    if (node->op->plan_backward != NULL)
        DPT_TRY(node->op->plan_backward(program, node, err));
    dpt_cpu_give(program, node->dy);
    if (keeps & DPT_KEEPS_OUTPUT)
        dpt_cpu_give(program, node->y);
    for (int32_t i = 0; i < node->n_inputs && keeps & DPT_KEEPS_INPUT; i++)
        dpt_cpu_give(program, node->xs[i]);
    for (int32_t i = 0; i < node->n_inputs; i++)
        if (node->wants[i])
            DPT_TRY(plan_back(program, node, i, err));
out:
    return status;
}

enum dpt_status dpt_cpu_plan_gradients(struct dpt_cpu_program *program, struct dpt_error *err)
{
    struct dpt_cpu_node *last = &program->nodes[program->n_nodes - 1];
    enum dpt_status status = DPT_OK;

    program->planning = dpt_cpu_computes(program, last->number);
    last->dy = dpt_cpu_take(program, last->y_floats);
    for (int32_t i = program->n_nodes - 1; i > 0; i--) {
        struct dpt_cpu_node *node = &program->nodes[i];

        program->planning = dpt_cpu_computes(program, node->number);
        if (!node->skipped && node->wants_dy)
            DPT_TRY(plan_node(program, node, err));
    }
out:
    return status;
}

/* --- running ---------------------------------------------------------------------------------- */

void dpt_cpu_pass_back(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    bool waited = passes_on(node);

    for (int32_t i = 0; i < node->n_inputs; i++) {
        const int known = node->add[i].known;
        struct dpt_cpu_floats part;
        const float *a, *b;
        float *sum;

        if (node->reorder_back[i] != DPT_CPU_NONE)
            dpt_cpu_execute(run, node->reorder_back[i]);
        if (node->add[i].sum == DPT_CPU_NONE || node->add[i].within)
            continue;
        if (!waited)
            dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
        waited = true;
        part = dpt_cpu_floats_part(run, run->program->nodes[node->inputs[i]].y_floats);
        a = dpt_cpu_buffer(run, node->add[i].a) + part.first;
        b = dpt_cpu_buffer(run, node->add[i].b) + part.first;
        sum = dpt_cpu_buffer(run, node->add[i].sum) + part.first;
        if (known != DPT_CPU_NONE)
            dpt_add_relu_back(part.n, dpt_cpu_buffer(run, known) + part.first, a, b, sum);
        else
            dpt_add(part.n, a, b, sum);
    }
}
