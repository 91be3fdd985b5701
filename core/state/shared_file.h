/*
 * shared_file: one file that all ranks have open, each to read or write a part of its own.
 *
 * Rank 0 has opened or created the file and describes it to the others, who open it by its name.
 * On another node that name may mean another file, or nothing yet. So a rank sees the file only if
 * it finds there what rank 0 says: in a new file random bytes, in a checkpoint its last line.
 *
 * Nodes that write to one file have to write to pages of their own: where a network file system
 * does not keep the nodes' caches alike, as NFS, a node that writes a part of a page may write the
 * rest of it back as it was. So ranks other than rank 0 write whole pages only.
 */
#ifndef DPT_STATE_SHARED_FILE_H
#define DPT_STATE_SHARED_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

enum { DPT_SHARED_MARK = 44 }; /* bytes by which a file is known */

/* What rank 0 says of a file; plain bytes, for a message. */
struct dpt_shared_file {
    char path[PATH_MAX]; /* its final name, for messages */
    int64_t maker;       /* process in its temporary name, "PATH.tmp-123"; 0: it is only read */
    int64_t size;        /* bytes */
    int64_t mark_at;     /* where the mark lies */
    unsigned char mark[DPT_SHARED_MARK];
    uint64_t device, inode; /* as rank 0's system numbers it */
};

/* Completes the description of a new file, which must be as long as the mark at least, and writes
 * the mark at its begin; whoever made the file overwrites it later. file: with path and maker.
 * syncs: other nodes are to see it. Errors: IO, RANK (no random bytes). */
enum dpt_status dpt_shared_file_mark(struct dpt_shared_file *file, int fd, bool syncs,
                                     struct dpt_error *err);

/* Opens a file as it is described. -1: this rank does not see it. same: out, whether it has the
 * numbers that rank 0's system gave it. */
int dpt_shared_file_open(const struct dpt_shared_file *file, bool *same);

/* Writes or reads n floats at a byte of the file, and takes their checksum; an interrupted or short
 * transfer goes on. Errors: IO (names the file). */
enum dpt_status dpt_shared_file_write(const struct dpt_shared_file *file, int fd, const float *from,
                                      int64_t n, int64_t at, uint32_t *crc, struct dpt_error *err);
enum dpt_status dpt_shared_file_read(const struct dpt_shared_file *file, int fd, float *to,
                                     int64_t n, int64_t at, uint32_t *crc, struct dpt_error *err);
/* The checksum of the bytes from `at` up to `end`. Errors: IO, RANK. */
enum dpt_status dpt_shared_file_crc(const char *path, int fd, int64_t at, int64_t end,
                                    uint32_t *crc, struct dpt_error *err);

#endif
