/* Shards that somebody writes to while they are read. */
#include <string.h>
#include <sys/stat.h>

#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/shards/shard.h"

enum dpt_status dpt_shard_verify(const struct dpt_shard *shard, const struct dpt_field *field,
                                 void *raw, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint32_t crc = 0;

    if (!field->info.has_crc)
        return DPT_OK;
    for (int64_t row = 0, n; row < shard->samples; row += n) {
        n = dpt_field_piece(field, row, shard->samples);
        DPT_TRY(dpt_shard_read(shard, field, row, n, raw, err));
        crc = dpt_crc32(crc, raw, (size_t)n * field->row_bytes);
    }
    if (crc != field->info.crc)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /%s does not match its checksum (crc32 is %08x, the file says "
                         "%08x): the file is damaged",
                         shard->path, field->name, crc, field->info.crc));
out:
    return status;
}

static bool mark_of(const struct dpt_shard *shard, struct dpt_shard_mark *mark)
{
    struct stat st;

    if (shard->fd >= 0 ? fstat(shard->fd, &st) != 0 : !dpt_h5_stat(shard->h5, &st))
        return false;
    *mark = (struct dpt_shard_mark){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
    return true;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

enum dpt_status dpt_shard_check_mark(const struct dpt_shard *shard, struct dpt_error *err)
{
    const struct dpt_shard_mark *old = &shard->mark;
    struct dpt_shard_mark now;

    if (!mark_of(shard, &now))
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be looked at", shard->path);
    if (now.device == old->device && now.number == old->number && now.size == old->size &&
        same_time(&now.changed, &old->changed))
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: was changed since it was opened: start again when nobody writes it",
                    shard->path);
}

/* Only its time is another: somebody touched it, or wrote over it. */
static enum dpt_status examine(struct dpt_shard *shard, bool verify, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_error why;
    void *raw;

    if (!verify || !shard->images.info.has_crc) {
        if (shard->change == DPT_SHARD_SAME)
            shard->change = DPT_SHARD_CHANGED;
        return DPT_OK;
    }
    raw = dpt_alloc(dpt_field_piece_bytes(&shard->images));
    if (raw == NULL)
        return dpt_fail_memory(err, "reading a shard",
                               (double)dpt_field_piece_bytes(&shard->images));
    if (dpt_shard_verify(shard, &shard->images, raw, &why) != DPT_OK)
        status =
            dpt_fail(err, why.status, "%s: it was written to while this run reads it", why.text);
    dpt_free(raw);
    return status;
}

enum dpt_status dpt_shard_look(struct dpt_shard *shard, bool verify, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_mark now;

    dpt_h5_enter(); /* two readers may share a shard */
    if (!shard->attached)
        goto out;
    if (!mark_of(shard, &now))
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot be looked at", shard->path));
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
