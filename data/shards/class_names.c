/* Names of classes, and whether two shards mean the same by a number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/shards/shard.h"

enum { SHOWN = 64 };

enum dpt_status dpt_class_names_read(struct dpt_class_names *names, hid_t file, const char *labels,
                                     struct dpt_error *err)
{
    const hid_t data = H5Dopen2(file, labels, H5P_DEFAULT);

    *names = (struct dpt_class_names){0};
    if (data < 0)
        return DPT_OK;
    names->at = dpt_h5_texts(data, "classes", &names->n);
    H5Dclose(data);
    return names->at != NULL || names->n == 0
               ? DPT_OK
               : dpt_fail_memory(err, "the names of classes", (double)names->n);
}

void dpt_class_names_release(struct dpt_class_names *names)
{
    free((void *)names->at);
    *names = (struct dpt_class_names){0};
}

/* For one line of a message: what is not printed is a question mark. */
static const char *shown(const char *name, char buf[SHOWN])
{
    snprintf(buf, SHOWN, "%s", name);
    for (char *p = buf; *p != '\0'; p++)
        *p = (unsigned char)*p < ' ' || *p == 0x7F ? '?' : *p;
    return buf;
}

enum dpt_status dpt_class_names_check(const struct dpt_class_names *names, const char *path,
                                      const struct dpt_class_names *others, const char *other,
                                      struct dpt_error *err)
{
    char mine[SHOWN], theirs[SHOWN];

    for (size_t i = 0; i < names->n && i < others->n; i++)
        if (strcmp(names->at[i], others->at[i]) != 0)
            return dpt_fail(
                err, DPT_BAD_DATA,
                "%s: class %zu is '%s', in %s it is '%s': a number must mean the "
                "same class in both; `dptrain convert` with `--like %s` makes the first "
                "anew with the second's numbers",
                path, i, shown(names->at[i], mine), other, shown(others->at[i], theirs), other);
    return DPT_OK;
}
