/*
 * csv_table: CSV files of one table: which columns they have, which of them are labels, and a walk
 * over their rows.
 *
 * The first file says how many columns there are and, with a header, their names; all others must
 * agree. Owned by one source.
 */
#ifndef DPT_DATA_CSV_TABLE_H
#define DPT_DATA_CSV_TABLE_H

#include "core/base/memory.h"
#include "data/tables/csv.h"
#include "data/tables/input.h"

/* What is to be read, and what was said of it; borrowed. */
struct dpt_csv_spec {
    const char *const *inputs;
    size_t n_inputs;
    const char *label; /* --label: columns by name or number; NULL: the last; "": none has labels */
    const char *header;                /* --header: auto, yes, no; NULL: auto */
    const volatile sig_atomic_t *stop; /* as in struct dpt_input */
};

/* Zero-initialise: {0}. */
struct dpt_csv_table {
    struct dpt_csv_spec spec;
    locale_t c_locale;
    size_t columns, n_labels;
    size_t *labels; /* the label columns, in the order they were asked for */
    bool *is_label; /* [columns] */
    char **names;   /* [columns], or NULL: no header */
    struct dpt_region region;
};

/* Reads the beginning of the first file and resolves --header and --label. Errors: USAGE, BAD_DATA,
 * IO, RANK. */
enum dpt_status dpt_csv_table_open(struct dpt_csv_table *table, const struct dpt_csv_spec *spec,
                                   struct dpt_error *err);
void dpt_csv_table_close(struct dpt_csv_table *table);

/* An iterator over the rows. Zero-initialise but for `table`; close. */
struct dpt_csv_cursor {
    const struct dpt_csv_table *table;
    struct dpt_csv csv; /* the row, where there is one more */
    size_t file;        /* of the table's inputs */
    bool opened;
    struct dpt_input in;
};

/* The next row; it has table->columns cells. Errors: BAD_DATA (a row of another length), IO,
 * STOPPED. */
enum dpt_status dpt_csv_cursor_next(struct dpt_csv_cursor *cursor, bool *more,
                                    struct dpt_error *err);
void dpt_csv_cursor_close(struct dpt_csv_cursor *cursor);

/* "iris.csv:5: column 3 (petal_length)" of a cell, for messages; returns buf. */
enum { DPT_CSV_WHERE = 1024 };
const char *dpt_csv_where(const struct dpt_csv_table *table, const struct dpt_csv *row,
                          size_t column, char buf[DPT_CSV_WHERE]);

#endif
