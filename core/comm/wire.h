/*
 * wire: what the watchdogs of the nodes say to each other while MPI is stuck.
 *
 * The first rank of each node has a socket at each address that MPI uses; where it waits long it
 * asks the other nodes which of their ranks do not wait. Datagrams, not connections: there is
 * nothing to be set up, to fill up or to get stuck, and a lost question is asked again. All is told
 * to all over MPI at the start: addresses, and a secret. Nothing here blocks or fails a job; where
 * it does not work the watchdog knows less.
 *
 * Others on the network can read and send datagrams. The secret is never in them: each carries a
 * number, higher than those before it, and a keyed hash (SipHash-2-4) of all of it. Without the
 * secret none can be made or changed, one that was taken up is not taken again, and an answer only
 * counts while its question is new. What remains to others is to keep datagrams away.
 *
 * One thread after the opening. Private to core/comm.
 */
#ifndef DPT_COMM_WIRE_H
#define DPT_COMM_WIRE_H

#include "core/base/hash.h"
#include "core/comm/cards.h"
#include "core/comm/watch.h"

enum { DPT_WIRE_SECRET = DPT_SIPHASH_KEY, DPT_WIRE_RANKS = 6 };

/* A node's ranks that do not wait in a collective, or are stopped or gone. */
struct dpt_wire_report {
    int32_t n; /* told of, the first of them */
    struct dpt_seen late[DPT_WIRE_RANKS];
};

struct dpt_wire;

/* This node's sockets. card: its addresses, which get their ports; those where there can be no
 * socket are taken out. NULL: there can be none. */
struct dpt_wire *dpt_wire_open(struct dpt_card *card);
/* NULL is fine. */
void dpt_wire_close(struct dpt_wire *wire);
/* The cards of all nodes, of which this is number `index`; borrowed. secret: DPT_WIRE_SECRET bytes,
 * the same on all. False: no memory. */
bool dpt_wire_meet(struct dpt_wire *wire, const struct dpt_card *cards, int nodes, int index,
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
