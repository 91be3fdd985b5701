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
    size_t columns, n_labels;
    size_t *labels;     /* the label columns, in the order they were asked for */
    bool *is_label;     /* [columns] */
    char **names;       /* [columns], or NULL: no header */
    struct dpt_csv csv; /* the row, where there is one; open while it has a buffer */
    size_t file;        /* of the inputs, that csv reads */
    struct dpt_region region;
};

/* Reads the beginning of the first file and resolves --header and --label. Errors: USAGE, BAD_DATA,
 * IO, RANK. */
enum dpt_status dpt_csv_table_open(struct dpt_csv_table *table, const struct dpt_csv_spec *spec,
                                   struct dpt_error *err);
void dpt_csv_table_close(struct dpt_csv_table *table);

/* Makes table->csv hold the next row; it has table->columns cells. *more: false behind the last.
 * Errors: BAD_DATA (a row of another length), IO, STOPPED. */
enum dpt_status dpt_csv_table_next(struct dpt_csv_table *table, bool *more, struct dpt_error *err);
/* The next row is the first again. */
void dpt_csv_table_rewind(struct dpt_csv_table *table);

/* "iris.csv:5: column 3 (petal_length)" of a cell of the row, for messages; returns buf. */
enum { DPT_CSV_WHERE = 1024 };
const char *dpt_csv_where(const struct dpt_csv_table *table, size_t column,
                          char buf[DPT_CSV_WHERE]);

#endif
