#include <string.h>

#include "core/base/memory.h"
#include "core/comm/sums/deterministic_allreduce.h"
#include "core/comm/sums/internode.h"
#include "core/train/layout/shares.h"
#include "core/train/reduction/gradient_reduction.h"

/* The state of a thread: the blocks of its run so far, for the learned floats and for what follows
 * them. A block's number is that of its buffer. */
struct branch {
    _Alignas(DPT_ALIGN) struct dpt_tree tree;
    struct dpt_tree extra;
};

struct dpt_gradient_reduction_state {
    struct dpt_deterministic_allreduce *allreduce;
    int buffers; /* per thread */
    struct branch *branches;
    int32_t *first; /* [ranks + 1]: where each rank's micro-batches begin */
    struct dpt_tree rank;
};

/* The level of the tree's node that so many micro-batches are. */
static int level_of(int32_t n)
{
    int level = 0;

    while ((1 << level) < n)
        level++;
    return level;
}

/* How many buffers a thread fills that has such a run of a step's `all` micro-batches: those of its
 * blocks so far, and the next block's. */
static int buffers_for(const struct dpt_layout *l, int32_t all, int32_t begin, int32_t end)
{
    struct dpt_tree tree;
    int most = 1;

    dpt_tree_begin(&tree, all);
    for (int32_t i = begin, n; i < end; i += n) {
        n = dpt_share_at_once(l->at_once, all, i, end);
        most = tree.n + 1 > most ? tree.n + 1 : most;
        dpt_tree_push(&tree, (struct dpt_block){i, level_of(n)}, NULL, 0, NULL, NULL);
    }
    return most;
}

/* Finds where the ranks' runs begin in a step. */
static void partition(struct dpt_trainer *t, int64_t step)
{
    dpt_sampler_firsts(&t->data.train.sampler, step, dpt_trainer_replicas(t)->world.size,
                       t->reduction.state->first);
}

/* The most buffers that any thread of any rank needs, in the first and the last step of an
 * epoch. */
static int thread_buffers(const struct dpt_layout *l)
{
    const struct dpt_sampler *s = &l->sampler;
    const int64_t steps = dpt_sampler_steps(s);
    int most = 1;

    for (int64_t step = 0; step < steps; step += step == 0 && steps > 1 ? steps - 1 : 1)
        for (int r = 0; r < l->replicas; r++)
            for (int thread = 0; thread < l->gradient_workers; thread++) {
                int32_t first, last, begin, end;
                int n;

                dpt_sampler_partition(s, step, r, l->replicas, &first, &last);
                dpt_share_thread(first, last, thread, l->gradient_workers, &begin, &end);
                n = buffers_for(l, dpt_sampler_micro_batches(s, step), begin, end);
                most = n > most ? n : most;
            }
    return most;
}

/* Whether rank 0 reports on the whole gradient. */
static bool keeps_sum(const struct dpt_job *job)
{
    return job->log.hashes || job->log.tensorboard;
}

/* The ranks of a node share their buffers and the sum; one by itself has its own, and several nodes
 * receive from each other. */
static void bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage, double *own,
                  double *shared)
{
    const size_t floats = (size_t)stage->graph.arena + DPT_TAIL_WORDS;
    const double one = (double)dpt_round_up(floats, sizeof(float)) * sizeof(float);
    const double buffers = (double)thread_buffers(l) * l->gradient_workers;
    const int all = l->replicas, node = l->node_replicas;
    const bool weights = l->owners > 1 && (node < all || keeps_sum(l->job));

    *own = *shared = 0;
    if (node > 1)
        *shared = (buffers * node + 1 + weights) * one;
    else
        *own = (buffers + (all > 1)) * one;
    if (node < all)
        *own += dpt_internode_floats((double)floats / node) * sizeof(float);
}

/* A buffer has room for a unit's gradient, or for all units' if they are in flight at once. */
static struct dpt_deterministic_spec round_robin_spec(const struct dpt_layout *l,
                                                      const struct dpt_layout_stage *stage)
{
    return (struct dpt_deterministic_spec){
        .n = (size_t)stage->graph.arena + DPT_TAIL_WORDS,
        .buffers = l->gradient_workers,
        .sharded = true,
        .unit = stage->edge,
        .units = stage->units,
        .whole = l->synchronized,
        .level = level_of(l->at_once),
        .leaves = dpt_sampler_micro_batches(&l->sampler, 0),
    };
}

/* On one node the ranks read each other's gradients in place. */
static void round_robin_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                              double *own, double *shared)
{
    const struct dpt_deterministic_spec spec = round_robin_spec(l, stage);
    double store, buffers, received;

    dpt_deterministic_round_robin_floats(l->replicas, &spec, &store, &buffers, &received);
    *own = store * sizeof(float);
    *shared = 0;
    if (l->node_replicas == l->replicas)
        *shared = l->replicas * buffers * sizeof(float);
    else
        *own += (buffers + received) * sizeof(float);
}

static enum dpt_status make_state(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_gradient_reduction_state *g = NULL;

    DPT_TRY(DPT_ALLOCATE(g, 1, "the reduction", err));
    t->reduction.state = g;
    g->buffers = thread_buffers(&t->layout);
    DPT_TRY(DPT_ALLOCATE(g->branches, (size_t)t->layout.gradient_workers, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(g->first, (size_t)dpt_trainer_replicas(t)->world.size + 1, "the reduction",
                         err));
out:
    return status;
}

static enum dpt_status open_tree(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &dpt_trainer_replicas(t)->world;
    struct dpt_gradient_reduction_state *g;
    struct dpt_deterministic_spec spec = {
        .n = dpt_gradient_whole(t).end,
        .spin = t->team.spin,
        .chunks = t->reduction.chunks,
        .sharded = t->layout.owners > 1,
        .keeps_sum = keeps_sum(t->job),
    };

    DPT_TRY(dpt_group_agree(world, make_state(t, err), err));
    g = t->reduction.state;
    spec.buffers = g->buffers * t->layout.gradient_workers;
    DPT_TRY(dpt_deterministic_open(&g->allreduce, dpt_trainer_replicas(t), &spec, err));
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

static enum dpt_status open_round_robin(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_deterministic_spec spec = round_robin_spec(&t->layout, t->stage);
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);

    spec.spin = t->team.spin;
    spec.chunks = t->reduction.chunks;
    spec.gathers = t->units.gathers;
    DPT_TRY(dpt_group_agree(&replicas->world,
                            DPT_ALLOCATE(t->reduction.state, 1, "the reduction", err), err));
    DPT_TRY(dpt_deterministic_open(&t->reduction.state->allreduce, replicas, &spec, err));
    t->reduction.sum = dpt_deterministic_result(t->reduction.state->allreduce);
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

static void again(struct dpt_trainer *t, int thread)
{
    const struct dpt_gradient_reduction_state *g = t->reduction.state;
    struct branch *b = &g->branches[thread];

    dpt_tree_begin(&b->tree, g->first[dpt_trainer_replicas(t)->world.size]);
    dpt_tree_begin(&b->extra, b->tree.total);
}

static void begin(struct dpt_trainer *t, int64_t epoch_step)
{
    partition(t, epoch_step);
    for (int i = 0; i < t->layout.gradient_workers; i++)
        again(t, i);
}

static struct dpt_tree *tree_of(const struct dpt_trainer *t, int thread,
                                struct dpt_gradient_range range)
{
    struct branch *b = &t->reduction.state->branches[thread];
    const size_t floats = (size_t)dpt_trainer_graph(t)->floats;

    return range.begin >= floats && range.end > floats ? &b->extra : &b->tree;
}

/* Blocks merge into the left one's buffer, so the next one's is the first that is free; which
 * buffers are used depends on the micro-batches' numbers alone, and is the same for each range. */
static float *target(struct dpt_trainer *t, int thread, struct dpt_gradient_range range, bool *add)
{
    const struct dpt_gradient_reduction_state *g = t->reduction.state;

    *add = false;
    return dpt_deterministic_buffer(g->allreduce,
                                    thread * g->buffers + tree_of(t, thread, range)->n);
}

/* Sums the tails of n micro-batches along the tree, as their gradients were. */
static void add_tails(const struct dpt_metric_sums *metric_sums, int32_t n, float *tail)
{
    float each[DPT_MOST_AT_ONCE][DPT_TAIL_WORDS] = {0};
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
    if (metric_sums != NULL)
        add_tails(metric_sums, n, gradient + dpt_trainer_graph(t)->arena);
    dpt_tree_push(tree_of(t, thread, range), (struct dpt_block){micro_batch, level_of(n)},
                  gradient + range.begin, range.end - range.begin, NULL, NULL);
}

static enum dpt_status sum(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_gradient_reduction_state *g = t->reduction.state;

    dpt_tree_begin(&g->rank, g->first[dpt_trainer_replicas(t)->world.size]);
    for (int i = 0; i < t->layout.gradient_workers && flags[DPT_FLAG_FAILED] <= 0; i++)
        for (int k = 0; k < g->branches[i].tree.n; k++)
            dpt_tree_push(&g->rank, g->branches[i].tree.block[k], g->branches[i].tree.value[k],
                          dpt_gradient_whole(t).end, NULL, NULL);
    /* The flags are not summed along the tree, in which a rank may have no micro-batch; and there
     * is a sum only if no rank failed. */
    DPT_TRY(dpt_deterministic_publish(g->allreduce, &g->rank, flags, t->reduction.reduced_flags,
                                      DPT_FLAGS, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] > 0)
        return DPT_OK;
    DPT_TRY(dpt_deterministic_sum(g->allreduce, &g->rank, g->first, err));
out:
    return status;
}

/* --- rounds of all ranks ------------------------------------------------------------ */

static void begin_round_robin(struct dpt_trainer *t, int64_t epoch_step)
{
    dpt_deterministic_begin(t->reduction.state->allreduce,
                            dpt_sampler_micro_batches(&t->data.train.sampler, epoch_step));
}

static float *target_round_robin(struct dpt_trainer *t, int thread, struct dpt_gradient_range range,
                                 bool *add)
{
    (void)range;
    *add = false;
    return dpt_deterministic_buffer(t->reduction.state->allreduce, thread);
}

static void done_round_robin(struct dpt_trainer *t, int thread, int32_t micro_batch, int32_t n,
                             float *gradient, struct dpt_gradient_range range,
                             const struct dpt_metric_sums *metric_sums)
{
    (void)thread, (void)micro_batch, (void)range;
    if (metric_sums != NULL)
        add_tails(metric_sums, n, gradient + dpt_trainer_graph(t)->arena);
}

static enum dpt_status add_round(struct dpt_trainer *t, int32_t number, int unit,
                                 struct dpt_error *err)
{
    return dpt_deterministic_round(t->reduction.state->allreduce, number, unit, err);
}

static float *extra(struct dpt_trainer *t, int thread)
{
    const struct dpt_deterministic_allreduce *allreduce = t->reduction.state->allreduce;

    return dpt_deterministic_buffer(allreduce, thread) + dpt_deterministic_rest(allreduce) -
           dpt_trainer_graph(t)->floats;
}

static enum dpt_status gather_unit(struct dpt_trainer *t, int unit, const float **params,
                                   struct dpt_error *err)
{
    return dpt_deterministic_gather_unit(t->reduction.state->allreduce, unit, t->arenas.params,
                                         params, err);
}

static enum dpt_status sum_round_robin(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_group_sum_floats(&dpt_trainer_replicas(t)->world, flags, t->reduction.reduced_flags,
                                 DPT_FLAGS, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] <= 0)
        DPT_TRY(dpt_deterministic_end(t->reduction.state->allreduce, err));
out:
    return status;
}

/* --- the sum ---------------------------------------------------------------------------------- */

static const double *sums_of_squares(const struct dpt_trainer *t)
{
    return dpt_deterministic_sums_of_squares(t->reduction.state->allreduce);
}

static int ranges(const struct dpt_trainer *t)
{
    return dpt_deterministic_ranges(t->reduction.state->allreduce);
}

static struct dpt_slice slice(const struct dpt_trainer *t, int rank, int range)
{
    return dpt_deterministic_slice(t->reduction.state->allreduce, rank, range);
}

/* Waits until the owners of a node have written what all read: their slices, and the state. */
static enum dpt_status await_owners(struct dpt_trainer *t, struct dpt_error *err)
{
    return t->units.gathers ? DPT_OK : dpt_group_barrier(&dpt_trainer_replicas(t)->node, err);
}

static const float *slice_sum(const struct dpt_trainer *t, int range)
{
    return dpt_deterministic_slice_sum(t->reduction.state->allreduce, range);
}

static float *weights(const struct dpt_trainer *t)
{
    return dpt_deterministic_weights(t->reduction.state->allreduce);
}

static enum dpt_status share(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_deterministic_allreduce *allreduce = t->reduction.state->allreduce;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    float *buffer;

    DPT_TRY(dpt_deterministic_share(t->reduction.state->allreduce, t->arenas.params, t->team.pool,
                                    err));
    buffer = dpt_deterministic_buffer(allreduce, 0);
    if (dpt_deterministic_weights(allreduce) == buffer) /* the weights were in this rank's memory */
        dpt_graph_clear_frozen(graph, 0, (size_t)graph->floats, buffer);
out:
    return status;
}

static enum dpt_status gather_chunks(struct dpt_trainer *t, double *values, int each,
                                     struct dpt_error *err)
{
    return dpt_deterministic_gather_chunks(t->reduction.state->allreduce, values, each, err);
}

/* The members that do not depend on who owns the parameters. */
#define OF_TREE                                                                                    \
    .open = open_tree, .bytes = bytes, .close = close_tree, .begin = begin, .target = target,      \
    .done = done, .again = again, .sum = sum, .sends = 2, .sums_of_squares = sums_of_squares,      \
    .of_rows = true

/* The members of shards in place of DPT_GRADIENT_OWNS_ALL, with how all ranks get the owners'
 * weights. */
#define OWNS_A_SLICE                                                                               \
    .ranges = ranges, .slice = slice, .slice_sum = slice_sum, .gather_chunks = gather_chunks
#define SHARES .weights = weights, .share = share

const struct dpt_gradient_reduction_type dpt_gradient_reduction_reproducible = {
    OF_TREE,
    DPT_GRADIENT_OWNS_ALL,
};

const struct dpt_gradient_reduction_type dpt_gradient_reduction_sharded = {
    OF_TREE,
    OWNS_A_SLICE,
    SHARES,
};

#define OF_ROUNDS                                                                                  \
    .open = open_round_robin, .bytes = round_robin_bytes, .close = close_tree,                     \
    .begin = begin_round_robin, .target = target_round_robin, .done = done_round_robin,            \
    .sum = sum_round_robin, .sums_of_squares = sums_of_squares, .round = add_round,                \
    .extra = extra, .of_rows = true, .in_slices = true

const struct dpt_gradient_reduction_type dpt_gradient_reduction_round_robin = {
    OF_ROUNDS,
    OWNS_A_SLICE,
    SHARES,
    .sends = 1,
};

const struct dpt_gradient_reduction_type dpt_gradient_reduction_units = {
    OF_ROUNDS,
    OWNS_A_SLICE,
    .weights = dpt_gradient_no_weights,
    .share = await_owners,
    .gather = gather_unit,
    .sends = 0,
};
