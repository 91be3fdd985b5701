#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/str.h"

int dpt_pread_all(int fd, void *bytes, size_t n, long long offset)
{
    char *p = bytes;

    while (n > 0) {
        const ssize_t got = pread(fd, p, n, (off_t)offset);

        if (got < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        if (got == 0) {
            errno = EPIPE;
            return -1;
        }
        p += got;
        offset += got;
        n -= (size_t)got;
    }
    return 0;
}

int dpt_pwrite_all(int fd, const void *bytes, size_t n, long long offset)
{
    const char *p = bytes;

    while (n > 0) {
        const ssize_t put = pwrite(fd, p, n, (off_t)offset);

        if (put < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        if (put == 0) {
            errno = ENOSPC;
            return -1;
        }
        p += put;
        offset += put;
        n -= (size_t)put;
    }
    return 0;
}

bool dpt_file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

enum dpt_status dpt_file_read(const char *path, size_t limit, enum dpt_status wrong, char **bytes,
                              size_t *length, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct stat st;
    char *text = NULL;
    size_t size;
    /* Not blocking: opening a pipe would otherwise wait for its writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return dpt_fail_errno(err, wrong, "%s: cannot open", path);
    if (fstat(fd, &st) != 0)
        DPT_TRY(dpt_fail_errno(err, wrong, "%s: cannot read", path));
    if (S_ISDIR(st.st_mode))
        DPT_TRY(dpt_fail(err, wrong, "%s: is a folder, not a file", path));
    if (!S_ISREG(st.st_mode))
        DPT_TRY(dpt_fail(err, wrong, "%s: is a device, pipe or socket, not a regular file", path));
    if ((unsigned long long)st.st_size > limit)
        DPT_TRY(dpt_fail(err, wrong, "%s: has %lld bytes, more than the %zu that are allowed", path,
                         (long long)st.st_size, limit));
    size = (size_t)st.st_size;
    text = malloc(size + 1);
    if (text == NULL)
        DPT_TRY(dpt_fail_memory(err, path, (double)size));
    if (dpt_pread_all(fd, text, size, 0) != 0)
        DPT_TRY(errno == EPIPE ? dpt_fail(err, wrong, "%s: became shorter while it was read", path)
                               : dpt_fail_errno(err, wrong, "%s: cannot read", path));
    text[size] = '\0';
    *bytes = text;
    *length = size;
    text = NULL;
out:
    free(text);
    close(fd);
    return status;
}

/* Length of the folder part of a path, the last slash included; 0 where there is none. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? 0 : (size_t)(slash - path) + 1;
}

enum dpt_status dpt_file_sync_folder(const char *path, struct dpt_error *err)
{
    const size_t n = folder_length(path);
    enum dpt_status status = DPT_OK;
    struct dpt_str folder = {0};
    int fd = -1;

    if (n == 0)
        dpt_str_add(&folder, ".", 1);
    else
        dpt_str_add(&folder, path, n);
    if (folder.failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)n));
    fd = open(folder.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot open the folder", folder.text));
    /* Some file systems cannot sync a folder and say EINVAL: there is nothing to be done about it.
     */
    if (fsync(fd) != 0 && errno != EINVAL)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot sync the folder", folder.text));
out:
    if (fd >= 0)
        close(fd);
    dpt_str_release(&folder);
    return status;
}

static int create_new(const char *path)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int fd = open(path, flags, 0666);

    /* The name holds our process number, so one that exists was left by a process that is gone. */
    if (fd < 0 && errno == EEXIST && unlink(path) == 0)
        fd = open(path, flags, 0666);
    return fd;
}

enum dpt_status dpt_file_write(const char *path, const void *bytes, size_t length,
                               struct dpt_error *err)
{
    const size_t folder = folder_length(path);
    enum dpt_status status = DPT_OK;
    struct dpt_str temporary = {0};
    bool made = false;
    int fd = -1, code;

    dpt_str_printf(&temporary, "%.*s.%s.tmp-%ld", (int)folder, path, path + folder, (long)getpid());
    if (temporary.failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)strlen(path)));
    fd = create_new(temporary.text);
    if (fd < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot create", path));
    made = true;
    if (dpt_pwrite_all(fd, bytes, length, 0) != 0 || fsync(fd) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot write", path));
    code = close(fd);
    fd = -1;
    if (code != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot write", path));
    if (rename(temporary.text, path) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot put the new file in place", path));
    made = false;
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    if (fd >= 0)
        close(fd);
    if (made)
        unlink(temporary.text);
    dpt_str_release(&temporary);
    return status;
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum dpt_status dpt_make_folders(const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str part = {0};

    dpt_str_add(&part, path, strlen(path));
    if (part.failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)strlen(path)));
    for (size_t i = 1; i <= part.length; i++) {
        const char c = part.text[i];

        if (c != '/' && c != '\0')
            continue;
        part.text[i] = '\0';
        if (mkdir(part.text, 0777) == 0) {
            /* A power cut must not take it away. Where we may write but not read there is no way to
             * sync, and it has to do without. */
            struct dpt_error ignored;

            dpt_file_sync_folder(part.text, &ignored);
        } else {
            const int code = errno;

            if (!is_folder(part.text)) {
                errno = code == EEXIST ? ENOTDIR : code;
                DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot create the folder", part.text));
            }
        }
        part.text[i] = c;
    }
    if (!is_folder(path)) {
        errno = ENOENT;
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "'%s': cannot create the folder", path));
    }
out:
    dpt_str_release(&part);
    return status;
}
