/*
 * rows: what the optimizers' tables share; each optimizer is a file.
 */
#ifndef DPT_TRAIN_OPTIMIZERS_ROWS_H
#define DPT_TRAIN_OPTIMIZERS_ROWS_H

#include "core/train/update/optimizer.h"
#include "core/train/update/tensor_groups.h"

/* Rows of a table of options, in its order. */
// clang-format off
#define DPT_OPTIMIZER_LR(usual)                                                                    \
    {.name = "lr", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_optimizer_options, lr),     \
     .fallback = usual, .min = 0, .max = 1e6, .help = "learning rate"}
#define DPT_OPTIMIZER_DECAY(usual, meaning)                                                        \
    {.name = "weight_decay", .type = DPT_OPT_REAL,                                                 \
     .offset = offsetof(struct dpt_optimizer_options, weight_decay), .fallback = usual,            \
     .min = 0, .max = 1e6, .help = meaning "; spares biases"}
/* PyTorch's Adam adds the decay to the gradient, AdamW (Loshchilov & Hutter 2019) subtracts it from
 * the weight. */
#define DPT_OPTIMIZER_L2 DPT_OPTIMIZER_DECAY("0", "times the weight is added to the gradient")
#define DPT_OPTIMIZER_DECOUPLED(usual)                                                             \
    DPT_OPTIMIZER_DECAY(usual, "times lr is taken off the weight itself")
#define DPT_OPTIMIZER_GROUPS                                                                       \
    {.name = "groups", .type = DPT_OPT_CUSTOM, .added = true,                                      \
     .offset = offsetof(struct dpt_optimizer_options, groups), .fallback = "[]",                   \
     .read = dpt_groups_read, .value_text = "list of groups", .alternatives = &dpt_group_forms,    \
     .help = "other rates and decays for the tensors that a group's patterns match"}
// clang-format on

#endif
