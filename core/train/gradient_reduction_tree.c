#include <string.h>

#include "core/base/memory.h"
#include "core/comm/deterministic_allreduce.h"
#include "core/train/gradient_reduction.h"

enum { LEVELS = 32 };

/* What a thread keeps: the blocks of its run so far, and the buffers that are free. */
struct branch {
    _Alignas(DPT_ALIGN) struct dpt_tree tree;
    float *spare[LEVELS + 2];
    int n_spare;
};

struct dpt_gradient_reduction_state {
    struct dpt_deterministic_allreduce *allreduce;
    int buffers; /* a thread's */
    struct branch *branches;
    int32_t *first; /* [ranks + 1]: where each rank's micro-batches begin */
    struct dpt_tree rank;
};

static size_t arena_floats(const struct dpt_trainer *t)
{
    return (size_t)t->model.graph.arena + DPT_TAIL_WORDS;
}

/* A run of n micro-batches needs a buffer for each level of its tree, two where it begins or ends
 * in the middle of one, and the one that is being filled. */
static int buffers_for(int64_t n)
{
    int levels = 0;

    while ((INT64_C(1) << levels) < n)
        levels++;
    return n <= 2 * levels + 1 ? (int)(n < 1 ? 1 : n) : 2 * levels + 1;
}

/* Where the ranks' runs begin in a step. */
static void partition(struct dpt_trainer *t, int64_t step)
{
    const int ranks = t->comm->world.size;
    int32_t last;

    for (int r = 0; r < ranks; r++)
        dpt_sampler_partition(&t->data.train.sampler, step, r, ranks, &t->reduction.state->first[r],
                              &last);
    t->reduction.state->first[ranks] = dpt_sampler_micro_batches(&t->data.train.sampler, step);
}

/* Buffers of a thread of the rank with the longest run. */
static int thread_buffers(const struct dpt_trainer *t)
{
    const struct dpt_sampler *s = &t->data.train.sampler;
    const int64_t micros = ((int64_t)s->global + s->micro - 1) / s->micro;
    const int64_t rank_run = (micros + t->comm->world.size - 1) / t->comm->world.size;

    return buffers_for((rank_run + t->team.gradient_workers - 1) / t->team.gradient_workers);
}

/* All ranks on one node share their buffers and the sum; else each has its own. */
static void bytes(const struct dpt_trainer *t, int ranks, double *own, double *shared)
{
    const double one = (double)dpt_round_up(arena_floats(t), sizeof(float)) * sizeof(float);
    const double buffers = (double)thread_buffers(t) * t->team.gradient_workers;
    const int all = t->comm->world.size;

    *own = *shared = 0;
    if (all > 1 && ranks == all)
        *shared = (buffers * ranks + 1) * one;
    else
        *own = (buffers + (all > 1 ? 2 : 0)) * one; /* also the sum, and what other ranks send */
}

static enum dpt_status make_state(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_gradient_reduction_state *g = NULL;

    DPT_TRY(DPT_ALLOCATE(g, 1, "the reduction", err));
    t->reduction.state = g;
    g->buffers = thread_buffers(t);
    DPT_TRY(DPT_ALLOCATE(g->branches, (size_t)t->team.gradient_workers, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(g->first, (size_t)t->comm->world.size + 1, "the reduction", err));
out:
    return status;
}

static enum dpt_status open_tree(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_gradient_reduction_state *g;
    struct dpt_deterministic_spec spec = {
        .n = arena_floats(t), .spin = t->team.spin, .chunks = t->reduction.chunks};

    DPT_TRY(dpt_group_agree(world, make_state(t, err), err));
    g = t->reduction.state;
    spec.buffers = g->buffers * t->team.gradient_workers;
    DPT_TRY(dpt_deterministic_open(&g->allreduce, t->comm, &spec, err));
    t->reduction.sum = dpt_deterministic_result(g->allreduce);
    for (int64_t step = 0; step < t->steps_per_epoch && status == DPT_OK;
         step += t->steps_per_epoch > 1 && step == 0 ? t->steps_per_epoch - 1 : 1) {
        partition(t, step); /* a full step, and the last, which may be short */
        status = dpt_deterministic_reserve(g->allreduce, g->first, err);
    }
    DPT_TRY(dpt_group_agree(world, status, err));
out:
    return status;
}

static void close_tree(struct dpt_trainer *t)
{
    if (t->reduction.state == NULL)
        return;
    dpt_deterministic_close(t->reduction.state->allreduce);
    dpt_free(t->reduction.state->branches);
    dpt_free(t->reduction.state->first);
    dpt_free(t->reduction.state);
}

/* Which buffers serve follows from the micro-batches' numbers, so a range of floats is added up in
 * the same ones as any other. */
static void again(struct dpt_trainer *t, int thread)
{
    const struct dpt_gradient_reduction_state *g = t->reduction.state;
    struct branch *b = &g->branches[thread];

    dpt_tree_begin(&b->tree, g->first[t->comm->world.size]);
    /* The first buffer is taken first, since the sum of a rank's only thread ends there. */
    for (int k = 0; k < g->buffers; k++)
        b->spare[k] =
            dpt_deterministic_buffer(g->allreduce, thread * g->buffers + g->buffers - 1 - k);
    b->n_spare = g->buffers;
}

static void begin(struct dpt_trainer *t, const struct dpt_step_view *view)
{
    partition(t, view->step);
    for (int i = 0; i < t->team.gradient_workers; i++)
        again(t, i);
}

static float *target(struct dpt_trainer *t, int thread, bool *add)
{
    struct branch *b = &t->reduction.state->branches[thread];

    *add = false;
    return b->spare[b->n_spare - 1];
}

/* Sums the tails of n micro-batches along the tree, as their gradients were. */
static void add_tails(const struct dpt_metric_sums *metric_sums, int32_t n, float *tail)
{
    float each[DPT_GROUP_MOST][DPT_TAIL_WORDS] = {0};
    struct dpt_tree tree;

    dpt_tree_begin(&tree, n);
    for (int32_t i = 0; i < n; i++) {
        dpt_tail_write(each[i], &metric_sums[i]);
        dpt_tree_push(&tree, (struct dpt_block){i, 0}, each[i], DPT_TAIL_WORDS, NULL, NULL);
    }
    memcpy(tail, tree.value[0], sizeof each[0]);
}

static void done(struct dpt_trainer *t, int thread, int32_t micro_batch, int32_t n, float *gradient,
                 struct dpt_gradient_range range, const struct dpt_metric_sums *metric_sums)
{
    struct branch *b = &t->reduction.state->branches[thread];
    struct dpt_block block = {.begin = micro_batch};
    float *released[DPT_TREE_BLOCKS];
    int free;

    while ((1 << block.level) < n)
        block.level++;
    if (metric_sums != NULL)
        add_tails(metric_sums, n, gradient + t->model.graph.arena);
    b->n_spare--;
    dpt_tree_push(&b->tree, block, gradient + range.begin, range.end - range.begin, released,
                  &free);
    while (free > 0)
        b->spare[b->n_spare++] = released[--free] - range.begin;
}

static enum dpt_status sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                           const float flags[DPT_FLAGS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_gradient_reduction_state *g = t->reduction.state;

    (void)view;
    dpt_tree_begin(&g->rank, g->first[t->comm->world.size]);
    for (int i = 0; i < t->team.gradient_workers && flags[DPT_FLAG_FAILED] <= 0; i++)
        for (int k = 0; k < g->branches[i].tree.n; k++)
            dpt_tree_push(&g->rank, g->branches[i].tree.block[k], g->branches[i].tree.value[k],
                          arena_floats(t), NULL, NULL);
    /* The flags are not summed along the tree, in which a rank may have no micro-batch; and there
     * is a sum only where no rank failed. */
    DPT_TRY(dpt_deterministic_publish(g->allreduce, &g->rank, flags, t->reduction.reduced_flags,
                                      DPT_FLAGS, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] > 0)
        return DPT_OK;
    DPT_TRY(dpt_deterministic_sum(g->allreduce, &g->rank, g->first, err));
out:
    return status;
}

static const double *sums_of_squares(const struct dpt_trainer *t)
{
    return dpt_deterministic_sums_of_squares(t->reduction.state->allreduce);
}

const struct dpt_gradient_reduction_type dpt_gradient_reduction_reproducible = {
    .open = open_tree,
    .bytes = bytes,
    .close = close_tree,
    .begin = begin,
    .target = target,
    .done = done,
    .again = again,
    .sum = sum,
    .sums_of_squares = sums_of_squares,
    .of_rows = true,
};
