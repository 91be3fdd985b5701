/* Which reduction a job has, and what those say in which each rank owns all. */
#include "core/train/reduction/gradient_reduction.h"

const struct dpt_gradient_reduction_type *dpt_gradient_reduction_choose(const struct dpt_trainer *t)
{
    static const struct dpt_gradient_reduction_type
        *const whole[] = {[DPT_REDUCTION_ALLREDUCE] = &dpt_gradient_reduction_allreduce,
                          [DPT_REDUCTION_REPRODUCIBLE] = &dpt_gradient_reduction_reproducible},
               *const owned[] = {[DPT_SHARD_OPTIMIZER] = &dpt_gradient_reduction_sharded,
                                 [DPT_SHARD_GRADIENTS] = &dpt_gradient_reduction_round_robin,
                                 [DPT_SHARD_PARAMETERS] = &dpt_gradient_reduction_units};

    return dpt_trainer_owners(t) > 1 ? owned[t->job->parallel.shard]
                                     : whole[t->job->comm.reduction];
}

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

double dpt_gradient_sends_twice(const struct dpt_trainer *t)
{
    (void)t;
    return 2;
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
