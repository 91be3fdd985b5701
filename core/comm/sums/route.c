#include "core/comm/sums/route.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"

int dpt_hosts_handler(const struct dpt_hosts *hosts, int host, int slice)
{
    const int start = hosts->start[host], owner = hosts->owner[slice];

    return start + (owner - hosts->start[hosts->host[owner]]) % (hosts->start[host + 1] - start);
}

/* What a rank plans with. */
struct plan {
    const struct dpt_hosts *hosts;
    struct dpt_placement placement;
    int *own; /* of each partial the first of this host's blocks in it; -1: there is none */
    struct dpt_route *route;
    bool back;
};

static enum dpt_status add_leg(struct plan *plan, struct dpt_leg leg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_route *route = plan->route;

    DPT_GROW(route->legs, &route->room, route->n + 1, "the reduction", err);
    leg.n = 1;
    route->legs[route->n++] = leg;
out:
    return status;
}

/* A partial travels to a host; back: its slice's floats come from there. */
static enum dpt_status add_move(struct plan *plan, int slice, int partial, int to, int phase,
                                struct dpt_leg take, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_hosts *hosts = plan->hosts;
    const int from = plan->placement.partials[partial].where, me = hosts->host[hosts->rank];
    struct dpt_leg send = {.kind = DPT_LEG_SEND};

    if (plan->back) {
        phase = plan->placement.phases + 1 - phase;
        take.kind = DPT_LEG_RESULT;
        send.left = DPT_LEG_OF_RESULT;
    } else {
        send.left = plan->own[partial];
    }
    send.phase = take.phase = phase;
    send.partial = take.partial = partial;
    send.slice = take.slice = slice;
    send.peer = dpt_hosts_handler(hosts, plan->back ? from : to, slice);
    take.peer = dpt_hosts_handler(hosts, plan->back ? to : from, slice);
    if ((plan->back ? to : from) == me)
        DPT_TRY(add_leg(plan, send, err));
    if ((plan->back ? from : to) == me)
        DPT_TRY(add_leg(plan, take, err));
out:
    return status;
}

/* A sum is made: here, or operands of it are sent from here. */
static enum dpt_status add_sum(struct plan *plan, int slice, int number, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_partial *all = plan->placement.partials, *sum = &all[number];
    const int me = plan->hosts->host[plan->hosts->rank];
    const bool left = all[sum->left].where == sum->where,
               right = all[sum->right].where == sum->where;
    const struct dpt_leg take = {
        .kind = DPT_LEG_TAKE,
        .to = plan->own[number],
        .left = left ? plan->own[sum->left] : DPT_LEG_REMOTE,
        .right = right ? plan->own[sum->right] : DPT_LEG_REMOTE,
    };
    struct dpt_leg add = take;

    if (!left)
        DPT_TRY(add_move(plan, slice, sum->left, sum->where, sum->phase, take, err));
    if (!right)
        DPT_TRY(add_move(plan, slice, sum->right, sum->where, sum->phase, take, err));
    if (left && right && sum->where == me && !plan->back) {
        add.kind = DPT_LEG_ADD;
        add.phase = sum->phase;
        add.partial = number;
        add.slice = slice;
        DPT_TRY(add_leg(plan, add, err));
    }
out:
    return status;
}

/* The root comes to the owner. */
static enum dpt_status add_root(struct plan *plan, int slice, int owner, struct dpt_error *err)
{
    const int number = plan->placement.n - 1, phase = plan->placement.phases + 1;
    const bool there = plan->placement.partials[number].where == owner;
    const struct dpt_leg result = {.kind = DPT_LEG_RESULT}, finish = {.kind = DPT_LEG_FINISH,
                                                                      .phase = phase,
                                                                      .partial = number,
                                                                      .slice = slice,
                                                                      .left = plan->own[number]};

    if (!there)
        return add_move(plan, slice, number, owner, phase, result, err);
    if (plan->hosts->host[plan->hosts->rank] != owner || plan->back)
        return DPT_OK;
    return add_leg(plan, finish, err);
}

static int compare(const void *a, const void *b)
{
    const struct dpt_leg *x = a, *y = b;

    if (x->phase != y->phase)
        return x->phase < y->phase ? -1 : 1;
    if (x->partial != y->partial)
        return x->partial < y->partial ? -1 : 1;
    return (x->slice > y->slice) - (x->slice < y->slice);
}

/* Joins legs of neighbouring slices. Where a block of this host is does not depend on the slice, so
 * both ends of a message join the same. */
static void join(struct dpt_route *route)
{
    size_t n = 0;

    if (route->n > 0)
        qsort(route->legs, route->n, sizeof *route->legs, compare);
    for (size_t i = 0; i < route->n; i++) {
        struct dpt_leg *last = n > 0 ? &route->legs[n - 1] : NULL, next = route->legs[i];

        if (last != NULL && last->phase == next.phase && last->partial == next.partial &&
            last->kind == next.kind && last->peer == next.peer && last->to == next.to &&
            last->left == next.left && last->right == next.right &&
            last->slice + last->n == next.slice)
            last->n++;
        else
            route->legs[n++] = next;
    }
    route->n = n;
}

static enum dpt_status plan_owner(struct plan *plan, int owner, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_hosts *hosts = plan->hosts;

    dpt_placement_place(&plan->placement, owner);
    for (int r = hosts->start[owner]; r < hosts->start[owner + 1]; r++) {
        const int slice = hosts->slice[r];

        if (dpt_hosts_handler(hosts, hosts->host[hosts->rank], slice) != hosts->rank)
            continue;
        for (int k = 0; k < plan->placement.n_sums; k++)
            DPT_TRY(add_sum(plan, slice, plan->placement.sums[k], err));
        DPT_TRY(add_root(plan, slice, owner, err));
    }
out:
    return status;
}

/* Appends the blocks of a host's ranks, or its one leaf. Returns the number of all. */
static int list_host(const struct dpt_hosts *hosts, int host, const int32_t *first,
                     struct dpt_placement_block *blocks, int n)
{
    struct dpt_tree tree;

    if (first == NULL) {
        blocks[n] = (struct dpt_placement_block){{host, 0}, host, 0};
        return n + 1;
    }
    dpt_tree_begin(&tree, first[hosts->ranks]);
    for (int r = hosts->start[host]; r < hosts->start[host + 1]; r++) {
        struct dpt_block of_rank[DPT_TREE_BLOCKS];
        const int count = dpt_tree_blocks(first[r], first[r + 1], tree.total, of_rank);

        for (int k = 0; k < count; k++)
            dpt_tree_push(&tree, of_rank[k], NULL, 0, NULL, NULL);
    }
    for (int k = 0; k < tree.n; k++)
        blocks[n + k] = (struct dpt_placement_block){tree.block[k], host, k};
    return n + tree.n;
}

static int compare_blocks(const void *a, const void *b)
{
    const struct dpt_placement_block *x = a, *y = b;

    return (x->block.begin > y->block.begin) - (x->block.begin < y->block.begin);
}

/* Finds the placement for these leaves. */
static enum dpt_status open_placement(struct plan *plan, const int32_t *first,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_hosts *hosts = plan->hosts;
    struct dpt_placement_block *blocks;
    int n = 0;

    DPT_TRY(DPT_ALLOCATE(blocks, (size_t)hosts->hosts * DPT_TREE_BLOCKS, "the reduction", err));
    for (int h = 0; h < hosts->hosts; h++)
        n = list_host(hosts, h, first, blocks, n);
    qsort(blocks, (size_t)n, sizeof *blocks, compare_blocks);
    DPT_TRY(dpt_placement_open(&plan->placement, hosts->hosts, blocks, n,
                               first != NULL ? first[hosts->ranks] : hosts->hosts, err));
out:
    dpt_free(blocks);
    return status;
}

/* Finds which of this host's blocks has a partial where that is here. */
static enum dpt_status find_own(struct plan *plan, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int me = plan->hosts->host[plan->hosts->rank];

    DPT_TRY(DPT_ALLOCATE(plan->own, (size_t)plan->placement.n, "the reduction", err));
    for (int k = 0; k < plan->placement.n; k++) {
        const struct dpt_partial *p = &plan->placement.partials[k];

        plan->own[k] = p->left < 0               ? p->where == me ? p->block : -1
                       : plan->own[p->left] >= 0 ? plan->own[p->left]
                                                 : plan->own[p->right];
    }
out:
    return status;
}

enum dpt_status dpt_route_open(struct dpt_route *route, const struct dpt_hosts *hosts,
                               const int32_t *first, bool back, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct plan plan = {.hosts = hosts, .route = route, .back = back};

    *route = (struct dpt_route){.planned = true};
    if (first != NULL) {
        DPT_TRY(DPT_ALLOCATE(route->first, (size_t)hosts->ranks + 1, "the reduction", err));
        memcpy(route->first, first, ((size_t)hosts->ranks + 1) * sizeof *first);
    }
    DPT_TRY(open_placement(&plan, first, err));
    DPT_TRY(find_own(&plan, err));
    dpt_placement_begin(&plan.placement, back);
    dpt_placement_only(&plan.placement, hosts->host[hosts->rank]);
    for (int owner = 0; owner < hosts->hosts; owner++)
        DPT_TRY(plan_owner(&plan, owner, err));
    join(route);
out:
    dpt_placement_close(&plan.placement);
    dpt_free(plan.own);
    return status;
}

void dpt_route_close(struct dpt_route *route)
{
    dpt_free(route->first);
    dpt_free(route->legs);
    *route = (struct dpt_route){0};
}
