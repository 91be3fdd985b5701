/* Synchronized batch norms: ranks exchange what such a norm sums over all micro-batches of a step.
 * A rank exchanges the sums of its own blocks of the tree over micro-batch numbers
 * (core/comm/sums/tree.h): those of each of its runs. Each sum is a number on one rank and zero on
 * the others, so MPI's sum is exact, and all ranks join them in the same order: the same bits on
 * any number of ranks and threads. */
#include <string.h>

#include "core/backend/norm_sums.h"
#include "core/train/step/step.h"

/* A run of a rank's micro-batches, and its blocks, in the order of all ranks' micro-batches. */
struct place {
    int32_t k; /* the run's number in its rank */
    int rank;
    int32_t first, last;
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int32_t n;
};

/* Moves to the next run; begins with a rank of -1. Gives false after the last one. */
static bool next_run(const struct dpt_share *share, struct place *p)
{
    const int ranks = share->replicas;
    int without = 0; /* ranks that have no such run */

    do {
        p->rank++;
        p->k += p->rank / ranks;
        p->rank %= ranks;
        if (dpt_share_run(share, p->rank, p->k, &p->first, &p->last)) {
            p->n = dpt_tree_blocks(p->first, p->last, share->all, p->blocks);
            return true;
        }
    } while (++without < ranks);
    return false;
}

static int64_t count_blocks(const struct dpt_share *share)
{
    struct place p = {.rank = -1};
    int64_t n = 0;

    while (next_run(share, &p))
        n += p.n;
    return n;
}

void dpt_step_exchange_room(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                            size_t *all, size_t *one)
{
    const struct dpt_graph *graph = l->graph;
    /* The last one may be short. */
    const int64_t steps[] = {0, dpt_sampler_steps(&l->sampler) - 1};
    int64_t most = 0;
    int32_t widest = 0;

    for (int k = 1; k < stage->units; k++) { /* a unit may begin with a norm that is exchanged */
        const struct dpt_graph_node *node = &graph->nodes[stage->node[k]];

        widest = node->whole_step && node->in.c > widest ? node->in.c : widest;
    }
    for (int k = 0; k < 2 && widest > 0; k++) {
        const struct dpt_share share = dpt_share_of(l, &l->sampler, steps[k], 0, false);
        const int64_t n = count_blocks(&share);

        most = n > most ? n : most;
    }
    *one = 2 * (size_t)widest;
    *all = (size_t)most * *one;
}

/* Joins the sums of this rank's micro-batches in flight that are of the run into those of its
 * blocks. */
static void join_flights(const struct dpt_runner *r, const struct place *p,
                         struct dpt_norm_sums *sums)
{
    for (int worker = 0; worker < r->workers; worker++)
        for (int32_t k = 0, n; k < r->in_flight; k++) {
            const int32_t i = dpt_share_take(&r->share, worker, k, &n);

            if (i >= p->first && i < p->last)
                dpt_norm_sums_push(sums, (struct dpt_block){.begin = i},
                                   r->flights[worker * r->in_flight + k].sums);
        }
}

/* Writes this rank's own blocks, among zeros. Returns how many there are of all ranks. begun: sums
 * without blocks. */
static int64_t write_blocks(const struct dpt_runner *r, const struct dpt_norm_sums *begun,
                            size_t width)
{
    struct place p = {.rank = -1};
    double *to = r->exchanged;
    int64_t n = 0;

    for (; next_run(&r->share, &p); n += p.n) {
        const bool own = p.rank == r->share.replica && !r->failed;
        struct dpt_norm_sums sums = *begun;

        if (own)
            join_flights(r, &p, &sums);
        for (int32_t k = 0; k < p.n; k++, to += width)
            for (size_t i = 0; i < width; i++) /* a zero has no sign, as after a sum over ranks */
                to[i] = own ? 0 + sums.value[k][i] : 0;
    }
    return n;
}

/* Sums the blocks of all ranks into one. */
static void join_blocks(const struct dpt_runner *r, struct dpt_norm_sums *sums, size_t width)
{
    struct place p = {.rank = -1};
    double *from = r->exchanged;

    while (next_run(&r->share, &p))
        for (int32_t k = 0; k < p.n; k++, from += width)
            dpt_norm_sums_push(sums, p.blocks[k], from);
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
        struck = dpt_fault_strike(&t->fault, world->rank, t->progress.step + 1, r->exchanges, NULL,
                                  0, err);
    r->failed = r->failed || struck != DPT_OK;
    dpt_norm_sums_begin(&sums, kind, &node->in, micro, r->share.samples);
    n = write_blocks(r, &sums, width);
    DPT_TRY(dpt_group_sum_doubles(world, r->exchanged, r->exchanged, (size_t)n * width, err));
    join_blocks(r, &sums, width);
out:
    return struck != DPT_OK ? struck : status;
}
