/*
 * name_index: a list of names, sorted, so that each is found in few steps: tables may be wide.
 *
 * The names are borrowed. Immutable once it is made.
 */
#ifndef DPT_DATA_NAME_INDEX_H
#define DPT_DATA_NAME_INDEX_H

#include "core/base/memory.h"

struct dpt_name_place {
    const char *name;
    size_t at; /* in the list */
};

/* The region has its memory. */
struct dpt_name_index {
    struct dpt_name_place *sorted; /* those of one name in the order of the list */
    size_t n;
};

/* Makes it of n names. first: where the pointer to the first of them is, with those to the others
 * every `stride` bytes after it: an array, or members of an array of structs. Errors: RANK. */
enum dpt_status dpt_name_index_make(struct dpt_name_index *index, const void *first, size_t stride,
                                    size_t n, struct dpt_region *region, struct dpt_error *err);

/* How many of the list have a name; *first: the first of them in `sorted`, where there is one. */
size_t dpt_name_index_find(const struct dpt_name_index *index, const char *name,
                           const struct dpt_name_place **first);

#endif
