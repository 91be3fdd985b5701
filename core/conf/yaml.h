/*
 * yaml: a job file as a tree, with the position of every node, and the list of errors found in
 * it.
 *
 * The accepted YAML is the part that a job needs: one document of maps, lists and scalars. What
 * libyaml lets pass and a job must not contain is refused here: duplicate keys, anchors and
 * aliases, tags, merge keys, several or empty documents, depth over 32, files over 64 KiB, NUL and
 * bytes that are not UTF-8. Nodes live in the document's region.
 *
 * Errors are collected, so that a person sees all of them at once. What leaves a tree to continue
 * with (a duplicate key, an anchor, a tag, a merge key, a key that is no word) is an error like
 * those that the option tables find; what does not (no YAML, too deep, not a map, not text) fails
 * at once. So a job is good only after dpt_conf_load, dpt_conf_set, dpt_options_read *and*
 * dpt_conf_validation_result; whoever parses without reading options asks
 * dpt_conf_validation_result too.
 */
#ifndef DPT_CONF_YAML_H
#define DPT_CONF_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/str.h"

enum { DPT_YAML_DEPTH = 32, DPT_YAML_BYTES = 64 * 1024 };

enum dpt_node_kind { DPT_NODE_SCALAR, DPT_NODE_LIST, DPT_NODE_MAP };

struct dpt_option;

struct dpt_conf_node {
    enum dpt_node_kind kind;
    /* scalar: its value; every spelling of a plain null (~, nothing, Null) is "null" */
    const char *text;
    /* scalar: written in quotes or as a block, so never a number, null, true or auto */
    bool quoted;
    bool filled;                  /* a default that the file did not name */
    const struct dpt_option *row; /* that read it (option.h); NULL: none did, or a part of one */
    int line, column; /* 1-based, in characters; of the value; a default has its map's. Line 0: see
                         `origin` */
    int key_line, key_column; /* of the key, where the node is a map's entry in the file; else 0 */
    const char *origin; /* NULL: the file; else e.g. "--set batch.micro=48" (then line is 0) */
    int order;          /* 0: the file; k: set by the k-th dpt_conf_set */
    size_t n;           /* list, map: entries */
    size_t capacity;
    const char **keys; /* map */
    struct dpt_conf_node **items;
};

/* What a job has, and the words that people know for it from other programs. */
struct dpt_synonym {
    const char *meant; /* a name that stands beside the word, the whole path of another key, or a
                          sentence that says what to do (it has a blank) */
    const char *words; /* separated by blanks: keys or values, in lower case and without _ and -;
                          with a dot the whole path of a key; with a colon that of a map that is
                          none */
};

/* A document: the file it came from, its tree, and the errors found in it so far. */
struct dpt_conf {
    const char *path;             /* as the user wrote it; shown in messages */
    struct dpt_conf_node *root;   /* a map; after dpt_conf_parse succeeded */
    struct dpt_region region;     /* where memory ran out, the validation result is DPT_RANK */
    struct dpt_mistake *mistakes; /* sorted by place when shown */
    size_t n_mistakes, mistakes_capacity;
    int sets;                           /* dpt_conf_set, so far */
    const struct dpt_synonym *synonyms; /* the last is empty; NULL: none. For suggestions; borrowed,
                                           may be set once there is a tree */
};

/*
 * Reads and parses a file. *conf need not be initialised; release it also after a failure.
 * Errors: BAD_JOB (missing, unreadable, a folder, too large, not text, not YAML, not one map), with
 * its place; RANK (memory).
 */
enum dpt_status dpt_conf_load(struct dpt_conf *conf, const char *path, struct dpt_error *err);
/* Parses text of `length` bytes likewise; `path` is only for messages. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_conf_parse(struct dpt_conf *conf, const char *path, const char *text,
                               size_t length, struct dpt_error *err);
/*
 * Applies "a.b.c=value"; "a.layers[2].x=3" reaches into lists. The value is a scalar as it stands
 * (`*.h5`, `a: b`), or, where it starts with [, {, " or ', YAML in flow style. Missing maps on the
 * way are made; a scalar on the way becomes {type: scalar}, so that optimizer.lr=0.1 fits
 * `optimizer: adam`. Errors: USAGE (the assignment is malformed, the value is not YAML), BAD_JOB
 * (the file has a list or no such entry there), RANK.
 */
enum dpt_status dpt_conf_set(struct dpt_conf *conf, const char *assignment, struct dpt_error *err);
void dpt_conf_release(struct dpt_conf *conf);

/*
 * Adds an error at a node (NULL: the file as a whole); `path` is the dotted key ("batch.micro") or
 * NULL. The message is made one printable line; texts of the user's that may be long go through
 * dpt_conf_show.
 */
void dpt_conf_mistake(struct dpt_conf *conf, const struct dpt_conf_node *at, const char *path,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Adds an error as dpt_conf_mistake does, at the position of the key that the node stands
 * under. */
void dpt_conf_mistake_key(struct dpt_conf *conf, const struct dpt_conf_node *at, const char *path,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
/*
 * OK, or BAD_JOB with the errors, a line each ("JOB.yaml:12:7: batch.mirco: unknown key, did you
 * mean 'micro'?"), in file order, those from the command line last ("--set batch.micro=48:
 * batch.micro: …"); at most 40, then how many more. RANK: memory.
 */
enum dpt_status dpt_conf_validation_result(struct dpt_conf *conf, struct dpt_error *err);
/* A text of the user's for a message: printable, on one line, at most about 60 characters. In the
 * region; never NULL. */
const char *dpt_conf_show(struct dpt_conf *conf, const char *text);

/* A map's entry or NULL. */
struct dpt_conf_node *dpt_conf_get(const struct dpt_conf_node *map, const char *key);
/* Whether the file says nothing here: a plain null. */
bool dpt_conf_is_null(const struct dpt_conf_node *node);
/*
 * New nodes in the document's region; NULL or false where memory ran out. Keys and texts are
 * copied. A new scalar is plain: set `quoted` where a text must not be taken for a number or a
 * word. dpt_conf_put replaces or appends a map's entry. dpt_conf_place gives a node the position of
 * another, so that an error in a generated node points to the text that it was made from.
 */
struct dpt_conf_node *dpt_conf_new(struct dpt_conf *conf, enum dpt_node_kind kind,
                                   const char *text);
bool dpt_conf_put(struct dpt_conf *conf, struct dpt_conf_node *map, const char *key,
                  struct dpt_conf_node *item);
bool dpt_conf_append(struct dpt_conf *conf, struct dpt_conf_node *list, struct dpt_conf_node *item);
void dpt_conf_place(struct dpt_conf_node *node, const struct dpt_conf_node *from);

/*
 * Writes a tree as YAML that parses back to the same tree (block style; lists of scalars in flow
 * style). The root must be a map for that. Plain scalars stay plain where YAML can say them so.
 * Check out->failed.
 */
void dpt_conf_write(const struct dpt_conf_node *node, struct dpt_str *out);

#endif
