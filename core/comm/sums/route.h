/*
 * route: what one rank does in a sum between hosts: which blocks it sends where and adds to what.
 * Private to internode.c, which runs it.
 */
#ifndef DPT_COMM_ROUTE_H
#define DPT_COMM_ROUTE_H

#include "core/comm/sums/placement.h"

/* Who is on which host, and who owns which slice. The ranks of a host follow each other. */
struct dpt_hosts {
    int rank, ranks, hosts;
    int32_t *host;      /* [ranks] */
    int *start;         /* [hosts + 1]: the first rank of each */
    int *slice, *owner; /* [ranks]: the slice of a rank, the rank of a slice */
};

/* The rank of a host that handles a slice. */
int dpt_hosts_handler(const struct dpt_hosts *hosts, int host, int slice);

enum dpt_leg_kind {
    DPT_LEG_ADD,    /* `left` and `right`, both here, into `to` */
    DPT_LEG_SEND,   /* `left` to the peer */
    DPT_LEG_TAKE,   /* one operand (-1) from the peer, and the other into `to` */
    DPT_LEG_FINISH, /* `left` into the result */
    DPT_LEG_RESULT, /* from the peer into the result */
};

enum { DPT_LEG_REMOTE = -1, DPT_LEG_OF_RESULT = -2 };

/* One step of a route, with some neighbouring slices. Legs of one phase need none of each other. */
struct dpt_leg {
    int phase;
    int partial; /* which is added or travels: two ranks exchange a phase's in this order */
    int slice, n;
    enum dpt_leg_kind kind;
    int peer;            /* rank */
    int to, left, right; /* this host's blocks; or DPT_LEG_REMOTE, or DPT_LEG_OF_RESULT */
};

struct dpt_route {
    int32_t *first; /* [ranks + 1]: of which leaves; NULL: of one of each host */
    struct dpt_leg *legs;
    size_t n, room;
    bool planned;
};

/* Plans the sum of the leaves of dpt_internode_plan; or, `back`, how the owners' floats come to all
 * hosts. Errors: RANK; dpt_route_close closes what was made. */
enum dpt_status dpt_route_open(struct dpt_route *route, const struct dpt_hosts *hosts,
                               const int32_t *first, bool back, struct dpt_error *err);
void dpt_route_close(struct dpt_route *route);

#endif
