#include "data/pictures/picture_list.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { DEPTH = 32 };

/* A walk through the folders. */
struct walk {
    struct dpt_picture_list *list;
    size_t root;  /* length of the folder's path, the slash included */
    size_t first; /* of the list's entries, that this walk added */
    int depth;
};

static enum dpt_status no_memory(const struct dpt_picture_list *list, struct dpt_error *err)
{
    return dpt_fail_memory(err, "the list of pictures",
                           (double)list->capacity * sizeof *list->entries);
}

/* path: in the arena. */
static enum dpt_status add(struct dpt_picture_list *list, const char *path, size_t root,
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_GROW(list->entries, &list->capacity, list->n + 1, "the list of pictures", err);
    list->entries[list->n++] =
        (struct dpt_picture_entry){.path = path, .name = path + root, .class = -1};
out:
    return status;
}

enum dpt_status dpt_picture_list_add(struct dpt_picture_list *list, const char *path,
                                     struct dpt_error *err)
{
    const char *copy = dpt_region_strdup(&list->region, path);

    return copy != NULL ? add(list, copy, 0, err) : no_memory(list, err);
}

static bool is_picture_name(const char *name)
{
    static const char *const ends[] = {".png", ".jpg", ".jpeg"};
    const size_t n = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (n > strlen(ends[i]) && strcasecmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static enum dpt_status walk_folder(struct walk *w, const char *folder, struct dpt_error *err);

static enum dpt_status take_entry(struct walk *w, const char *folder, const char *name,
                                  struct dpt_error *err)
{
    struct dpt_picture_list *list = w->list;
    const size_t n = strlen(folder);
    const char *path = dpt_region_printf(&list->region, "%s%s%s", folder,
                                         n > 0 && folder[n - 1] == '/' ? "" : "/", name);
    struct stat info;

    if (path == NULL)
        return no_memory(list, err);
    if (stat(path, &info) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be looked at", path);
    if (S_ISDIR(info.st_mode))
        return walk_folder(w, path, err);
    if (S_ISREG(info.st_mode) && is_picture_name(name))
        return add(list, path, w->root, err);
    if (list->others++ == 0)
        list->other = path;
    return DPT_OK;
}

static enum dpt_status walk_folder(struct walk *w, const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dirent *entry;
    DIR *dir = opendir(folder);
    size_t before;

    if (dir == NULL)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot list the folder", folder);
    if (w->depth == DEPTH) {
        closedir(dir);
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: folders lie %d deep in each other; is there a link in a circle?",
                        folder, DEPTH);
    }
    before = w->list->n;
    w->depth++;
    while ((entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            DPT_TRY(take_entry(w, folder, entry->d_name, err));
    w->depth--;
    if (w->depth == 1 && w->list->n == before && w->list->empty == NULL)
        w->list->empty = folder;
out:
    closedir(dir);
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
    const size_t n = strlen(folder);
    struct walk w = {
        .list = list, .root = n + (n > 0 && folder[n - 1] == '/' ? 0 : 1), .first = list->n};

    DPT_TRY(walk_folder(&w, folder, err));
    if (list->n == w.first)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: holds no pictures (.png, .jpg, .jpeg), nor do its sub-folders%s%s",
                         folder, list->other != NULL ? "; there is " : "",
                         list->other != NULL ? list->other : ""));
    qsort(list->entries + w.first, list->n - w.first, sizeof *list->entries, by_name);
    DPT_TRY(find_classes(list, err));
out:
    return status;
}

void dpt_picture_list_log(const struct dpt_picture_list *list, struct dpt_log *log)
{
    if (list->others == 1)
        dpt_log_info(log, "%s is no picture and left out", list->other);
    if (list->others > 1)
        dpt_log_info(log, "%zu files are no pictures and left out, %s the first", list->others,
                     list->other);
}

void dpt_picture_list_release(struct dpt_picture_list *list)
{
    free(list->entries);
    dpt_names_release(&list->classes);
    dpt_region_release(&list->region);
    *list = (struct dpt_picture_list){0};
}
