/* What a job's things are called elsewhere leads to things that a job has. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/train/job/job.h"

#define LAYER(text) "model: {type: sequential, layers: [{" text "}]}"

struct search {
    const char *name;
    bool found;
};

static bool ends_with(const char *path, const char *name)
{
    const size_t n = strlen(path), m = strlen(name);

    return n >= m && strcmp(path + n - m, name) == 0 && (n == m || path[n - m - 1] == '.');
}

static void look_at_choices(struct search *s, const struct dpt_option *row)
{
    for (size_t i = 0; row->type == DPT_OPT_CHOICE && row->choices[i] != NULL; i++)
        s->found |= strcmp(row->choices[i], s->name) == 0;
}

static void look(void *arg, const struct dpt_option_visit *at)
{
    struct search *s = arg;
    const bool whole = strchr(s->name, '.') != NULL;

    if (whole ? strcmp(at->path, s->name) == 0 : ends_with(at->path, s->name))
        s->found = true;
    if (whole || at->row == NULL) {
        s->found |= !whole && at->variant != NULL && strcmp(at->variant, s->name) == 0;
        return;
    }
    look_at_choices(s, at->row);
    for (const struct dpt_option *row =
             at->row->alternatives != NULL ? at->row->alternatives->either : NULL;
         row != NULL && row->name != NULL; row++)
        look_at_choices(s, row);
}

static void all_lead_somewhere(void **state)
{
    (void)state;
    for (const struct dpt_synonym *s = dpt_job_synonyms; s->words != NULL; s++) {
        struct search search = {.name = s->meant};

        for (const char *c = s->words; *c != '\0'; c++)
            if (*c == '_' || *c == '-' || isupper((unsigned char)*c))
                fail_msg("'%s': the reader drops _, - and capitals", s->words);
        if (strchr(s->meant, ' ') != NULL)
            continue;
        dpt_options_walk(dpt_job_options, look, &search);
        if (!search.found)
            fail_msg("'%s': a job has no '%s'", s->words, s->meant);
    }
}

/* A thing has one row, and that has a word but once; blanks stand between words alone. */
static void none_is_there_twice(void **state)
{
    (void)state;
    for (const struct dpt_synonym *s = dpt_job_synonyms; s->words != NULL; s++) {
        char words[512];

        for (const struct dpt_synonym *r = dpt_job_synonyms; r < s; r++)
            if (strcmp(r->meant, s->meant) == 0)
                fail_msg("'%s' has two rows", s->meant);
        assert_true(snprintf(words, sizeof words, "%s ", s->words) < (int)sizeof words);
        for (const char *word = words, *end; *word != '\0'; word = end + 1) {
            char wanted[64];

            end = word + strcspn(word, " ");
            snprintf(wanted, sizeof wanted, " %.*s ", (int)(end - word), word);
            if (end == word || strstr(end, wanted) != NULL)
                fail_msg("%s:%s is there twice, or a blank too many", s->meant, wanted);
        }
    }
}

/* As people type them, in the places where they do. */
static void words_lead_to_what_is_meant(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"lr: 0.1", "lr: unknown key, did you mean 'optimizer.lr'?"},
        {"learning_rate_init: 0.1", "did you mean 'optimizer.lr'?"},
        {"batch_size: 32", "did you mean 'batch.global'?"},
        {"num_epochs: 3", "did you mean 'train.epochs'?"},
        {"max_iter: 3", "did you mean 'train.epochs'?"},
        {"random_state: 3", "did you mean 'seed'?"},
        {"class_weight: balanced", "did you mean 'data.class_weights'?"},
        {"hidden_layer_sizes: [3]", "did you mean 'model.hidden'?"},
        {"metrics: [accuracy]", "metrics: unknown key; all that fit are reported without a key"},
        {"solver: adam", "did you mean 'optimizer'?"},
        {"loss: mae", "did you mean 'l1'?"},
        {"loss: MeanSquaredError", "did you mean 'mse'?"},
        {"loss: BCEWithLogitsLoss", "did you mean 'binary_cross_entropy'?"},
        {"optimizer: GradientDescent", "did you mean 'sgd'?"},
        {"optimizer: {type: rmsprop, rho: 0.9}", "did you mean 'alpha'?"},
        {"schedule: {type: step, step_size: 3}", "did you mean 'every'?"},
        {"schedule: {type: cosine, T_max: 3}", "a schedule lasts as long as train.epochs"},
        {"schedule: CosineAnnealingLR", "did you mean 'cosine'?"},
        {"model: {type: mlp, hidden_layer_sizes: [3]}", "did you mean 'hidden'?"},
        {"model: {type: mlp, activation: swish}", "did you mean 'silu'?"},
        {"model: {type: mlp, activation: LeakyReLU}", "did you mean 'leaky_relu'?"},
        {LAYER("Conv2d: 3"), "did you mean 'conv'?"},
        {LAYER("Linear: 3"), "did you mean 'dense'?"},
        {LAYER("bn"), "did you mean 'batchnorm'?"},
        {LAYER("BatchNorm2d"), "did you mean 'batchnorm'?"},
        {LAYER("LayerNormalization"), "did you mean 'layernorm'?"},
        {LAYER("AdaptiveAvgPool2d: 1"), "did you mean 'adaptive_avgpool'?"},
        {LAYER("DepthwiseConv2D: 3"), "conv with as many groups as there are channels"},
        {LAYER("Concatenate"), "did you mean 'concat'?"},
        {LAYER("batchnorm: {momentum: 0.9}"), "did you mean 'decay'?"},
        {LAYER("conv: {channels: 3, dilation_rate: 2}"), "did you mean 'dilation'?"},
        {LAYER("dense: {units: 3, activation: relu}"), "an activation is a layer after another"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_error err = {0};
        struct dpt_job job = {0};
        struct dpt_conf conf;

        assert_int_equal(
            dpt_conf_parse(&conf, "job.yaml", cases[i].text, strlen(cases[i].text), &err), DPT_OK);
        conf.synonyms = dpt_job_synonyms;
        assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
        assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s gave\n%s", cases[i].text, err.text);
        dpt_conf_release(&conf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_lead_somewhere),
        cmocka_unit_test(none_is_there_twice),
        cmocka_unit_test(words_lead_to_what_is_meant),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
