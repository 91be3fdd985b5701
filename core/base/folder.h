/*
 * folder: a folder of our own among a user's, to try something in; and on what kind of file system
 * a path lies, and what follows from it for who writes there.
 */
#ifndef DPT_BASE_FOLDER_H
#define DPT_BASE_FOLDER_H

#include <limits.h>
#include <stdbool.h>

/* What of a path is there: itself, or the nearest folder above it. */
void dpt_folder_present(const char *path, char place[PATH_MAX]);
/* Makes a new folder in `place`, for us alone; false with errno. */
bool dpt_folder_scratch(const char *place, char folder[PATH_MAX]);
/* Removes it with its files, which are all ours. */
void dpt_folder_remove(const char *folder);

enum dpt_filesystem_kind {
    DPT_FILESYSTEM_LOCAL,
    DPT_FILESYSTEM_REMOTE,
    DPT_FILESYSTEM_MEMORY /* lost with the machine, and takes its memory */
};

struct dpt_filesystem {
    const char *name; /* "ext4" */
    enum dpt_filesystem_kind kind;
    const char *note; /* what matters for runs there, or NULL */
};

/* Never NULL: one that is not known is local. Static. */
const struct dpt_filesystem *dpt_filesystem(const char *path);

#endif
