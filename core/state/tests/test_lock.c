/* Who owns a run folder, whether it is gone, and that there is never more than one owner. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/state/lock.h"

static struct dpt_log silent = {.silent = true};

static int make_folder(void **state)
{
    char *folder = strdup("/tmp/dptrain-lock-XXXXXX");

    *state = folder;
    return folder != NULL && mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return system(command);
}

static const char *in(const char *folder, const char *name)
{
    static char path[4][256];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void get(const char *path, char text[DPT_OWNER_LINE])
{
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    text[fread(text, 1, DPT_OWNER_LINE - 1, file)] = '\0';
    fclose(file);
}

static void a_line_reads_back(void **state)
{
    struct dpt_owner me, same;
    char line[DPT_OWNER_LINE], cut[DPT_OWNER_LINE];
    size_t n;

    (void)state;
    setenv("SLURM_JOB_ID", "4711 with\nspaces", 1);
    setenv("SLURM_RESTART_COUNT", "3", 1);
    dpt_owner_self(&me, "a host, with (odd) letters and a name that is longer than all names of "
                        "hosts may be, so that it must be cut");
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_RESTART_COUNT");
    me.generation = 12;
    n = dpt_owner_write(&me, line);
    assert_true(n < DPT_OWNER_LINE && line[n - 1] == '\n');
    assert_true(dpt_owner_read(line, &same));
    assert_memory_equal(&same, &me, sizeof me);
    assert_int_equal(same.restart, 3);
    for (size_t i = 0; i < n; i++) { /* cut anywhere it is an unknown process, not another one */
        snprintf(cut, sizeof cut, "%.*s", (int)i, line);
        assert_false(dpt_owner_read(cut, &same));
        assert_int_equal(same.pid, 0);
    }
    assert_false(dpt_owner_read("any text\n", &same));
}

/* The process number alone never decides. */
static void gone_or_not(void **state)
{
    struct dpt_owner me, other;
    siginfo_t info;
    pid_t child;

    (void)state;
    dpt_owner_self(&me, "here");
    if (me.start == 0 || me.pid_space == 0 || strcmp(me.boot, "-") == 0)
        skip(); /* nothing is known of processes here */
    other = me;
    assert_false(dpt_owner_gone(&other, &me, 1e9)); /* it lives: however long it has not moved */
    other.start++;
    assert_true(dpt_owner_gone(&other, &me, 0)); /* another process has its number now */

    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    assert_true(child > 0);
    other = me;
    other.pid = (long)child;
    other.start = 1;
    assert_true(dpt_owner_gone(&other, &me, 0));
    kill(child, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_true(dpt_owner_gone(&other, &me, 0)); /* nobody has waited for it yet */
    waitpid(child, NULL, 0);
    assert_true(dpt_owner_gone(&other, &me, 0));

    /* Another kernel, another container, an unknown one: its numbers mean nothing here. */
    for (int i = 0; i < 4; i++) {
        other = me;
        other.pid = (long)child;
        if (i == 0)
            strcpy(other.boot, "another");
        else if (i == 1)
            strcpy(other.boot, "-");
        else if (i == 2)
            other.pid_space++;
        else
            other.start = 0;
        assert_false(dpt_owner_near(&other, &me));
        assert_false(dpt_owner_gone(&other, &me, dpt_owner_patience - 1));
        assert_true(dpt_owner_gone(&other, &me, dpt_owner_patience + 1));
    }
    memset(&other, 0, sizeof other);
    assert_false(dpt_owner_gone(&other, &me, 0));
    assert_true(dpt_owner_gone(&other, &me, dpt_owner_patience + 1));
}

static void the_same_job_of_slurm(void **state)
{
    struct dpt_owner me, other;

    (void)state;
    dpt_owner_self(&me, "here");
    strcpy(me.job, "cluster/77");
    me.restart = 2;
    for (int near = 0; near < 2; near++)
        for (long long restart = 0; restart < 4; restart++) {
            other = me;
            other.restart = restart;
            if (!near)
                strcpy(other.boot, "another");
            assert_int_equal(dpt_owner_gone(&other, &me, 0), restart < 2);
            strcpy(other.job, "cluster/78");
            assert_false(dpt_owner_gone(&other, &me, 0));
        }
    strcpy(me.job, "-"); /* no job is no job in common */
    other = me;
    other.restart = 0;
    strcpy(other.boot, "another");
    assert_false(dpt_owner_gone(&other, &me, 0));
}

static void taken_checked_given_back(void **state)
{
    const char *folder = *state;
    struct dpt_lock *lock, *second;
    struct dpt_error err;
    struct dpt_owner owner;
    char line[DPT_OWNER_LINE];

    for (int i = 1; i <= 3; i++) {
        assert_int_equal(dpt_lock_take(&lock, folder, "here", &silent, &err), DPT_OK);
        assert_int_equal(dpt_lock_check(lock, &err), DPT_OK);
        get(in(folder, ".lock"), line);
        assert_true(dpt_owner_read(line, &owner));
        assert_int_equal(owner.generation, i);
        assert_int_equal(owner.pid, getpid());
        dpt_lock_release(lock);
        assert_int_not_equal(access(in(folder, ".lock"), F_OK), 0);
    }
    assert_int_equal(dpt_lock_take(&lock, folder, "here", &silent, &err), DPT_OK);
    assert_int_equal(dpt_lock_take(&second, folder, "here", &silent, &err), DPT_USAGE);
    assert_null(second);
    assert_non_null(strstr(err.text, "is in use by process"));
    assert_int_equal(dpt_lock_check(lock, &err), DPT_OK);

    /* Somebody else's line: we are out, and leave it alone. */
    put(in(folder, ".lock"), "dptrain host=x pid=9 start=1 boot=b pids=1 slurm=- restart=0 "
                             "generation=9 since=now\n");
    assert_int_equal(dpt_lock_check(lock, &err), DPT_RANK);
    assert_non_null(strstr(err.text, "was taken over by process 9 on x (since now)"));
    dpt_lock_release(lock);
    get(in(folder, ".lock"), line);
    assert_non_null(strstr(line, "pid=9 "));
    dpt_lock_release(NULL);
    assert_int_equal(dpt_lock_check(NULL, &err), DPT_OK);
}

static void a_new_folder_goes_unless_kept(void **state)
{
    const char *folder = in(*state, "new");
    struct dpt_lock *lock;
    struct dpt_error err;

    for (int keep = 0; keep < 2; keep++) {
        assert_int_equal(dpt_lock_take(&lock, folder, "here", &silent, &err), DPT_OK);
        if (keep)
            dpt_lock_keep(lock);
        dpt_lock_release(lock);
        assert_int_equal(access(folder, F_OK) == 0, keep);
    }
    put(in(*state, "file"), "");
    assert_int_equal(dpt_lock_take(&lock, in(*state, "file"), "here", &silent, &err), DPT_IO);
}

/* Takes the lock, demands to be alone, and gives it back or leaves it behind. */
static int contend(const char *folder, bool leave)
{
    struct dpt_lock *lock;
    struct dpt_error err;
    int fd, code = 0;

    while (dpt_lock_take(&lock, folder, "here", &silent, &err) != DPT_OK)
        if (err.status != DPT_USAGE)
            return 1;
    fd = open(in(folder, "alone"), O_CREAT | O_EXCL | O_WRONLY, 0666);
    if (fd < 0 || dpt_lock_check(lock, &err) != DPT_OK)
        code = 2;
    close(fd);
    unlink(in(folder, "alone"));
    if (!leave)
        dpt_lock_release(lock);
    return code;
}

/* A process that was killed while it replaced a lock leaves two files behind. */
static void killed_while_replacing(void **state)
{
    const char *folder = *state;
    struct dpt_lock *lock;
    struct dpt_error err;
    struct dpt_owner owner;
    char line[DPT_OWNER_LINE];
    pid_t child = fork();

    if (child == 0)
        _exit(contend(folder, true));
    assert_int_equal(waitpid(child, NULL, 0), child);
    get(in(folder, ".lock"), line);
    put(in(folder, ".lock.claim"), line);
    assert_int_equal(dpt_lock_take(&lock, folder, "here", &silent, &err), DPT_OK);
    assert_int_equal(dpt_lock_check(lock, &err), DPT_OK);
    get(in(folder, ".lock"), line);
    assert_true(dpt_owner_read(line, &owner));
    assert_int_equal(owner.generation, 2);
    assert_int_not_equal(access(in(folder, ".lock.claim"), F_OK), 0);
    dpt_lock_release(lock);
}

/* Many at once, every second of them leaving the lock behind as a killed process would. */
static void one_at_a_time(void **state)
{
    enum { PROCESSES = 6, ROUNDS = 8 };
    const char *folder = *state;
    struct dpt_owner owner;
    char line[DPT_OWNER_LINE];
    pid_t child[PROCESSES];
    int status;

    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PROCESSES; i++) {
            child[i] = fork();
            if (child[i] == 0)
                _exit(contend(folder, i % 2));
            assert_true(child[i] > 0);
        }
        for (int i = 0; i < PROCESSES; i++) {
            assert_int_equal(waitpid(child[i], &status, 0), child[i]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
        }
    }
    get(in(folder, access(in(folder, ".lock"), F_OK) == 0 ? ".lock" : ".lock.last"), line);
    assert_true(dpt_owner_read(line, &owner));
    assert_int_equal(owner.generation, PROCESSES * ROUNDS); /* each owner one more */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_reads_back),
        cmocka_unit_test(gone_or_not),
        cmocka_unit_test(the_same_job_of_slurm),
        cmocka_unit_test_setup_teardown(taken_checked_given_back, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_new_folder_goes_unless_kept, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(killed_while_replacing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(one_at_a_time, make_folder, remove_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
