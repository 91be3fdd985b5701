/* IDX files as samples to predict, with or without a file of labels each. */
#include <stdlib.h>
#include <string.h>

#include "data/sources/source_type.h"
#include "data/tables/idx.h"

/* The file that is open, and how far it was read. */
struct state {
    struct dpt_idx images, labels;
    size_t part; /* n_parts: none */
    int64_t row;
};

static bool is(const uint8_t *head, size_t n)
{
    return n >= 4 && head[0] == 0 && head[1] == 0 && head[2] >= 0x08 && head[2] <= 0x0E &&
           head[3] > 0;
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
    struct dpt_idx *images = &state->images, *labels = &state->labels;

    close_files(state);
    state->part = s->n_parts;
    state->row = 0;
    DPT_TRY(dpt_idx_open(images, s->paths[part], &s->job, err));
    if (images->n_dims == 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: holds labels (magic number 00 00 08 01), where images are wanted; "
                         "--labels takes them beside their images",
                         s->paths[part]));
    if (s->spec->n_labels > 0) {
        DPT_TRY(dpt_idx_open(labels, s->spec->labels[part], &s->job, err));
        if (labels->n_dims != 1)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: has %d dimensions: images, where labels (00 00 08 01) are wanted",
                             labels->in.path, labels->n_dims));
        if (labels->dims[0] != images->dims[0])
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s has %lld images, but %s has %lld labels",
                             images->in.path, (long long)images->dims[0], labels->in.path,
                             (long long)labels->dims[0]));
    }
    state->part = part;
out:
    return status;
}

static struct dpt_shape shape_of(const struct dpt_idx *idx)
{
    struct dpt_shape shape = {.c = 1, .h = 1, .w = 1, .flat = idx->n_dims == 2};
    const int64_t *d = idx->dims;

    if (idx->n_dims == 2) {
        shape.c = (int32_t)d[1];
    } else {
        shape.c = idx->n_dims == 4 ? (int32_t)d[1] : 1;
        shape.h = (int32_t)d[idx->n_dims - 2];
        shape.w = (int32_t)d[idx->n_dims - 1];
    }
    return shape;
}

static enum dpt_status open_source(struct dpt_source *s, int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = calloc(1, sizeof *state);
    struct dpt_shape shape;

    (void)rank;
    (void)ranks;
    s->state = state;
    if (state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the inputs", sizeof *state));
    DPT_TRY(dpt_source_parts(s, s->n_paths, err));
    s->form.u8 = true;
    for (size_t i = 0; i < s->n_parts; i++) {
        DPT_TRY(open_files(s, i, err));
        if (state->images.sample > INT32_MAX / 8)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: samples of %lld bytes are too large",
                             s->paths[i], (long long)state->images.sample));
        shape = shape_of(&state->images);
        if (i == 0)
            s->form.shape = shape;
        if (!dpt_same_shape(&shape, &s->form.shape))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s and %s hold samples of different sizes: inputs must be alike",
                             s->paths[0], s->paths[i]));
        s->parts[i].samples = state->images.dims[0];
    }
    s->info.truth = s->spec->n_labels > 0 ? DPT_TRUTH_CLASS : DPT_TRUTH_NONE;
out:
    return status;
}

static void close_source(struct dpt_source *s)
{
    close_files(s->state);
    free(s->state);
}

static enum dpt_status read_rows(struct dpt_source *s, size_t part, int64_t row, int64_t n,
                                 uint8_t *stored, int32_t *classes, float *targets,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    uint8_t byte;

    (void)targets;
    if (state->part != part)
        DPT_TRY(open_files(s, part, err));
    DPT_TRY(dpt_input_skip(&state->images.in, (row - state->row) * state->images.sample, err));
    if (classes != NULL)
        DPT_TRY(dpt_input_skip(&state->labels.in, row - state->row, err));
    DPT_TRY(dpt_input_exact(&state->images.in, stored, (size_t)(n * state->images.sample), err));
    for (int64_t i = 0; classes != NULL && i < n; i++) {
        DPT_TRY(dpt_input_exact(&state->labels.in, &byte, 1, err));
        classes[i] = byte;
    }
    state->row = row + n;
    if (state->row == s->parts[part].samples)
        DPT_TRY(dpt_input_end(&state->images.in, err));
out:
    return status;
}

const struct dpt_source_type dpt_source_idx = {
    .kind = DPT_SOURCE_IDX,
    .is = is,
    .open = open_source,
    .close = close_source,
    .read = read_rows,
};
