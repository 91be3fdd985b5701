/* Shards that somebody writes to while they are read. */
#include <sys/stat.h>

#include "data/shards/shard.h"

enum dpt_status dpt_shard_take_mark(const struct dpt_shard *shard, struct dpt_shard_mark *mark,
                                    struct dpt_error *err)
{
    struct stat st;

    if (shard->fd >= 0 ? fstat(shard->fd, &st) != 0 : !dpt_h5_stat(shard->h5, &st))
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be looked at", shard->path);
    *mark = (struct dpt_shard_mark){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
    return DPT_OK;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

enum dpt_status dpt_shard_check_mark(const struct dpt_shard *shard, struct dpt_error *err)
{
    const struct dpt_shard_mark *old = &shard->mark;
    struct dpt_shard_mark now = {0};

    if (dpt_shard_take_mark(shard, &now, err) != DPT_OK)
        return err->status;
    if (now.device == old->device && now.number == old->number && now.size == old->size &&
        same_time(&now.changed, &old->changed))
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
    if (!shard->attached)
        goto out;
    DPT_TRY(dpt_shard_take_mark(shard, &now, err));
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
