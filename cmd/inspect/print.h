/*
 * inspect_print: tables of data sets, 80 columns wide where their names allow it. Private to
 * `dptrain inspect`.
 */
#ifndef DPT_CMD_INSPECT_PRINT_H
#define DPT_CMD_INSPECT_PRINT_H

#include "cmd/cmd.h"
#include "core/base/str.h"
#include "core/state/checkpoint.h"
#include "data/shards/inspect.h"

enum { DPT_TABLE_CELLS = 5, DPT_TABLE_CELL = 64 };

struct dpt_table_row {
    const char *name;     /* of a data set */
    struct dpt_str shown; /* that name as one line */
    char cell[DPT_TABLE_CELLS][DPT_TABLE_CELL];
};

/* One row a data set. Columns in which no row has anything are left out. */
struct dpt_table {
    const char *title;                   /* above the names */
    const char *titles[DPT_TABLE_CELLS]; /* ends with NULL where there are fewer */
    const char *align;                   /* a letter per column: l or r */
    struct dpt_table_row *rows;
    size_t n;
};

/* Room for `most` rows. Errors: RANK. */
enum dpt_status dpt_table_open(struct dpt_table *table, size_t most, struct dpt_error *err);
/* A new row; there must be room. */
struct dpt_table_row *dpt_table_add(struct dpt_table *table, const char *name);
/* Prints it to stdout; data sets of one folder under its name. */
void dpt_table_print(const struct dpt_table *table);
void dpt_table_close(struct dpt_table *table);

/* "  step          60": a line, or several, of a list of properties. */
void dpt_inspect_property(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints a listed file whose data sets were read: the head, the data sets, their values, the
 * checksums. Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_inspect_print(struct dpt_inspect *f, enum dpt_trailer trailer,
                                  struct dpt_error *err);

/* Prints where two whole files differ, or that they do not. Errors: FAILED without a text: they
 * differ; BAD_DATA, IO, RANK. */
enum dpt_status dpt_inspect_diff(struct dpt_inspect *a, struct dpt_inspect *b,
                                 struct dpt_error *err);

/* Makes a PNG of some training samples, as they are and as the first epochs see them. Errors:
 * USAGE, BAD_JOB, BAD_DATA, IO, RANK. */
enum dpt_status dpt_inspect_augmented(struct dpt_cli *cli, const char *path, struct dpt_error *err);

#endif
