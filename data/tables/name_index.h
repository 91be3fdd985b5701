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

/* Zero-initialise; the region has its memory. */
struct dpt_name_index {
    struct dpt_name_place *sorted; /* those of one name in the order of the list */
    size_t n;
};

/* Room for so many; then add each, then sort. Errors: RANK. */
enum dpt_status dpt_name_index_open(struct dpt_name_index *index, size_t n,
                                    struct dpt_region *region, struct dpt_error *err);
static inline void dpt_name_index_add(struct dpt_name_index *index, const char *name)
{
    index->sorted[index->n] = (struct dpt_name_place){name, index->n};
    index->n++;
}
void dpt_name_index_sort(struct dpt_name_index *index);

/* How many of the list have a name; *first: the first of them in `sorted`, where there is one. */
size_t dpt_name_index_find(const struct dpt_name_index *index, const char *name,
                           const struct dpt_name_place **first);

#endif
