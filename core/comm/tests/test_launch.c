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
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK",    "PMI_RANK", "SLURM_PROCID",         "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALRANKID",
};

enum { NAMES = sizeof names / sizeof names[0] };

static void set(const char *const value[NAMES])
{
    for (int k = 0; k < NAMES; k++) {
        unsetenv(names[k]);
        if (value != NULL && value[k] != NULL)
            setenv(names[k], value[k], 1);
    }
}

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
        {{NULL, NULL, "0", "0", "9", "1", "1", "1"}, false, 0}, /* srun -n 1 --mpi=pmi2 */
        /* MPICH's mpirun in a shell in an allocation */
        {{NULL, NULL, "3", "0", "9", "1", "1", "4"}, true, 3},
        {{NULL, "0", NULL, "0", "9", "1", "1"}, true, 0},      /* srun -n 1 --mpi=pmix */
        {{"x"}, true, 0},
    };
    // clang-format on

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set(cases[i].value);
        assert_int_equal(dpt_launcher_present(), cases[i].present);
        assert_int_equal(dpt_launcher_rank(), cases[i].rank);
    }
    set(NULL);
}

static void rank_of_the_node_is_told_by_the_environment(void **state)
{
    static const char *const all[] = {
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "PMI_LOCAL_RANK",
        "PALS_LOCAL_RANKID",
        "FLUX_TASK_LOCAL_ID",
        "SLURM_LOCALID",
    };
    enum { ALL = sizeof all / sizeof all[0] };
    // clang-format off
    static const struct { const char *value[NAMES], *name, *local; int want; } cases[] = {
        {{NULL}, NULL, NULL, 0},                                 /* by itself */
        {{NULL}, "SLURM_LOCALID", "0", 0},                       /* in a batch script */
        {{"5"}, "OMPI_COMM_WORLD_LOCAL_RANK", "1", 1},
        {{NULL, NULL, "5"}, "MPI_LOCALRANKID", "3", 3},
        {{NULL, NULL, "5"}, "MV2_COMM_WORLD_LOCAL_RANK", "2", 2},
        {{NULL, NULL, "5"}, "PMI_LOCAL_RANK", "1", 1},
        {{NULL, NULL, "5"}, "PALS_LOCAL_RANKID", "4", 4},
        {{NULL, "5"}, "FLUX_TASK_LOCAL_ID", "7", 7},
        {{NULL, "5", NULL, "5", "0", "8", "8"}, "SLURM_LOCALID", "1", 1},  /* srun --mpi=pmix */
        {{NULL, "0", NULL, "0", "0", "1", "8"}, "SLURM_LOCALID", "0", 0},  /* of one task */
        /* from the batch script */
        {{NULL, NULL, "5", "0", NULL, NULL, "8"}, "SLURM_LOCALID", "0", -1},
        /* of a task that began mpirun */
        {{NULL, NULL, "5", "0", "0", "2", "8"}, "SLURM_LOCALID", "0", -1},
        {{NULL, NULL, "5"}, NULL, NULL, -1},
        {{"5"}, "OMPI_COMM_WORLD_LOCAL_RANK", "x", -1},
    };
    // clang-format on

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set(cases[i].value);
        for (int k = 0; k < ALL; k++)
            unsetenv(all[k]);
        if (cases[i].name != NULL)
            setenv(cases[i].name, cases[i].local, 1);
        assert_int_equal(dpt_launcher_local_rank(), cases[i].want);
        if (cases[i].name != NULL)
            unsetenv(cases[i].name);
    }
    set(NULL);
}

/* Tasks that do not know of each other may not train: they are refused before MPI_Init if it would
   end the process, and after it if it makes a world of each. */
static void tasks_without_ranks_are_refused(void **state)
{
    const bool at_once = strncmp(dpt_comm_version(), "Open MPI", 8) == 0;
    // clang-format off
    const struct { const char *value[NAMES]; int ranks; enum dpt_status want; } cases[] = {
        {{NULL, NULL, NULL, "1", "0", "4", "4"}, 0, at_once ? DPT_USAGE : DPT_OK},
        {{NULL, NULL, NULL, "1", "0", "4", "4"}, 1, DPT_USAGE},
        {{NULL, NULL, NULL, "1", "0", "4", "4"}, 4, DPT_OK},
        {{NULL, "1", NULL, "1", "0", "4", "4"}, 0, DPT_OK},   /* --mpi=pmix */
        {{NULL, NULL, "1", "1", "0", "4", "4", "4"}, 0, DPT_OK}, /* --mpi=pmi2 */
        {{"0", NULL, NULL, "1", "0", "4", "4"}, 1, DPT_OK},   /* mpirun in each task */
        {{NULL, NULL, NULL, "0", "0", "1", "4"}, 1, DPT_OK},
        {{NULL, NULL, NULL, "0", NULL, NULL, "4"}, 1, DPT_OK},
        {{NULL}, 1, DPT_OK},
    };
    // clang-format on
    struct dpt_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set(cases[i].value);
        err.text[0] = '\0';
        assert_int_equal(dpt_launcher_check(cases[i].ranks, &err), cases[i].want);
        if (cases[i].want == DPT_OK)
            continue;
        assert_non_null(strstr(err.text, "srun started 4 tasks"));
        assert_non_null(strstr(err.text, at_once ? "--mpi=pmix" : "--mpi=pmi2"));
        assert_null(strchr(err.text, '\n'));
    }
    set(NULL);
}

/* Where MPI knows of one rank and the launcher of more, it is another MPI's launcher. */
static void a_launcher_of_another_mpi_is_refused(void **state)
{
    // clang-format off
    static const struct { const char *value[NAMES]; int ranks; const char *says; } cases[] = {
        {{"1", "1", [8] = "2"}, 1, "Open MPI's mpirun started 2 ranks"},
        {{"1", "1", [8] = "2"}, 0, NULL},
        {{"1", "1", [8] = "2"}, 2, NULL},
        {{"0", "0", [8] = "1"}, 1, NULL},
        {{[2] = "1", [7] = "3", [9] = "1"}, 1, "Hydra (MPICH) started 3 ranks"},
        {{[2] = "1", [7] = "3", [9] = "1"}, 0, NULL},
        {{[2] = "1", [7] = "3", [9] = "1"}, 3, NULL},
        {{[2] = "0", [7] = "1", [9] = "0"}, 1, NULL},
        {{[2] = "1", [7] = "3"}, 1, "the launcher started 3 ranks"},           /* PALS, Flux */
        {{[1] = "1", [3] = "1", "0", "4", "4"}, 1, "srun started 4 ranks"},    /* --mpi=pmix */
        {{[2] = "1", "1", "0", "4", "4", "4"}, 1, "srun started 4 ranks"},     /* --mpi=pmi2 */
        {{[2] = "1", "0", "0", "4", "4", "2", NULL, "1"}, 1, "Hydra (MPICH) started 2 ranks"},
    };
    // clang-format on
    struct dpt_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set(cases[i].value);
        assert_int_equal(dpt_launcher_check(cases[i].ranks, &err),
                         cases[i].says != NULL ? DPT_USAGE : DPT_OK);
        if (cases[i].says == NULL)
            continue;
        assert_ptr_equal(strstr(err.text, cases[i].says), err.text);
        assert_non_null(strstr(err.text, dpt_comm_version()));
        assert_null(strchr(err.text, '\n'));
    }
    set(NULL);
}

static void rank_of_another_process_is_found(void **state)
{
    const char *value;

    (void)state;
    assert_int_equal(dpt_launcher_rank_variable("PMI_RANKS=1", &value), -1);
    assert_int_equal(dpt_launcher_rank_variable("PMI_RANK", &value), -1);
    assert_true(dpt_launcher_rank_variable("OMPI_COMM_WORLD_RANK=1", &value) <
                dpt_launcher_rank_variable("PMIX_RANK=1", &value));
    assert_true(dpt_launcher_rank_variable("PMI_RANK=12", &value) > 0);
    assert_string_equal(value, "12");
}

static void settings_of_the_user_stay(void **state)
{
    (void)state;
    setenv("OMPI_MCA_btl", "self,tcp", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    dpt_launcher_prepare_lone();
    assert_null(getenv("SLURM_STEP_ID")); /* or MPI_Init would ask srun for what it does not give */
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
        cmocka_unit_test(rank_of_the_node_is_told_by_the_environment),
        cmocka_unit_test(tasks_without_ranks_are_refused),
        cmocka_unit_test(a_launcher_of_another_mpi_is_refused),
        cmocka_unit_test(rank_of_another_process_is_found),
        cmocka_unit_test(settings_of_the_user_stay),
        cmocka_unit_test(host_has_a_short_name),
        cmocka_unit_test(version_needs_no_mpi),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
