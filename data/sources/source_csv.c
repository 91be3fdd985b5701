/*
 * CSV files: features and labels in columns. Rows are counted first, and what is to become shards
 * is looked at for what its labels and columns are; then rows are read as they are wanted. So
 * memory is some rows, the names of the classes and of the rows, what divides the rows, and where
 * missing numbers are filled some columns, whatever the files' size. Each rank that predicts walks
 * over all rows and takes its own, so that numbers, the dear part, are read once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/sources/csv_state.h"

/* Text that is no other kind's: so asked last. */
static bool is(const uint8_t *head, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (head[i] < ' ' && head[i] != '\t' && head[i] != '\n' && head[i] != '\r')
            return false;
    return n > 0;
}

/* --- a first reading -------------------------------------------------------------------------- */

static enum dpt_status scan_row(struct dpt_source *s, void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (s->spec->convert)
        DPT_TRY(dpt_csv_labels_scan(s, arg, err));
    DPT_TRY(dpt_csv_columns_scan(s, err));
    DPT_TRY(dpt_csv_spans_scan(s->state, err));
    DPT_TRY(dpt_csv_divide_scan(s, arg, err));
out:
    return status;
}

/* --- opening ---------------------------------------------------------------------------------- */

static enum dpt_status open_table(struct dpt_source *s, const char *label, struct dpt_error *err)
{
    struct dpt_csv_state *state = s->state;
    const char *const *option = s->spec->option;
    const struct dpt_csv_spec spec = {
        .inputs = (const char *const *)s->paths,
        .n_inputs = s->n_paths,
        .asked = {[DPT_COLUMN_LABEL] = label,
                  [DPT_COLUMN_ID] = option[DPT_SOURCE_ID],
                  [DPT_COLUMN_DROPPED] = option[DPT_SOURCE_DROP],
                  [DPT_COLUMN_CATEGORY] = option[DPT_SOURCE_CATEGORIES],
                  [DPT_COLUMN_DATE] = option[DPT_SOURCE_DATES],
                  [DPT_COLUMN_WEIGHT] = option[DPT_SOURCE_WEIGHT],
                  [DPT_CSV_GROUP] = option[DPT_SOURCE_GROUP],
                  [DPT_CSV_TIME] = option[DPT_SOURCE_TIME],
                  [DPT_COLUMN_NUMBER] = option[DPT_SOURCE_COLUMNS]},
        .header = option[DPT_SOURCE_HEADER],
        .delimiter = state->columns.delimiter,
        .said = option[DPT_SOURCE_DELIMITER] != NULL,
        .decimal = state->columns.decimal,
        .thousands = state->columns.thousands,
        .known = state->known ? &state->columns : NULL,
        .by_name = s->spec->convert || state->known,
        .labels_only = s->spec->labels_only,
        .stop = s->spec->stop,
    };

    enum dpt_status status;

    dpt_csv_table_close(&state->table);
    status = dpt_csv_table_open(&state->table, &spec, err);
    state->columns.delimiter = state->table.spec.delimiter; /* as the file itself may say */
    return status;
}

/* Guesses the label columns if none were named: the last ones, as many as there are beyond what
 * the model takes. */
static enum dpt_status guess_labels(struct dpt_source *s, struct dpt_error *err)
{
    struct dpt_csv_state *state = s->state;
    const size_t columns = state->table.columns - (state->table.id < state->table.columns);
    const int64_t takes = dpt_shape_size(&s->spec->model.shape);
    const int64_t labels = s->spec->classes ? 1 : s->spec->outputs;

    if (!s->spec->model.known || (int64_t)columns == takes)
        return DPT_OK;
    if ((int64_t)columns != takes + labels)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: has %zu columns; the model takes %lld, or %lld with the label%s in the "
            "last; give the column of the labels by --label",
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
    struct dpt_csv_state *state = s->state;
    const char *label = s->spec->option[DPT_SOURCE_LABEL];
    const size_t *labels = &state->table.n_labels;

    DPT_TRY(dpt_csv_columns_begin(s, err));
    if (label != NULL && strcmp(label, "none") == 0)
        label = "";
    DPT_TRY(open_table(s, label == NULL && !state->known ? "" : label, err));
    if (label == NULL && !state->known)
        DPT_TRY(guess_labels(s, err));
    s->layout.u8 = s->spec->model.u8;
    if (*labels > 0)
        s->info.truth = s->spec->classes ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    if (s->spec->classes && *labels > 1)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--label: names %zu columns; classes are one", *labels));
    state->labels.largest = DPT_CSV_LABEL_MOST;
    DPT_TRY(dpt_csv_labels_take(&state->labels, &s->spec->model, err));
out:
    return status;
}

static enum dpt_status take_shape(struct dpt_source *s, struct dpt_error *err)
{
    const char *text = s->spec->option[DPT_SOURCE_SHAPE];
    struct dpt_shape *d = &s->layout.shape;
    const long long features = d->c;
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

/* The shard of --like says what classes there are, and where it knows its columns how these are
 * read. */
static enum dpt_status take_like(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_csv_labels *labels = &state->labels;
    const char *const *option = s->spec->option;

    labels->shard = option[DPT_SOURCE_LIKE];
    if (labels->shard == NULL)
        return DPT_OK;
    if (s->layout.u8 || option[DPT_SOURCE_SHAPE] != NULL)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--like decides how rows are stored; leave --u8 and --shape out"));
    DPT_TRY(dpt_source_model_of(&s->like, labels->shard, !labels->regression, &s->region, err));
    if (s->like.columns != NULL &&
        (option[DPT_SOURCE_DROP] != NULL || option[DPT_SOURCE_COLUMNS] != NULL ||
         option[DPT_SOURCE_CATEGORIES] != NULL || option[DPT_SOURCE_IMPUTE] != NULL ||
         option[DPT_SOURCE_DATES] != NULL || option[DPT_SOURCE_DAY_FIRST] != NULL ||
         option[DPT_SOURCE_INDICATOR] != NULL))
        DPT_TRY(
            dpt_fail(err, DPT_USAGE,
                     "--like decides what becomes of the columns; leave --drop, --columns, "
                     "--categories, --dates, --day-first, --impute and --missing-indicator out"));
    labels->regression = labels->regression || s->like.targets;
    s->layout.u8 = s->like.u8;
    DPT_TRY(dpt_csv_labels_take(labels, &s->like, err));
    labels->named = labels->given;
out:
    return status;
}

static enum dpt_status fit_like(struct dpt_source *s, struct dpt_error *err)
{
    const struct dpt_source_model *like = &s->like;
    const int32_t features = s->layout.shape.c;

    if (!like->known || s->spec->labels_only)
        return DPT_OK;
    if (dpt_shape_size(&like->shape) != features)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %d columns beside the label, %s has %lld numbers per sample",
                        s->paths[0], features, s->spec->option[DPT_SOURCE_LIKE],
                        (long long)dpt_shape_size(&like->shape));
    if (!like->shape.flat)
        s->layout.shape = like->shape;
    return DPT_OK;
}

static enum dpt_status open_to_convert(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_csv_labels *labels = &state->labels;
    const char *const *option = s->spec->option, *label = option[DPT_SOURCE_LABEL];

    labels->named = option[DPT_SOURCE_CLASSES] != NULL;
    labels->regression = option[DPT_SOURCE_REGRESSION] != NULL;
    labels->whole = true;
    state->converts = true;
    state->drops = option[DPT_SOURCE_DROP_MISSING_LABEL] != NULL;
    s->layout.u8 = option[DPT_SOURCE_U8] != NULL;
    DPT_TRY(dpt_source_check_labels(s, err));
    DPT_TRY(dpt_csv_divide_begin(s, err));
    if (label != NULL && label[0] == '\0')
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--label is empty: give a column's name or number"));
    DPT_TRY(take_like(s, err));
    DPT_TRY(dpt_csv_columns_begin(s, err));
    DPT_TRY(open_table(s, label, err));
    if (state->table.n_labels == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: lacks the label that %s was made with; --label names its column",
                         s->paths[0], labels->shard));
    if (s->spec->labels_only && label == NULL && !state->known && state->table.columns > 2)
        DPT_TRY(dpt_fail(
            err, DPT_USAGE,
            "%s: has %zu columns: give the column or columns of the labels by --label, that "
            "of the files' names by --id (default: the first)",
            s->paths[0], state->table.columns));
    if (state->table.n_labels > 1 && labels->named)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--classes takes one label column, --label names %zu",
                         state->table.n_labels));
    labels->regression = labels->regression || state->table.n_labels > 1;
    s->info.weighted = state->table.weight < state->table.columns;
out:
    return status;
}

static void tell_left_out(const struct dpt_source *s)
{
    const struct dpt_csv_state *state = s->state;
    const struct dpt_csv_table *t = &state->table;
    char digits[32];

    if (state->dropped > 0 && s->parts[0].samples > 0 && s->spec->log != NULL)
        dpt_log_info(s->spec->log, "%s: %s row%s without a label left out", s->paths[0],
                     dpt_group_digits(digits, state->dropped), state->dropped > 1 ? "s" : "");
    if (t->comments > 0 && s->spec->log != NULL)
        dpt_log_info(s->spec->log, "%s: %s comment line%s, which begin%s with #, left out",
                     s->paths[0], dpt_group_digits(digits, t->comments), t->comments > 1 ? "s" : "",
                     t->comments > 1 ? "" : "s");
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool convert = s->spec->convert;
    struct dpt_csv_state *state = s->state;

    s->n_parts = 1;
    DPT_TRY((convert ? open_to_convert : open_to_predict)(s, err));
    DPT_TRY(dpt_csv_columns_list(s, err));
    DPT_TRY(dpt_csv_walk(s, "counting rows", scan_row, NULL, err));
    tell_left_out(s);
    DPT_TRY(dpt_csv_divide_end(s, err));
    DPT_TRY(dpt_csv_columns_end(s, err));
    s->layout.shape = (struct dpt_shape){.h = 1, .w = 1, .flat = true};
    for (size_t k = 0; k < state->table.n_features; k++)
        s->layout.shape.c += (int32_t)dpt_column_width(state->inputs[k]);
    if (convert) {
        DPT_TRY(take_shape(s, err));
        DPT_TRY(fit_like(s, err));
        DPT_TRY(dpt_csv_labels_decide(s, err));
        dpt_csv_spans_end(s);
    }
    DPT_TRY(DPT_ALLOCATE(state->floats, dpt_shape_size(&s->layout.shape), "a row", err));
    s->info.width = s->info.truth == DPT_TRUTH_VECTOR ? (int32_t)state->table.n_labels : 0;
out:
    return status;
}

static void close_source(void *arg)
{
    struct dpt_csv_state *state = arg;

    dpt_csv_table_close(&state->table);
    dpt_columns_release(&state->columns);
    dpt_str_release(&state->label);
    dpt_str_release(&state->told);
    dpt_names_release(&state->labels.names);
    dpt_label_numbers_release(&state->labels.numbers);
    dpt_free(state->floats);
    free((void *)state->ids);
    free((void *)state->groups);
    free(state->times);
}

/* --- rows ------------------------------------------------------------------------------------- */

static enum dpt_status changed(const struct dpt_source *s, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", s->paths[0]);
}

/* A sample of bytes: all its features are whole numbers. */
static enum dpt_status narrow(const struct dpt_source *s, uint8_t *stored, struct dpt_error *err)
{
    const struct dpt_csv_state *state = s->state;
    const float *value = state->floats;

    for (size_t k = 0; k < state->table.n_features; k++)
        for (size_t i = 0; i < dpt_column_width(state->inputs[k]); i++, value++) {
            if (*value < 0 || *value > 255 || *value != floorf(*value))
                return dpt_csv_refuse(
                    state, state->table.features[k], err, "no whole number from 0 to 255, as %s",
                    s->spec->option[DPT_SOURCE_U8] != NULL ? "--u8 needs" : "in the training data");
            *stored++ = (uint8_t)*value;
        }
    return DPT_OK;
}

/* Makes `row` the one that the table gives next. */
static enum dpt_status seek(struct dpt_source *s, int64_t row, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    bool more = true;

    if (row < state->row) {
        dpt_csv_table_rewind(&state->table);
        state->row = 0;
    }
    for (; more && state->row < row; state->row++)
        DPT_TRY(dpt_csv_next_row(state, &more, err));
out:
    return status;
}

static enum dpt_status read_rows(struct dpt_source *s, const struct dpt_source_rows *rows,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    const size_t labels = state->table.n_labels;
    const bool u8 = s->layout.u8;
    bool more;

    DPT_TRY(seek(s, rows->row, err));
    for (int64_t i = 0; i < rows->n; i++, state->row++) {
        DPT_TRY(dpt_csv_next_row(state, &more, err));
        if (!more)
            DPT_TRY(changed(s, err));
        if (rows->stored != NULL) {
            uint8_t *stored = rows->stored + (size_t)i * s->layout.stride;

            status = dpt_csv_features(state, u8 ? state->floats : (float *)(void *)stored, err);
            if (status == DPT_OK && u8)
                status = narrow(s, stored, err);
            DPT_TRY(status != DPT_OK && s->spec->convert ? dpt_csv_tell_words(s, err) : status);
        }
        if (rows->classes != NULL)
            DPT_TRY(dpt_csv_class_at(s, state->table.labels[0], &rows->classes[i], err));
        for (size_t k = 0; rows->targets != NULL && k < labels; k++)
            DPT_TRY(dpt_csv_target_at(state, k, &rows->targets[(size_t)i * labels + k], err));
        if (rows->weights != NULL)
            DPT_TRY(dpt_csv_weight_at(state, &rows->weights[i], err));
    }
    if (state->row == s->parts[rows->part].samples) {
        DPT_TRY(dpt_csv_next_row(state, &more, err));
        if (more)
            DPT_TRY(changed(s, err));
    }
out:
    return status;
}

static const char *sample_name(const struct dpt_source *s, int64_t sample)
{
    const struct dpt_csv_state *state = s->state;

    return state->ids != NULL ? state->ids[sample] : NULL;
}

const struct dpt_source_format dpt_source_csv = {
    .name = "csv",
    .help = "comma-separated text",
    .inputs = "FILE...",
    .summary = "comma-separated text (RFC 4180), gzipped or not: features and labels in columns",
    .details = "Features become float32 [N,D], or [N,C,H,W] with --shape, or uint8 with --u8. "
               "Labels that are whole numbers are classes, those below 0 by their names, unless "
               "they are too many for their rows or leave out too many, as amounts do "
               "(--classes and --regression decide it); words become classes in sorted order, "
               "their names an attribute of /labels; other numbers, several label columns and "
               "--regression make targets [N,K], in which yes is 1 and no is 0. A feature of "
               "nothing but true and false, yes and no, y and n, t and f, or on and off is a "
               "number, 0 or 1. Numbers may have a unit, as $5 or 5%, which is 0.05; lines that "
               "begin with # and are not as long as the others are comments. With a header or "
               "one of the options for columns the shards keep in /columns what each column "
               "became, and so do checkpoints: predict finds columns by their names, of which "
               "no two may be alike. In a list of columns, a name that holds a comma stands in "
               "quotes: '\"price, EUR\",size'. A test set goes with --like TRAINSHARD, so that "
               "its columns and classes are the same.",
    .options = 1ull << DPT_SOURCE_LIKE | 1ull << DPT_SOURCE_LABEL | 1ull << DPT_SOURCE_HEADER |
               1ull << DPT_SOURCE_CLASSES | 1ull << DPT_SOURCE_REGRESSION |
               1ull << DPT_SOURCE_SHAPE | 1ull << DPT_SOURCE_U8 | 1ull << DPT_SOURCE_DELIMITER |
               1ull << DPT_SOURCE_DECIMAL | 1ull << DPT_SOURCE_THOUSANDS |
               1ull << DPT_SOURCE_MISSING | 1ull << DPT_SOURCE_IMPUTE | 1ull << DPT_SOURCE_DROP |
               1ull << DPT_SOURCE_COLUMNS | 1ull << DPT_SOURCE_ID | 1ull << DPT_SOURCE_CATEGORIES |
               1ull << DPT_SOURCE_DROP_MISSING_LABEL | 1ull << DPT_SOURCE_DATES |
               1ull << DPT_SOURCE_DAY_FIRST | 1ull << DPT_SOURCE_INDICATOR |
               1ull << DPT_SOURCE_WEIGHT | 1ull << DPT_SOURCE_GROUP | 1ull << DPT_SOURCE_TIME,
    .is = is,
    .state = sizeof(struct dpt_csv_state),
    .open = open_source,
    .close = close_source,
    .read = read_rows,
    .sample_name = sample_name,
    .fit = dpt_csv_fit,
};
