/* adam: what adam and adamw share: the options but weight_decay, and the scalars. */
#ifndef DPT_TRAIN_OPTIMIZERS_ADAM_H
#define DPT_TRAIN_OPTIMIZERS_ADAM_H

#include "core/train/optimizers/rows.h"

struct dpt_adam_options {
    struct dpt_optimizer_options common;
    double beta1, beta2, eps;
};

// clang-format off
#define DPT_ADAM_ROWS                                                                              \
    DPT_OPTIMIZER_LR("1e-3"),                                                                      \
    {.name = "beta1", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, beta1),    \
     .fallback = "0.9", .min = 0, .max = 0.999999,                                                 \
     .help = "decay of the gradient's running mean"},                                              \
    {.name = "beta2", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, beta2),    \
     .fallback = "0.999", .min = 0, .max = 0.999999,                                               \
     .help = "decay of the squared gradient's running mean"},                                      \
    {.name = "eps", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, eps),        \
     .fallback = "1e-8", .min = 1e-30, .max = 1, .help = "added to the root of that mean"}
// clang-format on

/* Kingma & Ba 2015, algorithm 1, in the order of operations of PyTorch's; without decay. */
void dpt_adam_scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f);
enum dpt_rule_kind dpt_adam_rule(const void *options);

#endif
