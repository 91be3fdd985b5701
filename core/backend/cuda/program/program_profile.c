/*
 * Measures each launch of a profiled program. The steps themselves only record what they launch.
 * Afterwards each launch is repeated in a graph, as a step's graph runs it, with the numbers that
 * the last step left. What these repetitions change is saved before and restored afterwards.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program_time.h"
#include "core/base/memory.h"

/* --- what launches change --------------------------------------------------------------------- */

struct range {
    void *at;
    int64_t bytes;
};

enum { FIXED = 6 };

static bool has(const struct range *ranges, int n, const void *at)
{
    while (n > 0 && ranges[n - 1].at != at)
        n--;
    return n > 0;
}

/*
 * The ranges of memory that repeated launches change and a later step reads. The layers' outputs
 * and their gradients are not among them, since each step writes them before it reads them. ranges:
 * FIXED, and as many as all records have slots.
 */
static int changes(const struct dpt_cuda_program *p, struct range *ranges)
{
    const struct dpt_cuda_lists *l = p->lists;
    const int64_t *bytes = l->memory_layout.bytes;
    const struct range fixed[FIXED] = {
        {p->control, sizeof *p->control},         {p->state, sizeof *p->state},
        {p->metric_sums, sizeof *p->metric_sums}, {p->params, bytes[DPT_CUDA_PARAMS]},
        {l->copies, bytes[DPT_CUDA_COPIES]},      {p->gradient, bytes[DPT_CUDA_GRADIENT]}};
    int n = 0;

    for (int i = 0; i < FIXED; i++) {
        if (fixed[i].bytes > 0)
            ranges[n++] = fixed[i];
    }
    for (int i = 0; i < l->n_records; i++) {
        const struct dpt_cuda_entry *e = &l->records[i].entry;

        const struct dpt_cuda_update_args *update = &e->args.update;
        const int64_t end = update->end < update->n ? update->end : update->n;

        if (e->what != DPT_CUDA_KERNEL || e->span != DPT_SPAN_OPTIMIZER || end <= update->first)
            continue;
        for (int k = 0; k < DPT_RULE_MOST_SLOTS; k++) { /* of the rule, and of the average */
            float *at = update->slot[k] != NULL ? update->slot[k] + update->first : NULL;

            if (at != NULL && !has(ranges, n, at))
                ranges[n++] = (struct range){at, (end - update->first) * (int64_t)sizeof *at};
        }
    }
    return n;
}

/* Copies the ranges to or from one buffer, in which they follow one another. */
static enum dpt_status move(struct dpt_cuda_program *p, const struct range *ranges, int n,
                            CUdeviceptr saved, bool back, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < n; i++) {
        const CUdeviceptr at = dpt_cuda_ptr(ranges[i].at);

        DPT_CUDA_TRY(&p->ctx.lib, cuMemcpyDtoDAsync(back ? at : saved, back ? saved : at,
                                                    (size_t)ranges[i].bytes, p->ctx.compute));
        saved += (CUdeviceptr)ranges[i].bytes;
    }
out:
    return status;
}

/* --- times ------------------------------------------------------------------------------------ */

struct repeated_entry {
    struct dpt_cuda_program *p;
    struct dpt_cuda_record *record;
};

static enum dpt_status enqueue(void *arg, struct dpt_error *err)
{
    const struct repeated_entry *r = arg;

    return dpt_cuda_enqueue_entry(r->p, &r->record->entry, r->record->add, err);
}

static enum dpt_status time_record(struct dpt_cuda_program *p, struct dpt_cuda_record *r,
                                   struct dpt_error *err)
{
    struct repeated_entry arg = {p, r};
    struct dpt_cuda_repeat repeat = {0};
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_repeat_open(p, enqueue, &arg, &repeat, err));
    for (int rounds = 1; dpt_cuda_repeat_more(&repeat, rounds); rounds++)
        DPT_TRY(dpt_cuda_repeat_time(p, &repeat, err));
    r->ms = (double)repeat.least;
out:
    dpt_cuda_repeat_close(p, &repeat);
    return status;
}

static enum dpt_status allocate(struct dpt_cuda_program *p, int64_t bytes, CUdeviceptr *at,
                                struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const CUresult result = lib->cuMemAlloc(at, (size_t)bytes);
    char text[32];

    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return dpt_cuda_check(lib, result, "cuMemAlloc", err);
    *at = 0;
    return dpt_fail(err, DPT_BAD_JOB,
                    "the GPU's memory is too small to time each launch: %s are needed to keep the "
                    "optimizer's state aside; a smaller batch.micro leaves more",
                    dpt_show_bytes((double)bytes, text));
}

static enum dpt_status time_all(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    struct dpt_cuda_lists *l = p->lists;
    const size_t most = FIXED + (size_t)l->n_records * DPT_RULE_MOST_SLOTS;
    enum dpt_status status = DPT_OK, back;
    struct dpt_error ignored;
    struct range *ranges = NULL;
    CUdeviceptr saved = 0;
    int64_t bytes = 0;
    int n;

    DPT_TRY(DPT_ALLOCATE(ranges, most, "the times of launches", err));
    n = changes(p, ranges);
    for (int k = 0; k < n; k++)
        bytes += ranges[k].bytes;
    DPT_TRY(allocate(p, bytes, &saved, err));
    DPT_TRY(move(p, ranges, n, saved, false, err));
    for (int i = 0; i < l->n_records; i++) {
        status = time_record(p, &l->records[i], err);
        back = move(p, ranges, n, saved, true, status == DPT_OK ? err : &ignored);
        DPT_TRY(status);
        DPT_TRY(back);
    }
    DPT_TRY(dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err));
out:
    if (saved != 0) {
        lib->cuStreamSynchronize(p->ctx.compute);
        lib->cuMemFree(saved);
    }
    dpt_free(ranges);
    return status;
}

double dpt_cuda_program_flops(const struct dpt_cuda_program *p)
{
    double flops = 0;

    for (const struct dpt_cuda_math *m = p->lists->maths; m != NULL; m = m->next)
        flops += m->flops;
    return flops;
}

/* --- the result ------------------------------------------------------------------------------- */

static int64_t bytes_of(const struct dpt_cuda_entry *e)
{
    if (e->what == DPT_CUDA_KERNEL)
        return dpt_cuda_kernel_bytes(e->kernel, &e->args);
    if (e->what == DPT_CUDA_MATH)
        return e->math->array[DPT_CUDA_X].bytes + e->math->array[DPT_CUDA_W].bytes +
               e->math->array[DPT_CUDA_Y].bytes;
    return e->what == DPT_CUDA_FILL ? e->bytes : 2 * e->bytes;
}

static void describe(const struct dpt_cuda_entry *e, char *text, size_t size)
{
    static const char *const passes[] = {"forward", "data", "filter"};

    if (e->what == DPT_CUDA_KERNEL)
        snprintf(text, size, "%s", dpt_cuda_kernel_name(e->kernel) + strlen("dpt_cuda_"));
    else if (e->what == DPT_CUDA_MATH)
        snprintf(text, size, "%s %s%s", e->math->dense ? "product" : "convolution",
                 passes[e->math->pass],
                 e->math->bias && e->math->relu ? " + bias + relu"
                 : e->math->bias                ? " + bias"
                 : e->math->relu                ? " + relu"
                                                : "");
    else
        snprintf(text, size, "%s", e->what == DPT_CUDA_FILL ? "zeros" : "copy");
}

/* The row of a launch: launches of a layer that differ only in their arguments share one. NULL:
 * there is no room for another. */
static struct dpt_launch_cost *row_of(const struct dpt_cuda_program *p,
                                      const struct dpt_cuda_entry *e, struct dpt_launch_cost *costs,
                                      int most, int *n)
{
    struct dpt_launch_cost row = {
        .node = e->node == DPT_CUDA_NONE ? "" : p->spec.graph->nodes[e->node].name};

    describe(e, row.what, sizeof row.what);
    for (int i = 0; i < *n; i++) {
        if (costs[i].node == row.node && strcmp(costs[i].what, row.what) == 0)
            return &costs[i];
    }
    if (*n == most)
        return NULL;
    costs[*n] = row;
    return &costs[(*n)++];
}

/* How often a launch was made, also by the programs of other micro-batches, which make the same
 * ones. */
static int64_t calls_of(const struct dpt_cuda_program *p, int i)
{
    int64_t calls = p->lists->records[i].calls;

    for (int k = 0; k < p->n_others; k++)
        if (i < p->others[k]->lists->n_records)
            calls += p->others[k]->lists->records[i].calls;
    return calls;
}

enum dpt_status dpt_cuda_program_costs(struct dpt_cuda_program *p, struct dpt_launch_cost *costs,
                                       int most, int *n, struct dpt_error *err)
{
    const struct dpt_cuda_lists *l = p->lists;
    enum dpt_status status = DPT_OK;

    *n = 0;
    if (p->ctx.lib.cuEventElapsedTime != NULL)
        DPT_TRY(time_all(p, err));
    for (int i = 0; i < l->n_records; i++) {
        const struct dpt_cuda_record *r = &l->records[i];
        struct dpt_launch_cost *row = row_of(p, &r->entry, costs, most, n);
        const int64_t calls = calls_of(p, i);

        if (row == NULL)
            continue;
        row->calls += calls;
        row->seconds += (double)calls * r->ms * 1e-3;
        row->bytes += calls * bytes_of(&r->entry);
        if (r->entry.what == DPT_CUDA_MATH)
            row->flops += (double)calls * r->entry.math->flops;
    }
    for (int i = 0; i < *n; i++) { /* averages of one call */
        costs[i].bytes /= costs[i].calls;
        costs[i].flops /= (double)costs[i].calls;
    }
out:
    return status;
}
