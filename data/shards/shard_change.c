/* Shards that somebody writes to while they are read. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "data/shards/shard.h"

enum dpt_status dpt_shard_take_mark(int fd, const char *path, struct dpt_shard_mark *mark,
                                    struct dpt_error *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be looked at", path);
    *mark = (struct dpt_shard_mark){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
    return DPT_OK;
}

enum dpt_status dpt_shard_sum_head(int fd, const char *path, uint32_t *head, struct dpt_error *err)
{
    char bytes[4096]; /* where HDF5 says what the file holds, or where it says so */
    const ssize_t n = TEMP_FAILURE_RETRY(pread(fd, bytes, sizeof bytes, 0));

    if (n < 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be read", path);
    *head = dpt_crc32(0, bytes, (size_t)n);
    return DPT_OK;
}

static int compare_times(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? (a->tv_sec < b->tv_sec ? -1 : 1)
                                  : (a->tv_nsec > b->tv_nsec) - (a->tv_nsec < b->tv_nsec);
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return compare_times(a, b) == 0;
}

int dpt_shard_compare_files(const struct dpt_shard *a, const struct dpt_shard *b)
{
    const struct dpt_shard_mark *x = &a->mark, *y = &b->mark;

    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    if (a->head != b->head)
        return a->head < b->head ? -1 : 1;
    return compare_times(&x->changed, &y->changed);
}

/* Nodes with disks of their own may hold different files under the same names. */
static enum dpt_status check_alike(struct dpt_shard *shard, const struct dpt_shard_mark *now,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint32_t head;

    if (now->size != shard->mark.size)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: has %lld bytes here, on another node %lld: all nodes need the same "
                         "files",
                         shard->path, (long long)now->size, (long long)shard->mark.size));
    DPT_TRY(dpt_shard_sum_head(shard->fd, shard->path, &head, err));
    if (head != shard->head)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: begins with other bytes here than on another node: all nodes need "
                         "the same files",
                         shard->path));
    shard->mark = *now;
    shard->elsewhere = false;
out:
    return status;
}

enum dpt_status dpt_shard_check_mark(struct dpt_shard *shard, bool strict, struct dpt_error *err)
{
    const struct dpt_shard_mark *old = &shard->mark;
    struct dpt_shard_mark now = {0};

    if (dpt_shard_take_mark(shard->fd, shard->path, &now, err) != DPT_OK)
        return err->status;
    if (shard->elsewhere)
        return check_alike(shard, &now, err);
    if (now.device == old->device && now.number == old->number &&
        (!strict || (now.size == old->size && same_time(&now.changed, &old->changed))))
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: was changed since it was opened: start again when no program writes it",
                    shard->path);
}

/* Only its time is another: somebody touched it, or wrote over it. */
static enum dpt_status examine(struct dpt_shard *shard, bool verify, struct dpt_error *err)
{
    const struct dpt_field *images = &shard->images;
    struct dpt_error why;

    if (!verify || !images->info.has_crc) {
        if (shard->change == DPT_SHARD_SAME)
            shard->change = DPT_SHARD_CHANGED;
        return DPT_OK;
    }
    if (dpt_field_verify(images, dpt_shard_row(shard, shard->samples), &why) == DPT_OK)
        return DPT_OK;
    return dpt_fail(err, why.status, "%s: it was written to while this run reads it", why.text);
}

enum dpt_status dpt_shard_look(struct dpt_shard *shard, bool verify, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_mark now = {0};

    dpt_h5_enter(); /* two readers may share a shard */
    DPT_TRY(dpt_shard_take_mark(shard->fd, shard->path, &now, err));
    if (now.size < shard->mark.size)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: became shorter while this run reads it: %lld bytes, it had %lld",
                         shard->path, (long long)now.size, (long long)shard->mark.size));
    if (now.size == shard->mark.size && same_time(&now.changed, &shard->mark.changed))
        goto out;
    DPT_TRY(examine(shard, verify, err));
    shard->mark = now;
out:
    dpt_h5_leave();
    return status;
}
