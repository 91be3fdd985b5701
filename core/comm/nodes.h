/*
 * nodes: the other nodes of a job, for a watchdog. Private to core/comm.
 */
#ifndef DPT_COMM_NODES_H
#define DPT_COMM_NODES_H

#include "core/comm/wire.h"

struct dpt_nodes {
    int n, me;    /* of the job's nodes */
    char *others; /* names of the others: "node08, node09"; "": there are none */
    /* All below is the first rank's of a node, and NULL where nodes cannot talk. */
    struct dpt_wire *wire;
    struct dpt_card *cards; /* [n] */
    struct dpt_far *far;    /* [n]; of this node an empty one */
    int *ranks;             /* of the world, by node */
};

/* Collective over the world, all of whose hosts are known. Errors: RANK. */
enum dpt_status dpt_nodes_open(struct dpt_nodes *nodes, const struct dpt_comm *comm,
                               struct dpt_error *err);
void dpt_nodes_close(struct dpt_nodes *nodes);

/* Brings nodes->far up to date. */
void dpt_nodes_look(struct dpt_nodes *nodes, double now);

#endif
