#include "core/comm/sums/columns.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/comm/internal.h"

/* Floats of a message of dpt_columns_exchange. */
enum { PIECE = 1 << 20 };

struct dpt_columns {
    const struct dpt_comm *comm;
    size_t floats;
    struct dpt_shared shared; /* empty: by messages */
    struct dpt_node_barrier barrier;
    float *window[2];
    int turn;
    float *sent, *received; /* by messages: own columns, and all ranks' */
    float *piece;           /* [2][room] of rows that are exchanged: sent, and received */
    size_t room;
    struct dpt_parts send, receive;
};

/* A rank's columns are some lines of DPT_LINE more than an even share at most; so many floats of a
 * row may come to a rank, or go from it. */
static size_t line_room(int ranks, size_t width)
{
    return width + (size_t)ranks * DPT_LINE;
}

static size_t piece_room(int ranks, size_t widest)
{
    const size_t line = line_room(ranks, widest);

    return line > PIECE ? line : PIECE;
}

static bool on_one_node(int ranks, int node_ranks)
{
    return ranks > 1 && node_ranks == ranks;
}

void dpt_columns_bytes(int ranks, int node_ranks, size_t floats, size_t widest, double *own,
                       double *shared)
{
    const double one = (double)dpt_round_up(floats, sizeof(float)) * sizeof(float);
    const bool window = on_one_node(ranks, node_ranks);

    *own = (window ? 0 : 2 * one) + (double)(2 * piece_room(ranks, widest)) * sizeof(float);
    *shared = window ? 2 * one : 0;
}

static enum dpt_status open_window(struct dpt_columns *c, bool spin, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t barrier = dpt_node_barrier_bytes(c->comm->node.size);
    const size_t stride = dpt_round_up(c->floats, sizeof(float));
    char *bytes;

    DPT_TRY(dpt_shared_open(&c->shared, &c->comm->node, barrier + 2 * stride * sizeof(float), err));
    bytes = c->shared.bytes;
    dpt_node_barrier_open(&c->barrier, &c->comm->node, bytes, spin);
    c->window[0] = (float *)(void *)(bytes + barrier);
    c->window[1] = c->window[0] + stride;
out:
    return status;
}

static enum dpt_status allocate(struct dpt_columns *c, bool window, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)c->comm->world.size;

    DPT_TRY(DPT_ALLOCATE(c->send.count, 4 * ranks, "the layers", err));
    c->send.at = c->send.count + ranks;
    c->receive.count = c->send.at + ranks;
    c->receive.at = c->receive.count + ranks;
    DPT_TRY(DPT_ALLOCATE(c->piece, 2 * c->room, "the layers", err));
    if (window)
        goto out;
    /* A rank's columns of some matrix may be all of them but for a line for each other one. */
    DPT_TRY(DPT_ALLOCATE(c->sent, c->floats, "the layers", err));
    DPT_TRY(DPT_ALLOCATE(c->received, c->floats, "the layers", err));
out:
    return status;
}

enum dpt_status dpt_columns_open(struct dpt_columns **columns, const struct dpt_comm *comm,
                                 size_t floats, size_t widest, bool spin, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_columns *c = NULL;
    const bool window = on_one_node(comm->world.size, comm->node.size);

    status = DPT_ALLOCATE(c, 1, "the layers", err);
    if (status == DPT_OK) {
        *columns = c;
        c->comm = comm;
        c->floats = floats;
        c->room = piece_room(comm->world.size, widest);
        status = allocate(c, window, err);
    }
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    if (window)
        DPT_TRY(open_window(c, spin, err));
out:
    return status;
}

void dpt_columns_close(struct dpt_columns *c)
{
    if (c == NULL)
        return;
    dpt_shared_close(&c->shared);
    dpt_free(c->sent);
    dpt_free(c->received);
    dpt_free(c->piece);
    dpt_free(c->send.count);
    dpt_free(c);
}

/* Copies the columns [first, last) of rows that are `from_line` and `to_line` floats apart. */
static void copy(const float *from, int64_t from_line, float *to, int64_t to_line, int64_t rows,
                 int64_t columns)
{
    for (int64_t i = 0; i < rows && columns > 0; i++)
        memcpy(to + i * to_line, from + i * from_line, (size_t)columns * sizeof *to);
}

static void gather_window(struct dpt_columns *c, float *matrix, int64_t rows, const int64_t *cut)
{
    const int rank = c->comm->world.rank, ranks = c->comm->world.size;
    const int64_t width = cut[ranks], begin = cut[rank], end = cut[rank + 1];
    float *window = c->window[c->turn];

    c->turn = !c->turn;
    copy(matrix + begin, width, window + begin, width, rows, end - begin);
    dpt_node_barrier_wait(&c->barrier);
    copy(window, width, matrix, width, rows, begin);
    copy(window + end, width, matrix + end, width, rows, width - end);
}

static enum dpt_status gather_messages(struct dpt_columns *c, float *matrix, int64_t rows,
                                       const int64_t *cut, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &c->comm->world;
    const int64_t width = cut[world->size], begin = cut[world->rank], end = cut[world->rank + 1];

    copy(matrix + begin, width, c->sent, end - begin, rows, end - begin);
    for (int r = 0; r < world->size; r++) {
        c->receive.count[r] = (int)(rows * (cut[r + 1] - cut[r]));
        c->receive.at[r] = (int)(rows * cut[r]);
    }
    DPT_TRY_STEP(world, MPI_Allgatherv, c->sent, c->receive.count[world->rank], MPI_FLOAT,
                 c->received, c->receive.count, c->receive.at, MPI_FLOAT, dpt_mpi_comm(world));
    for (int r = 0; r < world->size; r++)
        if (r != world->rank)
            copy(c->received + c->receive.at[r], cut[r + 1] - cut[r], matrix + cut[r], width, rows,
                 cut[r + 1] - cut[r]);
out:
    return status;
}

enum dpt_status dpt_columns_gather(struct dpt_columns *c, float *matrix, int64_t rows,
                                   const int64_t *cut, struct dpt_error *err)
{
    if (c->shared.bytes == NULL)
        return gather_messages(c, matrix, rows, cut, err);
    gather_window(c, matrix, rows, cut);
    return DPT_OK;
}

/* --- columns for rows ------------------------------------------------------------------------- */

static int64_t length(const int64_t *cut, int rank)
{
    return cut[rank + 1] - cut[rank];
}

/* Rows of a rank's share from `from` on, of which at most `most` are exchanged at a time. */
static int64_t rows_at(const int64_t *row, int rank, int64_t from, int64_t most)
{
    const int64_t left = length(row, rank) - from;

    return left < 0 ? 0 : left < most ? left : most;
}

enum dpt_status dpt_columns_exchange(struct dpt_columns *c, const float *mine, const int64_t *row,
                                     const int64_t *column, float *to, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &c->comm->world;
    const int64_t width = column[world->size], own = length(column, world->rank);
    const int64_t line = (int64_t)line_room(world->size, (size_t)width);
    const int64_t most = line < PIECE ? PIECE / line : 1;
    float *const received = c->piece + c->room;
    int64_t longest = 0;

    for (int r = 0; r < world->size; r++)
        longest = length(row, r) > longest ? length(row, r) : longest;
    for (int64_t from = 0; from < longest; from += most) {
        const int64_t rows = rows_at(row, world->rank, from, most);
        int sent = 0, got = 0;

        for (int r = 0; r < world->size; r++) {
            copy(mine + from * width + column[r], width, c->piece + sent, length(column, r), rows,
                 length(column, r));
            c->send.count[r] = (int)(rows * length(column, r));
            c->send.at[r] = sent;
            c->receive.count[r] = (int)(rows_at(row, r, from, most) * own);
            c->receive.at[r] = got;
            sent += c->send.count[r];
            got += c->receive.count[r];
        }
        DPT_TRY_STEP(world, MPI_Alltoallv, c->piece, c->send.count, c->send.at, MPI_FLOAT, received,
                     c->receive.count, c->receive.at, MPI_FLOAT, dpt_mpi_comm(world));
        for (int r = 0; r < world->size; r++)
            memcpy(to + (row[r] + from) * own, received + c->receive.at[r],
                   (size_t)c->receive.count[r] * sizeof *to);
    }
out:
    return status;
}
