/*
 * A part of every test program: with DPT_TESTS in the environment only those tests are run whose
 * names fit it, with * and ? for any characters (scripts/test.sh -k).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose_tests(void)
{
    const char *names = getenv("DPT_TESTS");

    if (names != NULL)
        cmocka_set_test_filter(names);
}
