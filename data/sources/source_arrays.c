/*
 * Arrays of NumPy and IDX: a file of images or rows, and one of labels or targets, which may be
 * missing where samples are predicted; or both in one archive, .npz.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/shards/labels.h"
#include "data/sources/source_type.h"
#include "data/tables/array.h"
#include "data/tables/array_names.h"
#include "data/tables/zip_entry.h"

/* The files that are open. */
struct state {
    struct dpt_array images, labels;
    /* Archives only: the names of the two arrays, NULL: no labels; and what messages call them. */
    const char *x, *y;
    char shown_x[512], shown_y[512];
    size_t part;  /* n_parts: none */
    uint8_t *raw; /* rows as they lie in the file */
    size_t room;
    bool told;                        /* that numbers became one as float32 */
    struct dpt_label_numbers numbers; /* of labels that become shards */
};

static bool is_npy(const uint8_t *head, size_t n)
{
    return n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
}

static bool is_idx(const uint8_t *head, size_t n)
{
    return n >= 4 && head[0] == 0 && head[1] == 0 && head[2] >= 0x08 && head[2] <= 0x0E &&
           head[3] > 0;
}

static bool is_npz(const uint8_t *head, size_t n)
{
    return n >= 4 && memcmp(head, "PK\3\4", 4) == 0;
}

static bool from_npz(const struct dpt_source *s)
{
    return s->format->is == is_npz;
}

static bool from_idx(const struct dpt_source *s)
{
    return s->format->is == is_idx;
}

/* The file of labels that belongs to a part, or NULL. */
static const char *labels_of(const struct dpt_source *s, size_t part)
{
    if (from_npz(s))
        return ((const struct state *)s->state)->y != NULL ? s->paths[part] : NULL;
    if (s->spec->convert)
        return s->paths[1];
    return s->spec->n_labels > 0 ? s->spec->labels[part] : NULL;
}

static enum dpt_status check_idx(const struct dpt_array *images, const struct dpt_array *labels,
                                 const char *path, struct dpt_error *err)
{
    const char *a = images->in.path;

    if (images->npy.n_dims == 1 && path != NULL && labels->npy.n_dims > 1)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: holds labels (magic number 00 00 08 01) and %s images (00 00 08 %02x): give "
            "the images first",
            a, path, labels->npy.n_dims);
    if (images->npy.n_dims == 1)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has magic number 00 00 08 01: labels, where images are required%s", a,
                        path == NULL ? "; --labels takes them beside their images" : "");
    if (path != NULL && labels->npy.n_dims != 1)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: has magic number 00 00 08 %02x: images, where labels (00 00 08 01) are required",
            path, labels->npy.n_dims);
    return DPT_OK;
}

static enum dpt_status check_npy(const struct dpt_array *images, const struct dpt_array *labels,
                                 const char *path, struct dpt_error *err)
{
    const struct dpt_npy *npy = &images->npy;

    if (npy->kind != 'f' && !(npy->kind == 'u' && npy->size == 1))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: samples are of the type '%s'; save them as uint8 "
                        "(a.astype(numpy.uint8)) or float32",
                        images->in.path, npy->descr);
    if (npy->n_dims < 2 || npy->n_dims > 4)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %d dimensions; samples are [N,D], [N,H,W] or [N,C,H,W], one "
                        "alone too (a[None])",
                        images->in.path, npy->n_dims);
    if (path != NULL && labels->npy.n_dims > 2)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %d dimensions; labels are [N], targets [N] or [N,K]", path,
                        labels->npy.n_dims);
    return DPT_OK;
}

/* The first of some names that an archive has; NULL: none. */
static const char *first_of(const char *const *wanted, const char *const *names, size_t n)
{
    for (; *wanted != NULL; wanted++)
        if (dpt_find(*wanted, names, n) < n)
            return *wanted;
    return NULL;
}

/* Says what an archive lacks, what it has, and how to name another array. */
static enum dpt_status tell_missing(const char *path, const char *missing, const char *const *names,
                                    size_t n, struct dpt_error *err)
{
    enum { LISTED = 12 };
    struct dpt_array_names guess = {0};
    struct dpt_str list = {0};

    for (size_t i = 0; i < n && i < LISTED; i++) {
        dpt_str_printf(&list, "%s%.64s", i > 0 ? ", " : "", names[i]);
        dpt_array_names_look(&guess, names[i]);
    }
    dpt_fail(err, DPT_BAD_DATA, "%s has no array %s; it holds %s%s: --keys %s,%s names them", path,
             missing, list.text != NULL ? list.text : "none", n > LISTED ? ", …" : "",
             dpt_array_name(guess.x), dpt_array_name(guess.y));
    dpt_str_release(&list);
    return err->status;
}

/* Finds the arrays of an archive: those of --keys, or with the usual names. */
static enum dpt_status find_arrays(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    static const char *const xs[] = {"images", "x", "arr_0", NULL};
    static const char *const ys[] = {"labels", "y", "arr_1", NULL};
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const char *path = s->paths[part], *const * names;
    struct dpt_data_keys keys = {0};
    size_t n;

    DPT_TRY(dpt_zip_list_npy(path, &names, &n, &s->region, err));
    DPT_TRY(dpt_data_keys_take(s->spec->option[DPT_SOURCE_KEYS], &s->region, &keys, err));
    state->x = keys.x != NULL ? keys.x : first_of(xs, names, n);
    if (state->x == NULL && n == 1)
        state->x = names[0];
    state->y = keys.y != NULL ? keys.y : first_of(ys, names, n);
    if (state->x == NULL || dpt_find(state->x, names, n) == n)
        DPT_TRY(
            tell_missing(path, state->x != NULL ? state->x : "images, x or arr_0", names, n, err));
    if (state->y != NULL ? dpt_find(state->y, names, n) == n : s->spec->convert)
        DPT_TRY(
            tell_missing(path, state->y != NULL ? state->y : "labels, y or arr_1", names, n, err));
    snprintf(state->shown_x, sizeof state->shown_x, "%.400s: %.64s", path, state->x);
    snprintf(state->shown_y, sizeof state->shown_y, "%.400s: %.64s", path,
             state->y != NULL ? state->y : "");
out:
    return status;
}

/* Opens the array at `path`, or of an archive the one that has the name. */
static enum dpt_status open_array(struct dpt_source *s, struct dpt_array *a, const char *path,
                                  const char *name, const char *shown, struct dpt_error *err)
{
    return from_idx(s) ? dpt_array_open_idx(a, path, s->spec->stop, err)
                       : dpt_array_open_npy(a, path, name, shown, s->spec->stop, err);
}

static void close_files(struct state *state)
{
    dpt_input_close(&state->images.in);
    dpt_input_close(&state->labels.in);
}

/* Opens the files of a part at their first row. */
static enum dpt_status open_files(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const struct dpt_array *images = &state->images, *labels = &state->labels;
    const char *path;

    close_files(state);
    state->part = s->n_parts;
    if (from_npz(s))
        DPT_TRY(find_arrays(s, part, err));
    path = labels_of(s, part);
    DPT_TRY(open_array(s, &state->images, s->paths[part], state->x, state->shown_x, err));
    if (path != NULL)
        DPT_TRY(open_array(s, &state->labels, path, state->y, state->shown_y, err));
    path = path != NULL ? labels->in.path : NULL;
    DPT_TRY((from_idx(s) ? check_idx : check_npy)(images, labels, path, err));
    if (path != NULL && labels->npy.dims[0] != images->npy.dims[0])
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s has %lld images, but %s has %lld labels",
                         images->in.path, (long long)images->npy.dims[0], path,
                         (long long)labels->npy.dims[0]));
    state->part = part;
out:
    return status;
}

static enum dpt_status shape_of(const struct dpt_source *s, const struct dpt_array *a,
                                struct dpt_shape *shape, struct dpt_error *err)
{
    const char *layout = s->spec->option[DPT_SOURCE_LAYOUT];
    const bool nhwc = layout != NULL && strcmp(layout, "nhwc") == 0;
    const int64_t *d = a->npy.dims;
    const int n = a->npy.n_dims;

    if (layout != NULL && !nhwc && strcmp(layout, "nchw") != 0)
        return dpt_fail(err, DPT_USAGE, "--layout %s: must be nchw or nhwc", layout);
    if (nhwc && n != 4)
        return dpt_fail(err, DPT_USAGE, "--layout nhwc: %s has %d dimensions, not 4", a->in.path,
                        n);
    if (a->row > INT32_MAX / 8)
        return dpt_fail(err, DPT_BAD_DATA, "%s: samples of %lld numbers are too large", a->in.path,
                        (long long)a->row);
    if (s->spec->convert && !from_idx(s) && layout == NULL && n == 4 && d[1] > 4 &&
        (d[3] == 1 || d[3] == 3) && s->spec->log != NULL)
        dpt_log_warn(s->spec->log,
                     "%s: [%lld,%lld,%lld,%lld] is taken as [N,C,H,W]; if the channels are last, "
                     "give --layout nhwc",
                     a->in.path, (long long)d[0], (long long)d[1], (long long)d[2],
                     (long long)d[3]);
    *shape = (struct dpt_shape){.c = 1, .h = 1, .w = 1, .flat = n == 2};
    if (n != 3)
        shape->c = (int32_t)d[nhwc ? 3 : 1];
    if (n > 2) {
        shape->h = (int32_t)d[n - (nhwc ? 3 : 2)];
        shape->w = (int32_t)d[n - (nhwc ? 2 : 1)];
    }
    return DPT_OK;
}

/* n rows of a file into `raw`. */
static enum dpt_status read_raw(struct state *state, struct dpt_array *a, int64_t row, int64_t n,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(state->raw, &state->room, (size_t)(n * a->row * a->npy.size), a->in.path, err);
    DPT_TRY(dpt_array_read(a, row, n, state->raw, err));
out:
    return status;
}

/* Adds the labels of an open part to those that were seen. */
static enum dpt_status see_labels(struct dpt_source *s, struct dpt_error *err)
{
    enum { ROWS = 1 << 12 };
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    struct dpt_array *labels = &state->labels;
    const int64_t samples = labels->npy.dims[0];

    for (int64_t at = 0, n; at < samples; at += n) {
        n = samples - at < ROWS ? samples - at : ROWS;
        DPT_TRY(read_raw(state, labels, at, n, err));
        for (int64_t i = 0; i < n; i++)
            DPT_TRY(dpt_label_numbers_add(
                &state->numbers, dpt_npy_integer(&labels->npy, state->raw + i * labels->npy.size),
                err));
    }
out:
    return status;
}

/* Decides what labels of one number per sample are, once all were seen. */
static void decide_labels(struct dpt_source *s)
{
    struct state *state = s->state;
    const struct dpt_label_numbers *numbers = &state->numbers;
    const bool floats = state->labels.npy.kind == 'f';
    const bool classes = dpt_labels_seem_classes(numbers, floats, s->layout.shape.flat);

    if (numbers->samples == 0)
        return;
    s->info.truth = classes ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    s->info.width = classes ? 0 : 1;
    if (classes == floats)
        dpt_source_tell_labels(s, state->labels.in.path, numbers, classes);
}

/* What the labels of an open part are; of those that decide_labels looks at, classes for now. */
static enum dpt_status truth_of(struct dpt_source *s, size_t part, enum dpt_truth *truth,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_array *labels = &((const struct state *)s->state)->labels;
    bool classes = true;

    *truth = DPT_TRUTH_NONE;
    if (labels_of(s, part) == NULL)
        return DPT_OK;
    if (labels->row > 1 || s->spec->option[DPT_SOURCE_REGRESSION] != NULL)
        classes = false;
    else if (!s->spec->convert)
        classes = labels->npy.kind != 'f' || s->spec->classes;
    else if (!from_idx(s) && s->spec->option[DPT_SOURCE_CLASSES] == NULL)
        DPT_TRY(see_labels(s, err));
    *truth = classes ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
out:
    return status;
}

/* What the first part says of the form; the others must be alike. */
static enum dpt_status take_layout(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *layout = s->spec->option[DPT_SOURCE_LAYOUT];
    const struct state *state = s->state;
    const bool u8 = state->images.npy.kind == 'u';
    struct dpt_shape shape;
    enum dpt_truth truth;
    int32_t width;

    DPT_TRY(shape_of(s, &state->images, &shape, err));
    DPT_TRY(truth_of(s, part, &truth, err));
    width = truth == DPT_TRUTH_VECTOR ? (int32_t)state->labels.row : 0;
    if (part == 0) {
        s->layout.shape = shape;
        s->layout.u8 = u8;
        s->layout.nhwc = layout != NULL && strcmp(layout, "nhwc") == 0;
        s->info.truth = truth;
        s->info.width = width;
    }
    if (!dpt_same_shape(&shape, &s->layout.shape) || u8 != s->layout.u8 || truth != s->info.truth ||
        width != s->info.width)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s and %s hold samples or labels of different sizes or types: inputs "
                         "must be alike",
                         s->paths[0], s->paths[part]));
    s->parts[part].samples = state->images.npy.dims[0];
out:
    return status;
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_source_check_labels(s, err));
    if (s->spec->convert && !from_npz(s) && s->n_paths != 2)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "%s takes two files, images and labels; %zu given",
                         s->format->name, s->n_paths));
    if (s->spec->convert && !from_npz(s))
        s->n_parts = 1;
    for (size_t i = 0; i < s->n_parts; i++) {
        DPT_TRY(open_files(s, i, err));
        DPT_TRY(take_layout(s, i, err));
    }
    decide_labels(s);
out:
    return status;
}

static void close_source(void *state)
{
    struct state *opened = state;

    close_files(opened);
    dpt_free(opened->raw);
    dpt_label_numbers_release(&opened->numbers);
}

static enum dpt_status read_floats(struct dpt_source *s, struct dpt_array *a, int64_t row,
                                   int64_t n, float *out, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    DPT_TRY(read_raw(state, a, row, n, err));
    DPT_TRY(dpt_array_floats(a, state->raw, row, n, out, err));
    if (a->merged >= 0 && !state->told && s->spec->log != NULL) {
        dpt_log_warn(s->spec->log, "%s: " DPT_FLOAT_MERGES, a->in.path, (long long)a->merged);
        state->told = true;
    }
out:
    return status;
}

static enum dpt_status read_classes(struct dpt_source *s, int64_t row, int64_t n, int32_t *classes,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    struct dpt_array *labels = &state->labels;

    DPT_TRY(read_raw(state, labels, row, n, err));
    for (int64_t i = 0; i < n; i++) {
        const int64_t value = dpt_npy_integer(&labels->npy, state->raw + i * labels->npy.size);

        classes[i] = dpt_source_class_of(value);
        if ((s->spec->convert && (value < 0 || value >= INT32_MAX)) || value == INT64_MIN)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: the label of sample %lld is %.17g: no number of a class%s",
                             labels->in.path, (long long)(row + i),
                             dpt_npy_real(&labels->npy, state->raw + i * labels->npy.size),
                             s->spec->convert ? "; --regression takes regression targets" : ""));
    }
out:
    return status;
}

static enum dpt_status read_arrays(struct dpt_source *s, const struct dpt_source_rows *rows,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const int64_t row = rows->row, n = rows->n;
    float *floats = (float *)(void *)rows->stored;

    if (state->part != rows->part)
        DPT_TRY(open_files(s, rows->part, err));
    if (rows->stored != NULL && s->layout.u8)
        DPT_TRY(dpt_array_read(&state->images, row, n, rows->stored, err));
    else if (rows->stored != NULL)
        DPT_TRY(read_floats(s, &state->images, row, n, floats, err));
    if (rows->classes != NULL)
        DPT_TRY(read_classes(s, row, n, rows->classes, err));
    if (rows->targets != NULL)
        DPT_TRY(read_floats(s, &state->labels, row, n, rows->targets, err));
out:
    return status;
}

const struct dpt_source_format dpt_source_idx = {
    .name = "idx",
    .help = "IDX files of unsigned bytes",
    .inputs = "IMAGES LABELS",
    .summary = "IDX files of unsigned bytes, as MNIST's; gzipped or not",
    .details = "Images [N,H,W] become uint8 [N,1,H,W]; [N,C,H,W] and [N,D] stay as they are. "
               "Labels: one byte each.",
    .options =
        1ull << DPT_SOURCE_LABELS | 1ull << DPT_SOURCE_REGRESSION | 1ull << DPT_SOURCE_CLASSES,
    .is = is_idx,
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_arrays,
};

const struct dpt_source_format dpt_source_npy = {
    .name = "npy",
    .help = "NumPy arrays",
    .inputs = "IMAGES.npy LABELS.npy",
    .summary = "NumPy arrays as numpy.save writes them",
    .details = "Images [N,D], [N,H,W], [N,C,H,W] or, with --layout nhwc, [N,H,W,C], of uint8, "
               "float32 or float64 (becomes float32). Labels [N] that are whole numbers from 0 "
               "are classes, unless they are too many for their samples or leave out too many, "
               "as amounts do (--classes and --regression decide it); other floats [N], and any "
               "numbers [N,K], are targets: multi-label, probabilities of classes, or "
               "regression.",
    .options = 1ull << DPT_SOURCE_LAYOUT | 1ull << DPT_SOURCE_LABELS |
               1ull << DPT_SOURCE_REGRESSION | 1ull << DPT_SOURCE_CLASSES,
    .is = is_npy,
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_arrays,
};

const struct dpt_source_format dpt_source_npz = {
    .name = "npz",
    .help = "archives of NumPy arrays",
    .inputs = "FILE.npz...",
    .summary = "archives of NumPy arrays as numpy.savez and savez_compressed write them",
    .details = "Arrays as those of npy, images or x or arr_0, and labels or y or arr_1; --keys "
               "names others. Several files become one set.",
    .options = 1ull << DPT_SOURCE_KEYS | 1ull << DPT_SOURCE_LAYOUT | 1ull << DPT_SOURCE_REGRESSION |
               1ull << DPT_SOURCE_CLASSES,
    .is = is_npz,
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_arrays,
};
