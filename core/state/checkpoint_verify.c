#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/state/checkpoint.h"

_Static_assert(DPT_CHECKPOINT_TRAILER == (int)DPT_SHARED_MARK, "a file's last line is its mark");

/* Reads the last line of a file; false where it is not the one that a checkpoint ends with. */
static bool read_trailer(int fd, struct dpt_shared_file *file, uint32_t *crc)
{
    char line[DPT_CHECKPOINT_TRAILER + 1] = "", want[DPT_CHECKPOINT_TRAILER + 1];

    file->mark_at = file->size - DPT_CHECKPOINT_TRAILER;
    if (file->mark_at <= 0 || dpt_pread_all(fd, line, DPT_CHECKPOINT_TRAILER, file->mark_at) != 0 ||
        sscanf(line, "dptrain crc32 %8" SCNx32, crc) != 1)
        return false;
    memcpy(file->mark, line, DPT_CHECKPOINT_TRAILER);
    /* Byte for byte, so that damage to the line itself shows as well. */
    snprintf(want, sizeof want, "dptrain crc32 %08x %020llu\n", *crc,
             (unsigned long long)file->mark_at);
    return memcmp(line, want, DPT_CHECKPOINT_TRAILER) == 0;
}

static enum dpt_status take_all(void *unused, int fd, const struct dpt_shared_file *file,
                                int64_t size, uint32_t *crc, struct dpt_error *err)
{
    (void)unused;
    return dpt_shared_file_crc(file->path, fd, 0, size, crc, err);
}

enum dpt_status dpt_checkpoint_verify_by(const char *path,
                                         enum dpt_status (*take)(void *arg, int fd,
                                                                 const struct dpt_shared_file *file,
                                                                 int64_t size, uint32_t *crc,
                                                                 struct dpt_error *err),
                                         void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shared_file file = {0};
    struct stat info;
    uint32_t crc, want;
    int fd;

    DPT_TRY(dpt_file_open(path, DPT_FILE_READ, DPT_BAD_DATA, &fd, err));
    if (fstat(fd, &info) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_BAD_DATA, "%s", path));
    snprintf(file.path, sizeof file.path, "%s", path);
    file.size = info.st_size;
    if (!read_trailer(fd, &file, &want))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: is no checkpoint of dptrain, or is damaged or cut short", path));
    DPT_TRY(take(arg, fd, &file, file.mark_at, &crc, err));
    if (crc != want)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s is damaged: its checksum is %08x, its last line says %08x", path, crc,
                         want));
out:
    if (fd >= 0)
        close(fd);
    return status;
}

enum dpt_status dpt_checkpoint_verify(const char *path, struct dpt_error *err)
{
    return dpt_checkpoint_verify_by(path, take_all, NULL, err);
}
