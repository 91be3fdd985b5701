/* HDF5 shards as samples to predict: as those of a job, but labels may be missing. */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/shards/shard.h"
#include "data/sources/source_type.h"
#include "data/tables/columns.h"

struct state {
    struct dpt_shard *shards; /* [n_parts] */
    size_t opened;
    size_t attached; /* the one that is, n_parts: none */
    char **ids;      /* [n_parts] the samples' names, [samples] of `stride` bytes; NULL: none */
    size_t *stride;  /* [n_parts] */
    uint8_t *files;  /* of shards that keep files: those of the window, one behind the other */
    size_t room;
};

static bool is(const uint8_t *head, size_t n)
{
    return n >= 8 && memcmp(head, "\x89HDF\r\n\x1a\n", 8) == 0;
}

static bool labelled(const struct dpt_shard *shard)
{
    return shard->labels.name != NULL;
}

/* Its labels are to be compared with the model's classes. */
static enum dpt_status check_names(const struct dpt_source *s, const struct dpt_shard *shard,
                                   struct dpt_error *err)
{
    const struct dpt_source_model *model = &s->spec->model;
    const struct dpt_class_names names = {model->classes, model->n_classes};

    return dpt_class_names_check(&shard->names, shard->path, &names, model->classes_of, err);
}

static enum dpt_status attach(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    struct state *state = s->state;
    enum dpt_status status = DPT_OK;

    if (state->attached == part)
        return DPT_OK;
    if (state->attached < s->n_parts)
        dpt_shard_detach(&state->shards[state->attached]);
    state->attached = s->n_parts;
    DPT_TRY(dpt_shard_attach(&state->shards[part], err));
    state->attached = part;
out:
    return status;
}

/* Reads the files of this rank's turn as a whole, and compares. */
static enum dpt_status verify(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    for (size_t i = (size_t)s->rank; i < s->n_parts && s->spec->conf->verify;
         i += (size_t)s->ranks) {
        const struct dpt_shard *shard = &state->shards[i];

        DPT_TRY(attach(s, i, err));
        DPT_TRY(dpt_field_verify(&shard->images, dpt_shard_row(shard, shard->samples), err));
        DPT_TRY(dpt_field_verify(&shard->labels, shard->samples, err));
    }
out:
    return status;
}

/* Reads the samples' names, where all shards have some. */
static enum dpt_status read_ids(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    for (size_t i = 0; i < s->n_parts; i++)
        if (!state->shards[i].has_ids || state->shards[i].samples == 0)
            return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(state->ids, s->n_parts, "names", err));
    DPT_TRY(DPT_ALLOCATE(state->stride, s->n_parts, "names", err));
    for (size_t i = 0; i < s->n_parts; i++)
        DPT_TRY(dpt_shard_read_ids(&state->shards[i], &state->ids[i], &state->stride[i], err));
    s->info.id = "id";
out:
    return status;
}

static size_t part_of(const struct dpt_source *s, int64_t sample)
{
    size_t part = 0;

    while (part + 1 < s->n_parts && sample >= s->parts[part + 1].first)
        part++;
    return part;
}

static const char *sample_name(const struct dpt_source *s, int64_t sample)
{
    const struct state *state = s->state;
    const size_t part = part_of(s, sample);

    if (state->ids == NULL)
        return NULL;
    return state->ids[part] + (size_t)(sample - s->parts[part].first) * state->stride[part];
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const struct dpt_shard *first;

    state->attached = s->n_parts;
    DPT_TRY(DPT_ALLOCATE(state->shards, s->n_parts, "the shards", err));
    first = &state->shards[0];
    for (size_t i = 0; i < s->n_parts; i++) {
        struct dpt_shard *shard = &state->shards[i];

        DPT_TRY(dpt_shard_open(shard, s->paths[i], s->spec->classes, false, err));
        state->opened = i + 1;
        s->parts[i].samples = shard->samples;
        if (i > 0)
            shard->start = shard[-1].start + shard[-1].images.info.bytes;
        DPT_TRY(dpt_shard_check_alike(shard, first, err));
        DPT_TRY(check_names(s, shard, err));
        if (shard->columns != NULL && s->spec->model.columns != NULL)
            DPT_TRY(dpt_columns_check(shard->columns, shard->path, s->spec->model.columns,
                                      s->spec->model.columns_of, err));
    }
    DPT_TRY(verify(s, err));
    DPT_TRY(read_ids(s, err));
    s->layout.shape = first->shape;
    s->layout.u8 = dpt_shard_u8(first);
    s->layout.nhwc = first->nhwc;
    if (labelled(first))
        s->info.truth = first->target == DPT_TARGET_CLASS ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    s->info.width = first->target_width;
out:
    return status;
}

static void close_source(void *arg)
{
    struct state *state = arg;

    for (size_t i = 0; i < state->opened; i++) {
        dpt_shard_close(&state->shards[i]);
        if (state->ids != NULL)
            free(state->ids[i]);
    }
    dpt_free(state->ids);
    dpt_free(state->stride);
    dpt_free(state->shards);
    free(state->files);
}

/* Where a sample's file begins among those of all shards. */
static int64_t place_of(const struct dpt_source *s, int64_t sample)
{
    const size_t part = part_of(s, sample);
    const struct dpt_shard *shard = &((const struct state *)s->state)->shards[part];

    return shard->start + dpt_shard_row(shard, sample - s->parts[part].first);
}

/* Adds the files of some rows to those of the window. */
static enum dpt_status read_files(struct dpt_source *s, const struct dpt_source_rows *rows,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const struct dpt_shard *shard = &state->shards[rows->part];
    const int64_t first = dpt_shard_row(shard, rows->row);
    const int64_t bytes = dpt_shard_row(shard, rows->row + rows->n) - first;
    const size_t at = (size_t)(shard->start + first - place_of(s, s->first));

    DPT_GROW(state->files, &state->room, at + (size_t)bytes, "a window of files", err);
    DPT_TRY(dpt_field_read(&shard->images, first, bytes, state->files + at, err));
out:
    return status;
}

static enum dpt_status render(const struct dpt_source *s, int64_t sample, uint8_t *stored,
                              struct dpt_error *err)
{
    const struct state *state = s->state;
    const size_t part = part_of(s, sample);
    const struct dpt_shard *shard = &state->shards[part];
    const int64_t row = sample - s->parts[part].first;

    if (shard->offsets == NULL)
        return DPT_OK;
    return dpt_shard_decode(shard, row, state->files + place_of(s, sample) - place_of(s, s->first),
                            (size_t)(shard->offsets[row + 1] - shard->offsets[row]), stored, err);
}

/* What the two visits of a scan need. */
struct window {
    const struct dpt_shard *shard;
    const struct dpt_source_rows *rows;
    size_t stride;
};

static enum dpt_status take_images(void *arg, int64_t row, int64_t n, const void *raw,
                                   struct dpt_error *err)
{
    const struct window *w = arg;
    const struct dpt_field *field = &w->shard->images;
    uint8_t *to = w->rows->stored + (size_t)(row - w->rows->row) * w->stride;

    (void)err;
    if (dpt_shard_u8(w->shard))
        memcpy(to, raw, (size_t)n * w->stride);
    else
        dpt_field_floats(field, raw, (size_t)(n * field->row_items), (float *)(void *)to);
    return DPT_OK;
}

static enum dpt_status take_labels(void *arg, int64_t row, int64_t n, const void *raw,
                                   struct dpt_error *err)
{
    const struct window *w = arg;
    const struct dpt_field *field = &w->shard->labels;
    const int64_t at = row - w->rows->row, width = w->shard->target_width;
    char text[32];

    if (w->rows->targets != NULL)
        dpt_field_floats(field, raw, (size_t)(n * width), w->rows->targets + at * width);
    for (int64_t i = 0; w->rows->classes != NULL && i < n; i++) {
        const int64_t label = dpt_field_int(field, raw, (size_t)i);

        if (label == INT64_MIN)
            return dpt_fail(err, DPT_BAD_DATA, "%s: /%s[%lld] is %s: no number of a class",
                            field->path, field->name, (long long)(row + i),
                            dpt_field_show(field, raw, (size_t)i, text));
        w->rows->classes[at + i] = dpt_source_class_of(label);
    }
    return DPT_OK;
}

static enum dpt_status read_rows(struct dpt_source *s, const struct dpt_source_rows *rows,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shard *shard = &((struct state *)s->state)->shards[rows->part];
    const int64_t end = rows->row + rows->n;
    struct window w = {shard, rows, s->layout.stride};

    DPT_TRY(attach(s, rows->part, err));
    if (shard->offsets != NULL)
        DPT_TRY(read_files(s, rows, err));
    else
        DPT_TRY(dpt_field_scan(&shard->images, rows->row, end, take_images, &w, NULL, err));
    if (rows->classes != NULL || rows->targets != NULL)
        DPT_TRY(dpt_field_scan(&shard->labels, rows->row, end, take_labels, &w, NULL, err));
out:
    return status;
}

const struct dpt_source_format dpt_source_h5 = {
    .name = "h5",
    .help = "HDF5 shards",
    .is = is,
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_rows,
    .render = render,
    .sample_name = sample_name,
};
