#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/rng.h"
#include "core/comm/watch/heartbeat.h"

enum { NODES = 3 };

/* Nodes that are all this machine. */
struct net {
    struct dpt_heartbeat *wires[NODES];
    struct dpt_node_addresses all_addresses[NODES];
    struct dpt_node_addresses seen[2][2]; /* of two, by each */
};

static struct dpt_heartbeat *open_heartbeat(struct dpt_node_addresses *addresses)
{
    const struct dpt_address_filter all = {"", ""};
    struct dpt_heartbeat *heartbeat;

    dpt_node_addresses_find(addresses, &all);
    heartbeat = dpt_heartbeat_open(addresses);
    assert_non_null(heartbeat);
    assert_in_range(addresses->n, 1, DPT_NODE_ADDRESSES);
    for (int i = 0; i < addresses->n; i++)
        assert_true(addresses->at[i].port != 0);
    return heartbeat;
}

static void open_net(struct net *net)
{
    for (int i = 0; i < NODES; i++)
        net->wires[i] = open_heartbeat(&net->all_addresses[i]);
    for (int i = 0; i < NODES; i++)
        assert_true(
            dpt_heartbeat_connect(net->wires[i], net->all_addresses, NODES, i, "0123456789abcdef"));
}

static void close_net(struct net *net)
{
    for (int i = 0; i < NODES; i++)
        dpt_heartbeat_close(net->wires[i]);
}

/* What node i tells of itself. */
static struct dpt_heartbeat_report report_of(int i)
{
    struct dpt_heartbeat_report report = {.n = i};

    for (int k = 0; k < i; k++) {
        report.late[k] = (struct dpt_rank_status){.rank = 10 * i + k, .still = 3 + k};
        memset(report.late[k].note, 'a' + k, sizeof report.late[k].note - 1);
    }
    return report;
}

/* Everybody has a turn; those in `dead` have none. */
static void poll(struct net *net, bool waiting, double now, unsigned dead)
{
    for (int i = 0; i < NODES; i++) {
        const struct dpt_heartbeat_report mine = report_of(i);

        if ((dead >> i & 1) != 0)
            continue;
        /* An answer may come a turn later. */
        if (dpt_heartbeat_poll(net->wires[i], waiting, now) &&
            dpt_heartbeat_poll(net->wires[i], false, now))
            dpt_heartbeat_answer(net->wires[i], &mine);
    }
}

static void all_hear_of_all(void **state)
{
    struct net net;
    const struct dpt_heartbeat_report *got;

    (void)state;
    open_net(&net);
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 1, 100, &got), DPT_REMOTE_UNKNOWN);
    for (int k = 0; k < 8; k++)
        poll(&net, true, 100 + 0.25 * k, 0);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < NODES; k++) {
            const struct dpt_heartbeat_report want = report_of(k);

            if (k == i)
                continue;
            assert_int_equal(dpt_heartbeat_state(net.wires[i], k, 102, &got), DPT_REMOTE_HEARD);
            assert_int_equal(got->n, want.n);
            for (int r = 0; r < want.n; r++) {
                assert_int_equal(got->late[r].rank, want.late[r].rank);
                assert_true(got->late[r].still == want.late[r].still);
                assert_string_equal(got->late[r].note, want.late[r].note);
            }
        }
    close_net(&net);
}

/* A node that was never heard is unknown; one that was is silent, after a while of asking. */
static void silence_is_noticed(void **state)
{
    struct net net;
    const struct dpt_heartbeat_report *got;
    double now = 50;

    (void)state;
    open_net(&net);
    for (int k = 0; k < 8; k++, now += 0.25)
        poll(&net, false, now, 1u << 2);
    now += 100; /* of training */
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 1, now, &got), DPT_REMOTE_UNKNOWN);
    for (int k = 0; k < 7; k++, now += 0.25)
        poll(&net, true, now, 1u << 1 | 1u << 2);
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 1, now, &got), DPT_REMOTE_UNKNOWN);
    for (int k = 0; k < 8; k++, now += 0.25)
        poll(&net, true, now, 1u << 1 | 1u << 2);
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 1, now, &got), DPT_REMOTE_SILENT);
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 2, now, &got), DPT_REMOTE_UNKNOWN);
    for (int k = 0; k < 6; k++, now += 0.25)
        poll(&net, true, now, 1u << 2);
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 1, now, &got), DPT_REMOTE_HEARD);
    close_net(&net);
}

/* Somebody on the way, who gets what two nodes say to each other and sends what it likes. */
struct relay {
    int fd;
    struct dpt_node_addresses addresses; /* what it has the two believe to be the other's */
};

static socklen_t make_address(const struct dpt_node_addresses *addresses,
                              struct sockaddr_storage *out)
{
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    struct sockaddr_in *four = (struct sockaddr_in *)out;

    memset(out, 0, sizeof *out);
    if (!IN6_IS_ADDR_V4MAPPED(&addresses->at[0].address)) {
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                     .sin6_port = addresses->at[0].port,
                                     .sin6_addr = addresses->at[0].address};
        return sizeof *six;
    }
    four->sin_family = AF_INET;
    four->sin_port = addresses->at[0].port;
    memcpy(&four->sin_addr, &addresses->at[0].address.s6_addr[12], sizeof four->sin_addr);
    return sizeof *four;
}

/* At the address of that card. */
static void open_relay(struct relay *relay, const struct dpt_node_addresses *within)
{
    struct sockaddr_storage address;
    socklen_t size;

    relay->addresses = (struct dpt_node_addresses){.n = 1};
    relay->addresses.at[0] = within->at[0];
    relay->addresses.at[0].port = 0;
    size = make_address(&relay->addresses, &address);
    relay->fd = socket(address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(relay->fd, (const struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(relay->fd, (struct sockaddr *)&address, &size), 0);
    relay->addresses.at[0].port = address.ss_family == AF_INET
                                      ? ((const struct sockaddr_in *)&address)->sin_port
                                      : ((const struct sockaddr_in6 *)&address)->sin6_port;
}

static void pass_on(const struct relay *relay, const struct dpt_node_addresses *to,
                    const void *bytes, size_t n)
{
    struct sockaddr_storage address;
    const socklen_t size = make_address(to, &address);

    (void)sendto(relay->fd, bytes, n, 0, (const struct sockaddr *)&address, size);
}

/* Two nodes with a relay between them. */
static void open_pair(struct net *net, struct relay *relay)
{
    memset(net, 0, sizeof *net);
    for (int i = 0; i < 2; i++)
        net->wires[i] = open_heartbeat(&net->all_addresses[i]);
    open_relay(relay, &net->all_addresses[0]);
    for (int i = 0; i < 2; i++) {
        net->seen[i][i] = net->all_addresses[i];
        net->seen[i][1 - i] = relay->addresses;
        assert_true(dpt_heartbeat_connect(net->wires[i], net->seen[i], 2, i, "0123456789abcdef"));
    }
}

/* What a datagram is worth is told apart by whether a question is due to be answered, and an answer
 * heard. The times are such that an old answer is not. */
static void recorded_ones_are_not_heard_again(void **state)
{
    struct net net;
    struct relay relay;
    const struct dpt_heartbeat_report *got, mine = {0};
    struct dpt_heartbeat_report late = report_of(1);
    unsigned char question[2048], answer[2048];
    ssize_t asked, answered;

    (void)state;
    open_pair(&net, &relay);
    /* Node 1 asks: its question, changed in any byte or cut, and without the secret in it. */
    assert_false(dpt_heartbeat_poll(net.wires[1], true, 100));
    asked = recv(relay.fd, question, sizeof question, 0);
    assert_true(asked > 0);
    assert_null(memmem(question, (size_t)asked, "0123456789abcdef", 16));
    for (ssize_t i = 0; i < asked; i++) {
        question[i] ^= 0x10;
        pass_on(&relay, &net.all_addresses[0], question, (size_t)asked);
        question[i] ^= 0x10;
        pass_on(&relay, &net.all_addresses[0], question, (size_t)i);
        assert_false(dpt_heartbeat_poll(net.wires[0], false, 100));
    }
    pass_on(&relay, &net.all_addresses[0], question, (size_t)asked);
    assert_true(dpt_heartbeat_poll(net.wires[0], false, 100));
    strcpy(late.late[0].note, "reading \033[2J\302\233x.h5");
    dpt_heartbeat_answer(net.wires[0], &late);
    while ((answered = recv(relay.fd, answer, sizeof answer, 0)) <= asked) /* its own question */
        assert_true(answered > 0);
    pass_on(&relay, &net.all_addresses[0], question, (size_t)asked);
    assert_false(dpt_heartbeat_poll(net.wires[0], false, 100));
    pass_on(&relay, &net.all_addresses[1], answer, (size_t)answered);
    dpt_heartbeat_poll(net.wires[1], false, 100.5);
    assert_int_equal(dpt_heartbeat_state(net.wires[1], 0, 101, &got), DPT_REMOTE_HEARD);
    assert_string_equal(got->late[0].note, "reading \\x1b[2J\\u009bx.h5");
    /* Node 0 repeats one answer: it counts as silent. */
    for (double now = 101; now < 105; now += 0.25) {
        pass_on(&relay, &net.all_addresses[1], answer, (size_t)answered);
        dpt_heartbeat_poll(net.wires[1], true, now);
    }
    assert_int_equal(dpt_heartbeat_state(net.wires[1], 0, 105, &got), DPT_REMOTE_SILENT);
    /* An answer that was never taken up, to a question of long ago. */
    recv(relay.fd, question, sizeof question, 0);
    dpt_heartbeat_poll(net.wires[1], true, 106);
    while ((answered = recv(relay.fd, answer, sizeof answer, 0)) > 0)
        pass_on(&relay, &net.all_addresses[0], answer, (size_t)answered);
    assert_true(dpt_heartbeat_poll(net.wires[0], false, 106));
    dpt_heartbeat_answer(net.wires[0], &mine);
    while ((answered = recv(relay.fd, answer, sizeof answer, 0)) > 0 && answered <= asked)
        ;
    assert_true(answered > asked);
    for (double now = 107; now < 110; now += 1)
        dpt_heartbeat_poll(net.wires[1], true, now);
    pass_on(&relay, &net.all_addresses[1], answer, (size_t)answered);
    dpt_heartbeat_poll(net.wires[1], true, 110);
    assert_int_equal(dpt_heartbeat_state(net.wires[1], 0, 110, &got), DPT_REMOTE_SILENT);
    close(relay.fd);
    dpt_heartbeat_close(net.wires[0]);
    dpt_heartbeat_close(net.wires[1]);
}

static struct in6_addr address_of(const char *text)
{
    struct in6_addr address;
    char six[64];

    snprintf(six, sizeof six, strchr(text, ':') == NULL ? "::ffff:%s" : "%s", text);
    assert_int_equal(inet_pton(AF_INET6, six, &address), 1);
    return address;
}

/* What MPI is told to use and not to use holds here; and of several networks the one in common. */
static void addresses_are_those_of_mpi(void **state)
{
    static const struct {
        const char *include, *exclude, *interface, *address;
        bool passes;
    } cases[] = {
        {"", "", "eth0", "10.0.0.7", true},
        {"", "127.0.0.1/8,sppp", "eth0", "10.0.0.7", true},
        {"", "127.0.0.1/8,docker0", "docker0", "172.17.0.1", false},
        {"", "172.16.0.0/12", "docker0", "172.17.0.1", false},
        {"", "172.16.0.0/12", "eth0", "172.32.0.1", true},
        {"eth0,ib0", "", "eth0", "10.0.0.7", true},
        {"eth0,ib0", "", "ib0", "10.0.0.7", true},
        {"eth0", "eth0", "eth1", "10.0.0.7", false},
        {"eth", "", "eth0", "10.0.0.7", false},
        {"10.0.0.0/8", "", "eth1", "10.9.8.7", true},
        {"10.0.0.0/8", "", "eth0", "192.168.0.1", false},
        {"fd00::/8", "", "eth0", "fd12::1", true},
        {"fd00::/8", "", "eth0", "10.0.0.7", false},
        {"10.0.0.0/", "", "eth0", "10.0.0.7", false},
        {"10.0.0.0/99", "", "eth0", "10.0.0.7", false},
    };
    static const char *const nodes[3][3] = {{"172.17.0.1", "10.0.0.1", "192.0.2.9"},
                                            {"172.17.0.1", "10.0.0.2", "198.51.100.9"},
                                            {"172.17.0.1", "203.0.113.9", "198.51.100.7"}};
    struct dpt_node_addresses all_addresses[3];
    struct dpt_address_filter told;

    (void)state;
    setenv("OMPI_MCA_btl_tcp_if_include", "ib0", 1);
    unsetenv("OMPI_MCA_btl_tcp_if_exclude");
    dpt_address_filter_read(&told);
    assert_string_equal(told.include, "ib0");
    assert_string_equal(told.exclude, "");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct in6_addr address = address_of(cases[i].address);
        struct dpt_address_filter filter;

        snprintf(filter.include, sizeof filter.include, "%s", cases[i].include);
        snprintf(filter.exclude, sizeof filter.exclude, "%s", cases[i].exclude);
        if (dpt_address_passes(&filter, cases[i].interface, &address) != cases[i].passes)
            fail_msg("case %zu", i);
    }
    memset(all_addresses, 0, sizeof all_addresses);
    for (int i = 0; i < 3; i++)
        for (all_addresses[i].n = 0; all_addresses[i].n < 3; all_addresses[i].n++) {
            all_addresses[i].at[all_addresses[i].n].address =
                address_of(nodes[i][all_addresses[i].n]);
            all_addresses[i].at[all_addresses[i].n].prefix = 96 + 24;
        }
    assert_int_equal(dpt_node_addresses_choose(all_addresses, 3, 0), 2);
    assert_int_equal(dpt_node_addresses_choose(all_addresses, 3, 1), 2);
    assert_int_equal(dpt_node_addresses_choose(all_addresses, 3, 2),
                     7); /* behind a router: all of them */
}

/* From strangers: any bytes, of any length; also right ones but for the secret. */
static void strangers_are_not_heard(void **state)
{
    struct net net;
    const struct dpt_heartbeat_report *got;
    struct dpt_node_addresses addresses;
    struct dpt_heartbeat *stranger = open_heartbeat(&addresses);
    struct relay relay;
    char bytes[2048];

    (void)state;
    open_net(&net);
    open_relay(&relay, &net.all_addresses[0]);
    assert_true(dpt_heartbeat_connect(stranger, net.all_addresses, NODES, 1, "0123456789abcdeX"));
    for (uint64_t i = 0; i < 3000; i++) {
        const size_t n = dpt_random64(1, DPT_RANDOM_SYNTHETIC, 1, i) % sizeof bytes;

        for (size_t k = 0; k < n; k += 8) {
            const uint64_t note = dpt_random64(2, DPT_RANDOM_SYNTHETIC, i, k);

            memcpy(bytes + k, &note, n - k < 8 ? n - k : 8);
        }
        pass_on(&relay, &net.all_addresses[0], bytes, n);
        if (i % 30 == 0) {
            dpt_heartbeat_poll(stranger, true, (double)i);
            assert_false(dpt_heartbeat_poll(net.wires[0], false, 10));
        }
    }
    assert_int_equal(dpt_heartbeat_state(net.wires[0], 1, 10, &got), DPT_REMOTE_UNKNOWN);
    close(relay.fd);
    dpt_heartbeat_close(stranger);
    close_net(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_hear_of_all),
        cmocka_unit_test(silence_is_noticed),
        cmocka_unit_test(strangers_are_not_heard),
        cmocka_unit_test(recorded_ones_are_not_heard_again),
        cmocka_unit_test(addresses_are_those_of_mpi),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
