#include "data/tables/csv_names.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"

static int compare(const struct dpt_csv_name *a, const struct dpt_csv_name *b)
{
    if (a->is_number != b->is_number)
        return a->is_number ? -1 : 1;
    if (a->is_number && a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return strcmp(a->text, b->text);
}

struct dpt_csv_name dpt_csv_name(const char *text, locale_t c_locale)
{
    const struct dpt_csv_cell cell = {.text = text};
    struct dpt_csv_name name = {.text = text};

    name.is_number = dpt_csv_number(&cell, c_locale, &name.value) == DPT_CSV_NUMBER;
    return name;
}

/* How many names stand before this one. */
static size_t place_of(const struct dpt_csv_names *names, const struct dpt_csv_name *name)
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

const struct dpt_csv_name *dpt_csv_names_find(const struct dpt_csv_names *names,
                                              const struct dpt_csv_name *name)
{
    const size_t at = place_of(names, name);

    return at < names->n && compare(name, &names->at[at]) == 0 ? &names->at[at] : NULL;
}

enum dpt_status dpt_csv_names_add(struct dpt_csv_names *names, const char *text, int32_t class,
                                  locale_t c_locale, struct dpt_error *err)
{
    struct dpt_csv_name name, *more = dpt_grow(names->at, &names->room, names->n + 1, sizeof *more);
    size_t at;

    if (text == NULL || more == NULL)
        return dpt_fail_memory(err, "the names of the classes", (double)names->n);
    names->at = more;
    name = dpt_csv_name(text, c_locale);
    name.class = class;
    if (dpt_csv_names_find(names, &name) != NULL)
        return DPT_OK;
    at = place_of(names, &name);
    memmove(more + at + 1, more + at, (names->n - at) * sizeof *more);
    more[at] = name;
    names->n++;
    return DPT_OK;
}

void dpt_csv_names_release(struct dpt_csv_names *names)
{
    free(names->at);
    *names = (struct dpt_csv_names){0};
}
