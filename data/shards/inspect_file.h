/*
 * inspect_file: how the values of an inspected data set are read. Private to inspect*.c.
 *
 * A piece is a run of items of a few MiB: any run where the values lie in one run of the file,
 * whole rows elsewhere.
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
    const char *path;       /* the name as the file has it */
    struct dpt_field field; /* its name is not used */
    bool readable;          /* values are bytes of a fixed number */
    bool text;
};

/* Called before and after reads of a data set. Errors: BAD_DATA (names the file), RANK. */
enum dpt_status dpt_inspect_attach(struct dpt_inspect *f, struct dpt_inspect_set *set,
                                   struct dpt_error *err);
void dpt_inspect_detach(struct dpt_inspect_set *set);

/* Items of the piece that begins with item `first`; bytes that hold any piece. */
int64_t dpt_inspect_piece(const struct dpt_inspect_set *set, int64_t first);
size_t dpt_inspect_piece_bytes(const struct dpt_inspect_set *set);

/* Reads items of an attached data set: a piece, or less of it in whole rows. Errors: BAD_DATA, IO.
 */
enum dpt_status dpt_inspect_items(struct dpt_inspect *f, struct dpt_inspect_set *set, int64_t first,
                                  int64_t n, void *raw, struct dpt_error *err);

/* A text in the region, its unprintable bytes as '?'. NULL where memory ran out. */
const char *dpt_inspect_keep(struct dpt_inspect *f, const char *text);

/* The one string, or the strings, of an attribute; each is a string in the region. *texts is NULL
 * and *n 0 where it holds something else. False where memory ran out. */
bool dpt_inspect_strings(struct dpt_inspect *f, hid_t attribute, const char ***texts, size_t *n);

#endif
