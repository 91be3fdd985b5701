/* The list of formats, and files of any of them. */
#include "core/interchange/weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/state/checkpoint.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the formats' bytes are taken as they lie in memory");

enum { HEAD = 16 };

const struct dpt_weights_format *const dpt_weights_formats[] = {
    &dpt_weights_safetensors, &dpt_weights_npz, &dpt_weights_onnx, NULL};

/* The names of those that are read, or of those that are written: "safetensors, npz or onnx". own:
 * one more that is read. */
static const char *list_formats(bool writing, const struct dpt_weights_format *own, char *buf,
                                size_t size)
{
    const char *names[8];
    size_t n = 0, used = 0;

    for (size_t i = 0; dpt_weights_formats[i] != NULL; i++) {
        const struct dpt_weights_format *f = dpt_weights_formats[i];

        if (writing ? f->write != NULL : f->open != NULL)
            names[n++] = f->name;
    }
    if (own != NULL)
        names[n++] = own->name;
    for (size_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%s",
                                 i == 0       ? ""
                                 : i + 1 == n ? " or "
                                              : ", ",
                                 names[i]);
    return buf;
}

static bool has_suffix(const char *path, const struct dpt_weights_format *format)
{
    const size_t length = strlen(path), n = strlen(format->suffix);

    return length > n && strcmp(path + length - n, format->suffix) == 0;
}

enum dpt_status dpt_weights_target(const char *name, const char *path,
                                   const struct dpt_weights_format **format, struct dpt_error *err)
{
    char list[128];

    for (size_t i = 0; dpt_weights_formats[i] != NULL; i++) {
        const struct dpt_weights_format *f = dpt_weights_formats[i];

        if (f->write == NULL)
            continue;
        *format = f;
        if (name != NULL ? strcmp(name, f->name) == 0 : has_suffix(path, f))
            return DPT_OK;
    }
    list_formats(true, NULL, list, sizeof list);
    if (name != NULL)
        return dpt_fail(err, DPT_USAGE, "--to %s: is none of %s", name, list);
    return dpt_fail(err, DPT_USAGE, "%s: no ending of a known format: give --to %s", path, list);
}

/* Opens the file and finds out what it is. */
static enum dpt_status find_format(struct dpt_weights *w, const struct dpt_weights_format *own,
                                   struct dpt_error *err)
{
    unsigned char head[HEAD];
    ssize_t n;
    char list[128];

    if (dpt_file_open(w->path, DPT_FILE_READ, DPT_BAD_DATA, &w->fd, err) != DPT_OK)
        return err->status;
    n = pread(w->fd, head, sizeof head, 0);
    if (n < 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot read", w->path);
    for (size_t i = 0; dpt_weights_formats[i] != NULL; i++) {
        w->format = dpt_weights_formats[i];
        if (w->format->open != NULL && w->format->is(head, (size_t)n))
            return DPT_OK;
    }
    w->format = own->is(head, (size_t)n) ? own : NULL;
    if (w->format != NULL)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA, "%s: holds no weights: it is no file of %s", w->path,
                    list_formats(false, own, list, sizeof list));
}

enum dpt_status dpt_weights_open(struct dpt_weights *w, const char *path,
                                 const struct dpt_weights_format *own, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *file;

    *w = (struct dpt_weights){.path = path, .fd = -1};
    file = dpt_region_alloc(&w->arena, PATH_MAX);
    if (file == NULL)
        DPT_TRY(dpt_fail_memory(err, path, PATH_MAX));
    w->path = dpt_checkpoint_resolve(path, file);
    DPT_TRY(find_format(w, own, err));
    DPT_TRY(w->format->open(w, err));
out:
    if (status != DPT_OK)
        dpt_weights_close(w);
    return status;
}

bool dpt_weights_foreign(const char *path, const struct dpt_weights_format *own)
{
    struct dpt_weights w = {.path = path, .fd = -1};
    struct dpt_error ignored;
    bool foreign = find_format(&w, own, &ignored) == DPT_OK && w.format != own;

    for (size_t i = 0; w.format == NULL && dpt_weights_formats[i] != NULL && !foreign; i++)
        foreign = has_suffix(path, dpt_weights_formats[i]);
    if (w.fd >= 0)
        close(w.fd);
    return foreign;
}

void dpt_weights_close(struct dpt_weights *w)
{
    if (w->path == NULL)
        return;
    if (w->format != NULL && w->format->close != NULL)
        w->format->close(w);
    if (w->fd >= 0)
        close(w->fd);
    free(w->at);
    dpt_region_release(&w->arena);
    *w = (struct dpt_weights){0};
}
