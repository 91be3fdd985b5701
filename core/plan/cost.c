#include "core/plan/cost.h"

#include <math.h>

#include "core/backend/operation.h"
#include "core/train/gradient_reduction.h"

enum { WORD = sizeof(float) };

struct dpt_trainer dpt_cost_alone(const struct dpt_trainer *t, struct dpt_comm *comm,
                                  int32_t samples)
{
    struct dpt_trainer one = *t;

    *comm = *t->comm;
    comm->world.size = 1;
    one.comm = comm;
    one.data.train.sampler.global = one.data.train.sampler.micro = samples;
    one.team.all_threads = 1;
    return one;
}

struct dpt_cost dpt_cost_of_nodes(const struct dpt_trainer *t, int32_t first, int32_t last,
                                  enum dpt_cost_pass pass, bool wants_data)
{
    const struct dpt_graph_node *nodes = t->model.graph.nodes;
    const double samples = t->data.train.sampler.global, micro = t->data.train.sampler.micro;
    const double ranks = t->comm->world.size;
    const bool both = pass == DPT_COST_BACKWARD;
    /* Forward reads x and writes y; the gradient of x comes from dy, that of the weights from x and
     * dy. Both at once read dy once. */
    const double in = WORD * (double)dpt_shape_size(&nodes[first].in);
    const double out = WORD * (double)dpt_shape_size(&nodes[last].out);
    const double moved = in + out + (both && wants_data ? in : 0);
    double flop = 0, weights = 0;

    for (int32_t i = first; i <= last; i++) {
        flop += dpt_operation_flops(&nodes[i]) * (both && wants_data ? 2 : 1);
        for (int k = 0; k < 2; k++) {
            const int32_t tensor = k == 0 ? nodes[i].weight : nodes[i].bias;

            if (tensor >= 0)
                weights += WORD * (double)t->model.graph.tensors[tensor].count;
        }
    }
    if (both && wants_data)
        weights *= 2;
    return (struct dpt_cost){
        .flop = flop * samples,
        .move = {{moved * samples, moved * micro}, {weights * ranks, weights}},
    };
}

/* The reduction has computed the sums of squares, and the norm only adds up some of them. */
static bool squares_come_with_sum(const struct dpt_trainer *t)
{
    return t->reduction.state != NULL && t->reduction.type->sums_of_squares(t) != NULL;
}

struct dpt_cost dpt_cost_of_part(const struct dpt_trainer *t, int what)
{
    const struct dpt_graph *graph = &t->model.graph;
    const struct dpt_dataset *set = t->data.train.set;
    const double samples = t->data.train.sampler.global, micro = t->data.train.sampler.micro;
    const double arena = WORD * (double)graph->parameters, ranks = t->comm->world.size;
    const double image = WORD * (double)dpt_shape_size(&set->shape), stored = (double)set->stride;
    const double outputs = WORD * (double)dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
    const double threads = (double)t->team.all_threads, slots = t->arenas.slots;
    struct dpt_cost cost = {0};

    if (what == DPT_SPAN_DATA) { /* the stored samples lie anywhere in the set */
        cost.move[0].bytes = samples * stored;
        cost.move[0].footprint = (double)set->samples * stored;
        cost.move[1].bytes = samples * image;
        cost.move[1].footprint = micro * image;
    } else if (what == DPT_SPAN_LOSS) { /* it reads y and writes dy */
        cost.move[0].bytes = samples * 2 * outputs;
        cost.move[0].footprint = micro * 2 * outputs;
    } else if (what == DPT_SPAN_REDUCTION && threads > 1) {
        /* Every thread's gradient is read, and each rank writes the sum. */
        cost.move[0].bytes = (threads + ranks) * arena;
        cost.move[0].footprint = (threads / ranks + 1) * arena;
    } else if (what == DPT_SPAN_NORM && !squares_come_with_sum(t)) {
        cost.move[0].bytes = ranks * arena;
        cost.move[0].footprint = arena;
    } else if (what == DPT_SPAN_OPTIMIZER) {
        /* Weights and slots in and out, gradient in. Where norms of tensors are wanted, one pass
         * reads weights and gradient and changes the slots, a second one reads these and changes
         * the weights. */
        const bool norms = dpt_optimizer_squares(&t->job->optimizer, graph) > 0;

        cost.move[0].bytes = ranks * (norms ? 4 + 3 * slots : 3 + 2 * slots) * arena;
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
