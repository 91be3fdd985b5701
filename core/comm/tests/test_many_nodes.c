#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/rng.h"
#include "core/comm/watch/heartbeat.h"

/* The heartbeats of many nodes, all in this process: four polls per second of pretended time. */

enum { MANY = 1024, PORTS = 65536, SECOND = 4, PEERS = DPT_HEARTBEAT_PEERS };

enum condition { WELL, LATE, DEAD };

static struct {
    int n;
    struct dpt_heartbeat *wires[MANY];
    struct dpt_node_addresses addresses[MANY];
    enum condition conditions[MANY];
    int node_at[PORTS];             /* by port */
    int node_of[4 * MANY + 64];     /* by descriptor, plus one; 0: not known yet */
    bool (*lost)(int from, int to); /* NULL: no datagram is */
    bool parted;                    /* even nodes hear no odd ones, and may call them silent */
    bool joined;                    /* they hear them again, and may still call any so */
    int waiting;                    /* so many nodes, the first ones, wait */
    double now;
    uint64_t draws;
    int sent[MANY], bytes, largest; /* since they were last set to 0; bytes: of all */
} net;

static int node_at(const void *address)
{
    return net.node_at[ntohs(((const struct sockaddr_in *)address)->sin_port)];
}

/* In the place of the C library's: a network that counts and loses datagrams. */
ssize_t sendto(int fd, const void *bytes, size_t n, int flags, const struct sockaddr *to,
               socklen_t size)
{
    struct sockaddr_in own;
    socklen_t own_size = sizeof own;
    int from;

    if (net.node_of[fd] == 0 && getsockname(fd, (struct sockaddr *)&own, &own_size) == 0)
        net.node_of[fd] = 1 + node_at(&own);
    from = net.node_of[fd] - 1;
    net.sent[from]++;
    net.bytes += (int)n;
    net.largest = (int)n > net.largest ? (int)n : net.largest;
    if (net.lost != NULL && net.lost(from, node_at(to)))
        return (ssize_t)n;
    return syscall(SYS_sendto, fd, bytes, n, flags, to, size);
}

static void open_net(int n)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < MANY + 64)
        skip();
    memset(&net, 0, sizeof net);
    net.n = n;
    net.now = 100;
    for (int i = 0; i < n; i++) {
        struct dpt_node_addresses *a = &net.addresses[i];

        a->n = 1;
        a->at[0].address = (struct in6_addr){.s6_addr = {[10] = 255, [11] = 255, 127, 0, 0, 1}};
        a->at[0].prefix = 96 + 8;
        net.wires[i] = dpt_heartbeat_open(a);
        assert_non_null(net.wires[i]);
        net.node_at[ntohs(a->at[0].port)] = i;
    }
    for (int i = 0; i < n; i++)
        assert_true(dpt_heartbeat_connect(net.wires[i], net.addresses, n, i, "0123456789abcdef"));
}

static void close_net(void)
{
    for (int i = 0; i < net.n; i++)
        dpt_heartbeat_close(net.wires[i]);
}

/* A late node's rank has been late for longer, the higher its number. */
static void poll(int i, double now)
{
    const bool waiting = i < net.waiting && net.conditions[i] == WELL;
    struct dpt_heartbeat_report mine = {.n = net.conditions[i] == LATE};

    mine.late[0] = (struct dpt_rank_status){.rank = 8 * i, .still = i, .note = "computing"};
    if (net.conditions[i] != DEAD && dpt_heartbeat_poll(net.wires[i], waiting, now))
        dpt_heartbeat_answer(net.wires[i], &mine);
}

/* Each node has its turn at another moment. One that runs is never silent to any other. */
static void run(double seconds)
{
    const struct dpt_heartbeat_report *got;

    for (int t = 0; t < seconds * SECOND; t++, net.now += 1. / SECOND) {
        for (int k = 0; k < net.n; k++)
            poll((k * 389 + 5) % net.n, net.now + (double)k / net.n / SECOND);
        for (int i = 0; i < net.n; i++)
            for (int k = 0; k < net.n && net.conditions[i] != DEAD; k++)
                if (net.conditions[k] != DEAD && !net.joined && !(net.parted && (i + k) % 2 != 0) &&
                    dpt_heartbeat_state(net.wires[i], k, net.now, &got) == DPT_REMOTE_SILENT)
                    fail_msg("at %g s node %d took node %d of %d for silent", net.now, i, k, net.n);
    }
}

/* As at the start of a job (nodes.c): they ask, answer and read. Then they train. */
static void open_job(int n)
{
    open_net(n);
    run(3. / SECOND);
    net.now += 100;
}

/* Whether node i knows what is wrong with node k. */
static bool knows(int i, int k)
{
    const struct dpt_heartbeat_report *got;
    const enum dpt_remote_state state = dpt_heartbeat_state(net.wires[i], k, net.now, &got);

    if (net.conditions[k] != LATE)
        return state == DPT_REMOTE_SILENT;
    return state == DPT_REMOTE_HEARD && got->n == 1 && got->late[0].rank == 8 * k &&
           got->late[0].still == k && strcmp(got->late[0].note, "computing") == 0;
}

/* How many of the nodes that run know it. */
static int told_of(int node)
{
    int n = 0;

    for (int i = 0; i < net.n; i++)
        n += i != node && net.conditions[i] != DEAD && knows(i, node);
    return n;
}

static void all_are_told_of(int node)
{
    int running = 0;

    for (int i = 0; i < net.n; i++)
        running += i != node && net.conditions[i] != DEAD;
    if (told_of(node) != running)
        fail_msg("%d of %d nodes know about node %d", told_of(node), running, node);
}

static bool a_fifth(int from, int to)
{
    (void)from, (void)to;
    return dpt_random64(7, DPT_RANDOM_SYNTHETIC, 3, net.draws++) % 5 == 0;
}

/* One node is lost in the first second, and a rank is late; then several at once, neighbours, too.
 * One datagram of five is lost all the time. */
static void every_failure_is_told_to_all(void **state)
{
    (void)state;
    open_job(MANY);
    net.lost = a_fifth;
    net.waiting = MANY;
    net.conditions[333] = DEAD;
    net.conditions[700] = LATE;
    run(4);
    all_are_told_of(333);
    all_are_told_of(700);
    for (int i = 0; i < 8; i++)
        net.conditions[i < 4 ? 500 + i : 100 * i] = i % 2 == 0 || i < 4 ? DEAD : LATE;
    run(4.5);
    for (int i = 0; i < 8; i++)
        all_are_told_of(i < 4 ? 500 + i : 100 * i);
    all_are_told_of(333);
    close_net();
}

/* The traffic of a node is the same in small and large jobs. */
static void traffic_does_not_grow(void **state)
{
    static const int sizes[] = {PEERS + 2, 200};
    int most[2] = {0}, bytes[2];

    (void)state;
    for (int s = 0; s < 2; s++) {
        open_job(sizes[s]);
        net.waiting = net.n;
        run(3);
        memset(net.sent, 0, sizeof net.sent);
        net.bytes = 0;
        run(4);
        for (int i = 0; i < net.n; i++)
            most[s] = net.sent[i] > most[s] ? net.sent[i] : most[s];
        bytes[s] = net.bytes / net.n;
        close_net();
    }
    assert_in_range(most[1], 1, most[0] + PEERS);
    assert_in_range(bytes[1], 1, bytes[0] + bytes[0] / 8);
    assert_in_range(most[0], 1, 2 * PEERS * 4 * 5 / 4);
}

/* More than an answer holds: of the late ones those that are so for longest are told to all. */
static void too_many_failures(void **state)
{
    (void)state;
    open_job(200);
    net.waiting = net.n;
    for (int i = 20; i < 120; i++)
        net.conditions[i] = i < 70 ? DEAD : LATE;
    memset(net.sent, 0, sizeof net.sent);
    run(6);
    all_are_told_of(20);
    all_are_told_of(119);
    assert_true(net.largest <= DPT_HEARTBEAT_BYTES);
    assert_in_range(net.sent[0], 1, 2 * PEERS * 6 * SECOND);
    close_net();
}

/* Nodes that do not wait pass on what one that does has to know, and no longer than it waits. */
static void one_node_waits(void **state)
{
    (void)state;
    open_job(64);
    net.waiting = 1;
    net.conditions[32] = LATE;
    net.conditions[21] = DEAD;
    run(6);
    assert_true(knows(0, 32) && knows(0, 21));
    net.waiting = 0;
    run(45);
    assert_int_equal(told_of(32) + told_of(21), 0);
    memset(net.sent, 0, sizeof net.sent);
    run(5);
    for (int i = 0; i < net.n; i++)
        assert_int_equal(net.sent[i], 0);
    close_net();
}

static bool across(int from, int to)
{
    return (from + to) % 2 != 0;
}

/* Each side names nodes of the other side, and none when they are joined again. */
static void two_halves(void **state)
{
    (void)state;
    for (int n = 2; n <= 128; n *= 4) {
        open_job(n);
        net.waiting = n;
        net.parted = true;
        run(2);
        net.lost = across;
        run(8);
        assert_int_equal(told_of(0), n / 2);
        assert_int_equal(told_of(1), n / 2);
        net.lost = NULL;
        net.joined = true;
        run(9);
        net.joined = net.parted = false;
        run(4);
        close_net();
    }
}

static bool everywhere(int from, int to)
{
    (void)from, (void)to;
    return true;
}

static bool downwards(int from, int to)
{
    return from > to;
}

static bool from_one(int from, int to)
{
    (void)to;
    return from == 3;
}

static bool on_some_links(int from, int to)
{
    return (from + to) % 5 == 0;
}

/* A firewall: where a node was never answered, its silence means nothing. Later single links may
 * fail. */
static void nobody_is_blamed_for_the_network(void **state)
{
    bool (*const blocks[])(int, int) = {everywhere, downwards, from_one, on_some_links};
    static const int sizes[] = {2, 3, 17, 18, 40};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
            open_net(sizes[i]);
            net.lost = blocks[k];
            run(22);
            net.waiting = net.n;
            run(10);
            close_net();
            if (blocks[k] != on_some_links || sizes[i] < 17)
                continue;
            open_job(sizes[i]);
            net.waiting = net.n;
            net.lost = blocks[k];
            run(10);
            close_net();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failure_is_told_to_all),
        cmocka_unit_test(traffic_does_not_grow),
        cmocka_unit_test(too_many_failures),
        cmocka_unit_test(one_node_waits),
        cmocka_unit_test(two_halves),
        cmocka_unit_test(nobody_is_blamed_for_the_network),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
