#include "data/pictures/picture_list.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
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
    struct dpt_picture_entry *entries =
        dpt_grow(list->entries, &list->capacity, list->n + 1, sizeof *entries);

    if (entries == NULL)
        return no_memory(list, err);
    entries[list->n++] = (struct dpt_picture_entry){.path = path, .name = path + root, .class = -1};
    list->entries = entries;
    return DPT_OK;
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

/* A whole number without sign or leading zeros' difference, as people number folders. */
static bool number_of(const char *name, unsigned long long *value)
{
    char *end;

    if (name[0] < '0' || name[0] > '9')
        return false;
    errno = 0;
    *value = strtoull(name, &end, 10);
    return *end == '\0' && errno == 0;
}

static int compare_classes(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    unsigned long long u, v;
    const bool x_number = number_of(x, &u), y_number = number_of(y, &v);

    if (x_number != y_number)
        return x_number ? -1 : 1;
    if (x_number && u != v)
        return u < v ? -1 : 1;
    return strcmp(x, y);
}

/* The first folder of an entry's name, of so many bytes; 0: none. */
static size_t class_length(const struct dpt_picture_entry *entry)
{
    const char *slash = strchr(entry->name, '/');

    return slash == NULL ? 0 : (size_t)(slash - entry->name);
}

/* The number of a class by its name, name[0 … n-1]. */
static int32_t class_of(const struct dpt_picture_list *list, const char *name, size_t n)
{
    char text[NAME_MAX + 1];
    const char *key = text;
    const char **found;

    if (n == 0 || n > NAME_MAX)
        return -1;
    memcpy(text, name, n);
    text[n] = '\0';
    found = bsearch(&key, list->classes, list->n_classes, sizeof *list->classes, compare_classes);
    return found != NULL ? (int32_t)(found - list->classes) : -1;
}

/* Collects the names of the sub-folders, of all folders, and numbers them. */
static enum dpt_status find_classes(struct dpt_picture_list *list, struct dpt_error *err)
{
    const struct dpt_picture_entry *last = NULL;
    size_t n = 0;

    list->classes = dpt_region_alloc(&list->region, (list->n + 1) * sizeof *list->classes);
    if (list->classes == NULL)
        return no_memory(list, err);
    for (size_t i = 0; i < list->n; i++) {
        const struct dpt_picture_entry *entry = &list->entries[i];
        const size_t length = class_length(entry);

        if (length == 0 || entry->name == entry->path ||
            (last != NULL && class_length(last) == length &&
             memcmp(last->name, entry->name, length) == 0))
            continue;
        last = entry;
        list->classes[n] = dpt_region_strndup(&list->region, entry->name, length);
        if (list->classes[n++] == NULL)
            return no_memory(list, err);
    }
    qsort(list->classes, n, sizeof *list->classes, compare_classes);
    list->n_classes = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(list->classes[i], list->classes[list->n_classes - 1]) != 0)
            list->classes[list->n_classes++] = list->classes[i];
    for (size_t i = 0; i < list->n; i++) {
        struct dpt_picture_entry *entry = &list->entries[i];

        if (entry->name != entry->path)
            entry->class = class_of(list, entry->name, class_length(entry));
    }
    return DPT_OK;
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
    dpt_region_release(&list->region);
    *list = (struct dpt_picture_list){0};
}
