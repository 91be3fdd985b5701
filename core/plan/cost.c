#include "core/plan/cost.h"

#include <math.h>

#include "core/backend/operation.h"
#include "core/train/update/optimizer.h"

enum { WORD = sizeof(float) };

struct dpt_workload dpt_workload_of(const struct dpt_layout *l, const struct dpt_dataset *set)
{
    return (struct dpt_workload){
        .graph = l->graph,
        .set = set,
        .samples = l->sampler.global,
        .micro = l->micro,
        .ranks = l->ranks,
        .owners = dpt_layout_dividers(l, &l->stage[0]),
        .threads = (double)l->all_threads,
        .slots = l->slots,
        .norms = dpt_optimizer_chunks(&l->job->optimizer, l->graph) > 0,
    };
}

struct dpt_workload dpt_workload_alone(const struct dpt_workload *all, int32_t samples)
{
    struct dpt_workload one = *all;

    one.samples = one.micro = samples;
    one.ranks = one.owners = one.threads = 1;
    return one;
}

static bool is_among(int32_t node, const int32_t *nodes, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (nodes[i] == node)
            return true;
    return false;
}

/* Numbers of a sample that n nodes read from others; of a node that two of them read, once. */
static double numbers_read(const struct dpt_graph *graph, const int32_t *nodes, int32_t n)
{
    double read = 0;

    for (int32_t k = 0; k < graph->n_nodes; k++) {
        bool seen = is_among(k, nodes, n);

        for (int32_t i = 0; i < n && !seen; i++) {
            const struct dpt_graph_node *node = &graph->nodes[nodes[i]];

            seen = is_among(k, node->inputs, node->n_inputs);
            read += seen ? (double)dpt_shape_size(&graph->nodes[k].out) : 0;
        }
    }
    return read;
}

/* Numbers of a sample that n nodes write: what others read, and what nobody does, as the last. */
static double numbers_written(const struct dpt_graph *graph, const int32_t *nodes, int32_t n)
{
    double written = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t readers = 0, outside = 0;

        for (int32_t k = nodes[i] + 1; k < graph->n_nodes; k++) {
            const bool reads = is_among(nodes[i], graph->nodes[k].inputs, graph->nodes[k].n_inputs);

            readers += reads;
            outside += reads && !is_among(k, nodes, n);
        }
        if (outside > 0 || readers == 0)
            written += (double)dpt_shape_size(&graph->nodes[nodes[i]].out);
    }
    return written;
}

/* Numbers of a sample that a batch norm reads once more: its first output depends on the
 * micro-batch's last input. */
static double numbers_read_again(const struct dpt_graph *graph, const int32_t *nodes, int32_t n,
                                 enum dpt_cost_pass pass, bool wants_data)
{
    double read = 0;

    for (int32_t i = 0; i < n; i++) {
        const struct dpt_graph_node *node = &graph->nodes[nodes[i]];
        const double numbers = (double)dpt_shape_size(&node->in);

        if (node->op != DPT_OP_BATCHNORM)
            continue;
        if (pass == DPT_COST_FORWARD || pass == DPT_COST_DATA)
            read += numbers;
        else if (pass == DPT_COST_BACKWARD && wants_data)
            read += 2 * numbers; /* the gradient, too */
    }
    return read;
}

struct dpt_cost dpt_cost_of_nodes(const struct dpt_workload *w, const int32_t *nodes, int32_t n,
                                  enum dpt_cost_pass pass, bool wants_data)
{
    const struct dpt_graph *graph = w->graph;
    const double samples = w->samples, micro = w->micro, ranks = w->ranks;
    const bool both = pass == DPT_COST_BACKWARD;
    /* Forward reads x and writes y; the gradient of x comes from dy, that of the weights from x and
     * dy. Both at once read dy once. */
    const double in = WORD * numbers_read(graph, nodes, n);
    const double out = WORD * numbers_written(graph, nodes, n);
    const double again = WORD * numbers_read_again(graph, nodes, n, pass, wants_data);
    const double moved = in + out + (both && wants_data ? in : 0) + again;
    double flop = 0, weights = 0;

    for (int32_t i = 0; i < n; i++) {
        const struct dpt_graph_node *node = &graph->nodes[nodes[i]];

        flop += dpt_operation_flops(node) * (both && wants_data ? 2 : 1);
        for (int k = 0; k < 2; k++) {
            const int32_t tensor = k == 0 ? node->weight : node->bias;

            if (tensor >= 0)
                weights += WORD * (double)graph->tensors[tensor].count;
        }
    }
    if (both && wants_data)
        weights *= 2;
    return (struct dpt_cost){
        .flop = flop * samples,
        .move = {{moved * samples, moved * micro}, {weights * ranks, weights}},
    };
}

struct dpt_cost dpt_cost_of_part(const struct dpt_workload *w, int what)
{
    const struct dpt_graph *graph = w->graph;
    const struct dpt_dataset *set = w->set;
    const double samples = w->samples, micro = w->micro;
    const double arena = WORD * (double)graph->parameters, ranks = w->ranks;
    const double image = WORD * (double)dpt_shape_size(&set->shape),
                 stored = (double)set->bytes / (double)set->samples;
    const double outputs = WORD * (double)dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
    const double threads = w->threads, slots = w->slots;
    struct dpt_cost cost = {0};

    if (what == DPT_SPAN_DATA) { /* the stored samples lie anywhere in the set */
        cost.move[0].bytes = samples * stored;
        cost.move[0].footprint = (double)set->samples * stored;
        cost.move[1].bytes = samples * image;
        cost.move[1].footprint = micro * image;
    } else if (what == DPT_SPAN_LOSS) { /* the loss reads y and writes dy */
        cost.move[0].bytes = samples * 2 * outputs;
        cost.move[0].footprint = micro * 2 * outputs;
    } else if (what == DPT_SPAN_REDUCTION && threads > 1) {
        /* Every thread's gradient is read, and each rank writes the sum. */
        cost.move[0].bytes = (threads + ranks) * arena;
        cost.move[0].footprint = (threads / ranks + 1) * arena;
    } else if (what == DPT_SPAN_NORM && !w->squares) {
        cost.move[0].bytes = ranks * arena;
        cost.move[0].footprint = arena;
    } else if (what == DPT_SPAN_OPTIMIZER) {
        /* Weights and slots in and out, gradient in. If norms of tensors are wanted, one pass reads
         * weights and gradient and changes the slots, a second one reads these and changes the
         * weights. */
        const double updates = ranks / w->owners; /* updates per step of all weights */

        cost.move[0].bytes = updates * (w->norms ? 4 + 3 * slots : 3 + 2 * slots) * arena;
        cost.move[0].footprint = (2 + slots) * arena;
    }
    return cost;
}

double dpt_cost_limit(const struct dpt_cost *cost, const struct dpt_machine *machine,
                      int64_t threads, bool *by_bytes)
{
    const double flop = machine->flops > 0 ? cost->flop / machine->flops : 0;
    double bytes = 0;

    for (int i = 0; i < DPT_COST_MOVES; i++)
        if (cost->move[i].bytes > 0)
            bytes += cost->move[i].bytes / dpt_machine_bandwidth(machine, cost->move[i].footprint);
    *by_bytes = bytes > flop;
    return fmax(flop, bytes) / (double)threads;
}

double dpt_cost_bytes(const struct dpt_cost *cost)
{
    double bytes = 0;

    for (int i = 0; i < DPT_COST_MOVES; i++)
        bytes += cost->move[i].bytes;
    return bytes;
}
