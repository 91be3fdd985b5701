/*
 * columns: what became of the columns of a table, so that another table can be read alike; and of
 * images what was done to their sides.
 *
 * Shards that were made of CSV files with a header, or of images with --fit, keep it as the text
 * of their data set /columns, and checkpoints of models that learned from them likewise. The text
 * is CSV itself:
 *
 *     column,name,role,fill,value
 *     0,delimiter,file,,;
 *     0,missing,file,,NA
 *     1,alcohol,number,13.05,
 *     2,colour,category,,red
 *     2,colour,category,,white
 *     3,organic,number,,no
 *     3,organic,number,,yes
 *     4,note,dropped,,
 *     5,bottle,id,,
 *     6,picked,date,,day first
 *     6,picked,date,,year
 *     6,picked,date,,month
 *     7,quality,label,,bad
 *     7,quality,label,,good
 *
 * Column 0 says how the file was written, where it is not as most are: `delimiter`, `decimal`,
 * `thousands`, and each spelling of a missing value; of images, which have no other columns,
 * `fit`. All others are the file's, in its order, each in as many rows as it has values: the
 * categories of a column that became as many numbers, 0 or 1, or the names of the classes, in the
 * order of their numbers; the two words of a column in which they stand for the numbers 0 and 1; or
 * the parts of dates that became features (data/tables/date.h), after the order in which their
 * numbers are read. `fill`: the number that stands for a missing one, of a date its seconds since
 * 1970; of a label its place among the targets, from 1, where these are in another order than the
 * columns. Where a further feature says that a value was missing, `role` ends in "+missing". The
 * inputs of a model are the columns `number`, `category` and `date`, in this order.
 *
 * Where a float32 does not tell the numbers of a column apart, as time stamps in milliseconds,
 * there is a sixth cell, `offset`: what is subtracted from each number, and from `fill`, before it
 * is stored. A label's offset is to be added to what a model predicts.
 */
#ifndef DPT_DATA_COLUMNS_H
#define DPT_DATA_COLUMNS_H

#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/tables/date.h"
#include "data/tables/names.h"

#define DPT_COLUMN_ROLES(X)                                                                        \
    X(DPT_COLUMN_NUMBER, "number")                                                                 \
    X(DPT_COLUMN_CATEGORY, "category")                                                             \
    X(DPT_COLUMN_DATE, "date")                                                                     \
    X(DPT_COLUMN_LABEL, "label")                                                                   \
    X(DPT_COLUMN_WEIGHT, "weight") X(DPT_COLUMN_ID, "id") X(DPT_COLUMN_DROPPED, "dropped")
enum dpt_column_role { DPT_COLUMN_ROLES(DPT_LIST_NAME) DPT_COLUMN_ROLE_COUNT };

struct dpt_column {
    const char *name;
    enum dpt_column_role role;
    bool filled;    /* NUMBER, DATE: a missing value becomes `fill` */
    bool indicator; /* likewise, and one more feature, after its others, is 1 then, else 0 */
    double fill;
    double offset; /* NUMBER, LABEL: what is subtracted from each number, the first feature */
    size_t place;  /* LABEL: among the targets, from 1; 0: labels are in the order of the columns */
    /* CATEGORY, LABEL: each with the number that it has as `class`; a label may have none. NUMBER:
     * none, or the words for 0 and 1. */
    struct dpt_names values;
    const char **texts; /* [values.n] by their numbers; all text lives in the region */
    /* DATE: how it is read, and the parts that are features. */
    enum dpt_date_order order;
    enum dpt_date_part parts[DPT_DATE_PART_COUNT];
    size_t n_parts;
};

/* Zero-initialise: {0}; release. */
struct dpt_columns {
    struct dpt_column *at;
    size_t n, room;
    size_t *labels, n_labels; /* which columns are labels, in the order of the targets, once read */
    char delimiter, decimal;  /* 0: a comma, a point */
    char thousands;           /* between groups of digits; 0: nothing */
    const char **missing;     /* [n_missing] cells that hold no value, beside empty ones */
    size_t n_missing, missing_room;
    const char *fit; /* of images, in the region; NULL: not said */
    struct dpt_region region;
};

/* Adds one; name is copied, and valid is what it gives until the next one is added. Errors: RANK.
 */
enum dpt_status dpt_columns_add(struct dpt_columns *columns, const char *name,
                                enum dpt_column_role role, struct dpt_column **column,
                                struct dpt_error *err);
enum dpt_status dpt_columns_add_missing(struct dpt_columns *columns, const char *text, size_t n,
                                        struct dpt_error *err);
/* Reads the text. from: the file that has it, for messages. Errors: BAD_DATA, RANK. */
enum dpt_status dpt_columns_parse(struct dpt_columns *columns, const char *text, const char *from,
                                  struct dpt_error *err);
/* Whether a text is such a one, as far as its first line tells. */
bool dpt_columns_is(const char *text);
/* Adds the text; check out->failed. */
void dpt_columns_write(const struct dpt_columns *columns, struct dpt_str *out);
void dpt_columns_release(struct dpt_columns *columns);

/* Whether a cell that is not empty is a spelling of no value. */
bool dpt_columns_is_missing(const struct dpt_columns *columns, const char *text);
static inline bool dpt_column_is_input(enum dpt_column_role role)
{
    return role == DPT_COLUMN_NUMBER || role == DPT_COLUMN_CATEGORY || role == DPT_COLUMN_DATE;
}
/* Numbers that a model gets of a column, and of all of them. */
size_t dpt_column_width(const struct dpt_column *column);
size_t dpt_columns_width(const struct dpt_columns *columns);
/* Adds what the k-th of them is called: "size", "colour=red", "picked month sin" or "size missing".
 */
void dpt_column_feature(const struct dpt_column *column, size_t k, struct dpt_str *name);

/*
 * Two words of which one says no and one yes: the pair that a word is one of, as "no" and "yes";
 * NULL: none. Their case does not matter.
 */
typedef const char *const dpt_column_words[2];
const dpt_column_words *dpt_column_words_of(const char *word);
/* Whether a cell of a column NUMBER is one of its two words, or their number; *value: 0 or 1. */
bool dpt_column_take_word(const struct dpt_column *column, const char *text, double *value);

/* A cell's text as a name of a class or category: it may be a number. And adds n of them, numbered
 * from 0. Errors: RANK. */
struct dpt_name dpt_column_value(const char *text);
enum dpt_status dpt_column_values_add(struct dpt_names *values, const char *const *texts, size_t n,
                                      struct dpt_error *err);

/* Fails where the inputs in the text of one file are not those of the other, in the same order.
 * Errors: BAD_DATA (names both files and the first column that differs), RANK. */
enum dpt_status dpt_columns_check(const char *text, const char *path, const char *other_text,
                                  const char *other, struct dpt_error *err);

#endif
