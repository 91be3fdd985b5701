/* HDF5 files: samples to predict, as those of a job, but labels may be missing; or others' files
 * that become shards. */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/sets/parts.h"
#include "data/shards/labels.h"
#include "data/shards/shard.h"
#include "data/sources/source_type.h"
#include "data/tables/array.h"
#include "data/tables/columns.h"

struct state {
    struct dpt_shard *shards; /* [n_parts] */
    size_t opened;
    size_t attached; /* the one that is, n_parts: none */
    char **ids;      /* [n_parts] the samples' names, [samples] of `stride` bytes; NULL: none */
    size_t *stride;  /* [n_parts] */
    uint8_t *files;  /* of shards that keep files: those of the window, one after the other */
    size_t room;
    bool told; /* that numbers became one as float32 */
};

static bool signed_at(const uint8_t *head, size_t n, size_t at)
{
    return n >= at + 8 && memcmp(head + at, "\x89HDF\r\n\x1a\n", 8) == 0;
}

/* MATLAB writes a text of 512 bytes in front of its files. */
static bool is(const uint8_t *head, size_t n)
{
    return signed_at(head, n, 0) || signed_at(head, n, 512);
}

/* Its labels are to be compared with the model's classes, or become a set with those of the first;
 * likewise its columns. */
static enum dpt_status check_alike(const struct dpt_source *s, const struct dpt_shard *shard,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shard *first = ((const struct state *)s->state)->shards;
    const struct dpt_source_model *model = &s->spec->model;
    const struct dpt_class_names names = {model->classes, model->n_classes};
    const bool convert = s->spec->convert;
    const char *columns = convert ? first->columns : model->columns;

    DPT_TRY(dpt_shard_check_alike(shard, first, err));
    DPT_TRY(dpt_class_names_check(&shard->names, shard->path, convert ? &first->names : &names,
                                  convert ? first->path : model->classes_of, err));
    if (shard->columns != NULL && columns != NULL)
        DPT_TRY(dpt_columns_check(shard->columns, shard->path, columns,
                                  convert ? first->path : model->columns_of, err));
out:
    return status;
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

    for (size_t i = (size_t)s->rank;
         i < s->n_parts && (s->spec->conf == NULL || s->spec->conf->verify);
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

static const char *sample_name(const struct dpt_source *s, int64_t sample)
{
    const struct state *state = s->state;
    const size_t part = dpt_source_part_of(s, sample);

    if (state->ids == NULL)
        return NULL;
    return state->ids[part] + (size_t)(sample - s->parts[part].first) * state->stride[part];
}

static void close_shards(struct state *state)
{
    for (; state->opened > 0; state->opened--)
        dpt_shard_close(&state->shards[state->opened - 1]);
}

static enum dpt_status open_shards(struct dpt_source *s, const struct dpt_shard_spec *how,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    for (size_t i = 0; i < s->n_parts; i++) {
        struct dpt_shard *shard = &state->shards[i];

        DPT_TRY(dpt_shard_open(shard, s->paths[i], how, err));
        state->opened = i + 1;
        s->parts[i].samples = shard->samples;
        if (i > 0)
            shard->start = shard[-1].start + shard[-1].images.info.bytes;
        DPT_TRY(check_alike(s, shard, err));
    }
out:
    return status;
}

/* Finds out what the labels of files that become shards are. *classes: out. Whole numbers of ours
 * are classes, since somebody decided so when they were converted. */
static enum dpt_status decide_labels(struct dpt_source *s, bool *classes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    struct dpt_shard *first = state->shards;
    struct dpt_label_numbers numbers = {0};
    const bool said = s->spec->option[DPT_SOURCE_CLASSES] != NULL;
    bool whole = true;
    int64_t n;

    for (size_t i = 0; i < s->n_parts; i++) {
        whole = whole && dpt_shard_whole(&state->shards[i]);
        if (first->target == DPT_TARGET_CLASS)
            DPT_TRY(dpt_label_numbers_take(&numbers, &state->shards[i], err));
    }
    *classes = first->target == DPT_TARGET_CLASS &&
               (said || (whole && (first->names.n > 0 || first->labels.info.has_crc)) ||
                dpt_labels_seem_classes(&numbers, !whole, first->shape.flat));
    if (!*classes && whole && first->target == DPT_TARGET_CLASS)
        dpt_source_tell_labels(s, first->path, &numbers, false);
    if (!*classes)
        goto out;
    n = numbers.n > 0 ? numbers.largest + 1 : 0;
    if (!whole && !said)
        dpt_source_tell_labels(s, first->path, &numbers, true);
    if (first->names.n > 0 && (int64_t)first->names.n >= n) {
        s->info.class_names = first->names.at;
        s->info.classes = (int64_t)first->names.n;
    } else if (first->names.n > 0 && s->spec->log != NULL) {
        dpt_log_warn(s->spec->log, "%s: names %zu of %lld classes: the names are left out",
                     first->path, first->names.n, (long long)n);
    }
out:
    dpt_label_numbers_release(&numbers);
    return status;
}

/* Opens files that become shards. */
static enum dpt_status open_others(struct dpt_source *s, struct dpt_shard_spec *how,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    how->need_labels = true;
    DPT_TRY(dpt_source_check_labels(s, err));
    how->classes = s->spec->option[DPT_SOURCE_REGRESSION] == NULL;
    DPT_TRY(open_shards(s, how, err));
    if (how->classes)
        DPT_TRY(decide_labels(s, &how->classes, err));
    if (!how->classes && state->shards->target == DPT_TARGET_CLASS) {
        close_shards(state);
        DPT_TRY(open_shards(s, how, err));
    }
    s->info.columns = state->shards->columns;
    if (state->shards->weights.name != NULL && s->spec->log != NULL)
        dpt_log_warn(s->spec->log, "%s: /%s is left out", state->shards->path,
                     state->shards->weights.name);
out:
    return status;
}

/* The names of the arrays of samples and labels: --keys, or else the job's. */
static enum dpt_status take_keys(struct dpt_source *s, struct dpt_data_keys *keys,
                                 struct dpt_error *err)
{
    *keys = (struct dpt_data_keys){0};
    if (s->spec->conf != NULL)
        *keys = s->spec->conf->keys;
    return dpt_data_keys_take(s->spec->option[DPT_SOURCE_KEYS], &s->region, keys, err);
}

/* --layout, or else the job's: an enum dpt_sample_layout. */
static enum dpt_status take_layout(const struct dpt_source *s, int *layout, struct dpt_error *err)
{
    static const char *const names[] = {DPT_LAYOUTS(DPT_LIST_WORD)};
    const char *text = s->spec->option[DPT_SOURCE_LAYOUT];

    *layout = s->spec->conf != NULL ? s->spec->conf->layout : DPT_LAYOUT_AUTO;
    if (text == NULL)
        return DPT_OK;
    *layout = (int)dpt_find(text, names, DPT_LAYOUT_COUNT);
    if (*layout != DPT_LAYOUT_NCHW && *layout != DPT_LAYOUT_NHWC)
        return dpt_fail(err, DPT_USAGE, "--layout %s: must be nchw or nhwc", text);
    return DPT_OK;
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    struct dpt_shard_spec how = {.classes = s->spec->classes};
    const struct dpt_shard *first;

    state->attached = s->n_parts;
    DPT_TRY(DPT_ALLOCATE(state->shards, s->n_parts, "the shards", err));
    first = &state->shards[0];
    DPT_TRY(take_keys(s, &how.keys, err));
    DPT_TRY(take_layout(s, &how.layout, err));
    if (s->spec->convert)
        DPT_TRY(open_others(s, &how, err));
    else
        DPT_TRY(open_shards(s, &how, err));
    DPT_TRY(verify(s, err));
    DPT_TRY(read_ids(s, err));
    s->layout.shape = first->shape;
    s->layout.u8 = dpt_shard_u8(first);
    s->layout.nhwc = first->nhwc;
    if (first->labels.name != NULL)
        s->info.truth = first->target == DPT_TARGET_CLASS ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    s->info.width = first->target_width;
out:
    return status;
}

static void close_source(void *arg)
{
    struct state *state = arg;

    for (size_t i = 0; state->ids != NULL && i < state->opened; i++)
        free(state->ids[i]);
    close_shards(state);
    dpt_free(state->ids);
    dpt_free(state->stride);
    dpt_free(state->shards);
    free(state->files);
}

/* Where a sample's file begins among those of all shards. */
static int64_t place_of(const struct dpt_source *s, int64_t sample)
{
    const size_t part = dpt_source_part_of(s, sample);
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
    const size_t part = dpt_source_part_of(s, sample);
    const struct dpt_shard *shard = &state->shards[part];
    const int64_t row = sample - s->parts[part].first;

    if (!shard->files)
        return DPT_OK;
    return dpt_shard_decode(shard, row, state->files + place_of(s, sample) - place_of(s, s->first),
                            (size_t)(shard->offsets[row + 1] - shard->offsets[row]), stored, err);
}

/* What the two visits of a scan need. */
struct window {
    struct dpt_source *source;
    const struct dpt_shard *shard;
    const struct dpt_source_rows *rows;
};

/* What no model could learn is refused where it would become a shard. */
static enum dpt_status check_finite(const struct window *w, const struct dpt_field *field,
                                    int64_t row, int64_t n, const float *values,
                                    struct dpt_error *err)
{
    const int64_t bad =
        w->source->spec->convert ? dpt_find_nonfinite(values, (size_t)(n * field->row_items)) : -1;

    return bad < 0 ? DPT_OK
                   : dpt_fail(err, DPT_BAD_DATA, "%s: /%s[%lld] holds NaN or an infinite value",
                              field->path, field->name, (long long)(row + bad / field->row_items));
}

/* Says once that numbers became one as float32. */
static void tell_merged(const struct window *w, const struct dpt_field *field, int64_t n,
                        const void *raw)
{
    struct state *state = w->source->state;
    const int64_t at =
        state->told || w->source->spec->log == NULL ? -1 : dpt_field_merged(field, raw, n);

    if (at < 0)
        return;
    dpt_log_warn(w->source->spec->log, "%s: /%s: " DPT_FLOAT_MERGES, field->path, field->name,
                 (long long)at);
    state->told = true;
}

static enum dpt_status take_images(void *arg, int64_t row, int64_t n, const void *raw,
                                   struct dpt_error *err)
{
    const struct window *w = arg;
    const struct dpt_field *field = &w->shard->images;
    const size_t stride = w->source->layout.stride;
    uint8_t *to = w->rows->stored + (size_t)(row - w->rows->row) * stride;

    if (dpt_shard_u8(w->shard)) {
        memcpy(to, raw, (size_t)n * stride);
        return DPT_OK;
    }
    tell_merged(w, field, n, raw);
    dpt_field_floats(field, raw, (size_t)(n * field->row_items), (float *)(void *)to);
    return check_finite(w, field, row, n, (float *)(void *)to, err);
}

static enum dpt_status take_labels(void *arg, int64_t row, int64_t n, const void *raw,
                                   struct dpt_error *err)
{
    const struct window *w = arg;
    const struct dpt_field *field = &w->shard->labels;
    const int64_t at = row - w->rows->row, width = w->shard->target_width;
    char text[32];

    if (w->rows->targets != NULL) {
        tell_merged(w, field, n, raw);
        dpt_field_floats(field, raw, (size_t)(n * width), w->rows->targets + at * width);
        return check_finite(w, field, row, n, w->rows->targets + at * width, err);
    }
    for (int64_t i = 0; w->rows->classes != NULL && i < n; i++) {
        const int64_t label = dpt_field_int(field, raw, (size_t)i);

        if (label == INT64_MIN || (w->source->spec->convert && (label < 0 || label >= INT32_MAX)))
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
    struct window w = {s, shard, rows};

    DPT_TRY(attach(s, rows->part, err));
    if (rows->stored != NULL && shard->files)
        DPT_TRY(read_files(s, rows, err));
    else if (rows->stored != NULL)
        DPT_TRY(dpt_field_scan(&shard->images, rows->row, end, take_images, &w, NULL, err));
    if (rows->classes != NULL || rows->targets != NULL)
        DPT_TRY(dpt_field_scan(&shard->labels, rows->row, end, take_labels, &w, NULL, err));
out:
    return status;
}

const struct dpt_source_format dpt_source_h5 = {
    .name = "h5",
    .help = "HDF5 shards",
    .inputs = "FILE.h5...",
    .summary = "HDF5 files of other programs, and shards",
    .details = "Data sets of any names (--keys), compressed or not, also MATLAB's of version 7.3 "
               "(FILE.mat); several files become one set. Samples are uint8, float32 or float64. "
               "Labels are as in npy; names of classes and of samples are kept, weights are not.",
    .options = 1ull << DPT_SOURCE_KEYS | 1ull << DPT_SOURCE_LAYOUT | 1ull << DPT_SOURCE_REGRESSION |
               1ull << DPT_SOURCE_CLASSES,
    .is = is,
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_rows,
    .render = render,
    .sample_name = sample_name,
};
