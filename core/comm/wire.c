#include "core/comm/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seconds from one question to the next; and for which an answer is news. */
static const double PAUSE = 0.9, FRESH = 2;

enum {
    TRIES = 20, /* questions to a node that was never heard: something is in the way */
    BURST = 64, /* datagrams a turn at most, each way */
    MAGIC = 0x64707401,
};

enum kind { ASK, ANSWER };

/* The nodes of a job run the same program: a datagram is the struct as it is. */
struct datagram {
    int32_t magic, kind, from;
    uint8_t secret[DPT_WIRE_SECRET];
    struct dpt_wire_report report; /* not in a question */
};

enum { QUESTION = offsetof(struct datagram, report) };

struct peer {
    const struct dpt_wire_card *card;
    struct in6_addr
        known;         /* that it was heard from, where `met`; else all its addresses are tried */
    bool met, reached; /* reached: it was heard from at some time, so nothing is in the way */
    bool asks;         /* waits for our answer */
    int tries;
    double asked, first_asked; /* this time; and since when again and again */
    double heard;
    struct dpt_wire_report report;
};

struct dpt_wire {
    int fd;
    bool v4; /* the machine has no IPv6 */
    int nodes, index, next;
    bool due; /* somebody waits for an answer */
    uint8_t secret[DPT_WIRE_SECRET];
    struct peer *peers; /* [nodes] */
};

static struct in6_addr mapped(struct in_addr v4)
{
    struct in6_addr address = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

    memcpy(&address.s6_addr[12], &v4, sizeof v4);
    return address;
}

/* The addresses of this machine under which others may reach it; its own loop where it has no
 * other. */
static void find_addresses(struct dpt_wire_card *card, bool v4)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (int loop = 0; loop < 2 && card->n == 0; loop++)
        for (const struct ifaddrs *a = all; a != NULL && card->n < DPT_WIRE_ADDRESSES;
             a = a->ifa_next) {
            struct in6_addr address;

            if (a->ifa_addr == NULL || (a->ifa_flags & IFF_UP) == 0 ||
                ((a->ifa_flags & IFF_LOOPBACK) != 0) != (loop == 1))
                continue;
            if (a->ifa_addr->sa_family == AF_INET)
                address = mapped(((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr);
            else if (a->ifa_addr->sa_family == AF_INET6 && !v4)
                address = ((const struct sockaddr_in6 *)(const void *)a->ifa_addr)->sin6_addr;
            else
                continue;
            if (!IN6_IS_ADDR_LINKLOCAL(&address))
                card->address[card->n++] = address;
        }
    freeifaddrs(all);
}

/* As the socket's family wants it. */
static socklen_t make_address(const struct dpt_wire *wire, const struct in6_addr *address,
                              in_port_t port, struct sockaddr_storage *out)
{
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    struct sockaddr_in *four = (struct sockaddr_in *)out;

    memset(out, 0, sizeof *out);
    if (!wire->v4) {
        six->sin6_family = AF_INET6;
        six->sin6_port = port;
        six->sin6_addr = *address;
        return sizeof *six;
    }
    four->sin_family = AF_INET;
    four->sin_port = port;
    memcpy(&four->sin_addr, &address->s6_addr[12], sizeof four->sin_addr);
    return sizeof *four;
}

static bool open_socket(struct dpt_wire *wire, struct dpt_wire_card *card)
{
    const int type = SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, off = 0;
    struct sockaddr_storage address;
    socklen_t size;

    wire->fd = socket(AF_INET6, type, 0);
    if (wire->fd < 0 || setsockopt(wire->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) {
        if (wire->fd >= 0)
            close(wire->fd);
        wire->v4 = true;
        wire->fd = socket(AF_INET, type, 0);
    }
    if (wire->fd < 0)
        return false;
    size = make_address(wire, &in6addr_any, 0, &address);
    if (bind(wire->fd, (const struct sockaddr *)&address, size) != 0)
        return false;
    size = sizeof address;
    if (getsockname(wire->fd, (struct sockaddr *)&address, &size) != 0)
        return false;
    card->port = wire->v4 ? ((const struct sockaddr_in *)&address)->sin_port
                          : ((const struct sockaddr_in6 *)&address)->sin6_port;
    return true;
}

struct dpt_wire *dpt_wire_open(struct dpt_wire_card *card)
{
    struct dpt_wire *wire = calloc(1, sizeof *wire);

    memset(card, 0, sizeof *card);
    if (wire == NULL)
        return NULL;
    if (!open_socket(wire, card)) {
        dpt_wire_close(wire);
        return NULL;
    }
    find_addresses(card, wire->v4);
    return wire;
}

void dpt_wire_close(struct dpt_wire *wire)
{
    if (wire == NULL)
        return;
    if (wire->fd >= 0)
        close(wire->fd);
    free(wire->peers);
    free(wire);
}

bool dpt_wire_meet(struct dpt_wire *wire, const struct dpt_wire_card *cards, int nodes, int index,
                   const void *secret)
{
    wire->peers = calloc((size_t)nodes, sizeof *wire->peers);
    if (wire->peers == NULL)
        return false;
    wire->nodes = nodes;
    wire->index = index;
    memcpy(wire->secret, secret, sizeof wire->secret);
    for (int i = 0; i < nodes; i++)
        wire->peers[i].card = &cards[i];
    return true;
}

static void send_datagram(const struct dpt_wire *wire, const struct peer *peer,
                          struct datagram *datagram, size_t size)
{
    struct sockaddr_storage address;

    datagram->magic = MAGIC;
    datagram->from = wire->index;
    memcpy(datagram->secret, wire->secret, sizeof datagram->secret);
    for (int i = 0; i < (peer->met ? 1 : peer->card->n); i++) {
        const socklen_t length = make_address(
            wire, peer->met ? &peer->known : &peer->card->address[i], peer->card->port, &address);

        /* What cannot be sent now is asked again. */
        (void)sendto(wire->fd, datagram, size, MSG_DONTWAIT | MSG_NOSIGNAL,
                     (const struct sockaddr *)&address, length);
    }
}

/* A report from outside: numbers within bounds, texts with an end. */
static void take_report(struct peer *peer, const struct dpt_wire_report *report, double now)
{
    peer->report = *report;
    if (peer->report.n < 0 || peer->report.n > DPT_WIRE_RANKS)
        peer->report.n = 0;
    for (int i = 0; i < peer->report.n; i++) {
        struct dpt_seen *seen = &peer->report.late[i];

        seen->word[sizeof seen->word - 1] = '\0';
        if (seen->process != DPT_PROCESS_STOPPED && seen->process != DPT_PROCESS_GONE)
            seen->process = DPT_PROCESS_RUNS;
    }
    peer->heard = now;
}

static void take(struct dpt_wire *wire, const struct datagram *datagram, size_t size,
                 const struct sockaddr_storage *from, double now)
{
    struct peer *peer;

    if (size < QUESTION || datagram->magic != MAGIC || datagram->from < 0 ||
        datagram->from >= wire->nodes || datagram->from == wire->index ||
        memcmp(datagram->secret, wire->secret, sizeof wire->secret) != 0)
        return;
    peer = &wire->peers[datagram->from];
    peer->known = wire->v4 ? mapped(((const struct sockaddr_in *)from)->sin_addr)
                           : ((const struct sockaddr_in6 *)from)->sin6_addr;
    peer->met = peer->reached = true;
    if (datagram->kind == ASK) {
        peer->asks = wire->due = true;
    } else if (datagram->kind == ANSWER && size == sizeof *datagram) {
        take_report(peer, &datagram->report, now);
    }
}

static void ask(struct dpt_wire *wire, bool waiting, double now)
{
    int sent = 0;

    for (int k = 0; k < wire->nodes && sent < BURST; k++) {
        struct peer *peer = &wire->peers[wire->next];
        struct datagram question = {.kind = ASK};

        if (wire->next != wire->index && (waiting || (!peer->reached && peer->tries < TRIES)) &&
            now - peer->asked >= PAUSE) {
            if (now - peer->asked >= 2 * FRESH)
                peer->first_asked = now;
            peer->asked = now;
            peer->met &= now - peer->heard <= FRESH;
            peer->tries++;
            send_datagram(wire, peer, &question, QUESTION);
            sent++;
        }
        wire->next = (wire->next + 1) % wire->nodes;
    }
}

bool dpt_wire_turn(struct dpt_wire *wire, bool waiting, double now)
{
    for (int i = 0; i < BURST; i++) {
        struct datagram datagram;
        struct sockaddr_storage from;
        socklen_t length = sizeof from;
        const ssize_t n = recvfrom(wire->fd, &datagram, sizeof datagram, MSG_DONTWAIT,
                                   (struct sockaddr *)&from, &length);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF))
            break;
        if (n >= 0)
            take(wire, &datagram, (size_t)n, &from, now);
    }
    ask(wire, waiting, now);
    return wire->due;
}

void dpt_wire_answer(struct dpt_wire *wire, const struct dpt_wire_report *mine)
{
    struct datagram answer = {.kind = ANSWER, .report = *mine};

    for (int i = 0; i < wire->nodes; i++) {
        struct peer *peer = &wire->peers[i];

        if (peer->asks)
            send_datagram(wire, peer, &answer, sizeof answer);
        peer->asks = false;
    }
    wire->due = false;
}

enum dpt_far_state dpt_wire_look(const struct dpt_wire *wire, int node, double now,
                                 const struct dpt_wire_report **report)
{
    const struct peer *peer = &wire->peers[node];

    *report = &peer->report;
    if (!peer->reached || now - peer->asked > FRESH)
        return DPT_FAR_UNKNOWN;
    if (now - peer->heard <= FRESH)
        return DPT_FAR_HEARD;
    return now - peer->first_asked > FRESH ? DPT_FAR_SILENT : DPT_FAR_UNKNOWN;
}
