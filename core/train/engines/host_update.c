#include "core/train/engines/host_update.h"

#include "core/base/memory.h"
#include "core/base/nontemporal.h"
#include "core/base/sum_of_squares.h"
#include "core/train/mesh/tensor_parallel.h"
#include "core/train/reduction/gradient_reduction.h"

enum {
    ALONE = 16 * 1024, /* below this many floats one thread is faster than waking the others */
    PIECE = 8 * 1024,  /* floats that are updated and shared at a time: they fit the L2 cache */
};

struct dpt_host_update {
    struct dpt_trainer *t;    /* borrowed */
    struct dpt_chunks chunks; /* the gradient norm's: t->reduction's, or all of one size */
    /* Partial sums of squares, one for each chunk (core/base/sum_of_squares.h), and those that the
     * optimizer wants. In a step's backward they are negative until the backend writes them. */
    double *norms;
    size_t *left, n_left;     /* chunks of the norm whose squares are to be summed */
    const double *measured;   /* the optimizer's sums, of all parts of the layers */
    struct dpt_update update; /* the present one */
    int range;                /* the floats that it is of: of a range that ranks own slices of */
    size_t begin, end;
    void (*part)(struct dpt_host_update *u, int thread, int threads); /* what the threads do */
};

static void run_part(void *arg, int thread)
{
    struct dpt_host_update *u = arg;

    u->part(u, thread, u->t->layout.threads);
}

/* Does `part` on all threads or, if there is little to do, on this one alone. */
static void run_parts(struct dpt_host_update *u,
                      void (*part)(struct dpt_host_update *u, int thread, int threads))
{
    u->part = part;
    if (dpt_trainer_graph(u->t)->floats <= ALONE)
        part(u, 0, 1);
    else
        dpt_pool_run(u->t->team.pool, run_part, u);
}

/* Sums the squares of a thread's part of the chunks that are left. */
static void norm_range(struct dpt_host_update *u, int thread, int threads)
{
    const float *sum = u->t->reduction.sum;
    const size_t *at = u->chunks.begin;
    size_t begin, end;

    dpt_part_in_units(u->n_left, 1, thread, threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const size_t k = u->left[i];

        u->norms[k] = dpt_sum_of_squares(sum + at[k], at[k + 1] - at[k]);
    }
}

/* Lists the chunks whose squares the backend has not summed. */
static void list_left(struct dpt_host_update *u)
{
    u->n_left = 0;
    for (size_t k = 0; k < u->chunks.n; k++)
        if (!(u->norms[k] >= 0))
            u->left[u->n_left++] = k;
}

void dpt_host_update_begin(struct dpt_host_update *u)
{
    for (size_t k = 0; u->t->reduction.squares != NULL && k < u->chunks.n; k++)
        u->norms[k] = -1;
}

enum dpt_status dpt_host_update_squares(struct dpt_host_update *u, double *sum,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = u->t;
    size_t chunks = u->chunks.n;
    const double *sums_of_squares = t->reduction.type->sums_of_squares(t);

    if (sums_of_squares == NULL) {
        if (t->reduction.squares != NULL)
            list_left(u);
        run_parts(u, norm_range);
        sums_of_squares = u->norms;
    }
    DPT_TRY(dpt_tensor_parallel_chunks(t->mesh.divided, 1, &sums_of_squares, &chunks, err));
    for (size_t i = 0; i < chunks; i++)
        *sum += sums_of_squares[i];
out:
    return status;
}

/* Measures one of `threads` parts for the optimizer, over the norms of the gradient. */
static void measure_range(struct dpt_host_update *u, int thread, int threads)
{
    struct dpt_trainer *t = u->t;
    const struct dpt_gradient_reduction_type *type = t->reduction.type;
    size_t begin, end;

    for (int k = 0; k < type->ranges(t); k++) {
        const struct dpt_slice own = dpt_gradient_own(t, k);

        dpt_part_in_units(own.last - own.first, 1, thread, threads, &begin, &end);
        dpt_optimizer_measure(&t->job->optimizer, dpt_trainer_graph(t), &u->update,
                              own.first + begin, own.first + end, t->arenas.params,
                              type->slice_sum(t, k), t->arenas.slot, u->norms);
    }
}

/* Does one of `threads` parts of the update of u's floats. In shards it goes piece by piece: each
 * is still in the cache when it is copied to the other ranks. */
static void update_range(struct dpt_host_update *u, int thread, int threads)
{
    struct dpt_trainer *t = u->t;
    float *const shared = t->reduction.type->weights(t);
    const float *gradient = t->reduction.type->slice_sum(t, u->range);
    size_t begin, end;

    dpt_thread_part(u->end - u->begin, thread, threads, &begin, &end);
    begin += u->begin;
    end += u->begin;
    for (size_t at = begin, n; at < end; at += n) {
        n = shared != NULL && end - at > PIECE ? PIECE : end - at;
        dpt_optimizer_apply(&t->job->optimizer, dpt_trainer_graph(t), &u->update, at, at + n,
                            t->arenas.params, gradient, t->arenas.slot, u->measured);
        if (shared != NULL)
            dpt_copy_nontemporal(shared + at, t->arenas.params + at, n);
    }
    dpt_nontemporal_fence();
}

/* Updates floats of a range. */
static void update_floats(struct dpt_host_update *u, int range, size_t begin, size_t end)
{
    u->range = range;
    u->begin = begin;
    u->end = end;
    run_parts(u, update_range);
}

/* Updates all parameters. In shards a rank updates those that it owns, and gets the others. If the
 * ranks of a node share parameters and slots, each updates a part of them. All have read the
 * parameters by then, since their gradients are in the sum. */
static enum dpt_status update_all(struct dpt_host_update *u, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = u->t;
    const struct dpt_group *node = &dpt_trainer_replicas(t)->node;
    const size_t floats = (size_t)dpt_trainer_graph(t)->floats;
    const bool together = t->arenas.shared.bytes != NULL;
    size_t begin, end;

    if (together) {
        dpt_thread_part(floats, node->rank, node->size, &begin, &end);
        u->update.for_others = true;
        update_floats(u, 0, begin, end);
        DPT_TRY(dpt_group_barrier(node, err));
    }
    for (int k = 0; k < t->reduction.type->ranges(t) && !together; k++) {
        const struct dpt_slice own = dpt_gradient_own(t, k);

        if (own.begin < own.end)
            update_floats(u, k, own.begin, own.end);
    }
    DPT_TRY(t->reduction.type->share(t, err));
out:
    return status;
}

enum dpt_status dpt_host_update_weights(struct dpt_host_update *u, const struct dpt_update *how,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = u->t;
    size_t chunks = dpt_optimizer_chunks(&t->job->optimizer, dpt_trainer_graph(t));
    const bool measures = chunks > 0;

    u->update = *how;
    u->measured = u->norms;
    if (measures) {
        run_parts(u, measure_range);
        DPT_TRY(t->reduction.type->gather_chunks(t, u->norms, DPT_OPTIMIZER_SQUARES, err));
        DPT_TRY(dpt_tensor_parallel_chunks(t->mesh.divided, DPT_OPTIMIZER_SQUARES, &u->measured,
                                           &chunks, err));
    }
    DPT_TRY(update_all(u, err));
out:
    return status;
}

/* --- opening ---------------------------------------------------------------------------------- */

static enum dpt_status list_chunks(struct dpt_host_update *u, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = u->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);

    DPT_TRY(dpt_graph_chunks(graph, &t->reduction.chunks, err));
    u->chunks = t->reduction.chunks;
    if (t->reduction.type->of_rows)
        return DPT_OK;
    u->chunks = (struct dpt_chunks){dpt_sum_of_squares_chunks((size_t)graph->floats), NULL};
    DPT_TRY(DPT_ALLOCATE(u->chunks.begin, u->chunks.n + 1, "the norms of gradients", err));
    for (size_t k = 0; k < u->chunks.n; k++)
        u->chunks.begin[k] = k * DPT_SUM_OF_SQUARES_CHUNK;
    u->chunks.begin[u->chunks.n] = (size_t)graph->floats;
out:
    return status;
}

/* Whether the tensor's chunks, from number `first` on, are pieces of DPT_SUM_OF_SQUARES_CHUNK
 * floats. */
static bool is_in_pieces(const struct dpt_chunks *chunks, const struct dpt_tensor *tensor,
                         size_t first)
{
    enum { PIECE = DPT_SUM_OF_SQUARES_CHUNK };
    const size_t offset = (size_t)tensor->offset, n = (size_t)tensor->count / PIECE;

    if (tensor->state || n * PIECE != (size_t)tensor->count)
        return false;
    for (size_t k = 0; k <= n; k++)
        if (first + k > chunks->n || chunks->begin[first + k] != offset + k * PIECE)
            return false;
    return true;
}

/* Only a rank without others has the gradient of the whole step when a backend has computed it, and
 * only where no fault is to change it then (fault.h). */
static enum dpt_status offer_squares(struct dpt_host_update *u, struct dpt_error *err)
{
    struct dpt_trainer *t = u->t;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    double **squares = NULL;
    size_t first = 0;

    if (t->comm->world.size > 1 || dpt_fault_strikes_gradients(&t->fault))
        return DPT_OK;
    if (DPT_ALLOCATE(squares, (size_t)graph->n_tensors, "the norms of gradients", err) != DPT_OK)
        return err->status;
    for (int32_t i = 0; i < graph->n_tensors; i++) {
        while (first < u->chunks.n && u->chunks.begin[first] < (size_t)graph->tensors[i].offset)
            first++;
        if (is_in_pieces(&u->chunks, &graph->tensors[i], first)) {
            squares[i] = u->norms + first;
            t->reduction.squares = squares;
        }
    }
    if (t->reduction.squares == NULL)
        dpt_free(squares);
    return DPT_OK;
}

enum dpt_status dpt_host_update_open(struct dpt_host_update **update, struct dpt_trainer *t,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t squares = DPT_OPTIMIZER_SQUARES * dpt_optimizer_chunks(&t->job->optimizer, graph);
    struct dpt_host_update *u = NULL;
    size_t chunks;

    DPT_TRY(DPT_ALLOCATE(u, 1, "the norms of gradients", err));
    *update = u;
    u->t = t;
    DPT_TRY(list_chunks(u, err));
    chunks = u->chunks.n;
    DPT_TRY(
        DPT_ALLOCATE(u->norms, squares > chunks ? squares : chunks, "the norms of gradients", err));
    DPT_TRY(DPT_ALLOCATE(u->left, chunks, "the norms of gradients", err));
    for (u->n_left = 0; u->n_left < chunks; u->n_left++)
        u->left[u->n_left] = u->n_left;
    DPT_TRY(offer_squares(u, err));
out:
    return status;
}

void dpt_host_update_close(struct dpt_host_update *u)
{
    if (u == NULL)
        return;
    dpt_free(u->norms);
    dpt_free(u->left);
    if (u->chunks.begin != u->t->reduction.chunks.begin)
        dpt_free(u->chunks.begin);
    dpt_free(u->t->reduction.chunks.begin);
    u->t->reduction.chunks.begin = NULL;
    dpt_free(u->t->reduction.squares);
    u->t->reduction.squares = NULL;
    dpt_free(u);
}
