#include "core/state/shared_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"

enum { PIECE = 1 << 20 }; /* bytes that are moved at once, so that their checksum finds them near */

enum dpt_status dpt_shared_file_mark(struct dpt_shared_file *file, int fd, bool syncs,
                                     struct dpt_error *err)
{
    struct stat info;

    if (getrandom(file->mark, sizeof file->mark, 0) != (ssize_t)sizeof file->mark)
        return dpt_fail_errno(err, DPT_RANK, "%s: no random bytes", file->path);
    if (dpt_pwrite_all(fd, file->mark, sizeof file->mark, 0) != 0 ||
        (syncs && TEMP_FAILURE_RETRY(fsync(fd)) != 0) || fstat(fd, &info) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", file->path);
    file->mark_at = 0;
    file->size = info.st_size;
    file->device = info.st_dev;
    file->inode = info.st_ino;
    return DPT_OK;
}

int dpt_shared_file_open(const struct dpt_shared_file *file, bool *same)
{
    char path[PATH_MAX + 32];
    unsigned char mark[DPT_SHARED_MARK];
    struct dpt_error ignored;
    struct stat info;
    int fd;

    snprintf(path, sizeof path, "%s", file->path);
    if (file->maker != 0)
        snprintf(path, sizeof path, "%s.tmp-%lld", file->path, (long long)file->maker);
    if (dpt_file_open(path, file->maker != 0 ? DPT_FILE_EXISTING : DPT_FILE_READ, DPT_IO, &fd,
                      &ignored) != DPT_OK)
        return -1;
    if (fstat(fd, &info) != 0 || info.st_size != file->size ||
        dpt_pread_all(fd, mark, sizeof mark, file->mark_at) != 0 ||
        memcmp(mark, file->mark, sizeof mark) != 0) {
        close(fd);
        return -1;
    }
    *same = info.st_dev == file->device && info.st_ino == file->inode;
    return fd;
}

/* Reads bytes or, if `to` is NULL, writes them. */
static enum dpt_status move(const struct dpt_shared_file *file, int fd, char *to, const char *from,
                            size_t size, int64_t at, uint32_t *crc, struct dpt_error *err)
{
    *crc = 0;
    for (size_t i = 0; i < size; i += PIECE) {
        const size_t some = size - i < PIECE ? size - i : PIECE;
        const long long place = at + (long long)i;

        if ((to != NULL ? dpt_pread_all(fd, to + i, some, place)
                        : dpt_pwrite_all(fd, from + i, some, place)) != 0)
            return dpt_fail_errno(err, DPT_IO, "%s", file->path);
        *crc = dpt_crc32(*crc, (to != NULL ? to : from) + i, some);
    }
    return DPT_OK;
}

enum dpt_status dpt_shared_file_write(const struct dpt_shared_file *file, int fd, const float *from,
                                      int64_t n, int64_t at, uint32_t *crc, struct dpt_error *err)
{
    return move(file, fd, NULL, (const char *)from, (size_t)n * sizeof *from, at, crc, err);
}

enum dpt_status dpt_shared_file_read(const struct dpt_shared_file *file, int fd, float *to,
                                     int64_t n, int64_t at, uint32_t *crc, struct dpt_error *err)
{
    return move(file, fd, (char *)to, NULL, (size_t)n * sizeof *to, at, crc, err);
}

enum dpt_status dpt_shared_file_crc(const char *path, int fd, int64_t at, int64_t end,
                                    uint32_t *crc, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    unsigned char *bytes = malloc(PIECE);

    *crc = 0;
    if (bytes == NULL)
        return dpt_fail_memory(err, "reading a checkpoint", PIECE);
    for (; at < end; at += PIECE) {
        const size_t n = end - at < PIECE ? (size_t)(end - at) : PIECE;

        if (dpt_pread_all(fd, bytes, n, at) != 0)
            DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
        *crc = dpt_crc32(*crc, bytes, n);
    }
out:
    free(bytes);
    return status;
}
