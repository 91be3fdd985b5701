/*
 * Reading a data set into the node's shared memory, and verifying it on the way. Each rank of the
 * node takes a run of samples, and opens the shards that have some of it. A shard of which a rank
 * reads all it verifies alone; the checksums of parts are joined with those of the ranks that have
 * the others.
 */
#include <math.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/sets/parts.h"

/* The checksum of a rank's part of a field. field: DPT_SHARD_FIELDS x the shard's number + its own;
 * bytes: that `crc` covers; 0: this is none. */
struct part {
    uint64_t field, bytes;
    uint32_t crc;
    bool begins; /* it is the first part of its field */
};

/* What one rank found out: its run has parts of two shards at most. */
struct findings {
    struct part bad; /* the first field that it has read whole, and which does not match */
    struct part parts[2 * DPT_SHARD_FIELDS];
    size_t n;
};

struct reading {
    struct dpt_dataset *set;
    const struct dpt_dataset_spec *spec;
    const struct dpt_comm *comm;
    bool streams; /* images of some node are not in its memory */
    /* What ranks of the node share out, and what all ranks do. */
    struct findings node, world;
    struct dpt_error complaint; /* a value that is wrong; told only where the checksums are right */
};

/* A run of one shard's samples, [first, last). */
struct run {
    struct dpt_shard *shard;
    size_t number; /* of the shard */
    int64_t first, last;
};

/* The part of a rank's share of the set that lies in a shard; false: none does. */
static bool run_of(const struct reading *r, const struct dpt_group *group, size_t number,
                   struct run *run)
{
    struct dpt_shard *shard = &r->set->parts->shards[number];
    int64_t begin, end;

    dpt_dataset_share(r->set, group, &begin, &end);
    *run = (struct run){shard, number, begin > shard->first ? begin - shard->first : 0,
                        end - shard->first < shard->samples ? end - shard->first : shard->samples};
    return run->first < run->last;
}

/* Notes the checksum of a field's values in a run. */
static void note(const struct reading *r, struct findings *findings, const struct run *run,
                 size_t field, uint64_t bytes, uint32_t crc)
{
    const struct dpt_h5_info *info = &dpt_shard_field(run->shard, field)->info;
    const struct part part = {DPT_SHARD_FIELDS * run->number + field, bytes, crc, run->first == 0};

    if (!r->spec->conf->verify || !info->has_crc)
        return;
    if (run->last - run->first < run->shard->samples)
        findings->parts[findings->n++] = part;
    else if (crc != info->crc && (findings->bad.bytes == 0 || part.field < findings->bad.field))
        findings->bad = part;
}

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

/* The images of a run: into memory if `keep`, else only looked at. */
static enum dpt_status read_images(struct reading *r, struct findings *findings,
                                   const struct run *run, bool keep, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shard *shard = run->shard;
    const struct dpt_field *field = &shard->images;
    const int64_t first = dpt_shard_row(shard, run->first), last = dpt_shard_row(shard, run->last);
    const size_t stride = r->set->files ? 1 : r->set->stride; /* of a row in memory */
    const int64_t before = r->set->files ? shard->start : shard->first;
    uint8_t *memory = keep ? r->set->parts->images.bytes : NULL, *raw = NULL;
    uint32_t crc = 0;

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
        if (r->spec->conf->verify && field->info.has_crc)
            crc = dpt_crc32(crc, stored, (size_t)n * field->row_bytes);
        if (place != NULL && raw != NULL)
            dpt_field_floats(field, stored, items, place);
        if (place != NULL && !r->set->u8)
            check_image_values(r, shard, row, place, items);
    }
    note(r, findings, run, 0, (uint64_t)(last - first) * field->row_bytes, crc);
out:
    dpt_free(raw);
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

/* The labels and weights of a run. */
static enum dpt_status read_labels(struct reading *r, const struct run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard *shard = run->shard;

    for (size_t k = 1; k < DPT_SHARD_FIELDS; k++) {
        struct small small = {r, shard, dpt_shard_field(shard, k)};
        uint32_t crc = 0;

        if (small.field->name == NULL)
            continue;
        DPT_TRY(dpt_field_scan(small.field, run->first, run->last, take_rows, &small, &crc, err));
        note(r, &r->node, run, k, (uint64_t)(run->last - run->first) * small.field->row_bytes, crc);
    }
out:
    return status;
}

/* What this rank reads of a shard: once it is open, all of it. */
static enum dpt_status read_shard(struct reading *r, size_t number, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard *shard = &r->set->parts->shards[number];
    struct run mine, verified;
    const bool some = run_of(r, &r->comm->node, number, &mine);
    const bool more = run_of(r, &r->comm->world, number, &verified) && r->streams &&
                      r->spec->conf->verify && shard->images.info.has_crc;
    bool opened;

    if (!some && !more)
        return DPT_OK;
    DPT_TRY(dpt_shard_take(shard, true, &opened, err));
    if (some)
        status = read_labels(r, &mine, err);
    if (status == DPT_OK && some && r->set->memory != NULL)
        status = read_images(r, &r->node, &mine, true, err);
    if (status == DPT_OK && more)
        status = read_images(r, &r->world, &verified, false, err);
    dpt_shard_release(shard);
    if (r->set->memory != NULL)
        dpt_shard_drop(shard);
out:
    return status;
}

static enum dpt_status read_share(struct reading *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < r->set->parts->n_shards; i++)
        DPT_TRY(read_shard(r, i, err));
out:
    return status;
}

/* --- checksums -------------------------------------------------------------------------------- */

static const struct dpt_field *field_of(const struct dpt_dataset_parts *parts, uint64_t field)
{
    return dpt_shard_field(&parts->shards[field / DPT_SHARD_FIELDS], field % DPT_SHARD_FIELDS);
}

/* Joins the parts of a field from the rank on that has its first one, in the order of its bytes. */
static struct part join(const struct findings *all, int rank, size_t first, int64_t bytes)
{
    struct part sum = all[rank].parts[first];

    for (int i = rank + 1; sum.bytes < (uint64_t)bytes; i++)
        for (size_t k = 0; k < all[i].n; k++) {
            const struct part *part = &all[i].parts[k];

            if (part->field != sum.field)
                continue;
            sum.crc = dpt_crc32_join(sum.crc, part->crc, part->bytes);
            sum.bytes += part->bytes;
        }
    return sum;
}

/* Compares the checksums that the ranks of a group have found, and fails with the first field that
 * is damaged. Collective: all its ranks get the same status. */
static enum dpt_status check_sums(const struct reading *r, const struct dpt_group *group,
                                  const struct findings *mine, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset_parts *parts = r->set->parts;
    struct findings *all = NULL;
    struct part bad = {.field = UINT64_MAX};

    status = DPT_ALLOCATE(all, (size_t)group->size, "checksums", err);
    DPT_TRY(dpt_group_agree(group, status, err));
    DPT_TRY(dpt_group_allgather(group, mine, all, sizeof *all, err));
    for (int rank = 0; rank < group->size; rank++) {
        if (all[rank].bad.bytes > 0 && all[rank].bad.field < bad.field)
            bad = all[rank].bad;
        for (size_t k = 0; k < all[rank].n; k++) {
            const struct part *part = &all[rank].parts[k];
            const struct dpt_h5_info *info = &field_of(parts, part->field)->info;
            struct part sum;

            if (!part->begins || part->field >= bad.field)
                continue;
            sum = join(all, rank, k, info->bytes);
            if (sum.crc != info->crc)
                bad = sum;
        }
    }
    if (bad.field != UINT64_MAX)
        DPT_TRY(dpt_field_check_crc(field_of(parts, bad.field), bad.crc, err));
out:
    dpt_free(all);
    return status;
}

enum dpt_status dpt_dataset_read(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                 const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct reading reading = {.set = set, .spec = spec, .comm = comm}, *const r = &reading;
    double streams = 0;

    DPT_TRY(dpt_group_max(&comm->world, set->memory == NULL, &streams, err));
    r->streams = streams > 0;
    DPT_TRY(dpt_group_agree(&comm->world, read_share(r, err), err));
    DPT_TRY(dpt_group_agree(&comm->world, check_sums(r, &comm->node, &r->node, err), err));
    if (r->streams)
        DPT_TRY(check_sums(r, &comm->world, &r->world, err));
    if (r->complaint.status != DPT_OK)
        *err = r->complaint;
    DPT_TRY(dpt_group_agree(&comm->world, r->complaint.status, err));
out:
    return status;
}
