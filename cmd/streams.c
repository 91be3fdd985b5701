#include "cmd/streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void dpt_streams_repair(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            return; /* no /dev/null: nothing better can be done */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error of write(), not the end */
}

bool dpt_streams_write(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t put = write(fd, bytes, n);

        if (put < 0 && errno == EAGAIN) { /* whoever shares it with us made it so */
            struct pollfd on = {.fd = fd, .events = POLLOUT};

            poll(&on, 1, -1);
        } else if (put < 0 && errno != EINTR) {
            return false;
        }
        bytes += put > 0 ? put : 0;
        n -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* Whether nobody reads any more what is written here. */
static bool reader_left(int fd)
{
    struct pollfd on = {.fd = fd, .events = POLLOUT};

    return poll(&on, 1, 0) == 1 && (on.revents & (POLLERR | POLLHUP)) != 0;
}

static enum dpt_status check(bool written, struct dpt_error *err)
{
    if ((written && !ferror(stdout)) || (!written && errno == EPIPE) || reader_left(STDOUT_FILENO))
        return DPT_OK;
    if (!written)
        return dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
    /* An earlier write failed, and nobody kept its reason. */
    return dpt_fail(err, DPT_IO, "standard output: not all could be written; is the disk full?");
}

enum dpt_status dpt_streams_flush(struct dpt_error *err)
{
    return check(fflush(stdout) == 0, err);
}

enum dpt_status dpt_streams_finish(struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_streams_flush(err));
    if (close(STDOUT_FILENO) != 0 && errno != EBADF && errno != EPIPE)
        status = dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
out:
    return status;
}
