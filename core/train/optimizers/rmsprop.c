#include "core/train/optimizers/rows.h"

struct rmsprop_options {
    struct dpt_optimizer_options common;
    double alpha, eps, momentum;
};

static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct rmsprop_options *o = options;

    (void)update;
    f->lr = (float)lr;
    f->factor[0] = (float)o->alpha;
    f->factor[1] = (float)(1 - o->alpha);
    f->factor[2] = (float)o->eps;
    f->factor[3] = (float)o->momentum;
}

static bool has_momentum(const void *options)
{
    return ((const struct rmsprop_options *)options)->momentum > 0;
}

static enum dpt_rule_kind rule(const void *options)
{
    return has_momentum(options) ? DPT_RULE_RMSPROP_MOMENTUM : DPT_RULE_RMSPROP;
}

static int slots_used(const void *options)
{
    return has_momentum(options) ? 2 : 1;
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("0.01"),
    {DPT_ROW_REAL(struct rmsprop_options, alpha, "0.99", 0, 0.999999),
     .help = "decay of the squared gradient's running mean"},
    {DPT_ROW_REAL(struct rmsprop_options, eps, "1e-8", 1e-30, 1),
     .help = "added to the root of that mean"},
    {DPT_ROW_REAL(struct rmsprop_options, momentum, "0", 0, 0.999999),
     .help = "share of the last step that is kept"},
    DPT_OPTIMIZER_L2,
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {.slots = 2,
                                               .slot_names = {"square_avg", "momentum"},
                                               .slots_used = slots_used,
                                               .scalars = scalars,
                                               .rule_of = rule};

DPT_OPTIMIZER(rmsprop, struct rmsprop_options, table, type,
              "RMSprop (Hinton 2012) as in PyTorch, not centered");
