#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/train/job/job.h"

/* set: "data.cache=none", or NULL. */
static void read_signature(const char *text, const char *set, struct dpt_str *out)
{
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_error err;

    assert_int_equal(dpt_conf_parse(&conf, "job", text, strlen(text), &err), DPT_OK);
    assert_true(set == NULL || dpt_conf_set(&conf, set, &err) == DPT_OK);
    assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
    assert_int_equal(conf.n_mistakes, 0);
    dpt_job_signature(&job, &conf, out);
    assert_false(out->failed);
    dpt_conf_release(&conf);
}

/* Another value than a row's default. */
static void other_value(const struct dpt_option *row, char *value, size_t size)
{
    const bool seconds_only = row->units != 0 && !(row->units >> DPT_STEPS & 1);
    const char *text = "zz";

    switch (row->type) {
    case DPT_OPT_BOOL:
        text = strcmp(row->fallback, "true") == 0 ? "false" : "true";
        break;
    case DPT_OPT_CHOICE:
        text = row->choices[strcmp(row->choices[0], row->fallback) == 0];
        break;
    case DPT_OPT_EVERY:
        text = seconds_only ? "7 s" : "7 steps";
        break;
    case DPT_OPT_INT:
    case DPT_OPT_REAL:
    case DPT_OPT_CUSTOM:
        text = "7";
        break;
    default:
        break;
    }
    snprintf(value, size, "%s", text);
}

/* Sets each option of a table that changes no byte. Returns how many. */
static int set_all(const struct dpt_option *table, const char *path, enum dpt_effect above,
                   const char *job, const char *want)
{
    int tried = 0;

    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        const enum dpt_effect effect = row->effect == DPT_EFFECT_AS_ABOVE ? above : row->effect;
        char name[128], value[64], set[256];
        struct dpt_str got = {0};

        snprintf(name, sizeof name, "%s%s%s", path, path[0] != '\0' ? "." : "", row->name);
        if (row->type == DPT_OPT_SECTION)
            tried += set_all(row->rows, name, effect, job, want);
        if (row->type == DPT_OPT_SECTION || effect == DPT_EFFECT_RESULT ||
            effect == DPT_EFFECT_LENGTH || effect == DPT_EFFECT_BY_ROW)
            continue;
        other_value(row, value, sizeof value);
        snprintf(set, sizeof set, "%s=%s", name, value);
        read_signature(job, set, &got);
        if (strcmp(got.text, want) != 0)
            fail_msg("%s makes another text:\n%s", set, got.text);
        dpt_str_release(&got);
        tried++;
    }
    return tried;
}

/* Tries every row of the table that changes no byte, so that a new one is covered. */
static void signature_knows_nothing_that_changes_no_byte(void **state)
{
    static const char *const jobs[] = {
        "{data: {train: synthetic}, model: {type: linear, outputs: 2}}",
        "{data: {train: a.h5, valid: 0.1, test: t.h5, cache: none, verify: false}, "
        "model: {type: mlp, hidden: [3], outputs: 2}, comm: {reduction: reproducible}}",
    };
    struct dpt_str want = {0};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        dpt_str_clear(&want);
        read_signature(jobs[i], NULL, &want);
        assert_true(set_all(dpt_job_options, "", DPT_EFFECT_BY_ROW, jobs[i], want.text) > 25);
        assert_null(strstr(want.text, "t.h5"));
    }
    dpt_str_release(&want);
}

/* What was added later is there only where it says something, and in the old order. */
static void signature_leaves_defaults_of_later_options_out(void **state)
{
    static const char plain[] = "{data: {train: synthetic}, model: {type: linear, outputs: 2}}";
    static const struct {
        const char *text;
        bool same;
    } cases[] = {
        {"{data: {train: synthetic}, model: {type: linear, outputs: 2}, device: {precision: fp32, "
         "threads: 3}}",
         true},
        {"{data: {train: synthetic}, model: {type: linear, outputs: 2}, name: x, output: y, log: "
         "{every: never}}",
         true},
        {"{device: {precision: bf16}, data: {train: synthetic}, model: {type: linear, outputs: 2}}",
         false},
        {"{data: {train: synthetic}, model: {type: linear, outputs: 2}, comm: {timeout: 5 s}}",
         true},
    };
    struct dpt_str want = {0}, got = {0};

    (void)state;
    read_signature(plain, NULL, &want);
    assert_null(strstr(want.text, "device"));
    assert_non_null(strstr(want.text, "cache: auto"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpt_str_clear(&got);
        read_signature(cases[i].text, NULL, &got);
        if (cases[i].same)
            assert_string_equal(got.text, want.text);
        else
            assert_non_null(strstr(got.text, "device:\n  precision: bf16\n"));
    }
    dpt_str_release(&want);
    dpt_str_release(&got);
}

/* A mistake is told with the line and the column of what it is about. */
static void mistakes_have_their_place(void **state)
{
    static const char text[] = "data: {train: synthetic}\nmodel: mlp\ncomm: {reduction: "
                               "reproducible}\nparallel:\n  pipeline: {stages: 3, cut: [dense2]}\n";
    char path[] = "/tmp/dptrain-job-XXXXXX", want[128];
    const int fd = mkstemp(path);
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_error err = {0};

    (void)state;
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(dpt_job_load(&job, &conf, path, NULL, 0, &err), DPT_BAD_JOB);
    snprintf(want, sizeof want, "%s:5:13: parallel.pipeline.cut: 1 layer makes 2 stages", path);
    assert_memory_equal(err.text, want, strlen(want));
    dpt_conf_release(&conf);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signature_knows_nothing_that_changes_no_byte),
        cmocka_unit_test(signature_leaves_defaults_of_later_options_out),
        cmocka_unit_test(mistakes_have_their_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
