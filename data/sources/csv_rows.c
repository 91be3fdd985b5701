/* Cells of a CSV source's row, what is wrong with them, and walks over all rows. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "data/sources/csv_state.h"

enum dpt_status dpt_csv_refuse(const struct dpt_csv_state *state, size_t column,
                               struct dpt_error *err, const char *format, ...)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN], what[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return dpt_fail(err, DPT_BAD_DATA, "%s: '%s' is %s",
                    dpt_csv_where(&state->table, column, where),
                    dpt_csv_shown(dpt_csv_cell_at(state, column)->text, shown), what);
}

enum dpt_status dpt_csv_place(struct dpt_csv_state *state, size_t column, const char **first,
                              struct dpt_error *err)
{
    char where[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN];

    if (*first == NULL)
        *first = dpt_region_printf(&state->table.region, "%s: '%s'",
                                   dpt_csv_where(&state->table, column, where),
                                   dpt_csv_shown(dpt_csv_cell_at(state, column)->text, shown));
    return *first != NULL ? DPT_OK : dpt_fail_memory(err, "a message", DPT_CSV_WHERE);
}

const char *dpt_csv_other_marks(const struct dpt_csv_state *state, const char *text)
{
    const struct dpt_csv_spec *spec = &state->table.spec;
    const bool point = spec->decimal == 0, groups = spec->thousands != 0;
    double value;

    if (groups && strchr(text, spec->thousands) != NULL && strpbrk(text, "0123456789") != NULL)
        return "; the --thousands mark separates groups of three digits";
    if (point && !groups && dpt_csv_number_in(text, '.', ',', &value) == DPT_CSV_NUMBER)
        return dpt_csv_number_in(text, ',', 0, &value) == DPT_CSV_NUMBER
                   ? "; --decimal , or --thousands , reads it as one"
                   : "; --thousands , reads it as one";
    if (point && dpt_csv_number_in(text, ',', 0, &value) == DPT_CSV_NUMBER)
        return "; --decimal , reads it as one";
    if (!groups && dpt_csv_number_in(text, ',', '.', &value) == DPT_CSV_NUMBER)
        return point ? "; --decimal , --thousands . reads it as one"
                     : "; --thousands . reads it as one";
    if (!groups &&
        dpt_csv_number_in(text, (char)(point ? '.' : spec->decimal), ' ', &value) == DPT_CSV_NUMBER)
        return "; --thousands ' ' reads it as one";
    if (point && !groups && dpt_csv_number_in(text, ',', ' ', &value) == DPT_CSV_NUMBER)
        return "; --decimal , --thousands ' ' reads it as one";
    return "";
}

/* What would make a column of words one of numbers, or none. */
static const char *cure(const struct dpt_csv_state *state, size_t column)
{
    if (state->table.hint[0] != '\0')
        return state->table.hint;
    if (state->row == 0 && state->table.names == NULL)
        return "; if these are the names of the columns, give --header yes";
    return dpt_csv_other_marks(state, dpt_csv_cell_at(state, column)->text);
}

enum dpt_status dpt_csv_no_number(const struct dpt_csv_state *state, size_t column,
                                  enum dpt_csv_kind kind, struct dpt_error *err)
{
    const char *text = dpt_csv_cell_at(state, column)->text;
    const enum dpt_column_role role = state->table.role[column];
    const bool fillable =
        role != DPT_COLUMN_LABEL && role != DPT_COLUMN_WEIGHT && !state->impute && !state->known;
    const char *fills =
        role == DPT_COLUMN_LABEL && state->converts ? "; --drop-missing-label leaves such rows out"
        : !fillable                                 ? ""
        : role == DPT_COLUMN_CATEGORY ? "; with --impute median it counts as none of the categories"
                                      : "; --impute median fills such cells";
    const char *what = kind == DPT_CSV_MISSING ? "a missing value" : "not finite";
    char where[DPT_CSV_WHERE];

    if (text[0] == '\0')
        return dpt_fail(err, DPT_BAD_DATA, "%s: is empty: a value is missing%s",
                        dpt_csv_where(&state->table, column, where), fills);
    if (dpt_columns_is_missing(&state->columns, text))
        return dpt_csv_refuse(state, column, err, "a missing value%s", fills);
    if (kind == DPT_CSV_TEXT)
        return dpt_csv_refuse(state, column, err, "not a number%s", cure(state, column));
    if (role == DPT_COLUMN_LABEL)
        return dpt_csv_refuse(state, column, err, "%s%s", what,
                              kind == DPT_CSV_MISSING || strcasecmp(text, "nan") == 0 ? fills : "");
    return dpt_csv_refuse(state, column, err, "%s%s%s%s", what, fillable ? "; --missing " : "",
                          fillable ? text : "", fillable ? " fills such cells" : "");
}

/* A number of the row that a float can hold. */
static enum dpt_status number_at(const struct dpt_csv_state *state, size_t column, double *value,
                                 struct dpt_error *err)
{
    const enum dpt_csv_kind kind =
        dpt_csv_table_number(&state->table, dpt_csv_cell_at(state, column)->text, value);

    if (kind != DPT_CSV_NUMBER)
        return dpt_csv_no_number(state, column, kind, err);
    return isfinite((float)*value)
               ? DPT_OK
               : dpt_csv_refuse(state, column, err, "too large for a 32-bit float");
}

/* The number, 0 or 1, of a cell of a column of two words. */
static enum dpt_status word_at(const struct dpt_csv_state *state, size_t at,
                               const struct dpt_column *column, double *value,
                               struct dpt_error *err)
{
    const char *text = dpt_csv_cell_at(state, at)->text;
    double ignored;

    if (dpt_column_take_word(column, text, value))
        return DPT_OK;
    if (dpt_csv_number(text, &ignored) == DPT_CSV_MISSING)
        return dpt_csv_no_number(state, at, DPT_CSV_MISSING, err);
    return dpt_csv_refuse(state, at, err, "neither %s nor %s, as in the training data",
                          column->texts[0], column->texts[1]);
}

enum dpt_status dpt_csv_no_date(const struct dpt_csv_state *state, size_t k, bool ambiguous,
                                struct dpt_error *err)
{
    const size_t at = state->table.features[k];
    const enum dpt_date_order order = state->known ? state->inputs[k]->order : state->order;

    if (ambiguous)
        return dpt_csv_refuse(state, at, err,
                              "one of two dates: the training data had none that are written so");
    if (strcmp(dpt_csv_cell_at(state, at)->text, "NaT") == 0 && !state->known)
        return dpt_csv_refuse(state, at, err, "no date; --missing NaT fills such cells");
    return dpt_csv_refuse(state, at, err, "not a date, as 2024-03-01, %s or 2024-03-01 13:45",
                          order == DPT_DATE_MONTH_FIRST ? "03/01/2024" : "01.03.2024");
}

enum dpt_status dpt_csv_date_at(const struct dpt_csv_state *state, size_t k, double *seconds,
                                struct dpt_error *err)
{
    const char *text = dpt_csv_cell_at(state, state->table.features[k])->text;
    struct dpt_date date;

    if (!dpt_date_read(text, state->inputs[k]->order, &date) || date.ambiguous)
        return dpt_csv_no_date(state, k, date.ambiguous, err);
    *seconds = date.seconds;
    return DPT_OK;
}

enum dpt_status dpt_csv_input_at(const struct dpt_csv_state *state, size_t k, double *value,
                                 struct dpt_error *err)
{
    const struct dpt_column *column = state->inputs[k];
    const size_t at = state->table.features[k];

    if (column->role == DPT_COLUMN_DATE)
        return dpt_csv_date_at(state, k, value, err);
    return column->values.n == 0 ? number_at(state, at, value, err)
                                 : word_at(state, at, column, value, err);
}

enum dpt_status dpt_csv_target_at(const struct dpt_csv_state *state, size_t k, float *target,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_column *column = state->targets[k];
    double value;

    if (column != NULL && column->values.n == 2) {
        DPT_TRY(word_at(state, state->table.labels[k], column, &value, err));
        *target = (float)value;
        return DPT_OK;
    }
    DPT_TRY(number_at(state, state->table.labels[k], &value, err));
    *target = (float)(value - (column != NULL ? column->offset : 0));
out:
    return status;
}

enum dpt_status dpt_csv_weight_at(const struct dpt_csv_state *state, float *weight,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t at = state->table.weight;
    double value;

    if (dpt_csv_is_missing(state, dpt_csv_cell_at(state, at)))
        DPT_TRY(dpt_csv_no_number(state, at, DPT_CSV_MISSING, err));
    DPT_TRY(number_at(state, at, &value, err));
    if (value < 0)
        DPT_TRY(dpt_csv_refuse(state, at, err, "below 0: no weight"));
    *weight = (float)value;
out:
    return status;
}

/* Whether a label holds no value, as --drop-missing-label means it. --classes takes any word for a
 * class; a number that --missing lists, as the 0 of features, may be a class's all the same. */
static bool is_no_label(const struct dpt_csv_state *state, const struct dpt_csv_cell *cell)
{
    const struct dpt_csv_labels *labels = &state->labels;
    double value;
    const enum dpt_csv_kind kind = dpt_csv_table_number(&state->table, cell->text, &value);

    if (dpt_csv_is_missing(state, cell))
        return kind != DPT_CSV_NUMBER || labels->regression || value < 0 || value != floor(value);
    return !labels->named && (kind == DPT_CSV_MISSING || strcasecmp(cell->text, "nan") == 0);
}

static bool lacks_label(const struct dpt_csv_state *state)
{
    for (size_t k = 0; k < state->table.n_labels; k++)
        if (is_no_label(state, dpt_csv_cell_at(state, state->table.labels[k])))
            return true;
    return false;
}

enum dpt_status dpt_csv_next_row(struct dpt_csv_state *state, bool *more, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_csv_table_next(&state->table, more, err));
    while (*more && state->drops && lacks_label(state)) {
        state->dropped++;
        DPT_TRY(dpt_csv_table_next(&state->table, more, err));
    }
out:
    return status;
}

enum dpt_status dpt_csv_walk(struct dpt_source *s, const char *what, dpt_csv_visit *visit,
                             void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_log *log = s->spec->convert ? s->spec->log : NULL;
    double shown = 0;
    bool more;

    dpt_csv_table_rewind(&state->table);
    state->table.comments = state->dropped = 0;
    for (state->row = 0;; state->row++) {
        DPT_TRY(dpt_csv_next_row(state, &more, err));
        if (!more)
            break;
        DPT_TRY(visit(s, arg, err));
        if (what != NULL && state->row % 1024 == 1023)
            dpt_log_live_count(log, &shown, what, state->row + 1, 0);
    }
    s->parts[0].samples = state->row;
out:
    dpt_csv_table_rewind(&state->table);
    state->row = 0;
    return status;
}
