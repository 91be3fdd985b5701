/*
 * internal: what the files of this module share: YAML text into nodes, one value as a row of a
 * table says, numbers and times in words, and the characters of a job file. Private to this module.
 */
#ifndef DPT_CONF_INTERNAL_H
#define DPT_CONF_INTERNAL_H

#include "core/conf/option.h"

/* --- reading ---------------------------------------------------------------------------------- */

struct dpt_read_spec {
    const char *text;
    size_t length;
    /* NULL: the text is the file, and nodes get their positions in it. Else nodes get this node's
     * position, origin and `filled`. */
    const struct dpt_conf_node *place;
    const char *path; /* dotted name of what is read, for messages; "" for the file */
    int depth;        /* maps and lists that it stands in */
};

/* Reads a value as the command line and the tables write it: a plain scalar as it stands, or
 * flow style. NULL: the reason was added as the last error, or memory ran out
 * (conf->region.failed). */
struct dpt_conf_node *dpt_read_value(struct dpt_conf *conf, const struct dpt_read_spec *spec);

/* One error; `text` is a message as dpt_conf_mistake makes it, without its position. */
struct dpt_mistake {
    int line, column; /* 0: the file as a whole, or see origin */
    const char *origin;
    const char *text;
    size_t number; /* in the order in which they were found */
};

/* Checks that bytes are UTF-8 text that a YAML stream may hold. False: an error was added.
 * `origin`: as in a node. */
bool dpt_check_text(struct dpt_conf *conf, const char *bytes, size_t n, const char *origin);

/* --- values ----------------------------------------------------------------------------------- */

/* Reads the types BOOL to EVERY from a node that is not "not given" into dest. Errors go to conf.
 */
void dpt_value_read(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                    const struct dpt_option *row, void *dest);

/* EVERY: bits 1 << enum dpt_unit of the units that the row takes. */
unsigned dpt_value_units(const struct dpt_option *row);

/* Gives a scalar, or those of a list, the one form that a row has for it: a truth in lower case,
 * without quotes the row's word, which JSON cannot say otherwise, and `1e-3` for `1.0e-3`, as
 * dpt_conf_write has it. */
void dpt_value_settle(struct dpt_conf *conf, struct dpt_conf_node *node,
                      const struct dpt_option *row);

/* Whether `word` is a word of this row (INT and REAL alone have one). */
bool dpt_value_is_word(const struct dpt_option *row, const char *word);

enum { DPT_VALUE_TEXT = 512 };

/* What a row wants: "a whole number or auto", "one of full, block, none"; buf: DPT_VALUE_TEXT
 * bytes; returns buf. */
const char *dpt_value_wanted(const struct dpt_option *row, char *buf);

/* Bounds in words: "in 1 … 1000", "at least 1", "above 0", or "" without any; likewise. */
const char *dpt_value_bounds(const struct dpt_option *row, char *buf);

/* What a node is, for messages: "'many'", "'64' in quotes", "a list", "null". */
const char *dpt_value_got(struct dpt_conf *conf, const struct dpt_conf_node *node);

/* Adds names, with ", " between them, as far as they fit. */
void dpt_value_join(char *buf, size_t capacity, const char *const *names, size_t n);

/* Whether text is digits with at most a sign, of any length. */
bool dpt_is_whole(const char *text);

/* Reads "1 epoch", "50 steps", "10 min", "never", "10 %". NULL, or what is wrong, for a person;
 * *every is untouched then. */
const char *dpt_parse_every(const char *text, struct dpt_every *every);

#endif
