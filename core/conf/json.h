/*
 * json: writes JSON with one member a line. Private to this room.
 *
 * `name` is a member's name, or NULL for an entry of a list and for the whole.
 */
#ifndef DPT_CONF_JSON_H
#define DPT_CONF_JSON_H

#include <stdbool.h>

#include "core/base/str.h"

/* Set `out`, the rest zero. */
struct dpt_json {
    struct dpt_str *out;
    int depth;
    bool behind; /* a member stands before the next one */
};

/* '{' or '[', and what closes it: '}' or ']'. */
void dpt_json_open(struct dpt_json *j, const char *name, char bracket);
void dpt_json_close(struct dpt_json *j, char bracket);

void dpt_json_text(struct dpt_json *j, const char *name, const char *value);
void dpt_json_number(struct dpt_json *j, const char *name, double value);
/* A word as it stands: true, null. */
void dpt_json_word(struct dpt_json *j, const char *name, const char *word);
/* A list of n texts in one line, with null at its end where `null`. */
void dpt_json_texts(struct dpt_json *j, const char *name, const char *const *values, size_t n,
                    bool null);

#endif
