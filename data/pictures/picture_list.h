/*
 * picture_list: the images in a folder, and the classes that its sub-folders stand for.
 *
 * A folder with a sub-folder per class, each with its images, at any depth below: what most tools
 * for images take. Files are images by the end of their names (DPT_PICTURE_ALL_ENDS, any case);
 * names that begin with a dot are passed over. Images stand in the order of their names, byte by
 * byte, classes in the same but numbers before words and by their value, so that 10 comes after 9.
 */
#ifndef DPT_DATA_PICTURE_LIST_H
#define DPT_DATA_PICTURE_LIST_H

#include <signal.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/tables/names.h"

struct dpt_picture_entry {
    const char *path;
    const char *name; /* in the folder: "seven/0012.png"; points into path */
    int32_t class;    /* -1: the file lies in the folder itself */
    int64_t row;      /* of a table that has its label; -1: none */
    bool bad;         /* dpt_picture_list_check could not read it */
};

/* Zero-initialise; release. */
struct dpt_picture_list {
    struct dpt_picture_entry *entries;
    size_t n, capacity;
    struct dpt_names classes; /* names of the sub-folders that have images */
    const char **class_names; /* [classes.n] */
    size_t others;            /* files that are not images */
    const char *other;        /* the first of them */
    const char *empty;        /* the first sub-folder that holds no image; NULL: none */
    struct dpt_region region;
};

/* Whether a file's name ends as an image's, also of a kind that is refused. */
bool dpt_picture_is_name(const char *name);
/* Links are followed; an image's that leads nowhere is one that cannot be read. Errors: IO (a
 * folder that cannot be read), BAD_DATA (no images, a sub-folder's link that leads nowhere),
 * RANK. */
enum dpt_status dpt_picture_list_folder(struct dpt_picture_list *list, const char *folder,
                                        struct dpt_error *err);
/* Adds one file by its own name. Errors: RANK. */
enum dpt_status dpt_picture_list_add(struct dpt_picture_list *list, const char *path,
                                     struct dpt_error *err);
/*
 * Decodes all of them, and adds a line to `bad` about each that cannot be read; *n: how many these
 * are. leave_out: they leave the list, which keeps its order and its classes. stop: NULL, or not 0
 * to give up. Check bad->failed. Errors: RANK, STOPPED.
 */
enum dpt_status dpt_picture_list_check(struct dpt_picture_list *list, bool leave_out,
                                       struct dpt_log *log, const volatile sig_atomic_t *stop,
                                       struct dpt_str *bad, size_t *n, struct dpt_error *err);
/* Logs one line where the folder has files that are not images. */
void dpt_picture_list_log(const struct dpt_picture_list *list, struct dpt_log *log);
void dpt_picture_list_release(struct dpt_picture_list *list);

#endif
