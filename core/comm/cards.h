/*
 * cards: under which addresses the nodes of a job reach each other. Private to core/comm.
 *
 * Those that MPI's own TCP would take: the interfaces that it is told to use (btl_tcp_if_include
 * and _exclude), and of these the ones in a network that the first node has an address in as well,
 * where there are any. A machine's other cards (a way out, containers' bridges) stay untouched.
 */
#ifndef DPT_COMM_CARDS_H
#define DPT_COMM_CARDS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

enum { DPT_CARD_ADDRESSES = 8, DPT_CARD_FILTER = 256 };

/* Where a node's sockets are. */
struct dpt_card {
    int32_t n; /* of addresses; 0: it has none */
    struct {
        struct in6_addr address; /* IPv4 as a mapped one */
        int32_t prefix;          /* bits of it that name its network */
        in_port_t port;
    } at[DPT_CARD_ADDRESSES];
};

/* Lists of interfaces' names and networks ("eth0,10.0.0.0/8"); "": all, none. */
struct dpt_card_filter {
    char include[DPT_CARD_FILTER], exclude[DPT_CARD_FILTER];
};

/* What MPI was told by mpirun or the environment. */
void dpt_card_filter_read(struct dpt_card_filter *filter);

/* Whether an interface's address passes. */
bool dpt_card_passes(const struct dpt_card_filter *filter, const char *interface,
                     const struct in6_addr *address);

/* This machine's addresses that pass, its own loop where it has no other; without ports. */
void dpt_card_find(struct dpt_card *card, const struct dpt_card_filter *filter);

/* Whether two addresses have their first `bits` in common. */
bool dpt_card_same(const struct in6_addr *a, const struct in6_addr *b, int bits);

/* Which addresses of a node are of use: bits 1 << i. nodes > 1. */
unsigned dpt_card_choose(const struct dpt_card *cards, int nodes, int node);

#endif
