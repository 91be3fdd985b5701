/* Job files as trees: places, refusals with their line and column, the list of errors, and
 * garbage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/conf/yaml.h"

/* Parses and asks for the validation result; the text of the error, "" for none, in a buffer of its
 * own. */
static const char *complaint(const char *text, size_t length)
{
    static struct dpt_error err;
    struct dpt_conf conf;

    err = (struct dpt_error){0};
    if (dpt_conf_parse(&conf, "job.yaml", text, length, &err) == DPT_OK) {
        assert_non_null(conf.root);
        dpt_conf_validation_result(&conf, &err);
    }
    assert_true(err.status == DPT_OK || err.status == DPT_BAD_JOB);
    dpt_conf_release(&conf);
    return err.text;
}

static void assert_starts(const char *got, const char *want)
{
    if (strncmp(got, want, strlen(want)) != 0)
        fail_msg("got '%s', expected '%s…'", got, want);
}

static void nodes_know_their_places(void **state)
{
    static const char text[] = "name: x\n"
                               "batch:\n"
                               "  global: 256\n"
                               "  micro: \"32\"\n"
                               "list: [1, {a: ~}]\n"
                               "gap:\n";
    struct dpt_error err;
    struct dpt_conf conf;
    struct dpt_conf_node *batch, *micro, *list, *inner;

    (void)state;
    assert_int_equal(dpt_conf_parse(&conf, "job.yaml", text, strlen(text), &err), DPT_OK);
    assert_int_equal(conf.root->n, 4);
    batch = dpt_conf_get(conf.root, "batch");
    micro = dpt_conf_get(batch, "micro");
    assert_int_equal(batch->line, 3);
    assert_int_equal(batch->column, 3);
    assert_int_equal(batch->key_line, 2);
    assert_int_equal(micro->line, 4);
    assert_int_equal(micro->column, 10);
    assert_int_equal(micro->key_column, 3);
    assert_string_equal(micro->text, "32");
    assert_true(micro->quoted);
    assert_false(dpt_conf_get(batch, "global")->quoted);
    list = dpt_conf_get(conf.root, "list");
    assert_int_equal(list->kind, DPT_NODE_LIST);
    inner = dpt_conf_get(list->items[1], "a");
    assert_true(dpt_conf_is_null(inner));
    assert_string_equal(inner->text, "null");
    assert_true(dpt_conf_is_null(dpt_conf_get(conf.root, "gap")));
    assert_null(dpt_conf_get(conf.root, "absent"));
    dpt_conf_release(&conf);
}

static void refusals_name_the_place(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "job.yaml: there is nothing in it"},
        {"# only words\n", "job.yaml: there is nothing in it"},
        {"---\n", "job.yaml: there is nothing in it"},
        {"- 1\n- 2\n", "job.yaml:1:1: a job is a map of keys and values, this is a list"},
        {"hello\n", "job.yaml:1:1: a job is a map of keys and values, this is a text"},
        {"a: 1\n---\nb: 2\n", "job.yaml:2:1: a second document begins here"},
        {"a: 1\nb:\n  c: 2\n  c: 3\n", "job.yaml:4:3: b.c: duplicate key, first given at 3:3"},
        {"l: [{a: 1, a: 2}]\n", "job.yaml:1:12: l[0].a: duplicate key, first given at 1:6"},
        {"a: &x 1\n", "job.yaml:1:4: a: anchors (&x) are not used here"},
        {"a: 1\nb: *x\n", "job.yaml:2:4: b: aliases (*x) are not used here"},
        {"a: !!int 1\n", "job.yaml:1:4: a: tags (tag:yaml.org,2002:int) are not used here"},
        {"a: ! 1\n", "job.yaml:1:4: a: tags (!) are not used here"},
        {"a:\n  <<: {b: 1}\n", "job.yaml:2:3: a: merge keys (<<) are not used here"},
        {"[a]: 1\n", "job.yaml:1:1: a key must be a word, not a list"},
        {"a: {? {b: 1} : 2}\n", "job.yaml:1:7: a: a key must be a word, not a map"},
        {"a: {? : 2}\n", "job.yaml:1:7: a: a key is empty"},
        {"a: {\"\": 2}\n", "job.yaml:1:5: a: a key is empty"},
        {"*x : 2\n", "job.yaml:1:1: aliases (*x) are not used here"},
        {"a: \"x\\0y\"\n", "job.yaml:1:4: a: a NUL character in a text"},
        {"a: 1\nb: [1, 2\n", "job.yaml:3:1: not YAML: "},
        {"a: b: c\n", "job.yaml:1:5: not YAML: mapping values are not allowed in this context"},
        {"a:\n\tb: 1\n", "job.yaml:2:1: indent with spaces; this line has a tab"},
        {"a: \"open\n", "job.yaml:2:1: not YAML: "},
        {"a: 1\nb: \x80\n", "job.yaml:2:4: byte 0x80 is not UTF-8"},
        {"a: ä\xff\n", "job.yaml:1:5: byte 0xff is not UTF-8"},
        {"a: \xc0\xaf\n", "job.yaml:1:4: byte 0xc0 is not UTF-8"},
        {"a: \xed\xa0\x80\n", "job.yaml:1:4: byte 0xed is not UTF-8"},
        {"a: \xef\xbb\xbf\n", "job.yaml:1:4: character U+FEFF is not allowed"},
        {"a: \x01\n", "job.yaml: not a text file (byte 0x01 at offset 3)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_starts(complaint(cases[i].text, strlen(cases[i].text)), cases[i].want);
    assert_starts(complaint("a: \0 1", 6), "job.yaml: not a text file (byte 0x00 at offset 3)");
    assert_starts(complaint("\xff\xfe"
                            "a\0:\0",
                            6),
                  "job.yaml: UTF-16 text");
    assert_starts(complaint("a\0:\0 \0001\0", 8), "job.yaml: not a text file");
    /* The marks of UTF-8 and of a document are fine. */
    assert_string_equal(complaint("\xef\xbb\xbf%YAML 1.1\n---\na: 1\n...\n", 26), "");
}

static void depth_is_bounded(void **state)
{
    char text[1000];

    (void)state;
    for (int lists = 29; lists < 40; lists++) {
        size_t n = (size_t)sprintf(text, "a: ");

        memset(text + n, '[', (size_t)lists);
        memset(text + n + lists, ']', (size_t)lists);
        n += 2 * (size_t)lists;
        if (lists + 1 <= DPT_YAML_DEPTH)
            assert_string_equal(complaint(text, n), "");
        else
            assert_string_equal(complaint(text, n), "job.yaml:1:35: more than 32 maps and lists "
                                                    "inside one another");
    }
}

static void size_is_bounded(void **state)
{
    const size_t n = 1 << 20;
    char *text = malloc(n);

    (void)state;
    memset(text, '[', n);
    assert_string_equal(complaint(text, n),
                        "job.yaml: 1048576 bytes; a job file has at most 65536: "
                        "is this the right file?");
    assert_starts(complaint(text, DPT_YAML_BYTES + 1), "job.yaml: 65537 bytes; ");
    assert_starts(complaint(text, DPT_YAML_BYTES), "job.yaml:1:33: more than 32 maps");
    memset(text, '{', n);
    assert_starts(complaint(text, DPT_YAML_BYTES), "job.yaml:1:33: more than 32 maps");
    for (size_t i = 0; i < DPT_YAML_BYTES; i += 2)
        /* No end, since a length is given. NOLINTNEXTLINE(bugprone-not-null-terminated-result) */
        memcpy(text + i, "- ", 2);
    assert_starts(complaint(text, DPT_YAML_BYTES), "job.yaml:1:65: more than 32 maps");
    memset(text, ' ', n);
    /* Likewise. NOLINTNEXTLINE(bugprone-not-null-terminated-result) */
    memcpy(text, "a: 1", 4);
    assert_string_equal(complaint(text, DPT_YAML_BYTES), "");
    free(text);
}

static void all_mistakes_are_listed_in_order(void **state)
{
    struct dpt_error err;
    struct dpt_conf conf;
    const char *text = "a: &x 1\nb: !t 2\na: 3\n";

    (void)state;
    assert_int_equal(dpt_conf_parse(&conf, "job.yaml", text, strlen(text), &err), DPT_OK);
    dpt_conf_mistake(&conf, conf.root->items[1], "b", "too %s", "late");
    dpt_conf_mistake(&conf, &(struct dpt_conf_node){.origin = "--set q=1"}, "q", "unknown");
    dpt_conf_mistake(&conf, conf.root->items[0], "a", "a\n\x1b[31mcolour\xff");
    dpt_conf_mistake(&conf, NULL, NULL, "as a whole");
    assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
    assert_string_equal(
        err.text, "job.yaml: as a whole\n"
                  "job.yaml:1:4: a: anchors (&x) are not used here; write the value out\n"
                  "job.yaml:1:4: a: a\\n\\x1b[31mcolour\\xff\n"
                  "job.yaml:2:4: b: tags (!t) are not used here; the option has its own type\n"
                  "job.yaml:2:4: b: too late\n"
                  "job.yaml:3:1: a: duplicate key, first given at 1:1\n"
                  "--set q=1: q: unknown");
    dpt_conf_release(&conf);
}

static void many_mistakes_fit_the_error(void **state)
{
    struct dpt_error err;
    struct dpt_conf conf;
    char big[2000];
    size_t lines = 1;

    (void)state;
    assert_int_equal(dpt_conf_parse(&conf, "job.yaml", "a: 1", 4, &err), DPT_OK);
    for (int i = 0; i < 100; i++)
        dpt_conf_mistake(&conf, conf.root, "key", "number %d", i);
    assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
    for (const char *p = err.text; *p != '\0'; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 41);
    assert_non_null(strstr(err.text, "number 39\nand 60 more errors"));
    dpt_conf_release(&conf);

    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(dpt_conf_parse(&conf, big, "a: 1", 4, &err), DPT_OK);
    for (int i = 0; i < 30; i++)
        dpt_conf_mistake(&conf, conf.root, big, "%s", big);
    assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, " more errors"));
    assert_true(strlen(err.text) < sizeof err.text);
    dpt_conf_release(&conf);
}

static void shown_texts_are_short_and_printable(void **state)
{
    struct dpt_conf conf = {0};
    char big[500];

    (void)state;
    assert_string_equal(dpt_conf_show(&conf, "plain ä"), "plain ä");
    assert_string_equal(dpt_conf_show(&conf, "\t\x7f\xe2\x80\xae"), "\\t\\x7f\\u202e");
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(strlen(dpt_conf_show(&conf, big)), 60 + strlen("…"));
    dpt_conf_release(&conf);
}

static void files_that_cannot_be_read_say_why(void **state)
{
    char folder[] = P_tmpdir "/dptrain-test-XXXXXX", path[64], want[200];
    struct dpt_error err;
    struct dpt_conf conf;
    FILE *file;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    assert_int_equal(dpt_conf_load(&conf, path, &err), DPT_BAD_JOB);
    snprintf(want, sizeof want, "%s: no such file", path);
    assert_string_equal(err.text, want);
    dpt_conf_release(&conf);
    assert_int_equal(dpt_conf_load(&conf, folder, &err), DPT_BAD_JOB);
    assert_starts(err.text, folder);
    dpt_conf_release(&conf);
    assert_int_equal(dpt_conf_load(&conf, "", &err), DPT_BAD_JOB);
    dpt_conf_release(&conf);

    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "a: [1, 2]\n");
    fclose(file);
    assert_int_equal(dpt_conf_load(&conf, path, &err), DPT_OK);
    assert_int_equal(dpt_conf_get(conf.root, "a")->n, 2);
    assert_string_equal(conf.path, path);
    dpt_conf_release(&conf);
    assert_int_equal(truncate(path, 1 << 20), 0);
    assert_int_equal(dpt_conf_load(&conf, path, &err), DPT_BAD_JOB);
    snprintf(want, sizeof want, "%s: 1048576 bytes; a job file has at most 65536", path);
    assert_starts(err.text, want);
    dpt_conf_release(&conf);
    if (geteuid() != 0) {
        assert_int_equal(truncate(path, 0), 0);
        assert_int_equal(chmod(path, 0), 0);
        assert_int_equal(dpt_conf_load(&conf, path, &err), DPT_BAD_JOB);
        dpt_conf_release(&conf);
    }
    unlink(path);
    rmdir(folder);
}

/* splitmix64: a sequence of its own, so that a seed names a case. */
static uint64_t draw(uint64_t *seed)
{
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Never a crash, never another status, never an empty or a many-coloured message. */
static void garbage_is_refused_or_read(void **state)
{
    static const char *const pieces[] = {
        "a: ", "b",    "\n",    "  ",      "- ",           "[",    "]",    "{",        "}",
        ", ",  "? ",   ": ",    "&x ",     "*x",           "!!t ", "<<: ", "\"",       "'",
        "|\n", ">-\n", "#",     "---\n",   "...\n",        "\t",   "%",    "\xc3\xa4", "\r\n",
        "~",   "1e-3", "\\x00", "\\u2028", "\xe2\x80\xa8", "\x80", "@",    "`",
    };
    char text[400];

    (void)state;
    for (uint64_t number = 0; number < 4000; number++) {
        uint64_t seed = number;
        const size_t n = draw(&seed) % 300;
        size_t used = 0;
        const char *word;

        while (used < n) {
            if (number % 2 == 0) {
                text[used++] = (char)draw(&seed);
            } else {
                const char *piece = pieces[draw(&seed) % (sizeof pieces / sizeof pieces[0])];

                used += (size_t)sprintf(text + used, "%s", piece);
            }
        }
        word = complaint(text, used);
        for (const char *p = word; *p != '\0'; p++)
            if ((unsigned char)*p < 0x20 && *p != '\n')
                fail_msg("seed %llu: %s", (unsigned long long)number, word);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_know_their_places),
        cmocka_unit_test(refusals_name_the_place),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(size_is_bounded),
        cmocka_unit_test(all_mistakes_are_listed_in_order),
        cmocka_unit_test(many_mistakes_fit_the_error),
        cmocka_unit_test(shown_texts_are_short_and_printable),
        cmocka_unit_test(files_that_cannot_be_read_say_why),
        cmocka_unit_test(garbage_is_refused_or_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
