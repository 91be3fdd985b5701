#include "core/train/optimizers/rows.h"

struct lamb_options {
    struct dpt_moment_options moments;
    bool always_adapt;
};

static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    const struct dpt_moment_options *o = options;

    f->lr = (float)lr;
    f->rate[0] = (float)(1 / (1 - pow(o->beta1, (double)update)));
    dpt_moment_scalars(o, update, f);
}

/* You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2, whose r + lambda x is
 * computed twice: for its norm, and for the step. */
DPT_INLINE float wanted(const struct dpt_scalars *f, float p, float m, float v)
{
    return m * f->rate[0] / (sqrtf(v) * f->rate[1] + f->factor[3]) + f->l2 * p;
}

DPT_VECTOR static void learn(const struct dpt_scalars f, size_t n, float scale,
                             const float *restrict params, const float *restrict gradient,
                             float *restrict m, float *restrict v, float *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        const float g = gradient[i] * scale;

        m[i] += (g - m[i]) * f.factor[0];
        v[i] = v[i] * f.factor[1] + g * g * f.factor[2];
        out[i] = wanted(&f, params[i], m[i], v[i]);
    }
}

DPT_VECTOR static void move(const struct dpt_scalars f, size_t n, float rate,
                            float *restrict params, const float *restrict m,
                            const float *restrict v)
{
    for (size_t i = 0; i < n; i++)
        params[i] -= rate * wanted(&f, params[i], m[i], v[i]);
}

static void direction(const void *options, const struct dpt_optimizer_part *part, float *out)
{
    (void)options;
    learn(*part->f, part->n, part->scale, part->params, part->gradient, part->slot[0],
          part->slot[1], out);
}

/* The trust ratio is 1 if a norm is 0, as in the authors' code. */
static void step(const void *options, const struct dpt_optimizer_part *part,
                 const struct dpt_optimizer_norms *norms)
{
    const struct lamb_options *o = options;
    const bool adapts =
        (!part->spared || o->always_adapt) && norms->params > 0 && norms->direction > 0;
    const double ratio = adapts ? norms->params / norms->direction : 1;

    move(*part->f, part->n, (float)((double)part->f->lr * ratio), part->params, part->slot[0],
         part->slot[1]);
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("1e-3"),
    DPT_OPTIMIZER_MOMENTS("1e-6"),
    DPT_OPTIMIZER_ADAPT(struct lamb_options),
    DPT_OPTIMIZER_DECAY("0.01", "times the weight is added to the update before its norm is taken"),
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {
    .slots = 2, .slot_names = {"m", "v"}, .scalars = scalars, .direction = direction, .step = step};

DPT_OPTIMIZER(lamb, struct lamb_options, table, type,
              "LAMB (You et al. 2020, algorithm 2): Adam with a rate for each tensor, by norms");
