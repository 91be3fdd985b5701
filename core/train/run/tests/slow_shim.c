/*
 * slow_shim: an LD_PRELOAD library that makes the file system of one rank slow.
 *
 *   SLOW_FOLDER  calls for files below it take long: opening, looking, reading
 *   SLOW_MS      how long
 *   SLOW_RANK    of which rank; others go on as ever
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1024 };

static bool slow[FILES]; /* by descriptor */

static bool is_below(const char *path)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    const char *folder = getenv("SLOW_FOLDER"), *wanted = getenv("SLOW_RANK"), *rank = NULL;

    for (int i = 0; i < 3 && rank == NULL; i++)
        rank = getenv(names[i]);
    return folder != NULL && wanted != NULL && strcmp(rank != NULL ? rank : "0", wanted) == 0 &&
           strncmp(path, folder, strlen(folder)) == 0;
}

static void wait_if(bool below)
{
    const long ms = below && getenv("SLOW_MS") != NULL ? atol(getenv("SLOW_MS")) : 0;
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    if (ms > 0)
        nanosleep(&time, NULL);
}

static void wait_for(int fd)
{
    wait_if(fd >= 0 && fd < FILES && slow[fd]);
}

int openat(int at, const char *path, int flags, ...)
{
    const bool below = is_below(path);
    va_list args;
    mode_t mode;
    int fd;

    va_start(args, flags);
    mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    wait_if(below);
    fd = (int)syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && fd < FILES)
        slow[fd] = below;
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return openat(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

int stat(const char *restrict path, struct stat *restrict info)
{
    wait_if(is_below(path));
    return fstatat(AT_FDCWD, path, info, 0);
}

int fstat(int fd, struct stat *info)
{
    wait_for(fd);
    return fstatat(fd, "", info, AT_EMPTY_PATH);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t at)
{
    wait_for(fd);
    return syscall(SYS_pread64, fd, bytes, n, at);
}

ssize_t pread64(int fd, void *bytes, size_t n, off64_t at) __attribute__((alias("pread")));

ssize_t preadv(int fd, const struct iovec *to, int n, off_t at)
{
    wait_for(fd);
    return syscall(SYS_preadv, fd, to, n, at, 0);
}

ssize_t preadv64(int fd, const struct iovec *to, int n, off64_t at)
    __attribute__((alias("preadv")));
