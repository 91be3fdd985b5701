#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/rng.h"

static bool all_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

static void buffers_are_aligned_and_zero(void **state)
{
    (void)state;
    for (size_t n = 0; n < 300; n++) {
        char *p = dpt_alloc(n);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % DPT_ALIGN, 0);
        assert_true(all_zero(p, n));
        memset(p, 0xAA, n);
        dpt_free(p);
    }
    dpt_free(NULL);
    assert_null(dpt_alloc_array(SIZE_MAX / 2, 4));
    assert_null(dpt_alloc(SIZE_MAX));
    assert_int_equal(dpt_round_up(1, 4), 16);
    assert_int_equal(dpt_round_up(16, 4), 16);
    assert_int_equal(dpt_round_up(17, 4), 32);
    assert_int_equal(dpt_round_up(0, 8), 0);
}

/* Pieces of all sizes lie apart and keep what is written into them. */
static void arena_pieces_do_not_overlap(void **state)
{
    enum { PIECES = 500 };
    struct dpt_region arena = {0};
    char *piece[PIECES];
    size_t size[PIECES];

    (void)state;
    for (int i = 0; i < PIECES; i++) {
        const uint64_t word = dpt_random64(1, DPT_RANDOM_SYNTHETIC, 0, (uint64_t)i);

        size[i] = word % 50 == 0 ? 40000 : word % 200;
        piece[i] = dpt_region_alloc(&arena, size[i]);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        assert_true(all_zero(piece[i], size[i]));
        memset(piece[i], i % 251 + 1, size[i]);
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t k = 0; k < size[i]; k++)
            assert_int_equal((unsigned char)piece[i][k], i % 251 + 1);
    assert_null(dpt_region_alloc(&arena, SIZE_MAX));
    dpt_region_release(&arena);
    dpt_region_release(&arena);
    assert_null(arena.head);
}

/* More addresses than there is memory; zero until written, and again where it was given back. */
static void reserved_pages_come_and_go(void **state)
{
    const size_t bytes = (size_t)1 << 36, from = 5000, to = 3 << 20;
    unsigned char *p = dpt_reserve(bytes);

    (void)state;
    assert_non_null(p);
    assert_true(p[0] == 0 && p[bytes - 1] == 0);
    memset(p, 7, (size_t)4 << 20);
    dpt_decommit(p + from, p + to);
    assert_true(p[from - 1] == 7 && p[to] == 7 && p[from] == 7 && p[to - 1] == 0 && p[8192] == 0);
    dpt_decommit(p + 10, p + 20);
    assert_true(p[15] == 7);
    dpt_unreserve(p, bytes);
    dpt_unreserve(NULL, bytes);
}

/* What is in an array stays when it grows, and also where there is no memory to grow. */
static void arrays_grow(void **state)
{
    size_t room = 0, n = 0;
    uint32_t *items = NULL;

    (void)state;
    for (size_t want = 1; want < 100000; want += 1 + want / 7) {
        uint32_t *more = dpt_grow(items, &room, want, sizeof *items);

        assert_non_null(more);
        assert_true(room >= want);
        items = more;
        for (size_t i = 0; i < n; i++)
            assert_int_equal(items[i], (uint32_t)(i * i));
        for (; n < want; n++)
            items[n] = (uint32_t)(n * n);
        assert_ptr_equal(dpt_grow(items, &room, room, sizeof *items), items);
    }
    n = room;
    assert_null(dpt_grow(items, &room, SIZE_MAX / 2, sizeof *items));
    assert_int_equal(room, n);
    free(items);
}

static void arena_copies_text(void **state)
{
    struct dpt_region arena = {0};
    char text[] = "some text";
    const char *copy = dpt_region_strdup(&arena, text);
    const char *part = dpt_region_strndup(&arena, text, 4);

    (void)state;
    memset(text, 'x', sizeof text - 1);
    assert_string_equal(copy, "some text");
    assert_string_equal(part, "some");
    assert_string_equal(dpt_region_printf(&arena, "%05d|%s", 42, part), "00042|some");
    assert_int_equal(strlen(dpt_region_printf(&arena, "%030000d", 1)), 30000);
    assert_false(arena.failed);
    assert_null(dpt_region_printf(&arena, "%ls", L"\x1f600")); /* not in the C locale */
    assert_true(arena.failed);
    dpt_region_release(&arena);
}

static void errors_say_what_and_which_code(void **state)
{
    static const int codes[] = {0, 1, 2, 65, 70, 71, 74, 75, 78};
    static char longest[2 * DPT_ERROR_TEXT];
    struct dpt_error err;

    (void)state;
    for (int s = 0; s < DPT_STATUS_COUNT; s++) {
        assert_int_equal(dpt_exit_code((enum dpt_status)s), codes[s]);
        assert_true(strlen(dpt_status_text((enum dpt_status)s)) > 0);
    }
    assert_int_equal(dpt_fail(&err, DPT_BAD_JOB, "%s:%d", "job.yaml", 3), DPT_BAD_JOB);
    assert_int_equal(err.status, DPT_BAD_JOB);
    assert_string_equal(err.text, "job.yaml:3");
    errno = ENOENT;
    assert_int_equal(dpt_fail_errno(&err, DPT_IO, "%s", "f"), DPT_IO);
    assert_string_equal(err.text, "f: No such file or directory");
    errno = ENOMEM;
    assert_int_equal(dpt_fail_errno(&err, DPT_IO, "%s", "f"), DPT_RANK);
    memset(longest, 'x', sizeof longest - 1);
    assert_int_equal(dpt_fail(&err, DPT_IO, "%s", longest), DPT_IO);
    assert_int_equal(strlen(err.text), DPT_ERROR_TEXT - 1);
    assert_int_equal(dpt_fail_memory(&err, "images", 3e6), DPT_RANK);
    assert_string_equal(err.text, "not enough memory for images (3.0 MB)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_aligned_and_zero),
        cmocka_unit_test(arena_pieces_do_not_overlap),
        cmocka_unit_test(reserved_pages_come_and_go),
        cmocka_unit_test(arrays_grow),
        cmocka_unit_test(arena_copies_text),
        cmocka_unit_test(errors_say_what_and_which_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
