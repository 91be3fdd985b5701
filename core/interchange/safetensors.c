/*
 * safetensors: 8 bytes with the length of a JSON header, the header, the tensors' bytes.
 *
 * The header says of each tensor its type, its shape and where it lies among the bytes, which it
 * must fill without holes and without overlaps; a file that says otherwise is refused. See the
 * Format section of the safetensors project's README.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/interchange/weights.h"

enum { LENGTH = 8, HEADER_MOST = 100000000, ALIGN = 8 };

static const struct type {
    const char *name;
    int64_t size;
    enum dpt_float_kind kind;
} types[] = {
    {"F32", 4, DPT_FLOAT_32},    {"F16", 2, DPT_FLOAT_16},   {"BF16", 2, DPT_FLOAT_BF16},
    {"F64", 8, DPT_FLOAT_64},    {"I64", 8, DPT_FLOAT_NONE}, {"I32", 4, DPT_FLOAT_NONE},
    {"I16", 2, DPT_FLOAT_NONE},  {"I8", 1, DPT_FLOAT_NONE},  {"U64", 8, DPT_FLOAT_NONE},
    {"U32", 4, DPT_FLOAT_NONE},  {"U16", 2, DPT_FLOAT_NONE}, {"U8", 1, DPT_FLOAT_NONE},
    {"BOOL", 1, DPT_FLOAT_NONE},
};

/* NULL: it is not known here. */
static const struct type *type_of(const char *name)
{
    for (size_t i = 0; name != NULL && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].name) == 0)
            return &types[i];
    return NULL;
}

static uint64_t length_of(const unsigned char *head)
{
    uint64_t length;

    memcpy(&length, head, LENGTH);
    return length;
}

static bool is_safetensors(const unsigned char *head, size_t n)
{
    return n > LENGTH && head[LENGTH] == '{' && length_of(head) <= HEADER_MOST;
}

static enum dpt_status wrong_entry(const struct dpt_weights *w, const char *name, const char *what,
                                   struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: the header's entry '%.64s' %s", w->path, name, what);
}

/* -1 where it is no whole number. */
static int64_t integer(const json_t *value)
{
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* `shape`: sizes of the dimensions. */
static enum dpt_status take_shape(const struct dpt_weights *w, struct dpt_weight *weight,
                                  const json_t *shape, struct dpt_error *err)
{
    if (!json_is_array(shape))
        return wrong_entry(w, weight->name, "has no shape", err);
    if (json_array_size(shape) > DPT_WEIGHT_DIMS)
        return wrong_entry(w, weight->name, "has more than 8 dimensions", err);
    for (size_t d = 0; d < json_array_size(shape); d++)
        weight->dims[weight->n_dims++] = integer(json_array_get(shape, d));
    return dpt_weight_count(w, weight, err);
}

/* One tensor's entry; `bytes`: of all tensors. *end: out, where its own end. */
static enum dpt_status take_entry(struct dpt_weights *w, const char *name, const json_t *entry,
                                  int64_t bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct type *type = type_of(json_string_value(json_object_get(entry, "dtype")));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    struct dpt_weight *weight;
    int64_t begin, end;

    DPT_TRY(dpt_weights_add(w, name, strlen(name), &weight, err));
    if (type == NULL)
        DPT_TRY(wrong_entry(w, weight->name, "has a type that is not known here", err));
    weight->type = type->name;
    weight->kind = type->kind;
    DPT_TRY(take_shape(w, weight, json_object_get(entry, "shape"), err));
    if (json_array_size(offsets) != 2)
        DPT_TRY(wrong_entry(w, weight->name, "has no data_offsets", err));
    begin = integer(json_array_get(offsets, 0));
    end = integer(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || end > bytes)
        DPT_TRY(
            wrong_entry(w, weight->name, "lies outside of the file, which may be cut short", err));
    if (weight->count * type->size != end - begin)
        DPT_TRY(wrong_entry(w, weight->name, "has another size than its shape", err));
    weight->position = (uint64_t)begin;
out:
    return status;
}

static int by_position(const void *a, const void *b)
{
    const struct dpt_weight *x = a, *y = b;
    const bool empty = x->count == 0, other = y->count == 0;

    return x->position != y->position ? (x->position > y->position) - (x->position < y->position)
                                      : other - empty;
}

/* Checks that tensors follow each other in the order of their bytes, from the first byte to the
 * last. */
static enum dpt_status check_cover(struct dpt_weights *w, int64_t bytes, struct dpt_error *err)
{
    uint64_t at = 0;

    if (w->n > 0)
        qsort(w->at, w->n, sizeof *w->at, by_position);
    for (size_t k = 0; k < w->n; k++) {
        if (w->at[k].position != at)
            return wrong_entry(w, w->at[k].name,
                               w->at[k].position < at ? "overlaps another one"
                                                      : "does not follow the one before it",
                               err);
        at += (uint64_t)(w->at[k].count * type_of(w->at[k].type)->size);
    }
    if (at != (uint64_t)bytes)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %lld bytes after its tensors belong to none",
                        w->path, (long long)(bytes - (int64_t)at));
    return DPT_OK;
}

static enum dpt_status take_header(struct dpt_weights *w, const char *text, size_t length,
                                   int64_t bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    json_error_t wrong;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &wrong), *entry;
    const char *name, *quoted = wrong.text + strcspn(wrong.text, "\""); /* near '"a"' */

    if (root == NULL && json_error_code(&wrong) == json_error_duplicate_key)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: two entries of its header have the name %.*s",
                         w->path, (int)strcspn(quoted, "'"), quoted));
    if (root == NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: header: byte %d: %s", w->path, wrong.position,
                         wrong.text));
    if (!json_is_object(root))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its header is no object", w->path));
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0)
            DPT_TRY(take_entry(w, name, entry, bytes, err));
    }
    DPT_TRY(check_cover(w, bytes, err));
    for (size_t i = 0; i < w->n; i++)
        w->at[i].position += LENGTH + length;
out:
    json_decref(root);
    return status;
}

static enum dpt_status open_safetensors(struct dpt_weights *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    unsigned char head[LENGTH];
    struct stat info;
    char *text = NULL;
    uint64_t length;

    if (fstat(w->fd, &info) != 0 || dpt_pread_all(w->fd, head, LENGTH, 0) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot read", w->path));
    length = length_of(head);
    if (length > (uint64_t)info.st_size - LENGTH || length > HEADER_MOST)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: its header has %llu bytes, the file %lld: cut short", w->path,
                         (unsigned long long)length, (long long)info.st_size));
    text = malloc((size_t)length + 1);
    if (text == NULL)
        DPT_TRY(dpt_fail_memory(err, w->path, (double)length));
    if (dpt_pread_all(w->fd, text, (size_t)length, LENGTH) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot read", w->path));
    DPT_TRY(take_header(w, text, (size_t)length, (int64_t)info.st_size - LENGTH - (int64_t)length,
                        err));
out:
    free(text);
    return status;
}

static enum dpt_status read_safetensors(struct dpt_weights *w, const struct dpt_weight *weight,
                                        void *bytes, size_t n, struct dpt_error *err)
{
    if (dpt_pread_all(w->fd, bytes, n, (long long)weight->position) == 0)
        return DPT_OK;
    return errno == EPIPE
               ? dpt_fail(err, DPT_BAD_DATA, "%s: became shorter while it was read", w->path)
               : dpt_fail_errno(err, DPT_IO, "%s: cannot read", w->path);
}

/* A value whose text was collected, which is released. */
static void add_collected(struct dpt_json *j, const char *key, struct dpt_str *text)
{
    j->text.failed = j->text.failed || text->failed;
    dpt_json_text(j, key, text->text);
    dpt_str_release(text);
}

static void add_reals(struct dpt_json *j, const char *key, const struct dpt_reals *reals)
{
    struct dpt_str text = {0};

    dpt_reals_json(reals, &text);
    add_collected(j, key, &text);
}

static void add_floats(struct dpt_json *j, const char *key, const float *numbers, int32_t n)
{
    struct dpt_str text = {0};

    for (int32_t i = 0; i < n; i++)
        dpt_str_printf(&text, "%s%.9g", i == 0 ? "[" : ", ", (double)numbers[i]);
    dpt_str_printf(&text, "]");
    add_collected(j, key, &text);
}

/* "format": "pt" is what readers of PyTorch's files ask for: names and layouts are PyTorch's. All
 * values are texts. */
static void add_metadata(const struct dpt_model_view *view, struct dpt_json *j)
{
    const struct dpt_shape *input = &view->graph->nodes[0].out;
    const int64_t sizes[] = {input->c, input->h, input->w};
    char text[DPT_DIMS_TEXT];
    struct dpt_str classes = {0};

    dpt_json_object(j, "__metadata__");
    dpt_json_text(j, "format", "pt");
    dpt_json_text(j, "producer", view->producer);
    snprintf(text, sizeof text, "%lld", (long long)view->step);
    dpt_json_text(j, "step", text);
    dpt_json_text(j, "input_shape", dpt_dims_text(input->flat ? 1 : 3, sizes, text));
    if (view->typed)
        dpt_json_text(j, "input_type", view->bytes ? "uint8" : "float32");
    add_reals(j, "normalize_mean", &view->normalize->mean);
    add_reals(j, "normalize_std", &view->normalize->std);
    if (view->targets->used) {
        add_floats(j, "target_mean", view->targets->mean, view->targets->outputs);
        add_floats(j, "target_std", view->targets->std, view->targets->outputs);
    }
    if (dpt_target_scale_inverse(view->targets) != NULL)
        dpt_json_text(j, "target_inverse", dpt_target_scale_inverse(view->targets));
    if (view->n_classes > 0) {
        dpt_texts_json(view->classes, view->n_classes, &classes);
        add_collected(j, "classes", &classes);
    }
    dpt_json_end(j);
}

static void add_tensor(const struct dpt_weight_entry *e, int64_t at, struct dpt_json *j)
{
    dpt_json_object(j, e->name);
    dpt_json_text(j, "dtype", e->whole ? "I64" : "F32");
    dpt_json_array(j, "shape");
    for (int d = 0; d < e->n_dims; d++)
        dpt_json_int(j, NULL, e->dims[d]);
    dpt_json_end(j);
    dpt_json_array(j, "data_offsets");
    dpt_json_int(j, NULL, at);
    dpt_json_int(j, NULL, at + (int64_t)e->size);
    dpt_json_end(j);
    dpt_json_end(j);
}

/* The length and the header, filled up with spaces so that the bytes after it are aligned. */
static void write_header(const struct dpt_model_view *view, const struct dpt_weight_entry *entries,
                         size_t n, struct dpt_str *out)
{
    struct dpt_json j = {0};
    int64_t at = 0;
    uint64_t length;

    dpt_str_add(&j.text, "        ", LENGTH);
    dpt_json_object(&j, NULL);
    add_metadata(view, &j);
    for (size_t k = 0; k < n; k++) {
        add_tensor(&entries[k], at, &j);
        at += (int64_t)entries[k].size;
    }
    dpt_json_end(&j);
    *out = j.text;
    while (!out->failed && out->length % ALIGN != 0)
        dpt_str_add(out, " ", 1);
    length = out->length - LENGTH;
    if (!out->failed)
        memcpy(out->text, &length, LENGTH);
}

static enum dpt_status write_safetensors(const struct dpt_model_view *view, const char *path,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_region region = {0};
    struct dpt_weight_entry *entries;
    struct dpt_file_piece *pieces;
    struct dpt_str header = {0};
    size_t n;

    DPT_TRY(dpt_weights_entries(view, &region, &entries, &n, err));
    pieces = dpt_region_alloc(&region, (n + 1) * sizeof *pieces);
    write_header(view, entries, n, &header);
    if (pieces == NULL || header.failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)header.length));
    pieces[0] = (struct dpt_file_piece){header.text, header.length};
    for (size_t k = 0; k < n; k++)
        pieces[k + 1] = (struct dpt_file_piece){entries[k].bytes, entries[k].size};
    DPT_TRY(dpt_file_write_pieces(path, pieces, n + 1, err));
out:
    dpt_region_release(&region);
    dpt_str_release(&header);
    return status;
}

const struct dpt_weights_format dpt_weights_safetensors = {
    .name = "safetensors",
    .suffix = ".safetensors",
    .summary = "for PyTorch and Hugging Face: safetensors.torch.load_file(OUT)",
    .is = is_safetensors,
    .open = open_safetensors,
    .read = read_safetensors,
    .write = write_safetensors,
};
