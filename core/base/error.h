/*
 * error: how every function that can fail says so.
 *
 * A function that can fail returns enum dpt_status and, when that is not DPT_OK, has filled the
 * caller's struct dpt_error with one line for a person: what is wrong, where, and what to do. The
 * function that knows the cause writes the line, once; its callers pass it on unchanged. Only cmd/
 * turns a status into an exit code. `err` is never NULL.
 */
#ifndef DPT_BASE_ERROR_H
#define DPT_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>

/* Name, exit code, and what the exit code means to whoever reads it. */
#define DPT_STATUS_LIST(X)                                                                         \
    X(OK, 0, "done")                                                                               \
    X(FAILED, 1, "it diverged, outputs are not finite, replicas differ, or nothing is saved")      \
    X(USAGE, 2, "the command line is wrong")                                                       \
    X(BAD_DATA, 65, "bad data: a damaged or incompatible shard, checkpoint or input file")         \
    X(INTERNAL, 70, "internal error: a bug in dptrain")                                            \
    X(RANK, 71, "a rank or MPI failed, or memory ran out")                                         \
    X(IO, 74, "reading or writing a file failed, or the disk is full")                             \
    X(STOPPED, 75, "stopped on request after saving: requeue the job")                             \
    X(BAD_JOB, 78, "the job file is wrong")

enum dpt_status {
#define X(name, code, text) DPT_##name,
    DPT_STATUS_LIST(X)
#undef X
        DPT_STATUS_COUNT
};

enum { DPT_ERROR_TEXT = 4096 };

struct dpt_error {
    enum dpt_status status;
    bool memory;               /* there is not enough of it (DPT_RANK) */
    char text[DPT_ERROR_TEXT]; /* no trailing newline; several lines only for lists */
};

/* Runs an expression that gives a status; on failure goes to the function's `out:` label. Needs a
 * local `status`. */
#define DPT_TRY(call)                                                                              \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != DPT_OK)                                                                      \
            goto out;                                                                              \
    } while (0)

/* Fills *err (text is cut at its capacity; line breaks in what the format inserts are escaped) and
 * returns `status`, so that `return dpt_fail(...)` reads well. */
enum dpt_status dpt_fail(struct dpt_error *err, enum dpt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts text in front of the error's text, which may have several lines. */
void dpt_error_prefix(struct dpt_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Does what dpt_fail does, with ": <strerror(errno)>" after the text. The status is DPT_RANK for
 * ENOMEM, else `status`. */
enum dpt_status dpt_fail_errno(struct dpt_error *err, enum dpt_status status, const char *format,
                               ...) __attribute__((format(printf, 3, 4)));

/* "not enough memory for `what` (N MB)", DPT_RANK. */
enum dpt_status dpt_fail_memory(struct dpt_error *err, const char *what, double bytes);

/* The process exit code of a status (sysexits.h where it has one), and its meaning as a static
 * string. */
int dpt_exit_code(enum dpt_status status);
const char *dpt_status_text(enum dpt_status status);

#endif
