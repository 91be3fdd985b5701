#include <math.h>
#include <string.h>

#include "core/backend/devices.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/comm/sums/hierarchical_allreduce.h"
#include "core/comm/sums/tree.h"
#include "core/train/engines/device.h"
#include "core/train/layout/actions.h"

/* --- by what is summed ------------------------------------------------------------------------ */

/* About how many floats a bucket has at most: it closes after the tensors of a node. */
static int64_t largest_bucket(const struct dpt_graph *g)
{
    int64_t largest = 0;

    for (int32_t i = 0; i < g->n_tensors; i++)
        largest = g->tensors[i].count > largest ? g->tensors[i].count : largest;
    largest += DPT_BUCKET / (int64_t)sizeof(float);
    return largest < g->floats ? largest : g->floats;
}

/* Collective. A piece is as long as a short bucket: while it is copied in and out it stays in the
 * caches. */
static enum dpt_status open_shared(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    const size_t all = (size_t)dpt_trainer_graph(t)->arena + DPT_TAIL_WORDS,
                 most = DPT_BUCKET / sizeof(float);
    struct dpt_hierarchical_spec spec = {
        .n = all < most ? all : most, .buffers = 1, .hierarchical = true};
    bool hierarchical = false;

    if (t->comm->world.size == 1 || t->comm->nodes == t->comm->world.size ||
        t->job->comm.hierarchical != DPT_HIERARCHICAL_AUTO)
        return DPT_OK;
    d->piece = spec.n;
    DPT_TRY(dpt_hierarchical_open(&d->shared, t->comm, &spec, &hierarchical, err));
    if (!hierarchical) {
        dpt_hierarchical_close(d->shared);
        d->shared = NULL;
    }
out:
    return status;
}

/* Collective. Finds how many ranks of a node merge what they sum: those of each follow one another,
 * and are as many, on more nodes than one; else it stays 1. */
static enum dpt_status find_nodes(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    const int ranks = replicas->world.size, each = ranks / replicas->nodes;
    bool even = replicas->nodes > 1 && ranks % replicas->nodes == 0;

    DPT_TRY(dpt_comm_number_nodes(replicas, d->first, err));
    for (int r = 0; r < ranks; r++)
        even = even && d->first[r] == r / each;
    if (even)
        d->node_ranks = each;
out:
    return status;
}

enum dpt_status dpt_device_sums_open(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    const struct dpt_backend_devices *devices = t->backend->devices;

    status = DPT_ALLOCATE(d->first, (size_t)t->comm->world.size + 1, "the ranks' sums", err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    d->node_ranks = 1;
    if (t->link != NULL && dpt_layout_along_tree(&t->layout))
        DPT_TRY(find_nodes(t, err));
    if (t->link == NULL)
        DPT_TRY(dpt_comm_device_sums(t->comm, (enum dpt_cuda_aware)t->job->comm.cuda_aware,
                                     &devices->memory, t->gpu, largest_bucket(dpt_trainer_graph(t)),
                                     &d->on_device, t->aware, err));
    if (t->link == NULL && !d->on_device)
        DPT_TRY(open_shared(t, err));
out:
    return status;
}

void dpt_device_sums_close(struct dpt_trainer *t)
{
    struct dpt_engine_state *d = t->engine_state;

    if (d == NULL)
        return;
    if (d->shared != NULL)
        dpt_hierarchical_close(d->shared);
    dpt_free(d->first);
}

/* The blocks that groups of `each` ranks have in a round, of [begin, end), but the one of rank
 * `own`. */
static int count_others(const struct dpt_tree_division *d, int32_t round, int begin, int end,
                        int each, int own)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int n = 0;

    for (int r = begin; r < end; r += each)
        if (own < r || own >= r + each)
            n += dpt_tree_blocks_of(d, round, r, r + each, blocks);
    return n;
}

static void at_least(int *most, int n)
{
    *most = n > *most ? n : *most;
}

/* The blocks that wait on this rank in a step, and those that it merges and receives. */
static void count_blocks(const struct dpt_trainer *t, int64_t step, struct dpt_steps_spec *spec)
{
    const int32_t *first = t->engine_state->first;
    const struct dpt_tree_division d = {first, spec->ranks, spec->round_robin};
    const int own = spec->rank, each = spec->node_ranks, nodes = spec->ranks / each;
    const int node = own / each * each; /* its first rank */
    const int32_t all = dpt_sampler_micro_batches(&t->data.train.sampler, step);
    struct dpt_block blocks[DPT_TREE_BLOCKS];

    dpt_sampler_firsts(&t->data.train.sampler, step, spec->ranks, t->engine_state->first);
    if (!spec->round_robin)
        at_least(&spec->blocks, dpt_tree_most(first[own], first[own + 1], all));
    for (int32_t k = 0; k < dpt_tree_rounds(&d); k++) {
        if (spec->round_robin && (k + 1) * spec->ranks < all)
            at_least(&spec->blocks, dpt_tree_blocks(0, (k + 1) * spec->ranks, all, blocks));
        at_least(&spec->received, count_others(&d, k, 0, spec->ranks, each, own));
        if (each == 1)
            continue;
        at_least(&spec->merged, dpt_tree_blocks_of(&d, k, node, node + each, blocks));
        at_least(&spec->received, nodes * count_others(&d, k, node, node + each, 1, own));
    }
}

/* A full step, and the last of an epoch, which may be short. */
void dpt_device_sums_plan(const struct dpt_trainer *t, struct dpt_steps_spec *spec)
{
    const struct dpt_engine_state *d = t->engine_state;
    const int64_t steps = dpt_sampler_steps(&t->data.train.sampler);

    spec->rank = dpt_trainer_replicas(t)->world.rank;
    spec->ranks = t->layout.replicas;
    spec->reduces = t->comm->world.size > 1;
    spec->on_device = d->on_device;
    spec->link = t->link;
    spec->shards = t->layout.updaters > 1;
    spec->bucket = DPT_BUCKET;
    spec->tree = dpt_layout_along_tree(&t->layout);
    spec->round_robin = t->layout.round_robin;
    spec->node_ranks = d->node_ranks;
    spec->stages = t->layout.stages;
    spec->stage = t->stage->number;
    for (int k = 0; k < t->layout.stages; k++) {
        const int64_t chunks = (int64_t)dpt_graph_chunk_count(&t->layout.stage[k].graph);

        spec->chunks += chunks;
        spec->chunks_before += k < spec->stage ? chunks : 0;
    }
    for (int i = 0; i < 2 && spec->tree; i++)
        count_blocks(t, i * (steps - 1), spec);
}

enum dpt_status dpt_device_sums_begin(struct dpt_trainer *t, struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;
    const int ranks = t->layout.replicas;

    d->rounds = 1;
    if (t->link == NULL || !dpt_layout_along_tree(&t->layout))
        return DPT_OK;
    dpt_sampler_firsts(&t->data.train.sampler, t->progress.epoch_step, ranks, d->first);
    d->rounds =
        dpt_tree_rounds(&(struct dpt_tree_division){d->first, ranks, t->layout.round_robin});
    return d->type->divide(d->steps, d->first, err);
}

enum dpt_status dpt_device_sums_attach(struct dpt_trainer *t, struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;

    d->buckets = d->type->buckets(d->steps);
    return DPT_ALLOCATE(d->bucket, (size_t)d->buckets, "the device's steps", err);
}

void dpt_device_sums_detach(struct dpt_trainer *t)
{
    struct dpt_engine_state *d = t->engine_state;

    dpt_free(d->bucket);
    dpt_unreserve(d->spare, d->spare_bytes);
}

/* --- by MPI ----------------------------------------------------------------------------------- */

/* A rank whose device failed takes part with whatever there is, in memory of the same kind as the
 * others': all ranks are told of the failure with the tail, and none of them uses the sum. Copies
 * from the device may still be under way, so nothing is told in memory that they write. */
static struct dpt_device_bucket spare_bucket(const struct dpt_engine_state *d, int i)
{
    struct dpt_device_bucket bucket = d->bucket[i];

    if (bucket.tail != NULL)
        bucket.tail = d->on_device ? d->spare : d->spare + (bucket.tail - bucket.at);
    if (!d->on_device)
        bucket.at = d->spare;
    return bucket;
}

static enum dpt_status device_bucket(struct dpt_trainer *t, int i, struct dpt_error *err)
{
    struct dpt_engine_state *d = t->engine_state;
    struct dpt_device_bucket *bucket = &d->bucket[i];

    return d->type->bucket(d->steps, i, &bucket->at, &bucket->n, &bucket->tail, err);
}

/* Finds where the buckets are, by a step without samples, and makes room for a rank that fails, so
 * that both are there before one does. */
enum dpt_status dpt_device_sums_measure(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    size_t most = DPT_TENSOR_ALIGN;

    if (d->buckets == 0 || d->spare != NULL)
        return DPT_OK;
    DPT_TRY(d->type->compute(d->steps, 0, 0, 0, 0, err));
    for (int i = 0; i < d->buckets; i++) {
        DPT_TRY(device_bucket(t, i, err));
        most = d->bucket[i].n > most ? d->bucket[i].n : most;
    }
    d->spare_bytes = most * sizeof(float);
    d->spare = dpt_reserve(d->spare_bytes); /* address space, until it is used */
    if (d->spare == NULL)
        DPT_TRY(dpt_fail_memory(err, "the gradient", (double)d->spare_bytes));
out:
    return status;
}

/* Sums n floats over the ranks, in place. */
static enum dpt_status sum_floats(struct dpt_trainer *t, float *at, size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_engine_state *d = t->engine_state;
    const bool filled = true;

    if (d->shared == NULL)
        return dpt_group_sum_floats(&t->comm->world, at, at, n, err);
    for (size_t here; n > 0; at += here, n -= here) {
        here = n < d->piece ? n : d->piece;
        dpt_hierarchical_begin(d->shared);
        memcpy(dpt_hierarchical_buffer(d->shared, 0), at, here * sizeof *at);
        DPT_TRY(dpt_hierarchical_sum(d->shared, &filled, NULL, err));
        memcpy(at, dpt_hierarchical_result(d->shared), here * sizeof *at);
    }
out:
    return status;
}

/* Sums bucket by bucket by MPI, or by what it shares. */
static enum dpt_status sum_by_mpi(struct dpt_trainer *t, float flags[DPT_FLAGS],
                                  enum dpt_status *mine, int64_t *counted, double *summing,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    const struct dpt_group *world = &t->comm->world;
    bool works = *mine == DPT_OK;

    for (int i = 0; i < d->buckets; i++) {
        struct dpt_device_bucket bucket;
        double start;

        if (works && device_bucket(t, i, err) != DPT_OK) {
            works = false;
            *mine = err->status;
        }
        bucket = works ? d->bucket[i] : spare_bucket(d, i);
        flags[DPT_FLAG_FAILED] = works ? 0.0F : 1.0F;
        if (bucket.tail != NULL)
            memcpy(bucket.tail + DPT_TAIL_FLAGS, flags, DPT_FLAGS * sizeof *flags);
        start = dpt_now();
        DPT_TRY(sum_floats(t, bucket.at, bucket.n, err));
        if (bucket.tail != NULL && d->on_device)
            DPT_TRY(dpt_group_sum_floats(world, bucket.tail, bucket.tail, DPT_TENSOR_ALIGN, err));
        *summing += dpt_now() - start;
        if (bucket.tail != NULL) {
            memcpy(t->reduction.reduced_flags, bucket.tail + DPT_TAIL_FLAGS,
                   sizeof t->reduction.reduced_flags);
            *counted = (int64_t)bucket.tail[DPT_TAIL_SAMPLES];
        }
        if (works && d->type->give(d->steps, i, err) != DPT_OK) {
            works = false;
            *mine = err->status;
        }
    }
out:
    return status;
}

/* --- over links ------------------------------------------------------------------------------- */

enum dpt_status dpt_device_give_up(const struct dpt_trainer *t, enum dpt_status status,
                                   struct dpt_error *err)
{
    if (t->engine_state->failure.status != DPT_OK)
        *err = t->engine_state->failure; /* of which this is a consequence */
    return dpt_group_give_up(&t->comm->world, dpt_step_fail(t, status, err), err);
}

/* Reads the tail of the oldest sum that was not read. */
static enum dpt_status hear(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    float tail[DPT_TAIL_WORDS];

    status = d->type->summed(d->steps, tail, err);
    if (status != DPT_OK)
        return dpt_device_give_up(t, status, err);
    memcpy(t->reduction.reduced_flags, tail + DPT_TAIL_FLAGS, sizeof t->reduction.reduced_flags);
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] <= 0)
        DPT_TRY(dpt_step_check_count(t, (int64_t)tail[DPT_TAIL_SAMPLES],
                                     d->count[d->heard % DPT_STAGING_BUFFERS], err));
    d->heard++;
out:
    return status;
}

/* Enqueues the sum of a round that is not the step's last. */
static enum dpt_status sum_round(struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_engine_state *d = t->engine_state;
    const enum dpt_status status = d->type->sum(d->steps, NULL, 0, 0, err);

    return status == DPT_OK ? DPT_OK : dpt_device_give_up(t, status, err);
}

/*
 * Takes the step's micro-batches through this rank's part of the model in the schedule's order,
 * and sums rounds but the last as they end. Then all ranks of a stage take as many through, since
 * each of them waits for the others: some have none in the last round. A rank that has failed takes
 * part.
 */
static enum dpt_status pass_all(struct dpt_trainer *t, struct dpt_device_check *check,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_engine_state *d = t->engine_state;
    const struct dpt_layout *l = &t->layout;
    const int replica = dpt_trainer_replicas(t)->world.rank;
    const int32_t own = d->first[replica + 1] - d->first[replica];
    struct dpt_unit_walk walk = {{l->schedule, l->stages, t->stage->number,
                                  .micro_batches = l->round_robin ? d->rounds : own},
                                 .units = l->sliced_there ? t->stage->units : 1};
    struct dpt_unit_pass at;

    while (dpt_unit_next(&walk, &at)) {
        const size_t *edge = &t->stage->edge[at.unit];
        const struct dpt_steps_pass pass = {
            .micro = at.micro_batch,
            .flight = at.micro_batch % t->stage->in_flight,
            .unit = at.unit,
            .next = at.next,
            .back = at.back,
            .last = at.last,
            .idle = d->failure.status != DPT_OK,
        };

        status = d->type->pass(d->steps, &pass, err);
        if (status != DPT_OK)
            return dpt_device_give_up(t, status, err);
        if (at.back && l->round_robin)
            dpt_device_check_parts(t, check, edge[0], edge[1]);
        if (l->sliced_there)
            dpt_device_check_weights(t, check, at.unit);
        if (at.back && at.ends && l->round_robin && !at.last)
            DPT_TRY(sum_round(t, err));
    }
    if (!l->round_robin)
        dpt_device_check_parts(t, check, 0, (size_t)dpt_trainer_graph(t)->floats);
out:
    return status;
}

/* Enqueues the sums of all rounds but the last, each beside backward of its micro-batches. A rank
 * that fails takes part in them. */
static enum dpt_status sum_rounds(struct dpt_trainer *t, struct dpt_device_check *check,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;

    dpt_device_check_parts(t, check, 0, (size_t)dpt_trainer_graph(t)->floats);
    for (int32_t k = 1; k < d->rounds; k++) {
        DPT_TRY(sum_round(t, err));
        if (d->failure.status == DPT_OK && d->type->next(d->steps, err) != DPT_OK) {
            dpt_step_fail(t, err->status, err);
            d->failure = *err;
        }
        dpt_device_check_parts(t, check, 0, (size_t)dpt_trainer_graph(t)->floats);
    }
out:
    return status;
}

/*
 * The host learns what the ranks tell each other when it has given as many steps as there are
 * staging buffers: then it would have to wait for the first of them anyway. So all ranks learn it
 * at the same step. A rank that fails takes part until then.
 */
static enum dpt_status sum_by_link(struct dpt_trainer *t, float flags[DPT_FLAGS],
                                   enum dpt_status *mine, int32_t total, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_engine_state *d = t->engine_state;
    struct dpt_device_check check = {.asked = t->job->comm.check_transport && !d->stepped &&
                                              d->asked == 0};
    const int slot = (int)(d->asked % DPT_STAGING_BUFFERS);
    bool saves = false;

    if (*mine != DPT_OK && d->failure.status == DPT_OK)
        d->failure = *err;
    for (int64_t i = d->heard; i < d->asked; i++)
        saves = saves || d->saves[i % DPT_STAGING_BUFFERS];
    flags[DPT_FLAG_SAVE] = saves ? 0 : flags[DPT_FLAG_SAVE]; /* once is enough */
    d->saves[slot] = flags[DPT_FLAG_SAVE] > 0;
    d->count[slot] = total;
    DPT_TRY(t->layout.stages > 1 || t->layout.sliced_there ? pass_all(t, &check, err)
                                                           : sum_rounds(t, &check, err));
    flags[DPT_FLAG_FAILED] = d->failure.status == DPT_OK ? 0.0F : 1.0F;
    DPT_TRY(dpt_device_check_sum(t, &check, err));
    status = d->type->sum(d->steps, flags, DPT_TAIL_FLAGS, DPT_FLAGS, err);
    if (status != DPT_OK)
        DPT_TRY(dpt_device_give_up(t, status, err));
    d->asked++;
    if (check.asked) {
        status = dpt_device_check_compare(t, &check, err);
        if (check.failure.status != DPT_OK) /* others' devices may wait for it */
            DPT_TRY(dpt_device_give_up(t, status, err));
        DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    }
    memset(t->reduction.reduced_flags, 0, sizeof t->reduction.reduced_flags);
    if (d->asked - d->heard == DPT_STAGING_BUFFERS)
        DPT_TRY(hear(t, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] > 0 && d->failure.status != DPT_OK)
        *err = d->failure;
    *mine = d->failure.status;
out:
    dpt_device_check_drop(&check);
    return status;
}

enum dpt_status dpt_device_sum(struct dpt_trainer *t, float flags[DPT_FLAGS], enum dpt_status *mine,
                               int32_t total, double *summing, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double start = dpt_now();
    int64_t counted = total;

    if (t->link != NULL) {
        DPT_TRY(sum_by_link(t, flags, mine, total, err));
        *summing += dpt_now() - start;
        return DPT_OK;
    }
    DPT_TRY(sum_by_mpi(t, flags, mine, &counted, summing, err));
    if (t->reduction.reduced_flags[DPT_FLAG_FAILED] <= 0)
        DPT_TRY(dpt_step_check_count(t, counted, total, err));
out:
    return status;
}
