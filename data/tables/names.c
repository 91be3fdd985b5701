#include "data/tables/names.h"

#include <stdlib.h>
#include <string.h>

static int compare(const struct dpt_name *a, const struct dpt_name *b)
{
    if (a->is_number != b->is_number)
        return a->is_number ? -1 : 1;
    if (a->is_number && a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return strcmp(a->text, b->text);
}

/* How many names stand before this one. */
static size_t place_of(const struct dpt_names *names, const struct dpt_name *name)
{
    size_t low = 0, high = names->n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (compare(name, &names->at[middle]) > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct dpt_name *dpt_names_find(const struct dpt_names *names, const struct dpt_name *name)
{
    const size_t at = place_of(names, name);

    return at < names->n && compare(name, &names->at[at]) == 0 ? &names->at[at] : NULL;
}

enum dpt_status dpt_names_add(struct dpt_names *names, struct dpt_name name, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_name *at;

    if (name.text == NULL)
        DPT_TRY(dpt_fail_memory(err, "the names of the classes", (double)names->n));
    DPT_GROW(names->at, &names->room, names->n + 1, "the names of the classes", err);
    if (dpt_names_find(names, &name) != NULL)
        return DPT_OK;
    at = names->at + place_of(names, &name);
    memmove(at + 1, at, (size_t)(names->at + names->n++ - at) * sizeof *at);
    *at = name;
out:
    return status;
}

enum dpt_status dpt_names_number(struct dpt_names *names, struct dpt_region *region,
                                 const char ***texts, struct dpt_error *err)
{
    *texts = dpt_region_alloc(region, names->n * sizeof **texts);
    if (*texts == NULL)
        return dpt_fail_memory(err, "the names of the classes", (double)names->n * sizeof **texts);
    for (size_t i = 0; i < names->n; i++) {
        (*texts)[i] = names->at[i].text;
        names->at[i].class = (int32_t)i;
    }
    return DPT_OK;
}

void dpt_names_release(struct dpt_names *names)
{
    free(names->at);
    *names = (struct dpt_names){0};
}
