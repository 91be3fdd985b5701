/*
 * heartbeat: datagrams between the watchdogs of the nodes, which work while MPI is stuck.
 *
 * The first rank of each node has a socket at each address that MPI uses. If it waits long it asks
 * the other nodes which of their ranks do not wait. Datagrams need no connection, which would have
 * to be set up and could block, and a lost question is asked again. The ranks exchange the
 * addresses and a secret over MPI at the start. Nothing here blocks or fails a job; without a
 * heartbeat the watchdog only knows less about the other nodes.
 *
 * Others on the network can read and send datagrams. The secret is never in them: each carries a
 * number, higher than those before it, and a keyed hash (SipHash-2-4) of all of it. So datagrams
 * cannot be forged or changed without the secret, a repeated one is ignored, and an answer counts
 * only while its question is recent. An attacker can still suppress datagrams.
 *
 * After dpt_heartbeat_open one thread uses it. Private to core/comm.
 */
#ifndef DPT_COMM_HEARTBEAT_H
#define DPT_COMM_HEARTBEAT_H

#include "core/base/hash.h"
#include "core/comm/watch/addresses.h"
#include "core/comm/watch/watch.h"

enum { DPT_HEARTBEAT_SECRET = DPT_SIPHASH_KEY, DPT_HEARTBEAT_RANKS = 6 };

/* A node's ranks that do not wait in a collective, or are stopped or gone. */
struct dpt_heartbeat_report {
    int32_t n; /* how many are listed in `late`, the first of them */
    struct dpt_rank_status late[DPT_HEARTBEAT_RANKS];
};

struct dpt_heartbeat;

/* Opens this node's sockets. addresses: the node's, in and out: they get their ports, and those at
 * which no socket can be opened are removed. NULL: no socket could be opened. */
struct dpt_heartbeat *dpt_heartbeat_open(struct dpt_node_addresses *addresses);
/* NULL is fine. */
void dpt_heartbeat_close(struct dpt_heartbeat *heartbeat);
/* Makes the other nodes known. all_addresses: of all nodes, of which this is number `index`;
 * borrowed. secret: DPT_HEARTBEAT_SECRET bytes, the same on all nodes. False: memory ran out. */
bool dpt_heartbeat_connect(struct dpt_heartbeat *heartbeat,
                           const struct dpt_node_addresses *all_addresses, int nodes, int index,
                           const void *secret);

/*
 * Should be called a few times per second. Reads the datagrams that have arrived, then sends
 * questions: where `waiting` to all nodes once per second, else for some time to those that have
 * never answered. now: seconds. True: other nodes have asked, and dpt_heartbeat_answer is due.
 */
bool dpt_heartbeat_poll(struct dpt_heartbeat *heartbeat, bool waiting, double now);
void dpt_heartbeat_answer(struct dpt_heartbeat *heartbeat, const struct dpt_heartbeat_report *mine);

/* The state of another node. *report: out, valid where the state is HEARD; borrowed until the next
 * poll. */
enum dpt_remote_state dpt_heartbeat_state(const struct dpt_heartbeat *heartbeat, int node,
                                          double now, const struct dpt_heartbeat_report **report);

#endif
