#include "core/comm/watch/watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/clock.h"
#include "core/base/memory.h"

/* Lists the other nodes' names, as many as fit. */
static void list_others(struct dpt_nodes *nodes, const struct dpt_comm *comm)
{
    const char *last = comm->host;
    size_t used = 0;

    for (int r = 0; r < comm->world.size && used < sizeof nodes->others; r++) {
        const char *host = comm->hosts[r];

        if (strcmp(host, comm->host) == 0 || strcmp(host, last) == 0)
            continue;
        used += (size_t)snprintf(nodes->others + used, sizeof nodes->others - used, "%s%s",
                                 used > 0 ? ", " : "", host);
        last = host;
    }
    if (comm->nodes > 1 && used == 0) /* containers that all have one name */
        snprintf(nodes->others, sizeof nodes->others, "another node");
}

/* Sorts the ranks of the world by node. node_of: [world]. */
static void sort_ranks(struct dpt_nodes *nodes, const struct dpt_comm *comm, const int *node_of)
{
    int *next = nodes->ranks;

    for (int i = 0; i < nodes->n; i++) {
        struct dpt_remote_node *remote = &nodes->remote[i];

        remote->host = "";
        remote->ranks = next;
        for (int r = 0; r < comm->world.size && i != nodes->me; r++) {
            if (node_of[r] != i)
                continue;
            remote->host = comm->hosts[r];
            *next++ = r;
            remote->n_ranks++;
        }
    }
}

void dpt_nodes_close(struct dpt_nodes *nodes)
{
    dpt_heartbeat_close(nodes->heartbeat);
    free(nodes->all_addresses);
    free(nodes->remote);
    free(nodes->ranks);
    nodes->heartbeat = NULL;
    nodes->all_addresses = NULL;
    nodes->remote = NULL;
    nodes->ranks = NULL;
}

/* Collective over the leaders. A failure here leaves the nodes without a heartbeat and harms
 * nothing else. */
static enum dpt_status open_heartbeat(struct dpt_nodes *nodes, const struct dpt_comm *comm,
                                      const int *node_of, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_address_filter filter;
    struct dpt_node_addresses mine;
    struct {
        uint8_t secret[DPT_HEARTBEAT_SECRET];
        int64_t without; /* number of nodes that lack the memory for a heartbeat */
    } start = {0};

    dpt_address_filter_read(&filter);
    dpt_node_addresses_find(&mine, &filter);
    nodes->heartbeat = dpt_heartbeat_open(&mine);
    nodes->all_addresses = calloc((size_t)nodes->n, sizeof *nodes->all_addresses);
    nodes->remote = calloc((size_t)nodes->n, sizeof *nodes->remote);
    nodes->ranks = calloc((size_t)comm->world.size, sizeof *nodes->ranks);
    start.without = nodes->all_addresses == NULL || nodes->remote == NULL || nodes->ranks == NULL;
    DPT_TRY(dpt_group_sum_ints(&comm->leaders, &start.without, &start.without, 1, err));
    if (start.without == 0) {
        if (comm->leaders.rank == 0 &&
            getrandom(start.secret, sizeof start.secret, 0) != (ssize_t)sizeof start.secret)
            start.without = 1;
        DPT_TRY(dpt_group_broadcast(&comm->leaders, 0, &start, sizeof start, err));
        DPT_TRY(dpt_group_allgather(&comm->leaders, &mine, nodes->all_addresses, sizeof mine, err));
    }
    if (start.without != 0 || nodes->heartbeat == NULL ||
        !dpt_heartbeat_connect(nodes->heartbeat, nodes->all_addresses, nodes->n, nodes->me,
                               start.secret))
        dpt_nodes_close(nodes);
    else
        sort_ranks(nodes, comm, node_of);
    /* Every node asks its peers, answers theirs and reads their answers before any continues, so
     * that a node which is lost in the first second has answered once, and its silence means
     * something. */
    for (int turn = 0; turn < 3; turn++) {
        if (nodes->heartbeat != NULL && dpt_heartbeat_poll(nodes->heartbeat, false, dpt_now()))
            dpt_heartbeat_answer(nodes->heartbeat, &(struct dpt_heartbeat_report){0});
        DPT_TRY(dpt_group_barrier(&comm->leaders, err));
    }
out:
    return status;
}

enum dpt_status dpt_nodes_open(struct dpt_nodes *nodes, const struct dpt_comm *comm,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int *node_of = NULL;

    nodes->n = comm->nodes;
    nodes->me = comm->leaders.rank;
    status = DPT_ALLOCATE(node_of, (size_t)comm->world.size, "the list of nodes", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    list_others(nodes, comm);
    DPT_TRY(dpt_group_broadcast(&comm->node, 0, &nodes->me, sizeof nodes->me, err));
    DPT_TRY(dpt_group_allgather(&comm->world, &nodes->me, node_of, sizeof nodes->me, err));
    if (comm->leaders.rank >= 0 && nodes->n > 1)
        DPT_TRY(open_heartbeat(nodes, comm, node_of, err));
out:
    dpt_free(node_of);
    return status;
}
