#include "core/comm/watch/heartbeat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seconds. */
static const double PAUSE = 0.9, /* from one question to the next */
    UNEVEN = 0.25,               /* some pauses are so much longer or shorter: news waits less */
    RETRY = 0.2,                 /* a pause where there was no answer */
    FRESH = 2,                   /* an answer counts for so long; silence counts after so long */
    LOST = 3,                    /* nobody has heard a node for so long: it is silent */
    SPREAD = 6,                  /* news that goes through others lasts for so much longer */
    RELAY = 1.5;                 /* a node that is asked on behalf of others asks for so long */

enum {
    PEERS = DPT_HEARTBEAT_PEERS,
    HOPS = 20,     /* between any two of 65 536 nodes lie fewer */
    TRIES = 20,    /* questions to a node that never answers: a firewall may block them */
    BURST = 1024,  /* at most so many datagrams are read from a socket in one poll */
    QUESTIONS = 4, /* the last ones, answers to which are read */
    AGES = 50,     /* the units of an age in a datagram: so many are a second */
    OLD = 255,     /* an age above all that can be told */
    MAGIC = 0x64707403,
};

enum kind { ASK, ANSWER };

/* The nodes of a job run the same program, so a datagram is the struct's bytes. */
struct datagram {
    uint64_t hash; /* of all that follows */
    int32_t magic, kind, from, to;
    uint64_t counter; /* of its sender: higher than in all its datagrams before */
    uint64_t about;   /* the counter of the question that is answered */
    int32_t hops;     /* of a question: if positive, the node that is asked asks its own peers */
    /* Of an answer: how long ago its sender heard each of its own peers; dpt_news_write. */
    uint8_t ages[PEERS];
    char news[DPT_HEARTBEAT_BYTES - 60];
};

enum {
    HASHED = offsetof(struct datagram, magic),
    QUESTION = offsetof(struct datagram, ages),
    ANSWERED = offsetof(struct datagram, news)
};

/* A node that this one asks, and that asks this one. */
struct peer {
    int node;
    const struct dpt_node_addresses *addresses;
    unsigned chosen; /* which of the addresses are used, as bits */
    bool reached;    /* it has answered once, so the network allows datagrams in both directions */
    bool asks;       /* it waits for our answer */
    int tries;
    uint64_t counter;   /* of the last datagram from it */
    uint64_t to_answer; /* the counter of its question */
    struct {
        uint64_t counter;
        double at;
    } questions[QUESTIONS];    /* our last ones; answers to older ones are ignored */
    double asked, first_asked; /* when it was asked last; since when it is asked repeatedly */
    double heard;              /* when its last answer arrived */
    double seen;               /* the same, or when one of its other peers heard it */
};

struct dpt_heartbeat {
    int fd[DPT_NODE_ADDRESSES];
    struct dpt_node_addresses addresses; /* its own */
    int nodes, index;
    double now;   /* of the last poll */
    bool due;     /* some node waits for an answer */
    int hops;     /* the most that a question of the last RELAY seconds had */
    double asked; /* when that one arrived */
    uint64_t counter;
    uint8_t secret[DPT_HEARTBEAT_SECRET];
    int n_peers, distances[PEERS]; /* find_peers */
    struct peer peers[PEERS];
    struct dpt_news news;
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
    dpt_news_close(&heartbeat->news);
    free(heartbeat);
}

/*
 * Fills in how far the peers of a node are from it, modulo `nodes`; returns their number. They are
 * all others where these are few. Else they lie on both sides in pairs of neighbours, at distances
 * that grow geometrically: that leaves few hops between any two nodes, and each two peers have
 * peers in common.
 */
static int find_peers(int nodes, int distances[PEERS])
{
    const bool all = nodes <= PEERS + 1;
    int n = 0, distance = 0;

    for (int k = 0; k < PEERS / 2 && distance < nodes / 2; k++) {
        const double wide = pow(nodes / 2, (k / 2) / (PEERS / 4 - 0.3));

        distance = all || k % 2 == 1 || wide <= distance ? distance + 1 : (int)wide;
        distances[n++] = distance;
        if (2 * distance != nodes)
            distances[n++] = nodes - distance;
    }
    return n;
}

/* The number of the peer that is this node; -1: none is. */
static int peer_of(const struct dpt_heartbeat *heartbeat, int node)
{
    for (int k = 0; k < heartbeat->n_peers; k++)
        if (heartbeat->peers[k].node == node)
            return k;
    return -1;
}

bool dpt_heartbeat_connect(struct dpt_heartbeat *heartbeat,
                           const struct dpt_node_addresses *all_addresses, int nodes, int index,
                           const void *secret)
{
    const unsigned own = dpt_node_addresses_choose(all_addresses, nodes, index);

    if (!dpt_news_open(&heartbeat->news, nodes, nodes > PEERS + 1 ? FRESH + SPREAD : FRESH))
        return false;
    heartbeat->nodes = nodes;
    heartbeat->index = index;
    heartbeat->asked = -INFINITY;
    memcpy(heartbeat->secret, secret, sizeof heartbeat->secret);
    heartbeat->n_peers = find_peers(nodes, heartbeat->distances);
    for (int k = 0; k < heartbeat->n_peers; k++) {
        const int node = (index + heartbeat->distances[k]) % nodes;

        heartbeat->peers[k] = (struct peer){
            .node = node,
            .addresses = &all_addresses[node],
            .chosen = dpt_node_addresses_choose(all_addresses, nodes, node),
            .asked = -INFINITY,
            .heard = -INFINITY,
            .seen = -INFINITY,
        };
    }
    for (int i = 0; i < heartbeat->addresses.n; i++)
        if ((own >> i & 1) == 0) {
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
static void send_datagram(struct dpt_heartbeat *heartbeat, const struct peer *peer,
                          struct datagram *datagram, size_t size)
{
    datagram->magic = MAGIC;
    datagram->from = heartbeat->index;
    datagram->to = peer->node;
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

/* Takes what a peer has answered to the question that was asked at `since`. */
static void hear(struct dpt_heartbeat *heartbeat, struct peer *peer,
                 const struct datagram *datagram, size_t size, double since)
{
    const double now = heartbeat->now;
    struct dpt_news_item item;
    size_t used = 0;

    peer->reached = true;
    peer->heard = peer->seen = now;
    for (int k = 0; k < heartbeat->n_peers; k++) {
        const int node = (peer->node + heartbeat->distances[k]) % heartbeat->nodes;
        const int own = peer_of(heartbeat, node);

        if (own >= 0 && datagram->ages[k] != OLD)
            heartbeat->peers[own].seen =
                fmax(heartbeat->peers[own].seen, since - (double)datagram->ages[k] / AGES);
    }
    while (dpt_news_read(datagram->news, size - ANSWERED, &used, &item)) {
        const double at = item.node == peer->node ? now : fmin(since - item.age, now);
        const int own = peer_of(heartbeat, item.node);

        if (item.node < 0 || item.node >= heartbeat->nodes || item.node == heartbeat->index)
            continue;
        if (own >= 0 && !item.silent)
            heartbeat->peers[own].seen = fmax(heartbeat->peers[own].seen, at);
        if (own >= 0 && item.silent && now - heartbeat->peers[own].seen <= LOST)
            dpt_news_contradict(&heartbeat->news, item.node, at);
        else
            dpt_news_put(&heartbeat->news, item.node, at, item.silent ? NULL : &item.report);
    }
}

/* Checks a datagram and handles it. */
static void receive(struct dpt_heartbeat *heartbeat, const struct datagram *datagram, size_t size)
{
    const double now = heartbeat->now;
    struct peer *peer;
    int own;

    if (size < QUESTION || size > sizeof *datagram || datagram->magic != MAGIC ||
        (own = peer_of(heartbeat, datagram->from)) < 0 || datagram->to != heartbeat->index ||
        datagram->hash != hash_of(heartbeat, datagram, size))
        return;
    peer = &heartbeat->peers[own];
    if (datagram->counter <= peer->counter)
        return;
    peer->counter = datagram->counter;
    if (datagram->kind == ASK) {
        peer->to_answer = datagram->counter;
        peer->asks = heartbeat->due = true;
        if (datagram->hops >= heartbeat->hops || now - heartbeat->asked > RELAY) {
            heartbeat->hops = datagram->hops;
            heartbeat->asked = now;
        }
        return;
    }
    for (int i = 0; i < QUESTIONS && datagram->kind == ANSWER && size >= ANSWERED; i++)
        if (datagram->about != 0 && datagram->about == peer->questions[i].counter &&
            now - peer->questions[i].at <= FRESH)
            hear(heartbeat, peer, datagram, size, peer->questions[i].at);
}

/* Asks one peer. hops: of the question. */
static void ask(struct dpt_heartbeat *heartbeat, struct peer *peer, int hops)
{
    const double now = heartbeat->now;
    struct datagram question = {.kind = ASK, .hops = hops};

    /* This node itself did not run, or did not ask. */
    if (now - peer->asked >= FRESH)
        peer->first_asked = now;
    peer->asked = now;
    peer->tries++;
    send_datagram(heartbeat, peer, &question, QUESTION);
    memmove(peer->questions + 1, peer->questions, sizeof peer->questions - sizeof *peer->questions);
    peer->questions[0].counter = question.counter;
    peer->questions[0].at = now;
}

/* Asks the peers that are due, and notes which of them are silent. */
static void ask_all(struct dpt_heartbeat *heartbeat, bool waiting)
{
    const double now = heartbeat->now;
    const int hops = waiting ? HOPS : now - heartbeat->asked <= RELAY ? heartbeat->hops - 1 : -1;

    for (int k = 0; k < heartbeat->n_peers; k++) {
        struct peer *peer = &heartbeat->peers[k];
        const double usual = PAUSE + UNEVEN * ((k + peer->tries) % 3 - 1),
                     pause = peer->reached && peer->heard < peer->asked ? RETRY : usual;

        if ((hops >= 0 || (!peer->reached && peer->tries < TRIES)) && now - peer->asked >= pause)
            ask(heartbeat, peer, hops > 0 ? hops : 0);
        /* This comes after the questions, so a node that has not asked lately begins anew. */
        if (hops >= 0 && peer->reached && now - peer->first_asked > FRESH &&
            now - peer->seen > LOST)
            dpt_news_put(&heartbeat->news, peer->node, now, NULL);
    }
}

static void read_socket(struct dpt_heartbeat *heartbeat, int own)
{
    for (int i = 0; i < BURST; i++) {
        struct datagram datagram;
        const ssize_t n =
            recv(heartbeat->fd[own], &datagram, sizeof datagram, MSG_DONTWAIT | MSG_TRUNC);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF))
            break;
        if (n >= 0)
            receive(heartbeat, &datagram, (size_t)n);
    }
}

bool dpt_heartbeat_poll(struct dpt_heartbeat *heartbeat, bool waiting, double now)
{
    heartbeat->now = fmax(heartbeat->now, now); /* ages are never negative */
    for (int i = 0; i < heartbeat->addresses.n; i++)
        if (heartbeat->fd[i] >= 0)
            read_socket(heartbeat, i);
    ask_all(heartbeat, waiting);
    return heartbeat->due;
}

void dpt_heartbeat_answer(struct dpt_heartbeat *heartbeat, const struct dpt_heartbeat_report *mine)
{
    struct datagram answer = {.kind = ANSWER};
    const size_t size = ANSWERED + dpt_news_write(&heartbeat->news, heartbeat->index, mine,
                                                  heartbeat->now, answer.news, sizeof answer.news);

    for (int k = 0; k < heartbeat->n_peers; k++)
        answer.ages[k] =
            (uint8_t)fmin(OLD, ceil((heartbeat->now - heartbeat->peers[k].heard) * AGES));
    for (int k = 0; k < heartbeat->n_peers; k++) {
        struct peer *peer = &heartbeat->peers[k];

        if (peer->asks) {
            answer.about = peer->to_answer;
            send_datagram(heartbeat, peer, &answer, size);
        }
        peer->asks = false;
    }
    heartbeat->due = false;
}

enum dpt_remote_state dpt_heartbeat_state(const struct dpt_heartbeat *heartbeat, int node,
                                          double now, const struct dpt_heartbeat_report **report)
{
    return dpt_news_state(&heartbeat->news, node, now, report);
}

double dpt_heartbeat_delay(int nodes)
{
    return nodes > PEERS + 1 ? LOST + FRESH : FRESH;
}
