#include "core/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/str.h"

static const char erase_line[] = "\r\033[K";

enum { DEFAULT_COLUMNS = 80 };

/*
 * The terminal behind a launcher: under mpirun our stderr is a pipe, which mpirun copies to its
 * own. Opens that terminal; -1 where the parent is no launcher, or writes elsewhere.
 */
static int open_launcher_terminal(void)
{
    static const char *const launchers[] = {"mpirun",  "mpiexec", /* and mpirun.openmpi */
                                            "orterun", "prte",    "hydra_pmi_proxy", "srun"};
    char path[64], text[256];
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%ld/comm", (long)getppid());
    dpt_file_line(path, text, sizeof text);
    if (!dpt_begins_with(text, launchers, sizeof launchers / sizeof launchers[0]))
        return -1;
    snprintf(path, sizeof path, "/proc/%ld/fd/2", (long)getppid());
    n = readlink(path, text, sizeof text - 1);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    if (strncmp(text, "/dev/pts/", 9) != 0 && strncmp(text, "/dev/tty", 8) != 0 &&
        strcmp(text, "/dev/console") != 0)
        return -1;
    /* Through /proc, since that works also where this name means another terminal (containers). */
    return open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
}

static int terminal_columns(int fd)
{
    const char *text = getenv("COLUMNS");
    struct winsize size = {0};
    int columns;

    if (fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    columns = text == NULL ? 0 : atoi(text);
    return columns > 0 && columns < 10000 ? columns : DEFAULT_COLUMNS;
}

void dpt_log_init(struct dpt_log *log, enum dpt_log_level level, bool silent)
{
    const char *forced = getenv("DPTRAIN_TTY"), *term = getenv("TERM");
    int fd = -1;

    *log = (struct dpt_log){.level = level, .silent = silent, .columns = DEFAULT_COLUMNS};
    if (silent)
        return;
    if (isatty(STDERR_FILENO))
        fd = dup(STDERR_FILENO);
    else
        fd = open_launcher_terminal();
    log->terminal = fd >= 0 && isatty(fd) && !(term != NULL && strcmp(term, "dumb") == 0);
    if (forced != NULL && forced[0] != '\0')
        log->terminal = strcmp(forced, "0") != 0;
    if (log->terminal && fd < 0) /* what --ranks relays has no other way to tell its width */
        fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    log->columns = terminal_columns(fd);
    log->tty = fd + 1;
}

enum dpt_status dpt_log_file(struct dpt_log *log, const char *path, struct dpt_error *err)
{
    if (log->silent)
        return DPT_OK;
    if (log->file != NULL)
        fclose(log->file);
    return dpt_file_stream(path, DPT_FILE_APPEND, DPT_IO, &log->file, err);
}

void dpt_log_close(struct dpt_log *log)
{
    dpt_log_live(log, NULL);
    if (log->tty > 0)
        close(log->tty - 1);
    log->tty = 0;
    if (log->file != NULL)
        fclose(log->file);
    log->file = NULL;
}

static void clear_live(struct dpt_log *log)
{
    if (log->live)
        fputs(erase_line, stderr);
    log->live = false;
}

/* Each line of the text with the local time (ISO 8601) in front. */
static void write_file(struct dpt_log *log, const char *prefix, const char *text)
{
    const time_t now = time(NULL);
    struct tm local;
    char stamp[32];

    if (log->file == NULL)
        return;
    if (localtime_r(&now, &local) == NULL ||
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &local) == 0)
        stamp[0] = '\0';
    while (text != NULL) {
        const char *end = strchr(text, '\n');
        const int n = end == NULL ? (int)strlen(text) : (int)(end - text);

        fprintf(log->file, "%s %s%.*s\n", stamp, prefix, n, text);
        prefix = "";
        text = end == NULL ? NULL : end + 1;
    }
    if (fflush(log->file) == 0 && !ferror(log->file))
        return;
    /* A full disk must not end the run for the sake of a log, but it is told, once. */
    clear_live(log);
    fprintf(stderr, "warning: writing the log file failed: %s\n", strerror(errno));
    fclose(log->file);
    log->file = NULL;
}

static void put(struct dpt_log *log, bool show, const char *prefix, const char *text, bool lines)
{
    struct dpt_str clean = {0};

    if (log->silent)
        return;
    dpt_str_printable(&clean, text, strlen(text), lines);
    text = clean.text != NULL ? clean.text : "";
    if (show) {
        clear_live(log);
        fprintf(stderr, "%s%s\n", prefix, text);
    }
    write_file(log, prefix, text);
    dpt_str_release(&clean);
}

static void __attribute__((format(printf, 4, 0)))
put_format(struct dpt_log *log, bool show, const char *prefix, const char *format, va_list args)
{
    char *text = NULL;

    if (log->silent || vasprintf(&text, format, args) < 0)
        return;
    put(log, show, prefix, text, strchr(format, '\n') != NULL);
    free(text);
}

void dpt_log_info(struct dpt_log *log, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put_format(log, log->level >= DPT_LOG_NORMAL, "", format, args);
    va_end(args);
}

void dpt_log_detail(struct dpt_log *log, const char *format, ...)
{
    va_list args;

    if (log->level < DPT_LOG_VERBOSE)
        return;
    va_start(args, format);
    put_format(log, true, "", format, args);
    va_end(args);
}

void dpt_log_warn(struct dpt_log *log, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put_format(log, true, "warning: ", format, args);
    va_end(args);
}

void dpt_log_error(struct dpt_log *log, const struct dpt_error *err)
{
    put(log, true, "", err->text, true);
}

void dpt_log_live(struct dpt_log *log, const char *text)
{
    struct dpt_str clean = {0};
    struct winsize size = {0};

    if (log->silent || !log->terminal)
        return;
    if (text == NULL || log->level < DPT_LOG_NORMAL) {
        clear_live(log);
        return;
    }
    /* It may have been made narrower: a line that spills over is not erased any more. */
    if (log->tty > 0 && ioctl(log->tty - 1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        log->columns = size.ws_col;
    dpt_str_printable(&clean, text, strcspn(text, "\n"), false);
    text = clean.text != NULL ? clean.text : "";
    fprintf(stderr, "\r%.*s\033[K", (int)dpt_utf8_bytes(text, log->columns - 1), text);
    fflush(stderr);
    log->live = true;
    dpt_str_release(&clean);
}

void dpt_log_live_count(struct dpt_log *log, double *shown, const char *what, int64_t done,
                        int64_t all)
{
    char n[32], of[32], line[128];

    if (log == NULL || dpt_now() - *shown < 0.1)
        return;
    *shown = dpt_now();
    snprintf(line, sizeof line, "%s: %s%s%s", what, dpt_group_digits(n, done),
             all > 0 ? " of " : "", all > 0 ? dpt_group_digits(of, all) : "");
    dpt_log_live(log, line);
}

void dpt_log_progress(struct dpt_log *log, const char *text)
{
    dpt_log_live(log, text);
    put(log, !log->terminal && log->level >= DPT_LOG_NORMAL, "", text, false);
}
