/*
 * left_out: a test program that this build or this machine cannot run: reports it as a skipped
 * test.
 */
#ifndef DPT_BACKEND_TESTS_LEFT_OUT_H
#define DPT_BACKEND_TESTS_LEFT_OUT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void left_out_test(void **state)
{
    print_message("%s\n", (const char *)*state);
    skip();
}

/* What main returns. why: "built without CUDA". */
static inline int left_out(const char *why)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(left_out_test, (void *)(uintptr_t)why)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
