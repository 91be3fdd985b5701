#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/comm/internal.h"

static const char *const names[] = {
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK",    "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
};

enum { NAMES = sizeof names / sizeof names[0] };

static void launcher_is_told_by_the_environment(void **state)
{
    // clang-format off
    static const struct { const char *value[NAMES]; bool present; int rank; } cases[] = {
        {{NULL}, false, 0},
        {{"3"}, true, 3},
        {{NULL, "2"}, true, 2},
        {{NULL, NULL, "5"}, true, 5},
        {{"", "", ""}, false, 0},
        {{"1", "1", NULL, "1", "0", "4", "4"}, true, 1},       /* srun --mpi=pmix */
        {{NULL, NULL, NULL, "1", "0", "4", "4"}, true, 1},     /* srun without */
        {{NULL, NULL, NULL, "0", NULL, NULL, "4"}, false, 0},  /* a batch script */
        {{NULL, NULL, NULL, "0", "9", "1", "4"}, false, 0},    /* a shell in an allocation */
        {{NULL, NULL, NULL, "0", "9", NULL, "1"}, false, 0},
        {{"x"}, true, 0},
    };
    // clang-format on

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int k = 0; k < NAMES; k++) {
            unsetenv(names[k]);
            if (cases[i].value[k] != NULL)
                setenv(names[k], cases[i].value[k], 1);
        }
        assert_int_equal(dpt_launcher_present(), cases[i].present);
        assert_int_equal(dpt_launcher_rank(), cases[i].rank);
    }
    for (int k = 0; k < NAMES; k++)
        unsetenv(names[k]);
}

static void settings_of_the_user_stay(void **state)
{
    (void)state;
    setenv("OMPI_MCA_btl", "self,tcp", 1);
    dpt_launcher_prepare_lone();
    assert_string_equal(getenv("OMPI_MCA_btl"), "self,tcp");
    assert_string_equal(getenv("OMPI_MCA_pml"), "ob1");
}

static void host_has_a_short_name(void **state)
{
    char host[DPT_HOST_TEXT];

    (void)state;
    dpt_host_name(host);
    assert_true(strlen(host) > 0 && strchr(host, '.') == NULL);
}

static void version_needs_no_mpi(void **state)
{
    (void)state;
    assert_true(strlen(dpt_comm_version()) > 4);
    assert_non_null(strpbrk(dpt_comm_version(), "0123456789"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launcher_is_told_by_the_environment),
        cmocka_unit_test(settings_of_the_user_stay),
        cmocka_unit_test(host_has_a_short_name),
        cmocka_unit_test(version_needs_no_mpi),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
