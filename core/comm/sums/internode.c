#include "core/comm/sums/internode.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/internal.h"
#include "core/comm/sums/route.h"

/* TAG: of the messages. PIECE: floats of one at most. SLOTS: of those that are received at a time.
 * ROUTES: that are kept. */
enum { TAG = 0x7ee, PIECE = 1 << 17, SLOTS = 8, ROUTES = 2 };

struct dpt_internode {
    const struct dpt_comm *comm;
    struct dpt_hosts hosts;
    struct dpt_route routes[ROUTES], back;
    int last;             /* the route that was planned last */
    size_t piece;         /* floats of a message at most */
    float *received;      /* [SLOTS][slot] */
    size_t slot;          /* floats */
    MPI_Request *sending; /* of a phase */
    size_t room;          /* of those */
};

/* What a route runs on: the floats [begin, end) of the slices. */
struct job {
    struct dpt_internode *internode;
    const size_t *cut;
    float *const *value;
    float *result;
    size_t begin, end;
};

/* A piece of a leg's floats. */
struct piece {
    const struct dpt_leg *leg;
    size_t at, n;
};

/* --- hosts and slices ------------------------------------------------------------------------- */

static uint32_t reverse_bits(uint32_t x)
{
    uint32_t reversed = 0;

    for (int bit = 0; bit < 32; bit++)
        reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}

/* A rank in the order of the slices: first by its place on its host, so that a rank handles
 * neighbouring slices; then as halving cuts them, which keeps those together that go the same
 * way. */
struct order {
    uint64_t key;
    int rank;
};

static int compare(const void *a, const void *b)
{
    const struct order *x = a, *y = b;

    return (x->key > y->key) - (x->key < y->key);
}

static enum dpt_status order_slices(struct dpt_hosts *h, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct order *order;

    DPT_TRY(DPT_ALLOCATE(order, (size_t)h->ranks, "the reduction", err));
    for (int r = 0; r < h->ranks; r++) {
        const uint64_t place = (uint64_t)(r - h->start[h->host[r]]);

        order[r] = (struct order){place << 32 | reverse_bits((uint32_t)h->host[r]), r};
    }
    qsort(order, (size_t)h->ranks, sizeof *order, compare);
    for (int i = 0; i < h->ranks; i++) {
        h->owner[i] = order[i].rank;
        h->slice[order[i].rank] = i;
    }
out:
    dpt_free(order);
    return status;
}

/* Finds the hosts' first ranks. Returns whether the ranks of each follow each other. */
static bool find_starts(struct dpt_hosts *h)
{
    h->hosts = 0;
    for (int r = 0; r < h->ranks; r++) {
        if (h->host[r] == h->hosts)
            h->start[h->hosts++] = r;
        else if (h->host[r] != h->hosts - 1)
            return false;
    }
    h->start[h->hosts] = h->ranks;
    return true;
}

static enum dpt_status find_hosts(struct dpt_hosts *h, const struct dpt_comm *comm, bool *nodes,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)comm->world.size;

    h->rank = comm->world.rank;
    h->ranks = comm->world.size;
    h->host = dpt_alloc_array(ranks, sizeof *h->host);
    h->start = dpt_alloc_array(ranks + 1, sizeof *h->start);
    h->slice = dpt_alloc_array(ranks, sizeof *h->slice);
    h->owner = dpt_alloc_array(ranks, sizeof *h->owner);
    if (h->host == NULL || h->start == NULL || h->slice == NULL || h->owner == NULL)
        status = dpt_fail_memory(err, "the reduction", 0);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    if (*nodes) {
        DPT_TRY(dpt_comm_number_nodes(comm, h->host, err));
        *nodes = find_starts(h);
    }
    if (!*nodes) {
        for (int r = 0; r < h->ranks; r++)
            h->host[r] = r;
        find_starts(h);
    }
    DPT_TRY(order_slices(h, err));
out:
    return status;
}

enum dpt_status dpt_internode_open(struct dpt_internode **internode, const struct dpt_comm *comm,
                                   bool *nodes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_internode *x;

    *internode = NULL;
    DPT_TRY(dpt_group_agree(&comm->world, DPT_ALLOCATE(x, 1, "the reduction", err), err));
    x->comm = comm;
    status = find_hosts(&x->hosts, comm, nodes, err);
    if (comm->world.size > 1) {
        const size_t limit = dpt_message_limit(&comm->world);

        x->piece = limit < PIECE ? limit : PIECE;
    }
    if (status == DPT_OK)
        status = dpt_route_open(&x->back, &x->hosts, NULL, true, err);
    status = dpt_group_agree(&comm->world, status, err);
out:
    if (status != DPT_OK)
        dpt_internode_close(x);
    else
        *internode = x;
    return status;
}

void dpt_internode_close(struct dpt_internode *x)
{
    if (x == NULL)
        return;
    for (int i = 0; i < ROUTES; i++)
        dpt_route_close(&x->routes[i]);
    dpt_route_close(&x->back);
    dpt_free(x->hosts.host);
    dpt_free(x->hosts.start);
    dpt_free(x->hosts.slice);
    dpt_free(x->hosts.owner);
    dpt_free(x->received);
    dpt_free(x->sending);
    dpt_free(x);
}

void dpt_internode_members(const struct dpt_internode *x, int *first, int *end)
{
    const struct dpt_hosts *h = &x->hosts;

    *first = h->start[h->host[h->rank]];
    *end = h->start[h->host[h->rank] + 1];
}

int dpt_internode_slice_of(const struct dpt_internode *x, int rank)
{
    return x->hosts.slice[rank];
}

bool dpt_internode_handles(const struct dpt_internode *x, int slice)
{
    const struct dpt_hosts *h = &x->hosts;

    return dpt_hosts_handler(h, h->host[h->rank], slice) == h->rank;
}

double dpt_internode_floats(double n)
{
    return n < PIECE ? SLOTS * n : (double)SLOTS * PIECE;
}

/* --- plans ------------------------------------------------------------------------------------ */

static bool same_leaves(const struct dpt_internode *x, const struct dpt_route *route,
                        const int32_t *first)
{
    if (!route->planned || (route->first == NULL) != (first == NULL))
        return false;
    return first == NULL ||
           memcmp(route->first, first, ((size_t)x->hosts.ranks + 1) * sizeof *first) == 0;
}

static struct dpt_route *find_route(struct dpt_internode *x, const int32_t *first)
{
    for (int i = 0; i < ROUTES; i++)
        if (same_leaves(x, &x->routes[i], first))
            return &x->routes[i];
    return NULL;
}

/* Makes room for the messages of a route's phases, also of a sum of fewer floats, in which some
 * slice may be a cache line longer. */
static enum dpt_status make_room(struct dpt_internode *x, const struct dpt_route *route,
                                 const size_t *cut, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t sending = 0, most = 0, slot = 0;

    for (size_t i = 0; i < route->n; i++) {
        const struct dpt_leg *leg = &route->legs[i];
        const size_t n = cut[leg->slice + leg->n] - cut[leg->slice] + DPT_LINE;

        if (i > 0 && leg->phase != leg[-1].phase)
            sending = 0;
        sending += leg->kind == DPT_LEG_SEND ? (n + x->piece - 1) / x->piece : 0;
        most = sending > most ? sending : most;
        if (leg->kind == DPT_LEG_TAKE)
            slot = n > slot ? n : slot;
    }
    slot = slot < x->piece ? slot : x->piece;
    if (slot > x->slot) {
        dpt_free(x->received);
        x->slot = 0;
        DPT_TRY(DPT_ALLOCATE(x->received, SLOTS * slot, "the other nodes' gradients", err));
        x->slot = slot;
    }
    if (most > x->room) {
        dpt_free(x->sending);
        x->room = 0;
        DPT_TRY(DPT_ALLOCATE(x->sending, most, "the reduction", err));
        x->room = most;
    }
out:
    return status;
}

enum dpt_status dpt_internode_plan(struct dpt_internode *x, const int32_t *first, const size_t *cut,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (find_route(x, first) != NULL)
        return DPT_OK;
    x->last = (x->last + 1) % ROUTES;
    dpt_route_close(&x->routes[x->last]);
    DPT_TRY(dpt_route_open(&x->routes[x->last], &x->hosts, first, false, err));
    DPT_TRY(make_room(x, &x->routes[x->last], cut, err));
    DPT_TRY(make_room(x, &x->back, cut, err));
out:
    if (status != DPT_OK)
        dpt_route_close(&x->routes[x->last]);
    return status;
}

/* --- running ---------------------------------------------------------------------------------- */

static size_t edge(const struct job *job, int slice)
{
    const size_t at = job->cut[slice];

    return at < job->begin ? job->begin : at > job->end ? job->end : at;
}

/* The first piece of a leg. */
static struct piece first_piece(const struct job *job, const struct dpt_leg *leg)
{
    const size_t at = edge(job, leg->slice), n = edge(job, leg->slice + leg->n) - at;

    return (struct piece){leg, at, n < job->internode->piece ? n : job->internode->piece};
}

/* Goes on to the next piece of the same leg; one of no floats follows the last. */
static void next_piece(const struct job *job, struct piece *p)
{
    const size_t end = edge(job, p->leg->slice + p->leg->n);

    p->at += p->n;
    p->n = end - p->at < p->n ? end - p->at : p->n;
}

/* Adds n floats of two operands: into one of them, or elsewhere. */
static void add_operands(float *to, const float *left, const float *right, size_t n)
{
    if (to != left && to != right) {
        memcpy(to, left, n * sizeof *to);
        left = to;
    }
    dpt_tree_add(to, to == left ? right : left, n);
}

/* What needs no message: from what is here, or what has come for a piece. */
static void work_on(const struct job *job, const struct piece *p, const float *received)
{
    const struct dpt_leg *leg = p->leg;

    if (leg->kind == DPT_LEG_FINISH && job->value[leg->left] != job->result)
        memcpy(job->result + p->at, job->value[leg->left] + p->at, p->n * sizeof(float));
    else if (leg->kind == DPT_LEG_ADD || leg->kind == DPT_LEG_TAKE)
        add_operands(job->value[leg->to] + p->at,
                     leg->left >= 0 ? job->value[leg->left] + p->at : received,
                     leg->right >= 0 ? job->value[leg->right] + p->at : received, p->n);
}

static bool receives(const struct dpt_leg *leg)
{
    return leg->kind == DPT_LEG_TAKE || leg->kind == DPT_LEG_RESULT;
}

/* Begins to send what a phase sends. */
static int send_all(const struct job *job, const struct dpt_leg *leg, const struct dpt_leg *end,
                    int *sending)
{
    struct dpt_internode *x = job->internode;
    int code = MPI_SUCCESS;

    *sending = 0;
    for (; leg < end && code == MPI_SUCCESS; leg++) {
        const float *from = leg->left >= 0 ? job->value[leg->left] : job->result;

        if (leg->kind != DPT_LEG_SEND)
            continue;
        for (struct piece p = first_piece(job, leg); p.n > 0 && code == MPI_SUCCESS;
             next_piece(job, &p))
            code = MPI_Isend(from + p.at, (int)p.n, MPI_FLOAT, leg->peer, TAG,
                             dpt_mpi_comm(&x->comm->world), &x->sending[(*sending)++]);
    }
    return code;
}

/* The pieces that a phase receives, SLOTS of them at a time. */
struct arrivals {
    const struct dpt_leg *leg, *end;
    struct piece next, piece[SLOTS];
    MPI_Request request[SLOTS];
};

/* Finds the next piece to receive; false: there is none. */
static bool find_next(const struct job *job, struct arrivals *a)
{
    while (a->next.n == 0 && a->leg < a->end) {
        if (receives(a->leg))
            a->next = first_piece(job, a->leg);
        a->leg++;
    }
    return a->next.n > 0;
}

/* Where a piece that a slot receives comes to. */
static float *find_slot(const struct job *job, const struct piece *p, int slot)
{
    return p->leg->kind == DPT_LEG_RESULT
               ? job->result + p->at
               : job->internode->received + (size_t)slot * job->internode->slot;
}

/* Waits for a message: a thread beside the main one asleep, where that takes long. */
static int wait(const struct job *job, MPI_Request *request)
{
    if (job->internode->comm->beside)
        dpt_mpi_await(request);
    return MPI_Wait(request, MPI_STATUS_IGNORE);
}

/* Receives and adds a phase's pieces, in the order in which they are sent. */
static int receive_all(const struct job *job, const struct dpt_leg *leg, const struct dpt_leg *end)
{
    struct arrivals a = {.leg = leg, .end = end};
    int code = MPI_SUCCESS;
    unsigned begun = 0;

    for (unsigned done = 0; code == MPI_SUCCESS; done++) {
        for (; begun - done < SLOTS && code == MPI_SUCCESS && find_next(job, &a); begun++) {
            struct piece *p = &a.piece[begun % SLOTS];

            *p = a.next;
            next_piece(job, &a.next);
            code = MPI_Irecv(find_slot(job, p, (int)(begun % SLOTS)), (int)p->n, MPI_FLOAT,
                             p->leg->peer, TAG, dpt_mpi_comm(&job->internode->comm->world),
                             &a.request[begun % SLOTS]);
        }
        if (done == begun || code != MPI_SUCCESS)
            break;
        code = wait(job, &a.request[done % SLOTS]);
        if (code == MPI_SUCCESS)
            work_on(job, &a.piece[done % SLOTS],
                    find_slot(job, &a.piece[done % SLOTS], (int)(done % SLOTS)));
    }
    return code;
}

static int run_phase(const struct job *job, const struct dpt_leg *leg, const struct dpt_leg *end)
{
    int sending, code = send_all(job, leg, end, &sending);

    for (const struct dpt_leg *here = leg; here < end; here++)
        if (here->kind == DPT_LEG_ADD || here->kind == DPT_LEG_FINISH)
            for (struct piece p = first_piece(job, here); p.n > 0; next_piece(job, &p))
                work_on(job, &p, NULL);
    if (code == MPI_SUCCESS)
        code = receive_all(job, leg, end);
    for (int i = 0; i < sending && code == MPI_SUCCESS; i++)
        code = wait(job, &job->internode->sending[i]);
    return code;
}

static enum dpt_status run(const struct job *job, const struct dpt_route *route,
                           struct dpt_error *err)
{
    const struct dpt_group *world = &job->internode->comm->world;
    const struct dpt_leg *leg = route->legs, *const end = leg + route->n;
    int code = MPI_SUCCESS;

    dpt_group_enter(world);
    while (leg < end && code == MPI_SUCCESS) {
        const struct dpt_leg *const begin = leg;

        while (leg < end && leg->phase == begin->phase)
            leg++;
        code = run_phase(job, begin, leg);
    }
    dpt_group_leave(world);
    if (code != MPI_SUCCESS)
        return dpt_mpi_collective_fail(world, err, "a sum between nodes", code);
    return DPT_OK;
}

enum dpt_status dpt_internode_sum(struct dpt_internode *x, const int32_t *first, const size_t *cut,
                                  float *const *value, float *result, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct job job = {x, cut, value, result, 0, cut[x->hosts.ranks]};
    const struct dpt_route *route = find_route(x, first);

    if (route == NULL) {
        DPT_TRY(dpt_internode_plan(x, first, cut, err));
        route = &x->routes[x->last];
    }
    DPT_TRY(run(&job, route, err));
out:
    return status;
}

enum dpt_status dpt_internode_gather(struct dpt_internode *x, const size_t *cut, float *floats,
                                     size_t begin, size_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct job job = {x, cut, NULL, floats, begin, end};

    DPT_TRY(make_room(x, &x->back, cut, err));
    DPT_TRY(run(&job, &x->back, err));
out:
    return status;
}
