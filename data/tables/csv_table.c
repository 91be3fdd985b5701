#include "data/tables/csv_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/str.h"

const char *dpt_csv_where(const struct dpt_csv_table *t, size_t column, char buf[DPT_CSV_WHERE])
{
    char name[DPT_CSV_SHOWN];

    snprintf(buf, DPT_CSV_WHERE, "%s:%lld: column %zu%s%s%s", t->csv.in.path,
             (long long)t->csv.cells[column].line, column + 1, t->names != NULL ? " (" : "",
             t->names != NULL ? dpt_csv_shown(t->names[column], name) : "",
             t->names != NULL ? ")" : "");
    return buf;
}

const char *dpt_csv_column_text(const struct dpt_csv_table *t, size_t column,
                                char buf[DPT_CSV_WHERE])
{
    const char *name = t->names != NULL ? t->names[column] : "";
    char shown[DPT_CSV_SHOWN];

    snprintf(buf, DPT_CSV_WHERE, "column %zu%s%s%s", column + 1, name[0] != '\0' ? " (" : "",
             dpt_csv_shown(name, shown), name[0] != '\0' ? ")" : "");
    return buf;
}

static bool is_number(const struct dpt_csv_table *t, const struct dpt_csv_cell *cell)
{
    double value;
    const enum dpt_csv_kind kind = dpt_csv_table_number(t, cell->text, &value);

    return kind == DPT_CSV_NUMBER || kind == DPT_CSV_NOT_FINITE;
}

/* Whether a record is a line that begins with #: a comment, unless it has a row's cells. */
static bool begins_with_hash(const struct dpt_csv *csv)
{
    return !csv->cells[0].quoted && csv->cells[0].text[0] == '#';
}

/* Numbers that some program put between blanks, in quotes, are numbers, and blanks alone are no
 * value. Names of classes and rows are not changed. */
static void trim_quoted(const struct dpt_csv_table *t, struct dpt_csv *csv)
{
    for (size_t i = 0; i < csv->n_cells; i++) {
        struct dpt_csv_cell *cell = &csv->cells[i];
        char *text = csv->text + (cell->text - csv->text);
        size_t skip, n = cell->length;

        if (!cell->quoted || n == 0 ||
            (strchr(" \t", text[0]) == NULL && strchr(" \t", text[n - 1]) == NULL))
            continue;
        skip = strspn(text, " \t");
        if (skip < n && !is_number(t, cell))
            continue;
        while (n > skip && strchr(" \t", text[n - 1]) != NULL)
            n--;
        text[n] = '\0';
        cell->text = text + skip;
        cell->length = n - skip;
    }
}

static enum dpt_status next_record(const struct dpt_csv_table *t, struct dpt_csv *csv, bool *more,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_csv_next(csv, more, err));
    if (*more)
        trim_quoted(t, csv);
out:
    return status;
}

/* Opens the file that is next. */
static enum dpt_status open_file(struct dpt_csv_table *t, struct dpt_error *err)
{
    const enum dpt_status status =
        dpt_csv_open(&t->csv, t->spec.inputs[t->file], t->spec.stop, err);

    if (t->spec.delimiter != 0)
        t->csv.delimiter = t->spec.delimiter;
    t->csv.said = t->spec.said;
    return status;
}

/* Whether each cell of a record is a word: no number, and not one that stands for none. */
static bool all_words(const struct dpt_csv_table *t, const struct dpt_csv *csv)
{
    double ignored;

    for (size_t i = 0; i < csv->n_cells; i++)
        if (dpt_csv_table_number(t, csv->cells[i].text, &ignored) != DPT_CSV_TEXT)
            return false;
    return true;
}

/* Gives the first record after the comments at the beginning of a file. The last of these counts
 * as a record where it has as many cells, as the names that np.savetxt writes, unless names follow
 * it, and then numbers. */
static enum dpt_status first_record(struct dpt_csv_table *t, bool *more, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv *csv = &t->csv;
    size_t comments = 0, cells = 0, take;

    DPT_TRY(next_record(t, csv, more, err));
    for (; *more && begins_with_hash(csv); comments++) {
        cells = csv->n_cells;
        DPT_TRY(next_record(t, csv, more, err));
    }
    if (comments == 0 || (*more && (csv->n_cells != cells || cells == 1)))
        return DPT_OK;
    take = comments;
    if (*more && all_words(t, csv)) {
        DPT_TRY(next_record(t, csv, more, err));
        take += *more && !all_words(t, csv);
    }
    dpt_csv_close(csv);
    DPT_TRY(open_file(t, err));
    for (size_t i = 0; i < take; i++)
        DPT_TRY(next_record(t, csv, more, err));
out:
    return status;
}

/* Whether the cells hold all inputs that are known by name, or one that is no number. */
static enum dpt_status holds_known(struct dpt_csv_table *t, const struct dpt_csv *csv, bool *holds,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_columns *known = t->spec.known;
    struct dpt_name_index cells;
    bool all = known != NULL, any = false;

    *holds = false;
    if (known == NULL)
        return DPT_OK;
    DPT_TRY(dpt_name_index_make(&cells, &csv->cells->text, sizeof *csv->cells, csv->n_cells,
                                &t->region, err));
    for (size_t k = 0; k < known->n && !any; k++) {
        const struct dpt_name_place *first;

        if (!dpt_column_is_input(known->at[k].role))
            continue;
        if (dpt_name_index_find(&cells, known->at[k].name, &first) == 0)
            all = false;
        else
            any = !is_number(t, &csv->cells[first->at]);
    }
    *holds = all || any;
out:
    return status;
}

/*
 * A header has no number among the features. If it has only numbers there (0, 1, 2, …, label: some
 * programs number columns), the label decides: text above numbers is a header. A mixture is data,
 * whose error then names the place. Known names decide at once.
 */
static enum dpt_status looks_like_header(struct dpt_csv_table *t, struct dpt_csv *csv, bool *header,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t numbers = 0, features = 0;
    bool text_label = true, holds, more;

    for (size_t i = 0; i < t->columns; i++) {
        if (t->role[i] == DPT_COLUMN_LABEL)
            text_label = text_label && !is_number(t, &csv->cells[i]);
        else if (t->role[i] == DPT_COLUMN_NUMBER)
            features++, numbers += is_number(t, &csv->cells[i]);
    }
    DPT_TRY(holds_known(t, csv, &holds, err));
    *header = numbers == 0 || holds;
    if (*header || numbers < features || !text_label || t->n_labels == 0)
        goto out;
    DPT_TRY(next_record(t, csv, &more, err));
    *header = more && csv->n_cells == t->columns;
    for (size_t i = 0; *header && i < t->n_labels; i++)
        *header = is_number(t, &csv->cells[t->labels[i]]);
out:
    return status;
}

/* Says in t->hint what seems to stand between columns instead, by the first record: what its
 * unquoted cells hold more often than there are delimiters. */
static enum dpt_status find_hint(struct dpt_csv_table *t, const struct dpt_csv *csv,
                                 struct dpt_error *err)
{
    static const struct {
        char mark;
        const char *name, *option;
    } others[] = {{';', "semicolons", "';'"},
                  {'\t', "tabs", "tab"},
                  {'|', "bars", "'|'"},
                  {',', "commas", ","}};
    const char decimal = (char)(t->spec.decimal == 0 ? '.' : t->spec.decimal);
    size_t most = csv->n_cells - 1;

    t->hint = "";
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const char mark = others[i].mark;
        size_t n = 0;

        for (size_t k = 0; mark != decimal && mark != t->spec.thousands && k < csv->n_cells; k++)
            for (const char *at = csv->cells[k].text; !csv->cells[k].quoted && *at != '\0'; at++)
                n += *at == mark;
        if (n <= most)
            continue;
        most = n;
        t->hint = dpt_region_printf(&t->region,
                                    "; columns seem to be separated by %s: "
                                    "--delimiter %s",
                                    others[i].name, others[i].option);
        if (t->hint == NULL)
            return dpt_fail_memory(err, csv->in.path, (double)n);
    }
    return DPT_OK;
}

static enum dpt_status check_columns(struct dpt_csv_table *t, const struct dpt_csv *csv,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *label = t->spec.asked[DPT_COLUMN_LABEL];

    DPT_TRY(find_hint(t, csv, err));
    if (csv->n_cells > 1)
        return DPT_OK;
    if (t->hint[0] != '\0')
        return dpt_fail(err, DPT_BAD_DATA, "%s:%lld: %s", csv->in.path, (long long)csv->line,
                        t->hint + strlen("; "));
    if ((label != NULL && label[0] == '\0') || t->spec.known != NULL)
        return DPT_OK;
    DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                     "%s:%lld: has one column; a %s and a label are needed at least", csv->in.path,
                     (long long)csv->line, t->spec.labels_only ? "file" : "feature"));
out:
    return status;
}

/* Looks at the first record of the first file. */
static enum dpt_status look(struct dpt_csv_table *t, struct dpt_csv *csv, struct dpt_error *err)
{
    const char *const option = t->spec.header;
    const bool automatic = option == NULL || strcmp(option, "auto") == 0;
    bool header = option != NULL && strcmp(option, "yes") == 0;
    enum dpt_status status = DPT_OK;
    char **names;
    bool more;

    if (!automatic && !header && strcmp(option, "no") != 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--header %s: must be auto, yes or no", option));
    DPT_TRY(first_record(t, &more, err));
    if (!more)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: is empty", csv->in.path));
    if (csv->delimiter != ',' || t->spec.delimiter != 0)
        t->spec.delimiter = (char)(csv->delimiter == ',' ? 0 : csv->delimiter);
    DPT_TRY(check_columns(t, csv, err));
    t->columns = csv->n_cells;
    t->labels = dpt_region_alloc(&t->region, t->columns * sizeof *t->labels);
    t->features = dpt_region_alloc(&t->region, t->columns * sizeof *t->features);
    t->role = dpt_region_alloc(&t->region, t->columns * sizeof *t->role);
    t->assigned = dpt_region_alloc(&t->region, t->columns * sizeof *t->assigned);
    names = dpt_region_alloc(&t->region, t->columns * sizeof *names);
    for (size_t i = 0; names != NULL && i < t->columns; i++)
        names[i] = dpt_region_strdup(&t->region, csv->cells[i].text);
    if (t->region.failed)
        DPT_TRY(dpt_fail_memory(err, csv->in.path, (double)t->columns * sizeof *names));
    if (automatic && dpt_csv_roles_need_names(&t->spec)) {
        header = true;
    } else if (automatic) {
        for (size_t i = 0; i < t->columns; i++)
            t->role[i] = DPT_COLUMN_NUMBER;
        if (t->spec.known == NULL)
            DPT_TRY(dpt_csv_roles(t, err));
        DPT_TRY(looks_like_header(t, csv, &header, err));
    }
    t->names = header ? names : NULL;
    DPT_TRY(dpt_csv_roles(t, err));
    DPT_TRY(dpt_csv_roles_check_names(t, err));
out:
    return status;
}

enum dpt_status dpt_csv_table_open(struct dpt_csv_table *t, const struct dpt_csv_spec *spec,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *t = (struct dpt_csv_table){.spec = *spec};
    DPT_TRY(open_file(t, err));
    DPT_TRY(look(t, &t->csv, err));
out:
    dpt_csv_close(&t->csv);
    return status;
}

void dpt_csv_table_close(struct dpt_csv_table *t)
{
    dpt_csv_close(&t->csv);
    dpt_region_release(&t->region);
    *t = (struct dpt_csv_table){0};
}

/* Whether a record has no number among its features. */
static bool only_words(const struct dpt_csv_table *t, const struct dpt_csv *csv)
{
    for (size_t i = 0; i < csv->n_cells && i < t->columns; i++)
        if (t->role[i] == DPT_COLUMN_NUMBER && is_number(t, &csv->cells[i]))
            return false;
    return true;
}

static bool same_names(const struct dpt_csv_table *t, const struct dpt_csv *csv)
{
    if (csv->n_cells != t->columns)
        return false;
    for (size_t i = 0; i < t->columns; i++)
        if (strcmp(csv->cells[i].text, t->names[i]) != 0)
            return false;
    return true;
}

/* Whether a record is a comment. first: of its file, where a header may begin with #. */
static bool is_comment(const struct dpt_csv_table *t, bool first)
{
    return begins_with_hash(&t->csv) && (t->csv.n_cells != t->columns || t->columns == 1 ||
                                         (first && t->names != NULL && !same_names(t, &t->csv)));
}

/* What is wrong with a row, if anything; *skip: it is a header. */
static enum dpt_status check_row(const struct dpt_csv_table *t, const struct dpt_csv *csv,
                                 bool first, bool *skip, struct dpt_error *err)
{
    const char *const option = t->spec.header;

    *skip = false;
    if (first && t->names != NULL) {
        *skip = same_names(t, csv);
        if (*skip)
            return DPT_OK;
        if ((option != NULL && strcmp(option, "yes") == 0) || only_words(t, csv))
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s:%lld: the names of the columns are not those of %s", csv->in.path,
                            (long long)csv->line, t->spec.inputs[0]);
    }
    if (csv->n_cells != t->columns)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s:%lld: has %zu columns, the first line of %s has %zu%s", csv->in.path,
                        (long long)csv->line, csv->n_cells, t->spec.inputs[0], t->columns, t->hint);
    return DPT_OK;
}

enum dpt_status dpt_csv_table_next(struct dpt_csv_table *t, bool *more, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool first = false, skip = true;

    *more = false;
    while (skip && t->file < t->spec.n_inputs) {
        if (t->csv.buffer == NULL) {
            DPT_TRY(open_file(t, err));
            first = true;
        }
        DPT_TRY(next_record(t, &t->csv, more, err));
        if (*more && is_comment(t, first)) {
            t->comments++;
        } else if (*more) {
            DPT_TRY(check_row(t, &t->csv, first, &skip, err));
            first = false;
        } else {
            dpt_csv_close(&t->csv);
            t->file++;
        }
    }
out:
    return status;
}

void dpt_csv_table_rewind(struct dpt_csv_table *t)
{
    dpt_csv_close(&t->csv);
    t->file = 0;
}
