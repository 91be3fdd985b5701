#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/nontemporal.h"
#include "core/state/checkpoint_image.h"

enum {
    PIECE = 16 << 20,                           /* bytes a write */
    PUT = DPT_CHECKPOINT_PIECE * sizeof(float), /* bytes of HDF5's that are put in at once */
    SIP = 16 << 10,    /* bytes copied, and checked while they are in the CPU's cache */
    DIRECT = 64 << 10, /* smaller files go through the system's cache as ever */
};

/* Nobody reads the copy soon: without a detour through the caches a third less has to be moved. */
static void copy_past_caches(unsigned char *to, const unsigned char *from, size_t n)
{
    if (((uintptr_t)to | (uintptr_t)from | n) % 16 != 0) {
        memcpy(to, from, n);
        return;
    }
    dpt_copy_nontemporal((float *)(void *)to, (const float *)(const void *)from, n / sizeof(float));
    dpt_nontemporal_fence();
}

static void copy_chunk(const struct dpt_image *image, struct dpt_chunk *chunk)
{
    unsigned char *to = image->bytes + chunk->to;
    const unsigned char *from = dpt_image_source(image, chunk);

    chunk->crc = 0;
    for (size_t at = 0; at < chunk->size; at += SIP) {
        const size_t n = chunk->size - at < SIP ? chunk->size - at : SIP;

        copy_past_caches(to + at, from + at, n);
        chunk->crc = dpt_crc32(chunk->crc, from + at, n);
    }
}

struct copying {
    struct dpt_image *image;
    int threads;
};

static void copy_share(void *arg, int thread)
{
    const struct copying *c = arg;
    const int64_t n = c->image->n_chunks, end = n * (thread + 1) / c->threads;

    for (int64_t i = n * thread / c->threads; i < end; i++)
        copy_chunk(c->image, &c->image->chunks[i]);
}

enum dpt_status dpt_image_take(struct dpt_image *image, const struct dpt_state *state,
                               const char *path, struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct copying copying = {image, pool != NULL ? dpt_pool_threads(pool) : 1};

    image->state = *state;
    if (state->streams)
        status = dpt_image_stream(image, path, err);
    else if (pool != NULL)
        dpt_pool_run(pool, copy_share, &copying);
    else
        copy_share(&copying, 0);
    image->state.params = NULL;
    memset(image->state.slot, 0, sizeof image->state.slot);
    return status;
}

static void join_checksums(struct dpt_image *image)
{
    for (int i = 0; i < image->n; i++)
        image->items[i].crc = 0;
    for (int c = 0; c < image->n_chunks; c++) {
        const struct dpt_chunk *chunk = &image->chunks[c];
        uint32_t *crc = &image->items[chunk->item].crc;

        *crc = dpt_crc32_join(*crc, chunk->crc, chunk->size);
    }
}

static enum dpt_status fail_layout(const char *path, struct dpt_error *err)
{
    return dpt_fail(err, DPT_RANK, "%s: cannot be laid out in memory", path);
}

/* What HDF5 made from `at` up to `end`; *crc: of all in front of it, and with it. */
static enum dpt_status put_frame(struct dpt_image *image, const char *path, int metadata,
                                 uint64_t at, uint64_t end, uint32_t *crc, struct dpt_error *err)
{
    const bool streams = image->state.streams;

    for (uint64_t n; at < end; at += n) {
        unsigned char *to = image->bytes + (streams ? 0 : at);

        n = end - at < PUT ? end - at : PUT;
        if (dpt_pread_all(metadata, to, n, (long long)at) != 0)
            return fail_layout(path, err);
        if (streams && dpt_pwrite_all(image->fd, to, n, (long long)at) != 0)
            return dpt_fail_errno(err, DPT_IO, "%s", path);
        *crc = dpt_crc32(*crc, to, n);
    }
    return at == end ? DPT_OK : fail_layout(path, err);
}

/* What stands between the data sets, and the last line, which is the checksum of all in front of
 * it. The data sets' checksums are known already. */
static enum dpt_status frame(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char line[DPT_CHECKPOINT_TRAILER + 1];
    uint32_t crc = 0;
    uint64_t size, at = 0;
    int metadata = -1;
    bool good = true;

    join_checksums(image);
    DPT_TRY(dpt_checkpoint_metadata(&image->state, image->items, image->n, path, &metadata, &size,
                                    err));
    /* The bytes that were taken lie where the first layout had them. */
    for (int c = 0; c < image->n_chunks; c++)
        good = good && image->chunks[c].to ==
                           image->items[image->chunks[c].item].offset + image->chunks[c].start;
    if (!good || size != image->size)
        DPT_TRY(fail_layout(path, err));
    for (int i = 0; i < image->n; i++) {
        const struct dpt_item *item = &image->items[image->order[i]];

        DPT_TRY(put_frame(image, path, metadata, at, item->offset, &crc, err));
        crc = dpt_crc32_join(crc, item->crc, item->size);
        at = item->offset + item->size;
    }
    DPT_TRY(put_frame(image, path, metadata, at, size, &crc, err));
    snprintf(line, sizeof line, "dptrain crc32 %08x %020llu\n", crc, (unsigned long long)size);
    if (!image->state.streams)
        memcpy(image->bytes + size, line, DPT_CHECKPOINT_TRAILER);
    else if (dpt_pwrite_all(image->fd, line, DPT_CHECKPOINT_TRAILER, (long long)size) != 0)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
out:
    if (metadata >= 0)
        close(metadata);
    return status;
}

/* Whether what is written from now on goes past the system's cache. */
static bool set_direct(int fd, bool direct)
{
    const int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Not every file system can go past the cache, and few can with the end of a file. */
static bool put_bytes(const unsigned char *bytes, size_t size, int fd)
{
    bool direct = size >= DIRECT && set_direct(fd, true);
    size_t n;

    for (size_t at = 0; at < size; at += n) {
        n = size - at < PIECE ? size - at : PIECE;
        if (direct && n < DPT_IMAGE_PAGE)
            direct = !set_direct(fd, false);
        else if (direct)
            n -= n % DPT_IMAGE_PAGE;
        if (dpt_pwrite_all(fd, bytes + at, n, (long long)at) == 0)
            continue;
        if (!direct || errno != EINVAL || !set_direct(fd, false))
            return false;
        direct = false;
        n = 0;
    }
    return true;
}

static enum dpt_status write_file(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    const size_t size = (size_t)image->size + DPT_CHECKPOINT_TRAILER;
    enum dpt_status status = DPT_OK;
    int fd;

    if (!image->state.streams)
        DPT_TRY(dpt_image_open_file(image, path, err));
    if ((!image->state.streams && !put_bytes(image->bytes, size, image->fd)) ||
        TEMP_FAILURE_RETRY(fsync(image->fd)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    fd = image->fd;
    image->fd = -1;
    if (close(fd) != 0)
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
out:
    return status;
}

enum dpt_status dpt_image_save(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_image_put_rest(image, path, err));
    DPT_TRY(frame(image, path, err));
    DPT_TRY(write_file(image, path, err));
    DPT_TRY(dpt_lock_check(image->state.lock, err));
    if (TEMP_FAILURE_RETRY(rename(image->temporary, path)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    if (image->room > DPT_IMAGE_HELD) /* its pages are the system's until the next one is taken */
        madvise(image->bytes, image->room, MADV_DONTNEED);
    if (status != DPT_OK)
        unlink(image->temporary);
    dpt_image_drop_file(image);
    return status;
}
