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

static enum dpt_status unknown_column(const struct dpt_csv_table *t, const char *item, size_t n,
                                      struct dpt_error *err)
{
    char name[128], shown[DPT_CSV_SHOWN];
    struct dpt_str list = {0};
    const char *near;

    snprintf(name, sizeof name, "%.*s", (int)n, item);
    if (t->names == NULL)
        return dpt_fail(
            err, DPT_USAGE,
            "--label %s: is no column: there are %zu, 1 to %zu or, from the last, -1 to -%zu", name,
            t->columns, t->columns, t->columns);
    for (size_t i = 0; i < t->columns && list.length < 400; i++)
        dpt_str_printf(&list, "%s%s", i > 0 ? ", " : "", dpt_csv_shown(t->names[i], shown));
    near = dpt_nearest(name, (const char *const *)t->names, t->columns);
    dpt_fail(err, DPT_USAGE, "--label %s: no such column%s%s%s; %s has: %.400s%s", name,
             near != NULL ? ", did you mean '" : "", near != NULL ? near : "",
             near != NULL ? "'" : "", t->spec.inputs[0], list.text != NULL ? list.text : "",
             list.length > 400 ? "…" : "");
    dpt_str_release(&list);
    return err->status;
}

static enum dpt_status resolve_item(const struct dpt_csv_table *t, const char *item, size_t n,
                                    size_t *column, struct dpt_error *err)
{
    size_t found = 0;
    long number;

    for (size_t i = 0; t->names != NULL && i < t->columns; i++) {
        if (strlen(t->names[i]) != n || memcmp(t->names[i], item, n) != 0)
            continue;
        *column = i;
        found++;
    }
    if (found == 1)
        return DPT_OK;
    if (found > 1)
        return dpt_fail(err, DPT_USAGE,
                        "--label %.*s: %zu columns have this name; give the number of one", (int)n,
                        item, found);
    if (!whole_number(item, n, &number) || number == 0 || number > (long)t->columns ||
        number < -(long)t->columns)
        return unknown_column(t, item, n, err);
    *column = number > 0 ? (size_t)number - 1 : t->columns - (size_t)-number;
    return DPT_OK;
}

static bool unlabelled(const struct dpt_csv_table *t)
{
    const char *item = t->spec.label;

    return item != NULL && item[0] == '\0';
}

/* Fills labels and is_label from --label; without one the last column. */
static enum dpt_status resolve_labels(struct dpt_csv_table *t, struct dpt_error *err)
{
    const char *item = t->spec.label;
    size_t column = 0;

    t->n_labels = 0;
    memset(t->is_label, 0, t->columns * sizeof *t->is_label);
    if (unlabelled(t))
        return DPT_OK;
    for (item = item != NULL ? item : "-1";; item++) {
        const size_t n = strcspn(item, ",");
        const enum dpt_status status = resolve_item(t, item, n, &column, err);

        if (status != DPT_OK)
            return status;
        if (t->is_label[column])
            return dpt_fail(err, DPT_USAGE, "--label %.*s: column %zu is named twice", (int)n, item,
                            column + 1);
        t->is_label[column] = true;
        t->labels[t->n_labels++] = column;
        item += n;
        if (*item == '\0')
            break;
    }
    if (t->n_labels == t->columns)
        return dpt_fail(err, DPT_USAGE,
                        "--label: all %zu columns are labels; none is left as a feature",
                        t->columns);
    return DPT_OK;
}

/* Whether --label can only be understood with names. */
static bool labels_need_names(const char *item)
{
    long number;

    for (; item != NULL; item++) {
        const size_t n = strcspn(item, ",");

        if (!whole_number(item, n, &number))
            return true;
        item += n;
        if (*item == '\0')
            break;
    }
    return false;
}

static bool is_number(const struct dpt_csv_cell *cell)
{
    double value;
    const enum dpt_csv_kind kind = dpt_csv_number(cell->text, &value);

    return kind == DPT_CSV_NUMBER || kind == DPT_CSV_NOT_FINITE;
}

/*
 * A header has no number among the features. Where it has nothing but numbers there (0, 1, 2, …,
 * label, as some programs number columns), the label tells: text above numbers. A mixture is data,
 * whose error then names the place.
 */
static enum dpt_status looks_like_header(const struct dpt_csv_table *t, struct dpt_csv *csv,
                                         bool *header, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t numbers = 0;
    bool text_label = true, more;

    for (size_t i = 0; i < t->columns; i++) {
        if (!t->is_label[i])
            numbers += is_number(&csv->cells[i]);
        else
            text_label = text_label && !is_number(&csv->cells[i]);
    }
    *header = numbers == 0;
    if (numbers < t->columns - t->n_labels || !text_label || t->n_labels == 0)
        goto out;
    DPT_TRY(dpt_csv_next(csv, &more, err));
    *header = more && csv->n_cells == t->columns;
    for (size_t i = 0; *header && i < t->n_labels; i++)
        *header = is_number(&csv->cells[t->labels[i]]);
out:
    return status;
}

static enum dpt_status check_columns(const struct dpt_csv_table *t, const struct dpt_csv *csv,
                                     struct dpt_error *err)
{
    const char *other = NULL;

    if (csv->n_cells > 1)
        return DPT_OK;
    if (strchr(csv->cells[0].text, ';') != NULL)
        other = "semicolons";
    else if (strchr(csv->cells[0].text, '\t') != NULL)
        other = "tabs";
    if (other == NULL && unlabelled(t))
        return DPT_OK;
    if (other != NULL)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s:%lld: columns seem to be separated by %s; commas are needed",
                        csv->in.path, (long long)csv->line, other);
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s:%lld: has one column; a feature and a label are needed at least",
                    csv->in.path, (long long)csv->line);
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
    DPT_TRY(dpt_csv_next(csv, &more, err));
    if (!more)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: is empty", csv->in.path));
    DPT_TRY(check_columns(t, csv, err));
    t->columns = csv->n_cells;
    t->labels = dpt_region_alloc(&t->region, t->columns * sizeof *t->labels);
    t->is_label = dpt_region_alloc(&t->region, t->columns * sizeof *t->is_label);
    names = dpt_region_alloc(&t->region, t->columns * sizeof *names);
    for (size_t i = 0; names != NULL && i < t->columns; i++)
        names[i] = dpt_region_strdup(&t->region, csv->cells[i].text);
    if (t->region.failed)
        DPT_TRY(dpt_fail_memory(err, csv->in.path, (double)t->columns * sizeof *names));
    if (automatic && !unlabelled(t) && labels_need_names(t->spec.label)) {
        header = true;
    } else if (automatic) {
        DPT_TRY(resolve_labels(t, err));
        DPT_TRY(looks_like_header(t, csv, &header, err));
    }
    t->names = header ? names : NULL;
    DPT_TRY(resolve_labels(t, err));
out:
    return status;
}

enum dpt_status dpt_csv_table_open(struct dpt_csv_table *t, const struct dpt_csv_spec *spec,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *t = (struct dpt_csv_table){.spec = *spec};
    DPT_TRY(dpt_csv_open(&t->csv, spec->inputs[0], spec->stop, err));
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
        if (!t->is_label[i] && is_number(&csv->cells[i]))
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
        return dpt_fail(err, DPT_BAD_DATA, "%s:%lld: has %zu columns, the first line of %s has %zu",
                        csv->in.path, (long long)csv->line, csv->n_cells, t->spec.inputs[0],
                        t->columns);
    return DPT_OK;
}

enum dpt_status dpt_csv_table_next(struct dpt_csv_table *t, bool *more, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool first = false, skip = true;

    *more = false;
    while (skip && t->file < t->spec.n_inputs) {
        if (t->csv.buffer == NULL) {
            DPT_TRY(dpt_csv_open(&t->csv, t->spec.inputs[t->file], t->spec.stop, err));
            first = true;
        }
        DPT_TRY(dpt_csv_next(&t->csv, more, err));
        if (*more) {
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
