/* Pictures that cannot be read: all of them are told at once, or left out. */
#include <string.h>

#include "data/sources/pictures_state.h"

enum dpt_status dpt_pictures_tell_bad(const struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_picture_list *list = &((struct dpt_pictures *)s->state)->list;
    struct dpt_str bad = {0};
    struct dpt_error found = *err;
    size_t n;

    DPT_TRY(dpt_picture_list_check(list, false, s->spec->log, s->spec->stop, &bad, &n, err));
    for (char *line = bad.failed || n < 2 ? NULL : bad.text, *end; line != NULL && *line != '\0';
         line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        dpt_fail(&found, DPT_BAD_DATA, "%s", line);
        dpt_log_error(s->spec->log, &found);
    }
    if (n > 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%zu of %zu pictures cannot be read; --skip-bad leaves them out", n,
                         list->n));
    *err = found;
    status = DPT_BAD_DATA;
out:
    dpt_str_release(&bad);
    return status;
}

enum dpt_status dpt_pictures_skip_bad(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct dpt_picture_list *list = &state->list;
    const size_t all = list->n;
    bool *any = NULL;
    size_t n;

    if (s->spec->option[DPT_SOURCE_SKIP_BAD] == NULL)
        return DPT_OK;
    DPT_TRY(dpt_picture_list_check(list, true, s->spec->log, s->spec->stop, &state->told, &n, err));
    DPT_TRY(DPT_ALLOCATE(any, list->classes.n + 1, "the classes", err));
    for (size_t i = 0; i < list->n; i++)
        any[list->entries[i].class + 1] = true;
    for (size_t k = 0; s->spec->convert && k < list->classes.n; k++)
        if (!any[k + 1])
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s/%s: none of its pictures can be read",
                             s->paths[0], list->class_names[k]));
    if (list->n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "none of the %zu pictures can be read; the first: %.*s",
                         all, (int)strcspn(state->told.text, "\n"), state->told.text));
    if (n > 0)
        dpt_str_printf(&state->told, "%zu of %zu pictures left out\n", n, all);
    if (state->told.failed)
        DPT_TRY(dpt_fail_memory(err, "the list of bad pictures", (double)n));
    s->info.told = state->told.text;
out:
    dpt_free(any);
    return status;
}
