#include "core/comm/sums/hierarchical.h"

enum {
    CHUNK = DPT_HIERARCHICAL_CHUNK,
    WORTH = 4,          /* chunks per rank from which on sums of squares are computed here */
    SMALL = 4096,       /* floats of a node's buffers up to which each rank adds all of them */
    LARGE = 4 << 20,    /* floats of a sum from which on the caches hold next to nothing of it */
    SHARED = 32 * 1024, /* floats from which on all of a node's ranks send parts of the sum */
    BUCKET = 1 << 20,   /* floats of a bucket: long enough for the network, short enough that */
    BUCKETS = 8         /* little is left after backward; smaller where they would be few */
};

float *dpt_hierarchical_buffer(const struct dpt_hierarchical_allreduce *s, int i)
{
    return dpt_hierarchical_at(s, s->first + i);
}

float *dpt_hierarchical_result(const struct dpt_hierarchical_allreduce *s)
{
    return s->result;
}

const double *dpt_hierarchical_sums_of_squares(const struct dpt_hierarchical_allreduce *s)
{
    return s->sums_of_squares;
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
    const size_t sum = dpt_hierarchical_shares(s) ? 0 : dpt_round_up(s->n, sizeof(float));
    const size_t given =
        dpt_hierarchical_shares(s) ? 0 : given_floats(s->n, dpt_hierarchical_unit(s), ranks);
    const size_t floats =
        (dpt_hierarchical_shares(s) ? buffer_floats(s) : sum + ranks * given) * sizeof(float);
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
    s->given = dpt_hierarchical_shares(s) ? NULL : shared + sum;
    s->given_stride = given;
    DPT_TRY(DPT_ALLOCATE(s->own, own, "the gradients", err));
    s->base = dpt_hierarchical_shares(s) ? shared : s->own;
    s->result = s->small ? s->own : s->large ? dpt_hierarchical_at(s, 0) : shared;
out:
    return status;
}

static enum dpt_status open_private(struct dpt_hierarchical_allreduce *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(s->base, buffer_floats(s), "the gradients", err));
    s->result = dpt_hierarchical_at(s, 0);
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
    if (dpt_hierarchical_shares(&s)) {
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

/* Lets all ranks send between the nodes, which a node's first rank alone would for all: where the
 * sum is so large that its length takes the time. */
static enum dpt_status open_internode(struct dpt_hierarchical_allreduce *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool nodes = true;

    DPT_TRY(dpt_internode_open(&s->internode, s->comm, &nodes, err));
    if (!nodes) {
        dpt_internode_close(s->internode);
        s->internode = NULL;
        return DPT_OK;
    }
    DPT_TRY(DPT_ALLOCATE(s->cut, (size_t)s->comm->world.size + 1, "the reduction", err));
    dpt_hierarchical_set_range(s, 0, s->n);
    DPT_TRY(dpt_internode_plan(s->internode, NULL, s->cut, err));
out:
    return status;
}

/* Whether all ranks send between nodes, of which there are several. */
static bool sends_parts(const struct dpt_hierarchical_spec *spec)
{
    return spec->hierarchical && spec->n >= SHARED;
}

int dpt_hierarchical_plan_buckets(const struct dpt_hierarchical_spec *spec, size_t *floats)
{
    const size_t part = dpt_round_up((spec->early + BUCKETS - 1) / BUCKETS, sizeof(float)),
                 most = part < BUCKET ? part : BUCKET, each = most < SHARED ? SHARED : most;

    if (floats != NULL)
        *floats = each;
    return sends_parts(spec) && spec->early > each ? (int)((spec->early + each - 1) / each) : 0;
}

static void use_comm(struct dpt_hierarchical_allreduce *s, const struct dpt_comm *comm,
                     bool hierarchical)
{
    static const struct dpt_group nobody = {.size = 1};

    s->comm = comm;
    s->one = nobody;
    s->local = hierarchical ? &comm->node : &s->one;
    s->above = !hierarchical ? &comm->world : comm->leaders.rank >= 0 ? &comm->leaders : &nobody;
}

/* Finds by which ranks, and by which communicators, sums are made. Buckets have their own. */
static enum dpt_status open_comm(struct dpt_hierarchical_allreduce *s,
                                 const struct dpt_hierarchical_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool internode = sends_parts(spec) && s->job->nodes > 1;

    use_comm(s, s->job, spec->hierarchical);
    if (internode && dpt_hierarchical_plan_buckets(spec, NULL) > 0 && dpt_comm_has_threads()) {
        DPT_TRY(
            dpt_group_agree(&s->job->world, dpt_comm_split_beside(s->job, &s->beside, err), err));
        use_comm(s, &s->beside, true);
    }
    if (internode)
        DPT_TRY(dpt_group_agree(&s->job->world, open_internode(s, err), err));
    if (s->internode == NULL)
        use_comm(s, s->job, spec->hierarchical);
out:
    return status;
}

/* Opens the allreduce over `local` and `above` as they are set. */
static enum dpt_status open_here(struct dpt_hierarchical_allreduce *s,
                                 const struct dpt_hierarchical_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)s->local->size;
    struct dpt_buckets_spec buckets = {
        .n = spec->early, .writers = spec->buffers, .work = dpt_hierarchical_sum_bucket, .arg = s};

    DPT_TRY(count_buffers(s, err));
    /* The number of nodes, not `above`, decides, since only the first rank of a node has that
     * group. */
    choose(s, spec, s->local->size, s->comm->nodes == 1);
    if (ranks > 1 && s->comm->nodes == 1 && s->n >= ranks * WORTH * CHUNK)
        s->squared = spec->sums_of_squares;
    s->first = dpt_hierarchical_shares(s) ? s->first : 0;
    dpt_hierarchical_set_range(s, 0, s->n);
    DPT_TRY(ranks > 1 ? open_shared(s, spec->spin && s->comm == s->job, err)
                      : open_private(s, err));
    dpt_hierarchical_plan_buckets(spec, &buckets.most);
    if (s->comm == &s->beside)
        DPT_TRY(dpt_buckets_open(&s->buckets, &buckets, err));
out:
    return status;
}

enum dpt_status dpt_hierarchical_open(struct dpt_hierarchical_allreduce **allreduce,
                                      const struct dpt_comm *comm,
                                      const struct dpt_hierarchical_spec *spec, bool *hierarchical,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_hierarchical_allreduce *s;

    *allreduce = NULL;
    if (hierarchical != NULL)
        *hierarchical = spec->hierarchical;
    status = DPT_ALLOCATE(s, 1, "the reduction", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    s->job = comm;
    s->n = spec->n;
    s->stride = dpt_round_up(spec->n, sizeof(float)) + DPT_LINE;
    s->buffers = spec->buffers;
    s->bucketed = spec->early;
    status = open_comm(s, spec, err);
    if (status == DPT_OK)
        status = dpt_group_agree(&comm->world, open_here(s, spec, err), err);
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
    dpt_buckets_close(s->buckets);
    if (s->local != NULL && s->local->size > 1)
        dpt_shared_close(&s->shared);
    else
        dpt_free(s->base);
    dpt_free(s->own);
    dpt_internode_close(s->internode);
    dpt_free(s->cut);
    dpt_free(s->from);
    dpt_free(s->n_from);
    if (s->beside.axis > 0)
        dpt_comm_close(&s->beside);
    dpt_free(s);
}
