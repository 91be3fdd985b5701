/*
 * What each launch takes, where somebody asks. While the steps are made it is only noted what they
 * launch; then each is repeated in a graph, as a step's graph runs it, on the numbers that the last
 * step left. What that changes for good is kept aside meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program_private.h"

bool dpt_cuda_program_profiled(const struct dpt_cuda_program *p)
{
    return p->lists->spans != NULL;
}

/* --- what was launched ------------------------------------------------------------------------ */

static bool same_launch(const struct dpt_cuda_entry *a, const struct dpt_cuda_entry *b)
{
    if (a->what != b->what || a->node != b->node)
        return false;
    if (a->what == DPT_CUDA_KERNEL)
        return a->kernel == b->kernel &&
               memcmp(&a->args, &b->args, dpt_cuda_kernel_argument(a->kernel)) == 0;
    return a->math == b->math && a->to == b->to && a->from == b->from && a->bytes == b->bytes;
}

enum dpt_status dpt_cuda_record_entry(struct dpt_cuda_program *p,
                                      const struct dpt_cuda_entry *entry, bool add,
                                      struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;

    for (int i = 0; i < l->n_records; i++) {
        struct dpt_cuda_record *r = &l->records[i];

        if (r->add == add && same_launch(&r->entry, entry)) {
            r->calls++;
            return DPT_OK;
        }
    }
    if (l->n_records == l->record_capacity) {
        const int capacity = 2 * l->record_capacity + 64;
        struct dpt_cuda_record *more = realloc(l->records, (size_t)capacity * sizeof *more);

        if (more == NULL)
            return dpt_fail_memory(err, "the list of launches", (double)capacity * sizeof *more);
        l->records = more;
        l->record_capacity = capacity;
    }
    l->records[l->n_records++] = (struct dpt_cuda_record){.entry = *entry, .add = add, .calls = 1};
    return DPT_OK;
}

enum dpt_status dpt_cuda_program_launch(struct dpt_cuda_program *p, enum dpt_cuda_kernel kernel,
                                        const void *argument, int span, struct dpt_error *err)
{
    struct dpt_cuda_entry entry = {
        .what = DPT_CUDA_KERNEL, .node = DPT_CUDA_NONE, .kernel = kernel, .span = span};

    memcpy(&entry.args, argument, dpt_cuda_kernel_argument(kernel));
    return dpt_cuda_run_entry(p, &entry, false, err);
}

/* --- what a launch changes for good ----------------------------------------------------------- */

struct range {
    void *at;
    int64_t bytes;
};

enum { RANGES = 6 };

static void add_range(struct range *ranges, int *n, void *at, int64_t bytes)
{
    if (at != NULL && bytes > 0)
        ranges[(*n)++] = (struct range){at, bytes};
}

static bool is(const struct dpt_cuda_program *p, const struct dpt_cuda_entry *e,
               enum dpt_cuda_kernel of_floats)
{
    return e->kernel == of_floats || e->kernel == dpt_cuda_typed(p, of_floats);
}

static void kernel_changes(const struct dpt_cuda_program *p, const struct dpt_cuda_entry *e,
                           struct range *ranges, int *n)
{
    const struct dpt_cuda_update_args *update = &e->args.update;
    const int64_t floats = (int64_t)sizeof(float);

    add_range(ranges, n, e->to, e->bytes);
    if (is(p, e, DPT_CUDA_K_from_layout_f32) && e->args.layout.arena == p->gradient)
        add_range(ranges, n, p->gradient, p->spec.graph->floats * floats);
    else if (e->kernel == DPT_CUDA_K_tail)
        add_range(ranges, n, e->args.tail.tail, e->args.tail.n * floats);
    for (int rule = 0; rule < DPT_RULE_COUNT; rule++) {
        if (e->kernel != dpt_cuda_kernel_of_rule((enum dpt_rule_kind)rule))
            continue;
        add_range(ranges, n, update->params, update->n * floats);
        for (int k = 0; k < DPT_RULE_MOST_SLOTS; k++)
            add_range(ranges, n, update->slot[k], update->n * floats);
    }
}

/*
 * What is not the same after some runs as after one, or is read by a later step. Layers' outputs
 * and their gradients are not: each step writes them anew. Only where one is changed in place by
 * adding to it would it grow from run to run.
 */
static int changes(const struct dpt_cuda_program *p, const struct dpt_cuda_entry *e,
                   struct range ranges[RANGES])
{
    int n = 0;

    add_range(ranges, &n, p->control, sizeof *p->control);
    add_range(ranges, &n, p->state, sizeof *p->state);
    add_range(ranges, &n, p->metric_sums, sizeof *p->metric_sums);
    if (e->what == DPT_CUDA_KERNEL)
        kernel_changes(p, e, ranges, &n);
    else if (e->what == DPT_CUDA_MATH && e->math->pass == DPT_CUDA_BACKWARD_FILTER)
        add_range(ranges, &n, p->gradient, p->spec.graph->floats * (int64_t)sizeof(float));
    return n;
}

/* Between the ranges and one place, where they lie one behind another. */
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

/* --- what it takes ---------------------------------------------------------------------------- */

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
    struct range ranges[RANGES];
    enum dpt_status status = DPT_OK, back;
    struct dpt_error ignored;
    CUdeviceptr saved = 0;
    int64_t most = 0;

    for (int i = 0; i < l->n_records; i++) {
        int64_t bytes = 0;

        for (int k = changes(p, &l->records[i].entry, ranges) - 1; k >= 0; k--)
            bytes += ranges[k].bytes;
        most = bytes > most ? bytes : most;
    }
    if (most > 0)
        DPT_TRY(allocate(p, most, &saved, err));
    for (int i = 0; i < l->n_records; i++) {
        const int n = changes(p, &l->records[i].entry, ranges);

        DPT_TRY(move(p, ranges, n, saved, false, err));
        status = time_record(p, &l->records[i], err);
        back = move(p, ranges, n, saved, true, status == DPT_OK ? err : &ignored);
        DPT_TRY(status);
        DPT_TRY(back);
    }
    DPT_CUDA_TRY(lib, cuStreamSynchronize(p->ctx.compute));
out:
    if (saved != 0) {
        lib->cuStreamSynchronize(p->ctx.compute);
        lib->cuMemFree(saved);
    }
    return status;
}

/* --- what is told ----------------------------------------------------------------------------- */

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

/* The row in which a launch is told: those of a layer that differ in their arguments alone share
 * one. NULL: there is no room for another. */
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

        if (row == NULL)
            continue;
        row->calls += r->calls;
        row->seconds += (double)r->calls * r->ms * 1e-3;
        row->bytes += r->calls * bytes_of(&r->entry);
        if (r->entry.what == DPT_CUDA_MATH)
            row->flops += (double)r->calls * r->entry.math->flops;
    }
    for (int i = 0; i < *n; i++) { /* of one call */
        costs[i].bytes /= costs[i].calls;
        costs[i].flops /= (double)costs[i].calls;
    }
out:
    return status;
}
