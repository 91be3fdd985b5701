#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "core/train/job.h"

static void read_signature(const char *text, struct dpt_str *out)
{
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_error err;

    assert_int_equal(dpt_conf_parse(&conf, "job", text, strlen(text), &err), DPT_OK);
    assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
    assert_int_equal(conf.n_mistakes, 0);
    dpt_job_signature(&job, &conf, out);
    assert_false(out->failed);
    dpt_conf_release(&conf);
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
    read_signature(plain, &want);
    assert_null(strstr(want.text, "device"));
    assert_non_null(strstr(want.text, "cache: auto"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpt_str_clear(&got);
        read_signature(cases[i].text, &got);
        if (cases[i].same)
            assert_string_equal(got.text, want.text);
        else
            assert_non_null(strstr(got.text, "device:\n  precision: bf16\n"));
    }
    dpt_str_release(&want);
    dpt_str_release(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signature_leaves_defaults_of_later_options_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
