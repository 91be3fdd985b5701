/*
 * tensor_groups: the tensors that a job treats differently from the rest.
 *
 * A pattern is a shell's glob over the names of tensors as `dptrain inspect` shows them
 * ("conv1/weight"; `*` also matches `.` and `/`), or over those of layers ("layer1.*"), which then
 * means all tensors of the layer. train.freeze lists patterns of tensors that are not updated;
 * optimizer.groups gives rates and decays of their own to those that a group matches. If several
 * groups match a tensor, the first one that gives a key sets it.
 */
#ifndef DPT_TRAIN_TENSOR_GROUPS_H
#define DPT_TRAIN_TENSOR_GROUPS_H

#include "core/backend/graph.h"
#include "core/conf/option.h"

struct dpt_patterns {
    struct dpt_texts texts;
    const struct dpt_conf_node *at; /* where they stand, in */
    const char *file;               /* this one */
};

struct dpt_group_options {
    struct dpt_patterns match;
    double lr, lr_scale; /* at most one is given; 0: not so */
    double weight_decay; /* -1: the optimizer's */
};

struct dpt_groups {
    struct dpt_group_options *at;
    size_t n;
};

/* The `read` of rows of patterns and of groups, and what they accept. */
bool dpt_patterns_read(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                       void *patterns);
bool dpt_groups_read(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                     void *groups);
extern const struct dpt_alternatives dpt_pattern_forms, dpt_group_forms;

/* Marks the tensors of a graph. lr: the optimizer's, before its schedule. Errors: BAD_JOB (a
 * pattern that matches nothing, with the file and line). */
enum dpt_status dpt_tensor_groups_freeze(const struct dpt_patterns *freeze, struct dpt_graph *graph,
                                         struct dpt_error *err);
enum dpt_status dpt_tensor_groups_apply(const struct dpt_groups *groups, double lr,
                                        struct dpt_graph *graph, struct dpt_error *err);

/* Whether a pattern matches a tensor. */
bool dpt_pattern_matches(const char *pattern, const struct dpt_tensor *t);
/* Whether group number `i` is the first to give this learned tensor a rate or a decay. */
bool dpt_tensor_groups_give(const struct dpt_groups *groups, size_t i, const struct dpt_tensor *t);

#endif
