/*
 * Micro-batches from the host's memory: the pinned memory through which they and their results
 * travel, and the lock by which one thread at a time uses the program.
 *
 * Data are sent from pinned memory, which must not change before they have arrived: a call
 * therefore enqueues all of its sub-batches, each from its own part, before it waits.
 */
#include <string.h>

#include "core/backend/cuda/program/program_passes.h"

/* --- pinned memory ---------------------------------------------------------------------------- */

enum { PINNED = 12 };

/* The pitch of the widest synchronized norm; 0: there is none. */
static int64_t widest_norm(const struct dpt_cuda_program *p)
{
    int64_t widest = 0;

    for (int32_t i = 0; i < p->spec.graph->n_nodes; i++)
        if (p->spec.graph->nodes[i].whole_step && dpt_cuda_node_layout_of(p, i)->pitch > widest)
            widest = dpt_cuda_node_layout_of(p, i)->pitch;
    return widest;
}

/* The pieces of pinned memory. */
static void pinned_of(struct dpt_cuda_program *p, struct dpt_cuda_piece pieces[PINNED])
{
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_graph *graph = p->spec.graph;
    const int64_t micro = p->spec.micro,
                  in = dpt_program_computes(&p->spec, 0) ? dpt_shape_size(&graph->nodes[0].out) : 0,
                  out = l->memory_layout.outputs,
                  sub_batches = (p->spec.micro + p->micro - 1) / p->micro;
    const int64_t widest = widest_norm(p);
    const struct dpt_cuda_piece rows[PINNED] = {
        {"the steps' numbers", sub_batches * (int64_t)sizeof *l->control, (void **)&l->control,
         true},
        {"the metric sums", sub_batches * (int64_t)sizeof *l->metric_sums, (void **)&l->metric_sums,
         true},
        {"the samples", micro * in * 4, (void **)&l->input, true},
        {"the labels", micro * 4, (void **)&l->labels, true},
        {"the targets", micro * out * 4, (void **)&l->targets, true},
        {"the samples' weights", micro * 4, (void **)&l->weights, true},
        {"the samples' numbers", micro * 8, (void **)&l->sample, true},
        {"the parameters", graph->arena * 4, (void **)&l->arena, true},
        {"the outputs", p->micro * out * 4, (void **)&l->answers, true},
        {"the statistics", DPT_CUDA_STATISTICS_FORWARD * widest * (int64_t)sizeof *l->norm_rows,
         (void **)&l->norm_rows, true},
        {"the statistics", 2 * widest * (int64_t)sizeof *l->norm_sums, (void **)&l->norm_sums,
         true},
        {"the search for what is no number", 2 * graph->n_nodes * (int64_t)8,
         (void **)&l->positions, true},
    };

    memcpy(pieces, rows, sizeof rows);
}

/* Allocates pinned memory at the first call, since whole steps on the device do not need it. */
static enum dpt_status hold_pinned(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_piece pieces[PINNED], firsts[PINNED];
    enum dpt_status status = DPT_OK;

    if (p->lists->positions != NULL)
        return DPT_OK;
    pinned_of(p, pieces);
    if (p->first == p)
        return dpt_cuda_hold(&p->ctx, DPT_CUDA_ROWS(pieces), err);
    DPT_TRY(hold_pinned(p->first, err));
    pinned_of(p->first, firsts);
    for (int i = 0; i < PINNED; i++)
        *pieces[i].at = *firsts[i].at;
out:
    return status;
}

enum dpt_status dpt_cuda_lock(struct dpt_cuda_program *p, struct dpt_error *err)
{
    enum dpt_status status;

    pthread_mutex_lock(&p->first->lock);
    status = dpt_cuda_context_enter(&p->ctx, err);
    return status == DPT_OK ? hold_pinned(p, err) : status;
}

enum dpt_status dpt_cuda_wait(struct dpt_cuda_program *p, struct dpt_error *err)
{
    return dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err);
}

void dpt_cuda_unlock(struct dpt_cuda_program *p, enum dpt_status status)
{
    struct dpt_error ignored;

    if (status != DPT_OK)
        dpt_cuda_wait(p, &ignored);
    pthread_mutex_unlock(&p->first->lock);
}

void dpt_cuda_mark(struct dpt_cuda_program *p, int what)
{
    if (p->lists->spans != NULL)
        dpt_spans_mark(p->lists->spans, what);
}

/* --- samples in, metric sums out -------------------------------------------------------------- */

enum dpt_status dpt_cuda_send_sub_batch(struct dpt_cuda_program *p, const struct dpt_batch *batch,
                                        int32_t sub_batch, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const struct dpt_shape *shape = &p->spec.graph->nodes[0].out;
    struct dpt_cuda_lists *l = p->lists;
    const size_t in = (size_t)dpt_shape_size(shape) * 4, out = (size_t)l->memory_layout.outputs * 4;
    const size_t first = (size_t)sub_batch * (size_t)p->micro, left = (size_t)batch->count - first;
    const size_t rows = left < (size_t)p->micro ? left : (size_t)p->micro;
    const struct {
        const void *from;
        void *pinned, *to;
        size_t bytes; /* bytes of a row */
        bool clear;
    } fields[] = {
        {batch->input, l->input, p->input, in, true},
        {batch->sample, l->sample, p->sample, sizeof *l->sample, false},
        {batch->labels, l->labels, p->labels, sizeof *l->labels, false},
        {batch->targets, l->targets, p->targets, out, true},
        {batch->weights, l->weights, p->weights, sizeof *l->weights, true},
    };
    enum dpt_status status = DPT_OK;

    l->first = (int32_t)first;
    l->control[sub_batch] =
        (struct dpt_cuda_control){.seed = batch->seed, .step = batch->step, .count = (int32_t)rows};
    DPT_TRY(
        dpt_cuda_to_device(&p->ctx, p->control, &l->control[sub_batch], sizeof *p->control, err));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const size_t bytes = rows * fields[i].bytes, skip = first * fields[i].bytes;
        const size_t rest = ((size_t)p->micro - rows) * fields[i].bytes;
        char *pinned = (char *)fields[i].pinned + skip;

        if (fields[i].from == NULL || fields[i].to == NULL) /* not every stage reads samples */
            continue;
        memcpy(pinned, (const char *)fields[i].from + skip, bytes);
        DPT_TRY(dpt_cuda_to_device(&p->ctx, fields[i].to, pinned, bytes, err));
        if (fields[i].clear && rest > 0)
            DPT_CUDA_TRY(
                lib, cuMemsetD8Async(dpt_cuda_ptr(fields[i].to) + bytes, 0, rest, p->ctx.compute));
    }
    dpt_cuda_program_targets(p, batch->targets != NULL, batch->weights != NULL);
    DPT_CUDA_TRY(lib, cuMemsetD8Async(dpt_cuda_ptr(p->metric_sums), 0, sizeof *p->metric_sums,
                                      p->ctx.compute));
    if (l->spans != NULL)
        DPT_TRY(dpt_cuda_wait(p, err));
    dpt_cuda_mark(p, DPT_SPAN_DATA);
    DPT_TRY(dpt_cuda_run_list(p, DPT_CUDA_FROM_STAGED, true, false, err));
out:
    return status;
}

enum dpt_status dpt_cuda_fetch_metric_sums(struct dpt_cuda_program *p, int32_t sub_batch,
                                           struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_to_host(&p->ctx, &p->lists->metric_sums[sub_batch], p->metric_sums,
                             sizeof *p->metric_sums, err));
    /* Steps on the device are started without being waited for (steps.h). */
    DPT_CUDA_TRY(lib, cuMemsetD8Async(dpt_cuda_ptr(p->metric_sums), 0, sizeof *p->metric_sums,
                                      p->ctx.compute));
out:
    return status;
}

void dpt_cuda_add_metric_sums(struct dpt_metric_sums *to, const struct dpt_cuda_metric_sums *from)
{
    const struct dpt_metric_sums more = {from->loss, from->correct, from->samples, from->weight};

    dpt_metric_sums_add(to, &more);
}
