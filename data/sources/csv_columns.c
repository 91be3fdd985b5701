/* What the columns of a CSV file become: numbers, categories, names of rows. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "data/sources/csv_state.h"

/* --- what was said ---------------------------------------------------------------------------- */

/* One character, or a word for it. *mark: untouched where nothing was said. */
static enum dpt_status take_mark(const struct dpt_source *s, enum dpt_source_option option,
                                 char *mark, struct dpt_error *err)
{
    const char *text = s->spec->option[option];
    char plain;

    if (text == NULL)
        return DPT_OK;
    if (strcmp(text, "tab") == 0)
        text = "\t";
    /* A program's space between groups of digits, copied as it is: one for all kinds of spaces. */
    plain = option == DPT_SOURCE_THOUSANDS || strlen(text) == 1 ? dpt_csv_plain_mark(text) : '\0';
    if (plain == '\0' || strchr("\"\n\r", plain) != NULL)
        return dpt_fail(err, DPT_USAGE, "%s '%s': one character is needed, or the word tab",
                        dpt_source_option_names[option], text);
    *mark = plain;
    return DPT_OK;
}

static enum dpt_status take_missing(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    const char *impute = s->spec->option[DPT_SOURCE_IMPUTE];
    const char *list = s->spec->option[DPT_SOURCE_MISSING];
    struct dpt_csv csv = {0};
    bool more = list != NULL;

    if (impute != NULL && strcmp(impute, "median") != 0 && strcmp(impute, "mean") != 0 &&
        strcmp(impute, "refuse") != 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--impute %s: must be median, mean or refuse", impute));
    state->impute = impute != NULL ? strcmp(impute, "refuse") != 0 : list != NULL;
    state->mean = impute != NULL && strcmp(impute, "mean") == 0;
    state->indicate = s->spec->option[DPT_SOURCE_INDICATOR] != NULL;
    if (state->indicate && !state->impute)
        DPT_TRY(dpt_fail(
            err, DPT_USAGE,
            "--missing-indicator: nothing is filled; give --impute median, or --missing with "
            "the text of missing values"));
    if (list != NULL)
        DPT_TRY(dpt_csv_open_text(&csv, list, "--missing", err));
    while (more) {
        DPT_TRY(dpt_csv_next(&csv, &more, err));
        for (size_t i = 0; more && i < csv.n_cells; i++)
            if (csv.cells[i].length > 0 &&
                !dpt_columns_is_missing(&state->columns, csv.cells[i].text))
                DPT_TRY(dpt_columns_add_missing(&state->columns, csv.cells[i].text,
                                                csv.cells[i].length, err));
    }
out:
    dpt_csv_close(&csv);
    return status;
}

/* What stands between groups of digits can be nothing else. Commas may stand between columns, too:
 * such numbers are in quotes. */
static enum dpt_status check_thousands(const struct dpt_columns *c, struct dpt_error *err)
{
    const char mark = c->thousands, decimal = (char)(c->decimal == 0 ? '.' : c->decimal);

    if (mark == 0)
        return DPT_OK;
    if (isalnum((unsigned char)mark) || mark == '+' || mark == '-')
        return dpt_fail(err, DPT_USAGE, "--thousands %c: is part of a number itself", mark);
    if (mark == decimal)
        return dpt_fail(err, DPT_USAGE,
                        "--thousands %c: is the decimal mark, too; give --decimal %c", mark,
                        mark == ',' ? '.' : ',');
    if (mark == c->delimiter)
        return dpt_fail(err, DPT_USAGE,
                        "--thousands %s: separates columns, too; give another --delimiter",
                        mark == '\t' ? "tab" : (const char[]){mark, '\0'});
    return DPT_OK;
}

enum dpt_status dpt_csv_columns_begin(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_columns *columns = &state->columns;
    const struct dpt_source_model *from = s->spec->convert ? &s->like : &s->spec->model;

    if (from->columns != NULL) {
        DPT_TRY(dpt_columns_parse(columns, from->columns, from->columns_of, err));
        state->known = true;
    }
    DPT_TRY(take_mark(s, DPT_SOURCE_DELIMITER, &columns->delimiter, err));
    DPT_TRY(take_mark(s, DPT_SOURCE_DECIMAL, &columns->decimal, err));
    DPT_TRY(take_mark(s, DPT_SOURCE_THOUSANDS, &columns->thousands, err));
    if (columns->delimiter == ',')
        columns->delimiter = 0;
    if (columns->decimal == '.')
        columns->decimal = 0;
    /* Both a comma: numbers in quotes, as of programs that quote all cells. */
    if ((columns->delimiter == 0 ? ',' : columns->delimiter) ==
            (columns->decimal == 0 ? '.' : columns->decimal) &&
        columns->decimal != ',')
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "the decimal mark and the separator of columns are one character; give "
                         "--delimiter ';' or tab"));
    DPT_TRY(check_thousands(columns, err));
    DPT_TRY(take_missing(s, err));
    DPT_TRY(dpt_csv_dates_begin(s, err));
out:
    return status;
}

/* --- the columns of the table ----------------------------------------------------------------- */

/* Describes the columns of a file that nobody knows yet. */
static enum dpt_status describe(struct dpt_csv_state *state, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_csv_table *t = &state->table;
    struct dpt_column *column;
    char number[32];

    for (size_t i = 0; i < t->columns; i++) {
        snprintf(number, sizeof number, "%zu", i + 1);
        DPT_TRY(dpt_columns_add(&state->columns, t->names != NULL ? t->names[i] : number,
                                t->role[i], &column, err));
    }
out:
    return status;
}

/* What is known of the k-th label's column; NULL: nothing. */
static struct dpt_column *label_column(const struct dpt_csv_state *state, size_t k)
{
    const struct dpt_csv_table *t = &state->table;
    const struct dpt_columns *columns = &state->columns;

    if (!state->known)
        return t->labels[k] < columns->n ? &columns->at[t->labels[k]] : NULL;
    return k < columns->n_labels ? &columns->at[columns->labels[k]] : NULL;
}

enum dpt_status dpt_csv_columns_list(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_csv_table *t = &state->table;
    struct dpt_columns *columns = &state->columns;
    static const enum dpt_source_option said[] = {
        DPT_SOURCE_DELIMITER,  DPT_SOURCE_DECIMAL, DPT_SOURCE_THOUSANDS, DPT_SOURCE_MISSING,
        DPT_SOURCE_IMPUTE,     DPT_SOURCE_DROP,    DPT_SOURCE_COLUMNS,   DPT_SOURCE_ID,
        DPT_SOURCE_CATEGORIES, DPT_SOURCE_DATES,   DPT_SOURCE_WEIGHT};
    bool sorted = true; /* the labels are in the order of the columns */
    size_t n = 0;

    if (!state->known)
        DPT_TRY(describe(state, err));
    state->kept = t->names != NULL || state->known || columns->delimiter != 0;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        state->kept = state->kept || s->spec->option[said[i]] != NULL;
    /* An array of pointers. NOLINTNEXTLINE(bugprone-sizeof-expression) */
    state->inputs = dpt_region_alloc(&t->region, t->n_features * sizeof *state->inputs);
    /* NOLINTNEXTLINE(bugprone-sizeof-expression) */
    state->targets = dpt_region_alloc(&t->region, t->n_labels * sizeof *state->targets);
    state->met_targets = dpt_region_alloc(&t->region, t->n_labels * sizeof *state->met_targets);
    state->met = dpt_region_alloc(&t->region, t->n_features * sizeof *state->met);
    state->undecided = dpt_region_alloc(&t->region, t->n_features * sizeof *state->undecided);
    state->index = dpt_region_alloc(&t->region, t->columns * sizeof *state->index);
    if (t->region.failed)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)t->columns));
    /* Both are in one order: that of the file, or that of the known columns. */
    for (size_t i = 0; i < columns->n && n < t->n_features; i++)
        if (dpt_column_is_input(columns->at[i].role))
            state->inputs[n++] = &columns->at[i];
    for (size_t k = 0; k < t->n_labels; k++) {
        state->targets[k] = label_column(state, k);
        sorted = sorted && (k == 0 || t->labels[k] > t->labels[k - 1]);
    }
    for (size_t k = 0; !sorted && !state->known && k < t->n_labels; k++)
        state->targets[k]->place = k + 1;
    state->watched = state->impute;
    for (size_t k = 0; k < n; k++)
        state->watched = state->watched || state->inputs[k]->filled ||
                         state->inputs[k]->role != DPT_COLUMN_NUMBER;
    for (size_t k = 0; s->spec->convert && !state->known && k < n; k++)
        if (state->inputs[k]->role == DPT_COLUMN_NUMBER)
            state->undecided[state->n_undecided++] = k;
    for (size_t i = 0; s->spec->convert && t->names != NULL && i < t->columns; i++)
        if (t->role[i] == DPT_COLUMN_NUMBER &&
            (t->names[i][0] == '\0' || strncmp(t->names[i], "Unnamed:", 8) == 0))
            state->index[state->n_index++] = i;
    DPT_TRY(dpt_csv_spans_begin(s, err));
    if (t->id < t->columns) {
        s->info.id = dpt_region_strdup(&s->region, t->names != NULL ? t->names[t->id] : "id");
        if (s->info.id == NULL)
            DPT_TRY(dpt_fail_memory(err, "the columns", 1));
    }
out:
    return status;
}

/* --- a first reading -------------------------------------------------------------------------- */

static enum dpt_status keep_id(struct dpt_csv_state *state, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t row = (size_t)state->row;
    const char *text;

    DPT_GROW(state->ids, &state->ids_room, row + 1, "the names of the rows", err);
    text = dpt_region_strdup(&state->table.region, dpt_csv_cell_at(state, state->table.id)->text);
    if (text == NULL)
        DPT_TRY(dpt_fail_memory(err, "the names of the rows", (double)row));
    state->ids[row] = text;
out:
    return status;
}

/* A category: one of those that are known, or a new one. */
static enum dpt_status scan_category(struct dpt_csv_state *state, size_t k, struct dpt_error *err)
{
    const size_t at = state->table.features[k];
    struct dpt_column *column = state->inputs[k];
    struct dpt_csv_met *met = &state->met[k];
    struct dpt_name name = dpt_column_value(dpt_csv_cell_at(state, at)->text);

    if (dpt_names_find(&column->values, &name) != NULL)
        return DPT_OK;
    if (!state->known) {
        name.text = dpt_region_strdup(&state->columns.region, name.text);
        return dpt_names_add(&column->values, name, err);
    }
    met->unknown++;
    return dpt_csv_place(state, at, &met->first_unknown, err);
}

/* Whether an input continues as a column of two words. A cell that says that its value is missing
 * is none of them, whether --missing lists it or not. */
static bool scan_words(struct dpt_csv_state *state, size_t k)
{
    const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, state->table.features[k]);
    const dpt_column_words *words = dpt_column_words_of(cell->text);
    struct dpt_csv_met *met = &state->met[k];
    double value;

    if (words == NULL &&
        (dpt_csv_is_missing(state, cell) || dpt_csv_number(cell->text, &value) == DPT_CSV_MISSING))
        return true;
    if (words == NULL || (met->words != NULL && met->words != words)) {
        met->words = NULL;
        return false;
    }
    met->words = words;
    return true;
}

enum dpt_status dpt_csv_columns_scan(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    const struct dpt_csv_table *t = &state->table;
    double value;

    if (t->id < t->columns)
        DPT_TRY(keep_id(state, err));
    for (size_t k = 0; state->watched && k < t->n_features; k++) {
        const struct dpt_column *column = state->inputs[k];
        const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, t->features[k]);
        const bool category = column->role == DPT_COLUMN_CATEGORY;
        const bool date = column->role == DPT_COLUMN_DATE;
        const bool fills = state->known ? category || column->filled : state->impute;

        if ((category || date || fills) && dpt_csv_is_missing(state, cell)) {
            state->met[k].missing++;
            if (!fills)
                DPT_TRY(dpt_csv_no_number(state, t->features[k], DPT_CSV_MISSING, err));
        } else if (category) {
            DPT_TRY(scan_category(state, k, err));
        } else if (date) {
            DPT_TRY(dpt_csv_dates_scan(state, k, err));
        }
    }
    for (size_t i = 0; i < state->n_undecided; i++)
        if (!scan_words(state, state->undecided[i]))
            state->undecided[i--] = state->undecided[--state->n_undecided];
    for (size_t i = 0; i < state->n_index; i++) {
        const char *text = dpt_csv_cell_at(state, state->index[i])->text;

        if (dpt_csv_number(text, &value) != DPT_CSV_NUMBER || value < 0 || value != floor(value))
            state->index[i--] = state->index[--state->n_index];
    }
out:
    return status;
}

/* What is done with cells that training did not see. */
static void tell_met(const struct dpt_source *s)
{
    const struct dpt_csv_state *state = s->state;
    struct dpt_log *log = s->spec->log;
    char shown[DPT_CSV_SHOWN], digits[32], fill[DPT_DATE_TEXT];

    if (log == NULL)
        return;
    if (state->table.unknown != NULL)
        dpt_log_info(log, "%s: columns that were not in the training data are left out: %s",
                     s->paths[0], state->table.unknown);
    for (size_t k = 0; k < state->table.n_features; k++) {
        const struct dpt_column *column = state->inputs[k];
        const struct dpt_csv_met *met = &state->met[k];

        dpt_csv_shown(column->name, shown);
        if (met->unknown > 0)
            dpt_log_warn(log,
                         "%s is a category that the training data did not have: it counts as none "
                         "of '%s' (%s such cell%s)",
                         met->first_unknown, shown, dpt_group_digits(digits, met->unknown),
                         met->unknown > 1 ? "s" : "");
        if (met->missing > 0 && column->role == DPT_COLUMN_CATEGORY)
            dpt_log_info(log, "%s: %s missing in '%s': none of its categories", s->paths[0],
                         dpt_group_digits(digits, met->missing), shown);
        else if (met->missing > 0)
            dpt_log_info(log, "%s: %s missing in '%s': %s, as in training", s->paths[0],
                         dpt_group_digits(digits, met->missing), shown,
                         dpt_csv_fill_text(column, fill));
    }
}

/* Words that differ from row to row are no categories. */
static void warn_of_categories(const struct dpt_source *s, const struct dpt_column *column)
{
    enum { FEW = 20 };
    char shown[DPT_CSV_SHOWN], values[32], rows[32];

    if (s->spec->log == NULL || s->parts[0].samples < FEW ||
        (int64_t)column->values.n <= s->parts[0].samples / 2)
        return;
    dpt_log_warn(s->spec->log,
                 "%s: column '%s' has %s categories in %s rows, and each is a feature; --drop "
                 "leaves it out, --id keeps it as the names of the rows",
                 s->paths[0], dpt_csv_shown(column->name, shown),
                 dpt_group_digits(values, (long long)column->values.n),
                 dpt_group_digits(rows, s->parts[0].samples));
}

static void warn_index(const struct dpt_source *s)
{
    const struct dpt_csv_state *state = s->state;
    char shown[DPT_CSV_SHOWN];

    for (size_t i = 0; s->spec->log != NULL && i < state->n_index; i++) {
        const size_t at = state->index[i];

        dpt_log_warn(s->spec->log,
                     "%s: column %zu ('%s') numbers the rows, as the index that pandas writes: no "
                     "feature; --drop %zu leaves it out, --id %zu keeps it as their names",
                     s->paths[0], at + 1, dpt_csv_shown(state->table.names[at], shown), at + 1,
                     at + 1);
    }
}

enum dpt_status dpt_csv_keep_words(struct dpt_csv_state *state, struct dpt_column *column,
                                   const dpt_column_words *words, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_column_values_add(&column->values, *words, 2, err));
    DPT_TRY(dpt_names_number(&column->values, &state->columns.region, &column->texts, err));
    state->kept = true;
out:
    return status;
}

enum dpt_status dpt_csv_columns_end(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    char shown[DPT_CSV_SHOWN];

    if (state->known) {
        tell_met(s);
        return DPT_OK;
    }
    warn_index(s);
    for (size_t k = 0; k < state->table.n_features; k++) {
        struct dpt_column *column = state->inputs[k];

        if (state->met[k].words != NULL)
            DPT_TRY(dpt_csv_keep_words(state, column, state->met[k].words, err));
        if (column->role == DPT_COLUMN_DATE)
            DPT_TRY(dpt_csv_dates_end(state, k, err));
        column->indicator =
            state->indicate && column->role != DPT_COLUMN_CATEGORY && state->met[k].missing > 0;
        if (column->role != DPT_COLUMN_CATEGORY)
            continue;
        if (column->values.n == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: column '%s' holds no value; --drop it",
                             s->paths[0], dpt_csv_shown(column->name, shown)));
        warn_of_categories(s, column);
        DPT_TRY(dpt_names_number(&column->values, &state->columns.region, &column->texts, err));
    }
out:
    return status;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Writes the features of a category; gives how many there are. */
static size_t put_category(const struct dpt_csv_state *state, const struct dpt_column *column,
                           const struct dpt_csv_cell *cell, float *values)
{
    const struct dpt_name name = dpt_column_value(cell->text), *found = NULL;

    if (!dpt_csv_is_missing(state, cell))
        found = dpt_names_find(&column->values, &name);
    memset(values, 0, column->values.n * sizeof *values);
    if (found != NULL)
        values[found->class] = 1;
    return column->values.n;
}

/* Writes those of a number or a date. */
static size_t put_number(const struct dpt_column *column, double value, bool missing, float *values)
{
    size_t n = 0;

    if (column->role == DPT_COLUMN_NUMBER)
        values[n++] = (float)(value - column->offset);
    for (size_t i = 0; i < column->n_parts; i++) {
        dpt_date_part_write(column->parts[i], value, values + n);
        n += dpt_date_part_width(column->parts[i]);
    }
    if (column->indicator)
        values[n++] = missing;
    return n;
}

enum dpt_status dpt_csv_features(const struct dpt_csv_state *state, float *values,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t k = 0; k < state->table.n_features; k++) {
        const struct dpt_column *column = state->inputs[k];
        const size_t at = state->table.features[k];
        const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, at);
        bool missing = false;
        double value = 0;

        if (column->role == DPT_COLUMN_CATEGORY) {
            values += put_category(state, column, cell, values);
            continue;
        }
        if (column->filled || state->columns.n_missing > 0)
            missing = dpt_csv_is_missing(state, cell);
        if (missing && !column->filled)
            DPT_TRY(dpt_csv_no_number(state, at, DPT_CSV_MISSING, err));
        if (missing)
            value = column->fill;
        else
            DPT_TRY(dpt_csv_input_at(state, k, &value, err));
        values += put_number(column, value, missing, values);
    }
out:
    return status;
}
