/* What missing numbers of a CSV file become, and what was done to each of its columns, in words. */
#include <string.h>

#include "core/base/sort.h"
#include "data/sources/csv_state.h"

/* --- what missing numbers become -------------------------------------------------------------- */

/* Some columns' numbers. */
struct gather {
    const uint8_t *part;
    size_t first, last; /* features */
    double **values;    /* [last - first] */
    size_t *n;
};

static enum dpt_status gather_row(struct dpt_source *s, void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_csv_state *state = s->state;
    const struct gather *g = arg;

    if (g->part != NULL && g->part[state->row] != 0)
        return DPT_OK;
    for (size_t k = g->first; k < g->last; k++) {
        const size_t at = state->table.features[k];
        double *to = g->values[k - g->first];

        if (to != NULL && !dpt_csv_is_missing(state, dpt_csv_cell_at(state, at)))
            DPT_TRY(dpt_csv_input_at(state, k, &to[g->n[k - g->first]++], err));
    }
out:
    return status;
}

static double middle_of(const struct dpt_csv_state *state, double *values, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += values[i];
    if (state->mean)
        return sum / (double)n;
    dpt_sort(values, n);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* Finds the fill of some columns, with one walk over the rows. */
static enum dpt_status fill_some(struct dpt_source *s, struct gather *g, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    char shown[DPT_CSV_SHOWN];
    const size_t width = g->last - g->first;

    g->values = NULL;
    g->n = NULL;
    DPT_TRY(DPT_ALLOCATE(g->values, width, "the columns", err));
    DPT_TRY(DPT_ALLOCATE(g->n, width, "the columns", err));
    for (size_t i = 0; i < width; i++)
        if (state->inputs[g->first + i]->role != DPT_COLUMN_CATEGORY)
            DPT_TRY(DPT_ALLOCATE(g->values[i], s->info.samples, "a column's numbers", err));
    DPT_TRY(dpt_csv_walk(s, "finding what is missing", gather_row, g, err));
    for (size_t i = 0; i < width; i++) {
        struct dpt_column *column = state->inputs[g->first + i];

        if (g->values[i] == NULL)
            continue;
        if (g->n[i] == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: column '%s' holds no %s%s to fill its gaps with; --drop it",
                             s->paths[0], dpt_csv_shown(column->name, shown),
                             column->role == DPT_COLUMN_DATE ? "date" : "number",
                             g->part != NULL ? " in the training part" : ""));
        column->fill = middle_of(state, g->values[i], g->n[i]);
        if (column->role == DPT_COLUMN_DATE && !state->met[g->first + i].timed)
            column->fill = DPT_DAY_SECONDS *
                           floor(column->fill / DPT_DAY_SECONDS); /* a day, as all others are */
        column->filled = true;
    }
out:
    for (size_t i = 0; g->values != NULL && i < width; i++)
        dpt_free(g->values[i]);
    dpt_free(g->values);
    dpt_free(g->n);
    return status;
}

/* Takes as many columns at a time as some memory holds. */
static enum dpt_status fill_all(struct dpt_source *s, const uint8_t *part, struct dpt_error *err)
{
    enum { BYTES = 256 << 20 };
    enum dpt_status status = DPT_OK;
    const struct dpt_csv_state *state = s->state;
    const size_t all = state->table.n_features;
    const size_t fit = (size_t)(BYTES / (s->info.samples * (int64_t)sizeof(double)));
    struct gather g = {.part = part};

    for (; g.first < all; g.first = g.last) {
        g.last = g.first + (fit > 0 ? fit : 1);
        g.last = g.last < all ? g.last : all;
        DPT_TRY(fill_some(s, &g, err));
    }
out:
    return status;
}

/* --- what was done ---------------------------------------------------------------------------- */

/* What its words mean, and what is subtracted from its numbers. */
static void tell_numbers(const struct dpt_column *column, struct dpt_str *told)
{
    if (column->values.n == 2)
        dpt_str_printf(told, ", %s is 0 and %s is 1", column->texts[0], column->texts[1]);
    if (column->offset != 0)
        dpt_str_printf(told, ", less %.15g", column->offset);
}

/* What missing values of a column became. */
static void tell_missing(const struct dpt_csv_state *state, const struct dpt_column *column,
                         const struct dpt_csv_met *met, struct dpt_str *told)
{
    char digits[32], fill[DPT_DATE_TEXT];

    if (met->missing > 0)
        dpt_str_printf(told, "; %s missing, filled with %s%s",
                       dpt_group_digits(digits, met->missing), dpt_csv_fill_text(column, fill),
                       state->known  ? ", as in training"
                       : state->mean ? ", the mean"
                                     : ", the median");
    if (column->indicator)
        dpt_str_printf(told, "; one more feature is 1 if it was missing");
}

/* What a column became, after its name. */
static void tell_column(const struct dpt_source *s, const struct dpt_column *column,
                        enum dpt_column_role role, const struct dpt_csv_met *met,
                        struct dpt_str *told)
{
    const struct dpt_csv_state *state = s->state;
    const struct dpt_csv_labels *labels = &state->labels;
    char digits[32], shown[DPT_CSV_SHOWN];
    enum { MOST = 8 };

    switch (role) {
    case DPT_COLUMN_NUMBER:
        dpt_str_printf(told, "number");
        tell_numbers(column, told);
        tell_missing(state, column, met, told);
        return;
    case DPT_COLUMN_DATE:
        dpt_str_printf(told, "date%s:",
                       column->order == DPT_DATE_DAY_FIRST     ? ", the day first"
                       : column->order == DPT_DATE_MONTH_FIRST ? ", the month first"
                                                               : "");
        for (size_t k = 0; k < column->n_parts; k++)
            dpt_str_printf(told, "%s %s", k > 0 ? "," : "", dpt_date_part_name(column->parts[k]));
        tell_missing(state, column, met, told);
        return;
    case DPT_COLUMN_CATEGORY:
        dpt_str_printf(told, "%zu categor%s:", column->values.n,
                       column->values.n == 1 ? "y" : "ies");
        for (size_t k = 0; k < column->values.n && k < MOST; k++)
            dpt_str_printf(told, "%s %s", k > 0 ? "," : "", dpt_csv_shown(column->texts[k], shown));
        if (column->values.n > MOST)
            dpt_str_printf(told, ", …");
        if (met->missing > 0)
            dpt_str_printf(told, "; %s missing, none of them",
                           dpt_group_digits(digits, met->missing));
        return;
    case DPT_COLUMN_LABEL:
        if (s->info.truth == DPT_TRUTH_CLASS)
            dpt_str_printf(told, "label, %s class%s", dpt_group_digits(digits, s->info.classes),
                           s->info.classes == 1 ? "" : "es");
        else if (state->table.n_labels > 1)
            dpt_str_printf(told, "one of %zu %s", state->table.n_labels,
                           labels->whole && labels->smallest >= 0 && labels->largest <= 1
                               ? "labels, 0 or 1"
                               : "targets");
        else
            dpt_str_printf(told, "label, a target");
        if (s->info.truth == DPT_TRUTH_VECTOR)
            tell_numbers(column, told);
        return;
    default:
        dpt_str_printf(told, role == DPT_COLUMN_WEIGHT ? "weights of the rows"
                             : role == DPT_COLUMN_ID   ? "names of the rows"
                                                       : "left out");
    }
}

/* Whether a column is a mere number, of which nothing is to be said. */
static bool is_plain(const struct dpt_csv_state *state, size_t column, const size_t *place)
{
    const size_t k = place[column];

    return state->table.role[column] == DPT_COLUMN_NUMBER && column != state->table.group &&
           column != state->table.time && state->met[k].missing == 0 &&
           !state->inputs[k]->indicator && state->inputs[k]->values.n == 0 &&
           state->inputs[k]->offset == 0;
}

/* A line per column; of wide tables, such as images, one for neighbours that are mere numbers. */
static enum dpt_status tell(const struct dpt_source *s, struct dpt_str *told, struct dpt_error *err)
{
    enum { WIDE = 40 };
    enum dpt_status status = DPT_OK;
    const struct dpt_csv_state *state = s->state;
    const struct dpt_csv_table *t = &state->table;
    size_t *place = NULL; /* of each column, among the inputs or among the labels */
    char digits[32], column[DPT_CSV_WHERE];

    DPT_TRY(DPT_ALLOCATE(place, t->columns, "the columns", err));
    for (size_t k = 0; k < t->n_features; k++)
        place[t->features[k]] = k;
    for (size_t k = 0; k < t->n_labels; k++)
        place[t->labels[k]] = k;
    if (t->hint[0] != '\0')
        dpt_str_printf(told, "warning: %s\n", t->hint + strlen("; "));
    for (size_t i = 0, plain; i<t->columns; i += plain> 1 ? plain : 1) {
        const struct dpt_column here = {.role = t->role[i]};
        const bool input = dpt_column_is_input(here.role), label = here.role == DPT_COLUMN_LABEL;

        plain = 0;
        while (t->columns > WIDE && i + plain < t->columns && is_plain(state, i + plain, place))
            plain++;
        if (plain > 1) {
            dpt_str_printf(told, "columns %zu to %zu: numbers\n", i + 1, i + plain);
            continue;
        }
        dpt_str_printf(told, "%s: ", dpt_csv_column_text(t, i, column));
        tell_column(s,
                    input                                       ? state->inputs[place[i]]
                    : label && state->targets[place[i]] != NULL ? state->targets[place[i]]
                                                                : &here,
                    here.role, input ? &state->met[place[i]] : NULL, told);
        if (i == t->group && s->info.groups != NULL)
            dpt_str_printf(told, "; each of its %s groups is in one part",
                           dpt_group_digits(digits, s->info.n_groups));
        if (i == t->time && s->info.times != NULL)
            dpt_str_printf(told, "; the latest rows are the test part");
        dpt_str_printf(told, "\n");
    }
out:
    dpt_free(place);
    return status;
}

/* The names of the classes, which the label column of the shards has as its values. */
static enum dpt_status name_classes(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_column *label = state->table.n_labels == 1 ? state->targets[0] : NULL;

    if (state->known || s->info.class_names == NULL || label == NULL)
        return DPT_OK;
    DPT_TRY(
        dpt_column_values_add(&label->values, s->info.class_names, (size_t)s->info.classes, err));
    label->texts = (const char **)s->info.class_names;
out:
    return status;
}

enum dpt_status dpt_csv_fit(struct dpt_source *s, const uint8_t *part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_str text = {0};

    if (state->impute && !state->known) {
        status = fill_all(s, part, err);
        DPT_TRY(status != DPT_OK ? dpt_csv_tell_words(s, err) : status);
    }
    if (!state->kept)
        return DPT_OK;
    DPT_TRY(name_classes(s, err));
    dpt_columns_write(&state->columns, &text);
    DPT_TRY(tell(s, &state->told, err));
    s->info.columns = dpt_region_strdup(&s->region, text.text != NULL ? text.text : "");
    s->info.told = state->told.text;
    if (text.failed || state->told.failed || s->info.columns == NULL)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)text.length));
out:
    dpt_str_release(&text);
    return status;
}
