/*
 * value: one scalar or one list, as a row of a table says. Private to this room.
 */
#ifndef DPT_CONF_VALUE_H
#define DPT_CONF_VALUE_H

#include "core/conf/option.h"

/* Reads the types BOOL to EVERY from a node that is not "not given" into dest. Mistakes go to conf.
 */
void dpt_value_read(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                    const struct dpt_option *row, void *dest);

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

/*
 * What a word that is none of n names may mean: "; did you mean 'full'?", "; ranks are ..." or "".
 * path: of an unknown key, which may then be meant to stand elsewhere; NULL: it is a value. In the
 * arena.
 */
const char *dpt_value_suggestion(struct dpt_conf *conf, const char *path, const char *text,
                                 const char *const *names, size_t n);

/* Adds names, with ", " between them, as far as they fit. */
void dpt_value_join(char *buf, size_t capacity, const char *const *names, size_t n);

#endif
