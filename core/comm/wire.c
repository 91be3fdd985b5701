#include "core/comm/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/str.h"

/* Seconds from one question to the next; and for which an answer is news. */
static const double PAUSE = 0.9, FRESH = 2;

enum {
    TRIES = 20, /* questions to a node that was never heard: something is in the way */
    BURST = 64, /* datagrams a turn at most, each way */
    MAGIC = 0x64707402,
};

enum kind { ASK, ANSWER };

/* The nodes of a job run the same program: a datagram is the struct as it is. */
struct datagram {
    uint64_t hash; /* of all that follows */
    int32_t magic, kind, from, to;
    uint64_t counter;              /* of its sender: higher than in all its datagrams before */
    uint64_t about;                /* the counter of the question that is answered */
    struct dpt_wire_report report; /* not in a question */
};

enum { QUESTION = offsetof(struct datagram, report), HASHED = offsetof(struct datagram, magic) };

struct peer {
    const struct dpt_card *card;
    unsigned chosen;   /* of the card's addresses */
    int address, own;  /* that it was heard from, and on which of ours, where `met`; else all its
                          addresses are tried */
    bool met, reached; /* reached: it was heard from at some time, so nothing is in the way */
    bool asks;         /* waits for our answer */
    int tries;
    uint64_t counter;          /* of the last datagram from it */
    uint64_t to_answer;        /* that of its question */
    uint64_t questions[2];     /* ours, the last two, answers to which are news */
    double asked, first_asked; /* this time; and since when again and again */
    double heard;
    struct dpt_wire_report report;
};

struct dpt_wire {
    int fd[DPT_CARD_ADDRESSES];
    struct dpt_card card; /* its own */
    int nodes, index, next;
    bool due; /* somebody waits for an answer */
    uint64_t counter;
    uint8_t secret[DPT_WIRE_SECRET];
    struct peer *peers; /* [nodes] */
};

/* As a socket of its family wants it. */
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

/* At this address, of which its port is set. -1: it cannot be. */
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

struct dpt_wire *dpt_wire_open(struct dpt_card *card)
{
    struct dpt_wire *wire = calloc(1, sizeof *wire);
    const int n = card->n;

    card->n = 0;
    if (wire == NULL)
        return NULL;
    for (int i = 0; i < n; i++) {
        card->at[card->n] = card->at[i];
        wire->fd[card->n] = open_socket(&card->at[i].address, &card->at[card->n].port);
        card->n += wire->fd[card->n] >= 0;
    }
    wire->card = *card;
    if (card->n == 0) {
        dpt_wire_close(wire);
        return NULL;
    }
    return wire;
}

void dpt_wire_close(struct dpt_wire *wire)
{
    if (wire == NULL)
        return;
    for (int i = 0; i < wire->card.n; i++)
        if (wire->fd[i] >= 0)
            close(wire->fd[i]);
    free(wire->peers);
    free(wire);
}

bool dpt_wire_meet(struct dpt_wire *wire, const struct dpt_card *cards, int nodes, int index,
                   const void *secret)
{
    wire->peers = calloc((size_t)nodes, sizeof *wire->peers);
    if (wire->peers == NULL)
        return false;
    wire->nodes = nodes;
    wire->index = index;
    memcpy(wire->secret, secret, sizeof wire->secret);
    for (int i = 0; i < nodes; i++) {
        wire->peers[i].card = &cards[i];
        wire->peers[i].chosen = dpt_card_choose(cards, nodes, i);
    }
    for (int i = 0; i < wire->card.n; i++)
        if ((wire->peers[index].chosen >> i & 1) == 0) {
            close(wire->fd[i]);
            wire->fd[i] = -1;
        }
    return true;
}

/* Our socket for an address: one in its network, else one of its kind; -1: none. */
static int socket_for(const struct dpt_wire *wire, const struct in6_addr *address)
{
    int found = -1;

    for (int i = wire->card.n - 1; i >= 0; i--) {
        const struct in6_addr *own = &wire->card.at[i].address;

        if (wire->fd[i] < 0 || IN6_IS_ADDR_V4MAPPED(own) != IN6_IS_ADDR_V4MAPPED(address))
            continue;
        if (dpt_card_same(own, address, wire->card.at[i].prefix))
            return i;
        found = i;
    }
    return found;
}

static uint64_t hash_of(const struct dpt_wire *wire, const struct datagram *datagram, size_t size)
{
    return dpt_siphash(wire->secret, (const char *)datagram + HASHED, size - HASHED);
}

static void send_datagram(struct dpt_wire *wire, int to, struct datagram *datagram, size_t size)
{
    const struct peer *peer = &wire->peers[to];

    datagram->magic = MAGIC;
    datagram->from = wire->index;
    datagram->to = to;
    datagram->counter = ++wire->counter;
    datagram->hash = hash_of(wire, datagram, size);
    for (int i = 0; i < peer->card->n; i++) {
        const struct in6_addr *address = &peer->card->at[i].address;
        const int own = peer->met ? peer->own : socket_for(wire, address);
        struct sockaddr_storage storage;
        const socklen_t length = make_address(address, peer->card->at[i].port, &storage);

        /* What cannot be sent now is asked again. */
        if (own >= 0 && (peer->met ? i == peer->address : (peer->chosen >> i & 1) != 0))
            (void)sendto(wire->fd[own], datagram, size, MSG_DONTWAIT | MSG_NOSIGNAL,
                         (const struct sockaddr *)&storage, length);
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
        char word[6 * sizeof seen->word + 8];

        seen->word[sizeof seen->word - 1] = '\0';
        dpt_show_text(word, seen->word, sizeof seen->word);
        snprintf(seen->word, sizeof seen->word, "%.*s", DPT_NOTE_TEXT - 1, word);
        if (seen->process != DPT_PROCESS_STOPPED && seen->process != DPT_PROCESS_GONE)
            seen->process = DPT_PROCESS_RUNS;
    }
    peer->heard = now;
}

/* Which of a peer's addresses it is; -1: none. */
static int find_address(const struct peer *peer, const struct sockaddr_storage *from)
{
    for (int i = 0; i < peer->card->n; i++) {
        struct sockaddr_storage storage;
        const socklen_t length =
            make_address(&peer->card->at[i].address, peer->card->at[i].port, &storage);

        if (storage.ss_family == AF_INET6) { /* what the kernel adds for link-local ones */
            struct sockaddr_in6 *six = (struct sockaddr_in6 *)&storage;

            six->sin6_scope_id = ((const struct sockaddr_in6 *)from)->sin6_scope_id;
            six->sin6_flowinfo = ((const struct sockaddr_in6 *)from)->sin6_flowinfo;
        }
        if ((peer->chosen >> i & 1) != 0 && memcmp(&storage, from, length) == 0)
            return i;
    }
    return -1;
}

/* own: the socket that it came to. */
static void take(struct dpt_wire *wire, int own, const struct datagram *datagram, size_t size,
                 const struct sockaddr_storage *from, double now)
{
    struct peer *peer;
    int address;

    if (size < QUESTION || size > sizeof *datagram || datagram->magic != MAGIC ||
        datagram->from < 0 || datagram->from >= wire->nodes || datagram->from == wire->index ||
        datagram->to != wire->index || datagram->hash != hash_of(wire, datagram, size))
        return;
    peer = &wire->peers[datagram->from];
    address = find_address(peer, from);
    if (address < 0 || datagram->counter <= peer->counter)
        return;
    peer->counter = datagram->counter;
    peer->address = address;
    peer->own = own;
    peer->met = peer->reached = true;
    if (datagram->kind == ASK) {
        peer->to_answer = datagram->counter;
        peer->asks = wire->due = true;
    } else if (datagram->kind == ANSWER && size == sizeof *datagram && datagram->about != 0 &&
               (datagram->about == peer->questions[0] || datagram->about == peer->questions[1])) {
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
            send_datagram(wire, wire->next, &question, QUESTION);
            peer->questions[1] = peer->questions[0];
            peer->questions[0] = question.counter;
            sent++;
        }
        wire->next = (wire->next + 1) % wire->nodes;
    }
}

static void read_socket(struct dpt_wire *wire, int own, double now)
{
    for (int i = 0; i < BURST; i++) {
        struct datagram datagram;
        struct sockaddr_storage from = {0};
        socklen_t length = sizeof from;
        const ssize_t n = recvfrom(wire->fd[own], &datagram, sizeof datagram,
                                   MSG_DONTWAIT | MSG_TRUNC, (struct sockaddr *)&from, &length);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF))
            break;
        if (n >= 0)
            take(wire, own, &datagram, (size_t)n, &from, now);
    }
}

bool dpt_wire_turn(struct dpt_wire *wire, bool waiting, double now)
{
    for (int i = 0; i < wire->card.n; i++)
        if (wire->fd[i] >= 0)
            read_socket(wire, i, now);
    ask(wire, waiting, now);
    return wire->due;
}

void dpt_wire_answer(struct dpt_wire *wire, const struct dpt_wire_report *mine)
{
    struct datagram answer = {.kind = ANSWER, .report = *mine};

    for (int i = 0; i < wire->nodes; i++) {
        struct peer *peer = &wire->peers[i];

        if (peer->asks) {
            answer.about = peer->to_answer;
            send_datagram(wire, i, &answer, sizeof answer);
        }
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
