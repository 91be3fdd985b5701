#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/process.h"
#include "core/base/rng.h"
#include "core/comm/watch/watchdog.h"

enum { MOST = 9, LIMIT = 60 };

static const struct dpt_diagnosis_context one_node = {"node07", LIMIT, "", NULL, 0};
static const struct dpt_diagnosis_context two_nodes = {"node07", LIMIT, "node08", NULL, 0};

static struct dpt_rank_status rank_at(int rank, uint64_t phase, double still, const char *note)
{
    struct dpt_rank_status s = {.rank = rank, .phase = phase, .step = 1204, .still = still};

    snprintf(s.note, sizeof s.note, "%s", note);
    return s;
}

/* Phases of a rank that waits in collective n, is past it, or has still to come to it. */
static uint64_t inside(int n)
{
    return 2 * (uint64_t)n + 1;
}

static uint64_t before(int n)
{
    return 2 * (uint64_t)n;
}

static void lines_name_the_ranks(void **state)
{
    struct dpt_rank_status s[8];
    char line[1024];

    (void)state;
    for (int i = 0; i < 8; i++)
        s[i] = rank_at(i, inside(50), 61, "computing");
    s[3] = rank_at(3, before(50), 61, "reading train-00002-of-00004.h5");
    assert_int_equal(dpt_watch_diagnose(s, 8, 0, &one_node, line, sizeof line), DPT_SOME_MISSING);
    assert_string_equal(line, "rank 3 (node07) has not arrived at step 1204 for 60 s; ranks 0-2, "
                              "4-7 wait. Its last word: reading train-00002-of-00004.h5");
    s[6] = rank_at(6, before(50), 61, "computing");
    s[3].process = DPT_PROCESS_STOPPED;
    assert_int_equal(dpt_watch_diagnose(s, 8, 0, &one_node, line, sizeof line), DPT_SOME_MISSING);
    assert_string_equal(line,
                        "ranks 3, 6 (node07) have not arrived at step 1204 for 60 s; ranks 0-2, "
                        "4-5, 7 wait. Rank 3 is stopped (SIGSTOP); its last word: reading "
                        "train-00002-of-00004.h5");
    dpt_watch_describe_death(&s[3], "node07", line, sizeof line);
    assert_string_equal(
        line, "rank 3 (node07) died at step 1204: its process is gone (killed, crashed, "
              "or out of memory: `dptrain plan` prints what it needs). Its last word: reading "
              "train-00002-of-00004.h5");
}

/* While the job starts a rank that runs may stay away for longer, one that is stopped may not. */
static void a_start_may_take_longer(void **state)
{
    const struct dpt_diagnosis_context start = {"node07", LIMIT, "node08", NULL, 10 * LIMIT};
    static const int eight[] = {3};
    struct dpt_rank_status late = rank_at(3, before(1), 61, "opening data.train");
    const struct dpt_remote_node remote = {.host = "node08",
                                           .state = DPT_REMOTE_HEARD,
                                           .ranks = eight,
                                           .n_ranks = 1,
                                           .late = &late,
                                           .n_late = 1};
    struct dpt_rank_status s[3];
    char line[1024];

    (void)state;
    for (int i = 0; i < 3; i++) {
        s[i] = rank_at(i, inside(1), 61, "opening data.train");
        s[i].step = 0;
    }
    s[1].phase = before(1);
    assert_int_equal(dpt_watch_diagnose(s, 3, 0, &start, line, sizeof line), DPT_ALL_WELL);
    s[1].process = DPT_PROCESS_STOPPED;
    assert_int_equal(dpt_watch_diagnose(s, 3, 0, &start, line, sizeof line), DPT_SOME_MISSING);
    assert_string_equal(line, "rank 1 (node07) has not arrived before the first step for 60 s; "
                              "ranks 0, 2 wait. It is stopped (SIGSTOP); its last word: opening "
                              "data.train");
    s[1].process = DPT_PROCESS_RUNS;
    for (int i = 0; i < 3; i++)
        s[i].still = 601;
    assert_int_equal(dpt_watch_diagnose(s, 3, 0, &start, line, sizeof line), DPT_SOME_MISSING);
    assert_string_equal(line, "rank 1 (node07) has not arrived before the first step for 600 s; "
                              "ranks 0, 2 wait. Its last word: opening data.train");
    s[1].phase = inside(1);
    assert_int_equal(dpt_watch_diagnose_remote(&remote, 1, s, 3, 0, &start, line, sizeof line),
                     DPT_ALL_WELL);
    late.process = DPT_PROCESS_STOPPED;
    assert_int_equal(dpt_watch_diagnose_remote(&remote, 1, s, 3, 0, &start, line, sizeof line),
                     DPT_SOME_MISSING);
    assert_non_null(strstr(line, "rank 3 (node08) has not arrived before the first step for 60 s"));
    late.process = DPT_PROCESS_RUNS;
    late.still = 600;
    assert_int_equal(dpt_watch_diagnose_remote(&remote, 1, s, 3, 0, &start, line, sizeof line),
                     DPT_SOME_MISSING);
    assert_non_null(strstr(line, "first step for 600 s"));
}

/* With what each is there for, once for those that have it in common. */
static void lines_say_what_the_ranks_are_there_for(void **state)
{
    static const char places[8][DPT_PLACE_TEXT] = {"stage 1 of 3", "stage 1 of 3", "stage 1 of 3",
                                                   "stage 2 of 3", "stage 2 of 3", "stage 2 of 3",
                                                   "stage 3 of 3", "stage 3 of 3"};
    static const int eight[] = {2, 3, 4};
    const struct dpt_diagnosis_context one = {"node07", LIMIT, "", places, 0};
    const struct dpt_diagnosis_context two = {"node07", LIMIT, "node08", places, 0};
    struct dpt_remote_node remote[2] = {
        {.host = ""}, {.host = "node08", .state = DPT_REMOTE_SILENT, .ranks = eight, .n_ranks = 3}};
    struct dpt_rank_status s[8];
    char line[1024];

    (void)state;
    for (int i = 0; i < 8; i++)
        s[i] = rank_at(i, i < 3 || i > 5 ? inside(50) : before(50), 61, "computing");
    assert_int_equal(dpt_watch_diagnose(s, 8, 0, &one, line, sizeof line), DPT_SOME_MISSING);
    assert_string_equal(line, "ranks 3-5 (node07, stage 2 of 3) have not arrived at step 1204 for "
                              "60 s; ranks 0-2, 6-7 wait. Rank 3's last word: computing");
    s[6] = rank_at(6, before(50), 61, "computing");
    assert_int_equal(dpt_watch_diagnose(s, 8, 0, &one, line, sizeof line), DPT_SOME_MISSING);
    assert_memory_equal(line, "ranks 3-5 (node07, stage 2 of 3), 6 (node07, stage 3 of 3) have",
                        63);
    assert_int_equal(dpt_watch_diagnose_remote(remote, 2, s, 2, 0, &two, line, sizeof line),
                     DPT_SOME_MISSING);
    assert_string_equal(line, "ranks 2 (node08, stage 1 of 3), 3-4 (node08, stage 2 of 3) have not "
                              "arrived at step 1204 for 60 s; ranks 0-1 (node07) wait. Nobody "
                              "answers there any more: cut off, stopped or dead");
}

static void other_nodes_are_named(void **state)
{
    struct dpt_rank_status s[2] = {rank_at(4, inside(7), 61, "computing"),
                                   rank_at(5, inside(7), 61, "computing")};
    char line[1024];

    (void)state;
    assert_int_equal(dpt_watch_diagnose(s, 2, 1, &two_nodes, line, sizeof line), DPT_NONE_MISSING);
    assert_string_equal(line, "a rank on node08 has not arrived at step 1204 for 60 s; ranks 4-5 "
                              "(node07) wait, and no rank of this node is missing");
    assert_int_equal(dpt_watch_diagnose(s, 1, 0, &two_nodes, line, sizeof line), DPT_NONE_MISSING);
    assert_string_equal(line, "a rank on node08 has not arrived at step 1204 for 60 s; rank 4 "
                              "(node07) waits, and no rank of this node is missing");
    s[1] = rank_at(5, inside(8), 61, "ending");
    assert_int_equal(dpt_watch_diagnose(s, 2, 1, &one_node, line, sizeof line), DPT_NONE_MISSING);
    assert_non_null(strstr(line, "rank 5: ending, rank 4: computing"));
}

static void ranks_on_other_nodes_are_named(void **state)
{
    static const int eight[] = {2, 3, 4}, nine[] = {5};
    struct dpt_rank_status here[2] = {rank_at(0, inside(7), 62, "computing"),
                                      rank_at(1, inside(7), 62, "computing")};
    struct dpt_rank_status late[2] = {rank_at(3, before(7), 61, "reading train-00002-of-00004.h5"),
                                      rank_at(4, before(7), 3, "computing")};
    struct dpt_remote_node remote[3] = {
        {.host = ""},
        {.host = "node08", .ranks = eight, .n_ranks = 3, .late = late},
        {.host = "node09", .ranks = nine, .n_ranks = 1},
    };
    char line[1024] = "as before";

    (void)state;
#define JUDGE() dpt_watch_diagnose_remote(remote, 3, here, 2, 0, &two_nodes, line, sizeof line)
    assert_int_equal(JUDGE(), DPT_NONE_MISSING);
    assert_string_equal(line, "as before");
    remote[1].state = DPT_REMOTE_HEARD;
    remote[1].n_late = 2;
    assert_int_equal(JUDGE(), DPT_SOME_MISSING);
    assert_string_equal(line, "rank 3 (node08) has not arrived at step 1204 for 60 s; ranks 0-1 "
                              "(node07) wait. Its last word: reading train-00002-of-00004.h5");
    late[1].process = DPT_PROCESS_STOPPED;
    assert_int_equal(JUDGE(), DPT_SOME_MISSING);
    assert_string_equal(line, "ranks 3-4 (node08) have not arrived at step 1204 for 60 s; ranks "
                              "0-1 (node07) wait. Rank 3's last word: reading "
                              "train-00002-of-00004.h5");
    /* All late, none for so long: its time is not over. */
    late[0].still = 30;
    remote[1].n_late = 1;
    assert_int_equal(JUDGE(), DPT_ALL_WELL);
    here[0].still = 4 * LIMIT - 1;
    assert_int_equal(JUDGE(), DPT_ALL_WELL);
    here[0].still = 4 * LIMIT; /* whatever the others say */
    assert_int_equal(JUDGE(), DPT_SOME_MISSING);
    assert_non_null(strstr(line, "rank 3 (node08) has not arrived at step 1204 for 240 s; "));
    here[0].still = 62;
    remote[1].state = remote[2].state = DPT_REMOTE_SILENT;
    assert_int_equal(JUDGE(), DPT_SOME_MISSING);
    assert_string_equal(line, "ranks 2-4 (node08), 5 (node09) have not arrived at step 1204 for "
                              "60 s; ranks 0-1 (node07) wait. Nobody answers there any more: cut "
                              "off, stopped or dead");
#undef JUDGE
}

static int below(uint64_t seed, uint64_t *i, int n)
{
    return (int)(dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 0, (*i)++) % (uint64_t)n);
}

/*
 * Any mixture of ranks that wait with me, are late, have gone ahead, are stuck at an earlier
 * collective, or are stopped. Blamed are the stopped and those late for the whole limit, nobody
 * else; and nobody at all while I have not waited for it.
 */
static void the_late_are_blamed_and_nobody_else(void **state)
{
    enum kind { WITH_ME, LATE, LATE_NOT_LONG, AHEAD, ASIDE, STUCK, STUCK_NOT_LONG, STOPPED, KINDS };

    (void)state;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        uint64_t k = 0;
        const int n = 1 + below(seed, &k, MOST), me = below(seed, &k, n);
        const int limit_kinds = 1 + below(seed, &k, KINDS); /* also mixtures of a few */
        const bool patient = below(seed, &k, 4) != 0;
        enum dpt_diagnosis want = DPT_NONE_MISSING, got;
        bool blamed = false, moving = false, missing[MOST] = {0};
        struct dpt_rank_status s[MOST];
        char line[1024] = "";

        for (int i = 0; i < n; i++) {
            const enum kind kind = i == me ? WITH_ME : (enum kind)below(seed, &k, limit_kinds);
            const bool is_late = kind == LATE || kind == LATE_NOT_LONG || kind == ASIDE;
            const bool is_stuck = kind == STUCK || kind == STUCK_NOT_LONG;
            const bool not_long = kind == LATE_NOT_LONG || kind == STUCK_NOT_LONG;

            s[i] = rank_at(i,
                           kind == AHEAD ? before(9)
                           : is_late     ? before(8)
                           : is_stuck    ? inside(7)
                                         : inside(8),
                           not_long ? 3 : 70, "computing");
            s[i].in_subgroup = kind == ASIDE;
            if (kind == STOPPED)
                s[i].process = DPT_PROCESS_STOPPED;
            missing[i] = kind == LATE || kind == STOPPED;
            blamed |= missing[i];
            moving |= not_long;
        }
        if (!patient)
            s[me].still = 59;
        want = !patient ? DPT_ALL_WELL
               : blamed ? DPT_SOME_MISSING
               : moving ? DPT_ALL_WELL
                        : DPT_NONE_MISSING;
        got = dpt_watch_diagnose(s, n, me, &one_node, line, sizeof line);
        if (got != want)
            fail_msg("seed %llu: %d instead of %d: %s", (unsigned long long)seed, got, want, line);
        if (got != DPT_SOME_MISSING)
            continue;
        for (int i = 0, first = 1; i < n && first; i++)
            if (missing[i]) {
                char name[16];

                first = 0;
                snprintf(name, sizeof name, "%d", i);
                assert_int_equal(strncmp(line + strcspn(line, "0123456789"), name, strlen(name)),
                                 0);
            }
    }
}

/* Thousands of ranks, longest words: the line is cut, not the memory. */
static void long_lines_are_cut(void **state)
{
    enum { RANKS = 4000 };
    struct dpt_rank_status *s = calloc(RANKS, sizeof *s);
    char line[256];

    (void)state;
    assert_non_null(s);
    for (int i = 0; i < RANKS; i++) {
        s[i] = rank_at(i, i % 2 == 0 ? inside(8) : before(8), 70, "");
        memset(s[i].note, 'x', sizeof s[i].note - 1);
    }
    assert_int_equal(dpt_watch_diagnose(s, RANKS, 0, &one_node, line, sizeof line),
                     DPT_SOME_MISSING);
    assert_int_equal(strlen(line), sizeof line - 1);
    for (int i = 0; i < RANKS; i++)
        s[i].phase = inside(i);
    assert_int_equal(dpt_watch_diagnose(s, RANKS, 0, &one_node, line, sizeof line),
                     DPT_NONE_MISSING);
    free(s);
}

static void processes_are_read(void **state)
{
    struct dpt_process self, child;
    int pid, barrier[2];
    char byte = 0;

    (void)state;
    assert_true(dpt_process_read(getpid(), &self));
    assert_int_equal(self.parent, getppid());
    assert_int_equal(strncmp(self.name, "test_watch", 10), 0);
    assert_int_equal(pipe(barrier), 0);
    pid = fork();
    if (pid == 0) {
        close(barrier[1]);
        _exit(read(barrier[0], &byte, 1) != 0);
    }
    close(barrier[0]);
    assert_true(dpt_process_read(pid, &child));
    assert_int_equal(child.parent, getpid());
    assert_true(child.born >= self.born);
    close(barrier[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(dpt_process_read(pid, &child));
}

/* Runs `work` in a process of its own. said: out, what it wrote to standard error. Returns its exit
 * code. */
static int code_of(void (*work)(struct dpt_watch *w), char *said, size_t size)
{
    int pid, ends[2], status;
    size_t n = 0;
    ssize_t more;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        struct dpt_watch w = {.host = "node07", .mine = &w.own};

        alarm(20);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        work(&w);
        _exit(0);
    }
    close(ends[1]);
    while ((more = read(ends[0], said + n, size - 1 - n)) > 0)
        n += (size_t)more;
    said[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Each note comes in time, and together they take longer than its patience. */
static void notes_in_time(struct dpt_watch *w)
{
    w->patience = 10;
    for (int i = 0; i < 10; i++) {
        dpt_watch_note(w, i, "reading", "");
        for (int tick = 0; tick < 20; tick++)
            dpt_watch_check_note(w, 0.49);
    }
}

static void note_that_stays(struct dpt_watch *w)
{
    notes_in_time(w);
    for (int tick = 0; tick < 2; tick++)
        dpt_watch_check_note(w, 0.49);
}

static void a_lone_process_ends_if_its_note_stays(void **state)
{
    char said[512];

    (void)state;
    assert_int_equal(code_of(notes_in_time, said, sizeof said), 0);
    assert_string_equal(said, "");
    assert_int_equal(code_of(note_that_stays, said, sizeof said), dpt_exit_code(DPT_RANK));
    assert_string_equal(
        said, "no answer for 10 s while reading: a file server or a device may be gone\n");
}

/* So many steps of a device, of so many seconds each. */
static void run_device(struct dpt_watch *w, int steps, double seconds)
{
    for (int i = 0; i < steps; i++) {
        dpt_device_wait_begin(&w->device_waits);
        for (double at = 0; at < seconds; at += 0.5)
            dpt_watch_check_device(w, 0.5);
        dpt_device_wait_end(&w->device_waits);
        dpt_watch_check_device(w, 0.5);
    }
}

static void steps_longer_than_the_limit(struct dpt_watch *w)
{
    w->limits = (struct dpt_comm_limits){60, 900};
    run_device(w, 1, 70); /* the first one, while the job starts */
    atomic_store(&w->started, true);
    run_device(w, 3, 80);
}

static void a_device_that_hangs(struct dpt_watch *w)
{
    steps_longer_than_the_limit(w);
    run_device(w, 1, 400);
}

static void a_device_that_hangs_at_once(struct dpt_watch *w)
{
    w->limits = (struct dpt_comm_limits){60, 900};
    run_device(w, 1, 1000);
}

static void a_device_that_hangs_after_short_steps(struct dpt_watch *w)
{
    w->limits = (struct dpt_comm_limits){60, 900};
    atomic_store(&w->started, true);
    run_device(w, 10, 1);
    run_device(w, 1, 100);
}

static void a_device_may_take_as_long_as_it_did(void **state)
{
    static const struct {
        void (*work)(struct dpt_watch *w);
        const char *said;
    } rows[] = {
        {steps_longer_than_the_limit, ""},
        {a_device_that_hangs, "for 318 s (comm.timeout: 60 s; the longest wait before: 80 s)"},
        {a_device_that_hangs_at_once, "for 898 s (comm.start_timeout: 900 s)"},
        {a_device_that_hangs_after_short_steps, "for 58 s (comm.timeout: 60 s)"},
    };
    char said[512];

    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool ends = rows[i].said[0] != '\0';

        assert_int_equal(code_of(rows[i].work, said, sizeof said),
                         ends ? dpt_exit_code(DPT_RANK) : 0);
        assert_non_null(strstr(said, rows[i].said));
        assert_true(ends == (said[0] != '\0'));
    }
}

static void say(void *link)
{
    fputs(link, stderr);
}

static void say_and_hang(void *link)
{
    say(link);
    for (;;)
        pause();
}

static void a_linked_device_that_hangs(struct dpt_watch *w)
{
    dpt_watch_linked(w, say, "aborted\n");
    a_device_that_hangs_after_short_steps(w);
}

static void an_abort_that_hangs(struct dpt_watch *w)
{
    dpt_watch_linked(w, say_and_hang, "aborted\n");
    a_device_that_hangs_after_short_steps(w);
}

static void a_device_that_was_linked(struct dpt_watch *w)
{
    dpt_watch_linked(w, say, "aborted\n");
    dpt_watch_linked(w, NULL, NULL);
    a_device_that_hangs_after_short_steps(w);
}

/* A thread that waits for the device does not go on with what an abort has left there. */
static void *wait_for_device(void *arg)
{
    struct dpt_watch *w = arg;

    dpt_device_wait_begin(&w->device_waits);
    while (!atomic_load(&w->aborted))
        dpt_sleep(0.01);
    dpt_device_wait_end(&w->device_waits);
    fputs("went on\n", stderr);
    return NULL;
}

static void a_wait_that_an_abort_ends(struct dpt_watch *w)
{
    pthread_t thread;

    dpt_watch_linked(w, say, "aborted\n");
    if (pthread_create(&thread, NULL, wait_for_device, w) != 0)
        _exit(1);
    dpt_watch_abort_links(w);
    dpt_watch_abort_links(w);
    _exit(2);
}

static void links_are_aborted_before_the_end(void **state)
{
    static const struct {
        void (*work)(struct dpt_watch *w);
        bool aborts;
    } rows[] = {{a_linked_device_that_hangs, true},
                {an_abort_that_hangs, true},
                {a_device_that_was_linked, false}};
    char said[512];

    (void)state;
    for (int i = 0; i < 3; i++) {
        const double start = dpt_now();

        assert_int_equal(code_of(rows[i].work, said, sizeof said), dpt_exit_code(DPT_RANK));
        assert_true(dpt_now() - start < 4);
        assert_non_null(strstr(said, "rank 0 (node07): its device has not ended"));
        assert_string_equal(strchr(said, '\n'), rows[i].aborts ? "\naborted\n" : "\n");
    }
    assert_int_equal(code_of(a_wait_that_an_abort_ends, said, sizeof said), 2);
    assert_string_equal(said, "aborted\n");
}

static void start_in_time(struct dpt_watch *w)
{
    w->limits = (struct dpt_comm_limits){200, 300};
    for (int i = 0; i < 599; i++)
        dpt_watch_check_start(w, 0.5);
}

static void start_that_is_late(struct dpt_watch *w)
{
    start_in_time(w);
    dpt_watch_check_start(w, 0.5);
}

static void mpi_has_a_limit_to_start(void **state)
{
    static const char warning[] = "warning: rank 0 (node07): MPI has not started after 200 s: a "
                                  "rank is missing. The start may take 300 s "
                                  "(comm.start_timeout)\n";
    const size_t n = sizeof warning - 1;
    char said[512];

    (void)state;
    assert_int_equal(code_of(start_in_time, said, sizeof said), 0);
    assert_string_equal(said, warning);
    assert_int_equal(code_of(start_that_is_late, said, sizeof said), dpt_exit_code(DPT_RANK));
    assert_memory_equal(said, warning, n);
    assert_string_equal(said + n,
                        "rank 0 (node07): MPI has not started after 300 s: a rank is missing\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_name_the_ranks),
        cmocka_unit_test(a_start_may_take_longer),
        cmocka_unit_test(lines_say_what_the_ranks_are_there_for),
        cmocka_unit_test(other_nodes_are_named),
        cmocka_unit_test(ranks_on_other_nodes_are_named),
        cmocka_unit_test(the_late_are_blamed_and_nobody_else),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(processes_are_read),
        cmocka_unit_test(a_lone_process_ends_if_its_note_stays),
        cmocka_unit_test(mpi_has_a_limit_to_start),
        cmocka_unit_test(a_device_may_take_as_long_as_it_did),
        cmocka_unit_test(links_are_aborted_before_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
