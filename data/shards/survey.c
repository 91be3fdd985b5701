#include "data/shards/survey.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/shards/shard.h"

enum {
    LOOK_SAMPLES = 8192,
    LOOK_RUNS = 64,
    RUN_BYTES = 1 << 20,
    LOOK_BYTES = 1 << 28,
    MOST_CLASSES = 1 << 20
};

/* Sums about a first value, so that a large mean does not swallow the differences. */
struct sums {
    double first, sum, squares;
    int64_t n;
};

struct look {
    struct dpt_survey *survey;
    struct sums *channels, targets;
    bool begun;
    size_t classes_room;
    bool whole; /* labels */
};

static void add(struct sums *s, double x)
{
    if (s->n++ == 0)
        s->first = x;
    s->sum += x - s->first;
    s->squares += (x - s->first) * (x - s->first);
}

static void amount(const struct sums *s, double *mean, double *std)
{
    const double n = s->n > 0 ? (double)s->n : 1, m = s->sum / n;

    *mean = s->first + m;
    *std = sqrt(fmax(0, s->squares / n - m * m));
}

/* --- labels ----------------------------------------------------------------------------------- */

static enum dpt_status count_class(struct look *look, const struct dpt_shard *shard, int64_t row,
                                   int64_t label, struct dpt_error *err)
{
    struct dpt_survey *s = look->survey;

    if (label < 0 || label >= MOST_CLASSES)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: /%s[%" PRId64 "] is %" PRId64 ", no class (0 to %d); targets of a "
                        "regression are stored as float32",
                        shard->path, shard->labels.name, row, label, MOST_CLASSES - 1);
    if (label >= s->classes) {
        int64_t *more = dpt_grow(s->counts, &look->classes_room, (size_t)label + 1, sizeof *more);

        if (more == NULL)
            return dpt_fail_memory(err, "the classes", (double)label * sizeof *more);
        memset(more + s->classes, 0, (size_t)(label + 1 - s->classes) * sizeof *more);
        s->counts = more;
        s->classes = label + 1;
    }
    s->counts[label]++;
    return DPT_OK;
}

static void take_targets(struct look *look, const float *targets, int64_t rows)
{
    const int64_t width = look->survey->width;

    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;

        for (int64_t k = 0; k < width; k++) {
            const double x = targets[r * width + k];

            sum += x;
            add(&look->targets, x);
            if (x < 0)
                look->survey->probabilities = false;
        }
        if (width < 2 || fabs(sum - 1) > 1e-3)
            look->survey->probabilities = false;
    }
}

/* All labels: a class may have one sample only. */
static enum dpt_status look_at_labels(struct look *look, const struct dpt_shard *shard,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->labels;
    void *raw = dpt_alloc(dpt_field_piece_bytes(field));
    float *numbers = NULL;

    if (raw == NULL)
        DPT_TRY(dpt_fail_memory(err, "labels", (double)dpt_field_piece_bytes(field)));
    for (int64_t row = 0, rows; row < shard->samples; row += rows) {
        const size_t width = (size_t)field->row_items;

        rows = dpt_field_piece(field, row, shard->samples);
        DPT_TRY(dpt_shard_read(shard, field, row, rows, raw, err));
        for (int64_t i = 0; look->whole && i < rows; i++)
            DPT_TRY(count_class(look, shard, row + i, dpt_field_int(field, raw, (size_t)i), err));
        if (look->whole)
            continue;
        dpt_free(numbers);
        numbers = dpt_alloc_array((size_t)rows * width, sizeof *numbers);
        if (numbers == NULL)
            DPT_TRY(dpt_fail_memory(err, "labels", (double)rows * (double)width * 4));
        dpt_field_floats(field, raw, (size_t)rows * width, numbers);
        for (size_t i = 0; i < (size_t)rows * width; i++)
            if (!isfinite(numbers[i]))
                DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: /%s[%" PRId64 "] is not a finite number",
                                 shard->path, field->name, row + (int64_t)(i / width)));
        take_targets(look, numbers, rows);
    }
out:
    dpt_free(numbers);
    dpt_free(raw);
    return status;
}

/* --- values ----------------------------------------------------------------------------------- */

static enum dpt_status take_values(struct look *look, const struct dpt_shard *shard, int64_t row,
                                   const float *values, int64_t rows, struct dpt_error *err)
{
    const size_t items = (size_t)shard->images.row_items, channels = (size_t)shard->shape.c;
    const size_t plane = items / channels;
    const double scale = look->survey->u8 ? 1.0 / 255 : 1;

    for (size_t i = 0; i < (size_t)rows * items; i++) {
        const size_t at = i % items;

        if (!isfinite(values[i]))
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: /%s[%" PRId64 "] has a value that is not finite", shard->path,
                            shard->images.name, row + (int64_t)(i / items));
        add(&look->channels[shard->nhwc ? at % channels : at / plane], values[i] * scale);
    }
    look->survey->looked += rows;
    return DPT_OK;
}

/* Some runs of rows, spread evenly: a file may be sorted by class. All rows, where few. */
static enum dpt_status look_at_values(struct look *look, const struct dpt_shard *shard,
                                      int64_t wanted, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->images;
    const int64_t most = RUN_BYTES / (int64_t)(field->row_bytes + 1) + 1;
    int64_t rows, runs;
    void *raw;
    float *values;

    wanted = wanted < shard->samples ? wanted : shard->samples;
    rows = (wanted + LOOK_RUNS - 1) / LOOK_RUNS;
    rows = rows > most ? most : rows;
    runs = (wanted + rows - 1) / rows;
    raw = dpt_alloc((size_t)rows * field->row_bytes);
    values = dpt_alloc_array((size_t)rows * (size_t)field->row_items, sizeof *values);
    if (raw == NULL || values == NULL)
        DPT_TRY(dpt_fail_memory(err, "samples", (double)rows * (double)field->row_bytes));
    for (int64_t i = 0; i < runs; i++) {
        const int64_t row = shard->samples * i / runs, end = shard->samples * (i + 1) / runs;
        const int64_t n = end - row < rows ? end - row : rows;

        DPT_TRY(dpt_shard_read(shard, field, row, n, raw, err));
        dpt_field_floats(field, raw, (size_t)n * (size_t)field->row_items, values);
        DPT_TRY(take_values(look, shard, row, values, n, err));
    }
out:
    dpt_free(raw);
    dpt_free(values);
    return status;
}

/* --- shards ----------------------------------------------------------------------------------- */

static bool is_whole(const struct dpt_shard *shard)
{
    return shard->target_width == 1 &&
           (shard->labels.info.type == DPT_H5_U8 || shard->labels.info.type == DPT_H5_INTEGER);
}

/* The first one says what they are like. */
static enum dpt_status fit(struct look *look, const struct dpt_shard *shard, struct dpt_error *err)
{
    struct dpt_survey *s = look->survey;
    char a[40], b[40];

    if (!look->begun) {
        look->begun = true;
        look->whole = is_whole(shard);
        s->shape = shard->shape;
        s->u8 = shard->images.info.type == DPT_H5_U8;
        s->width = look->whole ? 0 : shard->target_width;
        s->probabilities = !look->whole;
        look->channels = calloc((size_t)s->shape.c, sizeof *look->channels);
        if (look->channels == NULL)
            return dpt_fail_memory(err, "the channels", (double)s->shape.c * 32);
    }
    if (!dpt_same_shape(&s->shape, &shard->shape))
        return dpt_fail(err, DPT_BAD_DATA, "%s: samples are %s, those of other shards %s",
                        shard->path, dpt_shape_text(&shard->shape, a),
                        dpt_shape_text(&s->shape, b));
    if (s->u8 != (shard->images.info.type == DPT_H5_U8) || look->whole != is_whole(shard) ||
        (!look->whole && s->width != shard->target_width))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: /%s or /%s is of another type or width than in the other shards",
                        shard->path, shard->images.name, shard->labels.name);
    return DPT_OK;
}

static enum dpt_status finish(struct look *look, struct dpt_error *err)
{
    struct dpt_survey *s = look->survey;
    const size_t channels = (size_t)s->shape.c;

    s->mean = calloc(channels, sizeof *s->mean);
    s->std = calloc(channels, sizeof *s->std);
    if (s->mean == NULL || s->std == NULL)
        return dpt_fail_memory(err, "the channels", (double)channels * 16);
    for (size_t c = 0; c < channels; c++) {
        amount(&look->channels[c], &s->mean[c], &s->std[c]);
        if (s->std[c] < 1e-9)
            s->std[c] = 1;
    }
    amount(&look->targets, &s->target_mean, &s->target_std);
    return DPT_OK;
}

enum dpt_status dpt_survey_shards(struct dpt_survey *survey, const char *const *paths, size_t n,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct look look = {.survey = survey};
    struct dpt_shard shard = {.fd = -1};

    for (size_t i = 0; i < n; i++) {
        DPT_TRY(dpt_shard_open(&shard, paths[i], false, err));
        DPT_TRY(fit(&look, &shard, err));
        survey->samples += shard.samples;
        dpt_shard_close(&shard);
    }
    if (survey->samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: holds no samples", paths[0]));
    for (size_t i = 0; i < n; i++) {
        double wanted;

        DPT_TRY(dpt_shard_open(&shard, paths[i], false, err));
        wanted = fmin(LOOK_SAMPLES, LOOK_BYTES / (double)shard.images.row_bytes);
        wanted *= (double)shard.samples / (double)survey->samples;
        DPT_TRY(dpt_shard_attach(&shard, err));
        DPT_TRY(look_at_labels(&look, &shard, err));
        if (shard.samples > 0)
            DPT_TRY(look_at_values(&look, &shard, (int64_t)ceil(wanted), err));
        dpt_shard_close(&shard);
    }
    DPT_TRY(finish(&look, err));
out:
    dpt_shard_close(&shard);
    free(look.channels);
    return status;
}

void dpt_survey_release(struct dpt_survey *survey)
{
    free(survey->counts);
    free(survey->mean);
    free(survey->std);
    *survey = (struct dpt_survey){0};
}
