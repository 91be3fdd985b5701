/*
 * csv_table: CSV files of one table: which columns they have, which of them are labels, and a walk
 * over their rows.
 *
 * The first file says how many columns there are and, with a header, their names; all others must
 * agree. Owned by one converter.
 */
#ifndef DPT_DATA_CSV_TABLE_H
#define DPT_DATA_CSV_TABLE_H

#include "core/base/memory.h"
#include "data/sources/convert_input.h"
#include "data/tables/csv.h"

/* Zero-initialise: {0}. With the option --label "" there is no label column. */
struct dpt_csv_table {
    const struct dpt_convert_job *job;
    locale_t c_locale;
    size_t columns, n_labels;
    size_t *labels; /* the label columns, in the order they were asked for */
    bool *is_label; /* [columns] */
    char **names;   /* [columns], or NULL: no header */
    struct dpt_arena arena;
};

/* Looks at the first file and resolves --header and --label. Errors: USAGE, BAD_DATA, IO, RANK. */
enum dpt_status dpt_csv_table_open(struct dpt_csv_table *table, const struct dpt_convert_job *job,
                                   struct dpt_error *err);
void dpt_csv_table_close(struct dpt_csv_table *table);

/* The rows one after another. Zero-initialise but for `table`; close. */
struct dpt_csv_cursor {
    const struct dpt_csv_table *table;
    struct dpt_csv csv; /* the row, where there is one more */
    size_t file;        /* of the table's inputs */
    bool opened;
    struct dpt_input in;
};

/* The next row; it has table->columns cells. Errors: BAD_DATA (a row of another length), IO. */
enum dpt_status dpt_csv_cursor_next(struct dpt_csv_cursor *cursor, bool *more,
                                    struct dpt_error *err);
void dpt_csv_cursor_close(struct dpt_csv_cursor *cursor);

/* Calls visit with each row of each file; it has table->columns cells. Errors: BAD_DATA (a row of
 * another length), visit's. */
enum dpt_status dpt_csv_table_walk(const struct dpt_csv_table *table,
                                   enum dpt_status (*visit)(void *arg, const struct dpt_csv *row,
                                                            struct dpt_error *err),
                                   void *arg, struct dpt_error *err);

/* "iris.csv:5: column 3 (petal_length)" of a cell, for messages; returns buf. */
enum { DPT_CSV_WHERE = 1024 };
const char *dpt_csv_where(const struct dpt_csv_table *table, const struct dpt_csv *row,
                          size_t column, char buf[DPT_CSV_WHERE]);

#endif
