/*
 * csv_names: the names of classes in a column of labels, sorted, each with its class.
 *
 * Numbers by their value, before words by their bytes (which is the order of code points in UTF-8).
 */
#ifndef DPT_DATA_CSV_NAMES_H
#define DPT_DATA_CSV_NAMES_H

#include "data/tables/csv.h"

struct dpt_csv_name {
    const char *text;
    bool is_number;
    double value;
    int32_t class;
};

/* Zero-initialise; release. */
struct dpt_csv_names {
    struct dpt_csv_name *at; /* [n] */
    size_t n, room;
};

/* A cell's text as a name, its class 0. */
struct dpt_csv_name dpt_csv_name(const char *text, locale_t c_locale);

/* The one that equals `name`, or NULL. */
const struct dpt_csv_name *dpt_csv_names_find(const struct dpt_csv_names *names,
                                              const struct dpt_csv_name *name);
/* Adds one where it is not there yet. text: borrowed; NULL: memory ran out. Errors: RANK. */
enum dpt_status dpt_csv_names_add(struct dpt_csv_names *names, const char *text, int32_t class,
                                  locale_t c_locale, struct dpt_error *err);
void dpt_csv_names_release(struct dpt_csv_names *names);

#endif
