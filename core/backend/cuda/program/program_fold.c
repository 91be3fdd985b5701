/*
 * Batch norms as part of weights, in programs that evaluate (core/backend/fold.h). The program has
 * a graph of its own, in which a layer that takes a norm in has that norm's bias: there the arena
 * on the device holds the folded bias, and the folded weights in the place of the layer's own.
 */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program.h"
#include "core/backend/fold.h"

enum dpt_status dpt_cuda_fold_graph(const struct dpt_program_spec *spec, struct dpt_graph *folded,
                                    struct dpt_error *err)
{
    const struct dpt_graph *graph = spec->graph;
    const size_t bytes = (size_t)graph->n_nodes * sizeof *graph->nodes;

    *folded = *graph;
    folded->nodes = malloc(bytes);
    if (folded->nodes == NULL)
        return dpt_fail_memory(err, "the model", (double)bytes);
    memcpy(folded->nodes, graph->nodes, bytes);
    for (int32_t i = 1; i < graph->n_nodes && !spec->training && !spec->plain; i++) {
        const int32_t into = dpt_fold_target(graph, i);

        if (into >= 0)
            folded->nodes[into].bias = graph->nodes[i].bias;
    }
    return DPT_OK;
}

bool dpt_cuda_is_folded(const struct dpt_graph *folded, int32_t i)
{
    const struct dpt_graph_node *node = &folded->nodes[i];

    return node->op == DPT_OP_BATCHNORM && folded->nodes[node->inputs[0]].bias == node->bias;
}

void dpt_cuda_fold_params(const struct dpt_cuda_program *p, const float *params, const float *state,
                          int32_t first, int32_t last, float *arena)
{
    const struct dpt_graph *graph = p->unfolded;

    for (int32_t i = first > 1 ? first : 1; i < last; i++) {
        const struct dpt_graph_node *norm = &graph->nodes[i],
                                    *into = &graph->nodes[norm->inputs[0]];

        if (dpt_cuda_is_folded(p->spec.graph, i))
            dpt_fold(graph, into, norm, params, state, arena + graph->tensors[into->weight].offset,
                     arena + graph->tensors[norm->bias].offset);
    }
}

bool dpt_cuda_folds(const struct dpt_cuda_program *p)
{
    for (int32_t i = 1; i < p->spec.graph->n_nodes; i++) {
        if (dpt_cuda_is_folded(p->spec.graph, i))
            return true;
    }
    return false;
}
