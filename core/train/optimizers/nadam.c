#include "core/train/optimizers/rows.h"

struct nadam_options {
    struct dpt_moment_options moments;
    double momentum_decay;
};

/* The momentum of update t: PyTorch's, whose 0.96 is Dozat's. */
static double momentum(const struct nadam_options *o, double t)
{
    return o->moments.beta1 * (1 - 0.5 * pow(0.96, t * o->momentum_decay));
}

/* The product of all momenta up to update t, which PyTorch keeps as mu_product; here it follows
 * from t, so resuming needs no state. The loop ends when the rest no longer changes the result, or
 * is a power of beta1: after 3000 factors at most. */
static double product(const struct nadam_options *o, int64_t t)
{
    const double nothing = 0x1p-60;
    double all = 1;

    for (int64_t i = 1; i <= t && all > nothing; i++) {
        if (0.5 * pow(0.96, (double)i * o->momentum_decay) < nothing)
            return all * pow(o->moments.beta1, (double)(t - i + 1));
        all *= momentum(o, (double)i);
    }
    return all;
}

/* Dozat 2016, "Incorporating Nesterov Momentum into Adam", algorithm 2, as in PyTorch. */
static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct nadam_options *o = options;
    const double now = momentum(o, (double)update), next = momentum(o, (double)update + 1);
    const double all = product(o, update);

    f->lr = (float)(lr * (1 - now) / (1 - all));
    f->rate[0] = (float)(lr * next / (1 - all * next));
    dpt_moment_scalars(&o->moments, update, f);
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("2e-3"),
    DPT_OPTIMIZER_MOMENTS("1e-8"),
    {DPT_ROW_REAL(struct nadam_options, momentum_decay, "0.004", 0, 1e6),
     .help = "rate at which the momentum rises from half of beta1 to beta1"},
    DPT_OPTIMIZER_L2,
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 2, .slot_names = {"m", "v"}, .scalars = scalars, .rule = DPT_RULE_NADAM};

DPT_OPTIMIZER(nadam, struct nadam_options, table, type,
              "Adam with Nesterov's momentum (Dozat 2016), as in PyTorch");
