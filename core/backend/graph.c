#include "core/backend/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/pool.h"

const char *dpt_shape_text(const struct dpt_shape *s, char *buf)
{
    enum { LENGTH = 40 };

    if (s->flat)
        snprintf(buf, LENGTH, "%lld", (long long)dpt_shape_size(s));
    else
        snprintf(buf, LENGTH, "%dx%dx%d", s->c, s->h, s->w);
    return buf;
}

int32_t dpt_window_extent(const struct dpt_window *w, int axis, int32_t input)
{
    const int64_t reach = (int64_t)w->dilation[axis] * (w->kernel[axis] - 1) + 1;
    const int64_t span = (int64_t)input + w->before[axis] + w->after[axis] - reach;

    /* Not span / stride + 1 alone: C rounds towards zero, which would give 1 for a kernel that is a
     * little too large. */
    if (span < 0)
        return 0;
    return (int32_t)(span / w->stride[axis] + 1);
}

bool dpt_graph_updates(const struct dpt_graph *graph, int32_t tensor)
{
    return tensor >= 0 && !graph->tensors[tensor].frozen && !graph->tensors[tensor].state;
}

void dpt_graph_clear_frozen(const struct dpt_graph *graph, size_t begin, size_t end,
                            float *gradient)
{
    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const struct dpt_tensor *tensor = &graph->tensors[k];
        const size_t at = (size_t)tensor->offset, last = at + (size_t)tensor->count,
                     next = dpt_round_up(last, sizeof *gradient), from = tensor->frozen ? at : last;

        if (!tensor->state && at >= begin && at < end)
            memset(gradient + from, 0, (next - from) * sizeof *gradient);
    }
}

static void set_learns(const struct dpt_graph *graph, struct dpt_graph_node *node)
{
    node->learns = dpt_graph_updates(graph, node->weight) || dpt_graph_updates(graph, node->bias);
    for (int32_t k = 0; k < node->n_inputs; k++)
        node->learns |= graph->nodes[node->inputs[k]].learns;
}

void dpt_graph_freeze(struct dpt_graph *graph)
{
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        struct dpt_graph_node *node = &graph->nodes[i];

        set_learns(graph, node);
        node->by_running = node->mean >= 0 && graph->tensors[node->mean].frozen;
        node->whole_step = node->whole_step && !node->by_running;
    }
}

int64_t dpt_graph_learned(const struct dpt_graph *graph)
{
    int64_t learned = 0;

    for (int32_t k = 0; k < graph->n_tensors; k++)
        learned += dpt_graph_updates(graph, k) ? graph->tensors[k].count : 0;
    return learned;
}

int64_t dpt_graph_node_parameters(const struct dpt_graph *graph, const struct dpt_graph_node *node)
{
    return (node->weight < 0 ? 0 : graph->tensors[node->weight].count) +
           (node->bias < 0 ? 0 : graph->tensors[node->bias].count);
}

enum dpt_status dpt_graph_add(struct dpt_graph *graph, const struct dpt_graph_node *node,
                              int32_t *index, struct dpt_error *err)
{
    const size_t n = (size_t)graph->n_nodes + 1;
    enum dpt_status status = DPT_OK;

    DPT_GROW(graph->nodes, &graph->node_room, n, "the model's layers", err);
    graph->nodes[graph->n_nodes] = *node;
    set_learns(graph, &graph->nodes[graph->n_nodes]);
    *index = graph->n_nodes++;
out:
    return status;
}

enum dpt_status dpt_graph_add_tensor(struct dpt_graph *graph, const struct dpt_tensor *tensor,
                                     int32_t *index, struct dpt_error *err)
{
    struct dpt_tensor *tensors, *added;
    int64_t count = 1, size;
    bool fits = true;

    for (int d = 0; d < tensor->n_dims; d++)
        fits = fits && !__builtin_mul_overflow(count, tensor->dims[d], &count);
    if (!fits || count > INT64_MAX / 64 - graph->arena)
        return dpt_fail(err, DPT_RANK, "%s: more parameters than any memory holds", tensor->name);
    tensors = dpt_grow(graph->tensors, &graph->tensor_room, (size_t)graph->n_tensors + 1,
                       sizeof *tensors);
    if (tensors == NULL)
        return dpt_fail_memory(err, "the model's tensors",
                               (double)graph->n_tensors * sizeof *tensors);
    graph->tensors = tensors;
    added = &tensors[graph->n_tensors];
    *added = *tensor;
    added->count = added->whole = count;
    added->offset = tensor->state ? graph->arena : graph->floats;
    size = (count + DPT_TENSOR_ALIGN - 1) / DPT_TENSOR_ALIGN * DPT_TENSOR_ALIGN;
    graph->arena += size;
    if (!tensor->state) {
        for (int32_t k = 0; k < graph->n_tensors; k++)
            tensors[k].offset += tensors[k].state ? size : 0;
        graph->floats += size;
        graph->parameters += count;
    }
    *index = graph->n_tensors++;
    return DPT_OK;
}

static void update(const struct dpt_tensor *t, double decay, int64_t samples, const float *sum,
                   float *params)
{
    for (int64_t i = t->offset; samples > 0 && i < t->offset + t->count; i++)
        params[i] =
            (float)(decay * (double)params[i] + (1 - decay) * ((double)sum[i] / (double)samples));
}

int64_t dpt_graph_variance_samples(const struct dpt_graph_node *node, int64_t whole, int32_t micro)
{
    return (int64_t)node->in.h * node->in.w > 1 ? 0 : node->whole_step ? whole : micro;
}

void dpt_graph_update_state(const struct dpt_graph *graph, const struct dpt_step_samples *samples,
                            const float *sum, float *params)
{
    const double share = (double)samples->step / (double)samples->whole;

    for (int32_t i = 0; i < graph->n_nodes && graph->arena > graph->floats; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const int64_t each = dpt_graph_variance_samples(node, samples->whole, samples->micro);
        double decay = node->attribute[DPT_BATCHNORM_DECAY];

        if (node->op != DPT_OP_BATCHNORM || node->by_running)
            continue;
        if (share < DPT_TINY_STEP)
            decay = 1 - (1 - decay) * share;
        update(&graph->tensors[node->mean], decay, samples->step, sum, params);
        update(&graph->tensors[node->variance], decay,
               samples->step - (each > 1 && samples->step % each == 1), sum, params);
    }
}

/* --- chunks ----------------------------------------------------------------------------------- */

/* A tensor's runs of floats that are cut by themselves, and into what pieces: all of it into whole
 * rows, or each long row. */
struct runs {
    size_t run, piece;
};

static struct runs runs_of(const struct dpt_tensor *t)
{
    const size_t row = t->n_dims > 1 ? (size_t)(t->whole / t->dims[0]) : 1;
    struct runs runs = {(size_t)t->count, row};

    if (t->count == 0) /* of another part */
        return (struct runs){1, 1};
    if (row > DPT_SUM_OF_SQUARES_CHUNK)
        return (struct runs){row, DPT_SUM_OF_SQUARES_CHUNK};
    while (2 * runs.piece <= DPT_SUM_OF_SQUARES_CHUNK)
        runs.piece *= 2;
    return runs;
}

static size_t pieces(const struct runs *runs)
{
    return (runs->run + runs->piece - 1) / runs->piece;
}

size_t dpt_tensor_chunks(const struct dpt_tensor *t)
{
    const struct runs runs = runs_of(t);

    return t->state ? 0 : (size_t)t->count / runs.run * pieces(&runs);
}

size_t dpt_tensor_whole_chunks(const struct dpt_tensor *t)
{
    struct dpt_tensor whole = *t;

    whole.count = whole.whole;
    return dpt_tensor_chunks(&whole);
}

size_t dpt_tensor_chunks_before(const struct dpt_tensor *t)
{
    struct dpt_tensor before = *t;

    before.count = before.first;
    return dpt_tensor_chunks(&before);
}

size_t dpt_tensor_chunk(const struct dpt_tensor *t, size_t chunk)
{
    const struct runs runs = runs_of(t);
    const size_t each = pieces(&runs);

    return (size_t)t->offset + chunk / each * runs.run + chunk % each * runs.piece;
}

size_t dpt_graph_chunk_count(const struct dpt_graph *graph)
{
    size_t n = 0;

    for (int32_t i = 0; i < graph->n_tensors; i++)
        n += dpt_tensor_chunks(&graph->tensors[i]);
    return n;
}

size_t dpt_graph_whole_chunks(const struct dpt_graph *graph)
{
    size_t n = 0;

    for (int32_t i = 0; i < graph->n_tensors; i++)
        n += dpt_tensor_whole_chunks(&graph->tensors[i]);
    return n;
}

enum dpt_status dpt_graph_chunks(const struct dpt_graph *graph, struct dpt_chunks *chunks,
                                 struct dpt_error *err)
{
    const size_t n = dpt_graph_chunk_count(graph);

    chunks->n = 0;
    if (DPT_ALLOCATE(chunks->begin, n + 1, "the norms of gradients", err) != DPT_OK)
        return err->status;
    for (int32_t i = 0; i < graph->n_tensors; i++)
        for (size_t k = 0; k < dpt_tensor_chunks(&graph->tensors[i]); k++)
            chunks->begin[chunks->n++] = dpt_tensor_chunk(&graph->tensors[i], k);
    chunks->begin[n] = (size_t)graph->floats;
    return DPT_OK;
}

/* Whether a node of [first, last) has this tensor. */
static bool is_of(const struct dpt_graph *graph, int32_t first, int32_t last, int32_t tensor)
{
    for (int32_t i = first; i < last; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];

        if (node->weight == tensor || node->bias == tensor || node->mean == tensor ||
            node->variance == tensor)
            return true;
    }
    return false;
}

/* From so many outputs and weights on it pays to divide a dense layer: less is soon computed. */
enum { DIVIDED_OUTPUTS = 64, DIVIDED_WEIGHTS = 64 * 1024 };

const struct dpt_graph_node *dpt_graph_divided(const struct dpt_graph *graph, int32_t tensor)
{
    const struct dpt_tensor *t = &graph->tensors[tensor];

    if (t->n_dims != 2 || t->dims[0] < DIVIDED_OUTPUTS || t->whole < DIVIDED_WEIGHTS)
        return NULL;
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == DPT_OP_DENSE && graph->nodes[i].weight == tensor)
            return &graph->nodes[i];
    return NULL;
}

/* Returns one of `ranks` parts of n, which begins at a multiple of `unit`. */
static struct dpt_range part_of(int64_t n, int64_t unit, int rank, int ranks)
{
    size_t begin, end;

    dpt_part_in_units((size_t)n, (size_t)unit, rank, ranks, &begin, &end);
    return (struct dpt_range){(int64_t)begin, (int64_t)end};
}

struct dpt_range dpt_tensor_rows(const struct dpt_graph *graph, int32_t tensor, int rank, int ranks)
{
    const struct dpt_tensor *t = &graph->tensors[tensor];
    int64_t unit = DPT_TENSOR_ALIGN;

    if (ranks == 1 || dpt_graph_divided(graph, tensor) == NULL)
        return (struct dpt_range){0, t->n_dims > 0 ? t->dims[0] : 1};
    while (2 * unit * t->dims[1] <= DPT_SUM_OF_SQUARES_CHUNK)
        unit *= 2;
    return part_of(t->dims[0], unit, rank, ranks);
}

struct dpt_range dpt_tensor_columns(const struct dpt_graph *graph, int32_t tensor, int rank,
                                    int ranks)
{
    return part_of(graph->tensors[tensor].dims[1], DPT_TENSOR_ALIGN, rank, ranks);
}

/* Gives the tensors of the part their places in its arena. */
static enum dpt_status place_tensors(const struct dpt_graph *graph, const struct dpt_part *which,
                                     struct dpt_graph *part, int64_t *learned, int64_t *state,
                                     struct dpt_error *err)
{
    /* floats of learned tensors and of state: those of the part, those of the whole before it, and
     * the float of the whole at which the part begins */
    int64_t floats[2] = {0}, passed[2] = {0}, begin[2] = {-1, -1};

    for (int32_t k = 0; k < graph->n_tensors; k++) {
        struct dpt_tensor *t = &part->tensors[k];
        const struct dpt_range rows = dpt_tensor_rows(graph, k, which->rank, which->ranks);
        const int64_t at = t->offset, row = t->n_dims > 0 ? t->whole / t->dims[0] : t->whole;

        t->offset = floats[t->state];
        if (!is_of(graph, which->first, which->last, k)) {
            t->count = t->whole = 0;
            continue;
        }
        if (begin[t->state] < 0)
            begin[t->state] = at;
        if (at - begin[t->state] != passed[t->state])
            return dpt_fail(err, DPT_INTERNAL, "%s lies apart from its neighbours", t->name);
        t->first = rows.first * row;
        t->count = (rows.last - rows.first) * row;
        passed[t->state] += (int64_t)dpt_round_up((size_t)t->whole, sizeof(float));
        floats[t->state] += (int64_t)dpt_round_up((size_t)t->count, sizeof(float));
        part->parameters += t->state ? 0 : t->count;
    }
    for (int32_t k = 0; k < graph->n_tensors; k++)
        part->tensors[k].offset += part->tensors[k].state ? floats[0] : 0;
    part->floats = floats[0];
    part->arena = floats[0] + floats[1];
    *learned = begin[0] < 0 ? graph->floats : begin[0];
    *state = begin[1] < 0 ? graph->arena : begin[1];
    return DPT_OK;
}

enum dpt_status dpt_graph_part(const struct dpt_graph *graph, const struct dpt_part *which,
                               struct dpt_graph *part, int64_t *learned, int64_t *state,
                               struct dpt_error *err)
{
    const size_t nodes = (size_t)graph->n_nodes, tensors = (size_t)graph->n_tensors;

    *part = (struct dpt_graph){.n_nodes = graph->n_nodes, .n_tensors = graph->n_tensors};
    part->nodes = dpt_grow(NULL, &part->node_room, nodes, sizeof *part->nodes);
    part->tensors = dpt_grow(NULL, &part->tensor_room, tensors, sizeof *part->tensors);
    if (part->nodes == NULL || part->tensors == NULL)
        return dpt_fail_memory(err, "the model's layers", (double)nodes * sizeof *part->nodes);
    memcpy(part->nodes, graph->nodes, nodes * sizeof *part->nodes);
    if (tensors > 0)
        memcpy(part->tensors, graph->tensors, tensors * sizeof *part->tensors);
    for (int32_t i = 0; i < graph->n_nodes && which->ranks > 1; i++) {
        struct dpt_graph_node *node = &part->nodes[i];

        if (node->weight < 0 || dpt_graph_divided(graph, node->weight) == NULL)
            continue;
        node->divided = true;
        node->own_outputs = dpt_tensor_rows(graph, node->weight, which->rank, which->ranks);
        node->own_inputs = dpt_tensor_columns(graph, node->weight, which->rank, which->ranks);
    }
    return place_tensors(graph, which, part, learned, state, err);
}

size_t dpt_graph_from(const struct dpt_graph *graph, int32_t node, bool state)
{
    size_t begin = (size_t)(state ? graph->arena : graph->floats);

    for (int32_t i = node; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *at = &graph->nodes[i];
        const int32_t tensors[] = {at->weight, at->bias, at->mean, at->variance};

        for (int k = 0; k < 4; k++)
            if (tensors[k] >= 0 && graph->tensors[tensors[k]].state == state &&
                (size_t)graph->tensors[tensors[k]].offset < begin)
                begin = (size_t)graph->tensors[tensors[k]].offset;
    }
    return begin;
}

bool dpt_graph_wants_dx(const struct dpt_graph *graph, int32_t node)
{
    const struct dpt_graph_node *at = &graph->nodes[node];
    bool wants = false;

    for (int32_t k = 0; k < at->n_inputs; k++)
        wants = wants || graph->nodes[at->inputs[k]].learns;
    return wants;
}

void dpt_graph_release(struct dpt_graph *graph)
{
    free(graph->nodes);
    free(graph->tensors);
    *graph = (struct dpt_graph){0};
}
