#include "core/comm/cards.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void read_variable(const char *name, char text[DPT_CARD_FILTER])
{
    const char *value = getenv(name);

    snprintf(text, DPT_CARD_FILTER, "%s", value != NULL ? value : "");
}

/* From the environment, where mpirun --mca puts them too: asking MPI itself (MPI_T) takes it a
 * quarter of a second. */
void dpt_card_filter_read(struct dpt_card_filter *filter)
{
    read_variable("OMPI_MCA_btl_tcp_if_include", filter->include);
    read_variable("OMPI_MCA_btl_tcp_if_exclude", filter->exclude);
}

bool dpt_card_same(const struct in6_addr *a, const struct in6_addr *b, int bits)
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

/* "10.0.0.0/8" */
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
    char text[DPT_CARD_FILTER], *rest = text, *word;

    snprintf(text, sizeof text, "%s", list);
    while ((word = strsep(&rest, ", ")) != NULL) {
        struct in6_addr network;
        int bits;

        if (strcmp(word, interface) == 0 ||
            (parse_network(word, &network, &bits) && dpt_card_same(address, &network, bits)))
            return true;
    }
    return false;
}

bool dpt_card_passes(const struct dpt_card_filter *filter, const char *interface,
                     const struct in6_addr *address)
{
    if (filter->include[0] != '\0')
        return is_listed(filter->include, interface, address);
    return !is_listed(filter->exclude, interface, address);
}

/* Of an interface, as a mapped one where it is of IPv4. */
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

void dpt_card_find(struct dpt_card *card, const struct dpt_card_filter *filter)
{
    struct ifaddrs *all = NULL;

    memset(card, 0, sizeof *card);
    if (getifaddrs(&all) != 0)
        return;
    for (int loop = 0; loop < 2 && card->n == 0; loop++)
        for (const struct ifaddrs *a = all; a != NULL && card->n < DPT_CARD_ADDRESSES;
             a = a->ifa_next) {
            struct in6_addr address;

            if ((a->ifa_flags & IFF_UP) == 0 ||
                ((a->ifa_flags & IFF_LOOPBACK) != 0) != (loop == 1) ||
                !read_address(a->ifa_addr, &address) || IN6_IS_ADDR_LINKLOCAL(&address) ||
                (loop == 0 && !dpt_card_passes(filter, a->ifa_name, &address)))
                continue;
            card->at[card->n].address = address;
            card->at[card->n++].prefix = count_bits(a);
        }
    freeifaddrs(all);
}

unsigned dpt_card_choose(const struct dpt_card *cards, int nodes, int node)
{
    const struct dpt_card *mine = &cards[node], *other = &cards[node == 0 && nodes > 1];
    unsigned chosen = 0;

    /* An address that the other has too is one of those that every machine has: a bridge's. */
    for (int i = 0; i < mine->n; i++)
        for (int k = 0; k < other->n; k++)
            if (mine->at[i].prefix == other->at[k].prefix &&
                dpt_card_same(&mine->at[i].address, &other->at[k].address, mine->at[i].prefix) &&
                !dpt_card_same(&mine->at[i].address, &other->at[k].address, 128))
                chosen |= 1u << i;
    return chosen != 0 ? chosen : (1u << mine->n) - 1;
}
