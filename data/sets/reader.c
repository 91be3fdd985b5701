#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/sets/parts.h"

enum { RUN = 512 }; /* neighbours in one call; below IOV_MAX */
/* Seconds between two looks at a shard that is read: each may be a message to a file server. */
static const double LOOK = 1;

/* A sample to read and its place in the output. */
struct want {
    int64_t sample;
    size_t at, bytes;
};

/* A shard that is wanted, and which of the wants lie in it: n from the first on. */
struct group {
    struct dpt_shard *shard;
    int32_t first, n;
};

struct dpt_reader {
    const struct dpt_dataset *set;
    bool sequential;
    struct group *groups;        /* one for each shard of the wants */
    size_t n_groups, held, free; /* the groups [free, held) are taken */
    size_t most;                 /* that may be taken at a time */
    struct want *wants;          /* [most] */
    uint8_t *raw;                /* a piece, for shards that HDF5 reads */
    size_t raw_bytes;
    double *look_at; /* [shards]: when to see whether each is still what it was; 0: at once */
    struct iovec to[RUN];
};

int64_t dpt_dataset_place(const struct dpt_dataset *set, int64_t sample, size_t *bytes)
{
    const struct dpt_shard *shard;
    int64_t first;

    if (!set->files) {
        *bytes = set->stride;
        return sample * (int64_t)set->stride;
    }
    shard = dpt_dataset_shard(set, sample);
    first = dpt_shard_row(shard, sample - shard->first);
    *bytes = (size_t)(dpt_shard_row(shard, sample - shard->first + 1) - first);
    return shard->start + first;
}

/* Asks for the bytes of a sample, the first ones if they are many. */
static inline void prefetch(const uint8_t *at, size_t bytes)
{
    enum { LINE = 64, MOST = 64 * LINE };

    for (size_t i = 0; i < bytes && i < MOST; i += LINE)
        __builtin_prefetch(at + i);
}

void dpt_dataset_prefetch(const struct dpt_dataset *set, int64_t sample)
{
    size_t bytes;
    const int64_t at = dpt_dataset_place(set, sample, &bytes);

    prefetch(set->memory + at, bytes);
}

static enum dpt_status check_sample(const struct dpt_dataset *set, int64_t sample,
                                    const uint8_t *stored, struct dpt_error *err)
{
    char where[256];

    if (!set->parts->check_finite || dpt_find_nonfinite(stored, set->stride / sizeof(float)) < 0)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA, "%s holds NaN or an infinite value",
                    dpt_dataset_where(set, sample, where));
}

enum dpt_status dpt_dataset_take(const struct dpt_dataset *set, int64_t sample, size_t bytes,
                                 const uint8_t **stored, uint8_t **decoded, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shard *shard;

    *decoded = NULL;
    if (!set->files)
        return check_sample(set, sample, *stored, err);
    shard = dpt_dataset_shard(set, sample);
    DPT_TRY(DPT_ALLOCATE(*decoded, set->stride, "a decoded sample", err));
    DPT_TRY(dpt_shard_decode(shard, sample - shard->first, *stored, bytes, *decoded, err));
    *stored = *decoded;
out:
    return status;
}

/* Makes features of n filled samples those of others. */
static enum dpt_status exchange(const struct dpt_dataset *set, const int64_t *sample, int32_t n,
                                float *out, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_exchange *e = set->exchange;
    const size_t size = (size_t)dpt_shape_size(&set->shape);
    float *other = NULL;

    DPT_TRY(DPT_ALLOCATE(other, size, "a sample", err));
    for (int32_t i = 0; i < n; i++) {
        dpt_fill_stored(set, set->memory + (size_t)e->from[sample[i]] * set->stride, other);
        memcpy(out + (size_t)i * size + e->first, other + e->first, (size_t)e->n * sizeof *out);
    }
out:
    dpt_free(other);
    return status;
}

enum dpt_status dpt_dataset_fill(const struct dpt_dataset *set, const int64_t *sample, int32_t n,
                                 float *out, struct dpt_error *err)
{
    const size_t size = (size_t)dpt_shape_size(&set->shape), stride = set->stride;
    const bool checks = set->parts->check_finite;

    for (int32_t i = 0; i < n; i++) {
        const uint8_t *stored = set->memory + (size_t)sample[i] * stride;

        prefetch(set->memory + (size_t)sample[i + 1 < n ? i + 1 : i] * stride, stride);
        if (checks && check_sample(set, sample[i], stored, err) != DPT_OK)
            return err->status;
        dpt_fill_stored(set, stored, out + (size_t)i * size);
    }
    return set->exchange != NULL ? exchange(set, sample, n, out, err) : DPT_OK;
}

size_t dpt_reader_places(const struct dpt_dataset *set, const int64_t *sample, int32_t n,
                         size_t *at)
{
    size_t all = 0, bytes;

    for (int32_t i = 0; i < n; i++) {
        at[i] = all;
        dpt_dataset_place(set, sample[i], &bytes);
        all += bytes;
    }
    return all;
}

enum dpt_status dpt_reader_open(struct dpt_reader **out, const struct dpt_dataset *set, size_t most,
                                bool sequential, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = set->parts->n_shards;
    struct dpt_reader *reader;

    *out = NULL;
    DPT_TRY(DPT_ALLOCATE(reader, 1, "a reader", err));
    reader->set = set;
    reader->sequential = sequential;
    DPT_TRY(DPT_ALLOCATE(reader->look_at, n, "a reader", err));
    reader->most = dpt_shard_most(&set->parts->shards[0]);
    DPT_TRY(DPT_ALLOCATE(reader->groups, most < n ? most : n, "a reader", err));
    for (size_t i = 0; i < n; i++) {
        const struct dpt_shard *shard = &set->parts->shards[i];
        const size_t need = dpt_field_piece_bytes(&shard->images, shard->samples);

        if (!dpt_shard_direct(shard) && !set->files)
            reader->raw_bytes = need > reader->raw_bytes ? need : reader->raw_bytes;
    }
    DPT_TRY(DPT_ALLOCATE(reader->wants, most, "a reader", err));
    DPT_TRY(DPT_ALLOCATE(reader->raw, reader->raw_bytes, "a reader", err));
    *out = reader;
    reader = NULL;
out:
    dpt_reader_close(reader);
    return status;
}

void dpt_reader_close(struct dpt_reader *reader)
{
    if (reader == NULL)
        return;
    dpt_free(reader->look_at);
    dpt_free(reader->groups);
    dpt_free(reader->wants);
    dpt_free(reader->raw);
    dpt_free(reader);
}

static int compare(const void *a, const void *b)
{
    const struct want *x = a, *y = b;

    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* Where a sample lies in its file. */
static int64_t place_of(const struct dpt_shard *shard, int64_t sample)
{
    return shard->images.info.offset +
           dpt_shard_row(shard, sample) * (int64_t)shard->images.row_bytes;
}

/* One by one, to find the sample that could not be read. */
static enum dpt_status read_singly(const struct dpt_shard *shard, const struct want *wants,
                                   int32_t n, uint8_t *bytes, struct dpt_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        const int64_t row = wants[i].sample - shard->first;

        if (dpt_pread_all(shard->fd, bytes + wants[i].at, wants[i].bytes, place_of(shard, row)) ==
            0)
            continue;
        if (errno == EPIPE)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: the file ends before sample %lld: it became shorter after it was "
                            "opened",
                            shard->path, (long long)row);
        return dpt_fail_errno(err, DPT_IO, "%s: reading sample %lld failed", shard->path,
                              (long long)row);
    }
    return DPT_OK;
}

/* Neighbours that lie in one run of bytes, each to its own place. */
static enum dpt_status read_direct(struct dpt_reader *reader, const struct dpt_shard *shard,
                                   const struct want *wants, int32_t n, uint8_t *bytes,
                                   struct dpt_error *err)
{
    size_t all = 0;

    for (int32_t i = 0; i < n; i++) {
        reader->to[i] = (struct iovec){bytes + wants[i].at, wants[i].bytes};
        all += wants[i].bytes;
    }
    if (preadv(shard->fd, reader->to, n, place_of(shard, wants[0].sample - shard->first)) ==
        (ssize_t)all) {
        dpt_file_moved();
        return DPT_OK;
    }
    return read_singly(shard, wants, n, bytes, err); /* interrupted, cut short, or failed */
}

/* Reads neighbouring samples through HDF5, as many at a time as `raw` holds. */
static enum dpt_status read_indirect(struct dpt_reader *reader, const struct dpt_shard *shard,
                                     const struct want *wants, int32_t n, uint8_t *bytes,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &shard->images;
    const size_t stride = reader->set->stride;
    const int64_t first = wants[0].sample - shard->first;
    const int64_t most = (int64_t)(reader->raw_bytes / field->row_bytes);

    for (int32_t i = 0; reader->set->files && i < n; i++)
        DPT_TRY(dpt_field_read(field, dpt_shard_row(shard, first + i), (int64_t)wants[i].bytes,
                               bytes + wants[i].at, err));
    if (reader->set->files)
        return DPT_OK;
    for (int64_t done = 0, rows; done < n; done += rows) {
        rows = n - done < most ? n - done : most;
        DPT_TRY(dpt_field_read(field, first + done, rows, reader->raw, err));
        for (int64_t i = 0; i < rows; i++) {
            const uint8_t *raw = reader->raw + (size_t)i * field->row_bytes;
            uint8_t *place = bytes + wants[done + i].at;

            if (field->info.type == DPT_H5_F64)
                dpt_field_floats(field, raw, (size_t)field->row_items, (float *)(void *)place);
            else
                memcpy(place, raw, stride);
        }
    }
out:
    return status;
}

/* How many of the first of n wants in a shard are neighbours. */
static int32_t run_of(const struct want *wants, int32_t n)
{
    int32_t run = 1;

    while (run < n && run < RUN && wants[run].sample == wants[0].sample + run)
        run++;
    return run;
}

/* Looks at a shard that is read for the first time or that was opened again, and at others once a
 * second at most. */
static enum dpt_status look(struct dpt_reader *reader, struct dpt_shard *shard, bool opened,
                            double now, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = reader->set->parts;
    double *look_at = &reader->look_at[shard - parts->shards];

    if (!opened && now < *look_at)
        return DPT_OK;
    /* Reading ahead would fetch samples that nobody wants yet. */
    if (!reader->sequential && dpt_shard_direct(shard) && (opened || *look_at == 0))
        posix_fadvise(shard->fd, 0, 0, POSIX_FADV_RANDOM);
    *look_at = now + LOOK;
    DPT_TRY(dpt_shard_look(shard, parts->verify, err));
    if (atomic_load(&shard->change) == DPT_SHARD_CHANGED)
        atomic_store(&parts->changed, true);
out:
    return status;
}

/* Asks for all that will be read of a shard, so that a disk has many requests at once: one after
 * the other it would be idle between them. Advice only. */
static void announce(const struct dpt_reader *reader, const struct group *group)
{
    const struct dpt_shard *shard = group->shard;
    const struct want *wants = reader->wants + group->first;

    for (int32_t i = 0, run; i < group->n && dpt_shard_direct(shard); i += run) {
        const int64_t first = wants[i].sample - shard->first;

        run = run_of(wants + i, group->n - i);
        posix_fadvise(shard->fd, place_of(shard, first),
                      place_of(shard, first + run) - place_of(shard, first), POSIX_FADV_WILLNEED);
    }
}

/* Groups the n wants by their shards. Those that are open come first: others would have them
 * closed. */
static void group_wants(struct dpt_reader *reader, int32_t n)
{
    const struct dpt_dataset_parts *parts = reader->set->parts;
    size_t open = 0;

    reader->n_groups = reader->held = reader->free = 0;
    for (int32_t i = 0; i < n;) {
        struct group *groups = reader->groups, group = {.first = i};

        group.shard =
            &parts->shards[dpt_dataset_shard(reader->set, reader->wants[i].sample) - parts->shards];
        while (i < n && reader->wants[i].sample < group.shard->first + group.shard->samples)
            i++;
        group.n = i - group.first;
        groups[reader->n_groups] = group;
        if (dpt_shard_is_open(group.shard)) {
            groups[reader->n_groups] = groups[open];
            groups[open++] = group;
        }
        reader->n_groups++;
    }
}

/* Takes the shards of the next groups, as many as may be open. */
static enum dpt_status hold(struct dpt_reader *reader, double now, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    while (reader->held < reader->n_groups && reader->held - reader->free < reader->most) {
        const struct group *group = &reader->groups[reader->held];
        bool opened;

        status = dpt_shard_take(group->shard, false, &opened, err);
        if (status != DPT_OK && reader->held > reader->free)
            return DPT_OK; /* again once these are released: there may be room then */
        DPT_TRY(status);
        reader->held++;
        DPT_TRY(look(reader, group->shard, opened, now, err));
        announce(reader, group);
    }
out:
    return status;
}

static enum dpt_status read_group(struct dpt_reader *reader, const struct group *group,
                                  uint8_t *bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct want *wants = reader->wants + group->first;

    for (int32_t i = 0, run; i < group->n; i += run) {
        run = run_of(wants + i, group->n - i);
        DPT_TRY((dpt_shard_direct(group->shard) ? read_direct : read_indirect)(
            reader, group->shard, wants + i, run, bytes, err));
    }
out:
    return status;
}

static void release(struct dpt_reader *reader)
{
    while (reader->free < reader->held)
        dpt_shard_release(reader->groups[reader->free++].shard);
}

enum dpt_status dpt_reader_read(struct dpt_reader *reader, const int64_t *sample, int32_t n,
                                uint8_t *bytes, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct want *wants = reader->wants;
    const double now = dpt_now();
    size_t at = 0;

    for (int32_t i = 0; i < n; i++) {
        wants[i] = (struct want){.sample = sample[i], .at = at};
        dpt_dataset_place(reader->set, sample[i], &wants[i].bytes);
        at += wants[i].bytes;
    }
    qsort(wants, (size_t)n, sizeof *wants, compare);
    group_wants(reader, n);
    while (reader->free < reader->n_groups) {
        DPT_TRY(hold(reader, now, err));
        for (size_t i = reader->free; i < reader->held; i++)
            DPT_TRY(read_group(reader, &reader->groups[i], bytes, err));
        release(reader);
    }
out:
    release(reader);
    return status;
}
