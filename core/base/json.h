/*
 * json: writes JSON as it goes; no document is ever built in memory.
 *
 * Set `file`, the rest zero. Text piles up in `text` and goes to the file a few kilobytes at a
 * time; without a file all of it stays there, for one line that must be written at once. The first
 * failure is kept in `error`, and no later call does anything.
 *
 *     struct dpt_json j = {.file = stdout};
 *     dpt_json_object(&j, NULL);
 *     dpt_json_int(&j, "ranks", 4);
 *     dpt_json_end(&j);
 *     DPT_TRY(dpt_json_finish(&j, "the plan", err));
 *
 * `key` is a member's name, or NULL for an entry of an array and for the outermost value.
 */
#ifndef DPT_BASE_JSON_H
#define DPT_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base/error.h"
#include "core/base/str.h"

struct dpt_json {
    FILE *file;  /* borrowed; NULL: the text stays */
    bool indent; /* each member in a line of its own, indented; else in one line; may change on the
                    way */
    struct dpt_str text;
    int error;       /* errno of the first failure */
    int depth;       /* of open objects and arrays, at most 64 */
    uint64_t arrays; /* bit k: the one at depth k is an array */
    bool comma;      /* the next value follows another one */
    bool newline;    /* the next value, or the closing bracket, begins a line */
};

void dpt_json_object(struct dpt_json *j, const char *key);
void dpt_json_array(struct dpt_json *j, const char *key);
/* Closes the innermost object or array. */
void dpt_json_end(struct dpt_json *j);

/* NULL is written as null. */
void dpt_json_text(struct dpt_json *j, const char *key, const char *value);
void dpt_json_int(struct dpt_json *j, const char *key, int64_t value);
/* The shortest text that reads back as the same double; null where it is not finite. */
void dpt_json_real(struct dpt_json *j, const char *key, double value);
void dpt_json_bool(struct dpt_json *j, const char *key, bool value);
void dpt_json_null(struct dpt_json *j, const char *key);

/* Puts a line break before what follows. */
void dpt_json_break(struct dpt_json *j);
/* Ends the line, writes what is left and releases the text. what: names it in messages. Errors:
 * RANK (memory). Whether writing failed, the file's owner asks, who knows its name: `error` has the
 * reason, and so has errno. */
enum dpt_status dpt_json_finish(struct dpt_json *j, const char *what, struct dpt_error *err);

#endif
