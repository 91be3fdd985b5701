/*
 * CSV files: features and labels in columns. Rows are counted first, and what is to become shards
 * is looked at for what its labels are; then rows are read as they are wanted. So memory is some
 * rows and the names of the classes, whatever the files' size. Each rank that predicts walks over
 * all rows and takes its own, so that numbers, the dear part, are read once.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/str.h"
#include "data/sources/source_type.h"
#include "data/tables/csv_table.h"
#include "data/tables/names.h"

enum { LABEL_MOST = INT32_MAX - 1 };

struct state {
    struct dpt_csv_table table;
    int64_t row; /* that the table gives next */
    size_t features;
    struct dpt_str label;            /* --label, where it was guessed */
    const char *shard;               /* --like; NULL: not given */
    struct dpt_names names;          /* the model's classes, or those that were found */
    size_t longest;                  /* name, in bytes */
    bool given;                      /* the names are the model's, or those of --like */
    bool named;                      /* labels are names, also where they are numbers */
    bool regression;                 /* labels are targets */
    bool whole;                      /* all are whole numbers from 0 on */
    double largest;                  /* label that is a number */
    char *first_number, *first_word; /* where the first of each kind is, and what; NULL: none */
};

/* Text that is no other kind's: so asked last. */
static bool is(const uint8_t *head, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (head[i] < ' ' && head[i] != '\t' && head[i] != '\n' && head[i] != '\r')
            return false;
    return n > 0;
}

/* --- cells ------------------------------------------------------------------------------------ */

static const struct dpt_csv_cell *cell_at(const struct state *state, size_t column)
{
    return &state->table.csv.cells[column];
}

static enum dpt_status refuse(const struct state *state, size_t column, struct dpt_error *err,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

/* What is wrong with a cell: the place, its text, and the rest of the sentence. */
static enum dpt_status refuse(const struct state *state, size_t column, struct dpt_error *err,
                              const char *format, ...)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN], what[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is %s",
                    dpt_csv_where(&state->table, column, where),
                    dpt_csv_shown(cell_at(state, column)->text, shown), what);
}

/* A cell that had to be a number and is none. */
static enum dpt_status no_number(const struct state *state, size_t column, enum dpt_csv_kind kind,
                                 struct dpt_error *err)
{
    char where[DPT_CSV_WHERE];

    if (cell_at(state, column)->text[0] == '\0')
        return dpt_fail(err, DPT_BAD_DATA, "%s: is empty: a value is missing",
                        dpt_csv_where(&state->table, column, where));
    if (kind == DPT_CSV_TEXT)
        return refuse(state, column, err, "not a number%s",
                      state->row == 0 && state->table.names == NULL
                          ? "; are these the names of the columns (--header yes)?"
                          : "");
    return refuse(state, column, err, kind == DPT_CSV_MISSING ? "a missing value" : "not finite");
}

static enum dpt_status number_in(const struct state *state, size_t column, double *value,
                                 struct dpt_error *err)
{
    const enum dpt_csv_kind kind = dpt_csv_number(cell_at(state, column)->text, value);

    if (kind != DPT_CSV_NUMBER)
        return no_number(state, column, kind, err);
    return isfinite((float)*value) ? DPT_OK
                                   : refuse(state, column, err, "too large for a 32-bit float");
}

/* --- names of classes ------------------------------------------------------------------------- */

/* A cell's text as a name. */
static struct dpt_name name_of(const char *text)
{
    struct dpt_name name = {.text = text};

    name.is_number = dpt_csv_number(text, &name.value) == DPT_CSV_NUMBER;
    return name;
}

/* Those that the model, or the shard of --like, gives its classes. */
static enum dpt_status take_names(struct state *state, const struct dpt_source_model *model,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < model->n_classes; i++) {
        struct dpt_name name = name_of(model->classes[i]);

        name.class = (int32_t)i;
        DPT_TRY(dpt_names_add(&state->names, name, err));
    }
    state->given = model->n_classes > 0;
out:
    return status;
}

/* --- a first reading: what the labels are ----------------------------------------------------- */

static enum dpt_status find_name(struct state *state, size_t column, struct dpt_error *err)
{
    const struct dpt_csv_cell *cell = cell_at(state, column);
    struct dpt_name name = name_of(cell->text);

    if (dpt_names_find(&state->names, &name) != NULL)
        return DPT_OK;
    if (state->given)
        return refuse(state, column, err, "no class of %s", state->shard);
    if (cell->length > state->longest)
        state->longest = cell->length;
    if ((state->names.n + 1) * state->longest > DPT_CLASS_NAME_BYTES)
        return refuse(state, column, err,
                      "label no. %zu that differs from all before: too many for names of classes; "
                      "is this the column of the labels?",
                      state->names.n + 1);
    name.text = dpt_region_strndup(&state->table.region, cell->text, cell->length);
    return dpt_names_add(&state->names, name, err);
}

static enum dpt_status remember(struct state *state, size_t column, char **first,
                                struct dpt_error *err)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];

    if (*first != NULL)
        return DPT_OK;
    *first = dpt_region_printf(&state->table.region, "%s: '%s'",
                               dpt_csv_where(&state->table, column, where),
                               dpt_csv_shown(cell_at(state, column)->text, shown));
    return *first != NULL ? DPT_OK : dpt_fail_memory(err, "a message", sizeof where);
}

static enum dpt_status scan_label(struct state *state, size_t column, struct dpt_error *err)
{
    const struct dpt_csv_cell *cell = cell_at(state, column);
    enum dpt_status status = DPT_OK;
    double value;
    const enum dpt_csv_kind kind = dpt_csv_number(cell->text, &value);

    if (state->named && cell->length > 0) {
        DPT_TRY(find_name(state, column, err));
    } else if (kind == DPT_CSV_NUMBER) {
        state->whole = state->whole && value >= 0 && value == floor(value);
        state->largest = value > state->largest ? value : state->largest;
        DPT_TRY(remember(state, column, &state->first_number, err));
    } else if (kind == DPT_CSV_TEXT && !state->regression) {
        DPT_TRY(remember(state, column, &state->first_word, err));
        DPT_TRY(find_name(state, column, err));
    } else {
        DPT_TRY(no_number(state, column, kind, err));
    }
    if (state->first_number != NULL && state->first_word != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s is a number, but %s is none; --classes takes all as names of classes",
                         state->first_number, state->first_word));
out:
    return status;
}

/* Walks over all rows, and leaves the table in front of the first again. */
static enum dpt_status scan(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    struct dpt_log *log = s->spec->convert ? s->spec->log : NULL;
    double shown = 0;
    bool more;

    for (state->row = 0;; state->row++) {
        DPT_TRY(dpt_csv_table_next(&state->table, &more, err));
        if (!more)
            break;
        for (size_t i = 0; s->spec->convert && i < state->table.n_labels; i++)
            DPT_TRY(scan_label(state, state->table.labels[i], err));
        if (state->row % 1024 == 1023)
            dpt_log_live_count(log, &shown, "counting rows", state->row + 1, 0);
    }
    s->parts[0].samples = state->row;
out:
    dpt_csv_table_rewind(&state->table);
    state->row = 0;
    return status;
}

/* --- opening ---------------------------------------------------------------------------------- */

static enum dpt_status open_table(struct dpt_source *s, const char *label, struct dpt_error *err)
{
    struct state *state = s->state;
    const struct dpt_csv_spec spec = {
        .inputs = (const char *const *)s->paths,
        .n_inputs = s->n_paths,
        .label = label,
        .header = s->spec->option[DPT_SOURCE_HEADER],
        .stop = s->spec->stop,
    };

    dpt_csv_table_close(&state->table);
    return dpt_csv_table_open(&state->table, &spec, err);
}

/* Which columns hold labels, where nobody said it: as many as there are beyond what the model
 * takes, and these are the last. */
static enum dpt_status guess_labels(struct dpt_source *s, struct dpt_error *err)
{
    struct state *state = s->state;
    const size_t columns = state->table.columns;
    const int64_t takes = dpt_shape_size(&s->spec->model.shape);
    const int64_t labels = s->spec->classes ? 1 : s->spec->outputs;

    if (!s->spec->model.known || (int64_t)columns == takes)
        return DPT_OK;
    if ((int64_t)columns != takes + labels)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %zu columns; the model takes %lld, or %lld with the label%s in "
                        "the last; --label says which column holds labels",
                        s->paths[0], columns, (long long)takes, (long long)takes + labels,
                        labels == 1 ? "" : "s");
    for (int64_t i = labels; i > 0; i--)
        dpt_str_printf(&state->label, "%s-%lld", i < labels ? "," : "", (long long)i);
    if (state->label.failed)
        return dpt_fail_memory(err, "the label columns", (double)labels);
    return open_table(s, state->label.text, err);
}

static enum dpt_status open_to_predict(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const char *label = s->spec->option[DPT_SOURCE_LABEL];
    const size_t *labels = &state->table.n_labels;

    DPT_TRY(open_table(s, label == NULL || strcmp(label, "none") == 0 ? "" : label, err));
    if (label == NULL)
        DPT_TRY(guess_labels(s, err));
    s->layout.u8 = s->spec->model.u8;
    if (*labels > 0)
        s->info.truth = s->spec->classes ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    if (s->spec->classes && *labels > 1)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--label: names %zu columns; classes are one", *labels));
    state->largest = LABEL_MOST;
    DPT_TRY(take_names(state, &s->spec->model, err));
out:
    return status;
}

static enum dpt_status take_shape(struct dpt_source *s, struct dpt_error *err)
{
    const char *text = s->spec->option[DPT_SOURCE_SHAPE];
    const long long features = (long long)((const struct state *)s->state)->features;
    struct dpt_shape *d = &s->layout.shape;
    int end = 0;

    if (text == NULL)
        return DPT_OK;
    if (sscanf(text, "%6d,%6d,%6d%n", &d->c, &d->h, &d->w, &end) != 3 || text[end] != '\0' ||
        d->c < 1 || d->h < 1 || d->w < 1)
        return dpt_fail(err, DPT_USAGE,
                        "--shape %s: must be channels, height and width, as in 1,28,28", text);
    d->flat = false;
    if ((long long)d->c * d->h * d->w != features)
        return dpt_fail(err, DPT_USAGE,
                        "--shape %s: makes %lld values, %s has %lld columns besides the label",
                        text, (long long)d->c * d->h * d->w, s->paths[0], features);
    return DPT_OK;
}

/* The shard of --like says how rows are stored, too. */
static enum dpt_status take_like(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const struct dpt_source_model *like = &s->like;
    const char *const *option = s->spec->option;

    state->shard = option[DPT_SOURCE_LIKE];
    if (state->shard == NULL)
        return DPT_OK;
    if (s->layout.u8 || option[DPT_SOURCE_SHAPE] != NULL)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--like says how rows are stored; leave --u8 and --shape out"));
    DPT_TRY(dpt_source_model_of(&s->like, state->shard, !state->regression, &s->region, err));
    if (dpt_shape_size(&like->shape) != (int64_t)state->features)
        DPT_TRY(dpt_fail(
            err, DPT_BAD_DATA, "%s: has %zu columns beside the label, %s has %lld numbers a sample",
            s->paths[0], state->features, state->shard, (long long)dpt_shape_size(&like->shape)));
    s->layout.u8 = like->u8;
    if (!like->shape.flat)
        s->layout.shape = like->shape;
    DPT_TRY(take_names(state, like, err));
    state->named = state->given;
out:
    return status;
}

/* Says what the labels are, once all were seen. */
static enum dpt_status decide(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const char **names;

    if (s->parts[0].samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: has no row of data", s->paths[0]));
    s->info.truth = DPT_TRUTH_CLASS;
    if (state->regression || (!state->named && state->first_word == NULL && !state->whole)) {
        s->info.truth = DPT_TRUTH_VECTOR;
    } else if (state->given) {
        s->info.classes = (int64_t)s->like.n_classes;
        s->info.class_names = s->like.classes;
    } else if (state->names.n > 0) {
        DPT_TRY(dpt_names_number(&state->names, &s->region, &names, err));
        state->named = true;
        s->info.classes = (int64_t)state->names.n;
        s->info.class_names = names;
    } else if (state->largest > LABEL_MOST) {
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: the largest label is %.0f: too large for the number of a class; "
                         "--classes takes labels as names, --regression as targets",
                         s->paths[0], state->largest));
    } else {
        s->info.classes = (int64_t)state->largest + 1;
    }
out:
    return status;
}

static enum dpt_status open_to_convert(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const char *const *option = s->spec->option, *label = option[DPT_SOURCE_LABEL];

    state->named = option[DPT_SOURCE_CLASSES] != NULL;
    state->regression = option[DPT_SOURCE_REGRESSION] != NULL;
    state->whole = true;
    s->layout.u8 = option[DPT_SOURCE_U8] != NULL;
    if (state->named && state->regression)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--classes and --regression exclude each other"));
    if (label != NULL && label[0] == '\0')
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--label: which column? a name or a number"));
    DPT_TRY(open_table(s, label, err));
    if (state->table.n_labels > 1 && state->named)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--classes takes one label column, --label names %zu",
                         state->table.n_labels));
    state->regression = state->regression || state->table.n_labels > 1;
out:
    return status;
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool convert = s->spec->convert;
    struct state *state = s->state;

    s->n_parts = 1;
    DPT_TRY((convert ? open_to_convert : open_to_predict)(s, err));
    state->features = state->table.columns - state->table.n_labels;
    s->layout.shape = (struct dpt_shape){(int32_t)state->features, 1, 1, true};
    if (convert) {
        DPT_TRY(take_shape(s, err));
        DPT_TRY(take_like(s, err));
    }
    DPT_TRY(scan(s, err));
    if (convert)
        DPT_TRY(decide(s, err));
    s->info.width = s->info.truth == DPT_TRUTH_VECTOR ? (int32_t)state->table.n_labels : 0;
out:
    return status;
}

static void close_source(void *arg)
{
    struct state *state = arg;

    dpt_csv_table_close(&state->table);
    dpt_str_release(&state->label);
    dpt_names_release(&state->names);
}

/* --- rows ------------------------------------------------------------------------------------- */

static enum dpt_status changed(const struct dpt_source *s, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", s->paths[0]);
}

/* The class that a cell names, else its number. */
static enum dpt_status class_in(const struct dpt_source *s, size_t column, int32_t *class,
                                struct dpt_error *err)
{
    const struct state *state = s->state;
    const struct dpt_name name = name_of(cell_at(state, column)->text);
    const struct dpt_name *known = dpt_names_find(&state->names, &name);

    if (known != NULL)
        *class = known->class;
    else if (!state->named && name.is_number && name.value >= 0 && name.value <= state->largest &&
             name.value == floor(name.value))
        *class = (int32_t)name.value;
    else if (s->spec->convert)
        return changed(s, err);
    else
        return refuse(state, column, err,
                      state->given
                          ? "none of the classes in the job's training data"
                          : "no number of a class, and the job's training data, which could name "
                            "the classes, do not");
    return DPT_OK;
}

static enum dpt_status take_features(const struct dpt_source *s, uint8_t *stored,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct state *state = s->state;
    float *floats = (float *)(void *)stored;
    double value;
    size_t at = 0;

    for (size_t i = 0; i < state->table.columns; i++) {
        if (state->table.is_label[i])
            continue;
        DPT_TRY(number_in(state, i, &value, err));
        if (s->layout.u8 && (value < 0 || value > 255 || value != floor(value)))
            DPT_TRY(refuse(state, i, err, "no whole number from 0 to 255, as %s",
                           s->spec->option[DPT_SOURCE_U8] != NULL ? "--u8 needs"
                                                                  : "in the training data"));
        if (s->layout.u8)
            stored[at] = (uint8_t)value;
        else
            floats[at] = (float)value;
        at++;
    }
out:
    return status;
}

/* Makes `row` the one that the table gives next. */
static enum dpt_status seek(struct dpt_source *s, int64_t row, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    bool more = true;

    if (row < state->row) {
        dpt_csv_table_rewind(&state->table);
        state->row = 0;
    }
    for (; more && state->row < row; state->row++)
        DPT_TRY(dpt_csv_table_next(&state->table, &more, err));
out:
    return status;
}

static enum dpt_status read_rows(struct dpt_source *s, const struct dpt_source_rows *rows,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    const size_t labels = state->table.n_labels;
    double value;
    bool more;

    DPT_TRY(seek(s, rows->row, err));
    for (int64_t i = 0; i < rows->n; i++, state->row++) {
        DPT_TRY(dpt_csv_table_next(&state->table, &more, err));
        if (!more)
            DPT_TRY(changed(s, err));
        DPT_TRY(take_features(s, rows->stored + (size_t)i * s->layout.stride, err));
        if (rows->classes != NULL)
            DPT_TRY(class_in(s, state->table.labels[0], &rows->classes[i], err));
        for (size_t k = 0; rows->targets != NULL && k < labels; k++) {
            DPT_TRY(number_in(state, state->table.labels[k], &value, err));
            rows->targets[(size_t)i * labels + k] = (float)value;
        }
    }
    if (state->row == s->parts[rows->part].samples) {
        DPT_TRY(dpt_csv_table_next(&state->table, &more, err));
        if (more)
            DPT_TRY(changed(s, err));
    }
out:
    return status;
}

const struct dpt_source_format dpt_source_csv = {
    .name = "csv",
    .help = "comma-separated text",
    .inputs = "FILE...",
    .summary = "comma-separated text (RFC 4180), gzipped or not: features and labels in columns",
    .details =
        "Features become float32 [N,D], or [N,C,H,W] with --shape, or uint8 with --u8. "
        "Labels that are whole numbers "
        "from 0 on are classes; words become classes in sorted order, their names an "
        "attribute of /labels; other "
        "numbers, several label columns and --regression make targets [N,K]. A test set goes "
        "with --like TRAINSHARD, so that its classes have the same numbers.",
    .options = 1u << DPT_SOURCE_LIKE | 1u << DPT_SOURCE_LABEL | 1u << DPT_SOURCE_HEADER |
               1u << DPT_SOURCE_CLASSES | 1u << DPT_SOURCE_REGRESSION | 1u << DPT_SOURCE_SHAPE |
               1u << DPT_SOURCE_U8,
    .is = is,
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_rows,
};
