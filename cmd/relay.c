#include "cmd/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/output.h"
#include "core/comm/launched.h"

enum { PIECE = 1 << 16 };

static bool same_file(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static enum dpt_status open_pipe(struct dpt_relay *relay, int i, struct dpt_error *err)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return dpt_fail_errno(err, DPT_RANK, "mpirun could not be started");
    relay->from[i] = ends[0];
    relay->to[i] = ends[1];
    fcntl(ends[0], F_SETFL,
          O_NONBLOCK); /* what others of its users leave in it is not waited for */
    return DPT_OK;
}

enum dpt_status dpt_relay_open(struct dpt_relay *relay, bool talks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *relay = DPT_RELAY_CLOSED;
    relay->talks = talks;
    if (talks || !isatty(STDOUT_FILENO))
        DPT_TRY(open_pipe(relay, 0, err));
    if ((talks || !isatty(STDERR_FILENO)) && !same_file(STDOUT_FILENO, STDERR_FILENO))
        DPT_TRY(open_pipe(relay, 1, err));
out:
    return status;
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void dpt_relay_close(struct dpt_relay *relay)
{
    for (int i = 0; i < 2; i++) {
        close_end(&relay->from[i]);
        close_end(&relay->to[i]);
    }
}

void dpt_relay_enter(const struct dpt_relay *relay)
{
    const bool both = same_file(STDOUT_FILENO, STDERR_FILENO);

    if (relay->to[0] >= 0)
        dup2(relay->to[0], STDOUT_FILENO);
    if (relay->to[1] >= 0 || (both && relay->to[0] >= 0))
        dup2(relay->to[1] >= 0 ? relay->to[1] : relay->to[0], STDERR_FILENO);
}

/* What comes after a write that failed is dropped. */
static void put(struct dpt_relay *relay, int i, const char *bytes, size_t n)
{
    static const int to[2] = {STDOUT_FILENO, STDERR_FILENO};

    if (n > 0 && relay->lost[i] == 0 && !dpt_output_write(to[i], bytes, n))
        relay->lost[i] = errno;
}

/* Passes on what one pipe holds now. */
static void pass_on(struct dpt_relay *relay, int i)
{
    char bytes[PIECE], left[PIECE + DPT_LAUNCHER_TEXT_HELD];
    const ssize_t n = read(relay->from[i], bytes, sizeof bytes);

    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        close_end(&relay->from[i]);
    else if (n > 0 && relay->talks && dpt_launched_come())
        put(relay, i, left, dpt_launcher_text(&relay->text[i], bytes, (size_t)n, left));
    else if (n > 0)
        put(relay, i, bytes, (size_t)n);
}

void dpt_relay_begin(struct dpt_relay *relay)
{
    close_end(&relay->to[0]);
    close_end(&relay->to[1]);
}

bool dpt_relay_wait(struct dpt_relay *relay, int other, int milliseconds)
{
    struct pollfd on[3] = {{.fd = relay->from[0], .events = POLLIN},
                           {.fd = relay->from[1], .events = POLLIN},
                           {.fd = other, .events = POLLIN}};
    const int ready = poll(on, 3, milliseconds);
    bool moved = false;

    for (int i = 0; ready > 0 && i < 2; i++)
        if (on[i].revents != 0) {
            pass_on(relay, i);
            moved = true;
        }
    return moved;
}

bool dpt_relay_blocked(void)
{
    struct pollfd on[2] = {{.fd = STDOUT_FILENO, .events = POLLOUT},
                           {.fd = STDERR_FILENO, .events = POLLOUT}};

    poll(on, 2, 0);
    for (int i = 0; i < 2; i++)
        if (on[i].revents == 0 && isatty(on[i].fd))
            return true;
    return false;
}

enum dpt_status dpt_relay_end(struct dpt_relay *relay, struct dpt_error *err)
{
    char left[DPT_LAUNCHER_TEXT_HELD];

    for (int i = 0; i < 2; i++)
        put(relay, i, left, dpt_launcher_text_end(&relay->text[i], left));
    errno = relay->lost[0];
    if (errno != 0 && errno != EPIPE)
        return dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
    return DPT_OK;
}
