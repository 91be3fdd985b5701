#include "core/train/optimizers/rows.h"

struct lars_options {
    struct dpt_optimizer_options common;
    double momentum, coefficient;
    bool always_adapt;
};

static void scalars(const void *options, double lr, int64_t update, struct dpt_scalars *f)
{
    (void)options;
    (void)update;
    f->lr = (float)lr;
}

/* The norm is that of the mean gradient, clipped. */
static void direction(const void *options, const struct dpt_optimizer_part *part, float *gradient)
{
    (void)options;
    for (size_t i = 0; i < part->n; i++)
        gradient[i] = part->gradient[i] * part->scale;
}

DPT_VECTOR static void move(size_t n, float scale, float l2, float momentum, float rate,
                            float *restrict params, const float *restrict gradient,
                            float *restrict velocity)
{
    for (size_t i = 0; i < n; i++) {
        velocity[i] = momentum * velocity[i] + rate * (gradient[i] * scale + l2 * params[i]);
        params[i] -= velocity[i];
    }
}

/* You, Gitman & Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1: the
 * rate of a layer is its share of lr, and both are within the momentum. Weights that are all zero
 * would stay so: they have no share, as in NVIDIA's and timm's LARS. */
static void step(const void *options, const struct dpt_optimizer_part *part,
                 const struct dpt_optimizer_norms *norms)
{
    const struct lars_options *o = options;
    const double below = norms->direction + (double)part->f->l2 * norms->params;
    const bool adapts = (!part->spared || o->always_adapt) && norms->params > 0 && below > 0;
    const double share = adapts ? o->coefficient * norms->params / below : 1;

    move(part->n, part->scale, part->f->l2, (float)o->momentum,
         (float)((double)part->f->lr * share), part->params, part->gradient, part->slot[0]);
}

// clang-format off
static const struct dpt_option table[] = {
    DPT_OPTIMIZER_LR("1"),
    {DPT_ROW_REAL(struct lars_options, momentum, "0.9", 0, 0.999999),
     .help = "share of the last step that is kept"},
    {DPT_ROW_REAL(struct lars_options, coefficient, "0.001", 1e-30, 1e6),
     .help = "trust coefficient: multiplies a tensor's norm over its gradient's"},
    DPT_OPTIMIZER_ADAPT(struct lars_options),
    DPT_OPTIMIZER_DECAY("5e-4", "times the weight is added to the gradient"),
    DPT_OPTIMIZER_GROUPS,
    {0},
};
// clang-format on

static const struct dpt_optimizer_type type = {.slots = 1,
                                               .slot_names = {"momentum"},
                                               .scalars = scalars,
                                               .direction = direction,
                                               .step = step};

DPT_OPTIMIZER(
    lars, struct lars_options, table, type,
    "LARS (You, Gitman & Ginsburg 2017): a rate for each tensor, by norms; large batches");
