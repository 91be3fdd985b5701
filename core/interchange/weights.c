/* Which formats there are, files of any of them, and their number formats as float32. */
#include "core/interchange/weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/json.h"
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

enum dpt_status dpt_weights_target(const char *name, const char *path,
                                   const struct dpt_weights_format **format, struct dpt_error *err)
{
    const size_t length = strlen(path);
    char list[128];

    for (size_t i = 0; dpt_weights_formats[i] != NULL; i++) {
        const struct dpt_weights_format *f = dpt_weights_formats[i];
        const size_t n = strlen(f->suffix);

        if (f->write == NULL)
            continue;
        *format = f;
        if (name != NULL ? strcmp(name, f->name) == 0
                         : length > n && strcmp(path + length - n, f->suffix) == 0)
            return DPT_OK;
    }
    list_formats(true, NULL, list, sizeof list);
    if (name != NULL)
        return dpt_fail(err, DPT_USAGE, "--to %s: is none of %s", name, list);
    return dpt_fail(err, DPT_USAGE, "%s: which format? --to %s", path, list);
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
    const size_t length = strlen(path);
    struct dpt_error ignored;
    bool foreign = find_format(&w, own, &ignored) == DPT_OK && w.format != own;

    for (size_t i = 0; w.format == NULL && dpt_weights_formats[i] != NULL && !foreign; i++) {
        const struct dpt_weights_format *f = dpt_weights_formats[i];
        const size_t n = strlen(f->suffix);

        foreign = length > n && strcmp(path + length - n, f->suffix) == 0;
    }
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
    dpt_region_release(&w->arena);
    *w = (struct dpt_weights){0};
}

/* --- numbers ---------------------------------------------------------------------------------- */

static uint64_t bits_at(const unsigned char *bytes, size_t size, bool swapped)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < size; i++)
        bits |= (uint64_t)bytes[i] << 8 * (swapped ? size - 1 - i : i);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16: a sign, 5 bits of exponent, 10 of fraction. Each is a float exactly. */
static float half(uint64_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;

    if (exponent == 0) /* 0 and subnormals: fraction x 2^-24 */
        return (sign != 0 ? -1.0F : 1.0F) * (float)fraction * 0x1p-24F;
    if (exponent == 0x1F)
        return float_of(sign | 0x7F800000U | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static float brain(uint64_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static float single(uint64_t bits)
{
    return float_of((uint32_t)bits);
}

static float twice(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static const struct {
    size_t size;
    float (*from)(uint64_t bits);
} kinds[] = {
    [DPT_FLOAT_NONE] = {0, NULL}, [DPT_FLOAT_16] = {2, half},  [DPT_FLOAT_BF16] = {2, brain},
    [DPT_FLOAT_32] = {4, single}, [DPT_FLOAT_64] = {8, twice},
};

size_t dpt_float_size(enum dpt_float_kind kind)
{
    return kinds[kind].size;
}

/* The numbers of a file, whose order may be columns first, as floats in the arena's order: rows
 * first. */
static void convert(const struct dpt_weight *weight, const unsigned char *bytes, float *to)
{
    const size_t size = kinds[weight->kind].size;
    int64_t at[DPT_WEIGHT_DIMS] = {0}, stride[DPT_WEIGHT_DIMS], step = 1, source = 0;

    for (int d = 0; d < weight->n_dims; d++) {
        stride[d] = step;
        step *= weight->dims[d];
    }
    for (int64_t i = 0; i < weight->count; i++) {
        const size_t from = (size_t)(weight->fortran ? source : i);

        to[i] = kinds[weight->kind].from(bits_at(bytes + from * size, size, weight->swapped));
        for (int d = weight->n_dims - 1; d >= 0 && weight->fortran; d--) {
            source += stride[d];
            if (++at[d] < weight->dims[d])
                break;
            source -= stride[d] * at[d];
            at[d] = 0;
        }
    }
}

enum dpt_status dpt_weights_read(struct dpt_weights *w, const struct dpt_weight *weight, float *to,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)weight->count * kinds[weight->kind].size;
    const bool same = weight->kind == DPT_FLOAT_32 && !weight->swapped && !weight->fortran;
    unsigned char *bytes = NULL;

    if (weight->kind == DPT_FLOAT_NONE)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %s is of the type %s, which holds no floats",
                        w->path, weight->name, weight->type);
    if (same)
        return w->format->read(w, weight, to, n, err);
    bytes = malloc(n + 1);
    if (bytes == NULL)
        return dpt_fail_memory(err, w->path, (double)n);
    DPT_TRY(w->format->read(w, weight, bytes, n, err));
    convert(weight, bytes, to);
out:
    free(bytes);
    return status;
}

/* --- for the formats -------------------------------------------------------------------------- */

const char *dpt_weight_name(const struct dpt_tensor *tensor, char buf[DPT_NAME])
{
    char *slash;

    snprintf(buf, DPT_NAME, "%s", tensor->name);
    slash = strrchr(buf, '/');
    if (slash != NULL)
        *slash = '.';
    return buf;
}

enum dpt_status dpt_weights_add(struct dpt_weights *w, const char *name, size_t length,
                                struct dpt_weight **weight, struct dpt_error *err)
{
    char *copy;

    if (length > DPT_WEIGHT_NAME_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: a tensor's name has %zu characters", w->path,
                        length);
    if (w->n == DPT_WEIGHTS_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: holds more than %d tensors", w->path,
                        DPT_WEIGHTS_MOST);
    if ((w->n & (w->n - 1)) == 0) { /* full: the capacity is n's next power of two */
        const size_t capacity = w->n == 0 ? 1 : 2 * w->n;
        struct dpt_weight *more = dpt_region_alloc(&w->arena, capacity * sizeof *more);

        if (more == NULL)
            return dpt_fail_memory(err, "a list of tensors", (double)capacity * sizeof *more);
        if (w->n > 0)
            memcpy(more, w->at, w->n * sizeof *more);
        w->at = more;
    }
    copy = dpt_region_strndup(&w->arena, name, length);
    if (copy == NULL)
        return dpt_fail_memory(err, "a list of tensors", (double)length);
    for (char *p = copy; p < copy + length; p++)
        *p = (unsigned char)*p < ' ' || *p == 0x7F ? '?' : *p == '/' ? '.' : *p;
    *weight = &w->at[w->n++];
    **weight = (struct dpt_weight){.name = copy};
    return DPT_OK;
}

enum dpt_status dpt_weight_count(const struct dpt_weights *w, struct dpt_weight *weight,
                                 struct dpt_error *err)
{
    weight->count = 1;
    for (int d = 0; d < weight->n_dims; d++)
        if (weight->dims[d] < 0 ||
            __builtin_mul_overflow(weight->count, weight->dims[d], &weight->count) ||
            weight->count > INT64_MAX / 16)
            return dpt_fail(err, DPT_BAD_DATA, "%s: %s has a shape that no file holds", w->path,
                            weight->name);
    return DPT_OK;
}

void dpt_reals_json(const struct dpt_reals *reals, struct dpt_str *out)
{
    struct dpt_json j = {.text = *out};

    dpt_json_array(&j, NULL);
    for (size_t i = 0; i < reals->n; i++)
        dpt_json_real(&j, NULL, reals->at[i]);
    dpt_json_end(&j);
    *out = j.text;
}
