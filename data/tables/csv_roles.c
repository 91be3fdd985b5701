/* What each column of a table is: as was asked for, or as another table's of the same names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/str.h"
#include "data/tables/csv_table.h"

static const char *const option_names[DPT_CSV_ASKED] = {
    [DPT_COLUMN_NUMBER] = "--columns", [DPT_COLUMN_CATEGORY] = "--categories",
    [DPT_COLUMN_LABEL] = "--label",    [DPT_COLUMN_ID] = "--id",
    [DPT_COLUMN_DROPPED] = "--drop",   [DPT_COLUMN_DATE] = "--dates",
    [DPT_COLUMN_WEIGHT] = "--weight",  [DPT_CSV_GROUP] = "--group",
    [DPT_CSV_TIME] = "--time",
};

/* --- columns by name or number ---------------------------------------------------------------- */

/* A whole number that is all of item[0 … n-1]. */
static bool whole_number(const char *item, size_t n, long *value)
{
    char text[16], *end;

    if (n == 0 || n >= sizeof text)
        return false;
    memcpy(text, item, n);
    text[n] = '\0';
    *value = strtol(text, &end, 10);
    return *end == '\0' && text[0] != ' ' && text[0] != '+';
}

/* Adds the names of the columns, up to some 400 bytes. */
static void list_names(const struct dpt_csv_table *t, struct dpt_str *list)
{
    char shown[DPT_CSV_SHOWN];
    const char *mark;

    for (size_t i = 0; i < t->columns; i++) {
        if (list->length > 400) {
            dpt_str_printf(list, ", …");
            return;
        }
        /* The name is quoted as a list of columns has to have it. */
        mark = t->names[i][0] == '\0' || strpbrk(t->names[i], ",\"\n") != NULL ? "\"" : "";
        dpt_str_printf(list, "%s%s%s%s", i > 0 ? ", " : "", mark, dpt_csv_shown(t->names[i], shown),
                       mark);
    }
}

static enum dpt_status unknown_column(const struct dpt_csv_table *t, size_t role, const char *item,
                                      struct dpt_error *err)
{
    const char *const option = option_names[role];
    struct dpt_str list = {0};
    char shown[DPT_CSV_SHOWN];
    const char *near;
    long number;

    dpt_csv_shown(item, shown);
    if (t->names == NULL || whole_number(item, strlen(item), &number))
        return dpt_fail(err, DPT_USAGE,
                        "%s %s: is no column: there are %zu, 1 to %zu or, from the last, -1 to "
                        "-%zu%s",
                        option, shown, t->columns, t->columns, t->columns, t->hint);
    list_names(t, &list);
    near = dpt_nearest(item, (const char *const *)t->names, t->columns);
    if (near == NULL) /* of a name that holds a comma, item is a part */
        near = dpt_nearest(t->spec.asked[role], (const char *const *)t->names, t->columns);
    dpt_fail(err, DPT_USAGE, "%s %s: no such column%s%s%s %s has: %s%s", option, shown,
             near != NULL ? ", did you mean '" : "", near != NULL ? near : "",
             near != NULL ? "'?" : ";", t->spec.inputs[0], list.text != NULL ? list.text : "",
             t->hint);
    dpt_str_release(&list);
    return err->status;
}

/* How many columns have a name; *column: the last of them. */
static size_t count_named(const struct dpt_csv_table *t, const char *name, size_t *column)
{
    const struct dpt_name_place *first;
    const size_t found = dpt_name_index_find(&t->by_name, name, &first);

    if (found > 0)
        *column = first[found - 1].at;
    return found;
}

/* Fails for two columns of one name. a < b. */
static enum dpt_status same_name(const struct dpt_csv_table *t, size_t a, size_t b,
                                 struct dpt_error *err)
{
    const char *header = t->spec.header;
    const bool guessed = (header == NULL || strcmp(header, "auto") == 0) && t->spec.known == NULL &&
                         !dpt_csv_roles_need_names(&t->spec);
    struct dpt_str advice = {0};
    char shown[DPT_CSV_SHOWN];
    const char *name = t->names[a] + strspn(t->names[a], " \t");

    if (t->spec.known == NULL)
        dpt_str_printf(&advice, ", or leave both out with --drop %zu,%zu%s", a + 1, b + 1,
                       guessed ? "; give --header no if the first line is data" : "");
    dpt_fail(err, DPT_BAD_DATA,
             "%s: columns %zu and %zu %s%s%s: columns are found by their names, so which is which "
             "would be a guess; %s%s",
             t->spec.inputs[0], a + 1, b + 1, name[0] != '\0' ? "are both named '" : "have no name",
             dpt_csv_shown(name, shown), name[0] != '\0' ? "'" : "",
             name[0] != '\0' ? "rename one" : "name one", advice.text != NULL ? advice.text : "");
    dpt_str_release(&advice);
    return err->status;
}

/* role: of those that asked for it, also DPT_CSV_GROUP or DPT_CSV_TIME. */
static enum dpt_status resolve_item(const struct dpt_csv_table *t, size_t role, const char *item,
                                    size_t *column, struct dpt_error *err)
{
    const size_t found = count_named(t, item, column);
    size_t first = 0;
    long number;

    if (found == 1)
        return DPT_OK;
    while (found > 1 && strcmp(t->names[first], item) != 0)
        first++;
    if (found > 1 && t->spec.by_name && role != DPT_COLUMN_DROPPED)
        return same_name(t, first, *column, err);
    if (found > 1)
        return dpt_fail(
            err, DPT_USAGE, "%s %s: %zu columns have this name; give numbers, as in %s %zu,%zu",
            option_names[role], item, found, option_names[role], first + 1, *column + 1);
    if (!whole_number(item, strlen(item), &number) || number == 0 || number > (long)t->columns ||
        number < -(long)t->columns)
        return unknown_column(t, role, item, err);
    *column = number > 0 ? (size_t)number - 1 : t->columns - (size_t)-number;
    return DPT_OK;
}

bool dpt_csv_roles_need_names(const struct dpt_csv_spec *spec)
{
    long number;

    for (size_t role = 0; role < DPT_CSV_ASKED; role++)
        for (const char *item = spec->asked[role]; item != NULL && *item != '\0'; item++) {
            const size_t n = strcspn(item, ",");

            if (!whole_number(item, n, &number))
                return true;
            item += n;
            if (*item == '\0')
                break;
        }
    return false;
}

/* --- as was asked for ------------------------------------------------------------------------- */

static void give_role(struct dpt_csv_table *t, enum dpt_column_role role, size_t column)
{
    t->assigned[column] = true;
    t->role[column] = role;
    if (role == DPT_COLUMN_LABEL)
        t->labels[t->n_labels++] = column;
    if (role == DPT_COLUMN_ID)
        t->id = column;
    if (role == DPT_COLUMN_WEIGHT)
        t->weight = column;
}

/* Gives a column, which `item` names, its role. */
static enum dpt_status assign_item(struct dpt_csv_table *t, enum dpt_column_role role,
                                   const char *item, struct dpt_error *err)
{
    const char *const option = option_names[role];
    size_t column = 0;
    enum dpt_status status = DPT_OK;

    DPT_TRY(resolve_item(t, role, item, &column, err));
    if (t->assigned[column] && t->role[column] == role)
        DPT_TRY(
            dpt_fail(err, DPT_USAGE, "%s %s: column %zu is named twice", option, item, column + 1));
    if (t->assigned[column])
        DPT_TRY(dpt_fail(err, DPT_USAGE, "%s %s: column %zu is named by %s, too", option, item,
                         column + 1, option_names[t->role[column]]));
    if ((role == DPT_COLUMN_ID && t->id < t->columns) ||
        (role == DPT_COLUMN_WEIGHT && t->weight < t->columns))
        DPT_TRY(
            dpt_fail(err, DPT_USAGE, "%s %s: one column is needed", option, t->spec.asked[role]));
    give_role(t, role, column);
out:
    return status;
}

/* Gives the columns that were asked for in one role theirs: the one that the whole text names, or
 * those of a list, in which a name that holds a comma stands in quotes. */
static enum dpt_status assign(struct dpt_csv_table *t, enum dpt_column_role role,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *const text = t->spec.asked[role];
    struct dpt_csv list = {0};
    size_t column;
    bool more;

    if (text[0] == '\0' || count_named(t, text, &column) > 0) {
        DPT_TRY(assign_item(t, role, text, err));
        goto out;
    }
    DPT_TRY(dpt_csv_open_text(&list, text, option_names[role], err));
    for (;;) {
        DPT_TRY(dpt_csv_next(&list, &more, err));
        if (!more)
            break;
        for (size_t i = 0; i < list.n_cells; i++)
            DPT_TRY(assign_item(t, role, list.cells[i].text, err));
    }
out:
    dpt_csv_close(&list);
    return status;
}

/* Makes the first column without a role that of the rows' names. */
static void name_rows(struct dpt_csv_table *t)
{
    size_t first = 0;

    while (first < t->columns && t->assigned[first])
        first++;
    if (first < t->columns)
        give_role(t, DPT_COLUMN_ID, first);
}

/* Finds the columns by which rows are divided. */
static enum dpt_status find_dividing(struct dpt_csv_table *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t *const columns[] = {&t->group, &t->time};

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        const char *item = t->spec.asked[DPT_CSV_GROUP + i];

        if (item == NULL)
            continue;
        DPT_TRY(resolve_item(t, DPT_CSV_GROUP + i, item, columns[i], err));
        if (!t->assigned[*columns[i]])
            t->role[*columns[i]] = DPT_COLUMN_DROPPED;
        t->assigned[*columns[i]] = true;
    }
out:
    return status;
}

/* All roles that were asked for, and the label's where nobody asked. */
static enum dpt_status as_asked(struct dpt_csv_table *t, struct dpt_error *err)
{
    const char *const *asked = t->spec.asked;
    size_t last = t->columns;

    for (size_t role = 0; role < DPT_COLUMN_ROLE_COUNT; role++) {
        /* --label first: of a column that two name, the other is the one to be told. */
        static const enum dpt_column_role order[DPT_COLUMN_ROLE_COUNT] = {
            DPT_COLUMN_LABEL,    DPT_COLUMN_WEIGHT, DPT_COLUMN_ID,    DPT_COLUMN_DROPPED,
            DPT_COLUMN_CATEGORY, DPT_COLUMN_DATE,   DPT_COLUMN_NUMBER};
        const char *text = asked[order[role]];
        enum dpt_status status;

        if (text == NULL || (order[role] == DPT_COLUMN_LABEL && text[0] == '\0'))
            continue;
        status = assign(t, order[role], err);
        if (status != DPT_OK)
            return status;
    }
    if (find_dividing(t, err) != DPT_OK)
        return err->status;
    if (t->spec.labels_only && t->id == t->columns)
        name_rows(t);
    while (asked[DPT_COLUMN_LABEL] == NULL && last > 0 && t->assigned[last - 1])
        last--;
    if (asked[DPT_COLUMN_LABEL] == NULL) {
        if (last == 0)
            return dpt_fail(err, DPT_USAGE, "all %zu columns have a role; --label names the label",
                            t->columns);
        give_role(t, DPT_COLUMN_LABEL, last - 1);
    }
    for (size_t i = 0; i < t->columns; i++) {
        if (!t->assigned[i] && (asked[DPT_COLUMN_NUMBER] != NULL || t->spec.labels_only))
            t->role[i] = DPT_COLUMN_DROPPED;
        if (dpt_column_is_input(t->role[i]))
            t->features[t->n_features++] = i;
    }
    if (t->n_features == 0 && !t->spec.labels_only)
        return t->n_labels == t->columns
                   ? dpt_fail(err, DPT_USAGE,
                              "--label: all %zu columns are labels; none is left as a feature",
                              t->columns)
                   : dpt_fail(err, DPT_USAGE, "none of the %zu columns is left as a feature",
                              t->columns);
    return DPT_OK;
}

/* --- as another table ------------------------------------------------------------------------- */

/* The column of a known one: by its name, and of those of one name by their order. */
static size_t find_known(const struct dpt_csv_table *t, size_t k)
{
    const char *name = t->spec.known->at[k].name;
    const struct dpt_name_place *known, *mine;
    const size_t n = dpt_name_index_find(&t->by_name, name, &mine);
    size_t before = 0;

    dpt_name_index_find(&t->known_by_name, name, &known);
    while (known[before].at < k)
        before++;
    return before < n ? mine[before].at : t->columns;
}

static void add_quoted(struct dpt_str *list, const char *name)
{
    char shown[DPT_CSV_SHOWN];

    if (list->length < 120)
        dpt_str_printf(list, "%s'%s'", list->length > 0 ? ", " : "", dpt_csv_shown(name, shown));
    else if (strcmp(list->text + list->length - 3, "…") != 0)
        dpt_str_printf(list, ", …");
}

/* A known column's place. */
static void take_known(struct dpt_csv_table *t, enum dpt_column_role role, size_t column)
{
    give_role(t, role, column);
    if (dpt_column_is_input(role))
        t->features[t->n_features++] = column;
}

static enum dpt_status no_such_columns(const struct dpt_csv_table *t, const char *missing,
                                       struct dpt_error *err)
{
    struct dpt_str has = {0};

    list_names(t, &has);
    dpt_fail(err, DPT_BAD_DATA,
             "%s: has no column %s, which the model was trained on; it has: %s%s",
             t->spec.inputs[0], missing, has.text != NULL ? has.text : "", t->hint);
    dpt_str_release(&has);
    return err->status;
}

static enum dpt_status by_name(struct dpt_csv_table *t, struct dpt_error *err)
{
    const struct dpt_columns *known = t->spec.known;
    enum dpt_status status = DPT_OK;
    struct dpt_str missing = {0}, unknown = {0};
    size_t labels = 0;

    for (size_t k = 0; k < known->n; k++) {
        const enum dpt_column_role role = known->at[k].role;
        const size_t column = find_known(t, k);

        labels += role == DPT_COLUMN_LABEL;
        /* What was asked for here comes before what was so then. */
        if ((role == DPT_COLUMN_LABEL || role == DPT_COLUMN_ID || role == DPT_COLUMN_WEIGHT) &&
            t->spec.asked[role] != NULL) {
            if (column < t->columns && !t->assigned[column])
                take_known(t, DPT_COLUMN_DROPPED, column);
            continue;
        }
        if (column < t->columns && !t->assigned[column])
            take_known(t, role, column);
        else if (dpt_column_is_input(known->at[k].role))
            add_quoted(&missing, known->at[k].name);
    }
    if (missing.length > 0)
        DPT_TRY(no_such_columns(t, missing.text, err));
    if (t->spec.asked[DPT_COLUMN_LABEL] == NULL && t->n_labels < labels) { /* all or none */
        for (size_t i = 0; i < t->n_labels; i++)
            t->role[t->labels[i]] = DPT_COLUMN_DROPPED;
        t->n_labels = 0;
    }
    for (size_t i = 0; i < t->columns; i++) {
        if (t->assigned[i])
            continue;
        t->role[i] = DPT_COLUMN_DROPPED;
        add_quoted(&unknown, t->names[i]);
    }
    if (unknown.length > 0)
        t->unknown = dpt_region_strdup(&t->region, unknown.text);
    if (missing.failed || unknown.failed || t->region.failed)
        DPT_TRY(dpt_fail_memory(err, "names of columns", 0));
out:
    dpt_str_release(&missing);
    dpt_str_release(&unknown);
    return status;
}

/* Without a header: as many columns as the other table has, as its inputs, or those and labels. */
static enum dpt_status by_place(struct dpt_csv_table *t, struct dpt_error *err)
{
    const struct dpt_columns *known = t->spec.known;
    const bool labels_asked = t->spec.asked[DPT_COLUMN_LABEL] != NULL;
    size_t inputs = 0, labels = 0, free = 0, at = 0;

    for (size_t k = 0; k < known->n; k++) {
        inputs += dpt_column_is_input(known->at[k].role);
        labels += known->at[k].role == DPT_COLUMN_LABEL;
    }
    for (size_t i = 0; i < t->columns; i++)
        free += !t->assigned[i];
    if (free == t->columns && t->columns == known->n && !labels_asked) {
        for (size_t k = 0; k < known->n; k++)
            take_known(t, known->at[k].role, k);
        return DPT_OK;
    }
    if (free != inputs && (labels_asked || free != inputs + labels))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %zu columns without names; the model takes %zu, or %zu with what "
                        "else was in its training data",
                        t->spec.inputs[0], t->columns, inputs, known->n);
    for (size_t k = 0; k < known->n; k++) {
        if (!dpt_column_is_input(known->at[k].role))
            continue;
        while (t->assigned[at])
            at++;
        take_known(t, known->at[k].role, at);
    }
    for (; free > inputs && at < t->columns; at++)
        if (!t->assigned[at])
            take_known(t, DPT_COLUMN_LABEL, at);
    return DPT_OK;
}

/* Brings the labels into the order of the known targets, where they are the same columns. */
static enum dpt_status order_labels(struct dpt_csv_table *t, struct dpt_error *err)
{
    const struct dpt_columns *known = t->spec.known;
    const size_t n = t->n_labels;
    size_t *ordered;

    if (n < 2 || n != known->n_labels)
        return DPT_OK;
    ordered = dpt_region_alloc(&t->region, n * sizeof *ordered);
    if (ordered == NULL)
        return dpt_fail_memory(err, "the labels", (double)n);
    for (size_t k = 0; k < n; k++) {
        ordered[k] = t->names != NULL ? find_known(t, known->labels[k]) : known->labels[k];
        if (ordered[k] >= t->columns || t->role[ordered[k]] != DPT_COLUMN_LABEL)
            return DPT_OK;
    }
    memcpy(t->labels, ordered, n * sizeof *ordered);
    return DPT_OK;
}

static enum dpt_status as_known(struct dpt_csv_table *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *const *asked = t->spec.asked;

    if (asked[DPT_COLUMN_LABEL] != NULL && asked[DPT_COLUMN_LABEL][0] != '\0')
        DPT_TRY(assign(t, DPT_COLUMN_LABEL, err));
    if (asked[DPT_COLUMN_ID] != NULL)
        DPT_TRY(assign(t, DPT_COLUMN_ID, err));
    if (asked[DPT_COLUMN_WEIGHT] != NULL)
        DPT_TRY(assign(t, DPT_COLUMN_WEIGHT, err));
    DPT_TRY((t->names != NULL ? by_name : by_place)(t, err));
    DPT_TRY(order_labels(t, err));
    DPT_TRY(find_dividing(t, err));
out:
    return status;
}

enum dpt_status dpt_csv_roles(struct dpt_csv_table *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_columns *known = t->spec.known;
    const size_t named = t->names != NULL ? t->columns : 0, n = known != NULL ? known->n : 0;

    DPT_TRY(dpt_name_index_make(&t->by_name, t->names, sizeof *t->names, named, &t->region, err));
    DPT_TRY(dpt_name_index_make(&t->known_by_name, n > 0 ? &known->at->name : NULL,
                                sizeof *known->at, n, &t->region, err));
    t->n_labels = t->n_features = 0;
    t->id = t->weight = t->group = t->time = t->columns;
    t->unknown = NULL;
    for (size_t i = 0; i < t->columns; i++) {
        t->role[i] = DPT_COLUMN_NUMBER;
        t->assigned[i] = false;
    }
    status = (known != NULL ? as_known : as_asked)(t, err);
out:
    return status;
}

/* --- names that are alike --------------------------------------------------------------------- */

/* A column's name without the blanks around it, which quotes may keep. */
struct bare_name {
    const char *text;
    size_t length, column;
};

static int compare_texts(const struct bare_name *a, const struct bare_name *b)
{
    const size_t n = a->length < b->length ? a->length : b->length;
    const int by_bytes = memcmp(a->text, b->text, n);

    return by_bytes != 0 ? by_bytes : (a->length > b->length) - (a->length < b->length);
}

static int compare_names(const void *a, const void *b)
{
    const struct bare_name *one = a, *other = b;
    const int by_text = compare_texts(one, other);

    return by_text != 0 ? by_text : (one->column > other->column) - (one->column < other->column);
}

enum dpt_status dpt_csv_roles_check_names(const struct dpt_csv_table *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct bare_name *names = NULL;

    if (t->names == NULL || !t->spec.by_name)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(names, t->columns, "names of columns", err));
    for (size_t i = 0; i < t->columns; i++) {
        const char *text = t->names[i] + strspn(t->names[i], " \t");
        size_t n = strlen(text);

        while (n > 0 && strchr(" \t", text[n - 1]) != NULL)
            n--;
        names[i] = (struct bare_name){text, n, i};
    }
    qsort(names, t->columns, sizeof *names, compare_names);
    for (size_t first = 0, i = 1; i < t->columns; i++) {
        if (compare_texts(&names[first], &names[i]) != 0)
            first = i;
        else if (t->role[names[first].column] != DPT_COLUMN_DROPPED ||
                 t->role[names[i].column] != DPT_COLUMN_DROPPED)
            DPT_TRY(same_name(t, names[first].column, names[i].column, err));
    }
out:
    dpt_free(names);
    return status;
}
