#include "core/train/optimizers/rows.h"

/* Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization": the decay does not pass
 * through the moments. */
static void adamw_step(const void *options, const struct dpt_update *update, size_t n,
                       float *params, const float *gradient, float *const *slot)
{
    const float keep = (float)(1 - update->lr * (double)update->decay);

    dpt_adam_pass(options, update, 0.0f, keep, n, params, gradient, slot);
}

static void adamw_rule(const void *options, struct dpt_rule *rule)
{
    dpt_adam_rule(options, rule);
    rule->decoupled = true;
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_ADAM_ROWS,
    {.name = "weight_decay", .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_adam_options, weight_decay), .fallback = "0.01",
     .min = 0, .max = 1e6, .help = "times lr is taken off the weight itself; spares biases"},
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 2,
    .slot_names = {"m", "v"},
    .step = adamw_step,
    .lr = dpt_adam_lr,
    .weight_decay = dpt_adam_weight_decay,
    .rule = adamw_rule,
};

const struct dpt_variant dpt_adamw = {
    .name = "adamw",
    .summary = "Adam with decoupled weight decay (Loshchilov & Hutter 2019)",
    .options = table,
    .size = sizeof(struct dpt_adam_options),
    .impl = &type,
};
