/* The values of an inspected data set: read in pieces, checked, summed up, compared. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "data/shards/inspect_file.h"

enum {
    PIECE_BYTES = 4 << 20,
    ROW_MOST = 1 << 30, /* of rows that HDF5 must read whole */
    RUN = 1024,         /* items turned into numbers at once */
};

enum dpt_status dpt_inspect_attach(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_field *field = &set->private->field;

    if (field->info.contiguous || set->bytes == 0)
        return DPT_OK;
    if (field->row_bytes > ROW_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %s has rows of %zu bytes, too many to read",
                        f->path, set->name, field->row_bytes);
    dpt_h5_enter();
    status = dpt_field_open(field, f->file->id, f->path, set->private->path, err);
    dpt_h5_leave();
    return status;
}

void dpt_inspect_detach(struct dpt_inspect_set *set)
{
    dpt_h5_enter();
    dpt_field_close(&set->private->field);
    dpt_h5_leave();
}

int64_t dpt_inspect_piece(const struct dpt_inspect_set *set, int64_t first)
{
    const struct dpt_field *field = &set->private->field;
    const int64_t left = set->items - first;

    if (field->info.contiguous) {
        const int64_t most = field->info.size < PIECE_BYTES ? PIECE_BYTES / field->info.size : 1;

        return left < most ? left : most;
    }
    if (set->n_dims == 0)
        return left;
    return field->row_items * dpt_field_piece(field, first / field->row_items, set->dims[0]);
}

size_t dpt_inspect_piece_bytes(const struct dpt_inspect_set *set)
{
    const struct dpt_field *field = &set->private->field;
    const size_t item = (size_t)field->info.size;
    const size_t least = field->info.contiguous ? item : field->row_bytes;

    return least > PIECE_BYTES ? least : PIECE_BYTES;
}

enum dpt_status dpt_inspect_items(struct dpt_inspect *f, struct dpt_inspect_set *set, int64_t first,
                                  int64_t n, void *raw, struct dpt_error *err)
{
    const struct dpt_field *field = &set->private->field;
    const int64_t size = field->info.size;

    if (f->watch != NULL)
        f->watch(f->watch_arg, set->name);
    if (!field->info.contiguous)
        return dpt_field_read(field, f->path, set->name, first / field->row_items,
                              n / field->row_items, raw, err);
    if (dpt_pread_all(f->file->fd, raw, (size_t)(n * size), field->info.offset + first * size) == 0)
        return DPT_OK;
    if (errno == EPIPE)
        return dpt_fail(err, DPT_BAD_DATA, "%s is damaged: it ends before the end of %s", f->path,
                        set->name);
    return dpt_fail_errno(err, DPT_IO, "%s: reading %s failed", f->path, set->name);
}

static void to_numbers(const struct dpt_field *field, const void *raw, int64_t first, int64_t n,
                       double *out)
{
    const char *at = (const char *)raw + first * field->info.size;
    float value;

    switch (field->info.type) {
    case DPT_H5_F32:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&value, at + i * (int64_t)sizeof value, sizeof value);
            out[i] = (double)value;
        }
        break;
    case DPT_H5_F64:
        memcpy(out, at, (size_t)n * sizeof *out);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)dpt_field_int(field, at, (size_t)i);
    }
}

struct sums {
    double sum, sum_of_squares;
};

static void add_numbers(struct dpt_inspect_set *set, const double *x, int64_t n, struct sums *all)
{
    double sum = 0, sum_of_squares = 0;

    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            set->nonfinite++;
            continue;
        }
        if (set->finite++ == 0)
            set->min = set->max = x[i];
        set->min = x[i] < set->min ? x[i] : set->min;
        set->max = x[i] > set->max ? x[i] : set->max;
        sum += x[i];
        sum_of_squares += x[i] * x[i];
    }
    all->sum += sum;
    all->sum_of_squares += sum_of_squares;
}

static enum dpt_status read_all(struct dpt_inspect *f, struct dpt_inspect_set *set, void *raw,
                                uint32_t *crc, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &set->private->field;
    struct sums sums = {0};
    double numbers[RUN];

    *crc = 0;
    set->finite = set->nonfinite = 0;
    for (int64_t first = 0, n; first < set->items; first += n) {
        n = dpt_inspect_piece(set, first);
        DPT_TRY(dpt_inspect_items(f, set, first, n, raw, err));
        *crc = dpt_crc32(*crc, raw, (size_t)n * (size_t)field->info.size);
        for (int64_t i = 0; set->numbers && i < n; i += RUN) {
            const int64_t some = n - i < RUN ? n - i : RUN;

            to_numbers(field, raw, i, some, numbers);
            add_numbers(set, numbers, some, &sums);
        }
    }
    if (set->finite > 0) {
        set->mean = sums.sum / (double)set->finite;
        set->rms = sqrt(sums.sum_of_squares / (double)set->finite);
    }
out:
    return status;
}

enum dpt_status dpt_inspect_read(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_h5_info *info = &set->private->field.info;
    void *raw = NULL;
    uint32_t crc;

    if (!set->private->readable)
        return DPT_OK;
    raw = malloc(dpt_inspect_piece_bytes(set));
    if (raw == NULL)
        DPT_TRY(dpt_fail_memory(err, set->name, (double)dpt_inspect_piece_bytes(set)));
    DPT_TRY(dpt_inspect_attach(f, set, err));
    DPT_TRY(read_all(f, set, raw, &crc, err));
    if (!info->has_crc)
        goto out;
    set->sum = crc == info->crc ? DPT_SUM_GOOD : DPT_SUM_WRONG;
    if (set->sum == DPT_SUM_WRONG) {
        dpt_fail(
            err, DPT_BAD_DATA,
            "%s is damaged: %s does not match its checksum (crc32 is %08x, the file says %08x)",
            f->path, set->name, crc, info->crc);
        set->fault = dpt_inspect_keep(f, err->text);
    }
out:
    dpt_inspect_detach(set);
    free(raw);
    if (status != DPT_BAD_DATA)
        return status;
    set->sum = DPT_SUM_UNREADABLE;
    set->numbers = false;
    set->fault = dpt_inspect_keep(f, err->text);
    return DPT_OK;
}

enum dpt_status dpt_inspect_text(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 const char **text, struct dpt_error *err)
{
    enum { TEXT_MOST = 16 << 20 };
    enum dpt_status status = DPT_OK;
    char *bytes;

    *text = NULL;
    if (!set->private->text || set->items != 1 || set->bytes > TEXT_MOST)
        return DPT_OK;
    bytes = dpt_region_alloc(&f->region, (size_t)set->bytes + 1);
    if (bytes == NULL)
        return dpt_fail_memory(err, set->name, (double)set->bytes);
    DPT_TRY(dpt_inspect_attach(f, set, err));
    DPT_TRY(dpt_inspect_items(f, set, 0, 1, bytes, err));
    *text = bytes;
out:
    dpt_inspect_detach(set);
    return status;
}

bool dpt_inspect_alike(const struct dpt_inspect_set *a, const struct dpt_inspect_set *b)
{
    const struct dpt_h5_info *x = &a->private->field.info, *y = &b->private->field.info;

    return strcmp(a->type, b->type) == 0 && x->size == y->size && a->numbers == b->numbers &&
           a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof *a->dims) == 0;
}

/* Relative to the larger of the two, so that it is the same from either side. */
static void measure(double a, double b, struct dpt_inspect_difference *d)
{
    const bool finite = isfinite(a) && isfinite(b);
    const double apart = finite ? fabs(a - b) : INFINITY;
    const double size = fmax(fabs(a), fabs(b));
    const double relative = finite ? (apart > 0 ? apart / size : 0) : INFINITY;

    d->absolute = apart > d->absolute ? apart : d->absolute;
    d->relative = relative > d->relative ? relative : d->relative;
}

static void compare_items(const struct dpt_inspect_set *set, const struct dpt_inspect_set *other,
                          const char *x, const char *y, int64_t first, int64_t n,
                          struct dpt_inspect_difference *d)
{
    const size_t size = (size_t)set->private->field.info.size;

    if (memcmp(x, y, (size_t)n * size) == 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        double a = 0, b = 0;

        if (memcmp(x + (size_t)i * size, y + (size_t)i * size, size) == 0)
            continue;
        if (set->numbers) {
            to_numbers(&set->private->field, x, i, 1, &a);
            to_numbers(&other->private->field, y, i, 1, &b);
            measure(a, b, d);
        }
        if (d->items++ == 0) {
            d->first = first + i;
            d->a = a;
            d->b = b;
        }
    }
}

/* A piece that both can be read by: where the values do not lie in one run, whole rows. */
static int64_t common_piece(const struct dpt_inspect_set *a, const struct dpt_inspect_set *b,
                            int64_t first)
{
    const int64_t x = dpt_inspect_piece(a, first), y = dpt_inspect_piece(b, first);

    if (a->private->field.info.contiguous)
        return y;
    return b->private->field.info.contiguous || x < y ? x : y;
}

enum dpt_status dpt_inspect_compare(struct dpt_inspect *f, struct dpt_inspect_set *a,
                                    struct dpt_inspect *g, struct dpt_inspect_set *b,
                                    struct dpt_inspect_difference *difference,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *x = NULL, *y = NULL;
    size_t bytes;

    memset(difference, 0, sizeof *difference);
    if (!a->private->readable || !b->private->readable)
        return DPT_OK;
    bytes = dpt_inspect_piece_bytes(a);
    bytes = bytes > dpt_inspect_piece_bytes(b) ? bytes : dpt_inspect_piece_bytes(b);
    x = malloc(bytes);
    y = malloc(bytes);
    if (x == NULL || y == NULL)
        DPT_TRY(dpt_fail_memory(err, a->name, 2.0 * (double)bytes));
    DPT_TRY(dpt_inspect_attach(f, a, err));
    DPT_TRY(dpt_inspect_attach(g, b, err));
    for (int64_t first = 0, n; first < a->items; first += n) {
        n = common_piece(a, b, first);
        DPT_TRY(dpt_inspect_items(f, a, first, n, x, err));
        DPT_TRY(dpt_inspect_items(g, b, first, n, y, err));
        compare_items(a, b, x, y, first, n, difference);
    }
out:
    dpt_inspect_detach(a);
    dpt_inspect_detach(b);
    free(x);
    free(y);
    return status;
}
