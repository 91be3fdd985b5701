/* What the rows of a CSV file are divided by, where it is not chance: groups that stay together, or
 * times. */
#include <string.h>

#include "data/sources/csv_state.h"

static const char what[] = "the values that rows are divided by";

enum dpt_status dpt_csv_divide_begin(const struct dpt_source *s, struct dpt_error *err)
{
    const char *const *option = s->spec->option;
    const struct dpt_source_split *split = &s->spec->split;
    const char *name = option[DPT_SOURCE_GROUP] != NULL  ? "--group"
                       : option[DPT_SOURCE_TIME] != NULL ? "--time"
                                                         : NULL;

    if (name == NULL)
        return DPT_OK;
    if (option[DPT_SOURCE_GROUP] != NULL && option[DPT_SOURCE_TIME] != NULL)
        return dpt_fail(err, DPT_USAGE, "--group and --time exclude each other");
    if (split->n == 0)
        return dpt_fail(err, DPT_USAGE, "%s belongs to --split", name);
    if (split->stratify)
        return dpt_fail(err, DPT_USAGE, "--stratify and %s exclude each other", name);
    return DPT_OK;
}

/* --- a first reading -------------------------------------------------------------------------- */

/* A time: a number or a date, as the first row has it. */
static enum dpt_status time_at(struct dpt_csv_state *state, double *value, struct dpt_error *err)
{
    const size_t at = state->table.time;
    const char *text = dpt_csv_cell_at(state, at)->text;
    struct dpt_csv_met *met = &state->divides;
    const enum dpt_csv_kind kind = dpt_csv_table_number(&state->table, text, value);
    struct dpt_date date;

    if (state->row == 0)
        state->dated = kind != DPT_CSV_NUMBER;
    if (!state->dated)
        return kind == DPT_CSV_NUMBER
                   ? DPT_OK
                   : dpt_csv_refuse(state, at, err, "no number, as --time has in other rows");
    if (!dpt_date_read(text, state->order != DPT_DATE_UNKNOWN ? state->order : met->order, &date))
        return dpt_csv_refuse(state, at, err,
                              "%s a date, as 2024-03-01 13:45; --time needs one in each row",
                              state->row == 0 ? "neither a number nor" : "not");
    if (date.order != DPT_DATE_UNKNOWN && met->order == DPT_DATE_UNKNOWN)
        met->order = date.order;
    *value = date.seconds;
    return date.ambiguous ? dpt_csv_place(state, at, &met->ambiguous, err) : DPT_OK;
}

enum dpt_status dpt_csv_divide_scan(struct dpt_source *s, void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    const struct dpt_csv_table *t = &state->table;
    const size_t row = (size_t)state->row;

    (void)arg;
    if (t->group < t->columns) {
        const char *text = dpt_csv_cell_at(state, t->group)->text;

        if (text[0] == '\0')
            DPT_TRY(
                dpt_csv_refuse(state, t->group, err, "no group; --group needs one in each row"));
        DPT_GROW(state->groups, &state->dividing_room, row + 1, what, err);
        state->groups[row] = dpt_region_strdup(&state->table.region, text);
        if (state->groups[row] == NULL)
            DPT_TRY(dpt_fail_memory(err, what, (double)row));
    } else if (t->time < t->columns) {
        DPT_GROW(state->times, &state->dividing_room, row + 1, what, err);
        DPT_TRY(time_at(state, &state->times[row], err));
    }
out:
    return status;
}

/* --- after the last row ----------------------------------------------------------------------- */

/* Numbers the groups in the order of their texts. */
static enum dpt_status number_groups(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_csv_state *state = s->state;
    const size_t rows = (size_t)s->parts[0].samples;
    struct dpt_name_index index;
    int32_t *groups = dpt_region_alloc(&s->region, rows * sizeof *groups);

    if (groups == NULL)
        return dpt_fail_memory(err, what, (double)rows);
    DPT_TRY(
        dpt_name_index_make(&index, state->groups, sizeof *state->groups, rows, &s->region, err));
    for (size_t i = 0; i < rows; i++) {
        s->info.n_groups += i == 0 || strcmp(index.sorted[i - 1].name, index.sorted[i].name) != 0;
        groups[index.sorted[i].at] = (int32_t)s->info.n_groups - 1;
    }
    s->info.groups = groups;
out:
    return status;
}

enum dpt_status dpt_csv_divide_end(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    const struct dpt_csv_met *met = &state->divides;

    if (met->ambiguous != NULL && met->order == DPT_DATE_UNKNOWN)
        DPT_TRY(dpt_csv_tell_ambiguous(met, err));
    if (met->ambiguous != NULL) /* dates in front of the one that told the order, too */
        DPT_TRY(dpt_csv_walk(s, NULL, dpt_csv_divide_scan, NULL, err));
    if (state->groups != NULL)
        DPT_TRY(number_groups(s, err));
    s->info.times = state->times;
out:
    return status;
}
