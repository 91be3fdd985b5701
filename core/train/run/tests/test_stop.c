/* Requests to stop: when signals count once and when twice, and whose clock is believed. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/clock.h"
#include "core/train/run/stop.h"

/* --- signals: each case in a process of its own ----------------------------------------------- */

static const int all[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
enum { ALL = sizeof all / sizeof all[0] };

/* What dpt_now reads, in hundredths of a second, where a case sets it; 0: the clock itself. */
static int hundredths;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (hundredths == 0 || clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, t);
    *t = (struct timespec){hundredths / 100, hundredths % 100 * 10000000};
    return 0;
}

/* The signals raised one after another, every `apart` hundredths of a second; gives what the
 * process died of, or 0: it lived. saved: all is saved once the first one has come. */
static int fate(const int *numbers, size_t n, int apart, bool saved)
{
    const pid_t child = fork();
    int state;

    if (child == 0) {
        for (size_t i = 0; i < n; i++)
            signal(numbers[i], SIG_DFL); /* the shell that started this may have ignored it */
        dpt_stop_catch();
        hundredths = 1000;
        for (size_t i = 0; i < n; i++, hundredths += apart) {
            raise(numbers[i]);
            if (saved)
                dpt_stop_done();
        }
        _exit(dpt_stop_signal() == numbers[0] ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &state, 0), child);
    if (WIFSIGNALED(state))
        return WTERMSIG(state);
    assert_int_equal(WEXITSTATUS(state), 0);
    return 0;
}

/* Who signals a group of processes reaches each of them several times. */
static void several_at_a_time_are_one_request(void **state)
{
    (void)state;
    for (int i = 0; i < ALL; i++) {
        assert_int_equal(fate(&all[i], 1, 0, false), 0);
        for (int k = 0; k < ALL; k++) {
            const int three[] = {all[i], all[k], all[k]};

            assert_int_equal(fate(three, 3, 100, false), 0);
        }
    }
}

/* Someone who means it sends it later than an echo comes. */
static void a_later_one_is_an_end(void **state)
{
    (void)state;
    for (int i = 0; i < ALL; i++)
        for (int k = 0; k < ALL; k++) {
            const int three[] = {all[i], all[i], all[k]};

            assert_int_equal(fate(three, 3, 101, false), all[k]);
        }
}

static void none_is_an_end_once_all_is_saved(void **state)
{
    (void)state;
    for (int i = 0; i < ALL; i++) {
        const int three[] = {all[i], all[i], all[i]};

        assert_int_equal(fate(three, 3, 101, true), 0);
    }
}

static void ignored_signals_stay_ignored(void **state)
{
    const pid_t child = fork();
    int how;

    (void)state;
    if (child == 0) {
        signal(SIGINT, SIG_IGN);
        dpt_stop_catch();
        raise(SIGINT);
        _exit(dpt_stop_signal());
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_string_equal(dpt_stop_name(SIGUSR1), "SIGUSR1");
    assert_string_equal(dpt_stop_name(SIGHUP), "SIGHUP");
    assert_string_equal(dpt_stop_name(SIGQUIT), "a signal");
}

/* --- the clock -------------------------------------------------------------------------------- */

static const char *const variables[] = {"SLURM_JOB_ID",        "SLURM_ARRAY_JOB_ID",
                                        "SLURM_ARRAY_TASK_ID", "SLURM_JOB_END_TIME",
                                        "SLURM_TIME_FORMAT",   "TZ"};

static char folder[128], path[160];

/* A squeue that says `answer` (a line of shell) when it is asked for job `id`, else nothing. */
static void write_squeue(const char *id, const char *answer)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fprintf(file,
            "#!/bin/sh\n"
            "[ \"$1 $2 $3 $4 $5\" = '-h -j %s -o %%e' ] || { echo 'Invalid job id' >&2; exit 1; }\n"
            "format=%%Y-%%m-%%dT%%H:%%M:%%S\n"
            "[ \"${SLURM_TIME_FORMAT:-standard}\" = standard ] || format='%%d %%b %%H:%%M'\n"
            "%s\n",
            id, answer);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0700), 0);
}

static int open_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    char *search = NULL;

    (void)state;
    snprintf(folder, sizeof folder, "%.80s/dpt-stop-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/squeue", folder);
    if (asprintf(&search, "%s:%s", folder, getenv("PATH")) < 0)
        return -1;
    setenv("PATH", search, 1);
    free(search);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static int clean_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    tzset();
    write_squeue("none", "exit 1");
    return 0;
}

/* Seconds from now to the deadline. */
static double left(double max_time)
{
    const double deadline = dpt_stop_deadline(max_time);

    return deadline - dpt_now();
}

static void assert_about(double seconds, double want)
{
    if (!(fabs(seconds - want) < 60))
        fail_msg("%.1f s are left, expected about %.1f", seconds, want);
}

static void without_slurm_only_the_job_counts(void **state)
{
    (void)state;
    assert_true(isinf(left(0)));
    assert_about(left(5000), 5000);
    assert_true(left(5000) <= 5000);
}

static void set_number(const char *name, long long number)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", number);
    setenv(name, text, 1);
}

static void the_variable_is_believed(void **state)
{
    const long long now = time(NULL);

    (void)state;
    setenv("SLURM_JOB_ID", "77", 1);
    write_squeue("77", "date -d '+100000 seconds' +$format");
    set_number("SLURM_JOB_END_TIME", now + 3600);
    assert_about(left(0), 3600);
    assert_about(left(1000), 1000);
    assert_about(left(9000), 3600);
    set_number("SLURM_JOB_END_TIME", now - 100); /* of a job that is over */
    assert_true(isinf(left(0)));
    assert_about(left(500), 500);
}

/* Wherever the clocks of this place stand, and however the user likes to see times. */
static void squeue_is_asked(void **state)
{
    static const char *const zones[] = {"UTC0", "EST5EDT,M3.2.0,M11.1.0", "IST-5:30", "XYZ-13"};
    static const char *const formats[] = {"standard", "relative", "%s"};

    (void)state;
    write_squeue("4711", "date -d '+7200 seconds' \"+$format\"");
    assert_true(isinf(left(0)));
    setenv("SLURM_JOB_ID", "4711", 1);
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 3; k++) {
            setenv("TZ", zones[i], 1);
            setenv("SLURM_TIME_FORMAT", formats[k], 1);
            tzset();
            assert_about(left(0), 7200);
        }
    assert_about(left(100), 100);
    setenv("SLURM_JOB_ID", "4712", 1);
    assert_true(isinf(left(0)));
}

/* One task of an array bears the array's own number, by which squeue would tell of all tasks. */
static void a_task_of_an_array_asks_for_itself(void **state)
{
    (void)state;
    write_squeue("120_3", "date -d '+7200 seconds' +$format");
    setenv("SLURM_JOB_ID", "120", 1);
    setenv("SLURM_ARRAY_JOB_ID", "120", 1);
    setenv("SLURM_ARRAY_TASK_ID", "3", 1);
    assert_about(left(0), 7200);
}

static void nonsense_is_no_end(void **state)
{
    static const char *const answers[] = {"echo N/A",   "echo",
                                          "exit 1",     "echo NONE",
                                          "echo 2031",  "echo slurm_load_jobs error",
                                          "kill -9 $$", "date -d '-1 day' +$format"};
    static const char *const jobs[] = {"", "1; touch /nowhere", "-1", "abc", "1 2"};

    (void)state;
    setenv("SLURM_JOB_ID", "5", 1);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        write_squeue("5", answers[i]);
        assert_true(isinf(left(0)));
    }
    write_squeue("5", "date -d '+7200 seconds' +$format");
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        setenv("SLURM_JOB_ID", jobs[i], 1);
        assert_true(isinf(left(0)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_at_a_time_are_one_request),
        cmocka_unit_test(a_later_one_is_an_end),
        cmocka_unit_test(none_is_an_end_once_all_is_saved),
        cmocka_unit_test(ignored_signals_stay_ignored),
        cmocka_unit_test_setup(without_slurm_only_the_job_counts, clean_environment),
        cmocka_unit_test_setup(the_variable_is_believed, clean_environment),
        cmocka_unit_test_setup(squeue_is_asked, clean_environment),
        cmocka_unit_test_setup(a_task_of_an_array_asks_for_itself, clean_environment),
        cmocka_unit_test_setup(nonsense_is_no_end, clean_environment),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
