#include "core/comm/sums/hierarchical_allreduce.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/base/nontemporal.h"
#include "core/base/prefetch.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/internal.h"
#include "core/comm/sums/internode.h"

enum {
    CHUNK = DPT_SUM_OF_SQUARES_CHUNK, /* floats that are added at a time: they fit the L1 cache */
    WORTH = 4,         /* chunks per rank from which on sums of squares are computed here */
    SMALL = 4096,      /* floats of a node's buffers up to which each rank adds all of them */
    LARGE = 4 << 20,   /* floats of a sum from which on the caches hold next to nothing of it */
    ALONE = 32 * 1024, /* floats up to which one thread is faster than waking the others */
    SHARED = 32 * 1024 /* floats from which on a node's ranks send a part of the sum each */
};

struct dpt_hierarchical_allreduce {
    const struct dpt_comm *comm;
    struct dpt_group one;            /* this rank by itself */
    const struct dpt_group *local;   /* the ranks that add in shared memory: the node, or `one` */
    const struct dpt_group *above;   /* the ranks that add those sums by messages */
    struct dpt_internode *internode; /* how all ranks do that; NULL: `above` alone do */
    size_t *cut;                     /* [ranks + 1]: where their slices begin */
    size_t n;
    size_t stride; /* floats from a buffer to the next; in front of each is a line that says whether
                      it is filled */
    int buffers;   /* of this rank */
    int first;     /* the number of its first one at `base` */
    int all;       /* of all local ranks */
    bool small;    /* each rank adds everything itself, from buffers in shared memory */
    bool large;    /* the buffers are in shared memory, and the sum comes into the first of all */
    int set;       /* the set of buffers for the next sum. Small ones have two sets, since others
                      read one while the next is written */
    struct dpt_shared shared; /* empty where `local` is one rank */
    struct dpt_node_barrier barrier;
    float *base;  /* the buffers: [sets][all] where small, [all] where large, else this rank's */
    float *given; /* [ranks]: each rank's contributions to the others' slices; NULL where large */
    size_t given_stride;
    float *own; /* this rank's own memory, or NULL */
    float *result;
    float **from; /* the buffers that are added: all ranks' where small, else this rank's. Where
                     large a list for each rank, `each` pointers apart */
    int *n_from;  /* [ranks]; the first one, where there is one list */
    int each;     /* buffers of a rank at most */
    size_t begin, end;       /* the slice that this rank adds */
    size_t squared;          /* floats at the beginning whose squares are summed, too; 0: none */
    double *sums_of_squares; /* [chunks of those], in shared memory */
    int threads;
};

static float *buffer_at(const struct dpt_hierarchical_allreduce *s, int buffer)
{
    return s->base + ((size_t)s->set * (size_t)s->all + (size_t)buffer) * s->stride + DPT_LINE;
}

float *dpt_hierarchical_buffer(const struct dpt_hierarchical_allreduce *s, int i)
{
    return buffer_at(s, s->first + i);
}

float *dpt_hierarchical_result(const struct dpt_hierarchical_allreduce *s)
{
    return s->result;
}

const double *dpt_hierarchical_sums_of_squares(const struct dpt_hierarchical_allreduce *s)
{
    return s->sums_of_squares;
}

/* Whether `base` is in shared memory. */
static bool shares_buffers(const struct dpt_hierarchical_allreduce *s)
{
    return s->small || s->large;
}

/* The number of floats at `base`. */
static size_t buffer_floats(const struct dpt_hierarchical_allreduce *s)
{
    const int n = s->small ? 2 * s->all : s->large ? s->all : s->buffers;

    return (size_t)n * s->stride;
}

/* Chooses how so many ranks of a node add. lone: the job has no other ranks. */
static void choose(struct dpt_hierarchical_allreduce *s, const struct dpt_hierarchical_spec *spec,
                   int ranks, bool lone)
{
    s->small = ranks > 1 && lone && (size_t)s->all * s->n <= SMALL;
    s->large = ranks > 1 && lone && !s->small && s->n >= (spec->large > 0 ? spec->large : LARGE);
}

/* Parts of threads and ranks are multiples of this many floats. */
static size_t unit(const struct dpt_hierarchical_allreduce *s)
{
    return s->squared > 0 ? CHUNK : DPT_LINE;
}

/* Finds the slice that a local rank adds up. */
static void slice(const struct dpt_hierarchical_allreduce *s, int rank, size_t *begin, size_t *end)
{
    dpt_part_in_units(s->n, unit(s), s->small ? 0 : rank, s->small ? 1 : s->local->size, begin,
                      end);
}

/* Where a rank writes float `at` for the rank in whose slice it is. */
static float *given_at(const struct dpt_hierarchical_allreduce *s, int rank, size_t at)
{
    size_t begin, end;

    slice(s, rank, &begin, &end);
    return s->given + (size_t)rank * s->given_stride + (at < begin ? at : at - (end - begin));
}

/* The floats of each rank's part of `given`: as many as the rank with the smallest slice writes,
 * which writes the most. */
static size_t given_floats(size_t n, size_t unit, size_t ranks)
{
    const size_t units = (n + unit - 1) / unit;

    return dpt_round_up((units - units / ranks) * unit, sizeof(float));
}

/* Opens the node's shared memory: the barrier, then the buffers where small or large, else the sum
 * and `given`. */
static enum dpt_status open_shared(struct dpt_hierarchical_allreduce *s, bool spin,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)s->local->size, barrier = dpt_node_barrier_bytes(s->local->size);
    const size_t sum = shares_buffers(s) ? 0 : dpt_round_up(s->n, sizeof(float));
    const size_t given = shares_buffers(s) ? 0 : given_floats(s->n, unit(s), ranks);
    const size_t floats =
        (shares_buffers(s) ? buffer_floats(s) : sum + ranks * given) * sizeof(float);
    const size_t own = s->small ? s->n : s->large ? 0 : buffer_floats(s);
    float *shared;
    char *bytes;

    DPT_TRY(dpt_shared_open(&s->shared, s->local,
                            barrier + floats +
                                dpt_sum_of_squares_chunks(s->squared) * sizeof *s->sums_of_squares,
                            err));
    bytes = s->shared.bytes;
    s->sums_of_squares = s->squared > 0 ? (double *)(void *)(bytes + barrier + floats) : NULL;
    dpt_node_barrier_open(&s->barrier, s->local, bytes, spin);
    shared = (float *)(void *)(bytes + barrier);
    s->given = shares_buffers(s) ? NULL : shared + sum;
    s->given_stride = given;
    DPT_TRY(DPT_ALLOCATE(s->own, own, "the gradients", err));
    s->base = shares_buffers(s) ? shared : s->own;
    s->result = s->small ? s->own : s->large ? buffer_at(s, 0) : shared;
out:
    return status;
}

static enum dpt_status open_private(struct dpt_hierarchical_allreduce *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(s->base, buffer_floats(s), "the gradients", err));
    s->result = buffer_at(s, 0);
    if (s->above->size > 1) {
        DPT_TRY(DPT_ALLOCATE(s->own, s->n, "the gradients", err));
        s->result = s->own;
    }
out:
    return status;
}

/* Counts the local ranks' buffers. Each rank has as many as the one with the most, so that all know
 * their offsets; buffers that no thread uses are never filled. */
static enum dpt_status count_buffers(struct dpt_hierarchical_allreduce *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double most;

    DPT_TRY(dpt_group_max(s->local, s->buffers, &most, err));
    s->each = (int)most;
    s->first = s->local->rank * s->each;
    s->all = s->local->size * s->each;
    s->from = dpt_alloc_array((size_t)s->all, sizeof *s->from);
    s->n_from = dpt_alloc_array((size_t)s->local->size, sizeof *s->n_from);
    if (s->from == NULL || s->n_from == NULL)
        status = dpt_fail_memory(err, "the reduction", (double)s->all * sizeof *s->from);
    DPT_TRY(dpt_group_agree(s->local, status, err));
out:
    return status;
}

void dpt_hierarchical_bytes(const struct dpt_hierarchical_spec *spec, int ranks, int all,
                            double *own, double *shared)
{
    const int local = spec->hierarchical ? ranks : 1;
    const bool lone = local == all;
    struct dpt_hierarchical_allreduce s = {
        .n = spec->n,
        .buffers = spec->buffers,
        .all = spec->buffers * local,
        .stride = dpt_round_up(spec->n, sizeof(float)) + DPT_LINE,
    };
    const double sum = (double)dpt_round_up(spec->n, sizeof(float)) * sizeof(float);
    const double squares =
        (double)dpt_sum_of_squares_chunks(spec->sums_of_squares) * sizeof(double);

    choose(&s, spec, local, lone);
    *own = *shared = 0;
    if (shares_buffers(&s)) {
        *shared = (double)buffer_floats(&s) * sizeof(float) + (s.large ? squares : 0);
        *own = s.small ? sum : 0;
    } else if (local > 1) {
        *shared =
            sum +
            (double)local * (double)given_floats(spec->n, CHUNK, (size_t)local) * sizeof(float) +
            squares;
        *own = (double)buffer_floats(&s) * sizeof(float);
    } else {
        *own = (double)buffer_floats(&s) * sizeof(float) + (lone ? 0 : sum);
    }
}

/* Lets all ranks send between the nodes, which a node's first rank alone would for all: where it
 * has several, and the sum is so large that its length takes the time. */
static enum dpt_status open_internode(struct dpt_hierarchical_allreduce *s,
                                      const struct dpt_hierarchical_spec *spec,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int ranks = s->comm->world.size;
    bool nodes = true;
    size_t end;

    if (!spec->hierarchical || s->comm->nodes == 1 || s->comm->nodes == ranks || s->n < SHARED)
        return DPT_OK;
    DPT_TRY(dpt_internode_open(&s->internode, s->comm, &nodes, err));
    if (!nodes) {
        dpt_internode_close(s->internode);
        s->internode = NULL;
        return DPT_OK;
    }
    DPT_TRY(DPT_ALLOCATE(s->cut, (size_t)ranks + 1, "the reduction", err));
    for (int i = 0; i < ranks; i++)
        dpt_part_in_units(s->n, DPT_LINE, i, ranks, &s->cut[i], &end);
    s->cut[ranks] = s->n;
    DPT_TRY(dpt_internode_plan(s->internode, NULL, s->cut, err));
out:
    return status;
}

/* Opens the allreduce over `local` and `above` as they are set. */
static enum dpt_status open_here(struct dpt_hierarchical_allreduce *s,
                                 const struct dpt_hierarchical_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)s->local->size;

    DPT_TRY(count_buffers(s, err));
    /* The number of nodes, not `above`, decides, since only the first rank of a node has that
     * group. */
    choose(s, spec, s->local->size, s->comm->nodes == 1);
    if (ranks > 1 && s->comm->nodes == 1 && s->n >= ranks * WORTH * CHUNK)
        s->squared = spec->sums_of_squares;
    s->first = shares_buffers(s) ? s->first : 0;
    slice(s, s->local->rank, &s->begin, &s->end);
    DPT_TRY(ranks > 1 ? open_shared(s, spec->spin, err) : open_private(s, err));
out:
    return status;
}

enum dpt_status dpt_hierarchical_open(struct dpt_hierarchical_allreduce **allreduce,
                                      const struct dpt_comm *comm,
                                      const struct dpt_hierarchical_spec *spec, bool *hierarchical,
                                      struct dpt_error *err)
{
    static const struct dpt_group nobody = {.size = 1};
    enum dpt_status status = DPT_OK;
    struct dpt_hierarchical_allreduce *s;

    *allreduce = NULL;
    if (hierarchical != NULL)
        *hierarchical = spec->hierarchical;
    status = DPT_ALLOCATE(s, 1, "the reduction", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    s->comm = comm;
    s->one = nobody;
    s->local = spec->hierarchical ? &comm->node : &s->one;
    s->above = !spec->hierarchical       ? &comm->world
               : comm->leaders.rank >= 0 ? &comm->leaders
                                         : &nobody;
    s->n = spec->n;
    s->stride = dpt_round_up(spec->n, sizeof(float)) + DPT_LINE;
    s->buffers = spec->buffers;
    status = dpt_group_agree(&comm->world, open_here(s, spec, err), err);
    if (status == DPT_OK)
        DPT_TRY(dpt_group_agree(&comm->world, open_internode(s, spec, err), err));
    if (status != DPT_OK && spec->hierarchical && comm->world.size > 1) {
        struct dpt_hierarchical_spec flat = *spec;

        flat.hierarchical = false;
        dpt_hierarchical_close(s);
        if (hierarchical != NULL)
            *hierarchical = false;
        return dpt_hierarchical_open(allreduce, comm, &flat, NULL, err);
    }
out:
    if (status != DPT_OK)
        dpt_hierarchical_close(s);
    else
        *allreduce = s;
    return status;
}

void dpt_hierarchical_close(struct dpt_hierarchical_allreduce *s)
{
    if (s == NULL)
        return;
    if (s->local != NULL && s->local->size > 1)
        dpt_shared_close(&s->shared);
    else
        dpt_free(s->base);
    dpt_free(s->own);
    dpt_internode_close(s->internode);
    dpt_free(s->cut);
    dpt_free(s->from);
    dpt_free(s->n_from);
    dpt_free(s);
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
    return s->local->size > 1 ? s->result : buffer_at(s, 0);
}

/* Finds a thread's part of the floats [from, to). */
static void part(const struct dpt_hierarchical_allreduce *s, int thread, size_t from, size_t to,
                 size_t *begin, size_t *end)
{
    dpt_part_in_units(to - from, unit(s), thread, s->threads, begin, end);
    *begin += from;
    *end += from;
}

static void give_part(void *arg, int thread)
{
    const struct dpt_hierarchical_allreduce *s = arg;
    size_t begin, end;

    part(s, thread, 0, s->n, &begin, &end);
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
    const int n = shares_buffers(s) ? s->all : s->buffers;

    memset(s->n_from, 0, (size_t)s->local->size * sizeof *s->n_from);
    for (int b = 0; b < n; b++) {
        const int list = s->large ? b / s->each : 0;

        if (buffer_at(s, b)[-DPT_LINE] > 0)
            s->from[list * s->each + s->n_from[list]++] = buffer_at(s, b);
    }
}

void dpt_hierarchical_begin(struct dpt_hierarchical_allreduce *s)
{
    if (s->large)
        dpt_node_barrier_wait(&s->barrier);
}

/* Adds what the nodes have. */
static enum dpt_status sum_nodes(struct dpt_hierarchical_allreduce *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (s->internode != NULL) {
        float *const sum = local_sum(s);

        DPT_TRY(dpt_internode_sum(s->internode, NULL, s->cut, &sum, s->result, err));
        DPT_TRY(dpt_internode_gather(s->internode, s->cut, s->result, 0, s->n, err));
    } else if (s->comm->world.size > 1 && s->above->size > 1) {
        DPT_TRY(dpt_group_sum_floats(s->above, local_sum(s), s->result, s->n, err));
    }
out:
    return status;
}

enum dpt_status dpt_hierarchical_sum(struct dpt_hierarchical_allreduce *s, const bool *filled,
                                     struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool together = s->local->size > 1;
    const size_t own = s->end - s->begin;

    for (int i = 0; i < s->buffers; i++)
        buffer_at(s, s->first + i)[-DPT_LINE] = filled[i] || i == 0 ? 1.0f : 0.0f;
    if (together && !shares_buffers(s)) {
        find_filled(s);
        run(s, pool, give_part, (s->n - own) * (size_t)s->n_from[0]);
    }
    if (together)
        dpt_node_barrier_wait(&s->barrier); /* all contributions are written */
    if (!together || shares_buffers(s))
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
