#include "core/comm/watch/heartbeat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/str.h"

/* The seconds from one question to the next, and those for which an answer counts as recent. */
static const double PAUSE = 0.9, FRESH = 2;

enum {
    TRIES = 20, /* questions to a node that never answers: a firewall may block them */
    BURST = 64, /* at most so many datagrams a poll in each direction */
    MAGIC = 0x64707402,
};

enum kind { ASK, ANSWER };

/* The nodes of a job run the same program, so a datagram is the struct's bytes. */
struct datagram {
    uint64_t hash; /* of all that follows */
    int32_t magic, kind, from, to;
    uint64_t counter;                   /* of its sender: higher than in all its datagrams before */
    uint64_t about;                     /* the counter of the question that is answered */
    struct dpt_heartbeat_report report; /* not in a question */
};

enum { QUESTION = offsetof(struct datagram, report), HASHED = offsetof(struct datagram, magic) };

struct peer {
    const struct dpt_node_addresses *addresses;
    unsigned chosen; /* which of the addresses are used, as bits */
    bool reached;    /* a datagram from it has arrived once, so the network allows them */
    bool asks;       /* it waits for our answer */
    int tries;
    uint64_t counter;      /* of the last datagram from it */
    uint64_t to_answer;    /* the counter of its question */
    uint64_t questions[2]; /* the counters of our last two questions; older answers are ignored */
    double asked, first_asked; /* when it was asked last; since when it is asked repeatedly */
    double heard;              /* when its last answer arrived */
    struct dpt_heartbeat_report report;
};

struct dpt_heartbeat {
    int fd[DPT_NODE_ADDRESSES];
    struct dpt_node_addresses addresses; /* its own */
    int nodes, index, next;
    bool due; /* some node waits for an answer */
    uint64_t counter;
    uint8_t secret[DPT_HEARTBEAT_SECRET];
    struct peer *peers; /* [nodes] */
};

/* Writes an address in the form of its family's sockets; returns its size. */
static socklen_t make_address(const struct in6_addr *address, in_port_t port,
                              struct sockaddr_storage *out)
{
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    struct sockaddr_in *four = (struct sockaddr_in *)out;

    memset(out, 0, sizeof *out);
    if (!IN6_IS_ADDR_V4MAPPED(address)) {
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

/* Opens a socket at this address and sets *port. -1: no socket can be opened there. */
static int open_socket(const struct in6_addr *at, in_port_t *port)
{
    struct sockaddr_storage address;
    socklen_t size = make_address(at, 0, &address);
    const int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (bind(fd, (const struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        close(fd);
        return -1;
    }
    *port = address.ss_family == AF_INET ? ((const struct sockaddr_in *)&address)->sin_port
                                         : ((const struct sockaddr_in6 *)&address)->sin6_port;
    return fd;
}

struct dpt_heartbeat *dpt_heartbeat_open(struct dpt_node_addresses *addresses)
{
    struct dpt_heartbeat *heartbeat = calloc(1, sizeof *heartbeat);
    const int n = addresses->n;

    addresses->n = 0;
    if (heartbeat == NULL)
        return NULL;
    for (int i = 0; i < n; i++) {
        addresses->at[addresses->n] = addresses->at[i];
        heartbeat->fd[addresses->n] =
            open_socket(&addresses->at[i].address, &addresses->at[addresses->n].port);
        addresses->n += heartbeat->fd[addresses->n] >= 0;
    }
    heartbeat->addresses = *addresses;
    if (addresses->n == 0) {
        dpt_heartbeat_close(heartbeat);
        return NULL;
    }
    return heartbeat;
}

void dpt_heartbeat_close(struct dpt_heartbeat *heartbeat)
{
    if (heartbeat == NULL)
        return;
    for (int i = 0; i < heartbeat->addresses.n; i++)
        if (heartbeat->fd[i] >= 0)
            close(heartbeat->fd[i]);
    free(heartbeat->peers);
    free(heartbeat);
}

bool dpt_heartbeat_connect(struct dpt_heartbeat *heartbeat,
                           const struct dpt_node_addresses *all_addresses, int nodes, int index,
                           const void *secret)
{
    heartbeat->peers = calloc((size_t)nodes, sizeof *heartbeat->peers);
    if (heartbeat->peers == NULL)
        return false;
    heartbeat->nodes = nodes;
    heartbeat->index = index;
    memcpy(heartbeat->secret, secret, sizeof heartbeat->secret);
    for (int i = 0; i < nodes; i++) {
        heartbeat->peers[i].addresses = &all_addresses[i];
        heartbeat->peers[i].chosen = dpt_node_addresses_choose(all_addresses, nodes, i);
    }
    for (int i = 0; i < heartbeat->addresses.n; i++)
        if ((heartbeat->peers[index].chosen >> i & 1) == 0) {
            close(heartbeat->fd[i]);
            heartbeat->fd[i] = -1;
        }
    return true;
}

/* Chooses our socket for an address: one in its network, else one of its family; -1: none. */
static int socket_for(const struct dpt_heartbeat *heartbeat, const struct in6_addr *address)
{
    int found = -1;

    for (int i = heartbeat->addresses.n - 1; i >= 0; i--) {
        const struct in6_addr *own = &heartbeat->addresses.at[i].address;

        if (heartbeat->fd[i] < 0 || IN6_IS_ADDR_V4MAPPED(own) != IN6_IS_ADDR_V4MAPPED(address))
            continue;
        if (dpt_address_same_prefix(own, address, heartbeat->addresses.at[i].prefix))
            return i;
        found = i;
    }
    return found;
}

static uint64_t hash_of(const struct dpt_heartbeat *heartbeat, const struct datagram *datagram,
                        size_t size)
{
    return dpt_siphash(heartbeat->secret, (const char *)datagram + HASHED, size - HASHED);
}

/* Sends a datagram to all used addresses of a node, which accepts the first one that arrives and
 * ignores the others, since they have the same counter. */
static void send_datagram(struct dpt_heartbeat *heartbeat, int to, struct datagram *datagram,
                          size_t size)
{
    const struct peer *peer = &heartbeat->peers[to];

    datagram->magic = MAGIC;
    datagram->from = heartbeat->index;
    datagram->to = to;
    datagram->counter = ++heartbeat->counter;
    datagram->hash = hash_of(heartbeat, datagram, size);
    for (int i = 0; i < peer->addresses->n; i++) {
        const struct in6_addr *address = &peer->addresses->at[i].address;
        const int own = socket_for(heartbeat, address);
        struct sockaddr_storage storage;
        const socklen_t length = make_address(address, peer->addresses->at[i].port, &storage);

        /* Errors are ignored: a question that cannot be sent now is asked again. */
        if (own >= 0 && (peer->chosen >> i & 1) != 0)
            (void)sendto(heartbeat->fd[own], datagram, size, MSG_DONTWAIT | MSG_NOSIGNAL,
                         (const struct sockaddr *)&storage, length);
    }
}

/* Stores a report after its numbers are checked and its texts are terminated and made printable,
 * since it comes from outside. */
static void store_report(struct peer *peer, const struct dpt_heartbeat_report *report, double now)
{
    peer->report = *report;
    if (peer->report.n < 0 || peer->report.n > DPT_HEARTBEAT_RANKS)
        peer->report.n = 0;
    for (int i = 0; i < peer->report.n; i++) {
        struct dpt_rank_status *seen = &peer->report.late[i];
        char note[6 * sizeof seen->note + 8];

        seen->note[sizeof seen->note - 1] = '\0';
        dpt_show_text(note, seen->note, sizeof seen->note);
        snprintf(seen->note, sizeof seen->note, "%.*s", DPT_NOTE_TEXT - 1, note);
        if (seen->process != DPT_PROCESS_STOPPED && seen->process != DPT_PROCESS_GONE)
            seen->process = DPT_PROCESS_RUNS;
    }
    peer->heard = now;
}

/* Checks a datagram and handles it. */
static void receive(struct dpt_heartbeat *heartbeat, const struct datagram *datagram, size_t size,
                    double now)
{
    struct peer *peer;

    if (size < QUESTION || size > sizeof *datagram || datagram->magic != MAGIC ||
        datagram->from < 0 || datagram->from >= heartbeat->nodes ||
        datagram->from == heartbeat->index || datagram->to != heartbeat->index ||
        datagram->hash != hash_of(heartbeat, datagram, size))
        return;
    peer = &heartbeat->peers[datagram->from];
    if (datagram->counter <= peer->counter)
        return;
    peer->counter = datagram->counter;
    peer->reached = true;
    if (datagram->kind == ASK) {
        peer->to_answer = datagram->counter;
        peer->asks = heartbeat->due = true;
    } else if (datagram->kind == ANSWER && size == sizeof *datagram && datagram->about != 0 &&
               (datagram->about == peer->questions[0] || datagram->about == peer->questions[1])) {
        store_report(peer, &datagram->report, now);
    }
}

/* Every node is asked once, also one that was heard before: it has not heard this one yet. */
static void ask(struct dpt_heartbeat *heartbeat, bool waiting, double now)
{
    int sent = 0;

    for (int k = 0; k < heartbeat->nodes && sent < BURST; k++) {
        struct peer *peer = &heartbeat->peers[heartbeat->next];
        struct datagram question = {.kind = ASK};

        if (heartbeat->next != heartbeat->index &&
            (waiting || peer->tries == 0 || (!peer->reached && peer->tries < TRIES)) &&
            now - peer->asked >= PAUSE) {
            if (now - peer->asked >= 2 * FRESH)
                peer->first_asked = now;
            peer->asked = now;
            peer->tries++;
            send_datagram(heartbeat, heartbeat->next, &question, QUESTION);
            peer->questions[1] = peer->questions[0];
            peer->questions[0] = question.counter;
            sent++;
        }
        heartbeat->next = (heartbeat->next + 1) % heartbeat->nodes;
    }
}

static void read_socket(struct dpt_heartbeat *heartbeat, int own, double now)
{
    for (int i = 0; i < BURST; i++) {
        struct datagram datagram;
        const ssize_t n =
            recv(heartbeat->fd[own], &datagram, sizeof datagram, MSG_DONTWAIT | MSG_TRUNC);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF))
            break;
        if (n >= 0)
            receive(heartbeat, &datagram, (size_t)n, now);
    }
}

bool dpt_heartbeat_poll(struct dpt_heartbeat *heartbeat, bool waiting, double now)
{
    for (int i = 0; i < heartbeat->addresses.n; i++)
        if (heartbeat->fd[i] >= 0)
            read_socket(heartbeat, i, now);
    ask(heartbeat, waiting, now);
    return heartbeat->due;
}

void dpt_heartbeat_answer(struct dpt_heartbeat *heartbeat, const struct dpt_heartbeat_report *mine)
{
    struct datagram answer = {.kind = ANSWER, .report = *mine};

    for (int i = 0; i < heartbeat->nodes; i++) {
        struct peer *peer = &heartbeat->peers[i];

        if (peer->asks) {
            answer.about = peer->to_answer;
            send_datagram(heartbeat, i, &answer, sizeof answer);
        }
        peer->asks = false;
    }
    heartbeat->due = false;
}

enum dpt_remote_state dpt_heartbeat_state(const struct dpt_heartbeat *heartbeat, int node,
                                          double now, const struct dpt_heartbeat_report **report)
{
    const struct peer *peer = &heartbeat->peers[node];

    *report = &peer->report;
    if (!peer->reached || now - peer->asked > FRESH)
        return DPT_REMOTE_UNKNOWN;
    if (now - peer->heard <= FRESH)
        return DPT_REMOTE_HEARD;
    return now - peer->first_asked > FRESH ? DPT_REMOTE_SILENT : DPT_REMOTE_UNKNOWN;
}
