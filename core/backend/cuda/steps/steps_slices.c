#include <string.h>

#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/steps/steps.h"
#include "core/base/sum_of_squares.h"

/*
 * Sums of which each linked rank makes a slice, and updates (ZeRO's first stage, Rajbhandari et al.
 * 2020).
 *
 * The gradient with its tail is cut into pieces, and each rank has one slice of every piece: it
 * gets its sum along the tree (steps_tree.c) or by a reduce-scatter. Slices of a piece are equally
 * long, so pieces are counted from the gradient's end on, past the tail, and need not end at
 * buckets: what is left of one goes with the next.
 *
 * Without shards the sums are gathered at once, and every rank updates everything. With shards a
 * rank keeps the optimizer's state of its slices only, updates these, and the weights are gathered.
 * The tail comes to all ranks by a sum to which only the rank that has it gives anything. The norm
 * is added up from the ranks' parts. So it is from those of a pipeline's stages, of which the last
 * one has the tail. Along the tree a chunk is added up by the rank in whose slice it begins, which
 * gets the rest of it from those that have it, and all get all chunks' sums.
 *
 * With units of the weights (steps_units.c) each is cut into pieces of its own, for which its
 * window has room; so is what lies behind them, the state and the tail, which all ranks get.
 *
 * Outside of steps the host has the whole state, so checkpoints are those of a run without shards.
 */

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool in_chunks(const struct dpt_cuda_steps *s)
{
    return s->spec.tree || dpt_cuda_steps_apart(s);
}

/* The chunks of the norm, in all stages. */
static int64_t all_chunks(const struct dpt_cuda_steps *s)
{
    return dpt_cuda_steps_staged(s) ? s->spec.chunks
                                    : (int64_t)dpt_graph_chunk_count(s->p->spec.graph);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Cuts from `top` down to `low`, between which lie so many slices. */
static enum dpt_status cut_range(struct dpt_cuda_steps *s, int bucket, int64_t low, int64_t top,
                                 int64_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t unit = (int64_t)DPT_TENSOR_ALIGN * s->spec.ranks;
    const int64_t most = round_up(DPT_CUDA_SUMMED / (int64_t)sizeof(float), unit);

    while (top > low) {
        const int64_t n = smaller(top - low, most), width = n / s->spec.ranks;
        const struct dpt_cuda_slices *before = s->n_pieces > 0 ? &s->pieces[s->n_pieces - 1] : NULL;
        const int64_t at = before != NULL ? before->at + before->width : 0;

        DPT_GROW(s->pieces, &s->piece_room, (size_t)s->n_pieces + 1, "the gradient's parts", err);
        top -= n;
        s->pieces[s->n_pieces++] = (struct dpt_cuda_slices){
            .bucket = bucket, .first = top, .end = smaller(top + n, end), .width = width, .at = at};
        s->widest = width > s->widest ? width : s->widest;
        s->slot_floats = s->spec.shards ? at + width : s->slot_floats;
    }
out:
    return status;
}

static enum dpt_status cut_pieces(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t unit = (int64_t)DPT_TENSOR_ALIGN * s->spec.ranks;
    const int64_t end = s->p->spec.graph->arena + DPT_TENSOR_ALIGN;
    const int64_t start = s->buckets[s->n_buckets - 1].first;
    const size_t *edge = s->p->spec.edge;
    int64_t top = start + round_up(end - start, unit);

    for (int i = 0; i < s->n_buckets; i++) {
        const int64_t low = top - (top - s->buckets[i].first) / unit * unit;

        DPT_TRY(cut_range(s, i, low, top, end, err));
        top = low;
    }
    for (int k = s->p->spec.units - 1; k >= 0; k--) {
        const int64_t first = (int64_t)edge[k], last = (int64_t)edge[k + 1];

        DPT_TRY(cut_range(s, k + 1, first, first + round_up(last - first, unit), last, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_slices_cut(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t chunks;

    s->slot_floats = s->p->spec.graph->floats;
    if (!in_chunks(s))
        return DPT_OK;
    if (s->spec.link != NULL)
        DPT_TRY(cut_pieces(s, err));
    /* A slice divides one chunk more at most. */
    chunks = all_chunks(s) + s->n_pieces;
    s->norm_sums = chunks + 2 + dpt_cuda_chunk_blocks(chunks);
out:
    return status;
}

/* The piece that has float `at`, or the lowest one. */
static const struct dpt_cuda_slices *piece_of(const struct dpt_cuda_steps *s, int64_t at)
{
    int i = s->n_pieces - 1;

    while (i > 0 && at >= s->pieces[i - 1].first)
        i--;
    return &s->pieces[i];
}

/* The rank in whose slice float `at` is, and where the slice ends. -1: it is in none, since nothing
 * before it learns. */
static int owner_of(const struct dpt_cuda_steps *s, int64_t at, int64_t *end)
{
    const struct dpt_cuda_slices *piece = piece_of(s, at);
    int rank;

    if (at < piece->first) {
        *end = piece->first;
        return -1;
    }
    rank = (int)((at - piece->first) / piece->width);
    *end = smaller(piece->first + (rank + 1) * piece->width, piece->end);
    return rank;
}

/* Where this rank has float `at` of the gradient's sum, of a slice of its own. */
static float *sum_at(const struct dpt_cuda_steps *s, int64_t at)
{
    const struct dpt_cuda_slices *piece = piece_of(s, at);

    return s->units == NULL
               ? s->p->gradient + at
               : dpt_cuda_slices_sum_at(s, piece) + at - piece->first - s->spec.rank * piece->width;
}

/* Of a chunk that begins at `begin`; it is gathered behind that. */
static enum dpt_status add_message(struct dpt_cuda_steps *s, int64_t begin, int64_t at, int64_t n,
                                   int from, int to, struct dpt_error *err)
{
    const int own = s->spec.rank;
    enum dpt_status status = DPT_OK;

    if (from == to || (own != from && own != to))
        return DPT_OK;
    DPT_GROW(s->shared, &s->shared_room, (size_t)s->n_shared + 1, "the norms' chunks", err);
    s->shared[s->n_shared++] =
        (struct dpt_cuda_message){.at = own == from ? sum_at(s, at) : sum_at(s, begin) + at - begin,
                                  .n = (size_t)n,
                                  .rank = own == from ? to : from,
                                  .sends = own == from};
out:
    return status;
}

/* Lists what this rank adds up of floats [begin, end), which are chunk number k. */
static enum dpt_status list_chunk(struct dpt_cuda_steps *s, int64_t k, int64_t begin, int64_t end,
                                  struct dpt_cuda_chunk *list, struct dpt_error *err)
{
    const bool whole = dpt_cuda_steps_shared(s) == DPT_CUDA_SHARED_CHUNKS;
    enum dpt_status status = DPT_OK;
    int64_t next;
    int first = -1;

    for (int64_t at = begin; at < end; at = next) {
        const int owner = owner_of(s, at, &next);

        next = smaller(next, end);
        if (at == begin)
            first = owner;
        if (whole && owner >= 0)
            DPT_TRY(add_message(s, begin, at, next - at, owner, first, err));
        if (owner != s->spec.rank || (whole && at > begin))
            continue;
        list[s->listed] = (struct dpt_cuda_chunk){
            .begin = s->units != NULL ? sum_at(s, at) - s->units->gradient : at,
            .n = (int32_t)((whole ? end : next) - at),
            .number = (int32_t)(whole ? k : s->listed),
        };
        s->listed++;
    }
out:
    return status;
}

static enum dpt_status send_chunks(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_chunks chunks = {0};
    struct dpt_cuda_chunk *list = NULL;
    struct dpt_cuda_piece piece = {"the norm's chunks", 0, (void **)&s->chunk, false};
    const int64_t before = s->spec.chunks_before; /* 0 without stages */

    DPT_TRY(dpt_graph_chunks(s->p->spec.graph, &chunks, err));
    DPT_TRY(DPT_ALLOCATE(list, chunks.n + (size_t)s->n_pieces, "the norm's chunks", err));
    for (size_t k = 0; k < chunks.n; k++) {
        const int64_t begin = (int64_t)chunks.begin[k], end = (int64_t)chunks.begin[k + 1];

        if (s->spec.shards)
            DPT_TRY(list_chunk(s, before + (int64_t)k, begin, end, list, err));
        else if (!dpt_cuda_steps_staged(s) || s->spec.rank == 0)
            list[s->listed++] = (struct dpt_cuda_chunk){begin, (int32_t)(end - begin),
                                                        (int32_t)(before + (int64_t)k)};
    }
    s->chunks = dpt_cuda_steps_shared(s) == DPT_CUDA_SHARED_CHUNKS ? all_chunks(s) : s->listed;
    piece.bytes = s->listed * (int64_t)sizeof *list;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    DPT_TRY(dpt_cuda_steps_upload(s, s->chunk, list, (size_t)piece.bytes, err));
out:
    dpt_free(list);
    dpt_free(chunks.begin);
    return status;
}

/* Numbers, of each slice of a piece from 0 on, the 16 floats that layers read as they are: where
 * copies of them have no number. Returns the most that a slice has. */
static int number_exact(const struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                        const uint16_t *copy, uint16_t *exact)
{
    const int64_t floats = s->p->spec.graph->floats;
    int most = 0;

    for (int r = 0; r < s->spec.ranks; r++) {
        int n = 0;

        for (int64_t at = r * piece->width; at < (r + 1) * piece->width; at += DPT_TENSOR_ALIGN) {
            const int64_t k = piece->first + at;
            const bool read =
                k < piece->end && (k >= floats || copy[k / DPT_TENSOR_ALIGN] == DPT_CUDA_NO_COPY);

            exact[at / DPT_TENSOR_ALIGN] = (uint16_t)(read ? n : DPT_CUDA_NO_COPY);
            n += read;
        }
        most = n > most ? n : most;
    }
    return most;
}

/* Finds the pieces of which it takes less to gather what layers read: where they read half the
 * width of most. */
static enum dpt_status narrow_pieces(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t floats = s->p->spec.graph->floats, element = (int64_t)sizeof(uint16_t);
    struct dpt_cuda_copies unused;
    uint16_t *copy = NULL, *exact = NULL;

    if (s->p->spec.precision < DPT_PRECISION_BF16)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(copy, (size_t)(floats / DPT_TENSOR_ALIGN), "the tensors' copies", err));
    DPT_TRY(DPT_ALLOCATE(exact, (size_t)(s->widest * s->spec.ranks / DPT_TENSOR_ALIGN),
                         "the tensors' copies", err));
    dpt_cuda_copies_of(s->p, false, copy, &unused);
    for (int i = 0; i < s->n_pieces; i++) {
        struct dpt_cuda_slices *piece = &s->pieces[i];
        const int64_t all = piece->width * s->spec.ranks / DPT_TENSOR_ALIGN;
        const int64_t most = number_exact(s, piece, copy, exact);
        const struct dpt_cuda_piece numbers = {"the tensors' copies", all * element,
                                               (void **)&piece->exact, false};

        piece->row = piece->width * element + most * DPT_TENSOR_ALIGN * (int64_t)sizeof(float);
        if (most >= DPT_CUDA_NO_COPY || piece->row >= piece->width * (int64_t)sizeof(float))
            continue;
        DPT_TRY(dpt_cuda_hold(&s->p->ctx, &numbers, 1, err));
        DPT_TRY(dpt_cuda_steps_upload(s, piece->exact, exact, (size_t)numbers.bytes, err));
    }
out:
    dpt_free(copy);
    dpt_free(exact);
    return status;
}

enum dpt_status dpt_cuda_slices_open(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_cuda_piece piece = {"a piece of all ranks",
                                         s->widest * s->spec.ranks * (int64_t)sizeof(float),
                                         (void **)&s->gathered, false};

    if (!in_chunks(s))
        return DPT_OK;
    DPT_TRY(send_chunks(s, err));
    if (!s->spec.shards)
        return DPT_OK;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    DPT_TRY(DPT_ALLOCATE(s->gathers, (size_t)s->n_pieces, "the gradient's parts", err));
    DPT_TRY(narrow_pieces(s, err));
out:
    return status;
}

void dpt_cuda_slices_close(struct dpt_cuda_steps *s)
{
    free(s->pieces);
    free(s->shared);
    dpt_free(s->gathers);
}

/* --- sums ------------------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_slices_gather(struct dpt_cuda_steps *s, float *arena, CUstream stream,
                                       struct dpt_error *err)
{
    for (int i = 0; i < s->n_pieces; i++)
        s->gathers[i] = (struct dpt_cuda_message){.at = arena + s->pieces[i].first,
                                                  .n = (size_t)s->pieces[i].width};
    return dpt_cuda_link_gather(s->spec.link, s->gathers, s->n_pieces, stream, err);
}

enum dpt_status dpt_cuda_slices_sum(struct dpt_cuda_steps *s, int bucket, struct dpt_error *err)
{
    const CUstream sums = s->p->ctx.sums;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->n_pieces; i++) {
        const struct dpt_cuda_slices *piece = &s->pieces[i];
        struct dpt_cuda_message all = {.n = (size_t)piece->width};

        if (piece->bucket != bucket)
            continue;
        all.at = dpt_cuda_arena_of(s, s->p->gradient, piece) + piece->first;
        if (s->tree != NULL)
            DPT_TRY(dpt_cuda_tree_sum(s, piece, err));
        else
            DPT_TRY(dpt_cuda_link_scatter(s->spec.link, all.at, all.n, sums, err));
        if (!s->spec.shards || (s->units != NULL && bucket == 0))
            DPT_TRY(dpt_cuda_link_gather(s->spec.link, &all, 1, sums, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_slices_end(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t arena = s->p->spec.graph->arena;
    float *tail = dpt_cuda_steps_tail(s);
    enum dpt_status status = DPT_OK;
    int64_t end;
    const int owner = s->spec.shards ? owner_of(s, arena, &end) : 0;

    if (dpt_cuda_steps_staged(s))
        DPT_TRY(dpt_cuda_link_sum(s->spec.link, s->tree->flags, DPT_TENSOR_ALIGN, ctx->sums, err));
    if (s->spec.rank != owner || !dpt_cuda_steps_ends(s))
        DPT_CUDA_TRY(&ctx->lib,
                     cuMemsetD32Async(dpt_cuda_ptr(tail), 0, DPT_TENSOR_ALIGN, ctx->sums));
    DPT_TRY(dpt_cuda_link_sum(s->spec.link, tail, DPT_TENSOR_ALIGN, ctx->sums, err));
    if (s->n_shared > 0)
        DPT_TRY(dpt_cuda_link_exchange(s->spec.link, s->shared, s->n_shared, ctx->sums, err));
out:
    return status;
}

/* --- the update ------------------------------------------------------------------------------- */

/* Gathers a piece of the parameters as layers read it. `gathered` has room for the rows. */
static enum dpt_status gather_narrow(struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                                     const float *own, CUstream stream, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const bool half = s->p->spec.precision == DPT_PRECISION_FP16;
    float *const at = dpt_cuda_arena_of(s, s->p->params, piece) + piece->first;
    const struct dpt_cuda_message rows = {.at = s->gathered,
                                          .n = (size_t)piece->row / sizeof(float)};
    struct dpt_cuda_slices_args slices = {
        .arena = own == NULL ? at
                             : dpt_cuda_begin_of((float *)(uintptr_t)own + piece->at,
                                                 s->spec.rank * piece->width),
        .rows = s->gathered,
        .exact = piece->exact,
        .width = piece->width,
        .row = piece->row,
        .first = s->spec.rank,
        .n = 1,
        .own = -1,
    };
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_launch(&ctx->lib, &ctx->module, stream,
                            half ? DPT_CUDA_K_pack_h16 : DPT_CUDA_K_pack_b16, &slices, err));
    DPT_TRY(dpt_cuda_link_gather(s->spec.link, &rows, 1, stream, err));
    slices.arena = at;
    slices.first = 0;
    slices.n = s->spec.ranks;
    slices.own = own == NULL ? s->spec.rank : -1;
    DPT_TRY(dpt_cuda_launch(&ctx->lib, &ctx->module, stream,
                            half ? DPT_CUDA_K_unpack_h16 : DPT_CUDA_K_unpack_b16, &slices, err));
out:
    return status;
}

enum dpt_status dpt_cuda_slices_params(struct dpt_cuda_steps *s, int bucket, const float *own,
                                       CUstream stream, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int n = 0;

    for (int i = 0; i < s->n_pieces; i++) {
        const struct dpt_cuda_slices *piece = &s->pieces[i];

        if (bucket != DPT_CUDA_ALL_BUCKETS && bucket != piece->bucket)
            continue;
        if (piece->exact != NULL)
            DPT_TRY(gather_narrow(s, piece, own, stream, err));
        else
            s->gathers[n++] = (struct dpt_cuda_message){
                .at = dpt_cuda_arena_of(s, s->p->params, piece) + piece->first,
                .n = (size_t)piece->width,
                .own = own == NULL ? NULL : own + piece->at,
            };
    }
    DPT_TRY(dpt_cuda_link_gather(s->spec.link, s->gathers, n, stream, err));
out:
    return status;
}

enum dpt_status dpt_cuda_slices_update(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const CUstream stream = s->p->ctx.compute;
    const int64_t first = dpt_cuda_steps_shared(s) == DPT_CUDA_SHARED_CHUNKS ? 0 : s->chunks;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_steps_launch(s, DPT_CUDA_NORM, 1, err));
    DPT_TRY(dpt_cuda_link_sum_doubles(s->spec.link, s->partial + first,
                                      (size_t)(s->chunks + 2 - first), stream, err));
    DPT_TRY(dpt_cuda_steps_launch(s, DPT_CUDA_UPDATE, 1, err));
    if (!s->spec.shards || s->units != NULL)
        return DPT_OK;
    DPT_TRY(dpt_cuda_slices_params(s, DPT_CUDA_ALL_BUCKETS, NULL, stream, err));
    if (s->copies.bytes > 0)
        DPT_TRY(dpt_cuda_steps_launch(s, DPT_CUDA_DERIVE, 1, err));
out:
    return status;
}

/* --- arenas in slices ------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_slices_put(struct dpt_cuda_steps *s, float *slices, const float *arena,
                                    struct dpt_error *err)
{
    const int64_t floats = s->p->spec.graph->floats;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->n_pieces; i++) {
        const struct dpt_cuda_slices *piece = &s->pieces[i];
        const int64_t first = piece->first + s->spec.rank * piece->width;
        const int64_t n = smaller(piece->width, smaller(piece->end, floats) - first);

        if (n > 0)
            DPT_TRY(dpt_cuda_steps_upload(s, slices + piece->at, arena + first,
                                          (size_t)n * sizeof *arena, err));
    }
out:
    return status;
}

/* What no rank owns does not learn, and stays as the host has it. */
enum dpt_status dpt_cuda_slices_get(struct dpt_cuda_steps *s, const float *slices, int64_t rest,
                                    bool own, float *arena, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t floats = s->p->spec.graph->floats;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->n_pieces; i++) {
        const struct dpt_cuda_slices *piece = &s->pieces[i];
        const int64_t width = piece->width, all = own ? width : width * s->spec.ranks;
        const int64_t first = piece->first + (own ? s->spec.rank * width : 0);
        const int64_t n = smaller(all, smaller(piece->end, floats) - first);
        const struct dpt_cuda_message gathered = {.at = s->gathered, .n = (size_t)width};
        const float *from = slices + piece->at + i * rest;

        if (!own) {
            DPT_CUDA_TRY(&ctx->lib,
                         cuMemcpyDtoDAsync(dpt_cuda_ptr(s->gathered + s->spec.rank * width),
                                           dpt_cuda_ptr(from), (size_t)width * sizeof *arena,
                                           ctx->sums));
            DPT_TRY(dpt_cuda_link_gather(s->spec.link, &gathered, 1, ctx->sums, err));
            DPT_TRY(dpt_cuda_await_stream(ctx, ctx->sums, err));
        }
        if (n > 0)
            DPT_TRY(dpt_cuda_steps_download(s, arena + first, own ? from : s->gathered,
                                            (size_t)n * sizeof *arena, err));
    }
out:
    return status;
}
