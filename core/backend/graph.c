#include "core/backend/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/*
 * Makes room for one more element behind n; the capacity is n's next power of two, so that it need
 * not be stored. Returns the array, or NULL with the old one untouched.
 */
static void *grow(void *array, int32_t n, size_t size, const char *what, struct dpt_error *err)
{
    const bool full = (n & (n - 1)) == 0;
    const size_t capacity = n == 0 ? 1 : 2 * (size_t)n;
    void *larger;

    if (!full)
        return array;
    larger = n < INT32_MAX / 2 ? realloc(array, capacity * size) : NULL;
    if (larger == NULL)
        dpt_fail_memory(err, what, (double)capacity * (double)size);
    return larger;
}

enum dpt_status dpt_graph_add(struct dpt_graph *graph, const struct dpt_graph_node *node,
                              int32_t *index, struct dpt_error *err)
{
    struct dpt_graph_node *nodes =
        grow(graph->nodes, graph->n_nodes, sizeof *nodes, "the model's layers", err);

    if (nodes == NULL)
        return err->status;
    graph->nodes = nodes;
    nodes[graph->n_nodes] = *node;
    *index = graph->n_nodes++;
    return DPT_OK;
}

/* Product of the dims, or -1 where it is more than an arena could ever hold. */
static int64_t count_elements(const struct dpt_tensor *tensor)
{
    const int64_t most = INT64_MAX / 64;
    int64_t count = 1;

    for (int d = 0; d < tensor->n_dims; d++) {
        if (tensor->dims[d] > 0 && count > most / tensor->dims[d])
            return -1;
        count *= tensor->dims[d];
    }
    return count;
}

enum dpt_status dpt_graph_add_tensor(struct dpt_graph *graph, const struct dpt_tensor *tensor,
                                     int32_t *index, struct dpt_error *err)
{
    const int64_t count = count_elements(tensor);
    struct dpt_tensor *tensors, *added;

    if (count < 0 || count > INT64_MAX / 64 - graph->floats)
        return dpt_fail(err, DPT_RANK, "%s: more parameters than any memory holds", tensor->name);
    tensors = grow(graph->tensors, graph->n_tensors, sizeof *tensors, "the model's tensors", err);
    if (tensors == NULL)
        return err->status;
    graph->tensors = tensors;
    added = &tensors[graph->n_tensors];
    *added = *tensor;
    added->count = count;
    added->offset = graph->floats;
    graph->floats += (count + DPT_TENSOR_ALIGN - 1) / DPT_TENSOR_ALIGN * DPT_TENSOR_ALIGN;
    graph->parameters += count;
    *index = graph->n_tensors++;
    return DPT_OK;
}

void dpt_graph_release(struct dpt_graph *graph)
{
    free(graph->nodes);
    free(graph->tensors);
    *graph = (struct dpt_graph){0};
}
