/*
 * rows: rows that the optimizers' tables share; each optimizer is a file.
 */
#ifndef DPT_TRAIN_OPTIMIZERS_ROWS_H
#define DPT_TRAIN_OPTIMIZERS_ROWS_H

#include <math.h>

#include "core/base/vector.h"
#include "core/train/update/optimizer.h"
#include "core/train/update/tensor_groups.h"

/* The options of Adam and of what is made of it. */
struct dpt_moment_options {
    struct dpt_optimizer_options common;
    double beta1, beta2, eps;
};

/* The scalars that follow from these, but for the rate and the first moment's correction. */
static inline void dpt_moment_scalars(const struct dpt_moment_options *o, int64_t update,
                                      struct dpt_scalars *f)
{
    f->rate[1] = (float)(1 / sqrt(1 - pow(o->beta2, (double)update)));
    f->factor[0] = (float)(1 - o->beta1);
    f->factor[1] = (float)o->beta2;
    f->factor[2] = (float)(1 - o->beta2);
    f->factor[3] = (float)o->eps;
}

/* Rows of a table of options, in its order. */
// clang-format off
#define DPT_OPTIMIZER_LR(usual)                                                                    \
    {DPT_ROW_REAL(struct dpt_optimizer_options, lr, usual, 0, 1e6), .help = "learning rate"}
#define DPT_OPTIMIZER_DECAY(usual, meaning)                                                        \
    {DPT_ROW_REAL(struct dpt_optimizer_options, weight_decay, usual, 0, 1e6),                      \
     .help = meaning "; conv and dense weights only"}
/* PyTorch's Adam adds the decay to the gradient, AdamW (Loshchilov & Hutter 2019) subtracts it from
 * the weight. */
#define DPT_OPTIMIZER_L2 DPT_OPTIMIZER_DECAY("0", "times the weight is added to the gradient")
#define DPT_OPTIMIZER_DECOUPLED(usual)                                                             \
    DPT_OPTIMIZER_DECAY(usual, "times lr is taken off the weight itself")
/* Rows for options that begin with struct dpt_moment_options. */
#define DPT_OPTIMIZER_MOMENTS(usual)                                                               \
    {DPT_ROW_REAL(struct dpt_moment_options, beta1, "0.9", 0, 0.999999),                           \
     .help = "decay of the gradient's running mean"},                                              \
    {DPT_ROW_REAL(struct dpt_moment_options, beta2, "0.999", 0, 0.999999),                         \
     .help = "decay of the squared gradient's running mean"},                                      \
    {DPT_ROW_REAL(struct dpt_moment_options, eps, usual, 1e-30, 1),                                \
     .help = "added to the root of that mean"}
/* You et al. 2020 and those who follow (timm, MLPerf) leave out tensors without decay. */
#define DPT_OPTIMIZER_ADAPT(options)                                                               \
    {.name = "always_adapt", .type = DPT_OPT_BOOL, .offset = offsetof(options, always_adapt),      \
     .fallback = "false", .help = "rates by norms also for biases and norms' parameters"}
#define DPT_OPTIMIZER_GROUPS                                                                       \
    {.name = "groups", .type = DPT_OPT_CUSTOM, .added = true,                                      \
     .offset = offsetof(struct dpt_optimizer_options, groups), .fallback = "[]",                   \
     .read = dpt_groups_read, .value_text = "list of groups", .alternatives = &dpt_group_forms,    \
     .help = "other rates and decays for the tensors that a group's patterns match"}
// clang-format on

/* The row of an optimizer, of its struct of options, their table, and its type. */
#define DPT_OPTIMIZER(optimizer, struct_, table_, type_, text)                                     \
    const struct dpt_variant dpt_##optimizer = {.name = #optimizer,                                \
                                                .summary = text,                                   \
                                                .options = table_,                                 \
                                                .size = sizeof(struct_),                           \
                                                .impl = &(type_)}

#endif
