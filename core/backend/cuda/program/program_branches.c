/*
 * The two branches of a backward pass. What only makes gradients of parameters (filter gradients,
 * biases' sums, their conversion to the arena) is needed by nobody before the pass ends. So in
 * whole steps it goes to a stream of its own, `filters`, beside the chain of data gradients on
 * `compute`. Both are captured: a graph has two branches then.
 *
 * The second branch waits for all of the chain that was enqueued before it (fork), and the step
 * waits for both (join). It has workspace, partial sums and counters of its own. The chain may
 * write a buffer of gradients that the second branch still reads only after that read
 * (dpt_cuda_branches_before); outputs of layers are not written in backward. While a profile is
 * recorded, and if the host drives, there is one stream.
 */
#include "core/backend/cuda/program/program.h"
#include "core/base/memory.h"

enum dpt_status dpt_cuda_branches_open(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_branches *b = &p->lists->branches;
    enum dpt_status status = DPT_OK;

    if (!dpt_cuda_has_branches(&p->spec) || b->readers != NULL)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(b->readers, (size_t)p->spec.graph->n_nodes, "the model", err));
    DPT_TRY(dpt_cuda_event(&p->ctx, CU_EVENT_DISABLE_TIMING, &b->forked, err));
    DPT_TRY(dpt_cuda_event(&p->ctx, CU_EVENT_DISABLE_TIMING, &b->joined, err));
out:
    return status;
}

void dpt_cuda_branches_begin(struct dpt_cuda_program *p)
{
    struct dpt_cuda_branches *b = &p->lists->branches;

    b->on = b->readers != NULL && p->lists->spans == NULL;
    b->aside = b->used = false;
    b->moved = true;
    for (int i = 0; i < b->n_readers; i++)
        b->readers[i].pending = false;
}

void dpt_cuda_branches_drop(struct dpt_cuda_program *p)
{
    p->lists->branches.on = p->lists->branches.aside = false;
}

CUstream dpt_cuda_stream(const struct dpt_cuda_program *p)
{
    return p->lists->branches.aside ? p->ctx.filters : p->ctx.compute;
}

enum dpt_status dpt_cuda_branches_fork(struct dpt_cuda_program *p, CUstream *stream,
                                       struct dpt_error *err)
{
    struct dpt_cuda_branches *b = &p->lists->branches;
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;

    *stream = b->on ? p->ctx.filters : p->ctx.compute;
    b->aside = b->on;
    if (!b->on || !b->moved)
        goto out;
    DPT_CUDA_TRY(lib, cuEventRecord(b->forked, p->ctx.compute));
    DPT_CUDA_TRY(lib, cuStreamWaitEvent(p->ctx.filters, b->forked, 0));
    b->moved = false;
    b->used = true;
out:
    return status;
}

void dpt_cuda_branches_return(struct dpt_cuda_program *p)
{
    p->lists->branches.aside = false;
}

enum dpt_status dpt_cuda_branches_join(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_branches *b = &p->lists->branches;
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;

    if (b->on && b->used) {
        DPT_CUDA_TRY(lib, cuEventRecord(b->joined, p->ctx.filters));
        DPT_CUDA_TRY(lib, cuStreamWaitEvent(p->ctx.compute, b->joined, 0));
    }
out:
    dpt_cuda_branches_drop(p);
    return status;
}

/* --- buffers that are read aside -------------------------------------------------------------- */

/* The reader of a buffer, made if there is none; so before a capture all readers exist. */
static enum dpt_status reader_of(struct dpt_cuda_program *p, int64_t place,
                                 struct dpt_cuda_reader **reader, struct dpt_error *err)
{
    struct dpt_cuda_branches *b = &p->lists->branches;
    enum dpt_status status = DPT_OK;
    int i = 0;

    while (i < b->n_readers && b->readers[i].place != place)
        i++;
    *reader = &b->readers[i];
    if (i < b->n_readers)
        goto out;
    DPT_TRY(dpt_cuda_event(&p->ctx, CU_EVENT_DISABLE_TIMING, &b->readers[i].read, err));
    b->readers[i].place = place;
    b->n_readers++;
out:
    return status;
}

enum dpt_status dpt_cuda_branches_after(struct dpt_cuda_program *p, int32_t node,
                                        struct dpt_error *err)
{
    struct dpt_cuda_branches *b = &p->lists->branches;
    const int64_t place = dpt_cuda_node_layout_of(p, node)->dz;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_reader *reader;

    if (!b->on || place == DPT_CUDA_NONE)
        goto out;
    DPT_TRY(reader_of(p, place, &reader, err));
    DPT_CUDA_TRY(&p->ctx.lib, cuEventRecord(reader->read, p->ctx.filters));
    reader->pending = true;
out:
    return status;
}

enum dpt_status dpt_cuda_branches_before(struct dpt_cuda_program *p, int32_t node,
                                         struct dpt_error *err)
{
    struct dpt_cuda_branches *b = &p->lists->branches;
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, node);
    enum dpt_status status = DPT_OK;

    for (int i = 0; b->on && i < b->n_readers; i++) {
        struct dpt_cuda_reader *r = &b->readers[i];
        bool writes = r->place == f->dy || r->place == f->dz;

        for (int k = 0; k < DPT_MAX_INPUTS; k++)
            writes |= r->place == f->dx[k] || r->place == f->sum[k];
        if (!writes || !r->pending)
            continue;
        DPT_CUDA_TRY(&p->ctx.lib, cuStreamWaitEvent(p->ctx.compute, r->read, 0));
        r->pending = false;
    }
out:
    return status;
}
