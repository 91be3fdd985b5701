#include "core/train/optimizers/rows.h"

struct lion_options {
    struct dpt_optimizer_options common;
    double beta1, beta2;
};

static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct lion_options *o = options;

    (void)update;
    f->lr = (float)lr;
    f->factor[0] = (float)o->beta1;
    f->factor[1] = (float)(1 - o->beta1);
    f->factor[2] = (float)o->beta2;
    f->factor[3] = (float)(1 - o->beta2);
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("1e-4"),
    {DPT_ROW_REAL(struct lion_options, beta1, "0.9", 0, 0.999999),
     .help = "share of the running mean in the direction whose sign is taken"},
    {DPT_ROW_REAL(struct lion_options, beta2, "0.99", 0, 0.999999),
     .help = "decay of the gradient's running mean"},
    DPT_OPTIMIZER_DECOUPLED("0"),
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 1, .slot_names = {"m"}, .scalars = scalars, .decoupled = true, .rule = DPT_RULE_LION};

DPT_OPTIMIZER(lion, struct lion_options, table, type,
              "Lion (Chen et al. 2023, algorithm 2): the sign of a running mean");
