#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/base/proto.h"

static void assert_bytes(const struct dpt_str *s, const char *want, size_t n)
{
    assert_false(s->failed);
    assert_int_equal(s->length, n);
    assert_memory_equal(s->text, want, n);
}

/* The examples of "Encoding" in the documentation of Protocol Buffers. */
static void documented_examples(void **state)
{
    static const int64_t numbers[] = {3, 270, 86942};
    struct dpt_str s = {0}, inner = {0};

    (void)state;
    dpt_proto_int(&s, 1, 150);
    assert_bytes(&s, "\x08\x96\x01", 3);
    dpt_str_clear(&s);
    dpt_proto_text(&s, 2, "testing");
    assert_bytes(&s, "\x12\x07testing", 9);
    dpt_str_clear(&s);
    dpt_proto_int(&inner, 1, 150);
    dpt_proto_message(&s, 3, &inner);
    assert_bytes(&s, "\x1a\x03\x08\x96\x01", 5);
    assert_int_equal(inner.length, 0);
    dpt_str_clear(&s);
    dpt_proto_int(&s, 1, -2);
    assert_bytes(&s, "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);
    dpt_str_clear(&s);
    dpt_proto_ints(&s, 6, numbers, 3);
    assert_bytes(&s, "\x32\x06\x03\x8e\x02\x9e\xa7\x05", 8);
    dpt_str_release(&s);
    dpt_str_release(&inner);
}

static void numbers_of_four_and_eight_bytes(void **state)
{
    const double two[] = {1.0, -INFINITY};
    struct dpt_str s = {0};

    (void)state;
    dpt_proto_float(&s, 2, 1.0F);
    assert_bytes(&s, "\x15\x00\x00\x80\x3f", 5);
    dpt_str_clear(&s);
    dpt_proto_double(&s, 16, -2.0); /* the tag needs two bytes from field 16 on */
    assert_bytes(&s, "\x81\x01\x00\x00\x00\x00\x00\x00\x00\xc0", 10);
    dpt_str_clear(&s);
    dpt_proto_doubles(&s, 6, two, 2);
    assert_bytes(&s, "\x32\x10\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\xf0\xff",
                 18);
    dpt_str_release(&s);
}

/* The head and the bytes by hand are the whole field; a message may be empty. */
static void heads_of_any_length(void **state)
{
    struct dpt_str whole = {0}, parts = {0}, empty = {0};
    char bytes[20000];

    (void)state;
    memset(bytes, 'x', sizeof bytes);
    for (size_t n = 0; n <= sizeof bytes; n = 2 * n + 1) {
        dpt_str_clear(&whole);
        dpt_str_clear(&parts);
        dpt_proto_bytes(&whole, 9, bytes, n);
        dpt_proto_head(&parts, 9, n);
        assert_int_equal(parts.length, n < 128 ? 2 : n < 16384 ? 3 : 4);
        dpt_str_add(&parts, bytes, n);
        assert_bytes(&parts, whole.text, whole.length);
    }
    dpt_str_clear(&whole);
    dpt_proto_message(&whole, 1, &empty);
    assert_bytes(&whole, "\x0a\x00", 2);
    dpt_str_release(&whole);
    dpt_str_release(&parts);
}

static void what_failed_inside_fails_outside(void **state)
{
    struct dpt_str s = {0}, inner = {0};

    (void)state;
    inner.failed = true;
    dpt_proto_message(&s, 1, &inner);
    assert_true(s.failed);
    assert_false(inner.failed);
    dpt_str_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_examples),
        cmocka_unit_test(numbers_of_four_and_eight_bytes),
        cmocka_unit_test(heads_of_any_length),
        cmocka_unit_test(what_failed_inside_fails_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
