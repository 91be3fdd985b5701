/* Assigns buffers to the layers' gradients. A buffer is taken when a gradient's first part is
 * computed, and used again when no node will read it any more. In a chain of layers two buffers
 * alternate, or three if backward has two branches. */
#include "core/backend/cuda/program/program.h"
#include "core/base/memory.h"

struct buffer {
    int64_t bytes;
    int32_t users; /* gradients that are in it */
};

/* The state of the assignment, which goes through backward. A value's gradient is that of the node
 * whose tensor it is. */
struct placing {
    struct buffer *buffer;
    int32_t n;
    /* [nodes]: the buffer with the gradient so far; DPT_CUDA_NONE: there is none yet. */
    int64_t *in;
    /* Buffers that are free again after the present node. */
    int64_t left[2 + 2 * DPT_MAX_INPUTS];
    int n_left;
    /* The buffer that the second branch reads last (program_branches.c): it is free when that
     * branch reads another buffer, so that the first branch need not wait for it. */
    int64_t read;
};

/* Takes a buffer without users: the smallest that is large enough, or else the largest, which
 * grows. */
static int64_t take(struct placing *g, int64_t bytes)
{
    int64_t best = DPT_CUDA_NONE;

    for (int32_t b = 0; b < g->n; b++) {
        const int64_t has = g->buffer[b].bytes;
        const int64_t least = best == DPT_CUDA_NONE ? -1 : g->buffer[best].bytes;

        if (g->buffer[b].users == 0 && (least < bytes ? has > least : has >= bytes && has < least))
            best = b;
    }
    if (best == DPT_CUDA_NONE)
        best = g->n++;
    if (bytes > g->buffer[best].bytes)
        g->buffer[best].bytes = bytes;
    g->buffer[best].users = 1;
    return best;
}

static void leave(struct placing *g, int64_t buffer)
{
    g->left[g->n_left++] = buffer;
}

/* Assigns the buffer for a node's contribution to an input's gradient. *own: the buffer of dz,
 * which dx may take over if no other gradient is in it. */
static void place_part(struct placing *g, const struct dpt_cuda_op *op, int64_t *own, int64_t bytes,
                       int64_t *in, int64_t *dx, int64_t *sum)
{
    const bool alone = *own != DPT_CUDA_NONE && g->buffer[*own].users == 1;

    *sum = *in;
    if (op->passes_dy && *in == DPT_CUDA_NONE) {
        *dx = *own;
        g->buffer[*own].users++;
    } else if (op->passes_dy && g->buffer[*in].users == 1) {
        *dx = *in;
    } else if (op->in_place && alone) {
        *dx = *own;
        *own = DPT_CUDA_NONE;
    } else {
        *dx = take(g, bytes);
    }
    if (*in != DPT_CUDA_NONE && *in != *dx)
        leave(g, *in);
    *in = *dx;
}

/* Whether node i, which has just added its part to the gradient of its input x, can leave that to
 * x's own backward: the next one to compute a gradient, by a kernel that adds both parts. */
static bool leaves_sum(const struct dpt_program_spec *spec,
                       const struct dpt_cuda_memory_layout *memory_layout, int32_t i, int32_t x)
{
    const struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    const bool adds = spec->graph->nodes[x].op == DPT_OP_BATCHNORM ||
                      memory_layout->node[x].joined != DPT_CUDA_NONE;

    for (int32_t k = x + 1; k < i; k++) {
        const struct dpt_cuda_node_layout *between = &memory_layout->node[k];

        if (between->live && !between->skipped && between->wants_dy)
            return false;
    }
    return adds && f->sum[0] != DPT_CUDA_NONE && f->sum[0] != f->dx[0] &&
           spec->graph->nodes[i].n_inputs == 1 && dpt_program_computes(spec, x) &&
           dpt_program_computes(spec, i);
}

/* The bytes of the gradient of a node's tensor; 0 if that is another stage's. */
static int64_t bytes_of(const struct dpt_cuda_memory_layout *memory_layout, int32_t i,
                        int64_t micro)
{
    const struct dpt_cuda_node_layout *f = &memory_layout->node[i];

    return f->there ? dpt_cuda_form_elements(f, micro) * memory_layout->element : 0;
}

static void place_node(const struct dpt_program_spec *spec, int64_t micro,
                       struct dpt_cuda_memory_layout *memory_layout, struct placing *g, int32_t i)
{
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    const enum dpt_operation_class kind = dpt_operation_of(node)->kind;
    const bool reads_aside = dpt_cuda_has_branches(spec) &&
                             (kind == DPT_CLASS_CONV || kind == DPT_CLASS_GEMM) &&
                             dpt_graph_updates(spec->graph, node->weight);
    const struct dpt_cuda_op *op = dpt_cuda_ops[node->op];
    struct dpt_cuda_node_layout *f = &memory_layout->node[i];
    int64_t own = g->in[i];

    f->dy = f->dz = own;
    if (f->more != DPT_CUDA_NONE) /* the node's first kernel reads it */
        g->buffer[f->more].users--;
    if (f->relu && op->fuses_relu && !op->keeps_dy && g->buffer[own].users > 1) {
        leave(g, own);
        f->dz = own = take(g, bytes_of(memory_layout, i, micro));
    }
    for (int32_t k = 0; k < node->n_inputs; k++) {
        const int32_t x = memory_layout->node[node->inputs[k]].tensor;

        if (memory_layout->node[x].wants_dy)
            place_part(g, op, &own, bytes_of(memory_layout, x, micro), &g->in[x], &f->dx[k],
                       &f->sum[k]);
        if (memory_layout->node[x].wants_dy && leaves_sum(spec, memory_layout, i, x)) {
            memory_layout->node[x].more = f->sum[k];
            g->buffer[f->sum[k]].users++;
            f->sum[k] = DPT_CUDA_NONE;
        }
    }
    if (own != DPT_CUDA_NONE && reads_aside) {
        if (g->read != DPT_CUDA_NONE)
            leave(g, g->read);
        g->read = own;
    } else if (own != DPT_CUDA_NONE) {
        leave(g, own);
    }
    while (g->n_left > 0)
        g->buffer[g->left[--g->n_left]].users--;
}

/* Replaces numbers of buffers by offsets in bytes. */
static void place_buffers(const struct dpt_graph *graph,
                          struct dpt_cuda_memory_layout *memory_layout, const struct placing *g,
                          int64_t *at)
{
    for (int32_t b = 0; b < g->n; b++)
        at[b] = dpt_cuda_take(&memory_layout->bytes[DPT_CUDA_DY], g->buffer[b].bytes);
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        struct dpt_cuda_node_layout *f = &memory_layout->node[i];
        int64_t *const places[] = {&f->dy,    &f->more,   &f->dz,    &f->dx[0],
                                   &f->dx[1], &f->sum[0], &f->sum[1]};

        for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
            if (*places[k] != DPT_CUDA_NONE)
                *places[k] = at[*places[k]];
        }
    }
}

enum dpt_status dpt_cuda_place_gradients(const struct dpt_program_spec *spec, int64_t micro,
                                         struct dpt_cuda_memory_layout *memory_layout,
                                         struct dpt_error *err)
{
    const size_t nodes = (size_t)spec->graph->n_nodes, most = nodes * (2 + DPT_MAX_INPUTS);
    const int32_t last = memory_layout->node[memory_layout->last].tensor;
    struct placing g = {.read = DPT_CUDA_NONE};
    enum dpt_status status = DPT_OK;
    int64_t *at = NULL;

    DPT_TRY(DPT_ALLOCATE(g.buffer, most, "the model", err));
    DPT_TRY(DPT_ALLOCATE(g.in, nodes, "the model", err));
    DPT_TRY(DPT_ALLOCATE(at, most, "the model", err));
    for (size_t i = 0; i < nodes; i++)
        g.in[i] = DPT_CUDA_NONE;
    if (memory_layout->node[last].wants_dy)
        g.in[last] = take(&g, bytes_of(memory_layout, last, micro));
    for (int32_t i = memory_layout->last; i > 0; i--) {
        const struct dpt_cuda_node_layout *f = &memory_layout->node[i];

        if (f->live && !f->skipped && f->wants_dy)
            place_node(spec, micro, memory_layout, &g, i);
    }
    /* The loss writes it to the gradient of the model's last node. */
    memory_layout->node[memory_layout->last].dy = memory_layout->node[last].dy;
    place_buffers(spec->graph, memory_layout, &g, at);
out:
    dpt_free(g.buffer);
    dpt_free(g.in);
    dpt_free(at);
    return status;
}
