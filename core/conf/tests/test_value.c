/* What a row of a table says of its values: for help, and where one must be given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/conf/option.h"

struct job {
    int order;
};

static const char *const orders[] = {"full", "block", "none", NULL};

static const struct dpt_option needed[] = {
    {.name = "order",
     .type = DPT_OPT_CHOICE,
     .offset = offsetof(struct job, order),
     .choices = orders,
     .help = "of the samples"},
    {0},
};

static void help_lists_the_choices(void **state)
{
    struct dpt_str out = {0};

    (void)state;
    assert_true(dpt_options_help(needed, "order", &out));
    assert_false(out.failed);
    assert_non_null(strstr(out.text, "one of full, block, none; must be given\n"));
    dpt_str_release(&out);
}

static void a_choice_that_is_missing_is_told_with_all_of_them(void **state)
{
    struct dpt_conf conf;
    struct dpt_error err = {0};
    struct job job = {0};

    (void)state;
    assert_int_equal(dpt_conf_parse(&conf, "job.yaml", "{}", 2, &err), DPT_OK);
    assert_true(dpt_options_read(&conf, conf.root, "", needed, &job));
    assert_int_equal(dpt_conf_validation_result(&conf, &err), DPT_BAD_JOB);
    assert_string_equal(err.text, "job.yaml:1:1: order: must be given: one of full, block, none");
    dpt_conf_release(&conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_the_choices),
        cmocka_unit_test(a_choice_that_is_missing_is_told_with_all_of_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
