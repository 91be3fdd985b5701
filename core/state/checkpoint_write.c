#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/base/nontemporal.h"
#include "core/state/checkpoint_image.h"

enum {
    PAGE = 4096,      /* what writing past the cache wants addresses, offsets and sizes to divide */
    HUGE = 2 << 20,   /* pages so large make copying and writing cheaper */
    PIECE = 16 << 20, /* bytes a write */
    CHUNK = DPT_CHECKPOINT_PIECE * sizeof(float), /* bytes of one thread's turn */
    SIP = 16 << 10,    /* bytes copied, and checked while they are in the CPU's cache */
    DIRECT = 64 << 10, /* smaller files go through the system's cache as ever */
    HELD = 16 << 20,   /* images up to which their memory is held between two saves */
};

/* A part of an item, copied by one thread. */
struct chunk {
    int item;
    size_t start, size; /* bytes */
    uint64_t to;        /* in the file */
    uint32_t crc;
};

struct dpt_image {
    struct dpt_state state; /* as it was taken, without its arenas */
    struct dpt_item *items; /* as HDF5 is told of them: in another order it lays out another file */
    int n;
    int *order; /* the items' numbers, by their offsets */
    struct chunk *chunks;
    int n_chunks;
    unsigned char *bytes;
    size_t room;   /* of them; where the state streams, of a chunk */
    uint64_t size; /* without the last line */
    int fd;        /* of what is being written; -1: nothing */
    char temporary[PATH_MAX];
};

/* What is learned, or the state. */
static void add_tensors(struct dpt_image *image, const struct dpt_graph *graph, bool state,
                        const char *folder, int arena)
{
    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i];
        struct dpt_item *item = &image->items[image->n];

        if (tensor->state != state)
            continue;
        image->n++;
        snprintf(item->name, sizeof item->name, "%s/%s", folder, tensor->name);
        item->arena = arena;
        item->start = (size_t)tensor->offset;
        item->size = (size_t)tensor->count * sizeof(float);
        item->n_dims = tensor->n_dims;
        for (int d = 0; d < tensor->n_dims; d++)
            item->dims[d] = tensor->dims[d];
    }
}

/* Where there is one. */
static void add_text(struct dpt_image *image, const char *name, const char *text)
{
    struct dpt_item *item = &image->items[image->n];

    if (text == NULL || text[0] == '\0')
        return;
    image->n++;
    *item = (struct dpt_item){.size = strlen(text), .bytes = text};
    snprintf(item->name, sizeof item->name, "%s", name);
}

static void add_targets(struct dpt_image *image, const char *name, const float *numbers, int64_t n)
{
    struct dpt_item *item = &image->items[image->n++];

    *item = (struct dpt_item){
        .size = (size_t)n * sizeof *numbers, .bytes = numbers, .n_dims = 1, .dims = {n}};
    snprintf(item->name, sizeof item->name, "/targets/%s", name);
}

static enum dpt_status list_items(struct dpt_image *image, const struct dpt_state *s,
                                  struct dpt_error *err)
{
    const size_t n = (size_t)s->graph->n_tensors * (size_t)(1 + s->slots) + 6;

    if (DPT_ALLOCATE(image->items, n, "a checkpoint's list of contents", err) != DPT_OK)
        return err->status;
    add_tensors(image, s->graph, false, "/params", -1);
    add_tensors(image, s->graph, true, "/state", -1);
    for (int k = 0; k < s->slots; k++) {
        char folder[DPT_NAME];

        snprintf(folder, sizeof folder, "/optimizer/%s", s->slot_names[k]);
        add_tensors(image, s->graph, false, folder, k);
    }
    if (s->targets != NULL && s->targets->used) {
        add_targets(image, "mean", s->targets->mean, s->targets->outputs);
        add_targets(image, "std", s->targets->std, s->targets->outputs);
    }
    add_text(image, "/job", s->job_text);
    add_text(image, "/plans", s->plans);
    add_text(image, "/columns", s->columns);
    add_text(image, "/classes", s->classes);
    return DPT_OK;
}

/* Lists the items and finds out where they lie. */
static enum dpt_status lay_out(struct dpt_image *image, const struct dpt_state *state,
                               const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int metadata = -1;

    DPT_TRY(list_items(image, state, err));
    DPT_TRY(
        dpt_checkpoint_metadata(state, image->items, image->n, path, &metadata, &image->size, err));
out:
    if (metadata >= 0)
        close(metadata);
    return status;
}

enum dpt_status dpt_checkpoint_size(const struct dpt_state *state, const char *path, uint64_t *size,
                                    struct dpt_error *err)
{
    struct dpt_image image = {0};
    const enum dpt_status status = lay_out(&image, state, path, err);

    *size = image.size + DPT_CHECKPOINT_TRAILER;
    dpt_free(image.items);
    return status;
}

static int by_offset(const void *a, const void *b, void *arg)
{
    const struct dpt_item *items = arg;
    const uint64_t x = items[*(const int *)a].offset, y = items[*(const int *)b].offset;

    return (x > y) - (x < y);
}

/* Lists the chunks of all items, and the items by their offsets. */
static enum dpt_status list_chunks(struct dpt_image *image, struct dpt_error *err)
{
    for (int i = 0; i < image->n; i++)
        image->n_chunks += (int)((image->items[i].size + CHUNK - 1) / CHUNK);
    image->chunks = dpt_alloc_array((size_t)image->n_chunks, sizeof *image->chunks);
    image->order = dpt_alloc_array((size_t)image->n, sizeof *image->order);
    if (image->chunks == NULL || image->order == NULL)
        return dpt_fail_memory(err, "a checkpoint's list of contents", image->n_chunks);
    for (int i = 0; i < image->n; i++)
        image->order[i] = i;
    qsort_r(image->order, (size_t)image->n, sizeof *image->order, by_offset, image->items);
    for (int i = 0, c = 0; i < image->n; i++)
        for (size_t at = 0; at < image->items[i].size; at += CHUNK, c++) {
            const size_t left = image->items[i].size - at;

            image->chunks[c] = (struct chunk){.item = i,
                                              .start = at,
                                              .size = left < CHUNK ? left : CHUNK,
                                              .to = image->items[i].offset + at};
        }
    return DPT_OK;
}

/* A small image is touched here, at the start, so that no save waits for the system's pages. For a
 * large one that is a small part of the copy, and the memory is worth more to others. */
static enum dpt_status allocate(struct dpt_image *image, struct dpt_error *err)
{
    const size_t wanted =
        image->state.streams ? CHUNK : (size_t)image->size + DPT_CHECKPOINT_TRAILER;
    const size_t unit = wanted >= HUGE ? HUGE : PAGE, bytes = (wanted + unit - 1) / unit * unit;

    image->bytes = aligned_alloc(unit, bytes);
    if (image->bytes == NULL)
        return dpt_fail_memory(err, "a checkpoint", (double)bytes);
    image->room = bytes;
    if (unit == HUGE)
        madvise(image->bytes, bytes, MADV_HUGEPAGE); /* advice only: without it all goes as well */
    if (bytes <= HELD)
        memset(image->bytes, 0, bytes);
    return DPT_OK;
}

enum dpt_status dpt_image_open(struct dpt_image **out, const struct dpt_state *state,
                               const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_image *image;

    *out = NULL;
    DPT_TRY(DPT_ALLOCATE(image, 1, "a checkpoint", err));
    image->fd = -1;
    image->state.streams = state->streams;
    DPT_TRY(lay_out(image, state, path, err));
    DPT_TRY(list_chunks(image, err));
    DPT_TRY(allocate(image, err));
    *out = image;
out:
    if (status != DPT_OK)
        dpt_image_close(image);
    return status;
}

/* Leaves nothing of a file that did not get its name. */
static void drop_file(struct dpt_image *image)
{
    if (image->fd >= 0) {
        close(image->fd);
        unlink(image->temporary);
    }
    image->fd = -1;
}

void dpt_image_close(struct dpt_image *image)
{
    if (image == NULL)
        return;
    drop_file(image);
    dpt_free(image->items);
    dpt_free(image->order);
    dpt_free(image->chunks);
    free(image->bytes);
    dpt_free(image);
}

uint64_t dpt_image_bytes(const struct dpt_image *image)
{
    return image->size + DPT_CHECKPOINT_TRAILER;
}

static const void *source(const struct dpt_state *state, const struct dpt_item *item)
{
    if (item->bytes != NULL)
        return item->bytes;
    return (item->arena < 0 ? state->params : state->slot[item->arena]) + item->start;
}

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

/* Whether its bytes come from their owners, straight to where they will lie. */
static bool is_gathered(const struct dpt_image *image, const struct dpt_item *item)
{
    return image->state.gather != NULL && item->bytes == NULL && item->n_dims > 0 &&
           (item->arena >= 0 || image->state.gathers_params);
}

static void copy_chunk(const struct dpt_image *image, struct chunk *chunk)
{
    const struct dpt_item *item = &image->items[chunk->item];
    const bool there = is_gathered(image, item);
    unsigned char *to = image->bytes + chunk->to;
    const unsigned char *from =
        there ? to : (const unsigned char *)source(&image->state, item) + chunk->start;

    chunk->crc = 0;
    for (size_t at = 0; at < chunk->size; at += SIP) {
        const size_t n = chunk->size - at < SIP ? chunk->size - at : SIP;

        if (!there)
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

/* Reserves the space first, so that a full disk is told before anything long is written. Not with
 * posix_fallocate, which writes a byte into each block where the file system cannot reserve: there
 * the writes themselves tell that the disk is full. */
static enum dpt_status open_file(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    snprintf(image->temporary, sizeof image->temporary, "%s.tmp-%ld", path, (long)getpid());
    if (dpt_file_check_target(path, err) != DPT_OK)
        return err->status;
    unlink(image->temporary); /* of an earlier process with our number */
    image->fd =
        TEMP_FAILURE_RETRY(open(image->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (image->fd < 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    if (TEMP_FAILURE_RETRY(
            fallocate(image->fd, 0, 0, (off_t)(image->size + DPT_CHECKPOINT_TRAILER))) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
out:
    if (status != DPT_OK)
        drop_file(image);
    return status;
}

/* Writes each chunk as soon as it is there. The owners keep giving if that failed. */
static enum dpt_status stream(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = open_file(image, path, err);
    const struct dpt_state *state = &image->state;

    for (int c = 0; c < image->n_chunks; c++) {
        struct chunk *chunk = &image->chunks[c];
        const struct dpt_item *item = &image->items[chunk->item];
        const void *from = image->bytes;

        if (!is_gathered(image, item))
            from = (const unsigned char *)source(state, item) + chunk->start;
        else if (state->gather(
                     state->owners, item->arena, item->start + chunk->start / sizeof(float),
                     chunk->size / sizeof(float), (float *)(void *)image->bytes, err) != DPT_OK)
            return err->status;
        chunk->crc = dpt_crc32(0, from, chunk->size);
        if (status == DPT_OK &&
            dpt_pwrite_all(image->fd, from, chunk->size, (long long)chunk->to) != 0)
            status = dpt_fail_errno(err, DPT_IO, "%s", path);
    }
    return status;
}

enum dpt_status dpt_image_take(struct dpt_image *image, const struct dpt_state *state,
                               const char *path, struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct copying copying = {image, pool != NULL ? dpt_pool_threads(pool) : 1};

    image->state = *state;
    if (state->streams)
        DPT_TRY(stream(image, path, err));
    for (int i = 0; i < image->n && !state->streams; i++) {
        const struct dpt_item *item = &image->items[i];

        if (is_gathered(image, item))
            DPT_TRY(state->gather(state->owners, item->arena, item->start,
                                  item->size / sizeof(float),
                                  (float *)(void *)(image->bytes + item->offset), err));
    }
    if (pool != NULL && !state->streams)
        dpt_pool_run(pool, copy_share, &copying);
    else if (!state->streams)
        copy_share(&copying, 0);
out:
    image->state.params = NULL;
    image->state.gather = NULL;
    memset(image->state.slot, 0, sizeof image->state.slot);
    return status;
}

static void join_checksums(struct dpt_image *image)
{
    for (int i = 0; i < image->n; i++)
        image->items[i].crc = 0;
    for (int c = 0; c < image->n_chunks; c++) {
        const struct chunk *chunk = &image->chunks[c];
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

        n = end - at < CHUNK ? end - at : CHUNK;
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
        if (direct && n < PAGE)
            direct = !set_direct(fd, false);
        else if (direct)
            n -= n % PAGE;
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
        DPT_TRY(open_file(image, path, err));
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

    DPT_TRY(frame(image, path, err));
    DPT_TRY(write_file(image, path, err));
    DPT_TRY(dpt_lock_check(image->state.lock, err));
    if (TEMP_FAILURE_RETRY(rename(image->temporary, path)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    DPT_TRY(dpt_file_sync_folder(path, err));
out:
    if (image->room > HELD) /* its pages are the system's until the next one is taken */
        madvise(image->bytes, image->room, MADV_DONTNEED);
    if (status != DPT_OK)
        unlink(image->temporary);
    drop_file(image);
    return status;
}
