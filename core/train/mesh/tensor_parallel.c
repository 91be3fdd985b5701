#include "core/train/mesh/tensor_parallel.h"

#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/sums/columns.h"
#include "core/train/layout/shares.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/units.h"

/* A layer that the ranks divide. */
struct layer {
    int64_t *rows, *inputs; /* [ranks + 1]: where each rank's outputs begin, and its inputs */
    float *columns;         /* [outputs][own inputs]; NULL: the inputs' gradient is not needed. With
                               units: address space, of which only computed ones take memory. */
};

struct dpt_tensor_parallel {
    struct dpt_trainer *t; /* borrowed */
    struct dpt_columns *exchange;
    struct layer *layers; /* [nodes] */
    struct dpt_divided passes;
    double *sums; /* of all ranks' chunks */
    enum dpt_status status;
    struct dpt_error err;
};

static void gather(void *arg, int32_t node, bool gradient, float *values, int64_t rows)
{
    struct dpt_tensor_parallel *d = arg;
    const struct layer *layer = &d->layers[node];
    struct dpt_error err;

    if (dpt_columns_gather(d->exchange, values, rows, gradient ? layer->inputs : layer->rows,
                           &err) != DPT_OK &&
        d->status == DPT_OK) {
        d->status = err.status;
        d->err = err;
    }
}

static const float *columns(void *arg, int32_t node)
{
    const struct dpt_tensor_parallel *d = arg;

    return d->layers[node].columns;
}

const struct dpt_divided *dpt_tensor_parallel_passes(const struct dpt_tensor_parallel *d)
{
    return d != NULL ? &d->passes : NULL;
}

enum dpt_status dpt_tensor_parallel_status(struct dpt_tensor_parallel *d, struct dpt_error *err)
{
    enum dpt_status status;

    if (d == NULL)
        return DPT_OK;
    status = d->status;
    if (status != DPT_OK)
        *err = d->err;
    d->status = DPT_OK;
    return status;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Floats of the columns that a rank has of a layer; 0: its inputs' gradient is not needed. */
static size_t column_floats(const struct dpt_graph *graph, int32_t i)
{
    const struct dpt_graph_node *node = &graph->nodes[i];

    if (!node->divided || !dpt_graph_wants_dx(graph, i))
        return 0;
    return (size_t)(node->out.c * (node->own_inputs.last - node->own_inputs.first));
}

/* Measures the floats of the largest value that is gathered, of the longest row that is exchanged,
 * and of all columns of this rank or, with FSDP units, of the unit that has most. */
static void measure(const struct dpt_layout *l, const struct dpt_layout_stage *stage, size_t *value,
                    size_t *widest, double *columns)
{
    const struct dpt_graph *graph = &stage->graph;
    const size_t rows = (size_t)l->micro * (size_t)l->at_once;
    double own = 0; /* of the unit */

    *value = *widest = 0;
    *columns = 0;
    for (int32_t i = stage->first; i < stage->last; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const size_t in = (size_t)dpt_shape_size(&node->in), out = (size_t)node->out.c;

        if (dpt_layout_begins_unit(stage, i))
            own = 0;
        if (!node->divided)
            continue;
        *value = rows * out > *value ? rows * out : *value;
        if (!dpt_graph_wants_dx(graph, i))
            continue;
        *value = rows * in > *value ? rows * in : *value;
        *widest = in > *widest ? in : *widest;
        own += (double)column_floats(graph, i);
        *columns = own > *columns ? own : *columns;
    }
}

void dpt_tensor_parallel_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                               double *own, double *shared, double *sent)
{
    const struct dpt_graph *graph = &stage->graph;
    const int ranks = l->tensor;
    const double others = (ranks - 1) / (double)ranks;
    const double samples = (double)l->job->batch.global / l->replicas;
    /* How many times the columns are derived in a step. */
    const double derived = l->sliced ? dpt_layout_most_rounds(l) : 1;
    size_t value, widest;
    double columns;

    *own = *shared = *sent = 0;
    if (ranks == 1)
        return;
    measure(l, stage, &value, &widest, &columns);
    dpt_columns_bytes(ranks, l->node_ranks < ranks ? l->node_ranks : ranks, value, widest, own,
                      shared);
    *own += columns * sizeof(float);
    for (int32_t i = stage->first; i < stage->last; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const double in = (double)dpt_shape_size(&node->in), out = node->out.c;

        if (!node->divided)
            continue;
        *sent += samples * others * out * sizeof(float);
        if (dpt_graph_wants_dx(graph, i))
            *sent += (samples * others * in + derived * in * out * others / ranks) * sizeof(float);
    }
}

/* Finds where the ranks' parts of a layer begin, and makes room for this rank's columns. */
static enum dpt_status cut_layer(struct dpt_tensor_parallel *d, int32_t number,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = d->t;
    const struct dpt_graph_node *node = &dpt_trainer_graph(t)->nodes[number];
    const int ranks = t->layout.tensor;
    struct layer *layer = &d->layers[number];
    size_t floats;

    DPT_TRY(DPT_ALLOCATE(layer->rows, 2 * ((size_t)ranks + 1), "the layers", err));
    layer->inputs = layer->rows + ranks + 1;
    for (int r = 0; r < ranks; r++) {
        layer->rows[r + 1] = dpt_tensor_rows(&t->model.graph, node->weight, r, ranks).last;
        layer->inputs[r + 1] = dpt_tensor_columns(&t->model.graph, node->weight, r, ranks).last;
    }
    if (!dpt_graph_wants_dx(dpt_trainer_graph(t), number))
        return DPT_OK;
    floats = column_floats(dpt_trainer_graph(t), number) + 1;
    layer->columns = t->layout.sliced ? dpt_reserve(floats * sizeof(float))
                                      : dpt_alloc_array(floats, sizeof(float));
    if (layer->columns == NULL)
        DPT_TRY(dpt_fail_memory(err, "the layers", (double)(floats * sizeof(float))));
out:
    return status;
}

enum dpt_status dpt_tensor_parallel_open(struct dpt_tensor_parallel **divided,
                                         struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    struct dpt_tensor_parallel *d = NULL;
    size_t value, widest;
    double all;

    if (t->layout.tensor == 1)
        return DPT_OK;
    status = DPT_ALLOCATE(d, 1, "the layers", err);
    if (status == DPT_OK) {
        *divided = d;
        d->t = t;
        d->passes = (struct dpt_divided){.gather = gather, .columns = columns, .arg = d};
        status = DPT_ALLOCATE(d->layers, (size_t)graph->n_nodes, "the layers", err);
    }
    if (status == DPT_OK)
        status = DPT_ALLOCATE(d->sums, DPT_OPTIMIZER_SQUARES * dpt_graph_whole_chunks(graph),
                              "the norms of gradients", err);
    for (int32_t i = t->stage->first; i < t->stage->last && status == DPT_OK; i++)
        if (graph->nodes[i].divided)
            status = cut_layer(d, i, err);
    DPT_TRY(dpt_group_agree(&t->mesh.tensor_group.world, status, err));
    measure(&t->layout, t->stage, &value, &widest, &all);
    DPT_TRY(
        dpt_columns_open(&d->exchange, &t->mesh.tensor_group, value, widest, t->team.spin, err));
out:
    return status;
}

void dpt_tensor_parallel_close(struct dpt_tensor_parallel *d)
{
    if (d == NULL)
        return;
    for (int32_t i = 0; d->layers != NULL && i < d->t->model.graph.n_nodes; i++) {
        dpt_free(d->layers[i].rows);
        if (!d->t->layout.sliced)
            dpt_free(d->layers[i].columns);
        else if (d->layers[i].columns != NULL)
            dpt_unreserve(d->layers[i].columns,
                          (column_floats(dpt_trainer_graph(d->t), i) + 1) * sizeof(float));
    }
    dpt_free(d->layers);
    dpt_free(d->sums);
    dpt_columns_close(d->exchange);
    dpt_free(d);
}

/* --- a step ----------------------------------------------------------------------------------- */

static enum dpt_status derive(struct dpt_tensor_parallel *d, int32_t first, int32_t last,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = d->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);

    for (int32_t i = first; i < last; i++) {
        const struct layer *layer = &d->layers[i];

        if (layer->columns == NULL || graph->tensors[graph->nodes[i].weight].whole == 0)
            continue;
        DPT_TRY(dpt_columns_exchange(
            d->exchange, dpt_units_params(t) + graph->tensors[graph->nodes[i].weight].offset,
            layer->rows, layer->inputs, layer->columns, err));
    }
out:
    return status;
}

enum dpt_status dpt_tensor_parallel_refresh(struct dpt_tensor_parallel *d, struct dpt_error *err)
{
    return d == NULL || d->t->layout.sliced ? DPT_OK : derive(d, 0, d->t->model.graph.n_nodes, err);
}

enum dpt_status dpt_tensor_parallel_derive(struct dpt_tensor_parallel *d, int32_t first,
                                           int32_t last, struct dpt_error *err)
{
    return d == NULL || !d->t->layout.sliced ? DPT_OK : derive(d, first, last, err);
}

void dpt_tensor_parallel_release(struct dpt_tensor_parallel *d, int32_t first, int32_t last)
{
    for (int32_t i = first; d != NULL && d->t->layout.sliced && i < last; i++)
        if (d->layers[i].columns != NULL)
            dpt_decommit(d->layers[i].columns,
                         d->layers[i].columns + column_floats(dpt_trainer_graph(d->t), i));
}

enum dpt_status dpt_tensor_parallel_chunks(struct dpt_tensor_parallel *d, int each,
                                           const double **sums, size_t *n, struct dpt_error *err)
{
    const struct dpt_graph *graph = d != NULL ? dpt_trainer_graph(d->t) : NULL;
    const double *own = *sums;
    size_t before = 0, at = 0; /* chunks, of this rank's and of all */

    if (d == NULL)
        return DPT_OK;
    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i];
        const size_t mine = dpt_tensor_chunks(tensor), whole = dpt_tensor_whole_chunks(tensor);

        memset(d->sums + at * (size_t)each, 0, whole * (size_t)each * sizeof *own);
        if (dpt_mesh_tells(d->t, i) && mine > 0)
            memcpy(d->sums + (at + dpt_tensor_chunks_before(tensor)) * (size_t)each,
                   own + before * (size_t)each, mine * (size_t)each * sizeof *own);
        before += mine;
        at += whole;
    }
    /* Each is on one rank and zero on the others, so the sum is exact. */
    *sums = d->sums;
    *n = at;
    return dpt_group_sum_doubles(&d->t->mesh.tensor_group.world, d->sums, d->sums,
                                 at * (size_t)each, err);
}
