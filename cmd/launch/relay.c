#include "cmd/launch/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/output.h"

/* How often a child is looked for that may have left its pipes to others. */
enum { LOOK_MILLISECONDS = 250, PIECE = 1 << 16 };

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

enum dpt_status dpt_relay_open(struct dpt_relay *relay, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *relay = (struct dpt_relay){.from = {-1, -1}, .to = {-1, -1}};
    if (!isatty(STDOUT_FILENO))
        DPT_TRY(open_pipe(relay, 0, err));
    if (!isatty(STDERR_FILENO) && !same_file(STDOUT_FILENO, STDERR_FILENO))
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

/* Passes on what one pipe holds now. *lost: errno of the first write that failed; what comes behind
 * it is dropped. */
static void pass_on(int *from, int to, int *lost)
{
    char bytes[PIECE];
    const ssize_t n = read(*from, bytes, sizeof bytes);

    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        close_end(from);
    else if (n > 0 && *lost == 0 && !dpt_output_write(to, bytes, (size_t)n))
        *lost = errno;
}

/* Until both pipes are at their ends, or nothing has come since the child ended. */
enum dpt_status dpt_relay_run(struct dpt_relay *relay, pid_t child, int *state,
                              struct dpt_error *err)
{
    static const int to[2] = {STDOUT_FILENO, STDERR_FILENO};
    int lost[2] = {0, 0};
    bool ended = false;

    close_end(&relay->to[0]);
    close_end(&relay->to[1]);
    while (relay->from[0] >= 0 || relay->from[1] >= 0) {
        struct pollfd on[2] = {{.fd = relay->from[0], .events = POLLIN},
                               {.fd = relay->from[1], .events = POLLIN}};
        const int ready = poll(on, 2, ended ? 0 : LOOK_MILLISECONDS);

        for (int i = 0; ready > 0 && i < 2; i++)
            if (on[i].revents != 0)
                pass_on(&relay->from[i], to[i], &lost[i]);
        if (ready == 0 && ended)
            break;
        if (ready == 0)
            ended = waitpid(child, state, WNOHANG) == child;
    }
    while (!ended && waitpid(child, state, 0) < 0)
        if (errno != EINTR)
            return dpt_fail_errno(err, DPT_RANK, "mpirun was lost");
    errno = lost[0];
    if (errno != 0 && errno != EPIPE)
        return dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
    return DPT_OK;
}
