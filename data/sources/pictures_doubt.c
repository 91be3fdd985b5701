/* Images that can be read, but are rarely meant so. */
#include <string.h>
#include <strings.h>

#include "data/sources/pictures_state.h"

/* Warns where the sub-folders divide the samples, and are no classes. */
static void doubt_classes(const struct dpt_source *s)
{
    static const char *const splits[] = {"train",      "training", "val",     "valid",
                                         "validation", "test",     "testing", "dev"};
    const struct dpt_picture_list *list = &((const struct dpt_pictures *)s->state)->list;
    const char *found[2] = {NULL, NULL};
    size_t n = 0;

    for (size_t i = 0; i < list->classes.n; i++)
        for (size_t k = 0; k < sizeof splits / sizeof splits[0]; k++)
            if (strcasecmp(list->class_names[i], splits[k]) == 0 && n++ < 2)
                found[n - 1] = list->class_names[i];
    if (n == 0 || (n == 1 && list->classes.n > 1))
        return;
    dpt_log_warn(s->spec->log,
                 "%s: its sub-folders are taken for classes, among them '%s'%s%s%s; if they divide "
                 "the data, convert each by itself, those for evaluation with --like",
                 s->paths[0], found[0], n > 1 ? " and '" : "", n > 1 ? found[1] : "",
                 n > 1 ? "'" : "");
}

/* Warns where 16 bits hold the numbers of a camera of 10, 12 or 14: nearly black in 8 bits. */
static void doubt_depth(const struct dpt_source *s)
{
    enum { LOOKED_AT = 16, FULL = 1 << 14 };
    const struct dpt_picture_list *list = &((const struct dpt_pictures *)s->state)->list;
    const size_t n = list->n < LOOKED_AT ? list->n : LOOKED_AT;
    const char *first = NULL;
    int most = 0, times = 1;

    for (size_t i = 0; i < n; i++) {
        const char *path = list->entries[i * list->n / n].path;
        struct dpt_picture p = {0};
        struct dpt_error ignored;

        if (dpt_picture_read(&p, path, true, &ignored) == DPT_OK && p.deepest > 0 &&
            dpt_picture_read(&p, path, false, &ignored) == DPT_OK) {
            first = first != NULL ? first : path;
            most = p.deepest > most ? p.deepest : most;
        }
        dpt_picture_release(&p);
    }
    if (most == 0 || most >= FULL)
        return;
    while (most * times * 2 < 1 << 16)
        times *= 2;
    dpt_log_warn(s->spec->log,
                 "%s: no checked sample of 16 bits is above %d; as 65535 becomes 255, they become "
                 "%d at most; if they have fewer bits, multiply them by %d first",
                 first, most, (most + 128) / 257, times);
}

void dpt_pictures_doubt(const struct dpt_source *s)
{
    if (s->spec->log == NULL || s->rank != 0)
        return;
    if (s->spec->convert && s->like.n_classes == 0)
        doubt_classes(s);
    doubt_depth(s);
}
