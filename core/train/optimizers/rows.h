/*
 * rows: the optimizers, one file each.
 */
#ifndef DPT_TRAIN_OPTIMIZERS_ROWS_H
#define DPT_TRAIN_OPTIMIZERS_ROWS_H

#include "core/train/optimizer.h"

extern const struct dpt_variant dpt_sgd, dpt_adam, dpt_adamw;

/* What adam and adamw share. */
struct dpt_adam_options {
    double lr, beta1, beta2, eps, weight_decay;
};

/* Their tables but for weight_decay. */
// clang-format off
#define DPT_ADAM_ROWS                                                                              \
    {.name = "lr", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, lr),          \
     .fallback = "1e-3", .min = 0, .max = 1e6, .help = "learning rate"},                           \
    {.name = "beta1", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, beta1),    \
     .fallback = "0.9", .min = 0, .max = 0.999999,                                                 \
     .help = "decay of the gradient's running mean"},                                              \
    {.name = "beta2", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, beta2),    \
     .fallback = "0.999", .min = 0, .max = 0.999999,                                               \
     .help = "decay of the squared gradient's running mean"},                                      \
    {.name = "eps", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_adam_options, eps),        \
     .fallback = "1e-8", .min = 1e-30, .max = 1, .help = "added to the root of that mean"}
// clang-format on

/*
 * Kingma & Ba 2015, algorithm 1, in the order of operations of PyTorch's. l2: added to the gradient
 * as weight x this; keep: weights are multiplied by this first.
 */
void dpt_adam_pass(const struct dpt_adam_options *options, const struct dpt_update *update,
                   float l2, float keep, size_t n, float *params, const float *gradient,
                   float *const *slot);

double dpt_adam_lr(const void *options);
double dpt_adam_weight_decay(const void *options);
void dpt_adam_rule(const void *options, struct dpt_rule *rule);

#endif
