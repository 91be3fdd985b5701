/*
 * inspect_file: how the values of an inspected data set are read. Private to inspect*.c.
 */
#ifndef DPT_DATA_INSPECT_FILE_H
#define DPT_DATA_INSPECT_FILE_H

#include "data/shards/inspect.h"
#include "data/shards/shard.h"

struct dpt_inspect_file {
    hid_t id;
    int fd;
};

struct dpt_inspect_stored {
    /* Rows are single items where the values lie in one run of the file, so that a piece of it may
     * be smaller than a row of the data set. */
    struct dpt_field field;
    bool readable; /* values are bytes of a fixed number */
    bool text;
};

/* Reads all values, a piece of n items at a time; as dpt_field_scan. Errors: those of `visit`,
 * BAD_DATA, IO, RANK. */
enum dpt_status dpt_inspect_scan(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                 void (*visit)(void *arg, const void *raw, int64_t n), void *arg,
                                 uint32_t *crc, struct dpt_error *err);

/* Calls f->watch, where there is one. */
void dpt_inspect_watch(const struct dpt_inspect *f, const char *name);

/* A text in the region, its unprintable bytes as '?'. NULL where memory ran out, which the
 * region remembers. */
const char *dpt_inspect_keep(struct dpt_inspect *f, const char *text);

/* The one string, or the strings, of an attribute of an open object; each is a string in the
 * region. *texts is NULL and *n 0 where there is none, or it holds something else. */
void dpt_inspect_strings(struct dpt_inspect *f, hid_t object, const char *name, const char ***texts,
                         size_t *n);

#endif
