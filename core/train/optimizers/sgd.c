#include "core/train/optimizers/rows.h"

struct sgd_options {
    struct dpt_optimizer_options common;
    double momentum;
    bool nesterov;
};

static const struct dpt_option nesterov_row[] = {{.name = "nesterov", .type = DPT_OPT_BOOL}, {0}};

/* Nesterov's step looks ahead along the momentum; the row stands after momentum's, which is read by
 * then. */
static bool read_nesterov(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest)
{
    const size_t mistakes = conf->n_mistakes;
    const struct sgd_options *o =
        (const void *)((const char *)dest - offsetof(struct sgd_options, nesterov));
    bool *nesterov = dest;

    if (!dpt_option_read(conf, node, path, nesterov_row, nesterov))
        return false;
    if (conf->n_mistakes == mistakes && *nesterov && o->momentum == 0)
        dpt_conf_mistake(conf, node, path, "needs momentum: add momentum: 0.9");
    return true;
}

static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct sgd_options *o = options;

    (void)update;
    f->lr = (float)lr;
    f->factor[0] = (float)o->momentum;
}

/* Without momentum the slot stays zero and is not touched. */
static enum dpt_rule_kind rule(const void *options)
{
    const struct sgd_options *o = options;

    if (o->momentum == 0)
        return DPT_RULE_SGD;
    return o->nesterov ? DPT_RULE_NESTEROV : DPT_RULE_MOMENTUM;
}

static const struct dpt_alternatives nesterov_forms = {.either = nesterov_row};

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("0.01"),
    {DPT_ROW_REAL(struct sgd_options, momentum, "0", 0, 0.999999),
     .help = "share of the last step that is kept"},
    {.name = "nesterov", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct sgd_options, nesterov),
     .fallback = "false", .read = read_nesterov, .value_text = "true or false",
     .alternatives = &nesterov_forms,
     .help = "look ahead along the momentum (Sutskever et al. 2013)"},
    DPT_OPTIMIZER_L2,
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 1, .slot_names = {"momentum"}, .scalars = scalars, .rule_of = rule};

DPT_OPTIMIZER(sgd, struct sgd_options, table, type,
              "stochastic gradient descent, with momentum or Nesterov's");
