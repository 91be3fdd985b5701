/*
 * crash_shim: an LD_PRELOAD library that stands between a process and its run folder.
 *
 * Numbers every call that changes what is in the folder (of each rank those of the main thread, and
 * those of the threads that save, which take turns, so that the numbers are the same in every run)
 * and, as the environment says, writes them into a journal, ends the process at one of them, or
 * makes one of them fail. What the C library writes by itself (its streams) goes through the same
 * calls, since fopen and fdopen give a stream of our own here. Allocations can be made to fail by
 * number as well.
 *
 *   SHIM_FOLDER   the run folder, an absolute path, as the process spells it
 *   SHIM_JOURNAL  file to append the journal to: a line a call, with what it wrote behind it
 *   SHIM_AT       m12: the 12th call of rank 0's main thread; s7: the 7th of those that save;
 *                 3m12: of rank 3
 *   SHIM_DO       before, after, torn (half of a write, then the end), EIO, ENOSPC, EINTR, short
 *   SHIM_ALLOC    m12, s7, h3: the allocation that fails: of the program's main thread, of those
 * that save, of HDF5; counted from a thread's first call above
 *
 * A line of the journal: thread, with its rank in front unless that is 0, number, call, result,
 * inode, offset, length of the data behind it, path, second path; separated by tabs.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 1024, PATH = 512 };

struct call {
    const char *name, *path, *second;
    ino_t inode;
    long long offset;
    const void *data;
    size_t size;
    long result;
};

static struct {
    bool ready;
    const char *folder, *action;
    char thread, alloc_owner;
    long rank, at_rank, alloc_rank; /* this process's, and where they are */
    uintptr_t hdf5[2], program[2];  /* where their code lies */
    long at, alloc_at;
    int journal;
    pthread_mutex_t lock; /* a call and its line in the journal are one thing */
    struct {
        char path[PATH];
        ino_t inode;
        bool append;
    } files[FILES]; /* by descriptor; path[0] == 0: not in the folder */
} shim = {.journal = -1, .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

static long calls[2], allocations[2]; /* of those that save, of the main thread */
static _Thread_local bool works;      /* this thread has made a call */

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

#define REAL(result, name, ...)                                                                    \
    static result (*next)(__VA_ARGS__);                                                            \
    if (next == NULL)                                                                              \
    next = (result(*)(__VA_ARGS__))real(name)

static void read_point(const char *variable, long *rank, char *thread, long *number)
{
    const char *text = getenv(variable);
    char *end;

    if (text == NULL || text[0] == '\0')
        return;
    *rank = strtol(text, &end, 10);
    *thread = end[0];
    *number = atol(end + 1);
}

/* This process's number in the job, as Open MPI or MPICH tells it. */
static long read_rank(void)
{
    const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};

    for (int i = 0; i < 2; i++)
        if (getenv(names[i]) != NULL)
            return atol(getenv(names[i]));
    return 0;
}

static int find_code(struct dl_phdr_info *info, size_t size, void *first)
{
    uintptr_t *range = *(bool *)first                               ? shim.program
                       : strstr(info->dlpi_name, "libhdf5") != NULL ? shim.hdf5
                                                                    : NULL;

    (void)size;
    *(bool *)first = false;
    for (int i = 0; range != NULL && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) != 0) {
            range[0] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            range[1] = range[0] + info->dlpi_phdr[i].p_memsz;
        }
    return 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *journal = getenv("SHIM_JOURNAL");
    bool first = true;

    dl_iterate_phdr(find_code, &first);
    shim.folder = getenv("SHIM_FOLDER");
    shim.action = getenv("SHIM_DO");
    shim.rank = read_rank();
    read_point("SHIM_AT", &shim.at_rank, &shim.thread, &shim.at);
    read_point("SHIM_ALLOC", &shim.alloc_rank, &shim.alloc_owner, &shim.alloc_at);
    if (journal != NULL)
        shim.journal = (int)syscall(SYS_openat, AT_FDCWD, journal,
                                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    shim.ready = shim.folder != NULL;
}

static char this_thread(void)
{
    return syscall(SYS_gettid) == getpid() ? 'm' : 's';
}

static bool is_main(void)
{
    return this_thread() == 'm';
}

static bool inside(const char *path)
{
    const size_t n = shim.ready ? strlen(shim.folder) : 0;

    return n > 0 && strncmp(path, shim.folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool known(int fd)
{
    return shim.ready && fd >= 0 && fd < FILES && shim.files[fd].path[0] != '\0';
}

/* In one go: other ranks write to it, too. */
static void put(const void *line, size_t n, const void *bytes, size_t m)
{
    const struct iovec parts[] = {{(void *)line, n}, {(void *)bytes, m}};

    if (syscall(SYS_writev, shim.journal, parts, 2) != (long)(n + m))
        abort();
}

/* Writes a call that was made, or was to be made, into the journal. */
static void note(const struct call *c, const char *what)
{
    char line[3 * PATH], rank[24] = "";
    const size_t size = c->data != NULL && c->result > 0 ? (size_t)c->result : 0;
    const int saved = errno;

    if (shim.rank > 0)
        snprintf(rank, sizeof rank, "%ld", shim.rank);
    if (shim.journal >= 0) {
        const int n = snprintf(line, sizeof line, "%s%c\t%ld\t%s%s\t%ld\t%llu\t%lld\t%zu\t%s\t%s\n",
                               rank, this_thread(), calls[is_main()], what, c->name, c->result,
                               (unsigned long long)c->inode, c->offset, size, c->path,
                               c->second != NULL ? c->second : "");
        put(line, (size_t)n, c->data, size);
    }
    errno = saved;
}

/* What is to happen to the call at hand. */
enum fate { PASS, FAIL, SHORT, AFTER, TORN };

static void end_process(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Takes the lock, which finish() gives back. */
static enum fate begin(struct call *c)
{
    pthread_mutex_lock(&shim.lock);
    works = true;
    calls[is_main()]++;
    if (shim.action == NULL || calls[is_main()] != shim.at || this_thread() != shim.thread ||
        shim.rank != shim.at_rank)
        return PASS;
    c->result = -1;
    note(c, "hit ");
    if (strcmp(shim.action, "before") == 0)
        end_process();
    if (strcmp(shim.action, "after") == 0)
        return AFTER;
    if (strcmp(shim.action, "torn") == 0)
        return c->data != NULL && c->size > 1 ? TORN : AFTER;
    if (strcmp(shim.action, "short") == 0)
        return c->data != NULL && c->size > 1 ? SHORT : PASS;
    errno = strcmp(shim.action, "ENOSPC") == 0  ? ENOSPC
            : strcmp(shim.action, "EINTR") == 0 ? EINTR
                                                : EIO;
    return FAIL;
}

static long finish(struct call *c, enum fate fate, long result)
{
    c->result = result;
    if (fate != FAIL)
        note(c, "");
    if (fate == AFTER || fate == TORN)
        end_process();
    pthread_mutex_unlock(&shim.lock);
    return result;
}

static size_t some(enum fate fate, size_t n)
{
    return fate == SHORT || fate == TORN ? n / 2 : n;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static int open_inside(const char *path, int flags, mode_t mode)
{
    struct call c = {.path = path};
    struct stat before, now;
    const bool there = stat(path, &before) == 0;
    const bool changes = (!there && (flags & O_CREAT) != 0) ||
                         (there && (flags & O_TRUNC) != 0 && before.st_size > 0);
    enum fate fate = PASS;
    int fd = -1;

    pthread_mutex_lock(&shim.lock);
    c.name = there ? "empty" : "create";
    if (changes)
        fate = begin(&c);
    if (fate != FAIL)
        fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && fd < FILES && fstat(fd, &now) == 0) {
        snprintf(shim.files[fd].path, PATH, "%s", path);
        shim.files[fd].inode = c.inode = now.st_ino;
        shim.files[fd].append = (flags & O_APPEND) != 0;
    }
    if (changes)
        finish(&c, fate, fd < 0 ? -1 : 0);
    pthread_mutex_unlock(&shim.lock);
    return fd;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list args;

    va_start(args, flags);
    if ((flags & O_CREAT) != 0)
        mode = va_arg(args, mode_t);
    va_end(args);
    return inside(path) ? open_inside(path, flags, mode)
                        : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

int close(int fd)
{
    if (known(fd)) {
        pthread_mutex_lock(&shim.lock);
        shim.files[fd].path[0] = '\0';
        pthread_mutex_unlock(&shim.lock);
    }
    return (int)syscall(SYS_close, fd);
}

/* --- writing ---------------------------------------------------------------------------------- */

ssize_t write(int fd, const void *bytes, size_t n)
{
    struct call c = {.name = "write", .data = bytes, .size = n};
    enum fate fate;
    ssize_t put_ = -1;

    if (!known(fd))
        return syscall(SYS_write, fd, bytes, n);
    c.path = shim.files[fd].path;
    c.inode = shim.files[fd].inode;
    fate = begin(&c);
    c.offset = lseek(fd, 0, shim.files[fd].append ? SEEK_END : SEEK_CUR);
    if (fate != FAIL)
        put_ = syscall(SYS_write, fd, bytes, some(fate, n));
    return finish(&c, fate, put_);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    struct call c = {.name = "write", .data = bytes, .size = n, .offset = offset};
    enum fate fate;
    ssize_t put_ = -1;

    if (!known(fd))
        return syscall(SYS_pwrite64, fd, bytes, n, offset);
    c.path = shim.files[fd].path;
    c.inode = shim.files[fd].inode;
    fate = begin(&c);
    if (fate != FAIL)
        put_ = syscall(SYS_pwrite64, fd, bytes, some(fate, n), offset);
    return finish(&c, fate, put_);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t offset)
    __attribute__((alias("pwrite")));

static ssize_t stream_write(void *cookie, const char *bytes, size_t n)
{
    size_t done = 0;

    while (done < n) { /* as the library's own streams do it */
        const ssize_t put_ = write((int)(long)cookie, bytes + done, n - done);

        if (put_ < 0)
            break;
        done += (size_t)put_;
    }
    return (ssize_t)done;
}

static int stream_close(void *cookie)
{
    return close((int)(long)cookie);
}

static FILE *stream_of(int fd, const char *mode)
{
    const cookie_io_functions_t functions = {.write = stream_write, .close = stream_close};
    FILE *stream = fopencookie((void *)(long)fd, mode, functions);

    if (stream != NULL)
        stream->_fileno = fd; /* so that fileno gives it */
    return stream;
}

FILE *fdopen(int fd, const char *mode)
{
    REAL(FILE *, "fdopen", int, const char *);
    return known(fd) && mode[0] != 'r' ? stream_of(fd, mode) : next(fd, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *stream;
    int fd;

    REAL(FILE *, "fopen", const char *, const char *);
    if (!inside(path) || mode[0] == 'r')
        return next(path, mode);
    fd = open_inside(path, O_WRONLY | O_CREAT | O_CLOEXEC | (mode[0] == 'a' ? O_APPEND : O_TRUNC),
                     0666);
    if (fd < 0)
        return NULL;
    stream = stream_of(fd, mode);
    if (stream == NULL)
        close(fd);
    return stream;
}

FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));

/* --- the other calls on a descriptor ---------------------------------------------------------- */

static int on_file(int fd, const char *name, long long size, long number, long a, long b, long d)
{
    struct call c = {
        .name = name, .path = shim.files[fd].path, .inode = shim.files[fd].inode, .offset = size};
    const enum fate fate = begin(&c);
    long result = -1;

    if (fate != FAIL)
        result = syscall(number, fd, a, b, d);
    finish(&c, fate, result);
    return (int)result;
}

int ftruncate(int fd, off_t size)
{
    return known(fd) ? on_file(fd, "size", size, SYS_ftruncate, size, 0, 0)
                     : (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate64(int fd, off64_t size) __attribute__((alias("ftruncate")));

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    return known(fd) ? on_file(fd, "reserve", offset + n, SYS_fallocate, mode, offset, n)
                     : (int)syscall(SYS_fallocate, fd, mode, offset, n);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t n) __attribute__((alias("fallocate")));

int fsync(int fd)
{
    return known(fd) ? on_file(fd, "sync", 0, SYS_fsync, 0, 0, 0) : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return known(fd) ? on_file(fd, "sync", 0, SYS_fdatasync, 0, 0, 0)
                     : (int)syscall(SYS_fdatasync, fd);
}

/* --- names ------------------------------------------------------------------------------------ */

static int on_name(const char *name, const char *path, const char *second, long number, long a,
                   long b, long d, long e)
{
    struct call c = {.name = name, .path = path, .second = second};
    const enum fate fate = begin(&c);
    long result = -1;

    if (fate != FAIL)
        result = syscall(number, a, b, d, e);
    return (int)finish(&c, fate, result);
}

int rename(const char *from, const char *to)
{
    if (inside(from) || inside(to))
        return on_name("rename", from, to, SYS_rename, (long)from, (long)to, 0, 0);
    return (int)syscall(SYS_rename, from, to);
}

int link(const char *from, const char *to)
{
    if (inside(from) || inside(to))
        return on_name("link", from, to, SYS_link, (long)from, (long)to, 0, 0);
    return (int)syscall(SYS_link, from, to);
}

int unlink(const char *path)
{
    if (inside(path))
        return on_name("unlink", path, NULL, SYS_unlink, (long)path, 0, 0, 0);
    return (int)syscall(SYS_unlink, path);
}

int symlink(const char *target, const char *path)
{
    if (inside(path))
        return on_name("symlink", path, target, SYS_symlink, (long)target, (long)path, 0, 0);
    return (int)syscall(SYS_symlink, target, path);
}

int mkdir(const char *path, mode_t mode)
{
    if (inside(path))
        return on_name("mkdir", path, NULL, SYS_mkdir, (long)path, (long)mode, 0, 0);
    return (int)syscall(SYS_mkdir, path, mode);
}

/* --- allocations ------------------------------------------------------------------------------ */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

/* Whose allocation it is: 'h', HDF5's, in any thread; else 'm' (only what the program itself asks
 * for) or 's'; 0: not counted. */
static char owner_of(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;

    if (at >= shim.hdf5[0] && at < shim.hdf5[1])
        return 'h';
    if (this_thread() == 's')
        return 's';
    return at >= shim.program[0] && at < shim.program[1] ? 'm' : 0;
}

static bool denied(const void *caller)
{
    /* Only a thread that works on the folder counts; the rest of the process is not what is tried
     * here. */
    if (!works || shim.alloc_at == 0 || shim.rank != shim.alloc_rank ||
        owner_of(caller) != shim.alloc_owner)
        return false;
    if (__atomic_add_fetch(&allocations[is_main()], 1, __ATOMIC_SEQ_CST) != shim.alloc_at)
        return false;
    if (shim.journal >= 0)
        put("hit\n", 4, NULL, 0);
    errno = ENOMEM;
    return true;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t n)
{
    return denied(CALLER) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return denied(CALLER) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return denied(CALLER) ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return denied(CALLER) ? NULL : __libc_memalign(alignment, n);
}

/* HDF5 copies names with it: its allocation counts as that of whoever calls. */
char *strdup(const char *text)
{
    const size_t n = strlen(text) + 1;
    char *copy = denied(CALLER) ? NULL : __libc_malloc(n);

    return copy != NULL ? memcpy(copy, text, n) : NULL;
}
