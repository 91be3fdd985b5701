/* The save of a state that ranks have in parts: each writes its own, rank 0 the rest. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/state/checkpoint_image.h"

/* Whether rank 0 has to ask for its bytes. */
static bool is_gathered(const struct dpt_image *image, const struct dpt_chunk *chunk)
{
    const struct dpt_item *item = &image->items[chunk->item];

    return image->state.gather != NULL && item->bytes == NULL && !chunk->written &&
           (item->arena >= 0 || image->state.gathers_params);
}

/* Finds room for what rank 0 writes once the others have written theirs. */
static enum dpt_status keep_rest(struct dpt_image *image, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t n = 0;

    for (int c = 0; c < image->n_chunks; c++) {
        image->chunks[c].kept = n;
        n += image->chunks[c].written ? 0 : image->chunks[c].size;
    }
    DPT_GROW(image->rest, &image->rest_room, n, "a checkpoint", err);
out:
    return status;
}

/* Has all ranks write what they can of the file, and lists what that leaves. */
static enum dpt_status share(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_state *s = &image->state;
    const size_t tensors = (size_t)s->graph->n_tensors, sets = tensors * (size_t)(1 + s->slots);
    const struct dpt_stretch *done = NULL;
    struct dpt_shared_file file = {.maker = getpid()};
    int64_t *offset = NULL;
    bool later = s->later;
    size_t n = 0;

    image->waits = false;
    if (s->write == NULL)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(offset, sets, "a checkpoint's list of contents", err));
    memset(offset, -1, sets * sizeof *offset);
    for (int i = 0; i < image->n; i++) {
        const struct dpt_item *item = &image->items[i];

        if (item->bytes == NULL && item->offset % sizeof(float) == 0)
            offset[(size_t)(item->arena + 1) * tensors + (size_t)item->tensor] =
                (int64_t)item->offset;
    }
    snprintf(file.path, sizeof file.path, "%s", path);
    DPT_TRY(s->write(s->owners, &file, image->fd, offset, &later, &done, &n, err));
    DPT_TRY(dpt_image_cut(image, done, n, err));
    image->waits = later;
    if (later)
        DPT_TRY(keep_rest(image, err));
out:
    dpt_free(offset);
    return status;
}

/* Takes the checksum of a chunk's bytes, and writes them; or keeps them while the image waits. */
static enum dpt_status put_chunk(const struct dpt_image *image, struct dpt_chunk *chunk,
                                 const void *bytes, const char *path, struct dpt_error *err)
{
    if (image->waits) {
        memcpy(image->rest + chunk->kept, bytes, chunk->size);
        return DPT_OK;
    }
    chunk->crc = dpt_crc32(0, bytes, chunk->size);
    if (dpt_pwrite_all(image->fd, bytes, chunk->size, (long long)chunk->to) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    return DPT_OK;
}

/* Chunks that rank 0 asks for at once. */
struct wanted {
    struct dpt_image *image;
    const char *path;
    size_t n;
    struct dpt_stretch stretch[128];
    int chunk[128];
};

static enum dpt_status take(void *arg, size_t i, const float *x, struct dpt_error *err)
{
    const struct wanted *w = arg;

    return put_chunk(w->image, &w->image->chunks[w->chunk[i]], x, w->path, err);
}

static enum dpt_status ask(struct wanted *w, struct dpt_error *err)
{
    const struct dpt_state *s = &w->image->state;
    const size_t n = w->n;

    w->n = 0;
    return n == 0 ? DPT_OK
                  : s->gather(s->owners, w->stretch, n, (float *)(void *)w->image->bytes, take, w,
                              err);
}

enum dpt_status dpt_image_stream(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct wanted wanted = {.image = image, .path = path};

    DPT_TRY(dpt_image_open_file(image, path, err));
    DPT_TRY(share(image, path, err));
    for (int c = 0; c < image->n_chunks; c++) {
        struct dpt_chunk *chunk = &image->chunks[c];
        const struct dpt_item *item = &image->items[chunk->item];

        if (is_gathered(image, chunk)) {
            wanted.chunk[wanted.n] = c;
            wanted.stretch[wanted.n++] =
                (struct dpt_stretch){.arena = item->arena,
                                     .tensor = item->tensor,
                                     .at = (int64_t)(chunk->start / sizeof(float)),
                                     .n = (int64_t)(chunk->size / sizeof(float))};
        } else if (!chunk->written) {
            DPT_TRY(put_chunk(image, chunk, dpt_image_source(image, chunk), path, err));
        }
        if (wanted.n == sizeof wanted.chunk / sizeof *wanted.chunk)
            DPT_TRY(ask(&wanted, err));
    }
    DPT_TRY(ask(&wanted, err));
out:
    if (status != DPT_OK)
        dpt_image_drop_file(image);
    return status;
}

bool dpt_image_waits(const struct dpt_image *image)
{
    return image->waits;
}

enum dpt_status dpt_image_complete(struct dpt_image *image, const struct dpt_stretch *done,
                                   size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_image_cut(image, done, n, err));
    DPT_TRY(keep_rest(image, err));
out:
    if (status != DPT_OK)
        dpt_image_drop_file(image);
    return status;
}

enum dpt_status dpt_image_put_rest(struct dpt_image *image, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool waited = image->waits;

    image->waits = false;
    for (int c = 0; c < image->n_chunks && waited; c++)
        if (!image->chunks[c].written)
            DPT_TRY(put_chunk(image, &image->chunks[c], image->rest + image->chunks[c].kept, path,
                              err));
out:
    return status;
}
