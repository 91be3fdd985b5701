#include "core/train/optimizers/adam.h"

#include <math.h>

void dpt_adam_scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct dpt_adam_options *o = options;

    f->rate[0] = (float)(lr / (1 - pow(o->beta1, (double)update)));
    f->rate[1] = (float)(1 / sqrt(1 - pow(o->beta2, (double)update)));
    f->factor[0] = (float)(1 - o->beta1);
    f->factor[1] = (float)o->beta2;
    f->factor[2] = (float)(1 - o->beta2);
    f->factor[3] = (float)o->eps;
}

enum dpt_rule_kind dpt_adam_rule(const void *options)
{
    (void)options;
    return DPT_RULE_ADAM;
}

static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    dpt_adam_scalars(options, lr, update, f);
    f->l2 = (float)((const struct dpt_optimizer_options *)options)->weight_decay;
}

static const struct dpt_option table[] = {DPT_ADAM_ROWS, DPT_OPTIMIZER_L2, {0}};

static const struct dpt_optimizer_type type = {
    .slots = 2, .slot_names = {"m", "v"}, .scalars = scalars, .rule = dpt_adam_rule};

const struct dpt_variant dpt_adam = {
    .name = "adam",
    .summary = "Adam (Kingma & Ba 2015, algorithm 1), bias-corrected",
    .options = table,
    .size = sizeof(struct dpt_adam_options),
    .impl = &type,
};
