#include "cmd/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/comm/comm.h"

/* Seconds between two looks at a pipe, and those after which it is no longer looked at. */
static const double look = 1e-4, longest = 0.5;

/* Waits until whoever started the ranks has read what was printed. Open MPI 5's mpirun (PMIx 5.0)
 * reads 4 096 bytes at a time, keeps an unfinished line back, and puts it in front of whatever it
 * reads next, also from the standard error. */
static void await_launcher(void)
{
    static bool looks = true;
    int unread;

    looks = looks && dpt_launcher_present();
    for (double waited = 0; looks && ioctl(STDOUT_FILENO, FIONREAD, &unread) == 0 && unread > 0;
         waited += look) {
        looks = waited < longest;
        dpt_sleep(look);
    }
}

bool dpt_output_write(int fd, const char *bytes, size_t n)
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
    if (fd == STDOUT_FILENO)
        await_launcher();
    return true;
}

/* Bytes at the end of a text that begin a character of UTF-8 whose rest is still to come. */
static size_t begun(const char *text, size_t n)
{
    for (size_t i = 1; i <= 3 && i <= n; i++) {
        const unsigned char c = (unsigned char)text[n - i];

        if (c >= 0xC0)
            return c >= 0xF0 ? i : c >= 0xE0 && i < 3 ? i : i < 2 ? i : 0;
        if (c < 0x80)
            break;
    }
    return 0;
}

static bool out_of_memory; /* for what was to be printed */

/* `rest`: of the text before, where stdio cut a character in two. */
static ssize_t print(void *rest, const char *bytes, size_t n)
{
    struct dpt_str *text = rest, clean = {0};
    bool good;
    size_t kept;

    dpt_str_add(text, bytes, n);
    kept = begun(text->text, text->length);
    dpt_str_printable(&clean, text->text, text->length - kept, true);
    good = !text->failed && !clean.failed;
    out_of_memory |= !good;
    if (!good)
        errno = ENOMEM;
    good = good && dpt_output_write(STDOUT_FILENO, clean.text, clean.length);
    dpt_str_release(&clean);
    if (!text->failed)
        memmove(text->text, text->text + text->length - kept, kept);
    text->length = text->failed ? 0 : kept;
    text->failed = false;
    return good ? (ssize_t)n : 0;
}

static void repair_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            return; /* no /dev/null: nothing better can be done */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error of write(), not the end */
}

void dpt_output_begin(void)
{
    struct dpt_str *rest = calloc(1, sizeof *rest); /* the stream's, until the process ends */
    FILE *stream =
        rest == NULL ? NULL : fopencookie(rest, "w", (cookie_io_functions_t){.write = print});

    repair_streams();
    if (stream == NULL) {
        free(rest);
        return;
    }
    setvbuf(stream, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    stdout = stream;
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
    if (out_of_memory)
        return dpt_fail_memory(err, "standard output", BUFSIZ);
    if (!written)
        return dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
    /* An earlier write failed, and nobody kept its reason. */
    return dpt_fail(err, DPT_IO,
                    "standard output: not all could be written; check that the disk is not full");
}

enum dpt_status dpt_output_flush(struct dpt_error *err)
{
    return check(fflush(stdout) == 0, err);
}

enum dpt_status dpt_output_end(struct dpt_error *err)
{
    const enum dpt_status status = dpt_output_flush(err);

    if (status == DPT_OK && close(STDOUT_FILENO) != 0 && errno != EBADF && errno != EPIPE)
        return dpt_fail_errno(err, DPT_IO, "standard output: cannot write");
    return status;
}

enum dpt_status dpt_output_text(struct dpt_str *text, const char *what, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (text->failed)
        status = dpt_fail_memory(err, what, (double)text->length);
    else if (text->text != NULL)
        fputs(text->text, stdout);
    dpt_str_release(text);
    return status;
}

enum dpt_status dpt_output_colored(const char *text, struct dpt_error *err)
{
    if ((fflush(stdout) == 0 && dpt_output_write(STDOUT_FILENO, text, strlen(text))) ||
        errno == EPIPE)
        return DPT_OK; /* as dpt_output_end has it: a reader that left has what it wanted */
    return dpt_fail_errno(err, DPT_IO, "standard output");
}
