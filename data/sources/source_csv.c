/*
 * CSV files as samples to predict. Rows are counted first; then each rank walks over all rows and
 * takes its own, so that numbers, the dear part, are read once.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/str.h"
#include "data/sources/source_type.h"
#include "data/tables/csv_table.h"

struct state {
    struct dpt_csv_table table;
    bool opened;
    struct dpt_csv_cursor cursor;
    int64_t row; /* that the cursor gives next */
    struct dpt_str label;
    size_t features;
};

/* Text that is no other kind's: so asked last. */
static bool is(const uint8_t *head, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (head[i] < ' ' && head[i] != '\t' && head[i] != '\n' && head[i] != '\r')
            return false;
    return n > 0;
}

static enum dpt_status open_table(struct dpt_source *s, const char *label, struct dpt_error *err)
{
    struct state *state = s->state;

    if (state->opened)
        dpt_csv_table_close(&state->table);
    s->job.option[DPT_CONVERT_LABEL] = label;
    state->opened = true;
    return dpt_csv_table_open(&state->table, &s->job, err);
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
                        s->paths[0], columns, (long long)takes, (long long)(takes + labels),
                        labels == 1 ? "" : "s");
    for (int64_t i = labels; i > 0; i--)
        dpt_str_printf(&state->label, "%s-%lld", i < labels ? "," : "", (long long)i);
    if (state->label.failed)
        return dpt_fail_memory(err, "the label columns", (double)labels);
    return open_table(s, state->label.text, err);
}

static enum dpt_status count_row(void *arg, const struct dpt_csv *row, struct dpt_error *err)
{
    struct dpt_source *s = arg;

    (void)row;
    (void)err;
    s->parts[0].samples++;
    return DPT_OK;
}

static enum dpt_status open_source(struct dpt_source *s, int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = calloc(1, sizeof *state);
    const char *label = s->spec->label;

    (void)rank;
    (void)ranks;
    s->state = state;
    if (state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the inputs", sizeof *state));
    DPT_TRY(dpt_source_parts(s, 1, err));
    DPT_TRY(open_table(s, label == NULL || strcmp(label, "none") == 0 ? "" : label, err));
    if (label == NULL)
        DPT_TRY(guess_labels(s, err));
    state->cursor.table = &state->table;
    state->features = state->table.columns - state->table.n_labels;
    s->form.shape = (struct dpt_shape){(int32_t)state->features, 1, 1, true};
    s->form.u8 = s->spec->model.typed && s->spec->model.u8;
    if (state->table.n_labels > 0)
        s->info.truth = s->spec->classes ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR;
    s->info.width = s->info.truth == DPT_TRUTH_VECTOR ? (int32_t)state->table.n_labels : 0;
    if (s->spec->classes && state->table.n_labels > 1)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--label: names %zu columns; classes are one",
                         state->table.n_labels));
    DPT_TRY(dpt_csv_table_walk(&state->table, count_row, s, err));
out:
    return status;
}

static void close_source(struct dpt_source *s)
{
    struct state *state = s->state;

    dpt_csv_cursor_close(&state->cursor);
    if (state->opened)
        dpt_csv_table_close(&state->table);
    dpt_str_release(&state->label);
    free(state);
}

static enum dpt_status number_in(const struct state *state, size_t column, double *value,
                                 struct dpt_error *err)
{
    const struct dpt_csv *row = &state->cursor.csv;
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];

    if (dpt_csv_number(&row->cells[column], state->table.c_locale, value) == DPT_CSV_NUMBER &&
        isfinite((float)*value))
        return DPT_OK;
    dpt_csv_where(&state->table, row, column, where);
    if (row->cells[column].text[0] == '\0')
        return dpt_fail(err, DPT_BAD_DATA, "%s: is empty: a value is missing", where);
    return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is no finite number", where,
                    dpt_csv_shown(row->cells[column].text, shown));
}

/* The class that a cell names: one of the model's, else its number. */
static enum dpt_status class_in(const struct dpt_source *s, size_t column, int32_t *class,
                                struct dpt_error *err)
{
    const struct state *state = s->state;
    const struct dpt_source_model *model = &s->spec->model;
    const struct dpt_csv_cell *cell = &state->cursor.csv.cells[column];
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];
    double value;

    for (size_t i = 0; i < model->n_classes; i++)
        if (strcmp(model->classes[i], cell->text) == 0) {
            *class = (int32_t)i;
            return DPT_OK;
        }
    if (dpt_csv_number(cell, state->table.c_locale, &value) == DPT_CSV_NUMBER && value >= 0 &&
        value < INT32_MAX && value == floor(value)) {
        *class = (int32_t)value;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is %s",
                    dpt_csv_where(&state->table, &state->cursor.csv, column, where),
                    dpt_csv_shown(cell->text, shown),
                    model->n_classes > 0
                        ? "none of the classes in the job's training data"
                        : "no number of a class, and the job's training data, which could name "
                          "the classes, do not");
}

static enum dpt_status take_features(const struct dpt_source *s, uint8_t *stored,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct state *state = s->state;
    float *floats = (float *)(void *)stored;
    char where[DPT_CSV_WHERE];
    double value;
    size_t at = 0;

    for (size_t i = 0; i < state->table.columns; i++) {
        if (state->table.is_label[i])
            continue;
        DPT_TRY(number_in(state, i, &value, err));
        if (s->form.u8 && (value < 0 || value > 255 || value != floor(value)))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: is no whole number from 0 to 255, as in the training data",
                             dpt_csv_where(&state->table, &state->cursor.csv, i, where)));
        if (s->form.u8)
            stored[at] = (uint8_t)value;
        else
            floats[at] = (float)value;
        at++;
    }
out:
    return status;
}

/* The cursor on the row in front of `row`. */
static enum dpt_status seek(struct dpt_source *s, int64_t row, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    bool more = true;

    if (row < state->row) {
        dpt_csv_cursor_close(&state->cursor);
        state->row = 0;
    }
    for (; more && state->row < row; state->row++)
        DPT_TRY(dpt_csv_cursor_next(&state->cursor, &more, err));
out:
    return status;
}

static enum dpt_status read_rows(struct dpt_source *s, size_t part, int64_t row, int64_t n,
                                 uint8_t *stored, int32_t *classes, float *targets,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    double value;
    bool more;

    (void)part;
    DPT_TRY(seek(s, row, err));
    for (int64_t i = 0; i < n; i++, state->row++) {
        DPT_TRY(dpt_csv_cursor_next(&state->cursor, &more, err));
        if (!more)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", s->paths[0]));
        DPT_TRY(take_features(s, stored + (size_t)i * s->form.stride, err));
        if (classes != NULL)
            DPT_TRY(class_in(s, state->table.labels[0], &classes[i], err));
        for (size_t k = 0; targets != NULL && k < state->table.n_labels; k++) {
            DPT_TRY(number_in(state, state->table.labels[k], &value, err));
            targets[(size_t)i * state->table.n_labels + k] = (float)value;
        }
    }
out:
    return status;
}

const struct dpt_source_type dpt_source_csv = {
    .kind = DPT_SOURCE_CSV,
    .is = is,
    .open = open_source,
    .close = close_source,
    .read = read_rows,
};
