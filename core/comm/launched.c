#include "core/comm/launched.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/process.h"
#include "core/comm/comm.h"

/* --- the page --------------------------------------------------------------------------------- */

/* What a rank has noted: nothing yet, that it takes signals, or its exit code and ENDED. */
enum { READY = 1, ENDED = 2 };

struct page {
    _Atomic uint8_t signal; /* the first one that came to the launcher; 0: none */
    _Atomic uint16_t ranks[];
};

static const char memory_name[] = "dptrain-ranks";

static struct {
    struct page *page; /* NULL: there is none */
    int fd, ranks;
} own = {.fd = -1};

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
    if (own.page != NULL)
        atomic_store(&own.page->ranks[rank], READY);
}

int dpt_launched_signal(void)
{
    return own.page != NULL ? atomic_load(&own.page->signal) : 0;
}

void dpt_launched_end(int code)
{
    if (own.page != NULL && own.ranks == 0)
        atomic_store(&own.page->ranks[dpt_launcher_rank()], (uint16_t)(ENDED + code));
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
        come += atomic_load(&own.page->ranks[i]) != 0;
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
        const int noted = atomic_load(&own.page->ranks[i]);

        if (noted > ENDED)
            return noted - ENDED;
        if (noted < ENDED)
            code = -1;
    }
    return code;
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
