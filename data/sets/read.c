/*
 * Reading a data set into the node's shared memory, and verifying it on the way. Each rank of the
 * node takes a run of samples; the checksums of its runs are joined with those of the others, so a
 * file's checksum needs no rank that reads all of it.
 */
#include <math.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/sets/parts.h"

/* What one rank found out of its part of one field of a shard. */
struct finding {
    uint64_t bytes; /* that `crc` covers */
    uint32_t crc;
    uint32_t zero;
};

struct reading {
    struct dpt_dataset *set;
    const struct dpt_dataset_spec *spec;
    const struct dpt_group *node;
    struct finding *mine, *all; /* [fields]; [ranks][fields]; fields: those of each shard */
    size_t fields;
    struct dpt_error complaint; /* a value that is wrong; told only where the checksums are right */
};

static void check_image_values(struct reading *r, const struct dpt_shard *shard, int64_t row,
                               const float *values, size_t n)
{
    const int64_t bad = r->complaint.status == DPT_OK ? dpt_find_nonfinite(values, n) : -1;
    const int64_t items = shard->images.row_items;

    if (bad >= 0)
        dpt_fail(&r->complaint, DPT_BAD_DATA, "%s: /%s[%lld] holds %s (element %lld)", shard->path,
                 shard->images.name, (long long)row + bad / items,
                 isnan(values[bad]) ? "NaN" : "an infinite value", (long long)(bad % items));
}

/* This rank's run of one shard's samples: into memory where there is some, else only looked at. */
static enum dpt_status read_run(struct reading *r, const struct dpt_shard *shard, int64_t begin,
                                int64_t end, struct finding *finding, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->images;
    const int64_t first = dpt_shard_row(shard, begin), last = dpt_shard_row(shard, end);
    const size_t stride = r->set->files ? 1 : r->set->stride; /* of a row in memory */
    const int64_t before = r->set->files ? shard->start : shard->first;
    uint8_t *memory = r->set->parts->images.bytes, *raw = NULL;

    if (memory == NULL || field->info.type == DPT_H5_F64)
        DPT_TRY(
            DPT_ALLOCATE(raw, dpt_field_piece_bytes(field, last - first), "reading a shard", err));
    for (int64_t row = first, n; row < last; row += n) {
        void *place = memory == NULL ? NULL : memory + (size_t)(before + row) * stride;
        void *stored = raw != NULL ? raw : place;
        size_t items;

        n = dpt_field_piece(field, row, last);
        items = (size_t)(n * field->row_items);
        DPT_TRY(dpt_field_read(field, row, n, stored, err));
        if (r->spec->conf->verify && field->info.has_crc) {
            finding->crc = dpt_crc32(finding->crc, stored, (size_t)n * field->row_bytes);
            finding->bytes += (size_t)n * field->row_bytes;
        }
        if (place != NULL && raw != NULL)
            dpt_field_floats(field, stored, items, place);
        if (place != NULL && !r->set->u8)
            check_image_values(r, shard, row, place, items);
    }
out:
    dpt_free(raw);
    return status;
}

/* This rank's run of the images. */
static enum dpt_status read_images(struct reading *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = r->set->parts;
    int64_t begin, end;

    dpt_dataset_share(r->set, r->node, &begin, &end);
    for (size_t i = 0; i < parts->n_shards; i++) {
        struct dpt_shard *shard = &parts->shards[i];
        const int64_t first = begin > shard->first ? begin - shard->first : 0;
        const int64_t last =
            end - shard->first < shard->samples ? end - shard->first : shard->samples;

        if (first >= last ||
            (parts->images.bytes == NULL && !(r->spec->conf->verify && shard->images.info.has_crc)))
            continue;
        DPT_TRY(dpt_shard_attach(shard, err));
        DPT_TRY(read_run(r, shard, first, last, &r->mine[DPT_SHARD_FIELDS * i], err));
        dpt_shard_detach(shard);
    }
out:
    return status;
}

/* Class numbers of rows [row, row + rows). */
static void take_classes(struct reading *r, const struct dpt_shard *shard, int64_t row,
                         int64_t rows, const void *raw)
{
    int32_t *out = (int32_t *)r->set->parts->targets.bytes + shard->first + row;
    char text[32];

    for (int64_t i = 0; i < rows; i++) {
        const int64_t value = dpt_field_int(&shard->labels, raw, (size_t)i);

        if (value < 0 || value >= INT32_MAX) {
            if (r->complaint.status == DPT_OK)
                dpt_fail(&r->complaint, DPT_BAD_DATA,
                         "%s: /%s[%lld] is %s: classes are numbered from 0 to 2147483646 at most%s",
                         shard->path, shard->labels.name, (long long)row + i,
                         dpt_field_show(&shard->labels, raw, (size_t)i, text),
                         dpt_shard_whole(shard) ? "" : "; `loss: mse` learns regression targets");
            return;
        }
        out[i] = (int32_t)value;
    }
}

static void take_targets(struct reading *r, const struct dpt_shard *shard, int64_t row,
                         int64_t rows, const void *raw)
{
    const int64_t width = r->set->target_width;
    float *out = (float *)r->set->parts->targets.bytes + (shard->first + row) * width;
    int64_t bad;

    dpt_field_floats(&shard->labels, raw, (size_t)(rows * width), out);
    if (r->complaint.status != DPT_OK)
        return;
    bad = dpt_find_nonfinite(out, (size_t)(rows * width));
    if (bad >= 0) {
        dpt_fail(&r->complaint, DPT_BAD_DATA, "%s: /%s[%lld] holds %s", shard->path,
                 shard->labels.name, (long long)row + bad / width,
                 isnan(out[bad]) ? "NaN" : "an infinite value");
        return;
    }
    for (int64_t i = 0; r->spec->binary && i < rows * width; i++)
        if (out[i] < 0 || out[i] > 1) {
            dpt_fail(
                &r->complaint, DPT_BAD_DATA,
                "%s: /%s[%lld] holds %g: loss binary_cross_entropy requires labels from 0 to 1; "
                "loss mse takes any numbers",
                shard->path, shard->labels.name, (long long)row + i / width, (double)out[i]);
            return;
        }
    for (int64_t i = 0; r->spec->classes && i < rows; i++) {
        double sum = 0, least = 0;

        for (int64_t k = 0; k < width; k++) {
            sum += (double)out[i * width + k];
            least = fmin(least, (double)out[i * width + k]);
        }
        if (least >= 0 && fabs(sum - 1) <= 1e-3)
            continue;
        dpt_fail(&r->complaint, DPT_BAD_DATA,
                 "%s: /%s[%lld] is no distribution over %lld classes: %s", shard->path,
                 shard->labels.name, (long long)row + i, (long long)width,
                 least < 0 ? "a probability is negative"
                           : "the sum is not 1; multi-label targets have loss "
                             "binary_cross_entropy");
        return;
    }
}

static void take_weights(struct reading *r, const struct dpt_shard *shard, int64_t row,
                         int64_t rows, const void *raw)
{
    float *out = (float *)r->set->parts->weighed.bytes + shard->first + row;

    dpt_field_floats(&shard->weights, raw, (size_t)rows, out);
    for (int64_t i = 0; r->complaint.status == DPT_OK && i < rows; i++)
        if (!(out[i] >= 0) || isinf(out[i]))
            dpt_fail(&r->complaint, DPT_BAD_DATA,
                     "%s: /%s[%lld] is %g: a sample counts 0 or more, and no more than any number",
                     shard->path, shard->weights.name, (long long)row + i, (double)out[i]);
}

/* A small field of a shard, and who reads it. */
struct small {
    struct reading *r;
    const struct dpt_shard *shard;
    const struct dpt_field *field;
};

static enum dpt_status take_rows(void *arg, int64_t row, int64_t n, const void *raw,
                                 struct dpt_error *err)
{
    const struct small *s = arg;

    (void)err;
    if (s->field == &s->shard->weights)
        take_weights(s->r, s->shard, row, n, raw);
    else if (s->r->set->target == DPT_TARGET_CLASS)
        take_classes(s->r, s->shard, row, n, raw);
    else
        take_targets(s->r, s->shard, row, n, raw);
    return DPT_OK;
}

/* The labels and weights of every shard whose turn is this rank's. */
static enum dpt_status read_labels(struct reading *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = r->set->parts;

    for (size_t i = (size_t)r->node->rank; i < parts->n_shards; i += (size_t)r->node->size) {
        struct dpt_shard *shard = &parts->shards[i];

        DPT_TRY(dpt_shard_attach(shard, err));
        for (size_t k = 1; k < DPT_SHARD_FIELDS; k++) {
            struct small small = {r, shard, dpt_shard_field(shard, k)};
            struct finding *finding = &r->mine[DPT_SHARD_FIELDS * i + k];

            if (small.field->name == NULL)
                continue;
            DPT_TRY(dpt_field_scan(small.field, 0, shard->samples, take_rows, &small, &finding->crc,
                                   err));
            finding->bytes = (uint64_t)shard->samples * small.field->row_bytes;
        }
        dpt_shard_detach(shard);
    }
out:
    return status;
}

/* Joins the ranks' findings of every field in the order of its bytes. All ranks get the same
 * status. */
static enum dpt_status check_sums(const struct reading *r, struct dpt_error *err)
{
    const struct dpt_dataset_parts *parts = r->set->parts;

    enum dpt_status status = DPT_OK;

    for (size_t i = 0; r->spec->conf->verify && i < r->fields; i++) {
        struct dpt_shard *shard = &parts->shards[i / DPT_SHARD_FIELDS];
        uint32_t crc = 0;

        for (int rank = 0; rank < r->node->size; rank++) {
            const struct finding *f = &r->all[(size_t)rank * r->fields + i];

            if (f->bytes > 0)
                crc = dpt_crc32_join(crc, f->crc, f->bytes);
        }
        DPT_TRY(dpt_field_check_crc(dpt_shard_field(shard, i % DPT_SHARD_FIELDS), crc, err));
    }
out:
    return status;
}

static enum dpt_status read_share(struct reading *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)r->node->size;

    DPT_TRY(DPT_ALLOCATE(r->mine, r->fields, "checksums", err));
    DPT_TRY(DPT_ALLOCATE(r->all, r->fields * ranks, "checksums", err));
    DPT_TRY(read_labels(r, err));
    DPT_TRY(read_images(r, err));
out:
    for (size_t i = 0; i < r->set->parts->n_shards; i++)
        dpt_shard_detach(&r->set->parts->shards[i]);
    return status;
}

enum dpt_status dpt_dataset_read(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                 const struct dpt_group *node, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading reading = {.set = set, .spec = spec, .node = node}, *const r = &reading;

    r->fields = DPT_SHARD_FIELDS * set->parts->n_shards;
    DPT_TRY(dpt_group_agree(node, read_share(r, err), err));
    DPT_TRY(dpt_group_allgather(node, r->mine, r->all, r->fields * sizeof *r->mine, err));
    DPT_TRY(check_sums(r, err));
    if (r->complaint.status != DPT_OK)
        *err = r->complaint;
    DPT_TRY(dpt_group_agree(node, r->complaint.status, err));
out:
    dpt_free(r->mine);
    dpt_free(r->all);
    return status;
}
