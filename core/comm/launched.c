#include "core/comm/launched.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/process.h"
#include "core/comm/internal.h"
#include "core/comm/watch/watch.h"

/* --- the page --------------------------------------------------------------------------------- */

/* What a rank has noted: nothing yet, that it takes signals, or its exit code and ENDED. */
enum { READY = 1, ENDED = 2 };

struct rank {
    _Alignas(64) _Atomic int64_t step;
    int32_t
        pipe; /* the launcher's descriptor of an end that the rank opens, too; -1: there is none */
    _Atomic uint16_t noted;
};

struct page {
    _Atomic uint8_t signal; /* the first one that came to the launcher; 0: none */
    struct rank ranks[];
};

/* Two descriptors of the launcher each, of which a process may have a thousand. */
enum { PIPES = 256 };

static const char memory_name[] = "dptrain-ranks";

static struct {
    struct page *page; /* NULL: there is none */
    int rank;          /* in a rank */
    /* In the launcher; ranks is 0 elsewhere. */
    int fd, ranks;
    int deaths; /* where the kernel lists the ranks whose files it has closed, in their order */
    int reader[PIPES];
    int found, first; /* ranks that were gone when they were looked for, and one of them */
} own = {.fd = -1, .deaths = -1};

static size_t page_bytes(int ranks)
{
    return sizeof(struct page) + (size_t)ranks * sizeof own.page->ranks[0];
}

static struct page *map(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return p != MAP_FAILED ? p : NULL;
}

/* Whether the path names such a page: on another machine it may name some file of another process,
 * or none. */
static bool is_page(const char *path)
{
    char target[64];
    const ssize_t n = readlink(path, target, sizeof target - 1);

    target[n > 0 ? n : 0] = '\0';
    return strncmp(target, "/memfd:", 7) == 0 &&
           strncmp(target + 7, memory_name, sizeof memory_name - 1) == 0;
}

/*
 * Opens the end of a pipe of which the launcher has the other one, so that it sees the end of this
 * rank. Linux closes the files of a dead process backwards, the highest number first. Hydra ends
 * the other ranks as soon as its own connection, PMI_FD, is closed, so this gets a higher number.
 */
static void open_pipe(const char *page, int number)
{
    char path[64];
    int fd;

    if (number < 0 || snprintf(path, sizeof path, "%.*s/%d", (int)(strrchr(page, '/') - page), page,
                               number) >= (int)sizeof path)
        return;
    fd = open(path, O_WRONLY | O_CLOEXEC); /* until this process ends */
    if (fd >= 0 && fcntl(fd, F_DUPFD_CLOEXEC, dpt_launcher_number("PMI_FD", 0) + 1) >= 0)
        close(fd);
}

void dpt_launched_join(void)
{
    const char *path = getenv(DPT_LAUNCHED_VARIABLE);
    const int rank = dpt_launcher_rank();
    struct stat stat;
    int fd;

    if (path == NULL || !dpt_launcher_present() || !is_page(path))
        return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &stat) == 0 && (size_t)stat.st_size >= page_bytes(rank + 1))
        own.page = map(fd, page_bytes(rank + 1));
    close(fd);
    if (own.page == NULL)
        return;
    own.rank = rank;
    open_pipe(path, own.page->ranks[rank].pipe);
    atomic_store(&own.page->ranks[rank].noted, READY);
}

int dpt_launched_signal(void)
{
    return own.page != NULL ? atomic_load(&own.page->signal) : 0;
}

void dpt_launched_step(int64_t step)
{
    if (own.page != NULL && own.ranks == 0)
        atomic_store_explicit(&own.page->ranks[own.rank].step, step, memory_order_relaxed);
}

void dpt_launched_end(int code)
{
    if (own.page != NULL && own.ranks == 0)
        atomic_store(&own.page->ranks[own.rank].noted, (uint16_t)(ENDED + code));
}

/* Makes a pipe whose end of life is one of the deaths. Gives the end for the rank, or -1. */
static int add_pipe(int rank)
{
    struct epoll_event event = {.events = EPOLLHUP, .data.u32 = (uint32_t)rank};
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    own.reader[rank] = ends[0];
    epoll_ctl(own.deaths, EPOLL_CTL_ADD, ends[0], &event);
    return ends[1];
}

void dpt_launched_create(int ranks)
{
    const int fd = memfd_create(memory_name, MFD_CLOEXEC);

    if (fd < 0)
        return;
    if (ftruncate(fd, (off_t)page_bytes(ranks)) == 0)
        own.page = map(fd, page_bytes(ranks));
    own.fd = fd;
    own.ranks = own.page != NULL ? ranks : 0;
    own.deaths = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < own.ranks; i++)
        own.page->ranks[i].pipe = i < PIPES && own.deaths >= 0 ? add_pipe(i) : -1;
}

void dpt_launched_export(int launcher)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", launcher, own.fd);
    setenv(DPT_LAUNCHED_VARIABLE, own.page != NULL ? path : "1", 1);
}

void dpt_launched_request(int number)
{
    if (own.page != NULL)
        atomic_store(&own.page->signal, (uint8_t)number);
}

static int count_come(void)
{
    int come = 0;

    for (int i = 0; i < own.ranks; i++)
        come += atomic_load(&own.page->ranks[i].noted) != 0;
    return come;
}

bool dpt_launched_come(void)
{
    return count_come() > 0;
}

bool dpt_launched_ready(void)
{
    return count_come() == own.ranks;
}

int dpt_launched_code(void)
{
    int code = own.ranks > 0 ? 0 : -1;

    for (int i = 0; i < own.ranks; i++) {
        const int noted = atomic_load(&own.page->ranks[i].noted);

        if (noted > ENDED)
            return noted - ENDED;
        if (noted < ENDED)
            code = -1;
    }
    return code;
}

static bool left_silently(int rank)
{
    return atomic_load(&own.page->ranks[rank].noted) == READY;
}

void dpt_launched_follow(void)
{
    for (int i = 0; i < own.ranks && i < PIPES; i++) {
        int32_t *const end = &own.page->ranks[i].pipe;
        struct pollfd on = {.fd = own.reader[i]};

        if (*end < 0 || atomic_load(&own.page->ranks[i].noted) == 0)
            continue;
        close(*end); /* now the rank has the only one */
        *end = -1;
        if (poll(&on, 1, 0) > 0 && left_silently(i)) {
            own.first = i;
            own.found++;
        }
    }
}

/* The first rank that left without a word; -1: one did, but which was the first is not known; -2:
 * none did. */
static int first_lost(void)
{
    enum { MOST = 256 };
    struct epoll_event gone[MOST];
    const int n = own.deaths >= 0 ? epoll_wait(own.deaths, gone, MOST, 0) : 0;
    int lost = -2;

    for (int i = 0; i < own.ranks; i++)
        lost = left_silently(i) ? -1 : lost;
    for (int i = 0; i < n; i++)
        if (left_silently((int)gone[i].data.u32))
            return own.found == 0 ? (int)gone[i].data.u32 : lost;
    return own.found == 1 ? own.first : lost;
}

bool dpt_launched_lost(char *line, size_t size)
{
    struct dpt_rank_status dead = {0};
    char host[DPT_HOST_TEXT];
    int rank;

    dpt_launched_follow();
    dead.rank = rank = first_lost();
    if (rank == -2 || dpt_launched_code() > 0)
        return false;
    if (rank >= 0)
        dead.step = atomic_load(&own.page->ranks[rank].step);
    dpt_host_name(host);
    dpt_watch_describe_death(&dead, host, line, size);
    return true;
}

/* --- processes -------------------------------------------------------------------------------- */

enum { SOCKETS = 1024 };

/* Whether the process runs the file that this one runs. */
static bool is_rank(int pid)
{
    char path[64];
    struct stat ours, its;

    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (stat(path, &its) != 0)
        return errno != ENOENT && errno != ESRCH;
    return stat("/proc/self/exe", &ours) == 0 && its.st_dev == ours.st_dev &&
           its.st_ino == ours.st_ino;
}

/* Lists the numbers of the sockets that a process has open; -1: it may not be looked at. */
static int list_sockets(int pid, unsigned long sockets[SOCKETS])
{
    char path[64], target[64];
    const struct dirent *entry;
    DIR *folder;
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    folder = opendir(path);
    if (folder == NULL)
        return errno == ENOENT ? 0 : -1;
    while (n < SOCKETS && (entry = readdir(folder)) != NULL) {
        const ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);

        target[length > 0 ? length : 0] = '\0';
        n += sscanf(target, "socket:[%lu]", &sockets[n]) == 1;
    }
    closedir(folder);
    return n;
}

/* Whether one of the sockets is that of an open connection, in a list of /proc/net. */
static bool lists_connection(const char *path, const unsigned long *sockets, int n)
{
    enum { ESTABLISHED = 1 };
    FILE *file = fopen(path, "re");
    char line[512];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        unsigned long number;
        unsigned state;

        if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s %*s %*s %lu", &state, &number) != 2 ||
            state != ESTABLISHED)
            continue;
        for (int i = 0; i < n; i++)
            found |= sockets[i] == number;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

static bool has_connection(int pid)
{
    static const char *const protocols[] = {"tcp", "tcp6"};
    unsigned long sockets[SOCKETS];
    const int n = list_sockets(pid, sockets);
    bool found = n < 0;
    char path[64];

    for (int i = 0; i < 2 && n > 0; i++) {
        snprintf(path, sizeof path, "/proc/%d/net/%s", pid, protocols[i]);
        found |= lists_connection(path, sockets, n);
    }
    return found;
}

/* Whether it has ended, but for its parent's asking how. */
static bool is_dead(int pid)
{
    struct dpt_process process;

    return !dpt_process_read(pid, &process) || process.state == 'Z' || process.state == 'X';
}

static bool look_at_child(void *arg, int pid)
{
    struct dpt_launched_tree *tree = arg;

    if (is_dead(pid))
        return true;
    if (is_rank(pid)) {
        tree->ranks = true;
        return false;
    }
    tree->others = true;
    tree->connected = tree->connected || has_connection(pid);
    dpt_process_children(pid, look_at_child, tree);
    return !tree->ranks;
}

void dpt_launched_look(int pid, struct dpt_launched_tree *tree)
{
    *tree = (struct dpt_launched_tree){0};
    dpt_process_children(pid, look_at_child, tree);
    if (!tree->ranks)
        tree->connected = tree->connected || has_connection(pid);
}
