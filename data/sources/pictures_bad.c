/* Images that cannot be read: all of them are told at once, or left out. */
#include <string.h>

#include "data/sources/pictures_state.h"

/* Fails for the first class of which `counts` has an image and none that is good: shards would
 * have nothing to learn it from. lines: one for each bad image. Errors: BAD_DATA, RANK. */
static enum dpt_status check_classes(const struct dpt_source *s, const size_t *counts,
                                     const char *lines, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_picture_list *list = &((const struct dpt_pictures *)s->state)->list;
    struct dpt_str folder = {0};
    bool *any = NULL;
    char digits[32];

    DPT_TRY(DPT_ALLOCATE(any, list->classes.n + 1, "the classes", err));
    for (size_t i = 0; i < list->n; i++)
        if (!list->entries[i].bad)
            any[list->entries[i].class + 1] = true;
    for (size_t k = 0; s->spec->convert && k < list->classes.n; k++) {
        const char *first = lines, *end;

        if (any[k + 1] || counts[k + 1] == 0)
            continue;
        dpt_str_printf(&folder, "%s%s%s/", s->paths[0],
                       s->paths[0][strlen(s->paths[0]) - 1] == '/' ? "" : "/",
                       list->class_names[k]);
        if (folder.failed)
            DPT_TRY(dpt_fail_memory(err, "a path", (double)folder.length));
        while (first != NULL && strncmp(first, folder.text, folder.length) != 0) {
            end = strchr(first, '\n');
            first = end != NULL ? end + 1 : NULL;
        }
        DPT_TRY(dpt_fail(
            err, DPT_BAD_DATA,
            "%s: none of its %s image%s can be read, so there is nothing to learn this class "
            "from; repair them, or remove the sub-folder%s%.*s",
            folder.text, dpt_group_digits(digits, (long long)counts[k + 1]),
            counts[k + 1] == 1 ? "" : "s", first != NULL ? "; the first: " : "",
            first != NULL ? (int)strcspn(first, "\n") : 0, first != NULL ? first : ""));
    }
out:
    dpt_free(any);
    dpt_str_release(&folder);
    return status;
}

/* Images of each class; [0]: of none. */
static enum dpt_status count_classes(const struct dpt_picture_list *list, size_t **counts,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(*counts, list->classes.n + 1, "the classes", err));
    for (size_t i = 0; i < list->n; i++)
        ++(*counts)[list->entries[i].class + 1];
out:
    return status;
}

/* Logs the bad images, of many the first. */
static void log_bad(const struct dpt_source *s, const char *lines, size_t n)
{
    enum { SHOWN = 20 };
    struct dpt_error line;
    const char *at = lines;

    for (size_t i = 0; i < n && i < SHOWN; i++, at += strcspn(at, "\n") + 1) {
        dpt_fail(&line, DPT_BAD_DATA, "%.*s", (int)strcspn(at, "\n"), at);
        dpt_log_error(s->spec->log, &line);
    }
    if (n <= SHOWN)
        return;
    dpt_fail(&line, DPT_BAD_DATA, "and %zu more%s", n - SHOWN,
             s->spec->convert ? "; --skip-bad --dry-run lists them all" : "");
    dpt_log_error(s->spec->log, &line);
}

enum dpt_status dpt_pictures_tell_bad(const struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_picture_list *list = &((struct dpt_pictures *)s->state)->list;
    struct dpt_str bad = {0};
    const struct dpt_error found = *err;
    size_t *counts = NULL;
    size_t n;

    DPT_TRY(count_classes(list, &counts, err));
    DPT_TRY(dpt_picture_list_check(list, false, s->spec->log, s->spec->stop, &bad, &n, err));
    if (n > 1 && !bad.failed)
        log_bad(s, bad.text, n);
    if (n > 0 && !bad.failed)
        DPT_TRY(check_classes(s, counts, bad.text, err));
    if (n > 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%zu of %zu images cannot be read; --skip-bad leaves them out", n,
                         list->n));
    *err = found;
    status = DPT_BAD_DATA;
out:
    dpt_free(counts);
    dpt_str_release(&bad);
    return status;
}

enum dpt_status dpt_pictures_skip_bad(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct dpt_picture_list *list = &state->list;
    const size_t all = list->n;
    size_t *counts = NULL;
    size_t n;

    if (s->spec->option[DPT_SOURCE_SKIP_BAD] == NULL)
        return DPT_OK;
    DPT_TRY(count_classes(list, &counts, err));
    DPT_TRY(dpt_picture_list_check(list, true, s->spec->log, s->spec->stop, &state->told, &n, err));
    if (n > 0 && n < all && !state->told.failed)
        DPT_TRY(check_classes(s, counts, state->told.text, err));
    if (list->n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "none of the %zu images can be read; the first: %.*s",
                         all, (int)strcspn(state->told.text, "\n"), state->told.text));
    if (n > 0)
        dpt_str_printf(&state->told, "%zu of %zu images left out\n", n, all);
    if (state->told.failed)
        DPT_TRY(dpt_fail_memory(err, "the list of bad images", (double)n));
    s->info.told = state->told.text;
out:
    dpt_free(counts);
    return status;
}
