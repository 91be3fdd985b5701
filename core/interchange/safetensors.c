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

#include "core/base/file.h"
#include "core/conf/json_read.h"
#include "core/interchange/weights.h"

enum { LENGTH = 8, HEADER_MOST = 100000000, ALIGN = 8, PIECE = 1 << 20 };

static const struct {
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

enum { TYPES = sizeof types / sizeof types[0] };

static uint64_t length_of(const unsigned char *head)
{
    uint64_t length = 0;

    for (int i = 0; i < LENGTH; i++)
        length |= (uint64_t)head[i] << 8 * i;
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

/* `shape`: sizes of the dimensions. */
static enum dpt_status take_shape(const struct dpt_weights *w, struct dpt_weight *weight,
                                  const struct dpt_json_node *shape, struct dpt_error *err)
{
    if (shape == NULL || shape->kind != DPT_JSON_LIST)
        return wrong_entry(w, weight->name, "has no shape", err);
    if (shape->n > DPT_WEIGHT_DIMS)
        return wrong_entry(w, weight->name, "has more than 8 dimensions", err);
    for (const struct dpt_json_node *d = shape->first; d != NULL; d = d->next)
        weight->dims[weight->n_dims++] = dpt_json_int(d, -1);
    return dpt_weight_count(w, weight, err);
}

/* One tensor's entry; `bytes`: of all tensors. *end: out, where its own end. */
static enum dpt_status take_entry(struct dpt_weights *w, const struct dpt_json_node *entry,
                                  int64_t bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *type = dpt_json_string(dpt_json_get(entry, "dtype"), NULL);
    const struct dpt_json_node *offsets = dpt_json_get(entry, "data_offsets");
    struct dpt_weight *weight;
    int64_t begin, end;
    size_t i = 0;

    DPT_TRY(dpt_weights_add(w, entry->key, strlen(entry->key), &weight, err));
    while (type != NULL && i < TYPES && strcmp(type, types[i].name) != 0)
        i++;
    if (type == NULL || i == TYPES)
        DPT_TRY(wrong_entry(w, weight->name, "has a type that is not known here", err));
    weight->type = types[i].name;
    weight->kind = types[i].kind;
    DPT_TRY(take_shape(w, weight, dpt_json_get(entry, "shape"), err));
    if (offsets == NULL || offsets->kind != DPT_JSON_LIST || offsets->n != 2)
        DPT_TRY(wrong_entry(w, weight->name, "has no data_offsets", err));
    begin = dpt_json_int(offsets->first, -1);
    end = dpt_json_int(offsets->first->next, -1);
    if (begin < 0 || end < begin || end > bytes)
        DPT_TRY(
            wrong_entry(w, weight->name, "lies outside of the file, which may be cut short", err));
    if (weight->count * types[i].size != end - begin)
        DPT_TRY(wrong_entry(w, weight->name, "has another size than its shape", err));
    weight->place = (uint64_t)begin;
out:
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct dpt_weight *x = a, *y = b;
    const bool empty = x->count == 0, other = y->count == 0;

    return x->place != y->place ? (x->place > y->place) - (x->place < y->place) : other - empty;
}

/* In the order of their bytes they follow each other, from the first byte to the last. */
static enum dpt_status check_cover(struct dpt_weights *w, int64_t bytes, struct dpt_error *err)
{
    uint64_t at = 0;

    if (w->n > 0)
        qsort(w->at, w->n, sizeof *w->at, by_place);
    for (size_t k = 0; k < w->n; k++) {
        size_t i = 0;

        if (w->at[k].place != at)
            return wrong_entry(w, w->at[k].name,
                               w->at[k].place < at ? "overlaps another one"
                                                   : "does not follow the one before it",
                               err);
        while (strcmp(w->at[k].type, types[i].name) != 0)
            i++;
        at += (uint64_t)(w->at[k].count * types[i].size);
    }
    if (at != (uint64_t)bytes)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %lld bytes behind its tensors belong to none",
                        w->path, (long long)(bytes - (int64_t)at));
    return DPT_OK;
}

static enum dpt_status take_header(struct dpt_weights *w, const char *text, size_t length,
                                   int64_t bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_arena arena = {0};
    const struct dpt_json_node *root;
    char what[256];

    snprintf(what, sizeof what, "%.200s: header", w->path);
    DPT_TRY(dpt_json_parse(&root, &arena, what, text, length, err));
    if (root->kind != DPT_JSON_MAP)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its header is no object", w->path));
    for (const struct dpt_json_node *entry = root->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, "__metadata__") == 0)
            continue;
        DPT_TRY(take_entry(w, entry, bytes, err));
    }
    DPT_TRY(check_cover(w, bytes, err));
    for (size_t i = 0; i < w->n; i++)
        w->at[i].place += LENGTH + length;
out:
    dpt_arena_release(&arena);
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
                                        float *to, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t size = dpt_float_size(weight->kind), most = PIECE / size;
    unsigned char *piece = malloc(PIECE);

    if (piece == NULL)
        return dpt_fail_memory(err, w->path, PIECE);
    for (size_t i = 0, n; i < (size_t)weight->count; i += n) {
        n = (size_t)weight->count - i < most ? (size_t)weight->count - i : most;
        if (dpt_pread_all(w->fd, piece, n * size, (long long)(weight->place + i * size)) != 0)
            DPT_TRY(errno == EPIPE ? dpt_fail(err, DPT_BAD_DATA,
                                              "%s: became shorter while it was read", w->path)
                                   : dpt_fail_errno(err, DPT_IO, "%s: cannot read", w->path));
        dpt_floats_from(weight->kind, false, piece, n, to + i);
    }
out:
    free(piece);
    return status;
}

static void close_safetensors(struct dpt_weights *w)
{
    (void)w;
}

static void add_text(struct dpt_str *out, const char *name, const struct dpt_str *text)
{
    dpt_str_printf(out, ", \"%s\": ", name);
    dpt_str_json(out, text->text != NULL ? text->text : "");
}

/* "format": "pt" is what readers of PyTorch's files ask for: names and layouts are PyTorch's. All
 * values are texts. */
static void add_metadata(const struct dpt_model_view *view, struct dpt_str *out)
{
    const struct dpt_shape *input = &view->graph->nodes[0].out;
    struct dpt_str text = {0};

    dpt_str_printf(out, "{\"__metadata__\": {\"format\": \"pt\", \"producer\": ");
    dpt_str_json(out, view->producer);
    dpt_str_printf(out, ", \"step\": \"%lld\"", (long long)view->step);
    if (input->flat)
        dpt_str_printf(out, ", \"input_shape\": \"[%d]\"", input->c);
    else
        dpt_str_printf(out, ", \"input_shape\": \"[%d, %d, %d]\"", input->c, input->h, input->w);
    dpt_reals_json(&view->normalize->mean, &text);
    add_text(out, "normalize_mean", &text);
    dpt_str_clear(&text);
    dpt_reals_json(&view->normalize->std, &text);
    add_text(out, "normalize_std", &text);
    dpt_str_printf(out, "}");
    out->failed = out->failed || text.failed;
    dpt_str_release(&text);
}

/* The length and the header, filled up with spaces so that the bytes behind it are aligned. */
static void write_header(const struct dpt_model_view *view, struct dpt_str *out)
{
    char name[DPT_NAME], dims[DPT_DIMS_TEXT];
    int64_t at = 0;

    dpt_str_add(out, "        ", LENGTH);
    add_metadata(view, out);
    for (int32_t k = 0; k < view->graph->n_tensors; k++) {
        const struct dpt_tensor *t = &view->graph->tensors[k];
        const int64_t bytes = t->count * (int64_t)sizeof(float);

        dpt_str_printf(out, ", \"%s\": {\"dtype\": \"F32\", \"shape\": %s, ",
                       dpt_weight_name(t, name), dpt_dims_text(t->n_dims, t->dims, dims));
        dpt_str_printf(out, "\"data_offsets\": [%lld, %lld]}", (long long)at,
                       (long long)(at + bytes));
        at += bytes;
    }
    dpt_str_printf(out, "}");
    while (!out->failed && out->length % ALIGN != 0)
        dpt_str_add(out, " ", 1);
    for (int i = 0; !out->failed && i < LENGTH; i++)
        out->text[i] = (char)((uint64_t)(out->length - LENGTH) >> 8 * i);
}

static enum dpt_status write_safetensors(const struct dpt_model_view *view, const char *path,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)view->graph->n_tensors + 1;
    struct dpt_file_piece *pieces = calloc(n, sizeof *pieces);
    struct dpt_str header = {0};

    write_header(view, &header);
    if (pieces == NULL || header.failed)
        DPT_TRY(dpt_fail_memory(err, path, (double)header.length));
    pieces[0] = (struct dpt_file_piece){header.text, header.length};
    for (size_t k = 1; k < n; k++) {
        const struct dpt_tensor *t = &view->graph->tensors[k - 1];

        pieces[k] =
            (struct dpt_file_piece){view->params + t->offset, (size_t)t->count * sizeof(float)};
    }
    DPT_TRY(dpt_file_write_pieces(path, pieces, n, err));
out:
    free(pieces);
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
    .close = close_safetensors,
    .write = write_safetensors,
};
