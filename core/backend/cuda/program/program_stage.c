/*
 * What a pipeline stage gets from others, and gives them: values go through pinned memory, separate
 * for each micro-batch in flight, in the layout that they have on the device.
 */
#include "core/backend/cuda/program/program_stage.h"
#include "core/backend/cuda/program/program_passes.h"

static bool has_edge(const struct dpt_cuda_program *p, enum dpt_cuda_edge edge)
{
    return edge == DPT_CUDA_EDGE_IN ? p->spec.first > 0
                                    : dpt_cuda_is_stage(p) && p->spec.last < p->spec.graph->n_nodes;
}

/* The tensor that node `node` reads as its first input. */
static const struct dpt_cuda_node_layout *read_by(const struct dpt_cuda_program *p, int32_t node)
{
    return dpt_cuda_node_layout_of(p, dpt_cuda_node_layout_of(p, dpt_cuda_before(p, node))->tensor);
}

static const struct dpt_cuda_node_layout *at_edge(const struct dpt_cuda_program *p,
                                                  enum dpt_cuda_edge edge)
{
    return read_by(p, edge == DPT_CUDA_EDGE_IN ? p->spec.first : p->spec.last);
}

static int64_t bytes_of(const struct dpt_cuda_program *p, const struct dpt_cuda_node_layout *f)
{
    return dpt_cuda_form_elements(f, p->micro) * p->lists->memory_layout.element;
}

/* Messages come before the first pass, so they are there from the beginning. */
enum dpt_status dpt_cuda_hold_edges(struct dpt_cuda_program *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (enum dpt_cuda_edge k = 0; k < DPT_CUDA_EDGES; k++) {
        struct dpt_cuda_piece piece = {.what = "what stages tell each other",
                                       .at = (void **)&p->lists->edge[k],
                                       .pinned = true};

        if (!has_edge(p, k))
            continue;
        piece.bytes = bytes_of(p, at_edge(p, k));
        DPT_TRY(dpt_cuda_hold(&p->ctx, &piece, 1, err));
    }
out:
    return status;
}

void *dpt_cuda_edge_of(const struct dpt_cuda_program *p, enum dpt_cuda_edge edge, bool gradient,
                       size_t *bytes)
{
    const struct dpt_cuda_node_layout *f;

    if (!has_edge(p, edge))
        return NULL;
    f = at_edge(p, edge);
    *bytes = (size_t)bytes_of(p, f);
    return gradient ? dpt_cuda_gradient(p, f->dy) : p->lists->values + f->y;
}

enum dpt_status dpt_cuda_move_edge(struct dpt_cuda_program *p, enum dpt_cuda_edge edge,
                                   bool gradient, struct dpt_error *err)
{
    const bool given = (edge == DPT_CUDA_EDGE_IN) != gradient;
    size_t bytes;
    void *const at = dpt_cuda_edge_of(p, edge, gradient, &bytes);

    if (at == NULL)
        return DPT_OK;
    return given ? dpt_cuda_to_device(&p->ctx, at, p->lists->edge[edge], bytes, err)
                 : dpt_cuda_to_host(&p->ctx, p->lists->edge[edge], at, bytes, err);
}

enum dpt_status dpt_cuda_fetch_outputs(struct dpt_cuda_program *p, int64_t rows,
                                       struct dpt_error *err)
{
    const size_t width = (size_t)p->lists->memory_layout.outputs;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_run_list(p, DPT_CUDA_ANSWERS, false, false, err));
    DPT_TRY(dpt_cuda_to_host(&p->ctx, p->lists->answers, p->lists->rows,
                             (size_t)rows * width * sizeof(float), err));
out:
    return status;
}

float *dpt_cuda_stage_value(const struct dpt_cuda_program *p, int32_t node, bool gradient,
                            size_t *floats)
{
    const struct dpt_cuda_node_layout *f;

    if (node == p->spec.graph->n_nodes) {
        *floats = (size_t)(p->micro * p->lists->memory_layout.outputs);
        return gradient ? NULL : p->lists->answers;
    }
    f = read_by(p, node);
    *floats = (size_t)bytes_of(p, f) / sizeof(float);
    if (gradient && f->dy == DPT_CUDA_NONE)
        return NULL;
    return node == p->spec.first  ? p->lists->edge[DPT_CUDA_EDGE_IN]
           : node == p->spec.last ? p->lists->edge[DPT_CUDA_EDGE_OUT]
                                  : NULL;
}
