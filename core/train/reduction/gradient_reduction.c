/* The functions of reductions in which each rank owns all parameters. */
#include "core/train/reduction/gradient_reduction.h"

struct dpt_slice dpt_gradient_all(const struct dpt_trainer *t, int rank)
{
    (void)rank;
    return (struct dpt_slice){0, (size_t)dpt_trainer_graph(t)->floats, 0, t->reduction.chunks.n};
}

const float *dpt_gradient_sum(const struct dpt_trainer *t)
{
    return t->reduction.sum;
}

float *dpt_gradient_no_weights(const struct dpt_trainer *t)
{
    (void)t;
    return NULL;
}

enum dpt_status dpt_gradient_no_share(struct dpt_trainer *t, struct dpt_error *err)
{
    (void)t, (void)err;
    return DPT_OK;
}

enum dpt_status dpt_gradient_no_gather(struct dpt_trainer *t, double *values, int each,
                                       struct dpt_error *err)
{
    (void)t, (void)values, (void)each, (void)err;
    return DPT_OK;
}
