#include "core/comm/summation.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/base/squares.h"
#include "core/comm/gate.h"

enum {
    LINE = DPT_ALIGN / sizeof(float),
    CHUNK = DPT_SQUARES_RUN, /* floats that are added up at a time: they stay in the first cache */
    WORTH = 4,               /* such chunks of each rank's that are worth their squares */
    SMALL = 4096,     /* floats of a node's buffers up to which each rank adds up all of them */
    ALONE = 32 * 1024 /* floats up to which one thread is faster than waking the others */
};

struct dpt_summation {
    const struct dpt_comm *comm;
    struct dpt_group one;          /* this rank by itself */
    const struct dpt_group *local; /* whose buffers are added up in memory: the node, or `one` */
    const struct dpt_group *above; /* who adds up those sums by messages */
    size_t n;
    size_t stride; /* floats from a buffer to the next; in front of each is a line that says whether
                      it is filled */
    int buffers;   /* of this rank */
    int first;     /* of the local ranks' buffers its first */
    int all;       /* the local ranks' */
    bool small;    /* each rank adds up all for itself */
    int set;       /* of buffers, that comes next. Small ones are read by the others while the next
                      are written: so they have two */
    struct dpt_shared shared; /* empty where `local` is one rank */
    struct dpt_gate gate;
    float *base; /* the buffers: [sets][all] */
    float *own;  /* a result of this rank's, or NULL */
    float *result;
    float **from; /* [all] the buffers that are added, in order */
    int n_from;
    size_t begin, end; /* what this rank adds up */
    size_t squared;    /* floats at the beginning whose squares are summed, too; 0: none */
    double *squares;   /* [runs of those], in the shared memory */
    int threads;
};

static float *place(const struct dpt_summation *s, int buffer)
{
    return s->base + ((size_t)s->set * (size_t)s->all + (size_t)buffer) * s->stride + LINE;
}

float *dpt_summation_buffer(const struct dpt_summation *s, int i)
{
    return place(s, s->first + i);
}

float *dpt_summation_result(const struct dpt_summation *s)
{
    return s->result;
}

const double *dpt_summation_squares(const struct dpt_summation *s)
{
    return s->squares;
}

/* Floats of all the local ranks' buffers. */
static size_t buffer_floats(const struct dpt_summation *s)
{
    return (s->small ? 2 : 1) * (size_t)s->all * s->stride;
}

/* What threads and ranks share out is a multiple of this. */
static size_t unit(const struct dpt_summation *s)
{
    return s->squared > 0 ? CHUNK : LINE;
}

static enum dpt_status alloc_fail(struct dpt_error *err, size_t floats)
{
    return dpt_fail_memory(err, "the gradients", (double)floats * sizeof(float));
}

/* The node's memory: its gate, the sum, all its ranks' buffers. */
static enum dpt_status open_shared(struct dpt_summation *s, bool spin, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t gate = dpt_gate_bytes(s->local->size);
    const size_t sum = s->small ? 0 : dpt_round_up(s->n, sizeof(float));
    const size_t floats = (sum + buffer_floats(s)) * sizeof(float);
    char *bytes;

    DPT_TRY(dpt_shared_open(&s->shared, s->local,
                            gate + floats + dpt_squares_runs(s->squared) * sizeof *s->squares,
                            err));
    bytes = s->shared.bytes;
    s->squares = s->squared > 0 ? (double *)(void *)(bytes + gate + floats) : NULL;
    dpt_gate_open(&s->gate, s->local, bytes, spin);
    s->result = (float *)(void *)(bytes + gate);
    s->base = s->result + sum;
    if (s->small) {
        s->own = dpt_alloc_array(s->n, sizeof(float));
        s->result = s->own;
        if (s->own == NULL)
            status = alloc_fail(err, s->n);
    }
out:
    return status;
}

static enum dpt_status open_private(struct dpt_summation *s, struct dpt_error *err)
{
    s->base = dpt_alloc_array(buffer_floats(s), sizeof(float));
    if (s->base == NULL)
        return alloc_fail(err, buffer_floats(s));
    s->result = place(s, 0);
    if (s->above->size <= 1)
        return DPT_OK;
    s->own = dpt_alloc_array(s->n, sizeof(float));
    s->result = s->own;
    return s->own != NULL ? DPT_OK : alloc_fail(err, s->n);
}

/* Where this rank's buffers are among the local ones. */
static enum dpt_status count_buffers(struct dpt_summation *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int *counts = dpt_alloc_array((size_t)s->local->size, sizeof *counts);

    if (counts == NULL)
        status = dpt_fail_memory(err, "the reduction", (double)s->local->size * sizeof *counts);
    DPT_TRY(dpt_group_agree(s->local, status, err));
    DPT_TRY(dpt_group_gather(s->local, &s->buffers, counts, sizeof *counts, err));
    for (int r = 0; r < s->local->size; r++) {
        s->first += r < s->local->rank ? counts[r] : 0;
        s->all += counts[r];
    }
    s->from = dpt_alloc_array((size_t)s->all, sizeof *s->from);
    if (s->from == NULL)
        status = dpt_fail_memory(err, "the reduction", (double)s->all * sizeof *s->from);
    DPT_TRY(dpt_group_agree(s->local, status, err));
out:
    dpt_free(counts);
    return status;
}

void dpt_summation_bytes(const struct dpt_summation_spec *spec, int ranks, int all, double *own,
                         double *shared)
{
    const int local = spec->hierarchical ? ranks : 1;
    const bool lone = local == all;
    struct dpt_summation s = {
        .all = spec->buffers * local,
        .stride = dpt_round_up(spec->n, sizeof(float)) + LINE,
    };
    const double sum = (double)dpt_round_up(spec->n, sizeof(float)) * sizeof(float);

    s.small = local > 1 && lone && (size_t)s.all * spec->n <= SMALL;
    *own = *shared = 0;
    if (local > 1) {
        *shared = (double)buffer_floats(&s) * sizeof(float) + (s.small ? 0 : sum) +
                  (s.small ? 0 : (double)dpt_squares_runs(spec->squares) * sizeof(double));
        *own = s.small ? sum : 0;
    } else {
        *own = (double)buffer_floats(&s) * sizeof(float) + (lone ? 0 : sum);
    }
}

/* Over `local` and `above` as they are set. */
static enum dpt_status open_here(struct dpt_summation *s, const struct dpt_summation_spec *spec,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t rank = (size_t)s->local->rank, ranks = (size_t)s->local->size;
    size_t units;

    DPT_TRY(count_buffers(s, err));
    /* Not by `above`, which only the first rank of a node knows. */
    s->small = ranks > 1 && s->comm->nodes == 1 && (size_t)s->all * s->n <= SMALL;
    if (ranks > 1 && s->comm->nodes == 1 && s->n >= ranks * WORTH * CHUNK)
        s->squared = spec->squares;
    units = (s->n + unit(s) - 1) / unit(s);
    s->begin = s->small ? 0 : units * rank / ranks * unit(s);
    s->end = s->small ? s->n : units * (rank + 1) / ranks * unit(s);
    s->end = s->end < s->n ? s->end : s->n;
    DPT_TRY(ranks > 1 ? open_shared(s, spec->spin, err) : open_private(s, err));
out:
    return status;
}

enum dpt_status dpt_summation_open(struct dpt_summation **summation, const struct dpt_comm *comm,
                                   const struct dpt_summation_spec *spec, bool *hierarchical,
                                   struct dpt_error *err)
{
    static const struct dpt_group nobody = {.size = 1};
    enum dpt_status status = DPT_OK;
    struct dpt_summation *s = dpt_alloc(sizeof *s);

    *summation = NULL;
    if (hierarchical != NULL)
        *hierarchical = spec->hierarchical;
    if (s == NULL)
        status = dpt_fail_memory(err, "the reduction", sizeof *s);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    s->comm = comm;
    s->one = nobody;
    s->local = spec->hierarchical ? &comm->node : &s->one;
    s->above = !spec->hierarchical       ? &comm->world
               : comm->leaders.rank >= 0 ? &comm->leaders
                                         : &nobody;
    s->n = spec->n;
    s->stride = dpt_round_up(spec->n, sizeof(float)) + LINE;
    s->buffers = spec->buffers;
    status = dpt_group_agree(&comm->world, open_here(s, spec, err), err);
    if (status != DPT_OK && spec->hierarchical && comm->world.size > 1) {
        struct dpt_summation_spec flat = *spec;

        flat.hierarchical = false;
        dpt_summation_close(s);
        if (hierarchical != NULL)
            *hierarchical = false;
        return dpt_summation_open(summation, comm, &flat, NULL, err);
    }
out:
    if (status != DPT_OK)
        dpt_summation_close(s);
    else
        *summation = s;
    return status;
}

void dpt_summation_close(struct dpt_summation *s)
{
    if (s == NULL)
        return;
    if (s->local != NULL && s->local->size > 1)
        dpt_shared_close(&s->shared);
    else
        dpt_free(s->base);
    dpt_free(s->own);
    dpt_free(s->from);
    dpt_free(s);
}

static void add_two(float *restrict to, const float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = a[i] + b[i];
}

static void add(float *restrict to, const float *restrict a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += a[i];
}

static void add_range(const struct dpt_summation *s, float *sum, size_t begin, size_t end)
{
    for (size_t at = begin, n; at < end; at += n) {
        float *to = sum + at, *a = s->from[0] + at;
        int k = 1;

        n = end - at < CHUNK ? end - at : CHUNK;
        if (to != a && s->n_from > 1)
            add_two(to, a, s->from[k++] + at, n);
        else if (to != a)
            memcpy(to, a, n * sizeof *to);
        for (; k < s->n_from; k++)
            add(to, s->from[k] + at, n);
        if (at < s->squared)
            s->squares[at / CHUNK] = dpt_squares_of_run(sum, s->squared, at / CHUNK);
    }
}

/* Where the local sum is made: in place where this rank is alone. */
static float *local_sum(const struct dpt_summation *s)
{
    return s->local->size > 1 ? s->result : place(s, 0);
}

static void add_part(void *arg, int thread)
{
    const struct dpt_summation *s = arg;
    const size_t units = (s->end - s->begin + unit(s) - 1) / unit(s);
    const size_t begin = s->begin + units * (size_t)thread / (size_t)s->threads * unit(s);
    const size_t end = s->begin + units * ((size_t)thread + 1) / (size_t)s->threads * unit(s);

    add_range(s, local_sum(s), begin, end < s->end ? end : s->end);
}

/* Adds up this rank's slice of the local ranks' buffers. */
static void add_local(struct dpt_summation *s, struct dpt_pool *pool)
{
    s->n_from = 0;
    for (int b = 0; b < s->all; b++)
        if (place(s, b)[-LINE] > 0)
            s->from[s->n_from++] = place(s, b);
    s->threads = pool != NULL ? dpt_pool_threads(pool) : 1;
    if (s->threads > 1 && (s->end - s->begin) * (size_t)s->n_from > ALONE)
        dpt_pool_run(pool, add_part, s);
    else
        add_range(s, local_sum(s), s->begin, s->end);
}

enum dpt_status dpt_summation_sum(struct dpt_summation *s, const bool *filled,
                                  struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool together = s->local->size > 1;

    for (int i = 0; i < s->buffers; i++)
        place(s, s->first + i)[-LINE] = filled[i] || i == 0;
    if (together)
        dpt_gate_pass(&s->gate); /* all buffers are there */
    add_local(s, pool);
    if (s->small) {
        s->set ^= 1;
        return DPT_OK;
    }
    if (together)
        dpt_gate_pass(&s->gate); /* all slices are there */
    if (s->comm->world.size > 1 && s->above->size > 1)
        DPT_TRY(dpt_group_sum_floats(s->above, local_sum(s), s->result, s->n, err));
    if (together && s->comm->nodes > 1)
        dpt_gate_pass(&s->gate); /* the sum of all nodes is there */
out:
    return status;
}
