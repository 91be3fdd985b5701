/* What a checkpoint's file holds, and where; its image's memory, and the file that it goes to. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/state/checkpoint_image.h"

enum { HUGE = 2 << 20 }; /* bytes: pages so large make copying and writing cheaper */

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
        item->tensor = i;
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

/* Lists the items by their offsets. */
static enum dpt_status order_items(struct dpt_image *image, struct dpt_error *err)
{
    image->order = dpt_alloc_array((size_t)image->n, sizeof *image->order);
    if (image->order == NULL)
        return dpt_fail_memory(err, "a checkpoint's list of contents", image->n);
    for (int i = 0; i < image->n; i++)
        image->order[i] = i;
    qsort_r(image->order, (size_t)image->n, sizeof *image->order, by_offset, image->items);
    return DPT_OK;
}

/* Adds bytes [at, end) of an item to the list of chunks, in pieces. */
static enum dpt_status add_chunks(struct dpt_image *image, int item, size_t at, size_t end,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t most = DPT_CHECKPOINT_PIECE * sizeof(float);

    for (size_t n; at < end; at += n) {
        n = end - at < most ? end - at : most;
        DPT_GROW(image->chunks, &image->chunk_room, (size_t)image->n_chunks + 1,
                 "a checkpoint's list of contents", err);
        image->chunks[image->n_chunks++] = (struct dpt_chunk){
            .item = item, .start = at, .size = n, .to = image->items[item].offset + at};
    }
out:
    return status;
}

enum dpt_status dpt_image_cut(struct dpt_image *image, const struct dpt_stretch *done, size_t n,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    image->n_chunks = 0;
    for (int i = 0; i < image->n; i++) {
        const struct dpt_item *item = &image->items[i];
        size_t at = 0, first = 0;

        /* Data sets come in the order of the arenas, state after what is learned. */
        while (first < n && item->bytes == NULL &&
               (done[first].arena < item->arena ||
                (done[first].arena == item->arena && done[first].tensor < item->tensor)))
            first++;
        for (; first < n && item->bytes == NULL && done[first].arena == item->arena &&
               done[first].tensor == item->tensor;
             first++) {
            const size_t begin = (size_t)done[first].at * sizeof(float);
            const size_t size = (size_t)done[first].n * sizeof(float);

            DPT_TRY(add_chunks(image, i, at, begin, err));
            DPT_GROW(image->chunks, &image->chunk_room, (size_t)image->n_chunks + 1,
                     "a checkpoint's list of contents", err);
            image->chunks[image->n_chunks++] = (struct dpt_chunk){.item = i,
                                                                  .start = begin,
                                                                  .size = size,
                                                                  .to = item->offset + begin,
                                                                  .crc = done[first].crc,
                                                                  .written = true};
            at = begin + size;
        }
        DPT_TRY(add_chunks(image, i, at, item->size, err));
    }
out:
    return status;
}

/* A small image is touched here, at the start, so that no save waits for the system's pages. For a
 * large one that is a small part of the copy, and the memory is worth more to others. */
static enum dpt_status allocate(struct dpt_image *image, struct dpt_error *err)
{
    const size_t wanted = image->state.streams ? DPT_CHECKPOINT_PIECE * sizeof(float)
                                               : (size_t)image->size + DPT_CHECKPOINT_TRAILER;
    const size_t unit = wanted >= HUGE ? HUGE : DPT_IMAGE_PAGE;
    const size_t bytes = (wanted + unit - 1) / unit * unit;

    image->bytes = aligned_alloc(unit, bytes);
    if (image->bytes == NULL)
        return dpt_fail_memory(err, "a checkpoint", (double)bytes);
    image->room = bytes;
    if (unit == HUGE)
        madvise(image->bytes, bytes, MADV_HUGEPAGE); /* advice only: without it all goes as well */
    if (bytes <= DPT_IMAGE_HELD)
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
    DPT_TRY(order_items(image, err));
    DPT_TRY(dpt_image_cut(image, NULL, 0, err));
    DPT_TRY(allocate(image, err));
    *out = image;
out:
    if (status != DPT_OK)
        dpt_image_close(image);
    return status;
}

void dpt_image_drop_file(struct dpt_image *image)
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
    dpt_image_drop_file(image);
    dpt_free(image->items);
    dpt_free(image->order);
    free(image->chunks);
    free(image->rest);
    free(image->bytes);
    dpt_free(image);
}

uint64_t dpt_image_bytes(const struct dpt_image *image)
{
    return image->size + DPT_CHECKPOINT_TRAILER;
}

/* The space is reserved first, so that a full disk is told before anything long is written. Not by
 * posix_fallocate, which writes a byte into each block where the file system cannot reserve: there
 * the writes themselves tell that the disk is full. */
enum dpt_status dpt_image_open_file(struct dpt_image *image, const char *path,
                                    struct dpt_error *err)
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
        dpt_image_drop_file(image);
    return status;
}

const void *dpt_image_source(const struct dpt_image *image, const struct dpt_chunk *chunk)
{
    const struct dpt_item *item = &image->items[chunk->item];
    const float *arena = item->arena < 0 ? image->state.params : image->state.slot[item->arena];

    return (item->bytes != NULL ? (const char *)item->bytes : (const char *)(arena + item->start)) +
           chunk->start;
}
