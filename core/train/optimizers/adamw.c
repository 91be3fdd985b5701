#include "core/train/optimizers/adam.h"

/* Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization": the decay does not pass
 * through the moments. */
static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    dpt_adam_scalars(options, lr, update, f);
    f->keep = dpt_optimizer_keep(lr, options);
}

static const struct dpt_option table[] = {DPT_ADAM_ROWS, DPT_OPTIMIZER_DECOUPLED("0.01"), {0}};

static const struct dpt_optimizer_type type = {
    .slots = 2, .slot_names = {"m", "v"}, .scalars = scalars, .rule = dpt_adam_rule};

const struct dpt_variant dpt_adamw = {
    .name = "adamw",
    .summary = "Adam with decoupled weight decay (Loshchilov & Hutter 2019)",
    .options = table,
    .size = sizeof(struct dpt_adam_options),
    .impl = &type,
};
