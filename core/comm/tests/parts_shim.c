/*
 * parts_shim: an LD_PRELOAD library, to be compiled by mpicc, that counts what each rank writes to
 * checkpoints and reads from them, and what passes through rank 0, and lets one rank fail.
 *
 *   PARTS_BESIDE  likewise a file: number; the bytes that threads beside the main one wrote
 *   PARTS_HELD    part of a checkpoint's name: what such threads write to it waits until there is
 *                 the file PARTS_GO
 *   PARTS_MEMORY  a rank that has no memory left once it has opened a checkpoint
 *   PARTS_COUNTS  file to which each rank appends a line at its end: its number; the bytes that it
 *                 wrote, and read; how often it synced one; the bytes of its parts of gathers and
 *                 scatters
 *   PARTS_RANK    the rank that fails
 *   PARTS_DO      blind: it finds no checkpoint; old: it finds the file PARTS_OLD in its place;
 *                 ENOSPC: it cannot write to one; EIO: it cannot read one either
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long long written, read_, syncs, moved;
static _Atomic long long beside;
static bool opened;

/* Whether this rank is the one that a variable names. */
static bool is_rank(const char *variable)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv(variable);

    rank = rank != NULL ? rank : getenv("PMI_RANK");
    return rank != NULL && wanted != NULL && strcmp(rank, wanted) == 0;
}

/* Whether this rank is to do that. */
static bool does(const char *what)
{
    const char *wanted = getenv("PARTS_DO");

    return is_rank("PARTS_RANK") && wanted != NULL && strcmp(wanted, what) == 0;
}

static bool is_checkpoint(const char *path)
{
    return strstr(path, "/checkpoints/step-") != NULL;
}

static void name_of(int fd, char path[4096])
{
    char name[64];
    ssize_t n;

    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    n = readlink(name, path, 4095);
    path[n > 0 ? n : 0] = '\0';
}

static bool is_open(int fd)
{
    char path[4096];

    name_of(fd, path);
    return is_checkpoint(path);
}

/* Counts what is written beside the main thread, and holds it up. */
static void hold(int fd, size_t n)
{
    const char *held = getenv("PARTS_HELD"), *go = getenv("PARTS_GO");
    char path[4096];

    name_of(fd, path);
    if (syscall(SYS_gettid) == getpid() || !is_checkpoint(path))
        return;
    beside += (long long)n;
    while (held != NULL && go != NULL && strstr(path, held) != NULL && access(go, F_OK) != 0)
        usleep(1000);
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list args;

    va_start(args, flags);
    if ((flags & O_CREAT) != 0)
        mode = va_arg(args, mode_t);
    va_end(args);
    if (is_checkpoint(path) && does("blind")) {
        errno = ENOENT;
        return -1;
    }
    opened = opened || is_checkpoint(path);
    if (is_checkpoint(path) && does("old"))
        path = getenv("PARTS_OLD");
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*const next)(const char *, const char *) =
        (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    static char none[] = "MemAvailable: 0 kB\n";

    if (opened && is_rank("PARTS_MEMORY") && strcmp(path, "/proc/meminfo") == 0)
        return fmemopen(none, sizeof none - 1, "r");
    return next(path, mode);
}

FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));

/* Whether the call fails; errno is set then. */
static bool fails(int fd, bool writes)
{
    if (!does("ENOSPC") && !does("EIO"))
        return false;
    errno = does("EIO") ? EIO : ENOSPC;
    return is_open(fd) && (writes || errno == EIO);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    hold(fd, n);
    if (fails(fd, true))
        return -1;
    written += is_open(fd) ? (long long)n : 0;
    return syscall(SYS_pwrite64, fd, bytes, n, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t offset)
    __attribute__((alias("pwrite")));

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    if (n > 1000 && fails(fd, false))
        return -1;
    read_ += is_open(fd) ? (long long)n : 0;
    return syscall(SYS_pread64, fd, bytes, n, offset);
}

ssize_t pread64(int fd, void *bytes, size_t n, off64_t offset) __attribute__((alias("pread")));

int fsync(int fd)
{
    syncs += is_open(fd);
    return (int)syscall(SYS_fsync, fd);
}

static void count(int n, MPI_Datatype type)
{
    int size = 0;

    PMPI_Type_size(type, &size);
    moved += (long long)n * size;
}

int MPI_Gatherv(const void *send, int n, MPI_Datatype type, void *receive, const int *counts,
                const int *at, MPI_Datatype other, int root, MPI_Comm comm)
{
    count(n, type);
    return PMPI_Gatherv(send, n, type, receive, counts, at, other, root, comm);
}

int MPI_Scatterv(const void *send, const int *counts, const int *at, MPI_Datatype type,
                 void *receive, int n, MPI_Datatype other, int root, MPI_Comm comm)
{
    count(n, other);
    return PMPI_Scatterv(send, counts, at, type, receive, n, other, root, comm);
}

static FILE *append(const char *variable)
{
    return getenv(variable) != NULL ? fopen(getenv(variable), "a") : NULL;
}

int MPI_Finalize(void)
{
    FILE *counts = append("PARTS_COUNTS"), *others = append("PARTS_BESIDE");
    int rank = 0;

    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (counts != NULL) {
        fprintf(counts, "%d %lld %lld %lld %lld\n", rank, written, read_, syncs, moved);
        fclose(counts);
    }
    if (others != NULL) {
        fprintf(others, "%d %lld\n", rank, beside);
        fclose(others);
    }
    return PMPI_Finalize();
}
