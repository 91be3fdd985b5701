/* Tables of options: what is read, what is refused and in which words, and the resolved job. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/conf/option.h"

struct sgd {
    double lr, momentum;
};

struct adam {
    double lr;
    struct dpt_reals betas;
};

struct layers {
    size_t n;
    double width[8];
};

struct inner {
    int64_t micro;
    bool drop_last;
};

struct job {
    const char *name, *note;
    int64_t seed;
    double clip, valid;
    int shuffle, maybe;
    struct dpt_ints shape;
    struct dpt_reals mean;
    struct dpt_texts train;
    struct dpt_every every;
    struct inner batch;
    struct dpt_variant_value optimizer;
    struct layers layers;
};

static const struct dpt_option sgd_options[] = {
    {.name = "lr",
     .type = DPT_OPT_REAL,
     .offset = offsetof(struct sgd, lr),
     .fallback = "0.1",
     .min = 1e-300,
     .max = INFINITY,
     .help = "learning rate"},
    {.name = "momentum",
     .type = DPT_OPT_REAL,
     .offset = offsetof(struct sgd, momentum),
     .fallback = "0",
     .min = 0,
     .max = 1,
     .help = "momentum"},
    {0},
};
static const struct dpt_option adam_options[] = {
    {.name = "lr",
     .type = DPT_OPT_REAL,
     .offset = offsetof(struct adam, lr),
     .fallback = "1.0e-3",
     .help = "learning rate"},
    {.name = "betas",
     .type = DPT_OPT_REALS,
     .offset = offsetof(struct adam, betas),
     .fallback = "[0.9, 0.999]",
     .help = "decay of the two means"},
    {0},
};
static const struct dpt_variant sgd = {.name = "sgd",
                                       .summary = "stochastic gradient descent",
                                       .options = sgd_options,
                                       .size = sizeof(struct sgd)};
static const struct dpt_variant adam = {
    .name = "adam", .summary = "Adam", .options = adam_options, .size = sizeof(struct adam)};
static const struct dpt_variant *const optimizers[] = {&sgd, &adam, NULL};
static const char *const shuffles[] = {"full", "block", "none", NULL};

static const struct dpt_option dense_options[] = {
    {.name = "outputs", .type = DPT_OPT_REAL, .help = "outputs"},
    {0},
};
static const char *const layer_names[] = {"dense", "relu"};

/* As option.h says that a CUSTOM callback may look. */
static bool read_layers(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                        void *dest)
{
    struct layers *layers = dest;

    if (node->kind != DPT_NODE_LIST || node->n > 8) {
        dpt_conf_mistake(conf, node, path, "expected a list of at most 8 layers");
        return !conf->region.failed;
    }
    for (size_t i = 0; i < node->n; i++) {
        const char *at = dpt_option_path(conf, path, NULL, i), *name;
        struct dpt_conf_node *map;

        if (!dpt_option_entry(conf, node->items[i], at, "layer", layer_names, 2, &name, &map))
            continue;
        layers->n++;
        if (strcmp(name, "dense") == 0 &&
            (!dpt_option_bare(conf, map, "outputs") ||
             !dpt_options_read(conf, map, dpt_option_path(conf, at, name, 0), dense_options,
                               &layers->width[i])))
            return false;
    }
    return !conf->region.failed;
}

static const struct dpt_option batch_options[] = {
    {.name = "micro",
     .type = DPT_OPT_INT,
     .offset = offsetof(struct inner, micro),
     .fallback = "auto",
     .min = 1,
     .max = 1000000,
     .word = "auto",
     .word_value = -7,
     .help = "samples a forward/backward pass"},
    {.name = "drop_last",
     .type = DPT_OPT_BOOL,
     .offset = offsetof(struct inner, drop_last),
     .fallback = "false",
     .help = "leave out the last, short batch"},
    {0},
};

// clang-format off
static const struct dpt_option table[] = {
    {.name = "name", .type = DPT_OPT_TEXT, .offset = offsetof(struct job, name),
     .help = "its name"},
    {.name = "note", .type = DPT_OPT_TEXT, .offset = offsetof(struct job, note), .fallback = "null",
     .help = "any words"},
    {.name = "seed", .type = DPT_OPT_INT, .offset = offsetof(struct job, seed), .fallback = "1",
     .help = "random seed"},
    {.name = "clip", .type = DPT_OPT_REAL, .offset = offsetof(struct job, clip), .fallback = "null",
     .min = 1e-300, .max = INFINITY, .word = "null", .word_value = -1, .help = "largest norm"},
    {.name = "valid", .type = DPT_OPT_REAL, .offset = offsetof(struct job, valid),
     .fallback = "0.5", .min = 0, .max = 1, .help = "fraction held out"},
    {.name = "shuffle", .type = DPT_OPT_CHOICE, .offset = offsetof(struct job, shuffle),
     .fallback = "block", .choices = shuffles, .help = "order"},
    {.name = "maybe", .type = DPT_OPT_CHOICE, .offset = offsetof(struct job, maybe),
     .fallback = "null", .choices = shuffles, .help = "order, or not"},
    {.name = "shape", .type = DPT_OPT_INTS, .offset = offsetof(struct job, shape),
     .fallback = "[1, 28, 28]", .min = 1, .max = 4096, .help = "of a sample"},
    {.name = "mean", .type = DPT_OPT_REALS, .offset = offsetof(struct job, mean), .fallback = "0.5",
     .help = "means"},
    {.name = "train", .type = DPT_OPT_TEXTS, .offset = offsetof(struct job, train),
     .fallback = "synthetic", .help = "files"},
    {.name = "every", .type = DPT_OPT_EVERY, .offset = offsetof(struct job, every),
     .fallback = "1 epoch", .help = "how often"},
    {.name = "batch", .type = DPT_OPT_SECTION, .offset = offsetof(struct job, batch),
     .fallback = "{}", .rows = batch_options, .help = "sizes"},
    {.name = "optimizer", .type = DPT_OPT_VARIANT, .offset = offsetof(struct job, optimizer),
     .fallback = "adam", .variants = optimizers, .help = "who updates the weights"},
    {.name = "layers", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct job, layers),
     .fallback = "[]", .read = read_layers, .value_text = "a list of layers", .help = "the layers"},
    {0},
};
// clang-format on

static enum dpt_status read_job(struct dpt_conf *conf, struct job *job, const char *text,
                                struct dpt_error *err)
{
    *err = (struct dpt_error){0};
    *job = (struct job){0};
    if (dpt_conf_parse(conf, "job.yaml", text, strlen(text), err) != DPT_OK)
        return err->status;
    assert_true(dpt_options_read(conf, conf->root, "", table, job));
    return dpt_conf_validation_result(conf, err);
}

static void defaults_are_filled_in(void **state)
{
    struct dpt_conf conf;
    struct dpt_error err;
    struct job job;
    const struct adam *options;

    (void)state;
    assert_int_equal(read_job(&conf, &job, "name: x\nseed:\nbatch: ~", &err), DPT_OK);
    assert_string_equal(job.name, "x");
    assert_null(job.note);
    assert_int_equal(job.seed, 1);
    assert_true(job.clip == -1);
    assert_true(job.valid == 0.5);
    assert_int_equal(job.shuffle, 1);
    assert_int_equal(job.maybe, -1);
    assert_int_equal(job.shape.n, 3);
    assert_int_equal(job.shape.at[2], 28);
    assert_int_equal(job.mean.n, 1);
    assert_true(job.mean.at[0] == 0.5);
    assert_int_equal(job.train.n, 1);
    assert_string_equal(job.train.at[0], "synthetic");
    assert_true(job.every.unit == DPT_EPOCHS && job.every.n == 1);
    assert_int_equal(job.batch.micro, -7);
    assert_ptr_equal(job.optimizer.variant, &adam);
    options = job.optimizer.options;
    assert_true(options->lr == 1e-3 && options->betas.n == 2 && options->betas.at[1] == 0.999);
    assert_true(dpt_conf_get(conf.root, "shape")->filled);
    assert_true(dpt_conf_get(conf.root, "seed")->filled);
    assert_false(dpt_conf_get(conf.root, "name")->filled);
    assert_string_equal(dpt_conf_get(conf.root, "optimizer")->keys[0], "type");
    dpt_conf_release(&conf);
    assert_int_equal(read_job(&conf, &job, "name: x\noptimizer: {lr: 2}", &err), DPT_OK);
    options = job.optimizer.options;
    assert_ptr_equal(job.optimizer.variant, &adam);
    assert_true(options->lr == 2);
    dpt_conf_release(&conf);
}

static void values_are_read(void **state)
{
    static const char text[] = "layers: [relu, dense: 10, {dense: {outputs: 1e1}}, relu: ]\n"
                               "optimizer: {momentum: 0.9, type: sgd, lr: .5}\n"
                               "batch: {drop_last: true, micro: 48}\n"
                               "every: 2.5 h\n"
                               "train: [a.h5, 'b.h5', 3]\n"
                               "mean: [1e-3, 1.0E+3, -5, +.5, 5.]\n"
                               "shape: 7\n"
                               "maybe: \"none\"\n"
                               "valid: 1\n"
                               "clip: 2\n"
                               "seed: -9223372036854775808\n"
                               "note: \"null\"\n"
                               "name: 5\n";
    static const double mean[] = {1e-3, 1e3, -5, 0.5, 5};
    struct dpt_conf conf;
    struct dpt_error err;
    struct job job;
    const struct sgd *options;

    (void)state;
    if (read_job(&conf, &job, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_string_equal(job.name, "5");
    assert_string_equal(job.note, "null");
    assert_true(job.seed == INT64_MIN);
    assert_true(job.clip == 2);
    assert_true(job.valid == 1);
    assert_int_equal(job.maybe, 2);
    assert_int_equal(job.shape.n, 1);
    assert_int_equal(job.shape.at[0], 7);
    assert_int_equal(job.mean.n, 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(job.mean.at[i] == mean[i]);
    assert_int_equal(job.train.n, 3);
    assert_string_equal(job.train.at[1], "b.h5");
    assert_string_equal(job.train.at[2], "3");
    assert_true(job.every.unit == DPT_SECONDS && job.every.n == 9000);
    assert_int_equal(job.batch.micro, 48);
    assert_true(job.batch.drop_last);
    assert_ptr_equal(job.optimizer.variant, &sgd);
    options = job.optimizer.options;
    assert_true(options->lr == 0.5 && options->momentum == 0.9);
    assert_int_equal(job.layers.n, 4);
    assert_true(job.layers.width[1] == 10 && job.layers.width[2] == 10);
    /* Resolved: in the table's order. */
    assert_string_equal(conf.root->keys[0], "name");
    assert_string_equal(conf.root->keys[conf.root->n - 1], "layers");
    assert_string_equal(dpt_conf_get(conf.root, "optimizer")->keys[0], "type");
    dpt_conf_release(&conf);
}

/* YAML 1.2's core schema has three spellings of each truth; JSON cannot say a word without
 * quotes. The resolved job has one form. */
static void spellings_are_one_value(void **state)
{
    static const char *const texts[] = {
        "{name: x, batch: {drop_last: true, micro: auto}}",
        "{name: x, batch: {drop_last: True, micro: 'auto'}}",
        "{\"name\": \"x\", \"batch\": {\"drop_last\": TRUE, \"micro\": \"auto\"}}"};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct dpt_str out = {0};
        struct dpt_conf conf;
        struct dpt_error err;
        struct job job;

        if (read_job(&conf, &job, texts[i], &err) != DPT_OK)
            fail_msg("%s", err.text);
        assert_true(job.batch.drop_last);
        assert_int_equal(job.batch.micro, -7);
        dpt_conf_write(conf.root, &out);
        assert_non_null(strstr(out.text, "  micro: auto\n  drop_last: true\n"));
        dpt_str_release(&out);
        dpt_conf_release(&conf);
    }
}

static void mistakes_say_what_was_wanted(void **state)
{
    static const struct {
        const char *text, *want; /* the text stands on the first line, after `name: x` on none */
    } cases[] = {
        {"{}", "1:1: name: must be given: a text"},
        {"name:", "1:6: name: must be given: a text"},
        {"name: [x]", "1:7: name: expected a text, got a list"},
        {"{name: x, sede: 1}", "1:11: sede: unknown key, did you mean 'seed'?"},
        {"{name: x, batch: {mirco: 1}}", "1:19: batch.mirco: unknown key, did you mean 'micro'?"},
        {"{name: x, batch: {zzz: 1}}", "1:19: batch.zzz: unknown key; there are micro, drop_last"},
        {"{name: x, batch: 3}", "1:18: batch: expected a map of keys and values, got '3'"},
        {"{name: x, seed: many}", "1:17: seed: expected a whole number, got 'many'"},
        {"{name: x, seed: 1.5}", "1:17: seed: expected a whole number, got '1.5'"},
        {"{name: x, seed: 1e3}", "1:17: seed: expected a whole number, got '1e3'"},
        {"{name: x, seed: \"64\"}", "1:17: seed: expected a whole number, got '64' in quotes"},
        {"{name: x, seed: 0x10}", "1:17: seed: expected a whole number, got '0x10'"},
        {"{name: x, seed: 1_000}", "1:17: seed: expected a whole number, got '1_000'"},
        {"{name: x, seed: 9223372036854775808}", "1:17: seed: 9223372036854775808 is out of range"},
        {"{name: x, seed: {}}", "1:17: seed: expected a whole number, got a map"},
        {"{name: x, seed: auto}", "1:17: seed: expected a whole number, got 'auto'"},
        {"{name: x, batch: {micro: atuo}}",
         "1:26: batch.micro: expected a whole number or auto, got 'atuo'"},
        {"{name: x, batch: {micro: '8'}}",
         "1:26: batch.micro: expected a whole number or auto, got '8' in quotes"},
        {"{name: x, clip: 'null'}", "1:17: clip: expected a number or null, got 'null' in quotes"},
        {"{name: x, batch: {micro: 0}}", "1:26: batch.micro: 0 is not in 1 … 1000000"},
        {"{name: x, batch: {drop_last: yes}}",
         "1:30: batch.drop_last: expected true or false, got 'yes', did you mean true?"},
        {"{name: x, batch: {drop_last: OFF}}",
         "1:30: batch.drop_last: expected true or false, got 'OFF', did you mean false?"},
        {"{name: x, batch: {drop_last: tRUE}}",
         "1:30: batch.drop_last: expected true or false, got 'tRUE'"},
        {"{name: x, batch: {drop_last: 'true'}}",
         "1:30: batch.drop_last: expected true or false, got 'true' in quotes"},
        {"{name: x, valid: .inf}", "1:18: valid: expected a number, got '.inf'"},
        {"{name: x, valid: inf}", "1:18: valid: expected a number, got 'inf'"},
        {"{name: x, valid: nan}", "1:18: valid: expected a number, got 'nan'"},
        {"{name: x, valid: 1e999}", "1:18: valid: 1e999 is out of range"},
        {"{name: x, valid: 1e-}", "1:18: valid: expected a number, got '1e-'"},
        {"{name: x, valid: .}", "1:18: valid: expected a number, got '.'"},
        {"{name: x, valid: 1.01}", "1:18: valid: 1.01 is not in 0 … 1"},
        {"{name: x, clip: 0}", "1:17: clip: 0 is not above 0"},
        {"{name: x, clip: none}", "1:17: clip: expected a number or null, got 'none'"},
        {"{name: x, shuffle: ful}",
         "1:20: shuffle: 'ful' is none of full, block, none; did you mean 'full'?"},
        {"{name: x, shuffle: qqqqq}", "1:20: shuffle: 'qqqqq' is none of full, block, none"},
        {"{name: x, shape: [1, 0]}", "1:22: shape[1]: 0 is not in 1 … 4096"},
        {"{name: x, shape: [1, [2]]}", "1:22: shape[1]: expected a whole number, got a list"},
        {"{name: x, shape: [1, ~]}", "1:22: shape[1]: expected a whole number, got null"},
        {"{name: x, shape: {a: 1}}",
         "1:18: shape: expected a whole number or a list of them, got a map"},
        {"{name: x, train: [a, {b: c}]}", "1:22: train[1]: expected a text, got a map"},
        {"{name: x, every: 50}",
         "1:18: every: '50': the unit is missing: epochs, steps, s, min or h"},
        {"{name: x, every: [1]}", "1:18: every: expected a time such as '1 epoch', '50 steps', "
                                  "'10 min' or 'never', got a list"},
        {"{name: x, optimizer: amad}",
         "1:22: optimizer: 'amad' is none of sgd, adam; did you mean 'adam'?"},
        {"{name: x, optimizer: {type: sdg}}",
         "1:29: optimizer.type: 'sdg' is none of sgd, adam; did you mean 'sgd'?"},
        {"{name: x, optimizer: [adam]}", "1:22: optimizer: expected one of sgd, adam, got a list"},
        {"{name: x, optimizer: {type: [1]}}",
         "1:29: optimizer.type: expected one of sgd, adam, got a list"},
        {"{name: x, optimizer: {type: sgd, betas: 1}}",
         "1:34: optimizer.betas: unknown key; it belongs to type adam"},
        {"{name: x, optimizer: {type: sgd, gammas: 1}}",
         "1:34: optimizer.gammas: unknown key; there are type, lr, momentum"},
        {"{name: x, layers: relu}", "1:19: layers: expected a list of at most 8 layers"},
        {"{name: x, layers: [dens: 3]}",
         "1:20: layers[0]: unknown layer 'dens'; did you mean 'dense'? There are dense, relu"},
        {"{name: x, layers: [lstm]}",
         "1:20: layers[0]: unknown layer 'lstm'; there are dense, relu"},
        {"{name: x, layers: [relu, {dense: {output: 3, outputs: 2}}]}",
         "1:35: layers[1].dense.output: unknown key, did you mean 'outputs'?"},
        {"{name: x, layers: [dense]}", "1:20: layers[0].dense.outputs: must be given: a number"},
        {"{name: x, layers: [{dense: , outputs: 3}]}",
         "1:20: layers[0]: expected one layer, got 2 keys; options stand deeper than their layer's "
         "name"},
        {"{name: x, layers: [~]}", "1:20: layers[0]: expected a layer, got null"},
        {"{name: x, seed: \"a\\n\\e[1m\"}",
         "1:17: seed: expected a whole number, got 'a\\n\\x1b[1m' in quotes"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_conf conf;
        struct dpt_error err;
        struct job job;
        char want[400];

        snprintf(want, sizeof want, "job.yaml:%s", cases[i].want);
        assert_int_equal(read_job(&conf, &job, cases[i].text, &err), DPT_BAD_JOB);
        if (strcmp(err.text, want) != 0)
            fail_msg("%s gave\n%s\nexpected\n%s", cases[i].text, err.text, want);
        dpt_conf_release(&conf);
    }
}

/* However it is spelt; of what stands beside it, then what others call it, then what is near. */
static void words_from_elsewhere_are_understood(void **state)
{
    static const struct dpt_synonym synonyms[] = {
        {"batch.micro", "batch.size batchsize batch:"},
        {"micro", "minibatch"},
        {"full", "true"},
        {"dense", "linear"},
        {"sgd", "momentum"},
        {"there are none", "workers"},
        {0},
    };
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{name: x, batch: {size: 3}}", "batch.size: unknown key, did you mean 'batch.micro'?"},
        {"{name: x, Batch_Size: 3}", "Batch_Size: unknown key, did you mean 'batch.micro'?"},
        {"{name: x, batch: {mini-batch: 3}}", "unknown key, did you mean 'micro'?"},
        {"{name: x, minibatch: 3}", "minibatch: unknown key; there are name"},
        {"{name: x, batch: 3}", "batch: expected a map of keys and values, got '3'; did you mean "
                                "'batch.micro'?"},
        {"{name: x, seed: 1, shuffle: true}", "'true' is none of full, block, none; did you mean "
                                              "'full'?"},
        {"{name: x, layers: [Linear]}", "unknown layer 'Linear'; did you mean 'dense'?"},
        {"{name: x, optimizer: momentum}", "did you mean 'sgd'?"},
        {"{name: x, workers: 3}", "workers: unknown key; there are none"},
        {"{name: x, DROP_LAST: 3}", "DROP_LAST: unknown key; there are name"},
        {"{name: x, batch: {DropLast: 3}}", "unknown key, did you mean 'drop_last'?"},
        {"{name: x, batch: {mirco: 3}}", "unknown key, did you mean 'micro'?"},
        {"{name: x, optimizer: {momentum: 0.9}}",
         "optimizer.momentum: unknown key; it belongs to type sgd"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_error err = {0};
        struct job job = {0};
        struct dpt_conf conf;

        assert_int_equal(
            dpt_conf_parse(&conf, "job.yaml", cases[i].text, strlen(cases[i].text), &err), DPT_OK);
        conf.synonyms = synonyms;
        assert_true(dpt_options_read(&conf, conf.root, "", table, &job));
        assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s gave\n%s", cases[i].text, err.text);
        dpt_conf_release(&conf);
    }
}

static void all_mistakes_are_told(void **state)
{
    struct dpt_conf conf;
    struct dpt_error err;
    struct job job;

    (void)state;
    assert_int_equal(read_job(&conf, &job,
                              "optimizer: sdg\nseed: x\nseed: 2\nbatch:\n  mirco: 3\n  micro: 0\n",
                              &err),
                     DPT_BAD_JOB);
    assert_string_equal(
        err.text, "job.yaml:1:1: name: must be given: a text\n"
                  "job.yaml:1:12: optimizer: 'sdg' is none of sgd, adam; did you mean 'sgd'?\n"
                  "job.yaml:2:7: seed: expected a whole number, got 'x'\n"
                  "job.yaml:3:1: seed: duplicate key, first given at 2:1\n"
                  "job.yaml:5:3: batch.mirco: unknown key, did you mean 'micro'?\n"
                  "job.yaml:6:10: batch.micro: 0 is not in 1 … 1000000");
    dpt_conf_release(&conf);
}

static void write_again(const char *text, struct dpt_str *out)
{
    struct dpt_conf conf;
    struct dpt_error err;
    struct job job;

    if (read_job(&conf, &job, text, &err) != DPT_OK)
        fail_msg("%s\n%s", err.text, text);
    dpt_conf_write(conf.root, out);
    dpt_conf_release(&conf);
}

/* PyYAML, which has YAML 1.1, reads each value as what it is here. */
static void others_read_what_is_written(void **state)
{
    static const struct {
        const char *given, *written;
    } cases[] = {
        {"clip: 1e-3", "clip: 1.0e-3\n"},
        {"clip: 1E6", "clip: 1.0E+6\n"},
        {"clip: +.5e+3", "clip: +0.5e+3\n"},
        {"mean: [1e-3, -.5, 5., 0.25, 1e2]", "mean: [1.0e-3, -0.5, 5., 0.25, 1.0e+2]\n"},
        {"seed: 0010", "seed: 10\n"},
        {"note: 1e3", "note: 1e3\n"},
        {"note: 2024-11-28", "note: \"2024-11-28\"\n"},
        {"note: 12:30:15", "note: \"12:30:15\"\n"},
        {"train: [no, a.h5]", "train: [\"no\", a.h5]\n"},
        {"every: 10 min", "every: 10 min\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[100];
        struct dpt_str out = {0};

        struct dpt_str again = {0};

        snprintf(text, sizeof text, "name: x\n%s\n", cases[i].given);
        write_again(text, &out);
        write_again(out.text, &again);
        assert_string_equal(again.text, out.text);
        dpt_str_release(&again);
        if (strstr(out.text, cases[i].written) == NULL)
            fail_msg("%s is not written as %s: %s", cases[i].given, cases[i].written, out.text);
        dpt_str_release(&out);
    }
}

/* The resolved job is a job, resolves to itself, and does so however the keys were ordered. */
static void resolved_jobs_read_the_same(void **state)
{
    static const char *const lines[] = {
        "name: \"1e3\"",
        "note: 'null'",
        "clip: 1e-3",
        "maybe: none",
        "shape: [3, 4]",
        "every: never",
        "optimizer: {lr: 7, type: sgd}",
        "layers: [dense: 3, relu]",
        "batch: {micro: auto}",
        "train: [\"a, b\", 'c: d', '*.h5']",
    };
    const size_t n = sizeof lines / sizeof lines[0];
    struct dpt_str first = {0};

    (void)state;
    for (size_t shift = 0; shift < n; shift++) {
        struct dpt_str text = {0}, once = {0}, twice = {0};

        for (size_t i = 0; i < n; i++)
            dpt_str_printf(&text, "%s\n", lines[(i + shift) % n]);
        write_again(text.text, &once);
        write_again(once.text, &twice);
        assert_string_equal(once.text, twice.text);
        if (first.text == NULL)
            dpt_str_printf(&first, "%s", once.text);
        assert_string_equal(once.text, first.text);
        dpt_str_release(&text);
        dpt_str_release(&once);
        dpt_str_release(&twice);
    }
    dpt_str_release(&first);
}

static void help_fits_a_terminal(void **state)
{
    struct dpt_str out = {0};
    size_t columns = 0;

    (void)state;
    dpt_options_help(table, "", &out);
    assert_false(out.failed);
    for (const char *p = out.text; *p != '\0'; p++) {
        columns = *p == '\n' ? 0 : columns + ((*p & 0xC0) != 0x80);
        assert_true(columns <= 80);
    }
    for (const struct dpt_option *row = table; row->name != NULL; row++)
        assert_non_null(strstr(out.text, row->help));
    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        struct dpt_str some = {0};

        assert_true(dpt_options_help(table, row->name, &some));
        assert_true(some.length < out.length);
        assert_non_null(strstr(out.text, some.text));
        dpt_str_release(&some);
    }
    assert_false(dpt_options_help(table, "no-such", &out));
    assert_non_null(strstr(out.text, "batch.micro"));
    assert_non_null(strstr(out.text, "optimizer.betas"));
    assert_non_null(strstr(out.text, "type: sgd"));
    dpt_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(mistakes_say_what_was_wanted),
        cmocka_unit_test(all_mistakes_are_told),
        cmocka_unit_test(spellings_are_one_value),
        cmocka_unit_test(others_read_what_is_written),
        cmocka_unit_test(words_from_elsewhere_are_understood),
        cmocka_unit_test(resolved_jobs_read_the_same),
        cmocka_unit_test(help_fits_a_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
