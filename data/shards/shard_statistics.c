#include "data/shards/shard_statistics.h"

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
    double first, sum, sum_of_squares;
    int64_t n;
};

struct scan {
    struct dpt_shard_statistics *statistics;
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
    s->sum_of_squares += (x - s->first) * (x - s->first);
}

static void amount(const struct sums *s, double *mean, double *std)
{
    const double n = s->n > 0 ? (double)s->n : 1, m = s->sum / n;

    *mean = s->first + m;
    *std = sqrt(fmax(0, s->sum_of_squares / n - m * m));
}

/* --- labels ----------------------------------------------------------------------------------- */

static enum dpt_status count_class(struct scan *scan, const struct dpt_shard *shard, int64_t row,
                                   int64_t label, struct dpt_error *err)
{
    struct dpt_shard_statistics *s = scan->statistics;

    if (label < 0 || label >= MOST_CLASSES)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: /%s[%" PRId64 "] is %" PRId64 ", no class (0 to %d); targets of a "
                        "regression are stored as float32",
                        shard->path, shard->labels.name, row, label, MOST_CLASSES - 1);
    if (label >= s->classes) {
        int64_t *more = dpt_grow(s->counts, &scan->classes_room, (size_t)label + 1, sizeof *more);

        if (more == NULL)
            return dpt_fail_memory(err, "the classes", (double)label * sizeof *more);
        memset(more + s->classes, 0, (size_t)(label + 1 - s->classes) * sizeof *more);
        s->counts = more;
        s->classes = label + 1;
    }
    s->counts[label]++;
    return DPT_OK;
}

static void take_targets(struct scan *scan, const float *targets, int64_t rows)
{
    const int64_t width = scan->statistics->width;

    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;

        for (int64_t k = 0; k < width; k++) {
            const double x = targets[r * width + k];

            sum += x;
            add(&scan->targets, x);
            if (x < 0)
                scan->statistics->probabilities = false;
        }
        if (width < 2 || fabs(sum - 1) > 1e-3)
            scan->statistics->probabilities = false;
    }
}

/* All labels: a class may have one sample only. */
static enum dpt_status scan_labels(struct scan *scan, const struct dpt_shard *shard,
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
        for (int64_t i = 0; scan->whole && i < rows; i++)
            DPT_TRY(count_class(scan, shard, row + i, dpt_field_int(field, raw, (size_t)i), err));
        if (scan->whole)
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
        take_targets(scan, numbers, rows);
    }
out:
    dpt_free(numbers);
    dpt_free(raw);
    return status;
}

/* --- values ----------------------------------------------------------------------------------- */

static enum dpt_status take_values(struct scan *scan, const struct dpt_shard *shard, int64_t row,
                                   const float *values, int64_t rows, struct dpt_error *err)
{
    const size_t items = (size_t)shard->images.row_items, channels = (size_t)shard->shape.c;
    const size_t plane = items / channels;
    const double scale = scan->statistics->u8 ? 1.0 / 255 : 1;

    for (size_t i = 0; i < (size_t)rows * items; i++) {
        const size_t at = i % items;

        if (!isfinite(values[i]))
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: /%s[%" PRId64 "] has a value that is not finite", shard->path,
                            shard->images.name, row + (int64_t)(i / items));
        add(&scan->channels[shard->nhwc ? at % channels : at / plane], values[i] * scale);
    }
    scan->statistics->scanned += rows;
    return DPT_OK;
}

/* Some runs of rows, spread evenly: a file may be sorted by class. All rows, where few. */
static enum dpt_status scan_values(struct scan *scan, const struct dpt_shard *shard, int64_t wanted,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->images;
    const int64_t most = RUN_BYTES / (int64_t)(field->row_bytes + 1) + 1;
    int64_t rows, chunks;
    void *raw;
    float *values;

    wanted = wanted < shard->samples ? wanted : shard->samples;
    rows = (wanted + LOOK_RUNS - 1) / LOOK_RUNS;
    rows = rows > most ? most : rows;
    chunks = (wanted + rows - 1) / rows;
    raw = dpt_alloc((size_t)rows * field->row_bytes);
    values = dpt_alloc_array((size_t)rows * (size_t)field->row_items, sizeof *values);
    if (raw == NULL || values == NULL)
        DPT_TRY(dpt_fail_memory(err, "samples", (double)rows * (double)field->row_bytes));
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t row = shard->samples * i / chunks, end = shard->samples * (i + 1) / chunks;
        const int64_t n = end - row < rows ? end - row : rows;

        DPT_TRY(dpt_shard_read(shard, field, row, n, raw, err));
        dpt_field_floats(field, raw, (size_t)n * (size_t)field->row_items, values);
        DPT_TRY(take_values(scan, shard, row, values, n, err));
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
static enum dpt_status fit(struct scan *scan, const struct dpt_shard *shard, struct dpt_error *err)
{
    struct dpt_shard_statistics *s = scan->statistics;
    char a[40], b[40];

    if (!scan->begun) {
        scan->begun = true;
        scan->whole = is_whole(shard);
        s->shape = shard->shape;
        s->u8 = shard->images.info.type == DPT_H5_U8;
        s->width = scan->whole ? 0 : shard->target_width;
        s->probabilities = !scan->whole;
        scan->channels = calloc((size_t)s->shape.c, sizeof *scan->channels);
        if (scan->channels == NULL)
            return dpt_fail_memory(err, "the channels", (double)s->shape.c * 32);
    }
    if (!dpt_same_shape(&s->shape, &shard->shape))
        return dpt_fail(err, DPT_BAD_DATA, "%s: samples are %s, those of other shards %s",
                        shard->path, dpt_shape_text(&shard->shape, a),
                        dpt_shape_text(&s->shape, b));
    if (s->u8 != (shard->images.info.type == DPT_H5_U8) || scan->whole != is_whole(shard) ||
        (!scan->whole && s->width != shard->target_width))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: /%s or /%s is of another type or width than in the other shards",
                        shard->path, shard->images.name, shard->labels.name);
    return DPT_OK;
}

static enum dpt_status finish(struct scan *scan, struct dpt_error *err)
{
    struct dpt_shard_statistics *s = scan->statistics;
    const size_t channels = (size_t)s->shape.c;

    s->mean = calloc(channels, sizeof *s->mean);
    s->std = calloc(channels, sizeof *s->std);
    if (s->mean == NULL || s->std == NULL)
        return dpt_fail_memory(err, "the channels", (double)channels * 16);
    for (size_t c = 0; c < channels; c++) {
        amount(&scan->channels[c], &s->mean[c], &s->std[c]);
        if (s->std[c] < 1e-9)
            s->std[c] = 1;
    }
    amount(&scan->targets, &s->target_mean, &s->target_std);
    return DPT_OK;
}

enum dpt_status dpt_shard_statistics_collect(struct dpt_shard_statistics *statistics,
                                             const char *const *paths, size_t n,
                                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct scan scan = {.statistics = statistics};
    struct dpt_shard shard = {.fd = -1};

    for (size_t i = 0; i < n; i++) {
        DPT_TRY(dpt_shard_open(&shard, paths[i], false, err));
        DPT_TRY(fit(&scan, &shard, err));
        statistics->samples += shard.samples;
        dpt_shard_close(&shard);
    }
    if (statistics->samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: holds no samples", paths[0]));
    for (size_t i = 0; i < n; i++) {
        double wanted;

        DPT_TRY(dpt_shard_open(&shard, paths[i], false, err));
        wanted = fmin(LOOK_SAMPLES, LOOK_BYTES / (double)shard.images.row_bytes);
        wanted *= (double)shard.samples / (double)statistics->samples;
        DPT_TRY(dpt_shard_attach(&shard, err));
        DPT_TRY(scan_labels(&scan, &shard, err));
        if (shard.samples > 0)
            DPT_TRY(scan_values(&scan, &shard, (int64_t)ceil(wanted), err));
        dpt_shard_close(&shard);
    }
    DPT_TRY(finish(&scan, err));
out:
    dpt_shard_close(&shard);
    free(scan.channels);
    return status;
}

void dpt_shard_statistics_release(struct dpt_shard_statistics *statistics)
{
    free(statistics->counts);
    free(statistics->mean);
    free(statistics->std);
    *statistics = (struct dpt_shard_statistics){0};
}
