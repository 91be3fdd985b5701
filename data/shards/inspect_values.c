/* The values of an inspected data set: read in pieces, checked, summed up, compared. */
#include <math.h>
#include <string.h>

#include "data/shards/inspect_file.h"

enum {
    ROW_MOST = 1 << 30, /* of rows that HDF5 must read whole */
    RUN = 1024,         /* items whose sum is taken by itself */
};

/* Called before and after reads of a data set. Errors: BAD_DATA (names the file), RANK. */
static enum dpt_status attach(struct dpt_inspect *f, struct dpt_inspect_set *set,
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
    status = dpt_field_open(field, f->file->id, err);
    dpt_h5_leave();
    return status;
}

static void detach(struct dpt_inspect_set *set)
{
    dpt_h5_enter();
    dpt_field_close(&set->private->field);
    dpt_h5_leave();
}

/* Who visits the pieces of a scan. */
struct scan {
    struct dpt_inspect *f;
    const struct dpt_inspect_set *set;
    void (*visit)(void *arg, const void *raw, int64_t n);
    void *arg;
};

static enum dpt_status visit_piece(void *arg, int64_t row, int64_t n, const void *raw,
                                   struct dpt_error *err)
{
    const struct scan *s = arg;

    (void)row;
    (void)err;
    dpt_inspect_watch(s->f, s->set->name);
    s->visit(s->arg, raw, n * s->set->private->field.row_items);
    return DPT_OK;
}

enum dpt_status dpt_inspect_scan(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 void (*visit)(void *arg, const void *raw, int64_t n), void *arg,
                                 uint32_t *crc, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *field = &set->private->field;
    struct scan scan = {f, set, visit, arg};

    dpt_inspect_watch(f, set->name);
    DPT_TRY(attach(f, set, err));
    DPT_TRY(dpt_field_scan(field, 0, set->items / field->row_items, visit_piece, &scan, crc, err));
out:
    detach(set);
    return status;
}

struct sums {
    struct dpt_inspect_set *set;
    double sum, sum_of_squares;
};

/* Adds the items [first, end) of some. Each run is summed by itself. */
static void add_run(struct sums *all, const void *raw, int64_t first, int64_t end)
{
    struct dpt_inspect_set *set = all->set;
    double sum = 0, sum_of_squares = 0;

    for (int64_t i = first; i < end; i++) {
        const double x = dpt_field_real(&set->private->field, raw, (size_t)i);

        if (!isfinite(x)) {
            set->nonfinite++;
            continue;
        }
        if (set->finite++ == 0)
            set->min = set->max = x;
        set->min = x < set->min ? x : set->min;
        set->max = x > set->max ? x : set->max;
        sum += x;
        sum_of_squares += x * x;
    }
    all->sum += sum;
    all->sum_of_squares += sum_of_squares;
}

static void add_numbers(void *arg, const void *raw, int64_t n)
{
    struct sums *sums = arg;

    for (int64_t i = 0; sums->set->numbers && i < n; i += RUN)
        add_run(sums, raw, i, n - i < RUN ? n : i + RUN);
}

enum dpt_status dpt_inspect_read(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 struct dpt_error *err)
{
    const struct dpt_h5_info *info = &set->private->field.info;
    struct sums sums = {.set = set};
    enum dpt_status status;
    uint32_t crc = 0;

    if (!set->private->readable)
        return DPT_OK;
    set->finite = set->nonfinite = 0;
    status = dpt_inspect_scan(f, set, add_numbers, &sums, &crc, err);
    if (status == DPT_OK) {
        set->mean = set->finite > 0 ? sums.sum / (double)set->finite : 0;
        set->rms = set->finite > 0 ? sqrt(sums.sum_of_squares / (double)set->finite) : 0;
        if (!info->has_crc)
            return DPT_OK;
        set->sum = crc == info->crc ? DPT_SUM_GOOD : DPT_SUM_WRONG;
        if (set->sum == DPT_SUM_GOOD)
            return DPT_OK;
        dpt_fail(
            err, DPT_BAD_DATA,
            "%s is damaged: %s does not match its checksum (crc32 is %08x, the file says %08x)",
            f->path, set->name, crc, info->crc);
    } else if (status == DPT_BAD_DATA) {
        set->sum = DPT_SUM_UNREADABLE;
        set->numbers = false;
    } else {
        return status;
    }
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
    DPT_TRY(attach(f, set, err));
    dpt_inspect_watch(f, set->name);
    DPT_TRY(dpt_field_read(&set->private->field, 0, 1, bytes, err));
    *text = bytes;
out:
    detach(set);
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
            a = dpt_field_real(&set->private->field, x, (size_t)i);
            b = dpt_field_real(&other->private->field, y, (size_t)i);
            measure(a, b, d);
        }
        if (d->items++ == 0) {
            d->first = first + i;
            d->a = a;
            d->b = b;
        }
    }
}

enum dpt_status dpt_inspect_compare(struct dpt_inspect *f, struct dpt_inspect_set *a,
                                    struct dpt_inspect *g, struct dpt_inspect_set *b,
                                    struct dpt_inspect_difference *difference,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_field *x = &a->private->field, *y = &b->private->field;
    /* Pieces are those of the one whose rows are longer: the other's rows are single items then. */
    const struct dpt_field *wide = x->row_items > y->row_items ? x : y;
    const int64_t rows = a->items / wide->row_items;
    char *raw[2] = {NULL, NULL};

    memset(difference, 0, sizeof *difference);
    if (!a->private->readable || !b->private->readable)
        return DPT_OK;
    for (int k = 0; k < 2; k++)
        DPT_TRY(DPT_ALLOCATE(raw[k], dpt_field_piece_bytes(wide, rows), a->name, err));
    DPT_TRY(attach(f, a, err));
    DPT_TRY(attach(g, b, err));
    for (int64_t row = 0, n; row < rows; row += n) {
        const int64_t first = row * wide->row_items;
        int64_t items;

        n = dpt_field_piece(wide, row, rows);
        items = n * wide->row_items;
        dpt_inspect_watch(f, a->name);
        DPT_TRY(dpt_field_read(x, first / x->row_items, items / x->row_items, raw[0], err));
        dpt_inspect_watch(g, b->name);
        DPT_TRY(dpt_field_read(y, first / y->row_items, items / y->row_items, raw[1], err));
        compare_items(a, b, raw[0], raw[1], first, items, difference);
    }
out:
    detach(a);
    detach(b);
    dpt_free(raw[0]);
    dpt_free(raw[1]);
    return status;
}
