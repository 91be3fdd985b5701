/* The ranges of fake_ranges.h: a function for each struct of arguments. */
#include <stddef.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_ranges.h"

/* The values on which the ranges depend, beside the argument. */
struct kernel {
    struct fakegpu_work *work;
    int64_t element; /* bytes */
    int lanes;
    bool back, sums, statistics; /* of its name */
};

static void add(const struct kernel *k, const void *at, int64_t bytes, bool written)
{
    if (at != NULL && bytes > 0)
        fakegpu_add_range(k->work, at, (size_t)bytes, FAKEGPU_EITHER, written);
}

static void reads(const struct kernel *k, const void *at, int64_t bytes)
{
    add(k, at, bytes, false);
}

static void writes(const struct kernel *k, const void *at, int64_t bytes)
{
    add(k, at, bytes, true);
}

#define RANGES(argument)                                                                           \
    static void argument##_ranges(const struct kernel *k,                                          \
                                  const struct dpt_cuda_##argument##_args *a)

RANGES(act)
{
    reads(k, a->x, 16 * a->vectors);
    writes(k, a->y, 16 * a->vectors);
}

RANGES(act_back)
{
    reads(k, a->x, 16 * a->vectors);
    reads(k, a->dy, 16 * a->vectors);
    writes(k, a->dx, 16 * a->vectors);
}

RANGES(bias)
{
    reads(k, a->x, a->rows * a->pitch * k->element);
    reads(k, a->bias, a->pitch * k->element);
    writes(k, a->y, a->rows * a->pitch * k->element);
}

RANGES(bias_back)
{
    const struct dpt_cuda_cut cut = dpt_cuda_bias_back_cut(a->rows, a->pitch, k->lanes);
    const int64_t all = a->rows * a->pitch * k->element;

    reads(k, a->dy, all);
    reads(k, a->y, all);
    writes(k, a->dx, all);
    writes(k, a->dbias, 4 * a->channels);
    writes(k, a->partial, cut.chunks * a->pitch * 8);
    writes(k, a->counter, 4 * cut.groups);
    reads(k, a->state, sizeof *a->state);
}

RANGES(pool)
{
    const int64_t in = (int64_t)a->n * a->h * a->w * a->pitch,
                  out = (int64_t)a->n * a->oh * a->ow * a->pitch;

    reads(k, a->from, (k->back ? out : in) * k->element);
    writes(k, a->to, (k->back ? in : out) * k->element);
    add(k, a->index, 2 * out, !k->back);
    reads(k, a->y, out * k->element);
}

RANGES(dropout)
{
    const int64_t all = (int64_t)a->n * a->area * a->pitch * k->element;

    reads(k, a->x, all);
    writes(k, a->y, all);
    reads(k, a->sample, 8 * a->n);
    reads(k, a->control, sizeof *a->control);
}

RANGES(loss)
{
    const int64_t all = (int64_t)a->n * a->pitch * k->element,
                  blocks = (a->n + DPT_CUDA_LOSS_ROWS - 1) / DPT_CUDA_LOSS_ROWS;

    reads(k, a->y, all);
    writes(k, a->dy, all);
    reads(k, a->labels, 4 * a->n);
    reads(k, a->targets, 4 * (int64_t)a->n * a->outputs);
    reads(k, a->weights, 4 * a->n);
    reads(k, a->control, sizeof *a->control);
    reads(k, a->state, sizeof *a->state);
    writes(k, a->metric_sums, sizeof *a->metric_sums);
    writes(k, a->partial, blocks * DPT_CUDA_LOSS_SUMS * 8);
    writes(k, a->counter, 4);
    writes(k, a->tail, 4 * a->words);
    if (a->bias.dbias != NULL)
        bias_back_ranges(k, &a->bias);
}

/* From the first tensor of the list to the last one. */
RANGES(layout)
{
    const struct dpt_cuda_layout *first = &a->list[0], *last = &a->list[a->n - 1];
    const int64_t floats =
        last->canonical - first->canonical + (int64_t)last->outputs * last->inputs * last->area;
    const int64_t elements =
        last->copy - first->copy + (int64_t)last->padded_outputs * last->area * last->padded_inputs;

    add(k, a->arena + first->canonical, 4 * floats, k->back);
    add(k, (const char *)a->copies + first->copy * k->element, elements * k->element, !k->back);
    reads(k, a->list, a->n * (int64_t)sizeof *a->list);
    reads(k, a->state, sizeof *a->state);
}

/* Of unpack without those of slice `own`. */
RANGES(slices)
{
    reads(k, a->exact, 2 * (a->first + a->n) * a->width / 16);
    for (int32_t i = a->first; i < a->first + a->n; i++) {
        if (i == a->own)
            continue;
        add(k, a->arena + i * a->width, 4 * a->width, k->back);
        add(k, (const char *)a->rows + i * a->row, a->row, !k->back);
    }
}

RANGES(feed)
{
    for (int32_t i = 0; i < a->n; i++) {
        reads(k, a->feed[i].from, a->feed[i].bytes);
        writes(k, a->feed[i].to, a->feed[i].bytes);
    }
}

RANGES(gather)
{
    reads(k, a->index, 8 * a->n);
    reads(k, a->moves, a->n * (int64_t)sizeof *a->moves);
    reads(k, a->control, sizeof *a->control);
    writes(k, a->out, (int64_t)a->n * a->h * a->w * a->pitch * k->element);
    feed_ranges(k, &a->feed);
}

RANGES(scan)
{
    reads(k, a->x, a->n * k->element);
    writes(k, a->found, 8);
}

RANGES(scales)
{
    const int64_t all = (int64_t)a->n * a->area * a->pitch * k->element,
                  weights = (int64_t)a->weight_area * a->channels * 4;

    reads(k, a->x, all);
    reads(k, a->dy, all);
    reads(k, a->weight, (int64_t)a->weight_area * a->pitch * k->element);
    reads(k, a->bias, (int64_t)a->weight_area * a->pitch * k->element);
    if (!k->sums)
        writes(k, a->y, all);
    add(k, a->statistics, 12 * (int64_t)a->n * a->groups, !k->back && !k->sums);
    if (!k->sums)
        return;
    writes(k, a->dweight, weights);
    writes(k, a->dbias, weights);
    if (a->chunks > 1) /* else the only block writes the sums */
        writes(k, a->partial, (int64_t)a->chunks * 2 * a->vectors * k->lanes * 8);
    writes(k, a->counter, 4 * a->groups);
}

RANGES(join)
{
    reads(k, a->a, 16 * a->vectors);
    reads(k, a->b, 16 * a->vectors);
    writes(k, a->y, 16 * a->vectors);
}

RANGES(join_back)
{
    reads(k, a->dy, 16 * a->vectors);
    reads(k, a->a, 16 * a->vectors);
    reads(k, a->b, 16 * a->vectors);
    writes(k, a->da, 16 * a->vectors);
    writes(k, a->db, 16 * a->vectors);
}

RANGES(concat)
{
    add(k, a->whole, a->pixels * a->whole_pitch * k->element, !k->back);
    add(k, a->first, a->pixels * a->pitch[0] * k->element, k->back);
    add(k, a->second, a->pixels * a->pitch[1] * k->element, k->back);
}

RANGES(flatten)
{
    const int64_t planes = (int64_t)a->n * a->area * a->pitch * k->element,
                  flat = (int64_t)a->n * a->flat_pitch * k->element;

    reads(k, a->from, k->back ? flat : planes);
    writes(k, a->to, k->back ? planes : flat);
}

RANGES(batchnorm)
{
    const struct dpt_cuda_cut cut = dpt_cuda_bias_back_cut(a->rows, a->pitch, k->lanes);
    const int64_t all = a->rows * a->pitch * k->element, floats = 4 * a->channels;
    const bool totals = k->sums || k->statistics;

    reads(k, a->x, all);
    reads(k, a->dy, all);
    reads(k, a->with, all);
    reads(k, a->joined, all);
    writes(k, a->dz, all);
    if (!totals)
        writes(k, a->y, all);
    add(k, a->statistics, 20 * (int64_t)a->pitch, totals);
    reads(k, a->weight, floats);
    reads(k, a->bias, floats);
    reads(k, a->control, sizeof *a->control);
    if (k->statistics) {
        writes(k, a->means, floats);
        writes(k, a->variances, floats);
    }
    if (k->sums) {
        writes(k, a->dweight, floats);
        writes(k, a->dbias, floats);
    }
    if (!totals)
        return;
    writes(k, a->sums, 16 * (int64_t)a->pitch);
    writes(k, a->partial, 2 * cut.chunks * a->pitch * 8);
    writes(k, a->counter, 4 * cut.groups);
}

RANGES(add)
{
    reads(k, a->x, 4 * a->n);
    writes(k, a->y, 4 * a->n);
}

/* What the list of leaves says has been sent when the kernel is enqueued. */
RANGES(tree)
{
    const int64_t bytes = 4 * a->width, all = bytes * a->slices;

    reads(k, a->leaf, a->n * (int64_t)sizeof *a->leaf);
    for (int32_t i = 0; i < a->n; i++) { /* of values that wait */
        const struct dpt_cuda_leaf *leaf = &a->leaf[i];
        const float *const arena =
            (leaf->place == DPT_CUDA_IN_SUM ? a->sum : a->blocks + leaf->number * a->stride);

        if (leaf->place == DPT_CUDA_RECEIVED)
            writes(k, a->received + leaf->number * a->width * a->slices, all);
        else if (leaf->place == DPT_CUDA_IN_MERGED)
            writes(k, a->merged + leaf->number * a->apart, all);
        for (int32_t m = 0; leaf->place < DPT_CUDA_IN_MERGED && m < a->slices; m++)
            writes(k, arena + a->first + m * a->skip, bytes);
    }
    writes(k, a->to, all);
}

RANGES(norm)
{
    add(k, a->gradient, 4 * (a->n + (a->statistics == NULL ? a->state_n : 0)),
        a->copies.number != NULL);
    reads(k, a->statistics, 4 * a->state_n);
    reads(k, a->tail, 4 * DPT_CUDA_TAIL_SUMS);
    reads(k, a->copies.at, a->copies.bytes);
    writes(k, a->state, offsetof(struct dpt_cuda_state, shown));
    writes(k, a->counter, 4);
    reads(k, a->chunk, 8 * (a->chunks + 1));
}

RANGES(shown)
{
    reads(k, a->partial, 8 * a->chunks);
    reads(k, a->tail, 4 * DPT_CUDA_TAIL_SUMS);
    writes(k, a->norm, 8);
}

RANGES(update)
{
    const int64_t learned = (a->end < a->n ? a->end : a->n) - a->first;

    writes(k, a->params + a->first, 4 * (a->end - a->first));
    reads(k, a->gradient + a->first, 4 * (a->end - a->first));
    writes(k, a->copies.at, a->copies.bytes);
    for (int i = 0; i < DPT_RULE_MOST_SLOTS; i++)
        writes(k, a->slot[i] == NULL ? NULL : a->slot[i] + a->first, 4 * learned);
    writes(k, a->state, offsetof(struct dpt_cuda_state, shown));
}

#define CALL(argument)                                                                             \
    static void argument##_call(const struct kernel *k, const void *a)                             \
    {                                                                                              \
        argument##_ranges(k, a);                                                                   \
    }
/* clang-format off: it takes a macro without a semicolon for the beginning of what follows */
DPT_CUDA_TYPED_ARGUMENTS(CALL)
CALL(add)
CALL(feed)
CALL(norm)
CALL(shown)
CALL(tree)
CALL(update)
/* clang-format on */
#undef CALL

void fake_kernel_ranges(enum dpt_cuda_kernel kernel, const void *argument,
                        struct fakegpu_work *work)
{
    static const struct {
        void (*call)(const struct kernel *k, const void *argument);
        int lanes;
    } calls[] = {
#define X(name, kind, argument, lanes, meets) {argument##_call, lanes},
        DPT_CUDA_KERNELS(X)
#undef X
    };
    const char *name = dpt_cuda_kernel_name(kernel);
    const struct kernel k = {.work = work,
                             .element = 16 / calls[kernel].lanes,
                             .lanes = calls[kernel].lanes,
                             .back = strstr(name, "_back_") != NULL ||
                                     strstr(name, "from_") != NULL ||
                                     strstr(name, "_unpack_") != NULL,
                             .sums = strstr(name, "_weights_") != NULL,
                             .statistics = strstr(name, "_statistics_") != NULL};

    calls[kernel].call(&k, argument);
}
