#include "core/comm/watch/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void read_variable(const char *name, char text[DPT_ADDRESS_FILTER])
{
    const char *value = getenv(name);

    snprintf(text, DPT_ADDRESS_FILTER, "%s", value != NULL ? value : "");
}

/* The lists are read from the environment, where mpirun --mca stores them too, since a query of MPI
 * itself (MPI_T) takes a quarter of a second. */
void dpt_address_filter_read(struct dpt_address_filter *filter)
{
    read_variable("OMPI_MCA_btl_tcp_if_include", filter->include);
    read_variable("OMPI_MCA_btl_tcp_if_exclude", filter->exclude);
}

bool dpt_address_same_prefix(const struct in6_addr *a, const struct in6_addr *b, int bits)
{
    const int whole = bits / 8, mask = 0xff00 >> bits % 8 & 0xff;

    return memcmp(a->s6_addr, b->s6_addr, (size_t)whole) == 0 &&
           (mask == 0 || ((a->s6_addr[whole] ^ b->s6_addr[whole]) & mask) == 0);
}

static struct in6_addr mapped(struct in_addr v4)
{
    struct in6_addr address = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

    memcpy(&address.s6_addr[12], &v4, sizeof v4);
    return address;
}

/* Parses a network such as "10.0.0.0/8"; an IPv4 network becomes a mapped IPv6 one. */
static bool parse_network(const char *text, struct in6_addr *network, int *bits)
{
    char address[INET6_ADDRSTRLEN + 1];
    const char *slash = strchr(text, '/');
    struct in_addr four;
    char *end;
    long n;

    if (slash == NULL || slash - text >= (long)sizeof address)
        return false;
    memcpy(address, text, (size_t)(slash - text));
    address[slash - text] = '\0';
    n = strtol(slash + 1, &end, 10);
    if (end == slash + 1 || *end != '\0' || n < 0)
        return false;
    if (inet_pton(AF_INET, address, &four) == 1) {
        *network = mapped(four);
        n += 96;
    } else if (inet_pton(AF_INET6, address, network) != 1) {
        return false;
    }
    *bits = (int)n;
    return n <= 128;
}

static bool is_listed(const char *list, const char *interface, const struct in6_addr *address)
{
    char text[DPT_ADDRESS_FILTER], *rest = text, *word;

    snprintf(text, sizeof text, "%s", list);
    while ((word = strsep(&rest, ", ")) != NULL) {
        struct in6_addr network;
        int bits;

        if (strcmp(word, interface) == 0 || (parse_network(word, &network, &bits) &&
                                             dpt_address_same_prefix(address, &network, bits)))
            return true;
    }
    return false;
}

bool dpt_address_passes(const struct dpt_address_filter *filter, const char *interface,
                        const struct in6_addr *address)
{
    if (filter->include[0] != '\0')
        return is_listed(filter->include, interface, address);
    return !is_listed(filter->exclude, interface, address);
}

/* Reads an interface's address; an IPv4 address becomes a mapped IPv6 one. */
static bool read_address(const struct sockaddr *from, struct in6_addr *address)
{
    if (from == NULL)
        return false;
    if (from->sa_family == AF_INET)
        *address = mapped(((const struct sockaddr_in *)(const void *)from)->sin_addr);
    else if (from->sa_family == AF_INET6)
        *address = ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    return from->sa_family == AF_INET || from->sa_family == AF_INET6;
}

static int count_bits(const struct ifaddrs *a)
{
    struct in6_addr mask;
    int bits = 0;

    if (!read_address(a->ifa_netmask, &mask))
        return 128;
    if (a->ifa_addr->sa_family == AF_INET)
        memset(mask.s6_addr, 0xff, 12);
    while (bits < 128 && (mask.s6_addr[bits / 8] >> (7 - bits % 8) & 1) != 0)
        bits++;
    return bits;
}

void dpt_node_addresses_find(struct dpt_node_addresses *addresses,
                             const struct dpt_address_filter *filter)
{
    struct ifaddrs *all = NULL;

    memset(addresses, 0, sizeof *addresses);
    if (getifaddrs(&all) != 0)
        return;
    for (int loop = 0; loop < 2 && addresses->n == 0; loop++)
        for (const struct ifaddrs *a = all; a != NULL && addresses->n < DPT_NODE_ADDRESSES;
             a = a->ifa_next) {
            struct in6_addr address;

            if ((a->ifa_flags & IFF_UP) == 0 ||
                ((a->ifa_flags & IFF_LOOPBACK) != 0) != (loop == 1) ||
                !read_address(a->ifa_addr, &address) || IN6_IS_ADDR_LINKLOCAL(&address) ||
                (loop == 0 && !dpt_address_passes(filter, a->ifa_name, &address)))
                continue;
            addresses->at[addresses->n].address = address;
            addresses->at[addresses->n++].prefix = count_bits(a);
        }
    freeifaddrs(all);
}

unsigned dpt_node_addresses_choose(const struct dpt_node_addresses *all_addresses, int nodes,
                                   int node)
{
    const struct dpt_node_addresses *mine = &all_addresses[node],
                                    *other = &all_addresses[node == 0 && nodes > 1];
    unsigned chosen = 0;

    /* An address that both nodes have does not connect them: bridges of containers, for example,
     * have the same address on every machine. */
    for (int i = 0; i < mine->n; i++)
        for (int k = 0; k < other->n; k++)
            if (mine->at[i].prefix == other->at[k].prefix &&
                dpt_address_same_prefix(&mine->at[i].address, &other->at[k].address,
                                        mine->at[i].prefix) &&
                !dpt_address_same_prefix(&mine->at[i].address, &other->at[k].address, 128))
                chosen |= 1u << i;
    return chosen != 0 ? chosen : (1u << mine->n) - 1;
}
