/*
 * csv_table: CSV files of one table: which columns they have, what each of them is, and a walk over
 * their rows.
 *
 * The first file says how many columns there are and, with a header, their names; all others must
 * agree. Owned by one source.
 */
#ifndef DPT_DATA_CSV_TABLE_H
#define DPT_DATA_CSV_TABLE_H

#include "core/base/memory.h"
#include "data/tables/columns.h"
#include "data/tables/csv.h"
#include "data/tables/name_index.h"

/* Columns that are asked for beside those of the roles: by which rows are divided. They are no
 * features unless something else names them, too. */
enum { DPT_CSV_GROUP = DPT_COLUMN_ROLE_COUNT, DPT_CSV_TIME, DPT_CSV_ASKED };

/* What is to be read, and what was said of it; borrowed. */
struct dpt_csv_spec {
    const char *const *inputs;
    size_t n_inputs;
    /*
     * The columns of each role, by name or number, as a line of CSV: commas between them, quotes
     * around a name that holds one; or one by its whole name, without quotes. NULL: none. NUMBER:
     * --columns, without which all that have no role are numbers. LABEL: NULL: the last, or what
     * `known` says; "": none has labels.
     */
    const char *asked[DPT_CSV_ASKED];
    const char *header; /* --header: auto, yes, no; NULL: auto */
    /* 0: a comma, a point. Where the first file says its delimiter, the table's spec has that. */
    char delimiter, decimal;
    bool said;                       /* the delimiter is so, whatever files say */
    char thousands;                  /* 0: none */
    const struct dpt_columns *known; /* the columns are to be these, found by name; or NULL */
    bool by_name;                    /* names of columns are kept, or looked for: no two alike */
    bool labels_only; /* no column is a feature; the first without a role names the rows */
    const volatile sig_atomic_t *stop; /* as in struct dpt_input */
};

/* Zero-initialise: {0}. */
struct dpt_csv_table {
    struct dpt_csv_spec spec;
    size_t columns;
    enum dpt_column_role *role; /* [columns] */
    size_t *labels, n_labels;   /* the label columns, in the order they were asked for */
    /* The columns that are inputs, in the order of the file, or of `known` */
    size_t *features, n_features;
    size_t id, weight, group, time; /* `columns`: none */
    char **names;                   /* [columns], or NULL: no header */
    /* Indices of these names, and of the columns of `known`. */
    struct dpt_name_index by_name, known_by_name;
    const char *unknown; /* columns that are none of `known`: "'a', 'b'"; NULL: there are none */
    /* "; columns seem to be separated by semicolons: --delimiter ';'", a message's end; or "". */
    const char *hint;
    bool *assigned;     /* [columns] that have a role already */
    struct dpt_csv csv; /* the row, where there is one; open while it has a buffer */
    size_t file;        /* of the inputs, that csv reads */
    int64_t comments;   /* lines that begin with # and are no rows, since somebody set it to 0 */
    struct dpt_region region;
};

/* Reads the beginning of the first file and resolves the roles of the columns. Errors: USAGE,
 * BAD_DATA (a column of `known` is missing; two have one name), IO, RANK. */
enum dpt_status dpt_csv_table_open(struct dpt_csv_table *table, const struct dpt_csv_spec *spec,
                                   struct dpt_error *err);
void dpt_csv_table_close(struct dpt_csv_table *table);

/* Makes table->csv hold the next row; it has table->columns cells. *more: false after the last.
 * Errors: BAD_DATA (a row of another length), IO, STOPPED. */
enum dpt_status dpt_csv_table_next(struct dpt_csv_table *table, bool *more, struct dpt_error *err);
/* The next row is the first again. */
void dpt_csv_table_rewind(struct dpt_csv_table *table);

/* What a cell holds, as dpt_csv_number, with the table's marks. */
static inline enum dpt_csv_kind dpt_csv_table_number(const struct dpt_csv_table *table,
                                                     const char *text, double *value)
{
    const struct dpt_csv_spec *spec = &table->spec;

    return spec->decimal == 0 && spec->thousands == 0
               ? dpt_csv_number(text, value)
               : dpt_csv_number_in(text, (char)(spec->decimal == 0 ? '.' : spec->decimal),
                                   spec->thousands, value);
}

/* "iris.csv:5: column 3 (petal_length)" of a cell of the row, for messages; returns buf. */
enum { DPT_CSV_WHERE = 1024 };
const char *dpt_csv_where(const struct dpt_csv_table *table, size_t column,
                          char buf[DPT_CSV_WHERE]);
/* "column 3 (petal_length)", or of one without a name "column 3"; returns buf. */
const char *dpt_csv_column_text(const struct dpt_csv_table *table, size_t column,
                                char buf[DPT_CSV_WHERE]);

/*
 * Gives each column its role (csv_roles.c). Called once the names are known, or that there are
 * none. Errors: USAGE, BAD_DATA, RANK.
 */
enum dpt_status dpt_csv_roles(struct dpt_csv_table *table, struct dpt_error *err);
/* Fails where two columns, of which one is not left out, have one name, or both none: which is
 * which would be a guess in another file. Errors: BAD_DATA (names both), RANK. */
enum dpt_status dpt_csv_roles_check_names(const struct dpt_csv_table *table, struct dpt_error *err);
/* Whether some column is asked for by a name. */
bool dpt_csv_roles_need_names(const struct dpt_csv_spec *spec);

#endif
