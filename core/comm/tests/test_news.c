#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/rng.h"
#include "core/comm/watch/news.h"

enum { NODES = 300, ROOM = 1340 };

static struct dpt_heartbeat_report late(int ranks, double still)
{
    struct dpt_heartbeat_report report = {.n = ranks};

    for (int i = 0; i < ranks; i++) {
        report.late[i] = (struct dpt_rank_status){.rank = i, .still = still};
        memset(report.late[i].note, 'n', sizeof report.late[i].note - 1);
    }
    return report;
}

/* The later one counts, for as long as it lasts. */
static void entries_end(void **state)
{
    const struct dpt_heartbeat_report none = {0}, two = late(2, 7), *got;
    struct dpt_news news;

    (void)state;
    assert_true(dpt_news_open(&news, NODES, 5));
    assert_int_equal(dpt_news_state(&news, 3, 0, &got), DPT_REMOTE_UNKNOWN);
    dpt_news_put(&news, 3, 10, &two);
    assert_int_equal(dpt_news_state(&news, 3, 14.5, &got), DPT_REMOTE_HEARD);
    assert_int_equal(got->n, 2);
    dpt_news_put(&news, 3, 9, NULL);
    assert_int_equal(dpt_news_state(&news, 3, 14.5, &got), DPT_REMOTE_HEARD);
    dpt_news_put(&news, 3, 11, NULL);
    assert_int_equal(dpt_news_state(&news, 3, 14.5, &got), DPT_REMOTE_SILENT);
    dpt_news_put(&news, 3, 12, &none);
    assert_int_equal(dpt_news_state(&news, 3, 14.5, &got), DPT_REMOTE_HEARD);
    assert_int_equal(got->n, 0);
    assert_int_equal(dpt_news_state(&news, 3, 17.5, &got), DPT_REMOTE_UNKNOWN);
    dpt_news_close(&news);
}

/* Reads all; sets seen[node] to 1 + its number of ranks, or -1 where it is silent. */
static void read_all(const char *bytes, size_t n, int seen[NODES])
{
    struct dpt_news_item item;
    size_t used = 0;

    memset(seen, 0, NODES * sizeof *seen);
    while (dpt_news_read(bytes, n, &used, &item)) {
        assert_in_range(item.node, 0, NODES - 1);
        assert_int_equal(seen[item.node], 0);
        seen[item.node] = item.silent ? -1 : 1 + item.report.n;
        assert_true(item.report.n == 0 || strlen(item.report.late[0].note) == DPT_NOTE_TEXT - 1);
    }
    assert_int_equal(used, n);
}

/* What has no room is what matters least, and what nobody has to know is not told. */
static void what_matters_is_passed_on(void **state)
{
    const struct dpt_heartbeat_report none = {0}, mine = late(DPT_HEARTBEAT_RANKS, 1);
    struct dpt_news news;
    char bytes[ROOM];
    int seen[NODES];
    size_t used;

    (void)state;
    assert_true(dpt_news_open(&news, NODES, 5));
    dpt_news_put(&news, 200, 90, NULL); /* too old */
    dpt_news_put(&news, 201, 99, &none);
    dpt_news_put(&news, 202, 98, NULL);
    dpt_news_put(&news, 202, 99, &none); /* it answers again */
    dpt_news_put(&news, 7, 99, NULL);    /* this node itself: a mistake */
    for (int i = 100; i < 104; i++)
        dpt_news_put(&news, i, 99, NULL);
    used = dpt_news_write(&news, 7, &none, 100, bytes, sizeof bytes);
    read_all(bytes, used, seen);
    for (int i = 0; i < NODES; i++)
        assert_int_equal(seen[i], i >= 100 && i < 104 ? -1 : i == 7 || i == 202 ? 1 : 0);
    for (int i = 20; i < 80; i++) {
        struct dpt_heartbeat_report report = late(1, i);

        dpt_news_put(&news, i, 99, &report);
    }
    used = dpt_news_write(&news, 7, &mine, 100, bytes, sizeof bytes);
    assert_true(used <= sizeof bytes);
    read_all(bytes, used, seen);
    assert_int_equal(seen[7], 1 + DPT_HEARTBEAT_RANKS);
    for (int i = 20; i < 80; i++)
        assert_int_equal(seen[i], i >= 76 ? 2 : 0);
    assert_int_equal(seen[103], -1);
    dpt_news_close(&news);
}

/* Every part of an answer, and any bytes at all. */
static void malformed_bytes_do_no_harm(void **state)
{
    const struct dpt_heartbeat_report mine = late(3, 4);
    struct dpt_news_item item;
    struct dpt_news news;
    char bytes[ROOM];
    size_t size;

    (void)state;
    assert_true(dpt_news_open(&news, NODES, 5));
    size = dpt_news_write(&news, 7, &mine, 100, bytes, sizeof bytes);
    dpt_news_close(&news);
    for (size_t n = 0; n <= size; n++) {
        char *part = malloc(n + 1);
        size_t used = 0;

        assert_non_null(part);
        memcpy(part, bytes, n);
        assert_int_equal(dpt_news_read(part, n, &used, &item), n == size);
        free(part);
    }
    for (uint64_t i = 0; i < 3000; i++) {
        size_t used = 0;

        for (size_t k = 0; k < size; k++) {
            const uint64_t drawn = dpt_random64(1, DPT_RANDOM_SYNTHETIC, i, k);

            bytes[k] = (char)(drawn % 4 == 0 ? drawn >> 8 : 0);
        }
        while (dpt_news_read(bytes, size, &used, &item)) {
            assert_in_range(item.report.n, 0, DPT_HEARTBEAT_RANKS);
            assert_true(item.age >= 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_end),
        cmocka_unit_test(what_matters_is_passed_on),
        cmocka_unit_test(malformed_bytes_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
