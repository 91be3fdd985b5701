#include "core/backend/fold.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"

void dpt_fold(const struct dpt_graph *graph, const struct dpt_graph_node *before,
              const struct dpt_graph_node *norm, const float *params, const float *state,
              float *weights, float *bias)
{
    const struct dpt_tensor *t = graph->tensors, *own = &t[before->weight];
    const float *from = params + own->offset;
    const float *mean = state + t[norm->mean].offset, *variance = state + t[norm->variance].offset;
    const float *gamma = params + t[norm->weight].offset, *beta = params + t[norm->bias].offset;
    const int64_t channels = own->dims[0], each = own->count / channels;
    const double eps = norm->attribute[DPT_BATCHNORM_EPS];

    for (int64_t c = 0; c < channels; c++) {
        const double scale = gamma[c] / sqrt((double)variance[c] + eps);
        const double was = before->bias >= 0 ? params[t[before->bias].offset + c] : 0;

        for (int64_t i = c * each; i < (c + 1) * each; i++)
            weights[i] = (float)(from[i] * scale);
        bias[c] = (float)((was - mean[c]) * scale + beta[c]);
    }
}

int32_t dpt_fold_target(const struct dpt_graph *graph, int32_t i)
{
    const int32_t before = graph->nodes[i].inputs[0];
    const enum dpt_op op = graph->nodes[before].op;
    int readers = 0;

    if (graph->nodes[i].op != DPT_OP_BATCHNORM || (op != DPT_OP_CONV && op != DPT_OP_DENSE))
        return -1;
    for (int32_t k = before + 1; k < graph->n_nodes; k++)
        for (int32_t n = 0; n < graph->nodes[k].n_inputs; n++)
            readers += graph->nodes[k].inputs[n] == before;
    return readers == 1 ? before : -1;
}

/* --- a graph without them --------------------------------------------------------------------- */

/* A node of the graph that is read, as it comes out. */
struct place {
    int32_t number; /* there */
    int32_t norm;   /* the batch norm that it takes in, or -1 */
    int32_t into;   /* what takes it in, or -1 */
};

static void find_pairs(const struct dpt_graph *g, struct place *places)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        places[i].norm = -1;
        places[i].into = dpt_fold_target(g, i);
        if (places[i].into >= 0)
            places[places[i].into].norm = i;
    }
}

/* Copies the tensors of a node. A folded node without a bias gets the bias of its norm, under a
 * name of its own. */
static enum dpt_status add_tensors(const struct dpt_graph *g, const struct dpt_graph_node *from,
                                   const struct dpt_graph_node *norm, struct dpt_graph *to,
                                   struct dpt_graph_node *node, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < DPT_MAX_TENSORS; k++) {
        struct dpt_graph_node read = *from;
        int32_t *const number = dpt_operation_number(node, k);
        struct dpt_tensor tensor;

        if (norm != NULL && read.bias < 0)
            read.bias = norm->bias;
        if (*dpt_operation_number(&read, k) < 0)
            continue;
        tensor = g->tensors[*dpt_operation_number(&read, k)];
        if (read.bias != from->bias && number == &node->bias)
            snprintf(tensor.name, sizeof tensor.name, "%.*s/bias", DPT_NAME - 6, from->name);
        DPT_TRY(dpt_graph_add_tensor(to, &tensor, number, err));
    }
out:
    return status;
}

static enum dpt_status add_nodes(const struct dpt_graph *g, struct place *places,
                                 struct dpt_graph *to, int32_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct place *place = &places[i];
        struct dpt_graph_node node = g->nodes[i];

        if (place->into >= 0) {
            places[i].number = places[place->into].number;
            ++*n;
            continue;
        }
        for (int32_t k = 0; k < node.n_inputs; k++)
            node.inputs[k] = places[node.inputs[k]].number;
        DPT_TRY(add_tensors(g, &g->nodes[i], place->norm >= 0 ? &g->nodes[place->norm] : NULL, to,
                            &node, err));
        DPT_TRY(dpt_graph_add(to, &node, &places[i].number, err));
    }
out:
    return status;
}

static void fill_arena(const struct dpt_graph *g, const struct place *places, const float *params,
                       const struct dpt_graph *to, float *arena)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct dpt_graph_node from = g->nodes[i], node = to->nodes[places[i].number];

        if (places[i].norm >= 0)
            dpt_fold(g, &from, &g->nodes[places[i].norm], params, params,
                     arena + to->tensors[node.weight].offset,
                     arena + to->tensors[node.bias].offset);
        for (int k = 0; k < DPT_MAX_TENSORS && places[i].norm < 0 && places[i].into < 0; k++) {
            const int32_t tensor = *dpt_operation_number(&from, k);

            if (tensor >= 0)
                memcpy(arena + to->tensors[*dpt_operation_number(&node, k)].offset,
                       params + g->tensors[tensor].offset,
                       (size_t)g->tensors[tensor].count * sizeof *arena);
        }
    }
}

enum dpt_status dpt_fold_graph(const struct dpt_graph *graph, const float *params,
                               struct dpt_graph *folded, float **arena, int32_t *n,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct place *places = NULL;

    *folded = (struct dpt_graph){0};
    *arena = NULL;
    *n = 0;
    DPT_TRY(DPT_ALLOCATE(places, (size_t)graph->n_nodes, "the model's layers", err));
    find_pairs(graph, places);
    DPT_TRY(add_nodes(graph, places, folded, n, err));
    DPT_TRY(DPT_ALLOCATE(*arena, (size_t)folded->arena, "the model's weights", err));
    fill_arena(graph, places, params, folded, *arena);
out:
    if (status != DPT_OK)
        dpt_graph_release(folded);
    dpt_free(places);
    return status;
}
