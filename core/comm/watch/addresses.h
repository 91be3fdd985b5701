/*
 * addresses: the network addresses under which the nodes of a job reach each other. Private to
 * core/comm.
 *
 * These are the addresses that MPI's own TCP transport would take: those of the interfaces that it
 * is told to use (btl_tcp_if_include and _exclude), and of these the ones in a network in which the
 * first node has an address as well, where there are any. A machine's other interfaces (a gateway,
 * containers' bridges) are not used.
 */
#ifndef DPT_COMM_ADDRESSES_H
#define DPT_COMM_ADDRESSES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

enum { DPT_NODE_ADDRESSES = 8, DPT_ADDRESS_FILTER = 256 };

/* The addresses and ports of a node's sockets. */
struct dpt_node_addresses {
    int32_t n; /* number of addresses; 0: the node has none */
    struct {
        struct in6_addr address; /* an IPv4 address is stored as a mapped IPv6 one */
        int32_t prefix;          /* length in bits of the network's prefix */
        in_port_t port;
    } at[DPT_NODE_ADDRESSES];
};

/* Lists of interfaces' names and networks ("eth0,10.0.0.0/8"); "": all, none. */
struct dpt_address_filter {
    char include[DPT_ADDRESS_FILTER], exclude[DPT_ADDRESS_FILTER];
};

/* Reads the lists that mpirun or the environment gave to MPI. */
void dpt_address_filter_read(struct dpt_address_filter *filter);

/* Whether the filter allows an interface's address. */
bool dpt_address_passes(const struct dpt_address_filter *filter, const char *interface,
                        const struct in6_addr *address);

/* Finds this machine's addresses that the filter allows, or the loopback address where there is no
 * other; without ports. */
void dpt_node_addresses_find(struct dpt_node_addresses *addresses,
                             const struct dpt_address_filter *filter);

/* Whether two addresses have their first `bits` in common. */
bool dpt_address_same_prefix(const struct in6_addr *a, const struct in6_addr *b, int bits);

/* The addresses of a node that can be used, as a set of bits 1 << i. nodes > 1. */
unsigned dpt_node_addresses_choose(const struct dpt_node_addresses *all_addresses, int nodes,
                                   int node);

#endif
