/* Columns of dates in CSV files: how they are read, and what they become. */
#include <string.h>

#include "data/sources/csv_state.h"

enum dpt_status dpt_csv_dates_begin(struct dpt_source *s, struct dpt_error *err)
{
    const char *text = s->spec->option[DPT_SOURCE_DAY_FIRST];
    struct dpt_csv_state *state = s->state;

    if (text == NULL || strcmp(text, "auto") == 0)
        return DPT_OK;
    if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        return dpt_fail(err, DPT_USAGE, "--day-first %s: must be auto, yes or no", text);
    state->order = strcmp(text, "yes") == 0 ? DPT_DATE_DAY_FIRST : DPT_DATE_MONTH_FIRST;
    return DPT_OK;
}

enum dpt_status dpt_csv_dates_scan(struct dpt_csv_state *state, size_t k, struct dpt_error *err)
{
    const size_t at = state->table.features[k];
    struct dpt_csv_met *met = &state->met[k];
    struct dpt_date date;
    double seconds;

    if (state->known)
        return dpt_csv_date_at(state, k, &seconds, err);
    if (!dpt_date_read(dpt_csv_cell_at(state, at)->text, state->order, &date))
        return dpt_csv_no_date(state, k, false, err);
    met->timed = met->timed || (date.timed && fmod(date.seconds, DPT_DAY_SECONDS) != 0);
    if (date.order != DPT_DATE_UNKNOWN && met->order != DPT_DATE_UNKNOWN &&
        date.order != met->order)
        return dpt_csv_refuse(state, at, err,
                              "a date with the %s first, but %s is one with the other first",
                              date.order == DPT_DATE_DAY_FIRST ? "day" : "month", met->ordered);
    if (date.ambiguous)
        return dpt_csv_place(state, at, &met->ambiguous, err);
    if (date.order == DPT_DATE_UNKNOWN)
        return DPT_OK;
    met->order = date.order;
    return dpt_csv_place(state, at, &met->ordered, err);
}

enum dpt_status dpt_csv_tell_ambiguous(const struct dpt_csv_met *met, struct dpt_error *err)
{
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s may have the day or the month first, and so may all dates of its column: "
                    "give --day-first yes or no",
                    met->ambiguous);
}

enum dpt_status dpt_csv_dates_end(struct dpt_csv_state *state, size_t k, struct dpt_error *err)
{
    struct dpt_column *column = state->inputs[k];
    const struct dpt_csv_met *met = &state->met[k];

    column->order = state->order != DPT_DATE_UNKNOWN ? state->order : met->order;
    if (column->order == DPT_DATE_UNKNOWN && met->ambiguous != NULL)
        return dpt_csv_tell_ambiguous(met, err);
    for (enum dpt_date_part part = DPT_DATE_YEAR; part < DPT_DATE_PART_COUNT; part++)
        if (part != DPT_DATE_HOUR || met->timed)
            column->parts[column->n_parts++] = part;
    return DPT_OK;
}

const char *dpt_csv_fill_text(const struct dpt_column *column, char buf[DPT_DATE_TEXT])
{
    if (column->role == DPT_COLUMN_DATE)
        return dpt_date_text(column->fill, buf);
    snprintf(buf, DPT_DATE_TEXT, "%.6g", column->fill);
    return buf;
}
