/*
 * names: the names of classes, sorted, each with its class.
 *
 * Numbers by their value, before words by their bytes (which is the order of code points in UTF-8).
 * The caller decides which names are numbers: a cell may be 1.5, a folder is 0 or 12.
 */
#ifndef DPT_DATA_NAMES_H
#define DPT_DATA_NAMES_H

#include <stdint.h>

#include "core/base/memory.h"

struct dpt_name {
    const char *text; /* borrowed */
    bool is_number;
    double value;
    int32_t class;
};

/* Zero-initialise; release. */
struct dpt_names {
    struct dpt_name *at; /* [n] */
    size_t n, room;
};

/* The one that equals `name`, or NULL. */
const struct dpt_name *dpt_names_find(const struct dpt_names *names, const struct dpt_name *name);
/* Adds one where it is not there yet; a text of NULL is memory that ran out. Errors: RANK. */
enum dpt_status dpt_names_add(struct dpt_names *names, struct dpt_name name, struct dpt_error *err);
/* Numbers the classes in the order of the names. *texts: out, [n], in the region. Errors: RANK. */
enum dpt_status dpt_names_number(struct dpt_names *names, struct dpt_region *region,
                                 const char ***texts, struct dpt_error *err);
void dpt_names_release(struct dpt_names *names);

#endif
