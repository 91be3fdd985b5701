/*
 * nodes: the other nodes of a job, for a watchdog. Private to core/comm.
 */
#ifndef DPT_COMM_NODES_H
#define DPT_COMM_NODES_H

#include "core/comm/heartbeat.h"

struct dpt_nodes {
    int n, me;    /* of the job's nodes */
    char *others; /* names of the others: "node08, node09"; "": there are none */
    /* The members below belong to the first rank of a node, and are NULL where the nodes have no
     * heartbeat. */
    struct dpt_heartbeat *heartbeat;
    struct dpt_node_addresses *all_addresses; /* [n] */
    struct dpt_remote_node *remote;           /* [n]; this node's entry is empty */
    int *ranks;                               /* of the world, by node */
};

/* Collective over the world, all of whose hosts are known. Errors: RANK. */
enum dpt_status dpt_nodes_open(struct dpt_nodes *nodes, const struct dpt_comm *comm,
                               struct dpt_error *err);
void dpt_nodes_close(struct dpt_nodes *nodes);

/* Brings nodes->remote up to date. */
void dpt_nodes_update(struct dpt_nodes *nodes, double now);

#endif
