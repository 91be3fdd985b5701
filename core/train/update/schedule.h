/*
 * schedule: the learning rate of each step.
 *
 * A pure function of the step number, so resuming needs no state. Warm-up (all types but onecycle,
 * which has a rise of its own): step s < warmup runs at (s + 1) / warmup of the rate that the
 * schedule starts with; the schedule's own clock starts after the warm-up, which is given in steps,
 * in epochs or as a share of the run, and rounded up to whole steps. scale_lr (Goyal et al. 2017,
 * "linear"; Krizhevsky 2014, "sqrt"): the base rate times global / base_batch, or its root.
 */
#ifndef DPT_TRAIN_SCHEDULE_H
#define DPT_TRAIN_SCHEDULE_H

#include "core/conf/option.h"

/* The arguments of a schedule. */
struct dpt_schedule_point {
    int64_t step;            /* 0 for the first update of the run */
    int64_t steps;           /* of the whole run, > 0 */
    int64_t steps_per_epoch; /* > 0 */
};

/* constant, step, cosine, ...; ends with NULL. */
extern const struct dpt_variant *const dpt_schedule_variants[];

/* The base rate as it is, throughout. */
extern const struct dpt_variant_value dpt_schedule_none;

/* The base rate after scale_lr. global: samples a step. */
double dpt_schedule_scale(const struct dpt_variant_value *schedule, double lr, int64_t global);

/* The learning rate of a step; lr: base rate after scaling. */
double dpt_schedule_rate(const struct dpt_variant_value *schedule, double lr,
                         const struct dpt_schedule_point *point);

#endif
