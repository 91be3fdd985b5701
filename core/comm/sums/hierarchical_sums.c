#include <string.h>

#include "core/base/nontemporal.h"
#include "core/base/prefetch.h"
#include "core/comm/sums/hierarchical.h"

enum {
    CHUNK = DPT_HIERARCHICAL_CHUNK,
    ALONE = 32 * 1024 /* floats up to which one thread is faster than waking the others */
};

void dpt_hierarchical_set_range(struct dpt_hierarchical_allreduce *s, size_t from, size_t to)
{
    const int ranks = s->comm->world.size;
    size_t end;

    s->from_float = from;
    s->to_float = to;
    dpt_hierarchical_slice(s, s->local->rank, &s->begin, &s->end);
    for (int i = 0; s->cut != NULL && i < ranks; i++) {
        dpt_part_in_units(to - from, DPT_LINE, i, ranks, &s->cut[i], &end);
        s->cut[i] += from;
    }
    if (s->cut != NULL)
        s->cut[ranks] = to;
}

static void add_two(float *restrict to, const float *restrict a, const float *restrict b, size_t n)
{
    for (; n >= DPT_LINE; n -= DPT_LINE, to += DPT_LINE, a += DPT_LINE, b += DPT_LINE) {
        dpt_prefetch(a);
        dpt_prefetch(b);
        for (size_t i = 0; i < DPT_LINE; i++)
            to[i] = a[i] + b[i];
    }
    for (size_t i = 0; i < n; i++)
        to[i] = a[i] + b[i];
}

static void add(float *restrict to, const float *restrict a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += a[i];
}

/* The sum of n floats of all buffers in a list of `from`: there, or where there is but one in
 * that. */
static const float *sum_of(const struct dpt_hierarchical_allreduce *s, int list, float *there,
                           size_t at, size_t n)
{
    float *const *from = s->from + list * s->each;

    if (s->n_from[list] == 1)
        return from[0] + at;
    add_two(there, from[0] + at, from[1] + at, n);
    for (int k = 2; k < s->n_from[list]; k++)
        add(there, from[k] + at, n);
    return there;
}

/* Where a rank writes float `at` for the rank in whose slice it is. */
static float *given_at(const struct dpt_hierarchical_allreduce *s, int rank, size_t at)
{
    size_t begin, end;

    dpt_hierarchical_slice(s, rank, &begin, &end);
    return s->given + (size_t)rank * s->given_stride +
           ((at < begin ? at : at - (end - begin)) - s->from_float);
}

/* Gives the others what this rank has for their slices, of the floats [begin, end). */
static void give_range(const struct dpt_hierarchical_allreduce *s, size_t begin, size_t end)
{
    _Alignas(DPT_ALIGN) float sum[CHUNK];

    for (size_t at = begin, n; at < end; at += n) {
        n = end - at < CHUNK ? end - at : CHUNK;
        if (at >= s->begin && at < s->end) { /* its own */
            n = s->end - at;
            continue;
        }
        if (at < s->begin && at + n > s->begin)
            n = s->begin - at;
        dpt_copy_nontemporal(given_at(s, s->local->rank, at), sum_of(s, 0, sum, at, n), n);
    }
    dpt_nontemporal_fence();
}

/* What a rank adds to n floats of this one's slice: `there`, or where it lies. */
static const float *part_of(const struct dpt_hierarchical_allreduce *s, int rank, float *there,
                            size_t at, size_t n)
{
    if (s->large)
        return sum_of(s, rank, there, at, n);
    return rank == s->local->rank ? sum_of(s, 0, there, at, n) : given_at(s, rank, at);
}

/* Adds up what all ranks have for this one's slice, in the order of the ranks. */
static void take_range(const struct dpt_hierarchical_allreduce *s, size_t begin, size_t end)
{
    _Alignas(DPT_ALIGN) float sum[CHUNK];
    _Alignas(DPT_ALIGN) float own[CHUNK];

    for (size_t at = begin, n; at < end; at += n) {
        const float *first = NULL;

        n = end - at < CHUNK ? end - at : CHUNK;
        for (int r = 0; r < s->local->size; r++) {
            const float *x = part_of(s, r, r == 0 ? sum : own, at, n);

            if (r == 0)
                first = x;
            else if (r == 1 && first != sum)
                add_two(sum, first, x, n);
            else
                add(sum, x, n);
        }
        if (at < s->squared)
            s->sums_of_squares[at / CHUNK] =
                dpt_sum_of_squares(sum, s->squared - at < n ? s->squared - at : n);
        dpt_copy_nontemporal(s->result + at, sum, n);
    }
    dpt_nontemporal_fence();
}

/* Adds a range where this rank is alone or each adds everything; in place where that is
 * possible. */
static void add_range(const struct dpt_hierarchical_allreduce *s, float *sum, size_t begin,
                      size_t end)
{
    for (size_t at = begin, n; at < end; at += n) {
        float *to = sum + at, *a = s->from[0] + at;
        int k = 1;

        n = end - at < CHUNK ? end - at : CHUNK;
        if (to != a && s->n_from[0] > 1)
            add_two(to, a, s->from[k++] + at, n);
        else if (to != a)
            memcpy(to, a, n * sizeof *to);
        for (; k < s->n_from[0]; k++)
            add(to, s->from[k] + at, n);
    }
}

/* The buffer of the local sum: its first buffer where this rank is alone. */
static float *local_sum(const struct dpt_hierarchical_allreduce *s)
{
    return s->local->size > 1 ? s->result : dpt_hierarchical_at(s, 0);
}

/* Finds a thread's part of the floats [from, to). */
static void part(const struct dpt_hierarchical_allreduce *s, int thread, size_t from, size_t to,
                 size_t *begin, size_t *end)
{
    dpt_part_in_units(to - from, dpt_hierarchical_unit(s), thread, s->threads, begin, end);
    *begin += from;
    *end += from;
}

static void give_part(void *arg, int thread)
{
    const struct dpt_hierarchical_allreduce *s = arg;
    size_t begin, end;

    part(s, thread, s->from_float, s->to_float, &begin, &end);
    give_range(s, begin, end);
}

static void add_part(void *arg, int thread)
{
    const struct dpt_hierarchical_allreduce *s = arg;
    size_t begin, end;

    part(s, thread, s->begin, s->end, &begin, &end);
    if (s->large || s->given != NULL)
        take_range(s, begin, end);
    else
        add_range(s, local_sum(s), begin, end);
}

/* Runs the work on all threads if it is large enough, else on this one. */
static void run(struct dpt_hierarchical_allreduce *s, struct dpt_pool *pool,
                void (*work)(void *, int), size_t floats)
{
    s->threads = pool != NULL ? dpt_pool_threads(pool) : 1;
    if (s->threads > 1 && floats > ALONE) {
        dpt_pool_run(pool, work, s);
    } else {
        s->threads = 1;
        work(s, 0);
    }
}

/* The buffers that are filled: of all local ranks where small or large, else of this one. */
static void find_filled(struct dpt_hierarchical_allreduce *s)
{
    const int n = dpt_hierarchical_shares(s) ? s->all : s->buffers;

    memset(s->n_from, 0, (size_t)s->local->size * sizeof *s->n_from);
    for (int b = 0; b < n; b++) {
        const int list = s->large ? b / s->each : 0;

        if (dpt_hierarchical_at(s, b)[-DPT_LINE] > 0)
            s->from[list * s->each + s->n_from[list]++] = dpt_hierarchical_at(s, b);
    }
}

/* Adds what the nodes have. */
static enum dpt_status sum_nodes(struct dpt_hierarchical_allreduce *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (s->internode != NULL) {
        float *const sum = local_sum(s);

        DPT_TRY(dpt_internode_sum(s->internode, NULL, s->cut, &sum, s->result, err));
        DPT_TRY(
            dpt_internode_gather(s->internode, s->cut, s->result, s->from_float, s->to_float, err));
    } else if (s->comm->world.size > 1 && s->above->size > 1) {
        DPT_TRY(dpt_group_sum_floats(s->above, local_sum(s), s->result, s->n, err));
    }
out:
    return status;
}

/* Sums the range that is set. */
static enum dpt_status sum_range(struct dpt_hierarchical_allreduce *s, struct dpt_pool *pool,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool together = s->local->size > 1;
    const size_t own = s->end - s->begin;

    if (together && !dpt_hierarchical_shares(s)) {
        find_filled(s);
        run(s, pool, give_part, (s->to_float - s->from_float - own) * (size_t)s->n_from[0]);
    }
    if (together)
        dpt_node_barrier_wait(&s->barrier); /* all contributions are written */
    if (!together || dpt_hierarchical_shares(s))
        find_filled(s);
    run(s, pool, add_part,
        own * (size_t)(s->n_from[0] + (together && !s->small ? s->local->size - 1 : 0)));
    if (s->small) {
        s->set ^= 1;
        return DPT_OK;
    }
    if (together)
        dpt_node_barrier_wait(&s->barrier); /* all slices are written */
    DPT_TRY(sum_nodes(s, err));
    if (together && s->comm->nodes > 1)
        dpt_node_barrier_wait(&s->barrier); /* the sum of all nodes is written */
out:
    return status;
}

/* Says which of this rank's buffers are added. */
static void mark_filled(struct dpt_hierarchical_allreduce *s, int buffer, bool filled)
{
    dpt_hierarchical_at(s, s->first + buffer)[-DPT_LINE] = filled || buffer == 0 ? 1.0f : 0.0f;
}

/* --- buckets ---------------------------------------------------------------------------------- */

void dpt_hierarchical_sum_bucket(void *arg, size_t begin, size_t end)
{
    struct dpt_hierarchical_allreduce *s = arg;

    for (int i = 0; i < s->buffers; i++)
        mark_filled(s, i, dpt_buckets_counts(s->buckets, i));
    dpt_hierarchical_set_range(s, begin, end);
    if (s->failed == DPT_OK)
        s->failed = sum_range(s, NULL, &s->err);
}

int dpt_hierarchical_buckets(const struct dpt_hierarchical_allreduce *s)
{
    return s->buckets != NULL ? dpt_buckets_count(s->buckets) : 0;
}

int64_t dpt_hierarchical_early(const struct dpt_hierarchical_allreduce *s)
{
    return s->early;
}

void dpt_hierarchical_pass(struct dpt_hierarchical_allreduce *s, int i, size_t from, bool filled)
{
    if (s->buckets != NULL)
        dpt_buckets_pass(s->buckets, i, from, filled);
}

/*
 * Waits for the buckets, and sums what follows them. For the watchdog each of the buckets is a
 * collective of the job, which ranks enter when they have computed: so it names one that still
 * computes.
 */
static enum dpt_status finish_buckets(struct dpt_hierarchical_allreduce *s, const bool *filled,
                                      struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status;
    const struct dpt_group *world = &s->job->world;

    dpt_buckets_release(s->buckets, filled);
    for (int n = 1; n <= dpt_buckets_count(s->buckets); n++) {
        dpt_group_enter(world);
        dpt_buckets_await(s->buckets, n);
        dpt_group_leave(world);
    }
    s->early += dpt_buckets_rewind(s->buckets);
    status = s->failed;
    if (status != DPT_OK)
        *err = s->err;
    dpt_hierarchical_set_range(s, s->bucketed, s->n);
    if (status == DPT_OK) {
        dpt_group_enter(world);
        status = sum_range(s, pool, err);
        dpt_group_leave(world);
    }
    return status == DPT_OK ? status : dpt_group_give_up(world, status, err);
}

/* --- the sum ---------------------------------------------------------------------------------- */

void dpt_hierarchical_begin(struct dpt_hierarchical_allreduce *s)
{
    if (s->large)
        dpt_node_barrier_wait(&s->barrier);
}

enum dpt_status dpt_hierarchical_sum(struct dpt_hierarchical_allreduce *s, const bool *filled,
                                     struct dpt_pool *pool, struct dpt_error *err)
{
    if (s->buckets != NULL)
        return finish_buckets(s, filled, pool, err);
    for (int i = 0; i < s->buffers; i++)
        mark_filled(s, i, filled[i]);
    return sum_range(s, pool, err);
}
