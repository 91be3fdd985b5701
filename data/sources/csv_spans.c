/*
 * Magnitudes and units of numbers.
 *
 * Columns whose numbers are far from 0 and close to each other, as time stamps: a float32 has 24
 * bits, so many of them would become one number. What is common to all of a column is subtracted
 * while they are doubles, and kept with the column (data/tables/columns.h).
 */
#include <string.h>

#include "data/sources/csv_state.h"

/* From here on a float32 does not hold each whole number. */
static const double whole_most = 1 << 24;
/* Numbers that are so many times as far from 0 as from each other keep 12 bits of 24. */
static const double far = 4096;

static double top_of(const struct dpt_csv_span *span)
{
    return fmax(fabs(span->low), fabs(span->high));
}

static bool needs_offset(const struct dpt_csv_span *span)
{
    const double width = span->high - span->low, top = top_of(span);

    return width > 0 && !span->exact && isfinite((float)top) &&
           (top > far * width || (top > whole_most && width <= top / 2));
}

/* Whether no further number can make it need an offset: each widens the span by as much at least as
 * it adds to the distance from 0. So most columns are looked at in a few rows only. */
static bool is_settled(const struct dpt_csv_span *span)
{
    const double width = span->high - span->low, top = top_of(span);

    return width > 0 && top <= far * width && top <= whole_most / 2;
}

static void take(struct dpt_csv_span *span, double value)
{
    if (span->n++ == 0) {
        span->low = span->high = value;
        span->exact = true;
    } else {
        span->low = fmin(span->low, value);
        span->high = fmax(span->high, value);
        span->merged += value != span->last && (float)value == (float)span->last;
    }
    span->exact = span->exact && (double)(float)value == value;
    span->last = value;
}

/* Lists a column, whose numbers may need an offset where they do not become bytes. */
static void list(struct dpt_csv_state *state, size_t column, bool bytes)
{
    state->units[state->n_units++].column = column;
    if (!bytes)
        state->spans[state->n_spans++].column = column;
}

enum dpt_status dpt_csv_spans_begin(struct dpt_source *s, struct dpt_error *err)
{
    struct dpt_csv_state *state = s->state;
    struct dpt_csv_table *t = &state->table;
    const size_t most = t->n_features + t->n_labels;

    if (!s->spec->convert || state->known)
        return DPT_OK;
    state->units = dpt_region_alloc(&t->region, most * sizeof *state->units);
    state->spans = dpt_region_alloc(&t->region, most * sizeof *state->spans);
    if (t->region.failed)
        return dpt_fail_memory(err, "the columns", (double)t->columns);
    for (size_t k = 0; k < t->n_features; k++)
        if (state->inputs[k]->role == DPT_COLUMN_NUMBER)
            list(state, t->features[k], s->layout.u8);
    for (size_t k = 0; k < t->n_labels; k++)
        list(state, t->labels[k], false);
    return DPT_OK;
}

/* Notes the unit of a cell; most have none, and are numbers by their first and last character. */
static enum dpt_status scan_unit(struct dpt_csv_state *state, struct dpt_csv_units *u,
                                 struct dpt_error *err)
{
    const struct dpt_csv_spec *spec = &state->table.spec;
    const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, u->column);
    const char *text = cell->text, *unit = NULL;
    const char first = text[0], last = cell->length > 0 ? text[cell->length - 1] : '0';
    const bool digits = last >= '0' && last <= '9';

    if (!digits || first > '9' || first < '+' || text[first == '-'] == '$')
        unit =
            dpt_csv_unit(text, (char)(spec->decimal == 0 ? '.' : spec->decimal), spec->thousands);
    u->without += unit == NULL && digits && cell->length > (first == '0');
    if (unit == NULL || unit == u->unit)
        return DPT_OK;
    if (u->unit != NULL)
        return dpt_csv_refuse(state, u->column, err, "in another unit than %s: a column needs one",
                              u->first);
    u->unit = unit;
    return dpt_csv_place(state, u->column, &u->first, err);
}

enum dpt_status dpt_csv_spans_scan(struct dpt_csv_state *state, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < state->n_units; i++)
        DPT_TRY(scan_unit(state, &state->units[i], err));
    for (size_t i = 0; i < state->n_spans; i++) {
        struct dpt_csv_span *span = &state->spans[i];
        const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, span->column);
        enum dpt_csv_kind kind;
        double value;

        if (dpt_csv_is_missing(state, cell))
            continue;
        kind = dpt_csv_table_number(&state->table, cell->text, &value);
        if (kind == DPT_CSV_NUMBER)
            take(span, value);
        if (kind == DPT_CSV_TEXT || (kind == DPT_CSV_NUMBER && is_settled(span)))
            state->spans[i--] = state->spans[--state->n_spans];
    }
out:
    return status;
}

static void tell(const struct dpt_source *s, const struct dpt_csv_span *span, bool offset)
{
    const struct dpt_csv_table *t = &((const struct dpt_csv_state *)s->state)->table;
    char column[DPT_CSV_WHERE], rows[32];

    if (s->spec->log == NULL)
        return;
    dpt_csv_column_text(t, span->column, column);
    if (offset)
        dpt_log_warn(s->spec->log,
                     "%s: %s: numbers from %.15g to %.15g are too close to each other "
                     "for float32: %.15g is subtracted from each, as predict will do",
                     s->paths[0], column, span->low, span->high, span->low);
    else
        dpt_log_warn(s->spec->log,
                     "%s: %s: float32 keeps 7 digits of numbers up to %.15g: %s "
                     "row%s differ%s from the row before no longer",
                     s->paths[0], column, top_of(span), dpt_group_digits(rows, span->merged),
                     span->merged > 1 ? "s" : "", span->merged > 1 ? "" : "s");
}

void dpt_csv_spans_end(struct dpt_source *s)
{
    struct dpt_csv_state *state = s->state;
    char digits[32];

    for (size_t i = 0; i < state->n_units && s->spec->log != NULL; i++) {
        const struct dpt_csv_units *u = &state->units[i];

        if (u->unit == NULL || u->unit[0] != '%')
            continue;
        if (u->without == 0)
            dpt_log_info(s->spec->log, "%s: percents are hundredths", u->first);
        else
            dpt_log_warn(s->spec->log,
                         "%s is in percent, which are hundredths, but %s number%s of its column %s "
                         "no unit: %s read as %s",
                         u->first, dpt_group_digits(digits, u->without), u->without > 1 ? "s" : "",
                         u->without > 1 ? "have" : "has", u->without > 1 ? "these are" : "it is",
                         u->without > 1 ? "they are" : "it is");
    }
    for (size_t i = 0; i < state->n_spans; i++) {
        const struct dpt_csv_span *span = &state->spans[i];
        const bool label = state->table.role[span->column] == DPT_COLUMN_LABEL;
        const bool offset = needs_offset(span);

        if ((label && s->info.truth != DPT_TRUTH_VECTOR) || (!offset && span->merged == 0))
            continue;
        if (offset) {
            state->columns.at[span->column].offset = span->low;
            state->kept = true;
        }
        tell(s, span, offset);
    }
}
