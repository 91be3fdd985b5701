#include "cmd/screen.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cmd/output.h"
#include "core/base/clock.h"

enum { COLUMNS = 80, ROWS = 24, MOST = 10000 };

/* The other screen, no cursor, no line wrap; and back. */
static const char enter[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
static const char leave[] = "\033[?7h\033[?25h\033[?1049l";

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

bool dpt_screen_possible(void)
{
    const char *term = getenv("TERM");

    return isatty(STDOUT_FILENO) && term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

static int from_environment(const char *name, int fallback)
{
    const char *text = getenv(name);
    const int value = text != NULL ? atoi(text) : 0;

    return value > 0 && value < MOST ? value : fallback;
}

void dpt_screen_size(int *columns, int *rows)
{
    struct winsize size;

    *columns = from_environment("COLUMNS", COLUMNS);
    *rows = from_environment("LINES", ROWS);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return;
    *columns = size.ws_col > 0 ? size.ws_col : *columns;
    *rows = size.ws_row > 0 ? size.ws_row : *rows;
}

static void take_over(struct dpt_screen *screen)
{
    struct termios raw = screen->before;

    if (screen->keys) {
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0; /* a Ctrl-C may flush the key that poll saw: read must not wait */
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    dpt_output_write(STDOUT_FILENO, enter, sizeof enter - 1);
}

static void give_back(struct dpt_screen *screen)
{
    dpt_output_write(STDOUT_FILENO, leave, sizeof leave - 1);
    if (screen->keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
}

enum dpt_status dpt_screen_open(struct dpt_screen *screen, struct dpt_error *err)
{
    sigset_t set;

    memset(screen, 0, sizeof *screen);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaddset(&set, caught[i]);
    screen->signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (screen->signals < 0)
        return dpt_fail_errno(err, DPT_RANK, "cannot wait for signals");
    sigprocmask(SIG_BLOCK, &set, &screen->mask);
    screen->keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen->before) == 0;
    screen->open = true;
    take_over(screen);
    return DPT_OK;
}

void dpt_screen_close(struct dpt_screen *screen)
{
    if (!screen->open)
        return;
    give_back(screen);
    close(screen->signals);
    sigprocmask(SIG_SETMASK, &screen->mask, NULL);
    screen->open = false;
}

enum dpt_status dpt_screen_show(const struct dpt_str *lines, int rows, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str frame = {0};
    const char *line = lines->text, *end;
    int below = 0;

    dpt_str_printf(&frame, "\033[H");
    for (int row = 0; line != NULL && row < rows && (end = strchr(line, '\n')) != NULL;
         row++, line = end + 1) {
        /* Cleared before it is written: after a full line the cursor stands on its last column. */
        dpt_str_printf(&frame, "%s\033[K", row == 0 ? "" : "\r\n");
        dpt_str_add(&frame, line, (size_t)(end - line));
        below = row + 1;
    }
    if (below < rows)
        dpt_str_printf(&frame, "%s\033[J", below > 0 ? "\r\n" : "");
    if (frame.failed)
        status = dpt_fail_memory(err, "the screen", (double)lines->length);
    else if (!dpt_output_write(STDOUT_FILENO, frame.text, frame.length))
        status = dpt_fail_errno(err, DPT_IO, "the terminal");
    dpt_str_release(&frame);
    return status;
}

static enum dpt_screen_event take_signal(struct dpt_screen *screen, int *number)
{
    struct signalfd_siginfo info;

    if (read(screen->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return DPT_SCREEN_TIME;
    *number = (int)info.ssi_signo;
    if (*number == SIGTSTP) { /* a stopped process leaves the terminal as it was */
        give_back(screen);
        kill(getpid(), SIGSTOP);
        take_over(screen);
    }
    if (*number == SIGTSTP || *number == SIGCONT || *number == SIGWINCH)
        return DPT_SCREEN_REDRAW;
    return *number == SIGINT ? DPT_SCREEN_QUIT : DPT_SCREEN_KILLED;
}

static enum dpt_screen_event take_key(bool gone)
{
    char key;
    const ssize_t n = read(STDIN_FILENO, &key, 1);

    if (n < 0)
        return errno == EINTR ? DPT_SCREEN_TIME : DPT_SCREEN_QUIT;
    if (n == 0)
        return gone ? DPT_SCREEN_QUIT : DPT_SCREEN_TIME;
    return key == 'q' || key == 'Q' || key == 4 ? DPT_SCREEN_QUIT : DPT_SCREEN_TIME;
}

enum dpt_screen_event dpt_screen_wait(struct dpt_screen *screen, int milliseconds, int *number)
{
    struct pollfd on[2] = {{.fd = screen->signals, .events = POLLIN},
                           {.fd = screen->keys ? STDIN_FILENO : -1, .events = POLLIN}};
    const double end = dpt_now() + 1e-3 * milliseconds;

    for (;;) {
        const double left = end - dpt_now();
        enum dpt_screen_event event = DPT_SCREEN_TIME;

        if (left <= 0 || (poll(on, 2, (int)(1e3 * left) + 1) == 0))
            return DPT_SCREEN_TIME;
        if (on[0].revents != 0)
            event = take_signal(screen, number);
        else if (on[1].revents != 0)
            event = take_key((on[1].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0);
        if (event != DPT_SCREEN_TIME)
            return event;
    }
}
