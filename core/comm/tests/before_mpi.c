/*
 * before_mpi: an LD_PRELOAD library that tells which threads there are when MPI starts, and what
 * they do to the environment. MPI_Init changes it, which moves it, so that a thread that reads it
 * at that moment may crash.
 *
 * BEFORE_MPI_LOG names a file to which each process of dptrain adds lines that begin with its
 * number: init 2            MPI_Init is called, and there are so many threads read NAME         a
 * thread that is there before MPI_Init, and not the main one, reads a variable, until MPI_Init ends
 *   change NAME 2     the environment is changed before MPI_Init, beside so many threads
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 64 };

static enum { BEFORE, INSIDE, AFTER } phase;
static long there[MOST]; /* the threads as MPI_Init was called */
static int n_there, file = -1;

static void tell(const char *format, ...)
{
    char line[256];
    va_list list;
    int n = snprintf(line, sizeof line, "%ld ", (long)getpid());

    va_start(list, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, list);
    va_end(list);
    line[n++] = '\n';
    if (file >= 0 && write(file, line, (size_t)n) != n)
        abort();
}

/* Fills `all`; gives their number. */
static int find_threads(long *all)
{
    DIR *folder = opendir("/proc/self/task");
    const struct dirent *entry;
    int n = 0;

    while (folder != NULL && n < MOST && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] != '.')
            all[n++] = atol(entry->d_name);
    }
    if (folder != NULL)
        closedir(folder);
    return n;
}

static bool was_there(long thread)
{
    for (int i = 0; i < n_there; i++) {
        if (there[i] == thread)
            return true;
    }
    return false;
}

static void *next(const char *name)
{
    void *address = dlsym(RTLD_NEXT, name);

    if (address == NULL)
        abort();
    return address;
}

static void changes(const char *name)
{
    long all[MOST];
    int n;

    if (phase == BEFORE && (n = find_threads(all)) > 1)
        tell("change %.*s %d", (int)strcspn(name, "="), name, n);
}

static char *(*next_getenv)(const char *);

static __attribute__((constructor)) void begin(void)
{
    const char *path;

    *(void **)&next_getenv = next("getenv");
    path = next_getenv("BEFORE_MPI_LOG");
    if (path != NULL && strcmp(program_invocation_short_name, "dptrain") == 0) /* no mpirun */
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

char *getenv(const char *name)
{
    const long thread = syscall(SYS_gettid);

    if (next_getenv == NULL)
        *(void **)&next_getenv = next("getenv");
    if (thread != getpid() && (phase == BEFORE || (phase == INSIDE && was_there(thread))))
        tell("read %s", name);
    return next_getenv(name);
}

int setenv(const char *name, const char *text, int replace)
{
    int (*call)(const char *, const char *, int);

    *(void **)&call = next("setenv");
    if (replace || next_getenv(name) == NULL)
        changes(name);
    return call(name, text, replace);
}

int unsetenv(const char *name)
{
    int (*call)(const char *);

    *(void **)&call = next("unsetenv");
    if (next_getenv(name) != NULL)
        changes(name);
    return call(name);
}

int putenv(char *text)
{
    int (*call)(char *);

    *(void **)&call = next("putenv");
    changes(text);
    return call(text);
}

static void enter(void)
{
    const char *stops = getenv("BEFORE_MPI_STOP"), *rank = getenv("OMPI_COMM_WORLD_RANK");

    if (rank == NULL)
        rank = getenv("PMI_RANK");

    n_there = find_threads(there);
    tell("init %d", n_there);
    if (stops != NULL && rank != NULL && strcmp(stops, rank) == 0)
        raise(SIGSTOP);
    phase = INSIDE;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int (*call)(int *, char ***, int, int *), code;

    *(void **)&call = next("MPI_Init_thread");
    enter();
    code = call(argc, argv, required, provided);
    phase = AFTER;
    return code;
}

int MPI_Init(int *argc, char ***argv)
{
    int (*call)(int *, char ***), code;

    *(void **)&call = next("MPI_Init");
    enter();
    code = call(argc, argv);
    phase = AFTER;
    return code;
}
