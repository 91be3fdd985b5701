#include "data/shards/shard_statistics.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/shards/labels.h"
#include "data/shards/shard.h"

enum { LOOK_SAMPLES = 8192, LOOK_RUNS = 64, RUN_BYTES = 1 << 20, LOOK_BYTES = 1 << 28 };

/* Bounds within which a float32 and its inverse are normal, as data.normalize requires. */
static const double STD_LEAST = 1e-37, STD_MOST = 1e37;

/* Sums about a first value, so that a large mean does not swallow the differences. */
struct sums {
    double first, sum, sum_of_squares;
    int64_t n;
    bool other; /* than 0 and 1 */
};

struct scan {
    struct dpt_shard_statistics *statistics;
    const struct dpt_shard *shard; /* that is read */
    struct sums *channels;
    size_t classes_room;
    bool whole; /* labels */
    struct dpt_shard_spec how;
};

static void add(struct sums *s, double x)
{
    if (s->n++ == 0)
        s->first = x;
    s->other = s->other || (x != 0 && x != 1);
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
    enum dpt_status status = DPT_OK;
    struct dpt_shard_statistics *s = scan->statistics;

    if (label < 0 || label >= DPT_MOST_CLASSES)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: /%s[%" PRId64 "] is %" PRId64 ", no class (0 to %d); targets of a "
                         "regression are stored as float32",
                         shard->path, shard->labels.name, row, label, DPT_MOST_CLASSES - 1));
    DPT_GROW(s->counts, &scan->classes_room, (size_t)label + 1, "the classes", err);
    for (; s->classes <= label; s->classes++)
        s->counts[s->classes] = 0;
    s->counts[label]++;
out:
    return status;
}

static void add_target(struct dpt_target_sums *t, double x)
{
    double product = 1;

    if (t->n++ == 0)
        t->first = t->least = x;
    t->least = fmin(t->least, x);
    for (int k = 0; k < 3; k++)
        t->power[k] += product *= x - t->first;
}

double dpt_target_skew(const struct dpt_target_sums *t)
{
    const double n = t->n > 0 ? t->n : 1, mean = t->power[0] / n, square = t->power[1] / n;
    const double variance = square - mean * mean;

    return variance > 1e-12 * square
               ? (t->power[2] / n - 3 * mean * square + 2 * mean * mean * mean) /
                     (variance * sqrt(variance))
               : 0;
}

static void take_targets(struct scan *scan, const float *targets, int64_t rows)
{
    const int64_t width = scan->statistics->width;

    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;

        for (int64_t k = 0; k < width; k++) {
            const double x = targets[r * width + k];

            sum += x;
            add_target(&scan->statistics->targets, x);
            if (x < 0)
                scan->statistics->probabilities = false;
            if (x != 0 && x != 1)
                scan->statistics->binary = false;
        }
        if (width < 2 || fabs(sum - 1) > 1e-3)
            scan->statistics->probabilities = false;
    }
}

/* Looks at all labels: a class may have one sample only. */
static enum dpt_status take_labels(void *arg, int64_t row, int64_t n, const void *raw,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct scan *scan = arg;
    const struct dpt_shard *shard = scan->shard;
    const struct dpt_field *field = &shard->labels;
    const int64_t numbers = n * field->row_items;
    float *targets = NULL;

    for (int64_t i = 0; scan->whole && i < n; i++)
        DPT_TRY(count_class(scan, shard, row + i, dpt_field_int(field, raw, (size_t)i), err));
    if (scan->whole)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(targets, numbers, "labels", err));
    dpt_field_floats(field, raw, (size_t)numbers, targets);
    for (int64_t i = 0; i < numbers; i++)
        if (!isfinite(targets[i]))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: /%s[%" PRId64 "] is not a finite number",
                             shard->path, field->name, row + i / field->row_items));
    take_targets(scan, targets, n);
out:
    dpt_free(targets);
    return status;
}

/* --- values ----------------------------------------------------------------------------------- */

static enum dpt_status take_values(struct scan *scan, const struct dpt_shard *shard, int64_t row,
                                   const float *values, int64_t rows, struct dpt_error *err)
{
    const size_t items = (size_t)dpt_shape_size(&shard->shape), channels = (size_t)shard->shape.c;
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

/* The numbers of some samples; raw: room for them as they are stored, or for a decoded file. */
static enum dpt_status read_values(struct dpt_shard_statistics *s, const struct dpt_shard *shard,
                                   int64_t sample, int64_t n, uint8_t *raw, float *values,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->images;
    const int64_t items = dpt_shape_size(&shard->shape);
    uint8_t *file = NULL;

    if (!shard->files) {
        DPT_TRY(dpt_field_read(field, sample, n, raw, err));
        dpt_field_floats(field, raw, (size_t)(n * items), values);
        if (s->merged < 0)
            s->merged = dpt_field_merged(field, raw, n);
        return DPT_OK;
    }
    for (int64_t i = sample; i < sample + n; i++, values += items) {
        const int64_t bytes = shard->offsets[i + 1] - shard->offsets[i];

        dpt_free(file);
        DPT_TRY(DPT_ALLOCATE(file, bytes, "a file", err));
        DPT_TRY(dpt_field_read(field, shard->offsets[i], bytes, file, err));
        DPT_TRY(dpt_shard_decode(shard, i, file, (size_t)bytes, raw, err));
        dpt_field_floats(field, raw, (size_t)items, values);
    }
out:
    dpt_free(file);
    return status;
}

/* Bytes of a sample as it is stored, of files of a decoded one. */
static size_t sample_bytes(const struct dpt_shard *shard)
{
    return (size_t)dpt_shape_size(&shard->shape) * (size_t)shard->images.info.size;
}

/* Some runs of rows, spread evenly: a file may be sorted by class. All rows, where few. */
static enum dpt_status scan_values(struct scan *scan, const struct dpt_shard *shard, int64_t wanted,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t most = RUN_BYTES / (int64_t)(sample_bytes(shard) + 1) + 1;
    int64_t rows, chunks;
    uint8_t *raw = NULL;
    float *values = NULL;

    wanted = wanted < shard->samples ? wanted : shard->samples;
    rows = (wanted + LOOK_RUNS - 1) / LOOK_RUNS;
    rows = rows > most ? most : rows;
    chunks = (wanted + rows - 1) / rows;
    DPT_TRY(DPT_ALLOCATE(raw, (size_t)rows * sample_bytes(shard), "samples", err));
    DPT_TRY(DPT_ALLOCATE(values, rows * dpt_shape_size(&shard->shape), "samples", err));
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t row = shard->samples * i / chunks, end = shard->samples * (i + 1) / chunks;
        const int64_t n = end - row < rows ? end - row : rows;

        DPT_TRY(read_values(scan->statistics, shard, row, n, raw, values, err));
        DPT_TRY(take_values(scan, shard, row, values, n, err));
    }
out:
    dpt_free(raw);
    dpt_free(values);
    return status;
}

/* --- shards ----------------------------------------------------------------------------------- */

/* Whether the labels of a shard say themselves what they are: those that `dptrain convert` wrote,
 * whose checksum shows it, classes that have names, and several per sample. */
static bool is_decided(const struct dpt_shard *shard)
{
    return shard->target_width != 1 || shard->labels.info.has_crc ||
           (dpt_shard_whole(shard) && shard->names.n > 0);
}

/* Opens all shards, which must be alike, and counts their samples. Labels are classes where they
 * seem to be in all of them. */
static enum dpt_status survey(struct scan *scan, const char *const *paths, size_t n,
                              const struct dpt_shard *first, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_statistics *s = scan->statistics;
    struct dpt_shard shard = {.fd = -1};
    struct dpt_label_numbers numbers = {0};
    const bool decided = s->labels != DPT_LABELS_UNKNOWN || is_decided(first);
    bool floats = false;

    for (size_t i = 0; i < n; i++) {
        DPT_TRY(dpt_shard_open(&shard, paths[i], &scan->how, err));
        DPT_TRY(dpt_shard_check_alike(&shard, first, err));
        s->samples += shard.samples;
        if (!dpt_shard_whole(&shard)) {
            floats = true;
            s->floats = shard.labels.info.type == DPT_H5_F32 ? "float32" : "float64";
        }
        if (!decided)
            DPT_TRY(dpt_label_numbers_take(&numbers, &shard, err));
        dpt_shard_close(&shard);
    }
    if (first->target_width == 1 && s->labels != DPT_LABELS_UNKNOWN)
        scan->whole = s->labels == DPT_LABELS_CLASSES;
    else if (decided)
        scan->whole = first->target_width == 1 && !floats;
    else
        scan->whole = dpt_labels_seem_classes(&numbers, floats, first->shape.flat);
    if (!scan->whole)
        s->floats = NULL;
    if (!decided && !scan->whole && !floats)
        dpt_labels_tell_targets(&numbers, s->told);
out:
    dpt_label_numbers_release(&numbers);
    dpt_shard_close(&shard);
    return status;
}

/* Says by the first shard what they are like. */
static enum dpt_status begin(struct scan *scan, const struct dpt_shard *first,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_statistics *s = scan->statistics;

    s->merged = -1;
    s->named = scan->whole ? (int64_t)first->names.n : 0;
    s->shape = first->shape;
    s->u8 = dpt_shard_u8(first);
    s->width = scan->whole ? 0 : first->target_width;
    s->probabilities = !scan->whole;
    s->binary = s->width > 1;
    DPT_TRY(DPT_ALLOCATE(scan->channels, s->shape.c, "the channels", err));
    DPT_TRY(DPT_ALLOCATE(s->mean, s->shape.c, "the channels", err));
    DPT_TRY(DPT_ALLOCATE(s->std, s->shape.c, "the channels", err));
out:
    return status;
}

static void finish(struct scan *scan)
{
    struct dpt_shard_statistics *s = scan->statistics;

    for (int32_t c = 0; c < s->shape.c; c++) {
        amount(&scan->channels[c], &s->mean[c], &s->std[c]);
        if (!(s->std[c] >= STD_LEAST)) { /* all are the same */
            s->std[c] = 1;
        } else if (s->shape.flat && !s->u8 && !scan->channels[c].other) {
            /* Divided by its deviation the 1 of a rare category would be 25 and more. */
            s->mean[c] = 0;
            s->std[c] = 1;
            s->zeros_and_ones++;
        }
        s->std[c] = fmin(s->std[c], STD_MOST);
    }
}

/* Opens the first shard, and finds out in which order its dimensions are. */
static enum dpt_status open_first(struct scan *scan, struct dpt_shard *first, const char *path,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_shard_open(first, path, &scan->how, err));
    if (!dpt_shard_suspect_layout(first))
        return DPT_OK;
    dpt_shard_close(first);
    scan->statistics->nhwc = true;
    scan->how.layout = DPT_LAYOUT_NHWC;
    DPT_TRY(dpt_shard_open(first, path, &scan->how, err));
out:
    return status;
}

enum dpt_status dpt_shard_statistics_collect(struct dpt_shard_statistics *statistics,
                                             const char *const *paths, size_t n,
                                             const struct dpt_data_keys *keys,
                                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct scan scan = {.statistics = statistics, .how = {.need_labels = true, .keys = *keys}};
    struct dpt_shard first = {.fd = -1}, shard = {.fd = -1};

    DPT_TRY(open_first(&scan, &first, paths[0], err));
    DPT_TRY(survey(&scan, paths, n, &first, err));
    DPT_TRY(begin(&scan, &first, err));
    if (statistics->samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: holds no samples", paths[0]));
    for (size_t i = 0; i < n; i++) {
        double wanted;

        DPT_TRY(dpt_shard_open(&shard, paths[i], &scan.how, err));
        wanted = fmin(LOOK_SAMPLES, LOOK_BYTES / (double)sample_bytes(&shard));
        wanted *= (double)shard.samples / (double)statistics->samples;
        DPT_TRY(dpt_shard_attach(&shard, err));
        scan.shard = &shard;
        DPT_TRY(dpt_field_scan(&shard.labels, 0, shard.samples, take_labels, &scan, NULL, err));
        if (shard.samples > 0)
            DPT_TRY(scan_values(&scan, &shard, (int64_t)ceil(wanted), err));
        dpt_shard_close(&shard);
    }
    finish(&scan);
out:
    dpt_shard_close(&first);
    dpt_shard_close(&shard);
    dpt_free(scan.channels);
    return status;
}

void dpt_shard_statistics_release(struct dpt_shard_statistics *statistics)
{
    free(statistics->counts);
    dpt_free(statistics->mean);
    dpt_free(statistics->std);
    *statistics = (struct dpt_shard_statistics){0};
}
