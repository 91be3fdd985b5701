/*
 * file: whole files, folders, and the atomic write.
 */
#ifndef DPT_BASE_FILE_H
#define DPT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

/*
 * Reads a regular file of at most `limit` bytes. *bytes: out, malloc'ed, a NUL behind the last
 * byte, the caller frees. Errors: `status` for what a person can mend (missing, unreadable, a
 * folder, too large), naming the file.
 */
enum dpt_status dpt_file_read(const char *path, size_t limit, enum dpt_status status, char **bytes,
                              size_t *length, struct dpt_error *err);

/*
 * Writes a file so that `path` names either the old or the whole new content, whatever happens:
 * temporary name in the same folder, write, fsync, rename, fsync of the folder. Errors: IO (names
 * the file); nothing is left under a temporary name.
 */
enum dpt_status dpt_file_write(const char *path, const void *bytes, size_t length,
                               struct dpt_error *err);

/* The same, from pieces that follow each other in the file. */
struct dpt_file_piece {
    const void *bytes;
    size_t n;
};

enum dpt_status dpt_file_write_pieces(const char *path, const struct dpt_file_piece *pieces,
                                      size_t n, struct dpt_error *err);

/*
 * The same, for a file that is written elsewhere: dpt_file_temporary gives the name to write it
 * under, which exists and is empty then (malloc'ed, the caller frees); dpt_file_commit syncs it and
 * gives it its own, or removes it. Errors: IO, RANK.
 */
enum dpt_status dpt_file_temporary(const char *path, char **temporary, struct dpt_error *err);
enum dpt_status dpt_file_commit(const char *temporary, const char *path, struct dpt_error *err);

/* fsync of the folder that holds `path`. Errors: IO. */
enum dpt_status dpt_file_sync_folder(const char *path, struct dpt_error *err);

/* Creates a folder and its parents; one that exists is fine. Errors: IO. */
enum dpt_status dpt_make_folders(const char *path, struct dpt_error *err);

bool dpt_file_exists(const char *path);

/* pread/pwrite of exactly n bytes, EINTR and short transfers handled. 0, or -1 with errno (EPIPE:
 * the file ended). */
int dpt_pread_all(int fd, void *bytes, size_t n, long long offset);
int dpt_pwrite_all(int fd, const void *bytes, size_t n, long long offset);

#endif
