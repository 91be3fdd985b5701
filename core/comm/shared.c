#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/comm/internal.h"

/*
 * Rank 0 of the node makes a file in memory and allocates all its pages, and the others open it by
 * a path. With all pages allocated at the start a lack of memory is an error now instead of a
 * SIGBUS later. (MPI_Win_allocate_shared makes a sparse file in /dev/shm instead, which many
 * containers limit to 64 MB.) The file has no name once all have opened it, so nothing is left
 * behind.
 */

enum { PATH_TEXT = 128, LARGE_PAGE = 2 << 20 };

/* Rank 0's message to the others. */
struct offer {
    int code;             /* errno where it failed, else 0 */
    char path[PATH_TEXT]; /* where the others find the file */
    uint64_t device;      /* identifies the file: in another container the path may name another */
    uint64_t number;      /* its inode on that device */
};

struct way {
    const char *where;
    int (*create)(char path[PATH_TEXT]); /* returns a descriptor, or -1 with errno */
    bool named;                          /* the path has to be unlinked */
};

static int create_memfd(char path[PATH_TEXT])
{
    const int fd = memfd_create("dptrain", MFD_CLOEXEC);

    snprintf(path, PATH_TEXT, "/proc/%ld/fd/%d", (long)getpid(), fd);
    return fd;
}

static int create_in_dev_shm(char path[PATH_TEXT])
{
    snprintf(path, PATH_TEXT, "/dev/shm/dptrain-XXXXXX");
    return mkostemp(path, O_CLOEXEC);
}

/* A memfd is limited only by the memory, but to open it the others need access to rank 0's /proc
 * entries, which ranks in containers of their own lack. */
static const struct way ways[DPT_SHARED_WAYS] = {
    [DPT_SHARED_MEMFD] = {"memory", create_memfd, false},
    [DPT_SHARED_DEV_SHM] = {"/dev/shm", create_in_dev_shm, true},
};

/* Maps the file. */
static void *map(int fd, size_t size)
{
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (bytes != MAP_FAILED)
        madvise(bytes, size, MADV_HUGEPAGE); /* advice only, its failure is harmless */
    return bytes;
}

/* Allocates large pages, where the system has such for files in memory: posix_fallocate never does,
 * and leaves those that are there as they are. Whatever fails here it does, or says why not. */
static void allocate_large_pages(int fd, size_t size)
{
#ifdef MADV_POPULATE_WRITE
    void *bytes;

    if (size < LARGE_PAGE || ftruncate(fd, (off_t)size) != 0)
        return;
    bytes = map(fd, size);
    if (bytes == MAP_FAILED)
        return;
    madvise(bytes, size, MADV_POPULATE_WRITE);
    munmap(bytes, size);
#else
    (void)fd, (void)size;
#endif
}

/* Creates the file and returns its descriptor; -1: offer->code says why that failed. */
static int make_offer(const struct way *way, size_t size, struct offer *offer)
{
    const double available = dpt_memory_available();
    struct stat st;
    int fd = -1;

    /* The size is checked first, since to allocate pages that do not exist the kernel would kill
     * other processes, and then this one. */
    if (available >= 0 && (double)size > available)
        offer->code = ENOMEM;
    else if ((fd = way->create(offer->path)) < 0)
        offer->code = errno;
    else {
        allocate_large_pages(fd, size);
        do
            offer->code = posix_fallocate(fd, 0, (off_t)size);
        while (offer->code == EINTR);
    }
    if (offer->code == 0 && fstat(fd, &st) != 0)
        offer->code = errno;
    if (offer->code == 0) {
        offer->device = st.st_dev;
        offer->number = st.st_ino;
        return fd;
    }
    if (fd >= 0 && way->named)
        unlink(offer->path);
    if (fd >= 0)
        close(fd);
    return -1;
}

static int take_offer(const struct offer *offer)
{
    const int fd = open(offer->path, O_RDWR | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_dev == offer->device && st.st_ino == offer->number)
        return fd;
    close(fd);
    errno = ENOENT;
    return -1;
}

static enum dpt_status shared_fail(struct dpt_error *err, const struct way *way, size_t size,
                                   int code)
{
    struct statvfs fs;
    char host[DPT_HOST_TEXT];

    dpt_host_name(host);
    if (code == ENOMEM)
        return dpt_fail(err, DPT_RANK,
                        "not enough memory on %s to share %.1f MB between its ranks (%.1f MB free)",
                        host, (double)size / 1e6, dpt_memory_available() / 1e6);
    if (way->named && code == ENOSPC && statvfs(way->where, &fs) == 0)
        return dpt_fail(err, DPT_RANK,
                        "cannot share %.1f MB between the ranks of %s: %s is full (%.1f MB free)",
                        (double)size / 1e6, host, way->where,
                        (double)fs.f_bavail * (double)fs.f_frsize / 1e6);
    return dpt_fail(err, DPT_RANK, "cannot share %.1f MB between the ranks of %s through %s: %s",
                    (double)size / 1e6, host, way->where, strerror(code));
}

enum dpt_status dpt_shared_open_by(struct dpt_shared *shared, const struct dpt_group *node,
                                   size_t size, enum dpt_shared_way which, struct dpt_error *err)
{
    const struct way *way = &ways[which];
    enum dpt_status status = DPT_OK;
    struct offer offer = {0};
    void *bytes = MAP_FAILED;
    int fd = -1;

    if (node->rank == 0)
        fd = make_offer(way, size, &offer);
    DPT_TRY(dpt_group_broadcast(node, 0, &offer, sizeof offer, err));
    if (offer.code != 0)
        DPT_TRY(shared_fail(err, way, size, offer.code));
    if (node->rank != 0)
        fd = take_offer(&offer);
    if (fd >= 0)
        bytes = map(fd, size);
    if (bytes == MAP_FAILED)
        status = shared_fail(err, way, size, errno);
    status = dpt_group_agree(node, status, err);
out:
    if (node->rank == 0 && way->named && offer.code == 0)
        unlink(offer.path);
    if (fd >= 0)
        close(fd);
    if (status != DPT_OK && bytes != MAP_FAILED)
        munmap(bytes, size);
    else if (status == DPT_OK)
        *shared = (struct dpt_shared){.bytes = bytes, .size = size};
    return status;
}

enum dpt_status dpt_shared_open(struct dpt_shared *shared, const struct dpt_group *node,
                                size_t size, struct dpt_error *err)
{
    /* mmap refuses an empty mapping. */
    const size_t least = size == 0 ? 1 : size;
    enum dpt_status status = DPT_OK;

    *shared = (struct dpt_shared){0};
    if (node->size <= 1) {
        void *bytes = mmap(NULL, least, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (bytes == MAP_FAILED)
            return dpt_fail_memory(err, "a node's shared memory", (double)least);
        *shared = (struct dpt_shared){.bytes = bytes, .size = least};
    } else {
        for (int way = 0; way < DPT_SHARED_WAYS; way++) {
            status = dpt_shared_open_by(shared, node, least, (enum dpt_shared_way)way, err);
            if (status == DPT_OK)
                break;
        }
    }
    return status;
}

void dpt_shared_close(struct dpt_shared *shared)
{
    if (shared->bytes != NULL)
        munmap(shared->bytes, shared->size);
    *shared = (struct dpt_shared){0};
}
