/* HDF5 shards as samples to predict: as those of a job, but labels may be missing. */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/shards/shard.h"
#include "data/sources/source_type.h"

struct state {
    struct dpt_shard *shards; /* [n_parts] */
    size_t opened;
    size_t attached; /* the one that is, n_parts: none */
    void *raw;       /* a piece */
    size_t capacity;
};

static bool is(const uint8_t *head, size_t n)
{
    return n >= 8 && memcmp(head, "\x89HDF\r\n\x1a\n", 8) == 0;
}

static bool labelled(const struct dpt_shard *shard)
{
    return shard->labels.name[0] != '\0';
}

static enum dpt_status check_alike(const struct dpt_shard *a, const struct dpt_shard *b,
                                   struct dpt_error *err)
{
    char one[40], other[40];

    if (!dpt_same_shape(&a->shape, &b->shape) ||
        (a->images.info.type == DPT_H5_U8) != (b->images.info.type == DPT_H5_U8) ||
        a->nhwc != b->nhwc)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s holds samples of %s %s, %s of %s %s: inputs must be alike", a->path,
                        dpt_shape_text(&a->shape, one), a->images.info.type_text, b->path,
                        dpt_shape_text(&b->shape, other), b->images.info.type_text);
    if (labelled(a) != labelled(b) ||
        (labelled(a) && (a->target != b->target || a->target_width != b->target_width)))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s and %s have other labels, or only one of them has any: predict them "
                        "one after the other",
                        a->path, b->path);
    return DPT_OK;
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
static enum dpt_status verify(struct dpt_source *s, int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    for (size_t i = (size_t)rank; i < s->n_parts && s->spec->conf->verify; i += (size_t)ranks) {
        const struct dpt_shard *shard = &state->shards[i];

        DPT_TRY(attach(s, i, err));
        DPT_TRY(dpt_shard_verify(shard, &shard->images, state->raw, err));
        if (labelled(shard))
            DPT_TRY(dpt_shard_verify(shard, &shard->labels, state->raw, err));
    }
out:
    return status;
}

static enum dpt_status open_shards(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    for (size_t i = 0; i < s->n_parts; i++) {
        struct dpt_shard *shard = &state->shards[i];
        size_t images, labels;

        DPT_TRY(dpt_shard_open_any(shard, s->paths[i], s->spec->classes, err));
        state->opened = i + 1;
        s->parts[i].samples = shard->samples;
        DPT_TRY(check_alike(&state->shards[0], shard, err));
        DPT_TRY(check_names(s, shard, err));
        images = dpt_field_piece_bytes(&shard->images);
        labels = labelled(shard) ? dpt_field_piece_bytes(&shard->labels) : 0;
        state->capacity = images > state->capacity ? images : state->capacity;
        state->capacity = labels > state->capacity ? labels : state->capacity;
    }
    state->raw = dpt_alloc(state->capacity);
    if (state->raw == NULL)
        DPT_TRY(dpt_fail_memory(err, "reading a shard", (double)state->capacity));
out:
    return status;
}

static enum dpt_status open_source(struct dpt_source *s, int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = calloc(1, sizeof *state);
    const struct dpt_shard *first;

    s->state = state;
    if (state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the shards", sizeof *state));
    DPT_TRY(dpt_source_parts(s, s->n_paths, err));
    state->attached = s->n_parts;
    state->shards = calloc(s->n_parts, sizeof *state->shards);
    if (state->shards == NULL)
        DPT_TRY(dpt_fail_memory(err, "the shards", (double)s->n_parts * sizeof *first));
    DPT_TRY(open_shards(s, err));
    DPT_TRY(verify(s, rank, ranks, err));
    first = &state->shards[0];
    s->layout.shape = first->shape;
    s->layout.u8 = first->images.info.type == DPT_H5_U8;
    s->layout.nhwc = first->nhwc;
    if (labelled(first))
        s->info.truth = first->target == DPT_TARGET_CLASS ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    s->info.width = first->target_width;
out:
    return status;
}

static void close_source(struct dpt_source *s)
{
    struct state *state = s->state;

    for (size_t i = 0; i < state->opened; i++)
        dpt_shard_close(&state->shards[i]);
    free(state->shards);
    dpt_free(state->raw);
    free(state);
}

static enum dpt_status read_labels(struct state *state, const struct dpt_shard *shard, int64_t row,
                                   int64_t n, int32_t *classes, float *targets,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t width = (size_t)shard->target_width;

    DPT_TRY(dpt_shard_read(shard, &shard->labels, row, n, state->raw, err));
    if (targets != NULL)
        dpt_field_floats(&shard->labels, state->raw, (size_t)n * width, targets);
    for (int64_t i = 0; classes != NULL && i < n; i++) {
        const int64_t value = dpt_field_int(&shard->labels, state->raw, (size_t)i);

        /* What is no class of any model stays none. */
        classes[i] = value < 0 ? -1 : value > INT32_MAX ? INT32_MAX : (int32_t)value;
    }
out:
    return status;
}

static enum dpt_status read_rows(struct dpt_source *s, size_t part, int64_t row, int64_t n,
                                 uint8_t *stored, int32_t *classes, float *targets,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const struct dpt_shard *shard = &state->shards[part];
    const struct dpt_field *field = &shard->images;
    const bool plain = field->info.type != DPT_H5_F64;

    DPT_TRY(attach(s, part, err));
    for (int64_t at = 0, some; at < n; at += some) {
        uint8_t *to = stored + (size_t)at * s->layout.stride;

        some = dpt_field_piece(field, row + at, row + n);
        DPT_TRY(dpt_shard_read(shard, field, row + at, some, plain ? to : state->raw, err));
        if (!plain)
            dpt_field_floats(field, state->raw, (size_t)(some * field->row_items),
                             (float *)(void *)to);
    }
    for (int64_t at = 0, some; (classes != NULL || targets != NULL) && at < n; at += some) {
        some = dpt_field_piece(&shard->labels, row + at, row + n);
        DPT_TRY(read_labels(state, shard, row + at, some, classes != NULL ? classes + at : NULL,
                            targets != NULL ? targets + at * shard->target_width : NULL, err));
    }
out:
    return status;
}

static const struct dpt_source_type type = {
    .is = is,
    .open = open_source,
    .close = close_source,
    .read = read_rows,
};

const struct dpt_source_format dpt_source_h5 = {
    .name = "h5",
    .help = "HDF5 shards",
    .type = &type,
};
