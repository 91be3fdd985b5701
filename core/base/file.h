/*
 * file: whole files, folders, and the atomic write.
 */
#ifndef DPT_BASE_FILE_H
#define DPT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base/error.h"
#include "core/base/memory.h"

/*
 * How a file of a user's folder is opened. Others may write there, too, and by error or on
 * purpose put something else where a file should be. Reading follows symbolic links, since
 * `checkpoints/latest` is one; writing does not in the last place of the path, since the
 * link's target is somebody's file. All modes accept only a regular file, and none of them blocks,
 * as opening a pipe would.
 */
enum dpt_file_mode {
    DPT_FILE_READ,
    DPT_FILE_APPEND,   /* written at its end; created if it is missing */
    DPT_FILE_UPDATE,   /* read and written; created where it is missing */
    DPT_FILE_EXISTING, /* read and written */
};

/* Errors: `wrong`, naming the file and what is there instead. */
enum dpt_status dpt_file_open(const char *path, enum dpt_file_mode mode, enum dpt_status wrong,
                              int *fd, struct dpt_error *err);
/* Opens a file as dpt_file_open does, as a FILE; READ or APPEND only. */
enum dpt_status dpt_file_stream(const char *path, enum dpt_file_mode mode, enum dpt_status wrong,
                                FILE **file, struct dpt_error *err);

/* Checks that a new file may replace what has this name: only a regular file may be replaced.
 * Errors: IO. */
enum dpt_status dpt_file_check_target(const char *path, struct dpt_error *err);

/*
 * Reads a regular file of at most `limit` bytes. *bytes: out, malloc'ed, a NUL after the last
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

/* Writes a file as dpt_file_write does, from pieces that follow each other in the file. */
struct dpt_file_piece {
    const void *bytes;
    size_t n;
};

enum dpt_status dpt_file_write_pieces(const char *path, const struct dpt_file_piece *pieces,
                                      size_t n, struct dpt_error *err);

/*
 * The atomic write of a file whose bytes other code writes: dpt_file_temporary creates an empty
 * file and returns its name (malloc'ed, the caller frees); dpt_file_commit syncs that file and
 * renames it to its final name, or removes it. Errors: IO, RANK.
 *
 * The temporary name is the final name with ".tmp-" and the process's number appended. Temporary
 * files of the same name that processes left which have ended are removed.
 */
enum dpt_status dpt_file_temporary(const char *path, char **temporary, struct dpt_error *err);
enum dpt_status dpt_file_commit(const char *temporary, const char *path, struct dpt_error *err);

/* The process number in the suffix ".tmp-1234" of a temporary name; 0 where `end` is no such
 * suffix. */
long dpt_file_maker(const char *end);
/* Whether a process of this machine has ended. */
bool dpt_process_gone(long process);

/* fsync of the folder that holds `path`. Errors: IO. */
enum dpt_status dpt_file_sync_folder(const char *path, struct dpt_error *err);

/* Creates a folder and its parents; one that exists is fine. Errors: IO. */
enum dpt_status dpt_make_folders(const char *path, struct dpt_error *err);

/* Writes what a message about a missing path adds: " (relative to /the/working/folder)", or "" for
 * an absolute path; returns text. */
const char *dpt_file_relative_to(const char *path, char *text, size_t size);

bool dpt_file_exists(const char *path);
bool dpt_file_is_folder(const char *path);
/* A path that begins with `~/` as one below the home folder ($HOME), as shells have it, in the
 * region; any other as it is. NULL: memory ran out. */
const char *dpt_file_from_home(const char *path, struct dpt_region *region);

/*
 * How often this process has opened a file, or moved a piece of one: its watchdog
 * (core/comm/watch/watch.h) takes a rank for alive that reads or writes slowly. Any thread counts,
 * by dpt_file_moved: the functions here do, and what reads files in other ways.
 */
uint64_t dpt_file_moves(void);
void dpt_file_moved(void);

/* pread/pwrite of exactly n bytes, EINTR and short transfers handled. 0, or -1 with errno (EPIPE:
 * the file ended). */
int dpt_pread_all(int fd, void *bytes, size_t n, long long offset);
int dpt_pwrite_all(int fd, const void *bytes, size_t n, long long offset);
/* Appends n bytes to a file. 0, or -1 with errno: what a full disk took of them is
 * cut off again where that can be done. */
int dpt_append_all(int fd, const void *bytes, size_t n);

/* The first line of a file without its end, as /proc and /sys have them; false, and "", where there
 * is none. */
bool dpt_file_line(const char *path, char *line, size_t size);
/* The value after `label`, as in "model name\t: AMD EPYC" or PRETTY_NAME="Debian"; false: there is
 * none, and `value` stays. */
bool dpt_file_value(const char *path, const char *label, char *value, size_t size);
/* The first line that a command prints; "" where it prints none. */
void dpt_command_line(const char *command, char *line, size_t size);
/* The number that a file begins with; `otherwise` where there is none. */
double dpt_file_number(const char *path, double otherwise);

#endif
