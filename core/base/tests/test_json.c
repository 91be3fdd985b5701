/* JSON as it is written: its bytes, that jansson reads the same back, bounded memory, and files
 * that take no more. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/base/json.h"

static void put_all(struct dpt_json *j)
{
    dpt_json_object(j, NULL);
    dpt_json_text(j, "a \"b\"", "x\ny");
    dpt_json_text(j, "none", NULL);
    dpt_json_array(j, "list");
    dpt_json_int(j, NULL, INT64_MIN);
    dpt_json_real(j, NULL, 0.1);
    dpt_json_real(j, NULL, NAN);
    dpt_json_real(j, NULL, -INFINITY);
    dpt_json_object(j, NULL);
    dpt_json_end(j);
    dpt_json_end(j);
    dpt_json_break(j);
    dpt_json_bool(j, "yes", true);
    dpt_json_array(j, "empty");
    dpt_json_end(j);
    dpt_json_break(j);
    dpt_json_end(j);
}

static void layouts_are_one_line_or_one_member_a_line(void **state)
{
    struct dpt_json line = {0}, lines = {.indent = true};

    (void)state;
    put_all(&line);
    assert_string_equal(line.text.text, "{\"a \\\"b\\\"\": \"x\\ny\", \"none\": null, \"list\": "
                                        "[-9223372036854775808, 0.1, null, null, {}],\n"
                                        "\"yes\": true, \"empty\": []\n}");
    put_all(&lines);
    assert_string_equal(
        lines.text.text,
        "{\n  \"a \\\"b\\\"\": \"x\\ny\",\n  \"none\": null,\n  \"list\": [\n    "
        "-9223372036854775808,\n"
        "    0.1,\n    null,\n    null,\n    {}\n  ],\n  \"yes\": true,\n  \"empty\": []\n}");
    dpt_str_release(&line.text);
    dpt_str_release(&lines.text);
}

/* Any text that has a meaning in UTF-8, and any double, comes back. */
static void what_is_written_is_read_back(void **state)
{
    uint64_t random = 1;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct dpt_json j = {0};
        json_error_t wrong;
        json_t *root;
        char text[40];
        double number;
        size_t n;

        random = random * 6364136223846793005u + 1442695040888963407u;
        n = random >> 32 & 31;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(1 + (random >> i) % 127);
        text[n] = '\0';
        memcpy(&number, &random, sizeof number);
        dpt_json_array(&j, NULL);
        dpt_json_text(&j, NULL, text);
        dpt_json_real(&j, NULL, number);
        dpt_json_int(&j, NULL, (int64_t)random);
        dpt_json_end(&j);
        root = json_loadb(j.text.text, j.text.length, JSON_DECODE_INT_AS_REAL, &wrong);
        if (root == NULL)
            fail_msg("%s: %s", j.text.text, wrong.text);
        assert_string_equal(json_string_value(json_array_get(root, 0)), text);
        if (isfinite(number))
            assert_true(json_real_value(json_array_get(root, 1)) == number);
        else
            assert_true(json_is_null(json_array_get(root, 1)));
        assert_true(json_real_value(json_array_get(root, 2)) == (double)(int64_t)random);
        json_decref(root);
        dpt_str_release(&j.text);
    }
}

/* Megabytes go through a few kilobytes, and all of them arrive. */
static void a_document_is_never_held(void **state)
{
    enum { ENTRIES = 200000 };
    struct dpt_json j = {.file = tmpfile()};
    struct dpt_error err = {0};
    json_error_t wrong;
    json_t *root;

    (void)state;
    dpt_json_array(&j, NULL);
    for (int64_t i = 0; i < ENTRIES; i++) {
        dpt_json_int(&j, NULL, i);
        assert_true(j.text.capacity <= 1 << 16);
    }
    dpt_json_end(&j);
    assert_int_equal(dpt_json_finish(&j, "a list", &err), DPT_OK);
    assert_int_equal(j.error, 0);
    assert_true(ftell(j.file) > 1 << 20);
    rewind(j.file);
    root = json_loadf(j.file, 0, &wrong);
    assert_int_equal(json_array_size(root), ENTRIES);
    assert_int_equal(json_integer_value(json_array_get(root, ENTRIES - 1)), ENTRIES - 1);
    json_decref(root);
    fclose(j.file);
}

static void a_full_disk_is_kept_in_mind(void **state)
{
    struct dpt_json j = {.file = fopen("/dev/full", "w")};
    struct dpt_error err = {0};

    (void)state;
    if (j.file == NULL)
        skip();
    setvbuf(j.file, NULL, _IONBF, 0);
    dpt_json_array(&j, NULL);
    for (int i = 0; i < 10000; i++)
        dpt_json_int(&j, NULL, i);
    dpt_json_end(&j);
    assert_int_equal(dpt_json_finish(&j, "a list", &err), DPT_OK);
    assert_int_equal(j.error, ENOSPC);
    fclose(j.file);
}

/* What did not fit into memory is a failure, also where a later flush could be written. */
static void missing_memory_is_told(void **state)
{
    struct dpt_json j = {.file = tmpfile()};
    struct dpt_error err = {0};

    (void)state;
    dpt_json_array(&j, NULL);
    j.text.failed = true;
    dpt_json_end(&j);
    assert_int_equal(dpt_json_finish(&j, "a list", &err), DPT_RANK);
    assert_non_null(strstr(err.text, "memory for a list"));
    fclose(j.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_one_line_or_one_member_a_line),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(a_document_is_never_held),
        cmocka_unit_test(a_full_disk_is_kept_in_mind),
        cmocka_unit_test(missing_memory_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
