#include "cmd/standard_input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/train/run/stop.h"

enum { PIECE = 1 << 20 };

struct piece {
    int64_t n;
    bool ended; /* there are no more */
    char bytes[PIECE];
};

static enum dpt_status open_nameless(int *fd, struct dpt_error *err)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];

    if (folder == NULL || folder[0] == '\0')
        folder = "/tmp";
    snprintf(path, sizeof path, "%s/dptrain-input-XXXXXX", folder);
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot keep standard input here", folder);
    unlink(path);
    return DPT_OK;
}

/* Rank 0: fills a piece with what comes, for a second, so that the others do not wait for long. */
static enum dpt_status read_piece(struct piece *piece, struct dpt_error *err)
{
    struct pollfd on = {.fd = STDIN_FILENO, .events = POLLIN};

    piece->n = 0;
    while (piece->n < PIECE && poll(&on, 1, 1000) > 0) {
        const ssize_t got = read(STDIN_FILENO, piece->bytes + piece->n, (size_t)(PIECE - piece->n));

        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return dpt_fail_errno(err, DPT_IO, "standard input: cannot read");
        piece->ended = got == 0;
        if (piece->ended)
            break;
        piece->n += got > 0 ? got : 0;
    }
    if (dpt_stop_signal() != 0)
        return dpt_fail(err, DPT_STOPPED, "stopped by %s; nothing was written",
                        dpt_stop_name(dpt_stop_signal()));
    return DPT_OK;
}

enum dpt_status dpt_standard_input_share(const struct dpt_group *group, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct piece *piece;
    int64_t at = 0;
    int fd = -1;

    status = DPT_ALLOCATE(piece, 1, "a piece of standard input", err);
    if (status == DPT_OK)
        status = open_nameless(&fd, err);
    DPT_TRY(dpt_group_agree(group, status, err));
    do {
        DPT_TRY(dpt_group_agree(group, group->rank == 0 ? read_piece(piece, err) : DPT_OK, err));
        DPT_TRY(dpt_group_broadcast(group, 0, piece, offsetof(struct piece, bytes), err));
        DPT_TRY(dpt_group_broadcast(group, 0, piece->bytes, (size_t)piece->n, err));
        if (dpt_pwrite_all(fd, piece->bytes, (size_t)piece->n, at) != 0)
            status = dpt_fail_errno(err, DPT_IO, "cannot keep standard input in $TMPDIR");
        DPT_TRY(dpt_group_agree(group, status, err));
        at += piece->n;
    } while (!piece->ended);
    if (dup2(fd, STDIN_FILENO) < 0)
        status = dpt_fail_errno(err, DPT_IO, "standard input");
    DPT_TRY(dpt_group_agree(group, status, err));
out:
    if (fd >= 0)
        close(fd);
    dpt_free(piece);
    return status;
}
