#include <math.h>

#include "core/base/vector.h"
#include "core/train/optimizers/rows.h"

/* Scalars are prepared in double; the loop is float and one pass over memory. */
struct factors {
    float scale, l2, keep;     /* of gradient, of the weight in the gradient, of the weight */
    float gain1, keep2, gain2; /* 1 - beta1, beta2, 1 - beta2 */
    float rate, root, eps;
};

DPT_VECTOR static void pass(const struct factors f, size_t n, float *restrict params,
                            const float *restrict gradient, float *restrict m, float *restrict v)
{
    for (size_t i = 0; i < n; i++) {
        const float p = params[i] * f.keep;
        const float g = gradient[i] * f.scale + f.l2 * p;

        m[i] += (g - m[i]) * f.gain1;
        v[i] = v[i] * f.keep2 + g * g * f.gain2;
        params[i] = p - f.rate * (m[i] / (sqrtf(v[i]) * f.root + f.eps));
    }
}

void dpt_adam_pass(const struct dpt_adam_options *o, const struct dpt_update *update, float l2,
                   float keep, size_t n, float *params, const float *gradient, float *const *slot)
{
    const double correct1 = 1 - pow(o->beta1, (double)update->step);
    const double correct2 = 1 - pow(o->beta2, (double)update->step);

    const struct factors factors = {
        .scale = update->scale,
        .l2 = l2,
        .keep = keep,
        .gain1 = (float)(1 - o->beta1),
        .keep2 = (float)o->beta2,
        .gain2 = (float)(1 - o->beta2),
        .rate = (float)(update->lr / correct1),
        .root = (float)(1 / sqrt(correct2)),
        .eps = (float)o->eps,
    };

    pass(factors, n, params, gradient, slot[0], slot[1]);
}

double dpt_adam_lr(const void *options)
{
    return ((const struct dpt_adam_options *)options)->lr;
}

double dpt_adam_weight_decay(const void *options)
{
    return ((const struct dpt_adam_options *)options)->weight_decay;
}

void dpt_adam_rule(const void *options, struct dpt_rule *rule)
{
    const struct dpt_adam_options *o = options;

    rule->kind = DPT_RULE_ADAM;
    rule->beta1 = o->beta1;
    rule->beta2 = o->beta2;
    rule->eps = o->eps;
}

static void adam_step(const void *options, const struct dpt_update *update, size_t n, float *params,
                      const float *gradient, float *const *slot)
{
    dpt_adam_pass(options, update, update->decay, 1.0f, n, params, gradient, slot);
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_ADAM_ROWS,
    {.name = "weight_decay", .type = DPT_OPT_REAL,
     .offset = offsetof(struct dpt_adam_options, weight_decay), .fallback = "0",
     .min = 0, .max = 1e6, .help = "times the weight is added to the gradient; spares biases"},
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 2,
    .slot_names = {"m", "v"},
    .step = adam_step,
    .lr = dpt_adam_lr,
    .weight_decay = dpt_adam_weight_decay,
    .rule = dpt_adam_rule,
};

const struct dpt_variant dpt_adam = {
    .name = "adam",
    .summary = "Adam (Kingma & Ba 2015, algorithm 1), bias-corrected",
    .options = table,
    .size = sizeof(struct dpt_adam_options),
    .impl = &type,
};
