/* A tree that is written and read again is the same tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/conf/yaml.h"

static uint64_t draw(uint64_t *seed)
{
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* A text of what YAML finds special, of words it takes for something else, and of plain letters;
 * never empty. */
static void random_text(uint64_t *seed, char *text)
{
    static const char *const pieces[] = {
        "a",    "Z",   "0",      "9",        "-",      "?",      ":",          ",",  "[",
        "]",    "{",   "}",      "#",        "&",      "*",      "!",          "|",  ">",
        "'",    "\"",  "%",      "@",        "`",      " ",      "  ",         ": ", " #",
        "- ",   "\n",  "\r",     "\t",       "\x01",   "\x7f",   "\\",         "/",  ".",
        "...",  "---", "<<",     "=",        "true",   "null",   "~",          "no", "1e-3",
        "0x1f", "ä",   "\u2028", "\xc2\x85", "\u202e", "\ufeff", "\U0001F600", "中", "\xc2\xa0",
    };
    const size_t n = 1 + draw(seed) % 5;

    text[0] = '\0';
    for (size_t i = 0; i < n; i++)
        strcat(text, pieces[draw(seed) % (sizeof pieces / sizeof pieces[0])]);
    for (size_t i = 0; draw(seed) % 50 == 0 && i < 9; i++)
        memmove(text + strlen(text), text, strlen(text) < 200 ? strlen(text) + 1 : 0);
}

static struct dpt_conf_node *random_tree(struct dpt_conf *conf, uint64_t *seed, int depth)
{
    char text[2000] = "";
    const uint64_t what = draw(seed) % 8;
    const size_t n = draw(seed) % 5;
    struct dpt_conf_node *node;

    if (depth > 0 && (depth > 5 || what < 4)) {
        if (draw(seed) % 12 > 0)
            random_text(seed, text);
        node = dpt_conf_new(conf, DPT_NODE_SCALAR, text);
        node->quoted = draw(seed) % 2;
        return node;
    }
    node = dpt_conf_new(conf, depth == 0 || what < 6 ? DPT_NODE_MAP : DPT_NODE_LIST, NULL);
    for (size_t i = 0; i < n; i++) {
        struct dpt_conf_node *item = random_tree(conf, seed, depth + 1);

        random_text(seed, text);
        if (draw(seed) % 60 == 0) /* longer than YAML's simple keys */
            for (size_t k = 0; k < 1500; k++)
                strcpy(text + k, "k");
        assert_true(node->kind == DPT_NODE_MAP ? dpt_conf_put(conf, node, text, item)
                                               : dpt_conf_append(conf, node, item));
    }
    return node;
}

/* As the file says it: a text that plain YAML cannot say comes back in quotes, which is fine unless
 * it says nothing. */
static void assert_same(const struct dpt_conf_node *a, const struct dpt_conf_node *b)
{
    assert_int_equal(a->kind, b->kind);
    if (a->kind == DPT_NODE_SCALAR) {
        assert_int_equal(dpt_conf_is_null(a), dpt_conf_is_null(b));
        if (dpt_conf_is_null(a))
            return;
        assert_string_equal(a->text, b->text);
        assert_true(a->quoted <= b->quoted);
        return;
    }
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        if (a->kind == DPT_NODE_MAP)
            assert_string_equal(a->keys[i], b->keys[i]);
        assert_same(a->items[i], b->items[i]);
    }
}

static void trees_survive_writing(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < 3000; number++) {
        struct dpt_conf conf = {0}, again;
        struct dpt_str text = {0}, second = {0};
        struct dpt_error err = {0};
        uint64_t seed = number;
        struct dpt_conf_node *tree = random_tree(&conf, &seed, 0);

        dpt_conf_write(tree, &text);
        assert_false(text.failed);
        if (dpt_conf_parse(&again, "again", text.text, text.length, &err) != DPT_OK ||
            dpt_conf_validation_result(&again, &err) != DPT_OK)
            fail_msg("seed %llu: %s\n%s", (unsigned long long)number, err.text, text.text);
        assert_same(tree, again.root);
        dpt_conf_write(again.root, &second);
        assert_string_equal(text.text, second.text);
        dpt_str_release(&text);
        dpt_str_release(&second);
        dpt_conf_release(&again);
        dpt_conf_release(&conf);
    }
}

/* A job that a person would write comes back as a person would write it. */
static void jobs_stay_readable(void **state)
{
    static const char text[] = "name: mnist-cnn\n"
                               "id: \"007\"\n"
                               "data:\n"
                               "  train: data/mnist/train-*.h5\n"
                               "  normalize:\n"
                               "    mean: [0.1307]\n"
                               "    std: [-0.3081, .5, 1e-3]\n"
                               "  empty: {}\n"
                               "  none: []\n"
                               "model:\n"
                               "  layers:\n"
                               "    - conv:\n"
                               "        channels: 32\n"
                               "        padding: same\n"
                               "    - relu\n"
                               "    - dense: 10\n"
                               "    -\n"
                               "      - a: 1\n"
                               "train:\n"
                               "  clip_norm: null\n";
    struct dpt_str out = {0};
    struct dpt_error err;
    struct dpt_conf conf;

    (void)state;
    assert_int_equal(dpt_conf_parse(&conf, "job.yaml", text, strlen(text), &err), DPT_OK);
    dpt_conf_write(conf.root, &out);
    assert_string_equal(out.text, text);
    dpt_str_release(&out);
    dpt_conf_release(&conf);
}

static void long_lists_are_broken(void **state)
{
    struct dpt_conf conf = {0}, again;
    struct dpt_conf_node *map = dpt_conf_new(&conf, DPT_NODE_MAP, NULL);
    struct dpt_conf_node *list = dpt_conf_new(&conf, DPT_NODE_LIST, NULL);
    struct dpt_str out = {0};
    struct dpt_error err;
    size_t column = 0;

    (void)state;
    for (int i = 0; i < 200; i++) {
        char text[20];

        snprintf(text, sizeof text, "%d", i);
        assert_true(dpt_conf_append(&conf, list, dpt_conf_new(&conf, DPT_NODE_SCALAR, text)));
    }
    assert_true(dpt_conf_put(&conf, map, "list", list));
    dpt_conf_write(map, &out);
    for (const char *p = out.text; *p != '\0'; p++) {
        column = *p == '\n' ? 0 : column + 1;
        assert_true(column <= 100);
    }
    assert_int_equal(dpt_conf_parse(&again, "again", out.text, out.length, &err), DPT_OK);
    assert_same(map, again.root);
    dpt_str_release(&out);
    dpt_conf_release(&again);
    dpt_conf_release(&conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_survive_writing),
        cmocka_unit_test(jobs_stay_readable),
        cmocka_unit_test(long_lists_are_broken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
