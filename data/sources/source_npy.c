/* NumPy arrays as samples to predict, with or without an array of labels or targets each. */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/sources/source_type.h"
#include "data/tables/npy_file.h"

/* The files that are open, and how far they were read. */
struct state {
    struct dpt_npy_file images, labels;
    size_t part; /* n_parts: none */
    int64_t row;
    uint8_t *raw; /* rows as they lie in the file */
    size_t room;
};

static bool is(const uint8_t *head, size_t n)
{
    return n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
}

static void close_files(struct state *state)
{
    dpt_input_close(&state->images.in);
    dpt_input_close(&state->labels.in);
}

static enum dpt_status check_labels(const struct dpt_npy_file *images,
                                    const struct dpt_npy_file *labels, struct dpt_error *err)
{
    const struct dpt_npy *npy = &labels->npy;

    if (npy->dims[0] != images->npy.dims[0])
        return dpt_fail(err, DPT_BAD_DATA, "%s has %lld images, but %s has %lld labels",
                        images->in.path, (long long)images->npy.dims[0], labels->in.path,
                        (long long)npy->dims[0]);
    if (npy->n_dims > 2 || (npy->kind != 'f' && labels->row != 1))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: is of the type '%s' with %d dimensions; labels are whole numbers [N], "
                        "targets floats [N] or [N,K]",
                        labels->in.path, npy->descr, npy->n_dims);
    return DPT_OK;
}

/* Opens the files of a part at their first row. */
static enum dpt_status open_files(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const struct dpt_npy *npy = &state->images.npy;

    close_files(state);
    state->part = s->n_parts;
    state->row = 0;
    DPT_TRY(dpt_npy_open(&state->images, s->paths[part], &s->job, err));
    if (npy->kind != 'f' && !(npy->kind == 'u' && npy->size == 1))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: samples are of the type '%s'; save them as uint8 "
                         "(a.astype(numpy.uint8)) or float32",
                         s->paths[part], npy->descr));
    if (npy->n_dims < 2 || npy->n_dims > 4)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: has %d dimensions; samples are [N,D], [N,H,W] or [N,C,H,W], one "
                         "alone too (a[None])",
                         s->paths[part], npy->n_dims));
    if (s->spec->n_labels > 0) {
        DPT_TRY(dpt_npy_open(&state->labels, s->spec->labels[part], &s->job, err));
        DPT_TRY(check_labels(&state->images, &state->labels, err));
    }
    state->part = part;
out:
    return status;
}

static enum dpt_status shape_of(const struct dpt_source *s, const struct dpt_npy_file *a,
                                struct dpt_shape *shape, struct dpt_error *err)
{
    const char *layout = s->spec->layout;
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
    *shape = (struct dpt_shape){.c = 1, .h = 1, .w = 1, .flat = n == 2};
    if (n != 3)
        shape->c = (int32_t)d[nhwc ? 3 : 1];
    if (n > 2) {
        shape->h = (int32_t)d[n - (nhwc ? 3 : 2)];
        shape->w = (int32_t)d[n - (nhwc ? 2 : 1)];
    }
    return DPT_OK;
}

/* What the first part says of the form; the others must be alike. */
static enum dpt_status take_form(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct state *state = s->state;
    const bool u8 = state->images.npy.kind == 'u', labelled = s->spec->n_labels > 0;
    const enum dpt_truth truth = !labelled                       ? DPT_TRUTH_NONE
                                 : state->labels.npy.kind == 'f' ? DPT_TRUTH_VECTOR
                                                                 : DPT_TRUTH_CLASS;
    const int32_t width = truth == DPT_TRUTH_VECTOR ? (int32_t)state->labels.row : 0;
    struct dpt_shape shape;

    DPT_TRY(shape_of(s, &state->images, &shape, err));
    if (part == 0) {
        s->form.shape = shape;
        s->form.u8 = u8;
        s->form.nhwc = s->spec->layout != NULL && strcmp(s->spec->layout, "nhwc") == 0;
        s->info.truth = truth;
        s->info.width = width;
    }
    if (!dpt_same_shape(&shape, &s->form.shape) || u8 != s->form.u8 || truth != s->info.truth ||
        width != s->info.width)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s and %s hold samples or labels of different sizes or types: inputs "
                         "must be alike",
                         s->paths[0], s->paths[part]));
    s->parts[part].samples = state->images.npy.dims[0];
out:
    return status;
}

static enum dpt_status open_source(struct dpt_source *s, int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    (void)rank;
    (void)ranks;
    s->state = calloc(1, sizeof(struct state));
    if (s->state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the inputs", sizeof(struct state)));
    DPT_TRY(dpt_source_parts(s, s->n_paths, err));
    for (size_t i = 0; i < s->n_parts; i++) {
        DPT_TRY(open_files(s, i, err));
        DPT_TRY(take_form(s, i, err));
    }
out:
    return status;
}

static void close_source(struct dpt_source *s)
{
    struct state *state = s->state;

    close_files(state);
    dpt_free(state->raw);
    free(state);
}

/* n rows of a file into `raw`. */
static enum dpt_status read_raw(struct state *state, struct dpt_npy_file *a, int64_t row, int64_t n,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t bytes = a->row * a->npy.size;
    const size_t need = (size_t)(n * bytes);

    if (need > state->room) {
        dpt_free(state->raw);
        state->raw = dpt_alloc(need);
        state->room = state->raw != NULL ? need : 0;
        if (state->raw == NULL)
            DPT_TRY(dpt_fail_memory(err, a->in.path, (double)need));
    }
    DPT_TRY(dpt_input_skip(&a->in, (row - state->row) * bytes, err));
    DPT_TRY(dpt_input_exact(&a->in, state->raw, need, err));
out:
    return status;
}

static enum dpt_status read_rows(struct dpt_source *s, size_t part, int64_t row, int64_t n,
                                 uint8_t *stored, int32_t *classes, float *targets,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    struct dpt_npy_file *images = &state->images, *labels = &state->labels;

    if (state->part != part)
        DPT_TRY(open_files(s, part, err));
    DPT_TRY(read_raw(state, images, row, n, err));
    if (s->form.u8)
        memcpy(stored, state->raw, (size_t)(n * images->row));
    else
        DPT_TRY(dpt_npy_floats(images, state->raw, row * images->row, n * images->row,
                               (float *)(void *)stored, err));
    if (classes != NULL || targets != NULL)
        DPT_TRY(read_raw(state, labels, row, n, err));
    if (targets != NULL)
        DPT_TRY(
            dpt_npy_floats(labels, state->raw, row * labels->row, n * labels->row, targets, err));
    for (int64_t i = 0; classes != NULL && i < n; i++) {
        const int64_t value = dpt_npy_integer(&labels->npy, state->raw + i * labels->npy.size);

        classes[i] = value < 0 ? -1 : value > INT32_MAX ? INT32_MAX : (int32_t)value;
    }
    state->row = row + n;
    if (state->row == s->parts[part].samples)
        DPT_TRY(dpt_input_end(&images->in, err));
out:
    return status;
}

const struct dpt_source_type dpt_source_npy = {
    .kind = DPT_SOURCE_NPY,
    .is = is,
    .open = open_source,
    .close = close_source,
    .read = read_rows,
};
