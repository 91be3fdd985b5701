/*
 * wire: what the watchdogs of the nodes say to each other while MPI is stuck.
 *
 * The first rank of each node has a socket; where it waits long it asks the other nodes which of
 * their ranks do not wait. Datagrams, not connections: there is nothing to be set up, to fill up or
 * to get stuck, a thousand nodes need one socket each, and a lost question is asked again. All is
 * told to all over MPI at the start: addresses, and a secret that every datagram must carry.
 * Nothing here blocks or fails a job; where it does not work the watchdog knows less.
 *
 * One thread after the opening. Private to core/comm.
 */
#ifndef DPT_COMM_WIRE_H
#define DPT_COMM_WIRE_H

#include <netinet/in.h>

#include "core/comm/watch.h"

enum { DPT_WIRE_ADDRESSES = 8, DPT_WIRE_SECRET = 16, DPT_WIRE_RANKS = 6 };

/* Where a node's socket is. */
struct dpt_wire_card {
    int32_t n; /* of addresses; 0: it has none */
    in_port_t port;
    struct in6_addr address[DPT_WIRE_ADDRESSES]; /* IPv4 as mapped ones */
};

/* A node's ranks that do not wait in a collective, or are stopped or gone. */
struct dpt_wire_report {
    int32_t n; /* told of, the first of them */
    struct dpt_seen late[DPT_WIRE_RANKS];
};

struct dpt_wire;

/* This node's socket, and where it is. NULL: there can be none. */
struct dpt_wire *dpt_wire_open(struct dpt_wire_card *card);
/* NULL is fine. */
void dpt_wire_close(struct dpt_wire *wire);
/* The cards of all nodes, of which this is number `index`; borrowed. secret: DPT_WIRE_SECRET bytes,
 * the same on all. False: no memory. */
bool dpt_wire_meet(struct dpt_wire *wire, const struct dpt_wire_card *cards, int nodes, int index,
                   const void *secret);

/*
 * One turn, a few times a second. Reads what has come; true: others have asked, and
 * dpt_wire_answer is due. Then asks: all nodes once a second where `waiting`, else those that were
 * never heard, for some time. now: seconds.
 */
bool dpt_wire_turn(struct dpt_wire *wire, bool waiting, double now);
void dpt_wire_answer(struct dpt_wire *wire, const struct dpt_wire_report *mine);

/* What is known of a node. *report: out, where it was heard; borrowed until the next turn. */
enum dpt_far_state dpt_wire_look(const struct dpt_wire *wire, int node, double now,
                                 const struct dpt_wire_report **report);

#endif
