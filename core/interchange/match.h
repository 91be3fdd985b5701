/*
 * match: which tensor of a file becomes which tensor of a model.
 *
 * By name, after the user's renaming of prefixes and without a prefix that wrappers put in front of
 * all names (`module.`, `model.`); or by order, layer after layer. A pair must have one shape.
 */
#ifndef DPT_INTERCHANGE_MATCH_H
#define DPT_INTERCHANGE_MATCH_H

#include "core/interchange/weights.h"

/* How it is asked for. */
struct dpt_match_options {
    const char *const *map; /* [n_map] "FROM=TO": of names that are or begin with FROM */
    size_t n_map;
    bool by_order; /* names do not matter */
    bool partial;  /* tensors may be left over on both sides */
};

/* Zero-initialise; release. */
struct dpt_match {
    /* The file's tensor for each tensor of the graph, or NULL: there is none, or one of another
     * shape, `near`. */
    const struct dpt_weight **weight, **near;
    const char **name;  /* for each of the file's: after renaming */
    bool *used;         /* likewise: it has a pair, maybe of another shape */
    int32_t pairs;      /* tensors that have one */
    const char *prefix; /* that the file's names begin with, "" where none was taken off */
    struct dpt_region arena;
};

/*
 * Matches the tensors. Errors: BAD_DATA (without `partial`: tensors are left over or have another
 * shape, all of them told; with it: there is no pair at all; a rule of the map fits nothing; two
 * tensors have one name then), USAGE (a rule is no FROM=TO), RANK.
 */
enum dpt_status dpt_match_open(struct dpt_match *match, const struct dpt_weights *weights,
                               const struct dpt_graph *graph,
                               const struct dpt_match_options *options, struct dpt_error *err);
void dpt_match_release(struct dpt_match *match);

/* Lists, for a person, a line each ("  fc.weight [10, 512]: [1000, 512] in the file") up to a
 * bound: the model's tensors without a pair, and the file's. Give how many there are. */
size_t dpt_match_missing(const struct dpt_match *match, const struct dpt_graph *graph,
                         struct dpt_str *out);
size_t dpt_match_unused(const struct dpt_match *match, const struct dpt_weights *weights,
                        struct dpt_str *out);

#endif
