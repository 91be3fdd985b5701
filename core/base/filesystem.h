/*
 * filesystem: on what kind of file system a path lies, and what follows from it for who writes there.
 */
#ifndef DPT_BASE_FILESYSTEM_H
#define DPT_BASE_FILESYSTEM_H

#include <stdbool.h>

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
