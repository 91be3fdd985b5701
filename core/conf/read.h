/*
 * read: YAML text into nodes. Private to this room.
 */
#ifndef DPT_CONF_READ_H
#define DPT_CONF_READ_H

#include "core/conf/yaml.h"

struct dpt_read_spec {
    const char *text;
    size_t length;
    /* NULL: the text is the file, and nodes get their positions in it. Else nodes get this node's
     * position, origin and `filled`. */
    const struct dpt_conf_node *place;
    const char *path; /* dotted name of what is read, for messages; "" for the file */
    int depth;        /* maps and lists that it stands in */
};

/* Reads one document. NULL: the reason was added as the last mistake, or memory ran out
 * (conf->failed). */
struct dpt_conf_node *dpt_read_document(struct dpt_conf *conf, const struct dpt_read_spec *spec);

/* Reads a value as the command line and the tables write it: a plain scalar as it stands, or flow
 * style. NULL likewise. */
struct dpt_conf_node *dpt_read_value(struct dpt_conf *conf, const struct dpt_read_spec *spec);

/* One mistake; `text` is a message as dpt_conf_mistake makes it, without its position. */
struct dpt_mistake {
    int line, column; /* 0: the file as a whole, or see origin */
    const char *origin;
    const char *text;
    size_t number; /* in the order in which they were found */
};

#endif
