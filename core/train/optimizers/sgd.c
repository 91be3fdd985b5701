#include "core/base/vector.h"
#include "core/train/optimizers/rows.h"

struct sgd_options {
    double lr, momentum, weight_decay;
    bool nesterov;
};

/* Nesterov's step looks ahead along the momentum; the row stands behind momentum's, which is read
 * by then. */
static bool read_nesterov(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest)
{
    static const struct dpt_option row = {.name = "nesterov", .type = DPT_OPT_BOOL};
    const size_t mistakes = conf->n_mistakes;
    const struct sgd_options *o =
        (const void *)((const char *)dest - offsetof(struct sgd_options, nesterov));
    bool *nesterov = dest;

    if (!dpt_option_read(conf, node, path, &row, nesterov))
        return false;
    if (conf->n_mistakes == mistakes && *nesterov && o->momentum == 0)
        dpt_conf_mistake(conf, node, path, "needs momentum: add momentum: 0.9");
    return true;
}

/* Without momentum the slot stays zero and is not touched. */
DPT_VECTOR static void plain(float lr, float scale, float decay, size_t n, float *restrict params,
                             const float *restrict gradient)
{
    for (size_t i = 0; i < n; i++)
        params[i] -= lr * (gradient[i] * scale + decay * params[i]);
}

DPT_VECTOR static void heavy_ball(float lr, float scale, float decay, float momentum, size_t n,
                                  float *restrict params, const float *restrict gradient,
                                  float *restrict velocity)
{
    for (size_t i = 0; i < n; i++) {
        const float g = gradient[i] * scale + decay * params[i];

        velocity[i] = momentum * velocity[i] + g;
        params[i] -= lr * velocity[i];
    }
}

DPT_VECTOR static void look_ahead(float lr, float scale, float decay, float momentum, size_t n,
                                  float *restrict params, const float *restrict gradient,
                                  float *restrict velocity)
{
    for (size_t i = 0; i < n; i++) {
        const float g = gradient[i] * scale + decay * params[i];

        velocity[i] = momentum * velocity[i] + g;
        params[i] -= lr * (g + momentum * velocity[i]);
    }
}

static void sgd_step(const void *options, const struct dpt_update *update, size_t n, float *params,
                     const float *gradient, float *const *slot)
{
    const struct sgd_options *o = options;
    const float lr = (float)update->lr, momentum = (float)o->momentum;

    if (o->momentum == 0)
        plain(lr, update->scale, update->decay, n, params, gradient);
    else if (o->nesterov)
        look_ahead(lr, update->scale, update->decay, momentum, n, params, gradient, slot[0]);
    else
        heavy_ball(lr, update->scale, update->decay, momentum, n, params, gradient, slot[0]);
}

static double sgd_lr(const void *options)
{
    return ((const struct sgd_options *)options)->lr;
}

static double sgd_weight_decay(const void *options)
{
    return ((const struct sgd_options *)options)->weight_decay;
}

static void sgd_rule(const void *options, struct dpt_rule *rule)
{
    const struct sgd_options *o = options;

    rule->kind = o->momentum == 0 ? DPT_RULE_SGD
                 : o->nesterov    ? DPT_RULE_NESTEROV
                                  : DPT_RULE_MOMENTUM;
    rule->momentum = o->momentum;
}

static const struct dpt_option nesterov_row[] = {{.name = "nesterov", .type = DPT_OPT_BOOL}, {0}};
static const struct dpt_forms nesterov_forms = {.either = nesterov_row};

// clang-format off
static const struct dpt_option table[] = {
    {.name = "lr", .type = DPT_OPT_REAL, .offset = offsetof(struct sgd_options, lr),
     .fallback = "0.01", .min = 0, .max = 1e6, .help = "learning rate"},
    {.name = "momentum", .type = DPT_OPT_REAL, .offset = offsetof(struct sgd_options, momentum),
     .fallback = "0", .min = 0, .max = 0.999999, .help = "share of the last step that is kept"},
    {.name = "nesterov", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct sgd_options, nesterov),
     .fallback = "false", .read = read_nesterov, .form = "true or false",
     .forms = &nesterov_forms,
     .help = "look ahead along the momentum (Sutskever et al. 2013)"},
    {.name = "weight_decay", .type = DPT_OPT_REAL,
     .offset = offsetof(struct sgd_options, weight_decay), .fallback = "0", .min = 0, .max = 1e6,
     .help = "times the weight is added to the gradient; spares biases"},
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 1,
    .slot_names = {"momentum"},
    .step = sgd_step,
    .lr = sgd_lr,
    .weight_decay = sgd_weight_decay,
    .rule = sgd_rule,
};

const struct dpt_variant dpt_sgd = {
    .name = "sgd",
    .summary = "stochastic gradient descent, with momentum or Nesterov's",
    .options = table,
    .size = sizeof(struct sgd_options),
    .impl = &type,
};
