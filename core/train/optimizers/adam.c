#include "core/train/optimizers/rows.h"

/* adam and adamw, which differ in how weights decay. */

/* Kingma & Ba 2015, algorithm 1, in PyTorch's order of operations. AdamW's decay (Loshchilov &
 * Hutter 2019, "Decoupled Weight Decay Regularization") does not pass through the moments. */
static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct dpt_moment_options *o = options;

    f->rate[0] = (float)(lr / (1 - pow(o->beta1, (double)update)));
    dpt_moment_scalars(o, update, f);
}

// clang-format off
#define ADAM_ROWS \
    DPT_OPTIMIZER_LR("1e-3"), DPT_OPTIMIZER_MOMENTS("1e-8")
// clang-format on

static const struct dpt_option
    adam_table[] = {ADAM_ROWS, DPT_OPTIMIZER_L2, DPT_OPTIMIZER_GROUPS, {0}},
    adamw_table[] = {ADAM_ROWS, DPT_OPTIMIZER_DECOUPLED("0.01"), DPT_OPTIMIZER_GROUPS, {0}};

#define TYPE .slots = 2, .slot_names = {"m", "v"}, .scalars = scalars, .rule = DPT_RULE_ADAM
static const struct dpt_optimizer_type adam_type = {TYPE}, adamw_type = {TYPE, .decoupled = true};

DPT_OPTIMIZER(adam, struct dpt_moment_options, adam_table, adam_type,
              "Adam (Kingma & Ba 2015, algorithm 1), bias-corrected");

DPT_OPTIMIZER(adamw, struct dpt_moment_options, adamw_table, adamw_type,
              "Adam with decoupled weight decay (Loshchilov & Hutter 2019)");
