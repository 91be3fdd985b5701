/* JSON as a tree: what is right is read, what is wrong is told with its place, whatever comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/str.h"
#include "core/conf/json_read.h"

static const struct dpt_json_node *parse(struct dpt_arena *arena, const char *text)
{
    const struct dpt_json_node *root = NULL;
    struct dpt_error err = {0};

    if (dpt_json_parse(&root, arena, "text", text, strlen(text), &err) != DPT_OK)
        fail_msg("%s: %s", text, err.text);
    return root;
}

static void reads_values(void **state)
{
    struct dpt_arena arena = {0};
    const struct dpt_json_node *root =
        parse(&arena, " {\"a\": [1, -2.5e3, \"x\\n\\u00e4\\ud83d\\ude00\\\"\"], \"b\": true,\r\n"
                      "\t\"c\": null, \"big\": 9007199254740993, \"e\": {}, \"\": [ ] } ");
    const struct dpt_json_node *a = dpt_json_get(root, "a");

    (void)state;
    assert_int_equal(root->kind, DPT_JSON_MAP);
    assert_int_equal(root->n, 6);
    assert_int_equal(a->n, 3);
    assert_int_equal(dpt_json_int(a->first, 7), 1);
    assert_true(dpt_json_real(a->first->next, 0) == -2500);
    assert_int_equal(dpt_json_int(a->first->next, 7), 7);
    assert_string_equal(dpt_json_string(a->first->next->next, ""), "x\n\u00e4\U0001F600\"");
    assert_true(dpt_json_get(root, "b")->truth);
    assert_int_equal(dpt_json_get(root, "c")->kind, DPT_JSON_NULL);
    assert_true(dpt_json_int(dpt_json_get(root, "big"), 0) == 9007199254740993);
    assert_int_equal(dpt_json_get(root, "")->kind, DPT_JSON_LIST);
    assert_null(dpt_json_get(root, "nothing"));
    assert_null(dpt_json_get(NULL, "a"));
    assert_string_equal(dpt_json_string(NULL, "-"), "-");
    dpt_arena_release(&arena);
}

static void refuses_what_is_no_json(void **state)
{
    static const char *const wrong[] = {
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{a: 1}",
        "{1: 2}",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "+1",
        "0x10",
        "nul",
        "tru",
        "NaN",
        "Infinity",
        "'a'",
        "\"a",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\t\"",
        "\"\xff\"",
        "\"\xc3\"",
        "1 2",
        "[] ]",
        "{\"a\\u0000\": 1}",
        "\"\\",
        "[\"",
        "/**/ 1",
        "[1}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct dpt_json_node *root = NULL;
        struct dpt_arena arena = {0};
        struct dpt_error err = {0};

        if (dpt_json_parse(&root, &arena, "text", wrong[i], strlen(wrong[i]), &err) != DPT_BAD_DATA)
            fail_msg("accepted: %s", wrong[i]);
        assert_null(root);
        assert_non_null(strstr(err.text, "text: byte "));
        dpt_arena_release(&arena);
    }
}

static void bounds_the_depth(void **state)
{
    (void)state;
    for (int depth = DPT_JSON_DEPTH - 1; depth <= DPT_JSON_DEPTH + 1; depth++) {
        const struct dpt_json_node *root = NULL;
        struct dpt_arena arena = {0};
        struct dpt_error err = {0};
        char text[2 * DPT_JSON_DEPTH + 3] = "";

        for (int i = 0; i < depth; i++)
            text[i] = '[', text[depth + i] = ']';
        assert_int_equal(dpt_json_parse(&root, &arena, "text", text, strlen(text), &err),
                         depth <= DPT_JSON_DEPTH ? DPT_OK : DPT_BAD_DATA);
        dpt_arena_release(&arena);
    }
}

/* Any text that str.h writes is read back, and so is any double. */
static void reads_what_is_written(void **state)
{
    uint64_t random = 1;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct dpt_arena arena = {0};
        struct dpt_str out = {0};
        const struct dpt_json_node *root;
        char text[40];
        double number;
        size_t n;

        random = random * 6364136223846793005u + 1442695040888963407u;
        n = random >> 32 & 31;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(1 + (random >> i) % 127);
        text[n] = '\0';
        memcpy(&number, &random, sizeof number);
        dpt_str_printf(&out, "[");
        dpt_str_json(&out, text);
        dpt_str_printf(&out, ", ");
        dpt_str_number(&out, number);
        dpt_str_printf(&out, "]");
        root = parse(&arena, out.text);
        assert_string_equal(dpt_json_string(root->first, "?"), text);
        if (root->first->next->kind == DPT_JSON_NUMBER)
            assert_true(dpt_json_real(root->first->next, 0) == number);
        dpt_str_release(&out);
        dpt_arena_release(&arena);
    }
}

/* Any cut of a text, and any byte of it changed, is read or refused; the sanitizers look on. */
static void survives_damage(void **state)
{
    static const char whole[] =
        "{\"event\": \"train\", \"x\": [1.5e-3, {\"y\": \"a\\u00e4\\ud83d\\ude00\"}], \"z\": null}";
    const size_t n = sizeof whole - 1;

    (void)state;
    for (size_t i = 0; i < n * 256; i++) {
        const struct dpt_json_node *root = NULL;
        struct dpt_arena arena = {0};
        struct dpt_error err = {0};
        char *copy = malloc(n);
        const size_t length = i % 256 == 0 ? i / 256 : n;

        memcpy(copy, whole, n);
        copy[i / 256] = (char)(i % 256);
        dpt_json_parse(&root, &arena, "text", copy, length, &err);
        if (length < n)
            assert_null(root);
        dpt_arena_release(&arena);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values),     cmocka_unit_test(refuses_what_is_no_json),
        cmocka_unit_test(bounds_the_depth), cmocka_unit_test(reads_what_is_written),
        cmocka_unit_test(survives_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
