/*
 * json_read: JSON text as a tree (RFC 8259).
 *
 * What machines wrote: lines of metrics.jsonl, heads of safetensors files. Strict, and safe with
 * anything: depth is bounded, texts are UTF-8, and each byte is looked at once. Nodes live in the
 * caller's arena. Numbers keep their text, so that whole ones of 64 bits are read exactly.
 *
 *     for (const struct dpt_json_node *n = root->first; n != NULL; n = n->next)
 *         use(n->key, n);
 */
#ifndef DPT_CONF_JSON_READ_H
#define DPT_CONF_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/memory.h"

enum { DPT_JSON_DEPTH = 64 };

enum dpt_json_kind {
    DPT_JSON_NULL,
    DPT_JSON_BOOL,
    DPT_JSON_NUMBER,
    DPT_JSON_TEXT,
    DPT_JSON_LIST,
    DPT_JSON_MAP
};

struct dpt_json_node {
    enum dpt_json_kind kind;
    const char *key; /* in a map; else NULL */
    /* TEXT: its characters, NUL-terminated; NUMBER: as it is written */
    const char *text;
    size_t length; /* of text, which may hold NULs of its own */
    bool truth;    /* BOOL */
    size_t n;      /* LIST, MAP: entries */
    struct dpt_json_node *first, *next;
};

/*
 * Parses all of n bytes, one value with white space around it. *root: out, untouched on failure.
 * what: names the text in messages. Of equal keys in a map each is kept, in their order. Errors:
 * BAD_DATA ("what: byte 12: …"), RANK (memory).
 */
enum dpt_status dpt_json_parse(const struct dpt_json_node **root, struct dpt_arena *arena,
                               const char *what, const char *bytes, size_t n,
                               struct dpt_error *err);

/* A map's first entry of that name; NULL also where `map` is NULL or no map. */
const struct dpt_json_node *dpt_json_get(const struct dpt_json_node *map, const char *key);

/* What a node says; `fallback` where it is NULL, of another kind or out of the type's range. Whole
 * numbers are such without fraction and exponent. */
int64_t dpt_json_int(const struct dpt_json_node *node, int64_t fallback);
double dpt_json_real(const struct dpt_json_node *node, double fallback);
const char *dpt_json_string(const struct dpt_json_node *node, const char *fallback);

#endif
