/*
 * heartbeat: datagrams between the watchdogs of the nodes, which work while MPI is stuck.
 *
 * The first rank of each node has a socket at each address that MPI uses. If it waits long it asks
 * its peers, which are some of the other nodes, which ranks do not wait. Datagrams need no
 * connection, which would have to be set up and could block, and a lost question is asked again.
 * The ranks exchange the addresses and a secret over MPI at the start. Nothing here blocks or fails
 * a job; without a heartbeat the watchdog only knows less about the other nodes.
 *
 * The peers of a node are all others up to DPT_HEARTBEAT_PEERS, else as many, at geometrically
 * growing distances on both sides of it on a ring. It is a peer of each of them. An answer holds
 * the node's own report, what it was told of other nodes lately (news.h), and when it has heard
 * each of its own peers. So
 *  - all nodes that ask know of a late rank after as many hops as lie between them, 6 for 1 024
 *    nodes (measured: 1.5 s), and of a silent node 1.5 s after its peers (3.5 s);
 *  - a peer is silent if it does not answer and none of those that this node asks has heard it
 *    either. Single links that fail and lost datagrams thus blame nobody: with one fifth lost, no
 *    node of 1 024 called another one silent;
 *  - a node sends at most a question and an answer to each peer in a poll, of DPT_HEARTBEAT_BYTES
 *    at most, however many nodes there are, and one of each a second if all answer (measured: 34
 *    datagrams, 3 kB a second);
 *  - a node that does not wait itself asks too while a node that waits asks it, directly or through
 *    others: else one that waits before all others would know its peers only.
 * A tree would need fewer datagrams, and repair where a node in it is lost. Peers drawn at random
 * (Das, Gupta, Motivala, "SWIM", DSN 2002) are heard only now and then, and have no peers in
 * common, so it must ask for a second opinion, which here is in every answer.
 *
 * The silence of a node means something only for peers that it has answered once: a firewall may
 * block all datagrams, or those in one direction. So each node asks its peers once at the start.
 *
 * Others on the network can read and send datagrams. The secret is never in them: each carries a
 * number, higher than those before it, and a keyed hash (SipHash-2-4) of all of it. So datagrams
 * cannot be forged or changed without the secret, a repeated one is ignored, and an answer counts
 * only while its question is recent; what it tells of other nodes is taken to be as much older. An
 * attacker can still suppress datagrams. A node that passes on news is believed: it has the secret.
 *
 * After dpt_heartbeat_open one thread uses it. Private to core/comm.
 */
#ifndef DPT_COMM_HEARTBEAT_H
#define DPT_COMM_HEARTBEAT_H

#include "core/base/hash.h"
#include "core/comm/watch/addresses.h"
#include "core/comm/watch/news.h"

enum {
    DPT_HEARTBEAT_SECRET = DPT_SIPHASH_KEY,
    DPT_HEARTBEAT_PEERS = 16,
    DPT_HEARTBEAT_BYTES = 1400 /* of a datagram: fits into one packet on any usual network */
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
 * questions: where `waiting`, or where a node that waits has asked, to the peers about once per
 * second, else for some time to those that have never answered. now: seconds. True: other nodes
 * have asked, and dpt_heartbeat_answer is due.
 */
bool dpt_heartbeat_poll(struct dpt_heartbeat *heartbeat, bool waiting, double now);
void dpt_heartbeat_answer(struct dpt_heartbeat *heartbeat, const struct dpt_heartbeat_report *mine);

/* The state of another node; of one that is no peer it is UNKNOWN where nothing is wrong. *report:
 * out, valid where the state is HEARD; borrowed until the next poll. */
enum dpt_remote_state dpt_heartbeat_state(const struct dpt_heartbeat *heartbeat, int node,
                                          double now, const struct dpt_heartbeat_report **report);

/* The seconds that a node has to ask to know what there is to know. */
double dpt_heartbeat_delay(int nodes);

#endif
