#include <math.h>

#include "core/train/optimizers/rows.h"

/* adam and adamw, which differ in how weights decay. */

struct adam_options {
    struct dpt_optimizer_options common;
    double beta1, beta2, eps;
};

/* Kingma & Ba 2015, algorithm 1, in PyTorch's order of operations. AdamW's decay (Loshchilov &
 * Hutter 2019, "Decoupled Weight Decay Regularization") does not pass through the moments. */
static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct adam_options *o = options;

    f->rate[0] = (float)(lr / (1 - pow(o->beta1, (double)update)));
    f->rate[1] = (float)(1 / sqrt(1 - pow(o->beta2, (double)update)));
    f->factor[0] = (float)(1 - o->beta1);
    f->factor[1] = (float)o->beta2;
    f->factor[2] = (float)(1 - o->beta2);
    f->factor[3] = (float)o->eps;
}

// clang-format off
#define ADAM_ROWS \
    DPT_OPTIMIZER_LR("1e-3"), DPT_OPTIMIZER_MOMENTS(struct adam_options, "1e-8")
// clang-format on

static const struct dpt_option
    adam_table[] = {ADAM_ROWS, DPT_OPTIMIZER_L2, DPT_OPTIMIZER_GROUPS, {0}},
    adamw_table[] = {ADAM_ROWS, DPT_OPTIMIZER_DECOUPLED("0.01"), DPT_OPTIMIZER_GROUPS, {0}};

#define TYPE .slots = 2, .slot_names = {"m", "v"}, .scalars = scalars, .rule = DPT_RULE_ADAM
static const struct dpt_optimizer_type adam_type = {TYPE}, adamw_type = {TYPE, .decoupled = true};

DPT_OPTIMIZER(adam, struct adam_options, adam_table, adam_type,
              "Adam (Kingma & Ba 2015, algorithm 1), bias-corrected");

DPT_OPTIMIZER(adamw, struct adam_options, adamw_table, adamw_type,
              "Adam with decoupled weight decay (Loshchilov & Hutter 2019)");
