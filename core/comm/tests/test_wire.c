#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/rng.h"
#include "core/comm/wire.h"

enum { NODES = 3 };

/* Nodes that are all this machine. */
struct net {
    struct dpt_wire *wires[NODES];
    struct dpt_wire_card cards[NODES];
};

static void open_net(struct net *net)
{
    for (int i = 0; i < NODES; i++) {
        net->wires[i] = dpt_wire_open(&net->cards[i]);
        assert_non_null(net->wires[i]);
        assert_in_range(net->cards[i].n, 1, DPT_WIRE_ADDRESSES);
        assert_true(net->cards[i].port != 0);
    }
    for (int i = 0; i < NODES; i++)
        assert_true(dpt_wire_meet(net->wires[i], net->cards, NODES, i, "0123456789abcdef"));
}

static void close_net(struct net *net)
{
    for (int i = 0; i < NODES; i++)
        dpt_wire_close(net->wires[i]);
}

/* What node i tells of itself. */
static struct dpt_wire_report report_of(int i)
{
    struct dpt_wire_report report = {.n = i};

    for (int k = 0; k < i; k++) {
        report.late[k] = (struct dpt_seen){.rank = 10 * i + k, .step = 1000 + k, .still = 3 + k};
        memset(report.late[k].word, 'a' + k, sizeof report.late[k].word - 1);
    }
    return report;
}

/* Everybody has a turn; those in `dead` have none. */
static void turn(struct net *net, bool waiting, double now, unsigned dead)
{
    for (int i = 0; i < NODES; i++) {
        const struct dpt_wire_report mine = report_of(i);

        if ((dead >> i & 1) != 0)
            continue;
        /* An answer may come a turn later. */
        if (dpt_wire_turn(net->wires[i], waiting, now) && dpt_wire_turn(net->wires[i], false, now))
            dpt_wire_answer(net->wires[i], &mine);
    }
}

static void all_hear_of_all(void **state)
{
    struct net net;
    const struct dpt_wire_report *got;

    (void)state;
    open_net(&net);
    assert_int_equal(dpt_wire_look(net.wires[0], 1, 100, &got), DPT_FAR_UNKNOWN);
    for (int k = 0; k < 8; k++)
        turn(&net, true, 100 + 0.25 * k, 0);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < NODES; k++) {
            const struct dpt_wire_report want = report_of(k);

            if (k == i)
                continue;
            assert_int_equal(dpt_wire_look(net.wires[i], k, 102, &got), DPT_FAR_HEARD);
            assert_int_equal(got->n, want.n);
            assert_memory_equal(got->late, want.late, (size_t)want.n * sizeof want.late[0]);
        }
    close_net(&net);
}

/* A node that was never heard is unknown; one that was is silent, after a while of asking. */
static void silence_is_noticed(void **state)
{
    struct net net;
    const struct dpt_wire_report *got;
    double now = 50;

    (void)state;
    open_net(&net);
    for (int k = 0; k < 8; k++, now += 0.25)
        turn(&net, false, now, 1u << 2);
    now += 100; /* of training */
    assert_int_equal(dpt_wire_look(net.wires[0], 1, now, &got), DPT_FAR_UNKNOWN);
    for (int k = 0; k < 7; k++, now += 0.25)
        turn(&net, true, now, 1u << 1 | 1u << 2);
    assert_int_equal(dpt_wire_look(net.wires[0], 1, now, &got), DPT_FAR_UNKNOWN);
    for (int k = 0; k < 8; k++, now += 0.25)
        turn(&net, true, now, 1u << 1 | 1u << 2);
    assert_int_equal(dpt_wire_look(net.wires[0], 1, now, &got), DPT_FAR_SILENT);
    assert_int_equal(dpt_wire_look(net.wires[0], 2, now, &got), DPT_FAR_UNKNOWN);
    for (int k = 0; k < 6; k++, now += 0.25)
        turn(&net, true, now, 1u << 2);
    assert_int_equal(dpt_wire_look(net.wires[0], 1, now, &got), DPT_FAR_HEARD);
    close_net(&net);
}

/* From strangers: any bytes, of any length; also right ones but for the secret. */
static void strangers_are_not_heard(void **state)
{
    struct net net;
    const struct dpt_wire_report *got;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct dpt_wire_card card;
    struct dpt_wire *stranger = dpt_wire_open(&card);
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    char bytes[2048];

    (void)state;
    open_net(&net);
    to.sin_port = net.cards[0].port;
    assert_true(fd >= 0 && stranger != NULL);
    assert_true(dpt_wire_meet(stranger, net.cards, NODES, 1, "0123456789abcdeX"));
    for (uint64_t i = 0; i < 3000; i++) {
        const size_t n = dpt_random64(1, DPT_STREAM_SYNTHETIC, 1, i) % sizeof bytes;

        for (size_t k = 0; k < n; k += 8) {
            const uint64_t word = dpt_random64(2, DPT_STREAM_SYNTHETIC, i, k);

            memcpy(bytes + k, &word, n - k < 8 ? n - k : 8);
        }
        sendto(fd, bytes, n, 0, (const struct sockaddr *)&to, sizeof to);
        if (i % 30 == 0) {
            dpt_wire_turn(stranger, true, (double)i);
            assert_false(dpt_wire_turn(net.wires[0], false, 10));
        }
    }
    assert_int_equal(dpt_wire_look(net.wires[0], 1, 10, &got), DPT_FAR_UNKNOWN);
    close(fd);
    dpt_wire_close(stranger);
    close_net(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_hear_of_all),
        cmocka_unit_test(silence_is_noticed),
        cmocka_unit_test(strangers_are_not_heard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
