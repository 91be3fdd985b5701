/* What holds for every row of every table that a job is read by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/comm/cuda_aware.h"
#include "core/train/job/job.h"

/* Most bytes that a row's value takes. */
enum { VALUE = 4096 };

/* A default is as good as a value that somebody wrote: read through the row itself. */
static void read_default(const struct dpt_option_visit *at)
{
    char text[1024];
    const struct dpt_option table[] = {*at->row, {0}};
    struct dpt_conf conf = {0};
    struct dpt_error err = {0};
    unsigned char *base = test_calloc(1, at->row->offset + VALUE);

    /* A CUSTOM row may look at the keys before it: at their zeros. */
    snprintf(text, sizeof text, "%s: %s\n", at->row->name, at->row->fallback);
    if (dpt_conf_parse(&conf, "default", text, strlen(text), &err) != DPT_OK)
        fail_msg("%s: default %s: %s", at->path, at->row->fallback, err.text);
    assert_true(dpt_options_read(&conf, conf.root, "", table, base));
    if (dpt_conf_validation_result(&conf, &err) != DPT_OK)
        fail_msg("%s: default %s: %s", at->path, at->row->fallback, err.text);
    dpt_conf_release(&conf);
    test_free(base);
}

/* All that a person is told of a row, and all that reading it needs. */
static void check_row(const struct dpt_option_visit *at)
{
    const struct dpt_option *row = at->row;
    struct dpt_str told = {0};
    const char *dot = row->help != NULL ? strrchr(row->help, '.') : NULL;

    if (row->help == NULL || row->help[0] == '\0' || (dot != NULL && dot[1] == '\0') ||
        strchr(row->help, '\n') != NULL)
        fail_msg("%s: .help is one line without a full stop", at->path);
    if ((row->type == DPT_OPT_CHOICE) != (row->choices != NULL) ||
        (row->type == DPT_OPT_SECTION) != (row->rows != NULL) ||
        (row->type == DPT_OPT_VARIANT) != (row->variants != NULL) ||
        (row->type == DPT_OPT_CUSTOM) != (row->read != NULL))
        fail_msg("%s: what its type needs is missing, or what it does not", at->path);
    if (row->type == DPT_OPT_CUSTOM && (row->value_text == NULL || row->alternatives == NULL))
        fail_msg("%s: .form or .forms is missing: help and schema cannot tell of it", at->path);
    if (row->rival != NULL && (row->fallback == NULL || strcmp(row->fallback, "null") != 0))
        fail_msg("%s: of two rivals both default to null", at->path);
    if (row->fallback != NULL)
        read_default(at);
    dpt_option_describe(row, &told);
    assert_true(!told.failed && told.length > 0);
    dpt_str_release(&told);
}

static void visit(void *arg, const struct dpt_option_visit *at)
{
    size_t *rows = arg;

    if (at->row == NULL) {
        if (at->summary == NULL || at->summary[0] == '\0')
            fail_msg("%s: %s has no summary", at->path, at->variant);
        return;
    }
    check_row(at);
    ++*rows;
}

static void every_row_is_complete(void **state)
{
    size_t rows = 0;

    (void)state;
    dpt_options_walk(dpt_job_options, visit, &rows);
    assert_true(rows > 80); /* the walk came to the rooms' own tables */
}

/* Every row of a table says what another value does to a run that goes on. */
static void says_it(const struct dpt_option *table, const char *above)
{
    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        if (row->effect == DPT_EFFECT_AS_ABOVE)
            fail_msg("%s%s: .effect is missing: does it change the bytes of a run?", above,
                     row->name);
        if (row->effect == DPT_EFFECT_BY_ROW) {
            assert_int_equal(row->type, DPT_OPT_SECTION);
            says_it(row->rows, row->name);
        }
    }
}

static void no_option_forgets_its_effect(void **state)
{
    (void)state;
    says_it(dpt_job_options, "");
}

/* A choice is read as its place among the words: of an enum's words none is missing. */
static void enums_have_all_their_words(void **state)
{
    static const struct {
        const char *path;
        size_t count;
    } enums[] = {{"device.kind", DPT_DEVICE_KIND_COUNT},
                 {"device.precision", DPT_PRECISIONS},
                 {"device.isa", DPT_ISA_COUNT},
                 {"data.shuffle", DPT_SHUFFLE_COUNT},
                 {"data.cache", DPT_CACHE_COUNT},
                 {"train.on_nan", DPT_ON_NAN_COUNT},
                 {"comm.reduction", DPT_REDUCTION_KIND_COUNT},
                 {"comm.hierarchical", DPT_HIERARCHICAL_COUNT},
                 {"comm.overlap", DPT_OVERLAP_COUNT},
                 {"comm.cuda_aware", DPT_AWARE_COUNT}};

    (void)state;
    for (size_t i = 0; i < sizeof enums / sizeof enums[0]; i++) {
        const char *dot = strchr(enums[i].path, '.');
        const struct dpt_option *row = dpt_job_options;
        size_t words = 0;

        while (strlen(row->name) != (size_t)(dot - enums[i].path) ||
               strncmp(row->name, enums[i].path, strlen(row->name)) != 0)
            row++;
        for (row = row->rows; strcmp(row->name, dot + 1) != 0;)
            row++;
        while (row->choices[words] != NULL && row->choices[words][0] != '\0')
            words++;
        if (words != enums[i].count)
            fail_msg("%s: %zu words of %zu", enums[i].path, words, enums[i].count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_complete),
        cmocka_unit_test(no_option_forgets_its_effect),
        cmocka_unit_test(enums_have_all_their_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
