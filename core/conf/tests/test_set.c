/* --set: what it reaches, what it makes on the way, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/conf/option.h"

static const char job[] = "name: x\n"
                          "optimizer: adam\n"
                          "batch: {global: 256}\n"
                          "layers: [relu, {dense: 10}]\n"
                          "nothing: null\n";

static void settings_change_the_tree(void **state)
{
    static const struct {
        const char *set, *want; /* the tree in one flow line, made by written() */
    } cases[] = {
        {"name=y", "name: y"},
        {"name=\"y z\"", "name: \"y z\""},
        {"name='a: b'", "name: \"a: b\""},
        {"name=a b=c", "name: a b=c"},
        {"name=  *.h5 ", "name: \"*.h5\""},
        {"name=a: b", "name: \"a: b\""},
        {"name=", "name: null"},
        {"name=~", "name: null"},
        {"name=[1, {a: b}]", "name:\n  - 1\n  - a: b"},
        {"batch.micro=32", "batch:\n  global: 256\n  micro: 32"},
        {"batch.global=1", "batch:\n  global: 1"},
        {"batch={micro: 3}", "batch:\n  micro: 3"},
        {"optimizer.lr=0.1", "optimizer:\n  type: adam\n  lr: 0.1"},
        {"optimizer=sgd", "optimizer: sgd"},
        {"nothing.a.b=1", "nothing:\n  a:\n    b: 1"},
        {"new.a.b=1", "new:\n  a:\n    b: 1"},
        {"layers[0]=tanh", "layers:\n  - tanh\n  - dense: 10"},
        {"layers[0].relu.name=a", "layers:\n  - relu:\n      name: a\n  - dense: 10"},
        /* Another name, though it is as long, is no entry's. */
        {"layers[0].tanh.name=a",
         "layers:\n  - type: relu\n    tanh:\n      name: a\n  - dense: 10"},
        {"layers[1].dense=20", "layers:\n  - relu\n  - dense: 20"},
        {"layers[1].dense.bias=false",
         "layers:\n  - relu\n  - dense:\n      type: 10\n      bias: false"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_str out = {0};
        struct dpt_error err = {0};
        struct dpt_conf conf;

        assert_int_equal(dpt_conf_parse(&conf, "job.yaml", job, strlen(job), &err), DPT_OK);
        if (dpt_conf_set(&conf, cases[i].set, &err) != DPT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_OK);
        dpt_conf_write(conf.root, &out);
        if (strstr(out.text, cases[i].want) == NULL)
            fail_msg("--set %s gave\n%s", cases[i].set, out.text);
        dpt_str_release(&out);
        dpt_conf_release(&conf);
    }
}

static void bad_settings_are_refused(void **state)
{
    static const struct {
        const char *set;
        enum dpt_status status;
        const char *want;
    } cases[] = {
        {"batch.micro", DPT_USAGE, "--set batch.micro: --set needs KEY=VALUE"},
        {"", DPT_USAGE, "--set : --set needs KEY=VALUE"},
        {"=3", DPT_USAGE, "--set =3: a name is missing"},
        {".a=3", DPT_USAGE, "--set .a=3: a name is missing"},
        {"a.=3", DPT_USAGE, "--set a.=3: a name is missing"},
        {"a..b=3", DPT_USAGE, "--set a..b=3: a name is missing"},
        {"layers[=3", DPT_USAGE, "--set layers[=3: an entry of a list is named like layers[2]"},
        {"layers[-1]=3", DPT_USAGE, "--set layers[-1]=3: an entry of a list"},
        {"layers[0]x=3", DPT_USAGE, "--set layers[0]x=3: a dot is missing after layers[0]"},
        {"layers[2]=3", DPT_BAD_JOB, "--set layers[2]=3: layers has 2 entries, counted from 0"},
        {"layers[99999999999]=3", DPT_USAGE, "--set layers[99999999999]=3: an entry of a list"},
        {"layers.a=3", DPT_BAD_JOB, "--set layers.a=3: layers is a list; name one of its entries"},
        {"batch[0]=3", DPT_BAD_JOB, "--set batch[0]=3: batch is not a list in the job file"},
        {"name=[1", DPT_USAGE, "--set name=[1: not YAML: "},
        {"name=\"x", DPT_USAGE, "--set name=\"x: not YAML: "},
        {"name=[1] 2", DPT_USAGE, "--set name=[1] 2: not YAML: "},
        {"name=\xff", DPT_USAGE, "--set name=\\xff: byte 0xff is not UTF-8"},
        {"\xff=1", DPT_USAGE, "--set \\xff=1: the name is not UTF-8 text"},
        {"name=[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]", DPT_USAGE, "--set name=[[[["},
        {"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1", DPT_USAGE,
         "--set a.a.a."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_error err = {0};
        struct dpt_conf conf;

        assert_int_equal(dpt_conf_parse(&conf, "job.yaml", job, strlen(job), &err), DPT_OK);
        assert_int_equal(dpt_conf_set(&conf, cases[i].set, &err), cases[i].status);
        if (strncmp(err.text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("got '%s', expected '%s…'", err.text, cases[i].want);
        dpt_conf_release(&conf);
    }
}

/* Errors inside a value are reported with the others, by the setting they came from, after those of
 * the file. */
static void mistakes_name_the_setting(void **state)
{
    struct batch {
        int64_t global, micro;
    };
    static const struct dpt_option rows[] = {
        {.name = "global",
         .type = DPT_OPT_INT,
         .offset = offsetof(struct batch, global),
         .fallback = "8",
         .min = 1,
         .max = 100},
        {.name = "micro",
         .type = DPT_OPT_INT,
         .offset = offsetof(struct batch, micro),
         .fallback = "2",
         .min = 1,
         .max = 100},
        {0},
    };
    static const struct dpt_option table[] = {
        {.name = "batch", .type = DPT_OPT_SECTION, .fallback = "{}", .rows = rows},
        {0},
    };
    struct dpt_error err = {0};
    struct dpt_conf conf;
    struct batch batch = {0};
    const char *text = "batch:\n  global: 1000\n";

    (void)state;
    assert_int_equal(dpt_conf_parse(&conf, "job.yaml", text, strlen(text), &err), DPT_OK);
    assert_int_equal(dpt_conf_set(&conf, "batch.micro=many", &err), DPT_OK);
    assert_int_equal(dpt_conf_set(&conf, "bacth={a: 1, a: &q 2}", &err), DPT_OK);
    assert_true(dpt_options_read(&conf, conf.root, "", table, &batch));
    assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
    assert_string_equal(err.text,
                        "job.yaml:2:11: batch.global: 1000 is not in 1 … 100\n"
                        "--set bacth={a: 1, a: &q 2}: bacth.a: anchors (&q) are not used here; "
                        "write the value out\n"
                        "--set bacth={a: 1, a: &q 2}: bacth.a: duplicate key\n"
                        "--set bacth={a: 1, a: &q 2}: bacth: unknown key, did you mean 'batch'?\n"
                        "--set batch.micro=many: batch.micro: expected a whole number, got 'many'");
    dpt_conf_release(&conf);
}

struct length {
    int64_t epochs, steps;
};

static const struct dpt_option length_table[] = {
    {.name = "epochs",
     .type = DPT_OPT_INT,
     .offset = offsetof(struct length, epochs),
     .fallback = "null",
     .word = "null"},
    {.name = "steps",
     .type = DPT_OPT_INT,
     .offset = offsetof(struct length, steps),
     .fallback = "null",
     .word = "null",
     .rival = "epochs"},
    {0},
};

/* If two keys say the same in two ways, the one that was set counts; both in one place are an
 * error that names them. */
static void what_is_set_replaces_its_rival(void **state)
{
    static const char both[] = "steps: give either epochs (line 1:10) or steps, not both";
    static const struct {
        const char *file, *sets[3], *want; /* the tree, or the error */
    } cases[] = {
        {"{epochs: 2}", {0}, "epochs: 2\nsteps: null\n"},
        {"{epochs: 2}", {"steps=9"}, "epochs: null\nsteps: 9\n"},
        {"{steps: 2}", {"epochs=9"}, "epochs: 9\nsteps: null\n"},
        {"{epochs: 2, steps: 3}", {"steps=9"}, "epochs: null\nsteps: 9\n"},
        {"{epochs: 2}", {"steps=9", "steps=5"}, "epochs: null\nsteps: 5\n"},
        {"{epochs: 2}",
         {"steps=9", "epochs=4"},
         "--set steps=9: steps: give either epochs (--set epochs=4) or steps, not both"},
        {"{}",
         {"epochs=4", "steps=5"},
         "--set steps=5: steps: give either epochs (--set epochs=4) or steps, not both"},
        {"{epochs: 2}", {"steps=9", "epochs=4", "steps=null"}, "epochs: 4\nsteps: null\n"},
        {"{epochs: 2}", {"steps=null"}, "epochs: 2\nsteps: null\n"},
        {"{epochs: 2}", {"epochs=null", "steps=3"}, "epochs: null\nsteps: 3\n"},
        {"{epochs: 2, steps: ~}", {0}, "epochs: 2\nsteps: null\n"},
        {"{epochs: 2,\n   steps: 3}", {0}, "job.yaml:2:11: "},
        {"{epochs: 2, steps: 3}", {0}, both},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct length length = {0};
        struct dpt_str out = {0};
        struct dpt_error err = {0};
        struct dpt_conf conf;

        assert_int_equal(
            dpt_conf_parse(&conf, "job.yaml", cases[i].file, strlen(cases[i].file), &err), DPT_OK);
        for (size_t k = 0; k < 3 && cases[i].sets[k] != NULL; k++)
            assert_int_equal(dpt_conf_set(&conf, cases[i].sets[k], &err), DPT_OK);
        assert_true(dpt_options_read(&conf, conf.root, "", length_table, &length));
        if (dpt_conf_validation_result(&conf, &err) == DPT_OK) {
            dpt_conf_write(conf.root, &out);
            assert_int_equal((length.epochs != 0) + (length.steps != 0), 1);
        } else {
            dpt_str_printf(&out, "%s", err.text);
        }
        if (strstr(out.text, cases[i].want) == NULL)
            fail_msg("case %zu gave\n%s", i, out.text);
        dpt_str_release(&out);
        dpt_conf_release(&conf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_change_the_tree),
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test(mistakes_name_the_setting),
        cmocka_unit_test(what_is_set_replaces_its_rival),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
