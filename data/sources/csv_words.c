/* What to do about columns of a CSV file that hold words where numbers were expected: all of them
 * are told at once, with the command that converts the file. */
#include <ctype.h>
#include <string.h>

#include "data/sources/csv_state.h"

enum { DISTINCT_MOST = 1000, CATEGORIES_MOST = 100, SPELLINGS_MOST = 3, COMMAND_MOST = 2000 };
/* More categories than CATEGORIES_MOST are fine where each has so many rows. */
enum { CATEGORY_ROWS = 100 };

/* What was found in one column that has to be numbers. */
struct column_cells {
    int64_t numbers, words, empty;
    struct dpt_names values;    /* all that differ, up to DISTINCT_MOST */
    struct dpt_names spellings; /* those that are no numbers, up to SPELLINGS_MOST + 1 */
    struct dpt_names missing;   /* NA, nan and the like, which --missing does not list yet */
    bool other_marks;           /* all words are numbers with other marks than the file's */
    bool digits;                /* some word seems to be a number in other writing, or a date */
    const char *place, *marks;  /* of the first word; how its marks would be said */
    int64_t dates;              /* words that are dates */
    bool ambiguous, ordered;    /* some may be another day in the other order; some may not */
};

/* What becomes of it. WRITINGS: some of its numbers are written so that they cannot be read: their
 * values are there, and are not to be filled. */
enum fate { NUMBERS, SPELLINGS, WRITINGS, DATES, CATEGORIES, DIFFERENT, EMPTY };

struct advice {
    const struct dpt_source *s;
    const struct dpt_csv_state *state;
    struct column_cells *cells;   /* [features] */
    bool beyond;                  /* some number is too large: no option helps */
    enum dpt_column_role *became; /* [columns] as the command has them */
    size_t kept;                  /* features */
    bool numbered;                /* columns by their numbers, which are short */
};

/* --- what there is ---------------------------------------------------------------------------- */

/* Adds a text that is not there yet, unless there are `most` already. */
static enum dpt_status note_text(struct dpt_csv_state *state, struct dpt_names *names, size_t most,
                                 const char *text, struct dpt_error *err)
{
    struct dpt_name name = dpt_column_value(text);

    if (names->n >= most || dpt_names_find(names, &name) != NULL)
        return DPT_OK;
    name.text = dpt_region_strdup(&state->table.region, text);
    return dpt_names_add(names, name, err);
}

static enum dpt_status note_word(struct dpt_csv_state *state, struct column_cells *c, size_t at,
                                 struct dpt_error *err)
{
    const char *text = dpt_csv_cell_at(state, at)->text;
    const char *marks = dpt_csv_other_marks(state, text);
    struct dpt_date date;

    if (dpt_date_read(text, state->order, &date)) {
        c->dates++;
        c->ambiguous = c->ambiguous || date.ambiguous;
        c->ordered = c->ordered || date.order != DPT_DATE_UNKNOWN;
    }
    if (c->words++ == 0) {
        c->other_marks = true;
        c->marks = marks;
        if (dpt_csv_place(state, at, &c->place, err) != DPT_OK)
            return err->status;
    }
    c->other_marks = c->other_marks && marks[0] != '\0';
    c->digits =
        c->digits || (!isalpha((unsigned char)text[0]) && strpbrk(text, "0123456789") != NULL);
    return note_text(state, &c->spellings, SPELLINGS_MOST + 1, text, err);
}

static enum dpt_status scan_cell(struct dpt_csv_state *state, struct advice *a, size_t k,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t at = state->table.features[k];
    const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, at);
    struct column_cells *c = &a->cells[k];
    enum dpt_csv_kind kind;
    double value;

    if (dpt_csv_is_missing(state, cell)) {
        c->empty++;
        return DPT_OK;
    }
    kind =
        state->inputs[k]->values.n > 0 && dpt_column_take_word(state->inputs[k], cell->text, &value)
            ? DPT_CSV_NUMBER
            : dpt_csv_table_number(&state->table, cell->text, &value);
    if (kind == DPT_CSV_MISSING || kind == DPT_CSV_NOT_FINITE || strcmp(cell->text, "NaT") == 0)
        return note_text(state, &c->missing, DISTINCT_MOST, cell->text, err);
    if (kind == DPT_CSV_NUMBER)
        c->numbers++;
    a->beyond = a->beyond || (kind == DPT_CSV_NUMBER && !isfinite((float)value));
    DPT_TRY(note_text(state, &c->values, DISTINCT_MOST, cell->text, err));
    if (kind == DPT_CSV_TEXT)
        DPT_TRY(note_word(state, c, at, err));
out:
    return status;
}

static enum dpt_status scan_row(struct dpt_source *s, void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;

    for (size_t k = 0; k < state->table.n_features; k++)
        if (state->inputs[k]->role == DPT_COLUMN_NUMBER)
            DPT_TRY(scan_cell(state, arg, k, err));
out:
    return status;
}

static enum fate fate_of(const struct column_cells *c)
{
    const int64_t there = c->numbers + c->words, distinct = (int64_t)c->values.n;

    if (there == 0)
        return EMPTY;
    if (c->words == 0)
        return NUMBERS;
    if (c->dates == c->words && c->numbers == 0)
        return DATES;
    if (c->digits && c->words < c->numbers)
        return WRITINGS;
    if (c->spellings.n <= SPELLINGS_MOST && c->words < c->numbers)
        return SPELLINGS;
    return 2 * distinct <= there &&
                   (distinct <= CATEGORIES_MOST ||
                    (distinct < DISTINCT_MOST && distinct * CATEGORY_ROWS <= there))
               ? CATEGORIES
               : DIFFERENT;
}

/* --- the command ------------------------------------------------------------------------------ */

/* Adds what names a column in a list. */
static void add_column(const struct advice *a, size_t column, struct dpt_str *list)
{
    const struct dpt_csv_table *t = &a->state->table;
    const char *name = t->names != NULL ? t->names[column] : "";
    char shown[DPT_CSV_SHOWN];

    if (list->length > 0)
        dpt_str_add(list, ",", 1);
    if (a->numbered || name[0] == '\0' || strcmp(dpt_csv_shown(name, shown), name) != 0)
        dpt_str_printf(list, "%zu", column + 1);
    else
        dpt_csv_put(list, name);
}

/* Adds an option with its value, where it has one. */
static void add_option(struct dpt_str *command, const char *option, struct dpt_str *value)
{
    if (value->length > 0) {
        dpt_str_printf(command, " %s ", option);
        dpt_str_shell(command, value->text);
    }
    command->failed = command->failed || value->failed;
    dpt_str_release(value);
}

/* Adds those that are not listed yet. */
static void add_names(const struct dpt_names *names, struct dpt_names *listed, struct dpt_str *list)
{
    struct dpt_error err;

    for (size_t i = 0; i < names->n; i++) {
        if (dpt_names_find(listed, &names->at[i]) != NULL)
            continue;
        list->failed = list->failed || dpt_names_add(listed, names->at[i], &err) != DPT_OK;
        if (list->length > 0)
            dpt_str_add(list, ",", 1);
        dpt_csv_put(list, names->at[i].text);
    }
}

/* Whether a column that stays a feature lacks values. */
static bool lacks_values(const struct column_cells *c)
{
    const enum fate fate = fate_of(c);

    return fate == SPELLINGS || ((fate == NUMBERS || fate == DATES || fate == CATEGORIES) &&
                                 (c->empty > 0 || c->missing.n > 0));
}

/* What is said of missing values. */
static void add_missing(const struct advice *a, struct dpt_str *command)
{
    const struct dpt_csv_state *state = a->state;
    const char *impute = a->s->spec->option[DPT_SOURCE_IMPUTE];
    struct dpt_names listed = {0};
    struct dpt_str list = {0}, how = {0};
    bool lacking = false;

    for (size_t i = 0; i < state->columns.n_missing; i++) {
        struct dpt_name said = dpt_column_value(state->columns.missing[i]);

        add_names(&(const struct dpt_names){.at = &said, .n = 1}, &listed, &list);
    }
    for (size_t k = 0; k < state->table.n_features; k++) {
        const struct column_cells *c = &a->cells[k];

        lacking = lacking || lacks_values(c);
        if (fate_of(c) == NUMBERS || fate_of(c) == SPELLINGS || fate_of(c) == DATES)
            add_names(&c->missing, &listed, &list);
        if (fate_of(c) == SPELLINGS)
            add_names(&c->spellings, &listed, &list);
    }
    if (lacking && !state->impute && (impute != NULL || list.length == 0))
        dpt_str_printf(&how, "median");
    else if (impute != NULL)
        dpt_str_printf(&how, "%s", impute);
    add_option(command, "--missing", &list);
    add_option(command, "--impute", &how);
    dpt_names_release(&listed);
}

/* Whether nothing tells which number of the dates of a column is the day. */
static bool is_undecided(const struct dpt_csv_state *state, const struct column_cells *c)
{
    return state->order == DPT_DATE_UNKNOWN && fate_of(c) == DATES && c->ambiguous && !c->ordered;
}

static enum dpt_column_role role_of(enum fate fate)
{
    return fate == CATEGORIES                   ? DPT_COLUMN_CATEGORY
           : fate == DATES                      ? DPT_COLUMN_DATE
           : fate == DIFFERENT || fate == EMPTY ? DPT_COLUMN_DROPPED
                                                : DPT_COLUMN_NUMBER;
}

static enum dpt_status decide(struct advice *a, struct dpt_region *region, struct dpt_error *err)
{
    const struct dpt_csv_table *t = &a->state->table;

    a->became = dpt_region_alloc(region, t->columns * sizeof *a->became);
    if (a->became == NULL)
        return dpt_fail_memory(err, "the columns", (double)t->columns);
    memcpy(a->became, t->role, t->columns * sizeof *a->became);
    for (size_t k = 0; k < t->n_features; k++) {
        enum dpt_column_role *became = &a->became[t->features[k]];

        if (*became == DPT_COLUMN_NUMBER)
            *became = role_of(fate_of(&a->cells[k]));
        a->kept += *became != DPT_COLUMN_DROPPED;
    }
    return DPT_OK;
}

/* The command that takes the file. */
static void write_command(const struct advice *a, struct dpt_str *command)
{
    const struct dpt_csv_table *t = &a->state->table;
    const enum dpt_column_role *became = a->became;
    const bool chosen = a->s->spec->option[DPT_SOURCE_COLUMNS] != NULL;
    struct dpt_str list[DPT_COLUMN_ROLE_COUNT] = {{0}};

    for (size_t i = 0; i < t->columns; i++) {
        /* --columns leaves out what it does not name. */
        const bool said_dropped = t->role[i] == DPT_COLUMN_DROPPED && t->assigned[i];

        if (became[i] == DPT_COLUMN_CATEGORY || became[i] == DPT_COLUMN_DATE ||
            (became[i] == DPT_COLUMN_NUMBER && chosen) ||
            (became[i] == DPT_COLUMN_DROPPED && (!chosen || said_dropped)))
            add_column(a, i, &list[became[i]]);
    }
    if (chosen && list[DPT_COLUMN_NUMBER].length == 0)
        for (size_t i = 0; i < t->columns; i++)
            if (became[i] == DPT_COLUMN_DROPPED && (t->role[i] != became[i] || !t->assigned[i]))
                add_column(a, i, &list[DPT_COLUMN_DROPPED]);
    dpt_str_printf(command, "%s", a->s->spec->command != NULL ? a->s->spec->command : "dptrain");
    add_option(command, "--columns", &list[DPT_COLUMN_NUMBER]);
    add_option(command, "--categories", &list[DPT_COLUMN_CATEGORY]);
    add_option(command, "--dates", &list[DPT_COLUMN_DATE]);
    for (size_t k = 0; k < t->n_features; k++)
        if (is_undecided(a->state, &a->cells[k])) {
            dpt_str_printf(command, " --day-first no");
            break;
        }
    add_option(command, "--drop", &list[DPT_COLUMN_DROPPED]);
    add_missing(a, command);
}

/* --- in words --------------------------------------------------------------------------------- */

static void tell_column(const struct advice *a, size_t k, struct dpt_str *told)
{
    const struct dpt_csv_table *t = &a->state->table;
    const struct column_cells *c = &a->cells[k];
    const enum fate fate = fate_of(c);
    char column[DPT_CSV_WHERE], shown[DPT_CSV_SHOWN], distinct[32], rows[32];

    dpt_str_printf(told, "\n  %s", dpt_csv_column_text(t, t->features[k], column));
    dpt_group_digits(distinct, (long long)c->values.n);
    dpt_group_digits(rows, c->numbers + c->words);
    switch (fate) {
    case SPELLINGS:
    case WRITINGS:
        dpt_str_printf(told, fate == SPELLINGS ? ": numbers and" : ": numbers, but");
        for (size_t i = 0; i < c->spellings.n && i < SPELLINGS_MOST; i++)
            dpt_str_printf(told, "%s '%s'", i > 0 ? "," : "",
                           dpt_csv_shown(c->spellings.at[i].text, shown));
        dpt_str_printf(told, "%s%s", c->spellings.n > SPELLINGS_MOST ? " and others" : "",
                       fate == SPELLINGS ? ", which --missing takes for no value"
                                         : " cannot be read as one: correct the file");
        return;
    case DATES:
        dpt_str_printf(told, ": dates, which --dates takes%s",
                       is_undecided(a->state, c)
                           ? ", here with the month first; --day-first yes: the day is"
                           : "");
        return;
    case CATEGORIES:
        dpt_str_printf(told, ": %s different values in %s rows, which --categories takes", distinct,
                       rows);
        return;
    case DIFFERENT:
        dpt_str_printf(told,
                       ": %s%s different values in %s rows, too many to learn from: --drop leaves "
                       "it out, --id would keep it as the names of the rows%s",
                       c->values.n == DISTINCT_MOST ? "over " : "", distinct, rows,
                       c->digits ? "; amounts have to be written as numbers" : "");
        return;
    default:
        dpt_str_printf(told, ": no value at all, so --drop leaves it out");
    }
}

/* Writes what is to be said after the first line. False: nothing is. */
static bool write_advice(struct advice *a, struct dpt_str *text)
{
    enum { LINES = 12 };
    const struct dpt_csv_state *state = a->state;
    struct dpt_str command = {0};
    bool unreadable = false; /* no command helps */
    size_t n = 0;

    for (size_t k = 0; k < state->table.n_features; k++) {
        if (state->inputs[k]->role != DPT_COLUMN_NUMBER || fate_of(&a->cells[k]) == NUMBERS)
            continue;
        unreadable = unreadable || fate_of(&a->cells[k]) == WRITINGS;
        if (n++ < LINES)
            tell_column(a, k, text);
    }
    if (n > LINES)
        dpt_str_printf(text, "\n  and %zu more such columns", n - LINES);
    write_command(a, &command);
    if (command.length > COMMAND_MOST) {
        dpt_str_clear(&command);
        a->numbered = true;
        write_command(a, &command);
    }
    if (a->kept == 0)
        dpt_str_printf(text, "\nNo column would be left as a feature.");
    else if (!unreadable && command.length <= COMMAND_MOST && strpbrk(command.text, "\n\r") == NULL)
        dpt_str_printf(text, "\nThis command does so:\n  %s", command.text);
    text->failed = text->failed || command.failed;
    dpt_str_release(&command);
    return n > 0;
}

/* A column whose words are all numbers with other marks; such an option concerns all columns. */
static const struct column_cells *find_other_marks(const struct dpt_csv_state *state,
                                                   const struct column_cells *cells)
{
    for (size_t k = 0; k < state->table.n_features; k++)
        if (cells[k].words > 0 && cells[k].other_marks)
            return &cells[k];
    return NULL;
}

/* Whether the first row seems to hold the names of columns of numbers. */
static bool is_heading(const struct dpt_csv_state *state, const struct column_cells *cells)
{
    for (size_t k = 0; k < state->table.n_features; k++)
        if (cells[k].words > 1)
            return false;
    return state->table.names == NULL && state->row == 0;
}

enum dpt_status dpt_csv_tell_words(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    const struct dpt_error first = *err;
    const int64_t row = state->row;
    const struct column_cells *marks;
    struct dpt_str text = {0};
    struct advice advice = {.s = s, .state = state};

    if (err->status != DPT_BAD_DATA || state->known || state->table.hint[0] != '\0')
        return err->status;
    DPT_TRY(DPT_ALLOCATE(advice.cells, state->table.n_features, "the columns", err));
    DPT_TRY(dpt_csv_walk(s, "looking at columns", scan_row, &advice, err));
    state->row = row;
    marks = find_other_marks(state, advice.cells);
    *err = first;
    dpt_str_printf(&text, "%s", first.text);
    if (advice.beyond || is_heading(state, advice.cells))
        DPT_TRY(first.status);
    if (marks != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s is not a number%s", marks->place, marks->marks));
    DPT_TRY(decide(&advice, &state->table.region, err));
    if (!write_advice(&advice, &text))
        DPT_TRY(first.status);
    status = text.failed ? dpt_fail_memory(err, "a message", (double)text.length)
                         : dpt_fail(err, DPT_BAD_DATA, "%s", text.text);
out:
    for (size_t k = 0; advice.cells != NULL && k < state->table.n_features; k++) {
        dpt_names_release(&advice.cells[k].values);
        dpt_names_release(&advice.cells[k].spellings);
        dpt_names_release(&advice.cells[k].missing);
    }
    dpt_free(advice.cells);
    dpt_str_release(&text);
    return status;
}
