/*
 * csv_state: a CSV source: its table, what its columns become, and what its labels are. Private to
 * source_csv.c, csv_rows.c, csv_labels.c, csv_columns.c, csv_dates.c, csv_spans.c, csv_words.c and
 * csv_fit.c; pictures_labels.c adds what was done to the images.
 */
#ifndef DPT_DATA_CSV_STATE_H
#define DPT_DATA_CSV_STATE_H

#include <math.h>

#include "core/base/str.h"
#include "data/shards/labels.h"
#include "data/sources/source_type.h"
#include "data/tables/csv_table.h"

enum { DPT_CSV_LABEL_MOST = INT32_MAX - 1 };

/* What the labels of a file that becomes shards are, as a first reading finds out. */
struct dpt_csv_labels {
    struct dpt_names names;   /* the model's classes, or those that were found */
    const char *shard;        /* --like; NULL: not given */
    size_t longest;           /* name, in bytes */
    bool given;               /* the names are the model's, or those of --like */
    bool named;               /* labels are names, also where they are numbers */
    bool regression;          /* labels are targets */
    bool whole;               /* all are whole numbers */
    double smallest, largest; /* label that is a number */
    /* Where the first of each kind is, and what; NULL: none. first_none: "none", which is a class
     * among words, and no value among numbers. */
    const char *first_number, *first_word, *first_none;
    bool words;                       /* the names are two words for yes and no, in any case */
    struct dpt_label_numbers numbers; /* whole ones, where they may be those of classes */
};

/* What was met in a label column of several, or with --regression. */
struct dpt_csv_target {
    bool numbers;                  /* it has some */
    const dpt_column_words *words; /* it has nothing but these, which stand for 0 and 1 */
};

/* What was met in a column that is an input. */
struct dpt_csv_met {
    int64_t missing, unknown;  /* cells without a value; with a category that nobody knows */
    const char *first_unknown; /* where the first of these is, and what */
    /* The words for 0 and 1, where a column without a role has no others; NULL: it has. */
    const dpt_column_words *words;
    /* Dates only: whether some has a time of day, and in which order some must have been written;
     * where the first of these is, and the first that may be another day in the other order. */
    bool timed;
    enum dpt_date_order order;
    const char *ordered, *ambiguous;
};

/* The numbers of a column, as far as they have to be looked at. */
struct dpt_csv_span {
    size_t column; /* of the table */
    double low, high, last;
    int64_t n, merged; /* merged: rows that differ from the one before, but not as float32 */
    bool exact;        /* a float32 holds each */
};

/* The units of a column's numbers. */
struct dpt_csv_units {
    size_t column;     /* of the table */
    const char *unit;  /* that some have; NULL: none has */
    const char *first; /* where the first of these is, and what */
    int64_t without;
};

struct dpt_csv_state {
    struct dpt_csv_table table;
    int64_t row;                /* that the table gives next */
    struct dpt_columns columns; /* of this file; `known`: of the model, or the shard of --like */
    bool known;
    bool kept;                   /* shards are told of the columns */
    bool watched;                /* some input has categories, or may miss values */
    bool impute, mean;           /* missing numbers become the median, or the mean */
    bool indicate;               /* and one more feature says that they were missing */
    enum dpt_date_order order;   /* --day-first */
    bool converts;               /* the file becomes shards */
    bool drops;                  /* rows without a label are left out */
    int64_t dropped;             /* of the walk */
    struct dpt_column **inputs;  /* [table.n_features], in `columns` */
    struct dpt_csv_met *met;     /* likewise */
    struct dpt_column **targets; /* [table.n_labels], likewise; NULL: nothing is known of one */
    struct dpt_csv_target *met_targets; /* likewise */
    size_t *undecided, n_undecided;     /* inputs that have had nothing but such words until now */
    /* Columns of numbers whose offset is to be found: those that may need one. */
    struct dpt_csv_span *spans;
    size_t n_spans;
    struct dpt_csv_units *units; /* [n_units] columns of numbers, and of labels */
    size_t n_units;
    float *floats;        /* a row's features, where they are stored as bytes */
    struct dpt_str label; /* --label, where it was guessed */
    const char **ids;     /* [rows], where there is such a column */
    size_t ids_room;
    /* What the rows are divided by, where somebody said it: [rows] one of both. */
    const char **groups;
    double *times;
    size_t dividing_room;
    bool dated;                 /* times are dates */
    struct dpt_csv_met divides; /* of these */
    /* Columns without a name whose cells are whole numbers, as pandas' index. */
    size_t *index, n_index;
    struct dpt_csv_labels labels;
    struct dpt_str told;
};

/* --- csv_rows.c ------------------------------------------------------------------------------- */

static inline const struct dpt_csv_cell *dpt_csv_cell_at(const struct dpt_csv_state *state,
                                                         size_t column)
{
    return &state->table.csv.cells[column];
}

/* Whether a cell of an input holds no value. */
static inline bool dpt_csv_is_missing(const struct dpt_csv_state *state,
                                      const struct dpt_csv_cell *cell)
{
    return cell->length == 0 || dpt_columns_is_missing(&state->columns, cell->text);
}

/* Fails: the place of a cell of the row, its text, and the rest of the sentence. */
enum dpt_status dpt_csv_refuse(const struct dpt_csv_state *state, size_t column,
                               struct dpt_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A message's end: the --decimal and --thousands that make the text a number; or "". */
const char *dpt_csv_other_marks(const struct dpt_csv_state *state, const char *text);
/* Fails for a cell that had to be a number and is none. */
enum dpt_status dpt_csv_no_number(const struct dpt_csv_state *state, size_t column,
                                  enum dpt_csv_kind kind, struct dpt_error *err);
/* What the k-th label of the row is as a target. Errors: BAD_DATA. */
enum dpt_status dpt_csv_target_at(const struct dpt_csv_state *state, size_t k, float *target,
                                  struct dpt_error *err);
/* The seconds of the k-th input of the row, a date that is not missing. Errors: BAD_DATA. */
enum dpt_status dpt_csv_date_at(const struct dpt_csv_state *state, size_t k, double *seconds,
                                struct dpt_error *err);
/* Fails for the k-th input of the row, which is no date, or may be two. */
enum dpt_status dpt_csv_no_date(const struct dpt_csv_state *state, size_t k, bool ambiguous,
                                struct dpt_error *err);
/* The number of an input NUMBER in the row, whose cell is not missing: its own, or that of its
 * word. k: of the inputs. Errors: BAD_DATA. */
enum dpt_status dpt_csv_input_at(const struct dpt_csv_state *state, size_t k, double *value,
                                 struct dpt_error *err);
/* The weight of the row. Errors: BAD_DATA. */
enum dpt_status dpt_csv_weight_at(const struct dpt_csv_state *state, float *weight,
                                  struct dpt_error *err);
/* Keeps where the first of some cells is, and what: "t.csv:3: column 2 (b): 'x'", in the table's
 * region; *first is NULL before that. Errors: RANK. */
enum dpt_status dpt_csv_place(struct dpt_csv_state *state, size_t column, const char **first,
                              struct dpt_error *err);
/* Makes the table hold the next row that is not left out. *more: false after the last. Errors:
 * those of reading. */
enum dpt_status dpt_csv_next_row(struct dpt_csv_state *state, bool *more, struct dpt_error *err);
/* Walks over all rows, and leaves the table in front of the first again. what: for the live line;
 * NULL: none. Errors: visit's, those of reading. */
typedef enum dpt_status dpt_csv_visit(struct dpt_source *source, void *arg, struct dpt_error *err);
enum dpt_status dpt_csv_walk(struct dpt_source *source, const char *what, dpt_csv_visit *visit,
                             void *arg, struct dpt_error *err);

/* --- csv_labels.c ----------------------------------------------------------------------------- */

/* Takes the names that the model, or the shard of --like, gives its classes. Errors: RANK. */
enum dpt_status dpt_csv_labels_take(struct dpt_csv_labels *labels,
                                    const struct dpt_source_model *model, struct dpt_error *err);
/* A visit: looks at the labels of one row. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_labels_scan(struct dpt_source *source, void *arg, struct dpt_error *err);
/* Says what the labels are, once all were seen. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_labels_decide(struct dpt_source *source, struct dpt_error *err);
/* The class that a cell of the row names, else its number. Errors: BAD_DATA. */
enum dpt_status dpt_csv_class_at(const struct dpt_source *source, size_t column, int32_t *class,
                                 struct dpt_error *err);

/* --- csv_spans.c ------------------------------------------------------------------------------ */

/* Lists the columns whose numbers may need an offset, or have units, once it is known what they
 * are. Errors: RANK. */
enum dpt_status dpt_csv_spans_begin(struct dpt_source *source, struct dpt_error *err);
/* Looks at their numbers in one row. Errors: BAD_DATA (two units in a column), RANK. */
enum dpt_status dpt_csv_spans_scan(struct dpt_csv_state *state, struct dpt_error *err);
/* Gives an offset to those that need one, and tells of it, and of percents beside other numbers. */
void dpt_csv_spans_end(struct dpt_source *source);

/* --- csv_dates.c ------------------------------------------------------------------------------ */

/* Reads --day-first. Errors: USAGE. */
enum dpt_status dpt_csv_dates_begin(struct dpt_source *source, struct dpt_error *err);
/* Looks at the k-th input of the row, a date that is not missing. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_dates_scan(struct dpt_csv_state *state, size_t k, struct dpt_error *err);
/* Decides how the dates of the k-th input are read, and which parts of them are features. Errors:
 * BAD_DATA (nothing says which number is the day). */
enum dpt_status dpt_csv_dates_end(struct dpt_csv_state *state, size_t k, struct dpt_error *err);
/* Fails where nothing says which number of dates is the day. */
enum dpt_status dpt_csv_tell_ambiguous(const struct dpt_csv_met *met, struct dpt_error *err);
/* What stands for a missing value of a column NUMBER or DATE, as text; returns buf. */
const char *dpt_csv_fill_text(const struct dpt_column *column, char buf[DPT_DATE_TEXT]);

/* --- csv_divide.c ----------------------------------------------------------------------------- */

/* Checks --group and --time. Errors: USAGE. */
enum dpt_status dpt_csv_divide_begin(const struct dpt_source *source, struct dpt_error *err);
/* A visit: keeps what the row is divided by. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_divide_scan(struct dpt_source *source, void *arg, struct dpt_error *err);
/* Tells the source of the groups or times of all rows. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_divide_end(struct dpt_source *source, struct dpt_error *err);

/* --- csv_words.c ------------------------------------------------------------------------------ */

/* Looks at all rows after a feature of a file that becomes shards was refused, as err says. Where
 * columns hold words, adds to err what all of them could be and the command that says so. Gives the
 * error. Errors: BAD_DATA, those of reading, RANK. */
enum dpt_status dpt_csv_tell_words(struct dpt_source *source, struct dpt_error *err);

/* --- csv_columns.c, csv_fit.c ----------------------------------------------------------------- */

/* Reads --delimiter, --decimal, --missing and --impute, and the columns that are known. Errors:
 * USAGE, BAD_DATA, RANK. */
enum dpt_status dpt_csv_columns_begin(struct dpt_source *source, struct dpt_error *err);
/* Describes the columns of the opened table, and finds those that are inputs. Errors: RANK. */
enum dpt_status dpt_csv_columns_list(struct dpt_source *source, struct dpt_error *err);
/* Looks at the cells of one row: its name, categories, missing values. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_columns_scan(struct dpt_source *source, struct dpt_error *err);
/* Makes two words the values of a column, in the order of their numbers. Errors: RANK. */
enum dpt_status dpt_csv_keep_words(struct dpt_csv_state *state, struct dpt_column *column,
                                   const dpt_column_words *words, struct dpt_error *err);
/* Numbers the categories, and tells what was met. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_csv_columns_end(struct dpt_source *source, struct dpt_error *err);
/* Writes a row's features into `values`, as many as all columns give. Errors: BAD_DATA. */
enum dpt_status dpt_csv_features(const struct dpt_csv_state *state, float *values,
                                 struct dpt_error *err);
/* dpt_source_format.fit. */
enum dpt_status dpt_csv_fit(struct dpt_source *source, const uint8_t *part, struct dpt_error *err);

#endif
