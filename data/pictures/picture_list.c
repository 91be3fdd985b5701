#include "data/pictures/picture_list.h"

#include <errno.h>
#include <fts.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data/pictures/picture.h"

static enum dpt_status no_memory(const struct dpt_picture_list *list, struct dpt_error *err)
{
    return dpt_fail_memory(err, "the list of images",
                           (double)list->capacity * sizeof *list->entries);
}

/* path: in the region. */
static enum dpt_status add(struct dpt_picture_list *list, const char *path, size_t root,
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(list->entries, &list->capacity, list->n + 1, "the list of images", err);
    list->entries[list->n++] =
        (struct dpt_picture_entry){.path = path, .name = path + root, .class = -1, .row = -1};
out:
    return status;
}

enum dpt_status dpt_picture_list_add(struct dpt_picture_list *list, const char *path,
                                     struct dpt_error *err)
{
    const char *copy = dpt_region_strdup(&list->region, path);

    return copy != NULL ? add(list, copy, 0, err) : no_memory(list, err);
}

bool dpt_picture_is_name(const char *name)
{
    static const char ends[] = DPT_PICTURE_ALL_ENDS ", ";
    const char *dot = strrchr(name, '.');

    /* ".jp" is the beginning of one, and no one's end. */
    for (const char *end = ends; dot != NULL && dot > name && *end != '\0';
         end += strcspn(end, ",") + 2)
        if (strlen(dot) == strcspn(end, ",") && strncasecmp(dot, end, strlen(dot)) == 0)
            return true;
    return false;
}

/* What a walk met; before: how many images there were when it entered the sub-folder. root:
 * length of the folder's path, the slash included. */
static enum dpt_status take_entry(struct dpt_picture_list *list, const FTSENT *e, size_t root,
                                  size_t *before, struct dpt_error *err)
{
    const bool nowhere = e->fts_info == FTS_SLNONE; /* a link to what is not there */
    const bool picture = (e->fts_info == FTS_F || nowhere) && dpt_picture_is_name(e->fts_name);
    const char *path;

    if (e->fts_info == FTS_D && e->fts_level == 1)
        *before = list->n;
    if (e->fts_info == FTS_D ||
        (e->fts_info == FTS_DP && (e->fts_level != 1 || list->n > *before || list->empty != NULL)))
        return DPT_OK;
    if (e->fts_info == FTS_DC)
        return dpt_fail(err, DPT_BAD_DATA, "%s: is a link to a folder that it lies in",
                        e->fts_path);
    if (nowhere && e->fts_level == 1 && !picture) /* it may be that of a class */
        return dpt_fail(err, DPT_BAD_DATA, "%s: is a link that leads nowhere; repair or remove it",
                        e->fts_path);
    errno = nowhere ? ENOENT : e->fts_errno;
    if (e->fts_info == FTS_DNR || e->fts_info == FTS_NS || (nowhere && e->fts_level == 0))
        return dpt_fail_errno(err, DPT_IO, "%s: cannot %s", e->fts_path,
                              e->fts_info == FTS_DNR || e->fts_level == 0 ? "list the folder"
                                                                          : "be looked at");
    path = dpt_region_strdup(&list->region, e->fts_path);
    if (path == NULL)
        return no_memory(list, err);
    if (picture)
        return add(list, path, root, err);
    if (e->fts_info == FTS_DP)
        list->empty = path;
    else if (list->others++ == 0)
        list->other = path;
    return DPT_OK;
}

static enum dpt_status walk_folder(struct dpt_picture_list *list, const char *folder,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = strlen(folder), root = n + (n > 0 && folder[n - 1] == '/' ? 0 : 1);
    char *const roots[] = {(char *)folder, NULL};
    FTS *walk = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    size_t before = 0;
    FTSENT *e;

    if (walk == NULL)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot list the folder", folder);
    while ((e = fts_read(walk)) != NULL) {
        if (e->fts_level > 0 && e->fts_name[0] == '.')
            fts_set(walk, e, FTS_SKIP);
        else
            DPT_TRY(take_entry(list, e, root, &before, err));
    }
out:
    fts_close(walk);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dpt_picture_entry *)a)->name,
                  ((const struct dpt_picture_entry *)b)->name);
}

/* The first folder of an entry's name: its class; false where it lies in no sub-folder. Whole
 * numbers are numbers, as people number folders. */
static bool class_of(const struct dpt_picture_entry *entry, char text[NAME_MAX + 1],
                     struct dpt_name *class)
{
    const char *slash = strchr(entry->name, '/');

    if (entry->name == entry->path || slash == NULL || slash - entry->name > NAME_MAX)
        return false;
    snprintf(text, NAME_MAX + 1, "%.*s", (int)(slash - entry->name), entry->name);
    *class = (struct dpt_name){.text = text, .value = strtod(text, NULL)};
    class->is_number = text[strspn(text, "0123456789")] == '\0';
    return true;
}

/* Collects the names of the sub-folders, of all folders, and numbers them. */
static enum dpt_status find_classes(struct dpt_picture_list *list, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char text[NAME_MAX + 1];
    struct dpt_name class;

    for (size_t i = 0; i < list->n; i++)
        if (class_of(&list->entries[i], text, &class) &&
            dpt_names_find(&list->classes, &class) == NULL) {
            class.text = dpt_region_strdup(&list->region, text);
            DPT_TRY(dpt_names_add(&list->classes, class, err));
        }
    DPT_TRY(dpt_names_number(&list->classes, &list->region, &list->class_names, err));
    for (size_t i = 0; i < list->n; i++)
        if (class_of(&list->entries[i], text, &class))
            list->entries[i].class = dpt_names_find(&list->classes, &class)->class;
out:
    return status;
}

enum dpt_status dpt_picture_list_folder(struct dpt_picture_list *list, const char *folder,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t first = list->n;

    DPT_TRY(walk_folder(list, folder, err));
    if (list->n == first)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: holds no images (" DPT_PICTURE_ENDS "), nor do its sub-folders%s%s",
                         folder, list->other != NULL ? "; there is " : "",
                         list->other != NULL ? list->other : ""));
    qsort(list->entries + first, list->n - first, sizeof *list->entries, by_name);
    DPT_TRY(find_classes(list, err));
out:
    return status;
}

enum dpt_status dpt_picture_list_check(struct dpt_picture_list *list, bool leave_out,
                                       struct dpt_log *log, const volatile sig_atomic_t *stop,
                                       struct dpt_str *bad, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t good = 0;
    double shown = 0;

    *n = 0;
    for (size_t i = 0; i < list->n; i++) {
        struct dpt_picture picture = {0};
        struct dpt_error reason = {0};

        if (stop != NULL && *stop != 0)
            DPT_TRY(dpt_fail(err, DPT_STOPPED, "stopped; nothing was written"));
        status = dpt_picture_read(&picture, list->entries[i].path, false, &reason);
        dpt_picture_release(&picture);
        if (status == DPT_OK) {
            list->entries[leave_out ? good++ : i] = list->entries[i];
        } else if (status == DPT_BAD_DATA) {
            list->entries[i].bad = true;
            dpt_str_printf(bad, "%s\n", reason.text);
            ++*n;
            status = DPT_OK;
        } else {
            *err = reason;
            DPT_TRY(status);
        }
        dpt_log_live_count(log, &shown, "looking at images", (int64_t)i, (int64_t)list->n);
    }
    if (leave_out)
        list->n = good;
out:
    if (log != NULL)
        dpt_log_live(log, NULL);
    return status;
}

void dpt_picture_list_log(const struct dpt_picture_list *list, struct dpt_log *log)
{
    if (list->others == 1)
        dpt_log_info(log, "%s is not an image and is left out", list->other);
    if (list->others > 1)
        dpt_log_info(log, "%zu files are not images and are left out, %s the first", list->others,
                     list->other);
}

void dpt_picture_list_release(struct dpt_picture_list *list)
{
    free(list->entries);
    dpt_names_release(&list->classes);
    dpt_region_release(&list->region);
    *list = (struct dpt_picture_list){0};
}
