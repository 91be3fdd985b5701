#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pty.h>
#include <regex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/log.h"

/* What goes to stderr between the two lands in a nameless file and comes back as a string. */
static struct {
    int saved, fd; /* saved: -1 where nothing is captured */
    char text[8192];
} captured = {.saved = -1};

static void capture_begin(void)
{
    fflush(stderr);
    captured.saved = dup(STDERR_FILENO);
    captured.fd = fileno(tmpfile());
    assert_true(captured.saved >= 0 && captured.fd >= 0);
    dup2(captured.fd, STDERR_FILENO);
}

static void capture_end(void)
{
    ssize_t n;

    fflush(stderr);
    dup2(captured.saved, STDERR_FILENO);
    close(captured.saved);
    captured.saved = -1;
    n = pread(captured.fd, captured.text, sizeof captured.text - 1, 0);
    captured.text[n < 0 ? 0 : n] = '\0';
    close(captured.fd);
}

/* A test that failed while it captured would hide why, and let the next one fail. */
static int show_captured(void **state)
{
    (void)state;
    if (captured.saved >= 0) {
        capture_end();
        print_error("captured until then: %s\n", captured.text);
    }
    unsetenv("DPTRAIN_TTY");
    return 0;
}

static void say_all(struct dpt_log *log)
{
    struct dpt_error err;

    dpt_fail(&err, DPT_IO, "disk: 100%% full");
    dpt_log_info(log, "info %d", 1);
    dpt_log_detail(log, "detail %d", 2);
    dpt_log_warn(log, "warn %d", 3);
    dpt_log_error(log, &err);
    dpt_log_live(log, "live");
}

static void levels_choose_lines(void **state)
{
    // clang-format off
    static const struct { enum dpt_log_level level; bool silent; const char *want; } cases[] = {
        {DPT_LOG_QUIET, false, "warning: warn 3\ndisk: 100% full\n"},
        {DPT_LOG_NORMAL, false, "info 1\nwarning: warn 3\ndisk: 100% full\n"},
        {DPT_LOG_VERBOSE, false, "info 1\ndetail 2\nwarning: warn 3\ndisk: 100% full\n"},
        {DPT_LOG_VERBOSE, true, ""},
    };
    // clang-format on
    struct dpt_log log;

    (void)state;
    setenv("DPTRAIN_TTY", "0", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        capture_begin();
        dpt_log_init(&log, cases[i].level, cases[i].silent);
        say_all(&log);
        dpt_log_close(&log);
        capture_end();
        assert_string_equal(captured.text, cases[i].want);
    }
    unsetenv("DPTRAIN_TTY");
}

/* Drawn over itself, cut by characters and not by bytes, and gone before any other line. */
static void live_line_is_cut_and_cleared(void **state)
{
    struct dpt_log log;

    (void)state;
    setenv("DPTRAIN_TTY", "1", 1);
    setenv("COLUMNS", "6", 1);
    capture_begin();
    dpt_log_init(&log, DPT_LOG_NORMAL, false);
    dpt_log_live(&log, "abcdefgh");
    dpt_log_live(&log, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82xyz");
    dpt_log_info(&log, "a long line stays whole");
    dpt_log_info(&log, "next");
    dpt_log_live(&log, "end");
    dpt_log_close(&log);
    capture_end();
    unsetenv("DPTRAIN_TTY");
    unsetenv("COLUMNS");
    assert_int_equal(log.columns, 6);
    assert_string_equal(
        captured.text,
        "\rabcde\033[K\r\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82x\033[K" /* which is two wide */
        "\r\033[Ka long line stays whole\nnext\n\rend\033[K\r\033[K");
}

static void file_gets_time_stamps(void **state)
{
    char path[] = P_tmpdir "/dptrain-log-XXXXXX", text[4096], huge[2500];
    const char *line = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2} (.*)$";
    static const char *const want[] = {"info 1", "warning: warn 3", "disk: 100% full", "one",
                                       "two"};
    struct dpt_error err;
    struct dpt_log log;
    regmatch_t match[2];
    regex_t pattern;
    FILE *file;
    size_t n = 0;

    (void)state;
    memset(huge, 'x', sizeof huge);
    huge[sizeof huge - 1] = '\0';
    close(mkstemp(path));
    setenv("DPTRAIN_TTY", "1", 1);
    capture_begin();
    for (int twice = 0; twice < 2; twice++) { /* the second continues the file */
        dpt_log_init(&log, DPT_LOG_QUIET, false);
        assert_int_equal(dpt_log_file(&log, path, &err), DPT_OK);
        if (twice == 0)
            say_all(&log);
        else
            dpt_log_info(&log, "one\ntwo");
        if (twice == 1)
            dpt_log_info(&log, "%s", huge);
        dpt_log_close(&log);
    }
    capture_end();
    unsetenv("DPTRAIN_TTY");
    assert_int_equal(regcomp(&pattern, line, REG_EXTENDED), 0);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(text, sizeof text, file) != NULL) {
        text[strcspn(text, "\n")] = '\0';
        assert_int_equal(regexec(&pattern, text, 2, match, 0), 0);
        assert_true(n <= 5);
        assert_string_equal(text + match[1].rm_so, n == 5 ? huge : want[n]);
        n++;
    }
    assert_int_equal(n, 6);
    fclose(file);
    regfree(&pattern);
    unlink(path);
}

/* Names and paths neither steer the terminal nor forge a line, there and in the file. */
static void names_are_shown_not_done(void **state)
{
    static const char evil[] = "a\033]0;x\007\033[2J\nFORGED\xc2\x9b\xff\xe2\x80\xae";
    static const char shown[] = "a\\x1b]0;x\\x07\\x1b[2J\\nFORGED\\u009b\\xff\\u202e";
    char path[] = P_tmpdir "/dptrain-log-XXXXXX", want[1024], text[DPT_ERROR_TEXT + 1], line[256];
    struct dpt_error err;
    struct dpt_log log;
    FILE *file;

    (void)state;
    close(mkstemp(path));
    setenv("DPTRAIN_TTY", "1", 1);
    setenv("COLUMNS", "2000", 1);
    capture_begin();
    dpt_log_init(&log, DPT_LOG_VERBOSE, false);
    assert_int_equal(dpt_log_file(&log, path, &err), DPT_OK);
    dpt_log_info(&log, "1 %s", evil);
    dpt_log_detail(&log, "2 %s", evil);
    dpt_log_warn(&log, "3 %s", evil);
    dpt_fail(&err, DPT_IO, "4 %s", evil);
    dpt_log_error(&log, &err);
    dpt_fail(&err, DPT_BAD_JOB, "%s", "5\none a line");
    dpt_log_error(&log, &err);
    dpt_log_live(&log, "6 \033[1m");
    dpt_log_close(&log);
    capture_end();
    unsetenv("DPTRAIN_TTY");
    unsetenv("COLUMNS");
    snprintf(want, sizeof want,
             "1 %s\n2 %s\nwarning: 3 %s\n4 %s\n5\none a line\n\r6 \\x1b[1m\033[K%s", shown, shown,
             shown, shown, "\r\033[K");
    assert_string_equal(captured.text, want);
    file = fopen(path, "r");
    for (int n = 0; n < 6; n++) {
        assert_non_null(fgets(line, sizeof line, file));
        assert_true(line[4] == '-' && strpbrk(line, "\033\007\x9b\xff") == NULL);
    }
    fclose(file);
    unlink(path);
    /* An error that is full stays whole and ends in time, wherever the line break is. */
    for (size_t at = sizeof text - 6; at < sizeof text - 1; at++) {
        memset(text, 'x', sizeof text - 1);
        text[at] = '\n';
        text[sizeof text - 1] = '\0';
        dpt_fail(&err, DPT_IO, " %s", text);
        assert_null(strchr(err.text, '\n'));
        assert_int_equal(strlen(err.text), sizeof err.text - 1);
    }
}

/* A folder that is missing is an error; a disk that is full is told once and ends the log file, not
 * the run. */
static void file_may_fail(void **state)
{
    enum { LONG = 1 << 20 };
    char path[] = "/tmp/dpt-test-log-XXXXXX", missing[64];
    const int fd = mkstemp(path);
    struct rlimit before, limit;
    struct dpt_error err;
    struct dpt_log log;

    (void)state;
    setenv("DPTRAIN_TTY", "0", 1);
    capture_begin();
    dpt_log_init(&log, DPT_LOG_NORMAL, false);
    snprintf(missing, sizeof missing, "%s-missing/log.txt", path);
    assert_int_equal(dpt_log_file(&log, missing, &err), DPT_IO);
    assert_non_null(strstr(err.text, missing));
    assert_true(fd >= 0 && ftruncate(fd, LONG) == 0);
    assert_int_equal(dpt_log_file(&log, path, &err), DPT_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){LONG, before.rlim_max}; /* so that the file is as long as one may be */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    dpt_log_info(&log, "one");
    dpt_log_info(&log, "two");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_null(log.file);
    dpt_log_close(&log);
    capture_end();
    close(fd);
    unlink(path);
    unsetenv("DPTRAIN_TTY");
    assert_string_equal(captured.text,
                        "one\nwarning: writing the log file failed: File too large\ntwo\n");
}

static void look_at_log(int result)
{
    struct dpt_log log;
    int found[2];

    dpt_log_init(&log, DPT_LOG_NORMAL, false);
    found[0] = log.terminal;
    found[1] = log.columns;
    _exit(write(result, found, sizeof found) == sizeof found ? 0 : 1);
}

/*
 * What a process finds whose stderr is the terminal itself (launcher NULL), or a pipe from a parent
 * of that name, which has the terminal as its own stderr.
 */
static void find_in_child(const char *launcher, int terminal, int found[2])
{
    int result[2], copy[2];
    pid_t pid;

    assert_int_equal(pipe(result), 0);
    assert_int_equal(pipe(copy), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int code = 0;

        dup2(terminal, STDERR_FILENO);
        if (launcher == NULL)
            look_at_log(result[1]);
        prctl(PR_SET_NAME, launcher);
        pid = fork();
        if (pid == 0) {
            dup2(copy[1], STDERR_FILENO);
            look_at_log(result[1]);
        }
        waitpid(pid, &code, 0);
        _exit(code != 0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(result[0], found, 2 * sizeof found[0]), 2 * sizeof found[0]);
    for (int k = 0; k < 2; k++) {
        close(result[k]);
        close(copy[k]);
    }
}

static void terminal_is_found(void **state)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 33};
    int master, terminal, found[2];

    (void)state;
    setenv("TERM", "xterm", 1);
    if (openpty(&master, &terminal, NULL, NULL, &size) != 0)
        skip(); /* a machine without /dev/pts */
    find_in_child(NULL, terminal, found);
    assert_int_equal(found[0], 1);
    assert_int_equal(found[1], 33);
    find_in_child("mpirun", terminal, found);
    assert_int_equal(found[0], 1);
    assert_int_equal(found[1], 33);
    find_in_child("make", terminal, found);
    assert_int_equal(found[0], 0);
    setenv("TERM", "dumb", 1);
    find_in_child(NULL, terminal, found);
    assert_int_equal(found[0], 0);
    setenv("DPTRAIN_TTY", "1", 1);
    find_in_child("make", terminal, found);
    assert_int_equal(found[0], 1);
    setenv("DPTRAIN_TTY", "0", 1);
    setenv("TERM", "xterm", 1);
    find_in_child(NULL, terminal, found);
    assert_int_equal(found[0], 0);
    unsetenv("DPTRAIN_TTY");
    close(terminal);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(levels_choose_lines, show_captured),
        cmocka_unit_test_teardown(live_line_is_cut_and_cleared, show_captured),
        cmocka_unit_test_teardown(file_gets_time_stamps, show_captured),
        cmocka_unit_test_teardown(names_are_shown_not_done, show_captured),
        cmocka_unit_test_teardown(file_may_fail, show_captured),
        cmocka_unit_test(terminal_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
