/* Synchronized batch norms: what such a norm sums over all micro-batches of a step is exchanged.
 *
 * What a rank has for an exchange are the sums of the blocks of the tree over micro-batch numbers
 * (core/comm/tree.h) that are its own; where ranks take rounds in turn each micro-batch is a block.
 * Each is a number on one rank and zero on the others, so MPI's sum of them is exact, and all ranks
 * join them in the same order: the same bits on any number of ranks and threads. */
#include <string.h>

#include "core/backend/norm_sums.h"
#include "core/train/step/step.h"

/* A rank's blocks of a step. */
static int32_t blocks_of(const struct dpt_trainer *t, int64_t step, int rank,
                         struct dpt_block *blocks)
{
    const struct dpt_sampler *s = &t->data.train.sampler;
    int32_t first, last;

    dpt_sampler_partition(s, step, rank, t->comm->world.size, &first, &last);
    return dpt_tree_blocks(first, last, dpt_sampler_micro_batches(s, step), blocks);
}

/* The blocks of the step of an epoch that has most of them: the first one, or the last. */
static int64_t most_blocks(const struct dpt_trainer *t)
{
    const struct dpt_step_share share = dpt_step_share_of(t, &t->data.train, 0, false);
    const int64_t steps[] = {0, t->steps_per_epoch - 1};
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int64_t most = 0;

    if (share.round_robin)
        return share.all;
    for (int k = 0; k < 2; k++) {
        int64_t n = 0;

        for (int rank = 0; rank < t->comm->world.size; rank++)
            n += blocks_of(t, steps[k], rank, blocks);
        most = n > most ? n : most;
    }
    return most;
}

void dpt_step_exchange_room(const struct dpt_trainer *t, size_t *all, size_t *one)
{
    const struct dpt_graph *graph = &t->model.graph;
    int32_t widest = 0;

    for (int32_t i = 0; i < graph->n_nodes && t->team.synchronized; i++)
        if (graph->nodes[i].whole_step && graph->nodes[i].in.c > widest)
            widest = graph->nodes[i].in.c;
    *one = 2 * (size_t)widest;
    *all = widest > 0 ? (size_t)most_blocks(t) * *one : 0;
}

/* Adds the sums, so that a zero has no sign, as it has none once it was summed over ranks. */
static void add_sums(double *to, const double *sums, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += sums[i];
}

/* Joins the sums of this rank's micro-batches in flight into those of its blocks; or, to != NULL,
 * adds each to what is in its place there. */
static void join_flights(const struct dpt_runner *r, struct dpt_norm_sums *sums, size_t width,
                         double *to)
{
    for (int worker = 0; worker < r->workers; worker++)
        for (int32_t k = 0, n; k < r->in_flight; k++) {
            const struct dpt_step_flight *flight = &r->flights[worker * r->in_flight + k];
            const int32_t i = dpt_step_take(&r->share, worker, k, &n);

            if (i < 0)
                break;
            if (to == NULL)
                dpt_norm_sums_push(sums, (struct dpt_block){.begin = i}, flight->sums);
            else
                add_sums(to + (size_t)i * width, flight->sums, width);
        }
}

/* Sums the blocks of all ranks into one. */
static void join_blocks(const struct dpt_runner *r, struct dpt_norm_sums *sums, size_t width)
{
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int64_t n = 0;

    for (int32_t i = 0; r->share.round_robin && i < r->share.all; i++)
        dpt_norm_sums_push(sums, (struct dpt_block){.begin = i}, r->exchanged + (size_t)i * width);
    for (int rank = 0; !r->share.round_robin && rank < r->t->comm->world.size; rank++) {
        const int32_t own = blocks_of(r->t, r->share.step, rank, blocks);

        for (int32_t i = 0; i < own; i++, n++)
            dpt_norm_sums_push(sums, blocks[i], r->exchanged + (size_t)n * width);
    }
}

/* Writes this rank's own blocks, among zeros. Returns how many there are of all ranks. */
static int64_t write_blocks(struct dpt_runner *r, struct dpt_norm_sums *sums, size_t width)
{
    const struct dpt_group *world = &r->t->comm->world;
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int64_t n = r->share.round_robin ? r->share.all : 0, first = 0;
    int32_t mine = 0;

    for (int rank = 0; !r->share.round_robin && rank < world->size; rank++) {
        const int32_t own = blocks_of(r->t, r->share.step, rank, blocks);

        first = rank == world->rank ? n : first;
        mine = rank == world->rank ? own : mine;
        n += own;
    }
    memset(r->exchanged, 0, (size_t)n * width * sizeof *r->exchanged);
    if (!r->failed)
        join_flights(r, sums, width, r->share.round_robin ? r->exchanged : NULL);
    for (int32_t k = 0; k < mine && !r->failed; k++)
        add_sums(r->exchanged + (size_t)(first + k) * width, sums->value[k], width);
    return n;
}

enum dpt_status dpt_step_run_exchange(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = r->t;
    const struct dpt_group *world = &t->comm->world;
    const struct dpt_graph_node *node = &t->model.graph.nodes[r->action->first];
    const enum dpt_norm_kind kind = r->action->back ? DPT_NORM_GRADIENTS : DPT_NORM_MOMENTS;
    const size_t width = 2 * (size_t)node->in.c;
    const int32_t micro = t->data.train.sampler.micro;
    enum dpt_status struck = DPT_OK;
    struct dpt_norm_sums sums;
    int64_t n;

    r->exchanges++;
    if (!r->failed)
        struck = dpt_fault_strike_exchange(&t->fault, world->rank, t->progress.step + 1,
                                           r->exchanges, err);
    r->failed = r->failed || struck != DPT_OK;
    dpt_norm_sums_begin(&sums, kind, &node->in, micro, r->share.samples);
    n = write_blocks(r, &sums, width);
    DPT_TRY(dpt_group_sum_doubles(world, r->exchanged, r->exchanged, (size_t)n * width, err));
    dpt_norm_sums_begin(&sums, kind, &node->in, micro, r->share.samples);
    join_blocks(r, &sums, width);
out:
    return struck != DPT_OK ? struck : status;
}
