#include "data/tables/name_index.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct dpt_name_place *one = a, *other = b;
    const int by_name = strcmp(one->name, other->name);

    return by_name != 0 ? by_name : (one->at > other->at) - (one->at < other->at);
}

enum dpt_status dpt_name_index_make(struct dpt_name_index *index, const void *first, size_t stride,
                                    size_t n, struct dpt_region *region, struct dpt_error *err)
{
    struct dpt_name_place *sorted = dpt_region_alloc(region, (n + 1) * sizeof *sorted);
    const char *name = first;

    if (sorted == NULL)
        return dpt_fail_memory(err, "names of columns", (double)n);
    for (size_t i = 0; i < n; i++, name += stride)
        sorted[i] = (struct dpt_name_place){*(const char *const *)(const void *)name, i};
    qsort(sorted, n, sizeof *sorted, compare);
    *index = (struct dpt_name_index){sorted, n};
    return DPT_OK;
}

size_t dpt_name_index_find(const struct dpt_name_index *index, const char *name,
                           const struct dpt_name_place **first)
{
    size_t low = 0, high = index->n, n = 0;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (strcmp(index->sorted[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = &index->sorted[low];
    while (low + n < index->n && strcmp((*first)[n].name, name) == 0)
        n++;
    return n;
}
