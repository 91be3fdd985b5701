/*
 * CSV files: features and labels in columns. The files are read twice, counting rows and looking at
 * the labels first, so that memory is some rows and the names of the classes, whatever the files'
 * size.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "data/sources/source.h"
#include "data/tables/csv_table.h"

enum { BATCH_BYTES = 1 << 20, LABEL_MOST = INT32_MAX - 1 };

enum label_kind { NUMBERS, NAMES, TARGETS };

struct class_name {
    const char *text;
    bool number;
    double value;
};

/* What a first reading says about the labels. */
struct labels {
    bool whole; /* all are whole numbers from 0 on */
    double largest;
    char *number, *word;      /* where the first of each kind is, and what; NULL: none */
    struct class_name *names; /* sorted */
    size_t n_names, capacity, longest;
};

struct csv_job {
    const struct dpt_convert_job *job;
    struct dpt_csv_table table;
    enum label_kind kind;
    bool classes, regression, u8; /* as asked for */
    struct labels labels;
    struct dpt_source_model like; /* the shard of --like; zero: none */
    int32_t *like_number;         /* [labels.n_names] of its classes; NULL: not given */
    int64_t rows, total;          /* counted so far in this reading; by the first one */
    double shown;
    /* The second reading. */
    struct dpt_shard_writer *writer;
    size_t features, batch, filled;
    float *floats;
    uint8_t *bytes;
    int32_t *numbers;
    float *targets;
};

/* Numbers by their value, before words by their bytes (which is the order of code points in UTF-8).
 */
static int compare_names(const struct class_name *a, const struct class_name *b)
{
    if (a->number != b->number)
        return a->number ? -1 : 1;
    if (a->number && a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return strcmp(a->text, b->text);
}

/* The place of a name among the sorted ones; *there: it is one of them. */
static size_t place_of(const struct labels *labels, const struct class_name *name, bool *there)
{
    size_t low = 0, high = labels->n_names;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = compare_names(name, &labels->names[middle]);

        if (order == 0) {
            *there = true;
            return middle;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    *there = false;
    return low;
}

static struct class_name name_of(const struct csv_job *c, const struct dpt_csv_cell *cell)
{
    struct class_name name = {.text = cell->text};

    name.number = dpt_csv_number(cell, c->table.c_locale, &name.value) == DPT_CSV_NUMBER;
    return name;
}

static enum dpt_status add_name(struct csv_job *c, const struct dpt_csv *row, size_t column,
                                struct dpt_error *err)
{
    struct labels *l = &c->labels;
    const struct dpt_csv_cell *cell = &row->cells[column];
    struct class_name name = name_of(c, cell);
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];
    bool there;
    const size_t at = place_of(l, &name, &there);

    if (there)
        return DPT_OK;
    if (cell->length > l->longest)
        l->longest = cell->length;
    if ((l->n_names + 1) * l->longest > DPT_CLASS_NAME_BYTES)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: '%s' is label no. %zu that differs from all before: too many for names of "
            "classes; is this the column of the labels?",
            dpt_csv_where(&c->table, row, column, where), dpt_csv_shown(cell->text, shown),
            l->n_names + 1);
    if (l->n_names == l->capacity) {
        const size_t more = l->capacity == 0 ? 64 : 2 * l->capacity;
        struct class_name *names = realloc(l->names, more * sizeof *names);

        if (names == NULL)
            return dpt_fail_memory(err, "the names of the classes", (double)more * sizeof *names);
        l->names = names;
        l->capacity = more;
    }
    name.text = dpt_arena_strndup(&c->table.arena, cell->text, cell->length);
    if (name.text == NULL)
        return dpt_fail_memory(err, "the names of the classes", (double)cell->length);
    memmove(l->names + at + 1, l->names + at, (l->n_names - at) * sizeof *l->names);
    l->names[at] = name;
    l->n_names++;
    return DPT_OK;
}

/* A cell that had to be a number and is none. */
static enum dpt_status no_number(const struct csv_job *c, const struct dpt_csv *row, size_t column,
                                 enum dpt_csv_kind kind, struct dpt_error *err)
{
    const char *text = row->cells[column].text;
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];

    dpt_csv_where(&c->table, row, column, where);
    if (text[0] == '\0')
        return dpt_fail(err, DPT_BAD_DATA, "%s: is empty: a value is missing", where);
    if (kind == DPT_CSV_TEXT)
        return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is not a number%s", where,
                        dpt_csv_shown(text, shown),
                        c->rows == 0 && c->table.names == NULL
                            ? "; are these the names of the columns (--header yes)?"
                            : "");
    return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is %s", where, dpt_csv_shown(text, shown),
                    kind == DPT_CSV_MISSING ? "a missing value" : "not finite");
}

static enum dpt_status remember(struct csv_job *c, const struct dpt_csv *row, size_t column,
                                char **first, struct dpt_error *err)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];

    if (*first != NULL)
        return DPT_OK;
    *first =
        dpt_arena_printf(&c->table.arena, "%s: '%s'", dpt_csv_where(&c->table, row, column, where),
                         dpt_csv_shown(row->cells[column].text, shown));
    return *first != NULL ? DPT_OK : dpt_fail_memory(err, "a message", sizeof where);
}

static enum dpt_status scan_label(struct csv_job *c, const struct dpt_csv *row, size_t column,
                                  struct dpt_error *err)
{
    const struct dpt_csv_cell *cell = &row->cells[column];
    enum dpt_status status = DPT_OK;
    double value;
    const enum dpt_csv_kind kind = dpt_csv_number(cell, c->table.c_locale, &value);

    if (c->classes && cell->length > 0) {
        DPT_TRY(add_name(c, row, column, err));
    } else if (kind == DPT_CSV_NUMBER) {
        c->labels.whole = c->labels.whole && value >= 0 && value == floor(value);
        c->labels.largest = value > c->labels.largest ? value : c->labels.largest;
        DPT_TRY(remember(c, row, column, &c->labels.number, err));
    } else if (kind == DPT_CSV_TEXT && !c->regression) {
        DPT_TRY(remember(c, row, column, &c->labels.word, err));
        DPT_TRY(add_name(c, row, column, err));
    } else {
        DPT_TRY(no_number(c, row, column, kind, err));
    }
    if (c->labels.number != NULL && c->labels.word != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s is a number, but %s is none; --classes takes all as names of classes",
                         c->labels.number, c->labels.word));
out:
    return status;
}

static enum dpt_status scan_row(void *arg, const struct dpt_csv *row, struct dpt_error *err)
{
    struct csv_job *c = arg;
    enum dpt_status status = DPT_OK;
    char count[32], line[64];

    for (size_t i = 0; i < c->table.n_labels; i++)
        DPT_TRY(scan_label(c, row, c->table.labels[i], err));
    c->rows++;
    if (c->job->log != NULL && c->rows % 1024 == 0 && dpt_now() - c->shown > 0.1) {
        c->shown = dpt_now();
        snprintf(line, sizeof line, "counting rows: %s", dpt_group_digits(count, c->rows));
        dpt_log_live(c->job->log, line);
    }
out:
    return status;
}

/* Says what the labels are, and so the form of the shards. */
static enum dpt_status decide(struct csv_job *c, struct dpt_shard_form *form, struct dpt_error *err)
{
    const struct labels *l = &c->labels;

    if (c->rows == 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: has no row of data", c->job->inputs[0]);
    if (c->regression || (!c->classes && l->word == NULL && !l->whole))
        c->kind = TARGETS;
    else
        c->kind = l->n_names > 0 ? NAMES : NUMBERS;
    if (c->kind == NUMBERS && l->largest > LABEL_MOST)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: the largest label is %.0f: too large for the number of a class; --classes takes "
            "labels as names, --regression as targets",
            c->job->inputs[0], l->largest);
    form->samples = c->rows;
    form->u8 = c->u8;
    form->targets = c->kind == TARGETS ? (int64_t)c->table.n_labels : 0;
    form->classes = c->kind == NAMES     ? (int64_t)l->n_names
                    : c->kind == NUMBERS ? (int64_t)l->largest + 1
                                         : 0;
    return DPT_OK;
}

static enum dpt_status set_shape(const struct csv_job *c, struct dpt_shard_form *form,
                                 struct dpt_error *err)
{
    const char *text = c->job->option[DPT_CONVERT_SHAPE];
    long long d[3];
    int end = 0;

    form->n_dims = 1;
    form->dims[0] = (int64_t)c->features;
    if (text == NULL)
        return DPT_OK;
    if (sscanf(text, "%6lld,%6lld,%6lld%n", &d[0], &d[1], &d[2], &end) != 3 || text[end] != '\0' ||
        d[0] < 1 || d[1] < 1 || d[2] < 1)
        return dpt_fail(err, DPT_USAGE,
                        "--shape %s: must be channels, height and width, as in 1,28,28", text);
    if (d[0] * d[1] * d[2] != (long long)c->features)
        return dpt_fail(err, DPT_USAGE,
                        "--shape %s: makes %lld values, %s has %zu columns besides the label", text,
                        d[0] * d[1] * d[2], c->job->inputs[0], c->features);
    form->n_dims = 3;
    for (int i = 0; i < 3; i++)
        form->dims[i] = d[i];
    return DPT_OK;
}

/* The shard of --like says how rows are stored, too. */
static enum dpt_status take_like(struct csv_job *c, struct dpt_shard_form *form,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *path = c->job->option[DPT_CONVERT_LIKE];
    const struct dpt_shape *shape = &c->like.shape;

    if (path == NULL)
        return DPT_OK;
    if (c->u8 || c->job->option[DPT_CONVERT_SHAPE] != NULL)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--like says how rows are stored; leave --u8 and --shape out"));
    DPT_TRY(dpt_source_model_of(&c->like, path, !c->regression, &c->table.arena, err));
    if (dpt_shape_size(shape) != (int64_t)c->features)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: has %zu columns beside the label, %s has %lld numbers a sample",
                         c->job->inputs[0], c->features, path, (long long)dpt_shape_size(shape)));
    c->u8 = c->like.u8;
    c->classes = c->like.n_classes > 0;
    if (!shape->flat) {
        form->n_dims = 3;
        form->dims[0] = shape->c;
        form->dims[1] = shape->h;
        form->dims[2] = shape->w;
    }
out:
    return status;
}

/* Each class gets the number that it has there. */
static enum dpt_status number_like(struct csv_job *c, struct dpt_shard_form *form,
                                   struct dpt_error *err)
{
    const struct labels *l = &c->labels;
    char shown[DPT_CSV_SHOWN];

    if (c->like.n_classes == 0)
        return DPT_OK;
    c->like_number = dpt_alloc_array(l->n_names, sizeof *c->like_number);
    if (c->like_number == NULL)
        return dpt_fail_memory(err, "the classes", (double)l->n_names);
    for (size_t i = 0; i < l->n_names; i++) {
        size_t k = 0;

        while (k < c->like.n_classes && strcmp(c->like.classes[k], l->names[i].text) != 0)
            k++;
        if (k == c->like.n_classes)
            return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is no class of %s", c->job->inputs[0],
                            dpt_csv_shown(l->names[i].text, shown),
                            c->job->option[DPT_CONVERT_LIKE]);
        c->like_number[i] = (int32_t)k;
    }
    form->classes = (int64_t)c->like.n_classes;
    form->class_names = c->like.classes;
    return DPT_OK;
}

static enum dpt_status flush(struct csv_job *c, struct dpt_error *err)
{
    const size_t n = c->filled;

    c->filled = 0;
    return dpt_shard_writer_add(c->writer, c->u8 ? (const void *)c->bytes : (const void *)c->floats,
                                c->numbers, c->targets, (int64_t)n, err);
}

static enum dpt_status store_feature(struct csv_job *c, const struct dpt_csv *row, size_t column,
                                     size_t at, struct dpt_error *err)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];
    double value;
    const enum dpt_csv_kind kind = dpt_csv_number(&row->cells[column], c->table.c_locale, &value);

    if (kind != DPT_CSV_NUMBER)
        return no_number(c, row, column, kind, err);
    if (!c->u8) {
        c->floats[at] = (float)value;
        if (isfinite(c->floats[at]))
            return DPT_OK;
        return dpt_fail(err, DPT_BAD_DATA, "%s: %s is too large for a 32-bit float",
                        dpt_csv_where(&c->table, row, column, where),
                        dpt_csv_shown(row->cells[column].text, shown));
    }
    if (value < 0 || value > 255 || value != floor(value))
        return dpt_fail(err, DPT_BAD_DATA, "%s: %s is no whole number from 0 to 255, as --u8 needs",
                        dpt_csv_where(&c->table, row, column, where),
                        dpt_csv_shown(row->cells[column].text, shown));
    c->bytes[at] = (uint8_t)value;
    return DPT_OK;
}

static enum dpt_status changed(const struct dpt_csv *row, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s:%lld: changed while it was read", row->path,
                    (long long)row->line);
}

static enum dpt_status store_label(struct csv_job *c, const struct dpt_csv *row,
                                   struct dpt_error *err)
{
    const size_t column = c->table.labels[0];
    const struct class_name name = name_of(c, &row->cells[column]);
    bool there = true;
    size_t place;

    if (c->kind == NAMES) {
        place = place_of(&c->labels, &name, &there);
        c->numbers[c->filled] =
            there && c->like_number != NULL ? c->like_number[place] : (int32_t)place;
    } else if (name.number && name.value >= 0 && name.value <= c->labels.largest) {
        c->numbers[c->filled] = (int32_t)name.value;
    } else {
        there = false;
    }
    return there ? DPT_OK : changed(row, err);
}

static enum dpt_status store_targets(struct csv_job *c, const struct dpt_csv *row,
                                     struct dpt_error *err)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];
    double value;

    for (size_t i = 0; i < c->table.n_labels; i++) {
        const size_t column = c->table.labels[i];
        float *target = &c->targets[c->filled * c->table.n_labels + i];

        if (dpt_csv_number(&row->cells[column], c->table.c_locale, &value) != DPT_CSV_NUMBER)
            return changed(row, err);
        *target = (float)value;
        if (!isfinite(*target))
            return dpt_fail(err, DPT_BAD_DATA, "%s: %s is too large for a 32-bit float",
                            dpt_csv_where(&c->table, row, column, where),
                            dpt_csv_shown(row->cells[column].text, shown));
    }
    return DPT_OK;
}

static enum dpt_status store_row(void *arg, const struct dpt_csv *row, struct dpt_error *err)
{
    struct csv_job *c = arg;
    enum dpt_status status = DPT_OK;
    size_t at = c->filled * c->features;

    if (c->rows == c->total)
        DPT_TRY(changed(row, err));
    for (size_t i = 0; i < c->table.columns; i++)
        if (!c->table.is_label[i])
            DPT_TRY(store_feature(c, row, i, at++, err));
    DPT_TRY(c->kind == TARGETS ? store_targets(c, row, err) : store_label(c, row, err));
    c->rows++;
    if (++c->filled == c->batch)
        DPT_TRY(flush(c, err));
out:
    return status;
}

static enum dpt_status make_buffers(struct csv_job *c, struct dpt_error *err)
{
    c->batch = c->features < BATCH_BYTES / 4 ? BATCH_BYTES / 4 / c->features : 1;
    c->floats = c->u8 ? NULL : dpt_alloc_array(c->batch * c->features, sizeof *c->floats);
    c->bytes = c->u8 ? dpt_alloc_array(c->batch, c->features) : NULL;
    c->numbers = dpt_alloc_array(c->batch, sizeof *c->numbers);
    c->targets = dpt_alloc_array(c->batch * c->table.n_labels, sizeof *c->targets);
    if ((c->floats == NULL && c->bytes == NULL) || c->numbers == NULL || c->targets == NULL)
        return dpt_fail_memory(err, "some rows", 4.0 * (double)c->batch * (double)c->features);
    return DPT_OK;
}

static enum dpt_status store(struct csv_job *c, const struct dpt_shard_form *form,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(make_buffers(c, err));
    DPT_TRY(dpt_shard_writer_open(&c->writer, c->job, form, err));
    c->total = c->rows;
    c->rows = 0;
    DPT_TRY(dpt_csv_table_walk(&c->table, store_row, c, err));
    if (c->rows != c->total)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", c->job->inputs[0]));
    if (c->filled > 0)
        DPT_TRY(flush(c, err));
    DPT_TRY(dpt_shard_writer_commit(c->writer, err));
out:
    return status;
}

static enum dpt_status check_options(const struct csv_job *c, struct dpt_error *err)
{
    if (c->job->n_inputs == 0)
        return dpt_fail(err, DPT_USAGE, "csv takes one file or more; none given");
    if (c->classes && c->regression)
        return dpt_fail(err, DPT_USAGE, "--classes and --regression exclude each other");
    if (c->job->option[DPT_CONVERT_LABEL] != NULL && c->job->option[DPT_CONVERT_LABEL][0] == '\0')
        return dpt_fail(err, DPT_USAGE, "--label: which column? a name or a number");
    return DPT_OK;
}

static enum dpt_status run(const struct dpt_convert_job *job, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_form form = {0};
    struct csv_job c = {
        .job = job,
        .classes = job->option[DPT_CONVERT_CLASSES] != NULL,
        .regression = job->option[DPT_CONVERT_REGRESSION] != NULL,
        .u8 = job->option[DPT_CONVERT_U8] != NULL,
        .labels = {.whole = true},
    };
    const char **names = NULL;

    DPT_TRY(check_options(&c, err));
    DPT_TRY(dpt_csv_table_open(&c.table, job, err));
    if (c.table.n_labels > 1 && c.classes)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--classes takes one label column, --label names %zu",
                         c.table.n_labels));
    c.regression = c.regression || c.table.n_labels > 1;
    c.features = c.table.columns - c.table.n_labels;
    DPT_TRY(set_shape(&c, &form, err));
    DPT_TRY(take_like(&c, &form, err));
    DPT_TRY(dpt_csv_table_walk(&c.table, scan_row, &c, err));
    DPT_TRY(decide(&c, &form, err));
    names = dpt_alloc_array(c.labels.n_names, sizeof *names);
    if (names == NULL)
        DPT_TRY(dpt_fail_memory(err, "the names of the classes",
                                (double)c.labels.n_names * sizeof *names));
    for (size_t i = 0; i < c.labels.n_names; i++)
        names[i] = c.labels.names[i].text;
    form.class_names = c.kind == NAMES ? names : NULL;
    DPT_TRY(number_like(&c, &form, err));
    DPT_TRY(store(&c, &form, err));
out:
    dpt_shard_writer_close(c.writer);
    dpt_csv_table_close(&c.table);
    dpt_free(c.floats);
    dpt_free(c.bytes);
    dpt_free(c.numbers);
    dpt_free(c.targets);
    dpt_free(c.like_number);
    dpt_free(names);
    free(c.labels.names);
    return status;
}

const struct dpt_converter dpt_convert_csv = {
    .name = "csv",
    .inputs = "FILE...",
    .summary = "comma-separated text (RFC 4180), gzipped or not: features and labels in columns",
    .details =
        "Features become float32 [N,D], or [N,C,H,W] with --shape, or uint8 with --u8. "
        "Labels that are whole numbers "
        "from 0 on are classes; words become classes in sorted order, their names an "
        "attribute of /labels; other "
        "numbers, several label columns and --regression make targets [N,K]. A test set goes "
        "with --like TRAINSHARD, so that its classes have the same numbers.",
    .options = 1u << DPT_CONVERT_LIKE | 1u << DPT_CONVERT_LABEL | 1u << DPT_CONVERT_HEADER |
               1u << DPT_CONVERT_CLASSES | 1u << DPT_CONVERT_REGRESSION | 1u << DPT_CONVERT_SHAPE |
               1u << DPT_CONVERT_U8,
    .run = run,
};
