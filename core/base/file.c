#include "core/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/str.h"

static _Atomic uint64_t moves;

uint64_t dpt_file_moves(void)
{
    return atomic_load_explicit(&moves, memory_order_relaxed);
}

void dpt_file_moved(void)
{
    atomic_fetch_add_explicit(&moves, 1, memory_order_relaxed);
}

/* Reads into `to`, or where that is NULL writes `from`, until all of it is done. */
static int transfer(int fd, char *to, const char *from, size_t n, long long offset)
{
    for (size_t done = 0; done < n;) {
        const off_t at = (off_t)(offset + (long long)done);
        const ssize_t some =
            to != NULL ? pread(fd, to + done, n - done, at) : pwrite(fd, from + done, n - done, at);

        if (some < 0 && errno == EINTR)
            continue;
        if (some == 0)
            errno = to != NULL ? EPIPE : ENOSPC;
        if (some <= 0)
            return -1;
        dpt_file_moved();
        done += (size_t)some;
    }
    return 0;
}

int dpt_pread_all(int fd, void *bytes, size_t n, long long offset)
{
    return transfer(fd, bytes, NULL, n, offset);
}

int dpt_pwrite_all(int fd, const void *bytes, size_t n, long long offset)
{
    return transfer(fd, NULL, bytes, n, offset);
}

int dpt_append_all(int fd, const void *bytes, size_t n)
{
    struct stat before;
    int code, cut;

    if (fstat(fd, &before) != 0)
        return -1;
    if (dpt_pwrite_all(fd, bytes, n, before.st_size) == 0)
        return 0;
    code = errno;
    cut = TEMP_FAILURE_RETRY(ftruncate(fd, before.st_size));
    (void)cut;
    errno = code;
    return -1;
}

const char *dpt_file_from_home(const char *path, struct dpt_region *region)
{
    const char *home = getenv("HOME");

    return strncmp(path, "~/", 2) != 0 || home == NULL || home[0] == '\0'
               ? path
               : dpt_region_printf(region, "%s/%s", home, path + 2);
}

bool dpt_file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

bool dpt_file_is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static const struct {
    int flags;
    const char *stream; /* for fdopen */
} modes[] = {
    [DPT_FILE_READ] = {O_RDONLY, "r"},
    [DPT_FILE_APPEND] = {O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, "a"},
    [DPT_FILE_UPDATE] = {O_RDWR | O_CREAT | O_NOFOLLOW, NULL},
    [DPT_FILE_EXISTING] = {O_RDWR | O_NOFOLLOW, NULL},
};

/* What stands where a regular file is wanted; NULL: one does. */
static const char *other_kind(mode_t mode)
{
    return S_ISREG(mode)    ? NULL
           : S_ISDIR(mode)  ? "a folder, not a file"
           : S_ISLNK(mode)  ? "a symbolic link, which is not written through: remove it"
           : S_ISFIFO(mode) ? "a pipe, not a regular file"
           : S_ISSOCK(mode) ? "a socket, not a regular file"
                            : "a device, not a regular file";
}

const char *dpt_file_relative_to(const char *path, char *text, size_t size)
{
    char folder[PATH_MAX];

    text[0] = '\0';
    if (path[0] != '/' && getcwd(folder, sizeof folder) != NULL)
        snprintf(text, size, " (relative to %s)", folder);
    return text;
}

enum dpt_status dpt_file_open(const char *path, enum dpt_file_mode mode, enum dpt_status wrong,
                              int *fd, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool follow = (modes[mode].flags & O_NOFOLLOW) == 0;
    char from[PATH_MAX + 32];
    struct stat st;
    int code;

    /* Not blocking: opening a pipe would otherwise wait for its other end. */
    *fd =
        TEMP_FAILURE_RETRY(open(path, modes[mode].flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
    code = errno;
    dpt_file_moved();
    if (*fd >= 0 ? fstat(*fd, &st) == 0 : (follow ? stat(path, &st) : lstat(path, &st)) == 0) {
        if (other_kind(st.st_mode) != NULL)
            DPT_TRY(dpt_fail(err, wrong, "%s: is %s", path, other_kind(st.st_mode)));
    } else if (*fd >= 0) {
        code = errno;
        close(*fd);
        *fd = -1;
    }
    errno = code;
    if (*fd < 0 && code == ENOENT && mode == DPT_FILE_READ)
        return dpt_fail(err, wrong, "%s: %s%s", path, strerror(code),
                        dpt_file_relative_to(path, from, sizeof from));
    if (*fd < 0)
        return dpt_fail_errno(err, wrong, "%s", path);
    fcntl(*fd, F_SETFL, modes[mode].flags & O_APPEND); /* no longer O_NONBLOCK */
out:
    if (status != DPT_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

enum dpt_status dpt_file_stream(const char *path, enum dpt_file_mode mode, enum dpt_status wrong,
                                FILE **file, struct dpt_error *err)
{
    int fd;

    *file = NULL;
    if (dpt_file_open(path, mode, wrong, &fd, err) != DPT_OK)
        return err->status;
    *file = fdopen(fd, modes[mode].stream);
    if (*file != NULL)
        return DPT_OK;
    dpt_fail_errno(err, wrong, "%s", path);
    close(fd);
    return err->status;
}

enum dpt_status dpt_file_check_target(const char *path, struct dpt_error *err)
{
    struct stat st;

    if (lstat(path, &st) == 0 && other_kind(st.st_mode) != NULL)
        return dpt_fail(err, DPT_IO, "%s: is %s", path, other_kind(st.st_mode));
    return DPT_OK;
}

enum dpt_status dpt_file_read(const char *path, size_t limit, enum dpt_status wrong, char **bytes,
                              size_t *length, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct stat st;
    char *text = NULL;
    size_t size;
    int fd;

    if (dpt_file_open(path, DPT_FILE_READ, wrong, &fd, err) != DPT_OK)
        return err->status;
    if (fstat(fd, &st) != 0)
        DPT_TRY(dpt_fail_errno(err, wrong, "%s: cannot read", path));
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
    fd = TEMP_FAILURE_RETRY(open(folder.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot open the folder", folder.text));
    /* Some file systems cannot sync a folder and say EINVAL: there is nothing to be done about it.
     */
    if (TEMP_FAILURE_RETRY(fsync(fd)) != 0 && errno != EINVAL)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot sync the folder", folder.text));
out:
    if (fd >= 0)
        close(fd);
    dpt_str_release(&folder);
    return status;
}

long dpt_file_maker(const char *end)
{
    static const char mark[] = ".tmp-";
    long process;
    char *rest;

    if (strncmp(end, mark, sizeof mark - 1) != 0 || end[5] < '0' || end[5] > '9')
        return 0;
    process = strtol(end + 5, &rest, 10);
    return *rest == '\0' ? process : 0;
}

bool dpt_process_gone(long process)
{
    return process > 0 && kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

/* Removes what processes that are gone left of this very file; it is no failure if that fails. */
static void remove_left_behind(const char *path)
{
    const size_t folder = folder_length(path), n = strlen(path + folder);
    struct dpt_str where = {0}, file = {0};
    struct dirent *entry;
    DIR *dir;

    dpt_str_printf(&where, "%.*s", (int)folder, path);
    dir = where.failed ? NULL : opendir(where.length > 0 ? where.text : ".");
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' || strncmp(entry->d_name + 1, path + folder, n) != 0 ||
            !dpt_process_gone(dpt_file_maker(entry->d_name + 1 + n)))
            continue;
        dpt_str_clear(&file);
        dpt_str_printf(&file, "%.*s%s", (int)folder, path, entry->d_name);
        if (!file.failed)
            unlink(file.text);
    }
    if (dir != NULL)
        closedir(dir);
    dpt_str_release(&where);
    dpt_str_release(&file);
}

static int create_new(const char *path)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int fd = TEMP_FAILURE_RETRY(open(path, flags, 0666));

    /* The name holds our process number, so one that exists was left by a process that is gone. */
    if (fd < 0 && errno == EEXIST && unlink(path) == 0)
        fd = TEMP_FAILURE_RETRY(open(path, flags, 0666));
    return fd;
}

/* A new, empty file in the folder of `path`, under a name of this process; *name: malloc'ed. */
static enum dpt_status open_temporary(const char *path, char **name, int *fd, struct dpt_error *err)
{
    const size_t folder = folder_length(path);
    struct dpt_str text = {0};

    *name = NULL;
    if (dpt_file_check_target(path, err) != DPT_OK)
        return err->status;
    remove_left_behind(path);
    dpt_str_printf(&text, "%.*s.%s.tmp-%ld", (int)folder, path, path + folder, (long)getpid());
    if (text.failed)
        return dpt_fail_memory(err, path, (double)strlen(path));
    *fd = create_new(text.text);
    if (*fd < 0) {
        dpt_fail_errno(err, DPT_IO, "%s: cannot create", path);
        dpt_str_release(&text);
        return err->status;
    }
    *name = text.text;
    return DPT_OK;
}

/* Syncs and closes a temporary file and gives it its own name, or removes it. */
static enum dpt_status put_in_place(int fd, const char *temporary, const char *path,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool made = true;
    int code;

    if (TEMP_FAILURE_RETRY(fsync(fd)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot write", path));
    code = close(fd);
    fd = -1;
    if (code != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot write", path));
    if (TEMP_FAILURE_RETRY(rename(temporary, path)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot put the new file in place", path));
    made = false;
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    if (fd >= 0)
        close(fd);
    if (made)
        unlink(temporary);
    return status;
}

enum dpt_status dpt_file_temporary(const char *path, char **temporary, struct dpt_error *err)
{
    int fd = -1;
    const enum dpt_status status = open_temporary(path, temporary, &fd, err);

    if (status == DPT_OK)
        close(fd);
    return status;
}

enum dpt_status dpt_file_commit(const char *temporary, const char *path, struct dpt_error *err)
{
    const int fd = TEMP_FAILURE_RETRY(open(temporary, O_WRONLY | O_NOFOLLOW | O_CLOEXEC));

    if (fd >= 0)
        return put_in_place(fd, temporary, path, err);
    return dpt_fail_errno(err, DPT_IO, "%s: cannot write", path);
}

enum dpt_status dpt_file_write_pieces(const char *path, const struct dpt_file_piece *pieces,
                                      size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *temporary = NULL;
    long long at = 0;
    int fd = -1;

    DPT_TRY(open_temporary(path, &temporary, &fd, err));
    for (size_t i = 0; i < n; i++) {
        if (dpt_pwrite_all(fd, pieces[i].bytes, pieces[i].n, at) != 0)
            DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot write", path));
        at += (long long)pieces[i].n;
    }
    status = put_in_place(fd, temporary, path, err);
    fd = -1;
out:
    if (fd >= 0) {
        close(fd);
        unlink(temporary);
    }
    free(temporary);
    return status;
}

enum dpt_status dpt_file_write(const char *path, const void *bytes, size_t length,
                               struct dpt_error *err)
{
    const struct dpt_file_piece all = {.bytes = bytes, .n = length};

    return dpt_file_write_pieces(path, &all, 1, err);
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
        if (TEMP_FAILURE_RETRY(mkdir(part.text, 0777)) == 0) {
            /* A power cut must not take it away. Where we may write but not read there is no way to
             * sync, and it has to do without. */
            struct dpt_error ignored;

            dpt_file_sync_folder(part.text, &ignored);
        } else {
            const int code = errno;

            if (!dpt_file_is_folder(part.text)) {
                errno = code == EEXIST ? ENOTDIR : code;
                DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot create the folder", part.text));
            }
        }
        part.text[i] = c;
    }
    if (!dpt_file_is_folder(path)) {
        errno = ENOENT;
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "'%s': cannot create the folder", path));
    }
out:
    dpt_str_release(&part);
    return status;
}

bool dpt_file_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    const bool found = file != NULL && fgets(line, (int)size, file) != NULL;

    if (file != NULL)
        fclose(file);
    line[found ? strcspn(line, "\n") : 0] = '\0';
    return found;
}

double dpt_file_number(const char *path, double otherwise)
{
    char line[128], *end;
    double value;

    if (!dpt_file_line(path, line, sizeof line))
        return otherwise;
    value = strtod(line, &end);
    return end != line ? value : otherwise;
}

bool dpt_file_value(const char *path, const char *label, char *value, size_t size)
{
    FILE *file = fopen(path, "re");
    const size_t n = strlen(label);
    char line[4096];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, label, n) == 0) {
            const char *at = line + n + strspn(line + n, " \t:=\"");

            snprintf(value, size, "%.*s", (int)strcspn(at, "\"\n"), at);
            found = true;
        }
    if (file != NULL)
        fclose(file);
    return found;
}

void dpt_command_line(const char *command, char *line, size_t size)
{
    FILE *pipe = popen(command, "re");

    if (pipe == NULL || fgets(line, (int)size, pipe) == NULL)
        line[0] = '\0';
    if (pipe != NULL)
        pclose(pipe);
}
