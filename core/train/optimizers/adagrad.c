#include "core/train/optimizers/rows.h"

struct adagrad_options {
    struct dpt_optimizer_options common;
    double eps;
};

/* Duchi et al. 2011, "Adaptive Subgradient Methods", with diagonal matrices (figure 1), as in
 * PyTorch without a decay of the rate. */
static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct adagrad_options *o = options;

    (void)update;
    f->lr = (float)lr;
    f->factor[0] = (float)o->eps;
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("0.01"),
    {DPT_ROW_REAL(struct adagrad_options, eps, "1e-10", 1e-30, 1),
     .help = "added to the root of the sum"},
    DPT_OPTIMIZER_L2,
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 1, .slot_names = {"sum"}, .scalars = scalars, .rule = DPT_RULE_ADAGRAD};

DPT_OPTIMIZER(adagrad, struct adagrad_options, table, type,
              "Adagrad (Duchi et al. 2011): rates fall with the sum of squared gradients");
