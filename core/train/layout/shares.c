#include "core/train/layout/shares.h"

#include "core/comm/sums/tree.h"

/* --- runs and groups -------------------------------------------------------------------------- */

void dpt_share_thread(int32_t first, int32_t last, int thread, int threads, int32_t *begin,
                      int32_t *end)
{
    const int64_t n = last - first;

    *begin = first + (int32_t)((n * thread + threads - 1) / threads);
    *end = first + (int32_t)((n * (thread + 1) + threads - 1) / threads);
}

int32_t dpt_share_at_once(int32_t most, int32_t all, int32_t i, int32_t end)
{
    const int64_t left = end - i;
    int64_t n = 1;

    while (i % (2 * n) == 0 &&
           (2 * n <= left ? 2 * n <= most : end == all && n < left && left <= most))
        n *= 2;
    return n < left ? (int32_t)n : (int32_t)left;
}

/* --- who takes which micro-batch -------------------------------------------------------------- */

/* How many micro-batches a team computes at once from i on. */
static int32_t group_at(const struct dpt_share *s, int32_t i)
{
    return dpt_share_at_once(s->at_once, s->all, i, s->last);
}

static int32_t count_groups(const struct dpt_share *s)
{
    int32_t n = 0;

    for (int32_t i = s->first; i < s->last; i += group_at(s, i))
        n++;
    return n;
}

/* A team's round-th group of the replica's run. */
static int32_t take_group(const struct dpt_share *s, int32_t round, int32_t *n)
{
    int32_t i = s->first;

    while (round-- > 0 && i < s->last)
        i += group_at(s, i);
    *n = i < s->last ? group_at(s, i) : 0;
    return *n > 0 ? i : -1;
}

/* The rounds of all workers of all replicas go through the step's micro-batches. */
static int32_t take_round_robin(const struct dpt_share *s, int worker, int32_t round, int32_t *n)
{
    const int64_t first =
        (((int64_t)round * s->replicas + s->replica) * s->workers + worker) * s->at_once;
    const int32_t begin = first < s->all ? (int32_t)first : s->all;

    *n = s->all - begin < s->at_once ? s->all - begin : s->at_once;
    return *n > 0 ? begin : -1;
}

int32_t dpt_share_take(const struct dpt_share *s, int worker, int32_t round, int32_t *n)
{
    int32_t begin, end;

    if (s->round_robin)
        return take_round_robin(s, worker, round, n);
    if (s->at_once > 1)
        return take_group(s, round, n);
    dpt_share_thread(s->first, s->last, worker, s->workers, &begin, &end);
    *n = 1;
    if (round >= end - begin)
        return -1;
    return dpt_sampler_nth(s->sampler, s->replicas, s->first, begin + round - s->first);
}

bool dpt_share_run(const struct dpt_share *s, int replica, int end, int32_t k, int32_t *first,
                   int32_t *last)
{
    const int64_t each = (int64_t)s->workers * s->at_once,
                  begin = (k * (int64_t)s->replicas + replica) * each,
                  after = begin + (end - replica) * each;
    int32_t between;

    if (!s->round_robin) {
        dpt_sampler_partition(s->sampler, s->step, replica, s->replicas, first, &between);
        dpt_sampler_partition(s->sampler, s->step, end - 1, s->replicas, &between, last);
        return k == 0 && *first < *last;
    }
    *first = begin < s->all ? (int32_t)begin : s->all;
    *last = after < s->all ? (int32_t)after : s->all;
    return *first < *last;
}

struct dpt_share dpt_share_of(const struct dpt_layout *l, const struct dpt_sampler *sampler,
                              int64_t step, int replica, bool infers)
{
    struct dpt_share s = {
        .sampler = sampler,
        .replica = replica,
        .replicas = l->replicas,
        .workers = !infers                        ? l->gradient_workers
                   : dpt_layout_infers_as_team(l) ? 1
                                                  : l->threads,
        .at_once = infers ? 1 : l->at_once,
        .round_robin = !infers && l->round_robin,
        .step = step,
        .samples = dpt_sampler_count(sampler, step),
        .all = dpt_sampler_micro_batches(sampler, step),
    };

    dpt_sampler_partition(sampler, step, replica, s.replicas, &s.first, &s.last);
    return s;
}

/* --- rounds ----------------------------------------------------------------------------------- */

/* How many rounds a replica's busiest worker has. */
static int32_t count_rounds(const struct dpt_share *s)
{
    const int64_t all = (int64_t)s->replicas * s->workers * s->at_once;

    if (s->round_robin)
        return (int32_t)((s->all + all - 1) / all);
    if (s->at_once > 1)
        return count_groups(s);
    return (s->last - s->first + s->workers - 1) / s->workers;
}

/* The most rounds that any replica has. */
static int32_t count_most(const struct dpt_layout *l, const struct dpt_sampler *sampler,
                          int64_t step, bool infers)
{
    int32_t most = 0;

    for (int r = 0; r < l->replicas; r++) {
        const struct dpt_share s = dpt_share_of(l, sampler, step, r, infers);
        const int32_t n = count_rounds(&s);

        most = n > most ? n : most;
    }
    return most;
}

int32_t dpt_share_rounds(const struct dpt_layout *l, const struct dpt_share *s, bool infers)
{
    /* In an evaluation of units all replicas gather their weights. */
    return infers && dpt_layout_gathers(l) ? count_most(l, s->sampler, s->step, true)
                                           : count_rounds(s);
}

int32_t dpt_layout_most_rounds(const struct dpt_layout *l)
{
    const int64_t steps = dpt_sampler_steps(&l->sampler);
    int32_t most = 1;

    for (int64_t step = 0; step<steps; step += steps> 1 && step == 0 ? steps - 1 : 1) {
        const int32_t n = count_most(l, &l->sampler, step, false); /* the last one may be short */

        most = n > most ? n : most;
    }
    return most;
}

int64_t dpt_layout_most_micros(const struct dpt_layout *l)
{
    const int64_t all = ((int64_t)l->sampler.global + l->micro - 1) / l->micro;

    return (all + l->replicas - 1) / l->replicas;
}

/* --- the tree --------------------------------------------------------------------------------- */

int dpt_share_blocks(const struct dpt_layout *l, int each)
{
    const int32_t all = dpt_sampler_micro_batches(&l->sampler, 0);
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int most = 0;

    for (int r = 0; r + each <= l->replicas; r += each) {
        int32_t first = r < all ? r : all, last = r + each < all ? r + each : all, between;
        int n;

        if (!l->round_robin) {
            dpt_sampler_partition(&l->sampler, 0, r, l->replicas, &first, &between);
            dpt_sampler_partition(&l->sampler, 0, r + each - 1, l->replicas, &between, &last);
        }
        n = dpt_tree_blocks(first, last, all, blocks);
        most = n > most ? n : most;
    }
    return most;
}

int dpt_share_waiting(const struct dpt_layout *l)
{
    const int32_t all = dpt_sampler_micro_batches(&l->sampler, 0);
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int most = 0;

    for (int32_t end = l->replicas; l->round_robin && end < all; end += l->replicas) {
        const int n = dpt_tree_blocks(0, end, all, blocks);

        most = n > most ? n : most;
    }
    for (int r = 0; !l->round_robin && r < l->replicas; r++) {
        int32_t first, last;
        int n;

        dpt_sampler_partition(&l->sampler, 0, r, l->replicas, &first, &last);
        n = dpt_tree_most(first, last, all);
        most = n > most ? n : most;
    }
    return most;
}

/* --- lists of actions ------------------------------------------------------------------------- */

struct dpt_division dpt_layout_division(const struct dpt_layout *l,
                                        const struct dpt_layout_stage *stage, bool gathers,
                                        int32_t rounds, bool infers)
{
    return (struct dpt_division){
        .schedule = l->schedule,
        .stages = l->stages,
        .stage = stage->number,
        .units = stage->units,
        .node = stage->node,
        .rounds = rounds,
        .infers = infers,
        .in_passes = l->in_parts,
        .gathers = gathers || l->sliced_there,
        .round_robin = l->round_robin,
        .synchronized = l->synchronized,
    };
}
