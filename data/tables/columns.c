#include "data/tables/columns.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data/tables/csv.h"

/* The cells of a row, and those where some column has an offset. */
static const char heading[] = "column,name,role,fill,value\n";
static const char heading_offset[] = "column,name,role,fill,value,offset\n";
static const char *const roles[] = {DPT_COLUMN_ROLES(DPT_LIST_WORD)};
static const char and_missing[] = "+missing"; /* after the role of a column with an indicator */
static const char *const orders[] = {
    [DPT_DATE_DAY_FIRST] = "day first", [DPT_DATE_MONTH_FIRST] = "month first"};
static const char what[] = "the columns";
static const char *const marks[] = {"delimiter", "decimal", "thousands"};
enum { MARKS = sizeof marks / sizeof marks[0] };
enum { NUMBER, NAME, ROLE, FILL, VALUE, CELLS, OFFSET = CELLS };

enum dpt_status dpt_columns_add(struct dpt_columns *c, const char *name, enum dpt_column_role role,
                                struct dpt_column **column, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(c->at, &c->room, c->n + 1, what, err);
    *column = &c->at[c->n];
    **column = (struct dpt_column){.name = dpt_region_strdup(&c->region, name), .role = role};
    if ((*column)->name == NULL)
        DPT_TRY(dpt_fail_memory(err, what, (double)strlen(name)));
    c->n++;
out:
    return status;
}

enum dpt_status dpt_columns_add_missing(struct dpt_columns *c, const char *text, size_t n,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(c->missing, &c->missing_room, c->n_missing + 1, what, err);
    c->missing[c->n_missing] = dpt_region_strndup(&c->region, text, n);
    if (c->missing[c->n_missing] == NULL)
        DPT_TRY(dpt_fail_memory(err, what, (double)n));
    c->n_missing++;
out:
    return status;
}

struct dpt_name dpt_column_value(const char *text)
{
    struct dpt_name name = {.text = text};

    name.is_number = dpt_csv_number(text, &name.value) == DPT_CSV_NUMBER;
    return name;
}

enum dpt_status dpt_column_values_add(struct dpt_names *values, const char *const *texts, size_t n,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < n; i++) {
        struct dpt_name value = dpt_column_value(texts[i]);

        value.class = (int32_t)i;
        DPT_TRY(dpt_names_add(values, value, err));
    }
out:
    return status;
}

const dpt_column_words *dpt_column_words_of(const char *word)
{
    static const dpt_column_words pairs[] = {
        {"false", "true"}, {"no", "yes"}, {"f", "t"}, {"n", "y"}, {"off", "on"},
    };

    if (word[0] == '\0' || strchr("fFtTnNyYoO", word[0]) == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        for (size_t k = 0; k < 2; k++)
            if (strcasecmp(word, pairs[i][k]) == 0)
                return &pairs[i];
    return NULL;
}

bool dpt_column_take_word(const struct dpt_column *column, const char *text, double *value)
{
    for (size_t k = 0; k < column->values.n; k++)
        if (strcasecmp(text, column->texts[k]) == 0) {
            *value = (double)k;
            return true;
        }
    return dpt_csv_number(text, value) == DPT_CSV_NUMBER && (*value == 0 || *value == 1);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* A row of column 0. False: it says nothing that is known. */
static bool take_file(struct dpt_columns *c, const struct dpt_csv_cell *cells,
                      enum dpt_status *status, struct dpt_error *err)
{
    const char *key = cells[NAME].text, *value = cells[VALUE].text;
    char *const to[MARKS] = {&c->delimiter, &c->decimal, &c->thousands};
    const size_t mark = dpt_find(key, marks, MARKS);

    if (strcmp(key, "missing") == 0)
        *status = dpt_columns_add_missing(c, value, strlen(value), err);
    else if (mark < MARKS && strlen(value) == 1)
        *to[mark] = *value;
    else if (strcmp(key, "fit") == 0)
        c->fit = dpt_region_strdup(&c->region, value);
    else
        return false;
    if (c->region.failed)
        *status = dpt_fail_memory(err, what, (double)strlen(value));
    return true;
}

/* One more part of a date, or its order. False: it is none, or there already. */
static bool take_part(struct dpt_column *column, const char *text)
{
    const enum dpt_date_part part = dpt_date_part_of(text);

    for (int i = DPT_DATE_DAY_FIRST; i <= DPT_DATE_MONTH_FIRST; i++)
        if (strcmp(text, orders[i]) == 0 && column->order == DPT_DATE_UNKNOWN) {
            column->order = (enum dpt_date_order)i;
            return true;
        }
    if (part == DPT_DATE_PART_COUNT ||
        (column->n_parts > 0 && column->parts[column->n_parts - 1] >= part))
        return false;
    column->parts[column->n_parts++] = part;
    return true;
}

/* A value of the last column. False: it has it already. */
static bool take_value(struct dpt_columns *c, const char *text, enum dpt_status *status,
                       struct dpt_error *err)
{
    struct dpt_names *values = &c->at[c->n - 1].values;
    struct dpt_name value = dpt_column_value(dpt_region_strdup(&c->region, text));
    const size_t before = values->n;

    if (c->at[c->n - 1].role == DPT_COLUMN_DATE)
        return take_part(&c->at[c->n - 1], text);
    value.class = (int32_t)before;
    *status = dpt_names_add(values, value, err);
    return *status != DPT_OK || values->n > before;
}

/* A number that may be left out. False: the cell holds something else. */
static bool take_number(const struct dpt_csv_cell *cell, double *value)
{
    return cell->length == 0 || dpt_csv_number(cell->text, value) == DPT_CSV_NUMBER;
}

/* The role that a cell names. *indicator: out, whether it ends in "+missing". */
static size_t role_of(const char *text, bool *indicator)
{
    const size_t n = strlen(text), end = strlen(and_missing);
    size_t role = 0;

    *indicator = n > end && strcmp(text + n - end, and_missing) == 0;
    while (role < DPT_COLUMN_ROLE_COUNT && (strncmp(text, roles[role], strlen(roles[role])) != 0 ||
                                            strlen(roles[role]) != n - (*indicator ? end : 0)))
        role++;
    return role;
}

/* A row of another column than 0: a new one's, or one more value of the last. False: it is not as
 * it must be. */
static bool take_column(struct dpt_columns *c, const struct dpt_csv_cell *cells, bool offset,
                        bool again, enum dpt_status *status, struct dpt_error *err)
{
    bool indicator;
    const size_t role = role_of(cells[ROLE].text, &indicator);
    const bool has_value = cells[VALUE].length > 0 || cells[VALUE].quoted;
    const bool fills = role == DPT_COLUMN_NUMBER || role == DPT_COLUMN_DATE;
    struct dpt_column *column;

    if (role == DPT_COLUMN_ROLE_COUNT || (indicator && !fills) ||
        (has_value &&
         (role == DPT_COLUMN_ID || role == DPT_COLUMN_DROPPED || role == DPT_COLUMN_WEIGHT)))
        return false;
    if (again)
        return has_value && c->n > 0 && c->at[c->n - 1].role == role &&
               take_value(c, cells[VALUE].text, status, err);
    *status = dpt_columns_add(c, cells[NAME].text, (enum dpt_column_role)role, &column, err);
    if (*status != DPT_OK)
        return true;
    column->indicator = indicator;
    column->filled = fills && cells[FILL].length > 0;
    if (role == DPT_COLUMN_LABEL && cells[FILL].length > 0) {
        double place;

        if (!take_number(&cells[FILL], &place) || place < 1 || place > 1e9)
            return false;
        column->place = (size_t)place;
    }
    if ((column->filled && !take_number(&cells[FILL], &column->fill)) ||
        (offset && !take_number(&cells[OFFSET], &column->offset)))
        return false;
    return !has_value || take_value(c, cells[VALUE].text, status, err);
}

/* Lists the values of each column by their numbers. */
static enum dpt_status list_values(struct dpt_columns *c, const char *from, struct dpt_error *err)
{
    char shown[DPT_CSV_SHOWN];

    for (struct dpt_column *column = c->at; column < c->at + c->n; column++) {
        if (column->role == DPT_COLUMN_DATE && column->n_parts == 0)
            return dpt_fail(err, DPT_BAD_DATA, "%s: in its /columns '%s' has no part of a date",
                            from, dpt_csv_shown(column->name, shown));
        if (column->values.n == 0)
            continue;
        if (column->role == DPT_COLUMN_NUMBER && column->values.n != 2)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: in its /columns '%s' has %zu values: a column of numbers has "
                            "none, or the words for 0 and 1",
                            from, dpt_csv_shown(column->name, shown), column->values.n);
        column->texts = dpt_region_alloc(&c->region, column->values.n * sizeof *column->texts);
        if (column->texts == NULL)
            return dpt_fail_memory(err, what, (double)column->values.n);
        for (size_t k = 0; k < column->values.n; k++)
            column->texts[column->values.at[k].class] = column->values.at[k].text;
    }
    return DPT_OK;
}

/* Lists the labels in the order of the targets. */
static enum dpt_status list_labels(struct dpt_columns *c, struct dpt_error *err)
{
    c->labels = dpt_region_alloc(&c->region, c->n * sizeof *c->labels);
    if (c->labels == NULL)
        return dpt_fail_memory(err, what, (double)c->n);
    for (size_t i = 0, to; i < c->n; i++) {
        if (c->at[i].role != DPT_COLUMN_LABEL)
            continue;
        for (to = c->n_labels++; to > 0 && c->at[c->labels[to - 1]].place > c->at[i].place; to--)
            c->labels[to] = c->labels[to - 1];
        c->labels[to] = i;
    }
    return DPT_OK;
}

bool dpt_columns_is(const char *text)
{
    return strncmp(text, heading, strlen(heading)) == 0 ||
           strncmp(text, heading_offset, strlen(heading_offset)) == 0;
}

enum dpt_status dpt_columns_parse(struct dpt_columns *c, const char *text, const char *from,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv csv = {0};
    bool more = false, good = dpt_columns_is(text);
    const bool offset = strncmp(text, heading, strlen(heading)) != 0;
    double number, last = 0;

    *c = (struct dpt_columns){0};
    DPT_TRY(dpt_csv_open_text(&csv, text, from, err));
    DPT_TRY(dpt_csv_next(&csv, &more, err)); /* the heading */
    while (good && more) {
        DPT_TRY(dpt_csv_next(&csv, &more, err));
        if (!more)
            break;
        good = csv.n_cells == (offset ? CELLS + 1 : CELLS) &&
               dpt_csv_number(csv.cells[NUMBER].text, &number) == DPT_CSV_NUMBER && number >= last;
        if (good)
            good = number == 0 ? take_file(c, csv.cells, &status, err)
                               : take_column(c, csv.cells, offset, number == last, &status, err);
        last = number;
        DPT_TRY(status);
    }
    if (!good)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: line %lld of its /columns is not as it must be",
                         from, (long long)csv.line));
    DPT_TRY(list_values(c, from, err));
    DPT_TRY(list_labels(c, err));
out:
    dpt_csv_close(&csv);
    if (status != DPT_OK)
        dpt_columns_release(c);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* The text, and whether its rows have an offset. */
struct writing {
    struct dpt_str *out;
    bool offset;
};

/* column: NULL: the row is the file's. */
static void put_row(const struct writing *w, size_t number, const char *name, const char *role,
                    const struct dpt_column *column, const char *value)
{
    struct dpt_str *out = w->out;

    dpt_str_printf(out, "%zu,", number);
    dpt_csv_put(out, name);
    dpt_str_printf(out, ",%s%s,", role, column != NULL && column->indicator ? and_missing : "");
    if (column != NULL && column->filled)
        dpt_str_number(out, column->fill);
    else if (column != NULL && column->place > 0)
        dpt_str_printf(out, "%zu", column->place);
    dpt_str_add(out, ",", 1);
    if (value != NULL)
        dpt_csv_put(out, value);
    if (w->offset)
        dpt_str_add(out, ",", 1);
    if (column != NULL && column->offset != 0)
        dpt_str_number(out, column->offset);
    dpt_str_add(out, "\n", 1);
}

void dpt_columns_write(const struct dpt_columns *c, struct dpt_str *out)
{
    const char values[MARKS] = {c->delimiter, c->decimal, c->thousands};
    struct writing w = {.out = out};

    for (size_t i = 0; i < c->n; i++)
        w.offset = w.offset || c->at[i].offset != 0;
    dpt_str_printf(out, "%s", w.offset ? heading_offset : heading);
    for (size_t i = 0; i < MARKS; i++)
        if (values[i] != 0)
            put_row(&w, 0, marks[i], "file", NULL, (const char[]){values[i], '\0'});
    for (size_t i = 0; i < c->n_missing; i++)
        put_row(&w, 0, "missing", "file", NULL, c->missing[i]);
    if (c->fit != NULL)
        put_row(&w, 0, "fit", "file", NULL, c->fit);
    for (size_t i = 0; i < c->n; i++) {
        const struct dpt_column *column = &c->at[i];
        const char *role = roles[column->role];

        if (column->order != DPT_DATE_UNKNOWN)
            put_row(&w, i + 1, column->name, role, column, orders[column->order]);
        for (size_t k = 0; k < column->n_parts; k++)
            put_row(&w, i + 1, column->name, role, column, dpt_date_part_name(column->parts[k]));
        if (column->values.n == 0 && column->n_parts == 0)
            put_row(&w, i + 1, column->name, role, column, NULL);
        for (size_t k = 0; k < column->values.n; k++)
            put_row(&w, i + 1, column->name, role, column, column->texts[k]);
    }
}

void dpt_columns_release(struct dpt_columns *c)
{
    for (size_t i = 0; i < c->n; i++)
        dpt_names_release(&c->at[i].values);
    free(c->at);
    free((void *)c->missing);
    dpt_region_release(&c->region);
    *c = (struct dpt_columns){0};
}

/* --- questions -------------------------------------------------------------------------------- */

bool dpt_columns_is_missing(const struct dpt_columns *c, const char *text)
{
    return dpt_find(text, c->missing, c->n_missing) < c->n_missing;
}

size_t dpt_column_width(const struct dpt_column *column)
{
    size_t width = column->indicator;

    for (size_t i = 0; i < column->n_parts; i++)
        width += dpt_date_part_width(column->parts[i]);
    if (column->role == DPT_COLUMN_NUMBER)
        width++;
    if (column->role == DPT_COLUMN_CATEGORY)
        width += column->values.n;
    return width;
}

void dpt_column_feature(const struct dpt_column *column, size_t k, struct dpt_str *name)
{
    dpt_str_printf(name, "%s", column->name);
    if (column->role == DPT_COLUMN_CATEGORY) {
        dpt_str_printf(name, "=%s", column->texts[k]);
        return;
    }
    for (size_t i = 0; i < column->n_parts; i++) {
        const size_t width = dpt_date_part_width(column->parts[i]);

        if (k < width) {
            dpt_str_printf(name, " %s%s", dpt_date_part_name(column->parts[i]),
                           width == 1 ? ""
                           : k == 0   ? " sin"
                                      : " cos");
            return;
        }
        k -= width;
    }
    if (column->role == DPT_COLUMN_DATE || k > 0)
        dpt_str_printf(name, " missing");
}

size_t dpt_columns_width(const struct dpt_columns *c)
{
    size_t width = 0;

    for (size_t i = 0; i < c->n; i++)
        width += dpt_column_width(&c->at[i]);
    return width;
}

/* The next input at or after the i-th column; NULL: none. */
static const struct dpt_column *next_input(const struct dpt_columns *c, size_t *i)
{
    while (*i < c->n && !dpt_column_is_input(c->at[*i].role))
        ++*i;
    return *i < c->n ? &c->at[(*i)++] : NULL;
}

static bool alike(const struct dpt_column *a, const struct dpt_column *b)
{
    if (strcmp(a->name, b->name) != 0 || a->role != b->role || a->values.n != b->values.n ||
        a->offset != b->offset || a->indicator != b->indicator || a->n_parts != b->n_parts ||
        memcmp(a->parts, b->parts, sizeof a->parts) != 0)
        return false;
    for (size_t k = 0; k < a->values.n; k++)
        if (strcmp(a->texts[k], b->texts[k]) != 0)
            return false;
    return true;
}

/* Labels that are there in both must be the same distance from what they were. */
static enum dpt_status check_labels(const struct dpt_columns *mine, const char *path,
                                    const struct dpt_columns *theirs, const char *other,
                                    struct dpt_error *err)
{
    char name[DPT_CSV_SHOWN];

    for (size_t k = 0; k < mine->n_labels && k < theirs->n_labels; k++) {
        const struct dpt_column *a = &mine->at[mine->labels[k]];
        const struct dpt_column *b = &theirs->at[theirs->labels[k]];

        if (a->offset != b->offset)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: the label '%s' has the offset %.17g, in %s it is %.17g; `dptrain "
                            "convert csv` with `--like` and a shard of the training data reads "
                            "both alike",
                            path, dpt_csv_shown(a->name, name), a->offset, other, b->offset);
    }
    return DPT_OK;
}

enum dpt_status dpt_columns_check(const char *text, const char *path, const char *other_text,
                                  const char *other, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_columns mine = {0}, theirs = {0};
    const struct dpt_column *a, *b;
    char name[DPT_CSV_SHOWN], other_name[DPT_CSV_SHOWN];
    size_t i = 0, k = 0, n = 0;

    if (strcmp(text, other_text) == 0)
        return DPT_OK;
    DPT_TRY(dpt_columns_parse(&mine, text, path, err));
    DPT_TRY(dpt_columns_parse(&theirs, other_text, other, err));
    do {
        a = next_input(&mine, &i);
        b = next_input(&theirs, &k);
        n++;
    } while (a != NULL && b != NULL && alike(a, b));
    if (a != NULL || b != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: input %zu is column '%s', in %s it is '%s'%s: both must be read "
                         "alike: `dptrain convert csv` with `--like` and a shard of the training "
                         "data does so",
                         path, n, a != NULL ? dpt_csv_shown(a->name, name) : "", other,
                         b != NULL ? dpt_csv_shown(b->name, other_name) : "",
                         a == NULL || b == NULL || strcmp(a->name, b->name) != 0 ? ""
                         : a->role == DPT_COLUMN_CATEGORY && b->role == DPT_COLUMN_CATEGORY
                             ? " with other categories"
                             : ", which was read otherwise"));
    DPT_TRY(check_labels(&mine, path, &theirs, other, err));
out:
    dpt_columns_release(&mine);
    dpt_columns_release(&theirs);
    return status;
}
