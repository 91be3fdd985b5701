/* Enqueues the lists of launches. */
#include <string.h>

#include "core/backend/cuda/program/program_stage.h"
#include "core/base/memory.h"

/* --- one launch ------------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_enqueue_entry(struct dpt_cuda_program *p, struct dpt_cuda_entry *e,
                                       bool add, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const CUstream stream = dpt_cuda_stream(p);
    enum dpt_status status = DPT_OK;

    if (e->what == DPT_CUDA_KERNEL) {
        if (e->add != 0)
            memcpy((char *)&e->args + e->add, &(int32_t){add}, sizeof(int32_t));
        DPT_TRY(dpt_cuda_launch(lib, &p->ctx.module, stream, e->kernel, &e->args, err));
    } else if (e->what == DPT_CUDA_MATH) {
        DPT_TRY(dpt_cuda_run_math(p, e->math, add, err));
    } else if (e->what == DPT_CUDA_FILL) {
        DPT_CUDA_TRY(lib, cuMemsetD8Async(dpt_cuda_ptr(e->to), 0, (size_t)e->bytes, stream));
    } else {
        DPT_CUDA_TRY(lib, cuMemcpyDtoDAsync(dpt_cuda_ptr(e->to), dpt_cuda_ptr(e->from),
                                            (size_t)e->bytes, stream));
    }
out:
    return status;
}

static bool same_launch(const struct dpt_cuda_entry *a, const struct dpt_cuda_entry *b)
{
    if (a->what != b->what || a->node != b->node)
        return false;
    if (a->what == DPT_CUDA_KERNEL)
        return a->kernel == b->kernel &&
               memcmp(&a->args, &b->args, dpt_cuda_kernel_argument(a->kernel)) == 0;
    return a->math == b->math && a->to == b->to && a->from == b->from && a->bytes == b->bytes;
}

/* Counts one more call of this launch. */
static enum dpt_status record_entry(struct dpt_cuda_program *p, const struct dpt_cuda_entry *entry,
                                    bool add, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < l->n_records; i++) {
        struct dpt_cuda_record *r = &l->records[i];

        if (r->add == add && same_launch(&r->entry, entry)) {
            r->calls++;
            return DPT_OK;
        }
    }
    DPT_GROW(l->records, &l->record_room, (size_t)l->n_records + 1, "the list of launches", err);
    l->records[l->n_records++] = (struct dpt_cuda_record){.entry = *entry, .add = add, .calls = 1};
out:
    return status;
}

/* Enqueues an entry. While a profile is recorded it waits for it, so that the time until then is
 * the entry's. */
static enum dpt_status run_entry(struct dpt_cuda_program *p, struct dpt_cuda_entry *e, bool add,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_enqueue_entry(p, e, add, err));
    if (p->lists->spans == NULL)
        goto out;
    DPT_TRY(dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err));
    DPT_TRY(record_entry(p, e, add, err));
    dpt_spans_mark(p->lists->spans, e->span);
out:
    return status;
}

enum dpt_status dpt_cuda_program_launch(struct dpt_cuda_program *p, enum dpt_cuda_kernel kernel,
                                        const void *argument, int span, struct dpt_error *err)
{
    struct dpt_cuda_entry entry = {
        .what = DPT_CUDA_KERNEL, .node = DPT_CUDA_NONE, .kernel = kernel, .span = span};

    memcpy(&entry.args, argument, dpt_cuda_kernel_argument(kernel));
    return run_entry(p, &entry, false, err);
}

static bool runs(const struct dpt_cuda_entry *e, bool training, bool add)
{
    const bool when[] = {[DPT_CUDA_ALWAYS] = true,
                         [DPT_CUDA_TRAINING] = training,
                         [DPT_CUDA_EVALUATION] = !training,
                         [DPT_CUDA_WRITING] = !add};

    return when[e->when];
}

enum dpt_status dpt_cuda_run_list(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                  bool training, bool add, struct dpt_error *err)
{
    struct dpt_cuda_list *list = &p->lists->list[kind];
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < list->n; k++) {
        if (runs(&list->entry[k], training, add))
            DPT_TRY(run_entry(p, &list->entry[k], add, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_enqueue_range(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                       int32_t first, int32_t last, int32_t norm, bool training,
                                       struct dpt_error *err)
{
    struct dpt_cuda_list *list = &p->lists->list[kind];
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < list->n; k++) {
        struct dpt_cuda_entry *e = &list->entry[k];
        const bool wanted = e->sums > 0 ? e->sums == norm : e->node >= first && e->node < last;

        if (wanted && runs(e, training, false))
            DPT_TRY(run_entry(p, e, false, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_enqueue_unit(struct dpt_cuda_program *p, bool back, int unit,
                                      struct dpt_error *err)
{
    struct dpt_cuda_list *list =
        &p->lists->list[back ? DPT_CUDA_BACKWARD_LIST : DPT_CUDA_FORWARD_LIST];
    const int32_t *node = p->spec.unit + unit;
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < list->n; k++) {
        struct dpt_cuda_entry *e = &list->entry[k];

        if (e->node >= node[0] && e->node < node[1] && runs(e, true, false) &&
            !(back && k == p->lists->bias_of_loss))
            DPT_TRY(run_entry(p, e, false, err));
    }
    if (back)
        DPT_TRY(dpt_cuda_enqueue_gradient(p, node[0], node[1], false, err));
out:
    return status;
}

enum dpt_status dpt_cuda_enqueue_samples(struct dpt_cuda_program *p,
                                         const struct dpt_cuda_samples *samples,
                                         struct dpt_error *err)
{
    const bool staged = samples->input != NULL;
    struct dpt_cuda_entry e =
        p->lists->list[staged ? DPT_CUDA_FROM_STAGED : DPT_CUDA_FROM_STORED].entry[0];
    struct dpt_cuda_gather_args *a = &e.args.gather;

    if (staged)
        a->data = samples->input;
    else
        a->index = samples->sample;
    a->moves = samples->move;
    a->control = samples->control;
    a->feed = samples->feed;
    return run_entry(p, &e, false, err);
}

enum dpt_status dpt_cuda_enqueue_loss(struct dpt_cuda_program *p, bool add, float *tail,
                                      struct dpt_error *err)
{
    const struct dpt_cuda_lists *l = p->lists;
    const struct dpt_cuda_list *list = &l->list[DPT_CUDA_LOSS_LIST];
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < list->n; k++) {
        struct dpt_cuda_entry e = list->entry[k];

        if (!runs(&e, true, add))
            continue;
        if (e.loss) {
            e.args.loss.tail = tail;
            e.args.loss.words = DPT_TENSOR_ALIGN;
        }
        if (e.loss && l->bias_of_loss != DPT_CUDA_NONE) {
            e.args.loss.bias =
                l->list[DPT_CUDA_BACKWARD_LIST].entry[l->bias_of_loss].args.bias_back;
            e.args.loss.bias.add = add;
        }
        DPT_TRY(run_entry(p, &e, add, err));
    }
out:
    return status;
}

/* Runs an entry of backward on its branch. *aside: set if that is the second branch. */
static enum dpt_status run_on_branch(struct dpt_cuda_program *p, struct dpt_cuda_entry *e, bool add,
                                     bool *aside, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    CUstream stream;

    if (!e->aside) {
        p->lists->branches.moved = true;
        return run_entry(p, e, add, err);
    }
    *aside = true;
    DPT_TRY(dpt_cuda_branches_fork(p, &stream, err));
    DPT_TRY(run_entry(p, e, add, err));
out:
    dpt_cuda_branches_return(p);
    return status;
}

enum dpt_status dpt_cuda_enqueue_backward(struct dpt_cuda_program *p, bool add,
                                          enum dpt_status (*done)(void *arg, int32_t node,
                                                                  struct dpt_error *err),
                                          void *arg, struct dpt_error *err)
{
    struct dpt_cuda_list *list = &p->lists->list[DPT_CUDA_BACKWARD_LIST];
    enum dpt_status status = DPT_OK;
    int k = 0;

    for (int32_t i = p->spec.graph->n_nodes - 1; i >= 0; i--) {
        bool aside = false;

        DPT_TRY(dpt_cuda_branches_before(p, i, err));
        for (; k < list->n && list->entry[k].node == i; k++) {
            if (runs(&list->entry[k], true, add) && k != p->lists->bias_of_loss)
                DPT_TRY(run_on_branch(p, &list->entry[k], add, &aside, err));
        }
        if (aside)
            DPT_TRY(dpt_cuda_branches_after(p, i, err));
        if (done != NULL)
            DPT_TRY(done(arg, i, err));
    }
out:
    return status;
}

/* Makes a layout kernel's entry convert those of a run's layouts that belong to nodes first …
 * last-1, of one unit if there are units. Returns false if there are none. */
static bool take_layouts(const struct dpt_cuda_program *p, const struct dpt_cuda_layout_run *run,
                         float *arena, int32_t first, int32_t last, struct dpt_cuda_entry *e)
{
    const struct dpt_cuda_lists *l = p->lists;
    struct dpt_cuda_layout_args *a = &e->args.layout;
    int begin = run->first, end;

    while (begin < run->first + run->n && l->layout_node[begin] < first)
        begin++;
    a->n = 0;
    a->blocks = a->total = 0;
    a->list = l->device_layouts + begin;
    a->arena = arena;
    if (p->spec.units > 0) { /* this one alone is there */
        const int64_t edge = (int64_t)p->spec.edge[dpt_cuda_unit_of(p, first)];

        a->arena = dpt_cuda_begin_of(dpt_cuda_at(p, arena, edge), edge);
    }
    for (end = begin; end < run->first + run->n && l->layout_node[end] < last; end++)
        dpt_cuda_count_layout(run->kernel, &l->layouts[end], a);
    return begin < end;
}

enum dpt_status dpt_cuda_enqueue_gradient(struct dpt_cuda_program *p, int32_t first, int32_t last,
                                          bool add, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    enum dpt_status status = DPT_OK;
    CUstream stream;

    DPT_TRY(dpt_cuda_branches_fork(p, &stream, err));
    for (int kind = 0; kind < 2; kind++) {
        struct dpt_cuda_entry *e = &l->list[DPT_CUDA_GRADIENT_LIST].entry[kind];

        if (!take_layouts(p, &l->back[kind], p->gradient, first, last, e))
            continue;
        e->args.layout.add = add;
        e->node = l->layout_node[e->args.layout.list - l->device_layouts];
        e->span = dpt_span_node(e->node, DPT_PASS_WEIGHTS);
        DPT_TRY(run_entry(p, e, add, err));
    }
out:
    dpt_cuda_branches_return(p);
    return status;
}

enum dpt_status dpt_cuda_enqueue_layouts(struct dpt_cuda_program *p, int32_t first, int32_t last,
                                         struct dpt_error *err)
{
    struct dpt_cuda_entry *e = p->lists->list[DPT_CUDA_LAYOUTS].entry;

    return take_layouts(p, &p->lists->copied, p->params, first, last, e)
               ? run_entry(p, e, false, err)
               : DPT_OK;
}

void dpt_cuda_program_targets(struct dpt_cuda_program *p, bool vectors, bool weights)
{
    struct dpt_cuda_list *list = &p->lists->list[DPT_CUDA_LOSS_LIST];

    for (int k = 0; k < list->n; k++) {
        struct dpt_cuda_entry *e = &list->entry[k];

        if (!e->loss)
            continue;
        e->args.loss.labels = vectors ? NULL : p->labels;
        e->args.loss.targets = vectors ? p->targets : NULL;
        e->args.loss.weights = weights ? p->weights : NULL;
    }
}

void dpt_cuda_program_store(struct dpt_cuda_program *p, const void *data, bool u8, bool nhwc,
                            const float *scale, const float *shift)
{
    struct dpt_cuda_entry *e = p->lists->list[DPT_CUDA_FROM_STORED].entry;
    struct dpt_cuda_gather_args *a = &e->args.gather;

    e->kernel = dpt_cuda_typed(p, u8 ? DPT_CUDA_K_gather_u8_f32 : DPT_CUDA_K_gather_f32_f32);
    a->data = data;
    a->scale = scale;
    a->shift = shift;
    a->channel_stride = nhwc ? 1 : (int64_t)a->h * a->w;
    a->pixel_stride = nhwc ? a->channels : 1;
}

bool dpt_cuda_program_profiled(const struct dpt_cuda_program *p)
{
    return p->lists->spans != NULL;
}
