/*
 * schedule: the learning rate of each step.
 *
 * The rate is a function of the step number and, for `plateau`, of how often evaluations have
 * lowered it, which checkpoints keep. Warm-up (all types but onecycle, which has a rise of its
 * own): step s < warmup runs at (s + 1) / warmup of the rate that the schedule starts with; the
 * schedule's own clock starts after the warm-up, which is given in steps, in epochs or as a share
 * of the run, and rounded up to whole steps. scale_lr (Goyal et al. 2017, "linear"; Krizhevsky
 * 2014, "sqrt"): the base rate times global / base_batch, or its root.
 */
#ifndef DPT_TRAIN_SCHEDULE_H
#define DPT_TRAIN_SCHEDULE_H

#include "core/conf/option.h"
#include "core/train/update/monitor.h"

/* The arguments of a schedule. */
struct dpt_schedule_point {
    int64_t step;            /* 0 for the first update of the run */
    int64_t steps;           /* of the whole run, > 0 */
    int64_t steps_per_epoch; /* > 0 */
    int64_t drops;           /* for `plateau`: how often the rate was lowered */
};

/* constant, step, cosine, ...; ends with NULL. */
extern const struct dpt_variant *const dpt_schedule_variants[];

/* The unchanged base rate for the whole run. */
extern const struct dpt_variant_value dpt_schedule_none;

/* What `plateau` watches to lower the rate; NULL: it is another schedule. */
const struct dpt_patience *dpt_schedule_plateau(const struct dpt_variant_value *schedule);
/* Counts the evaluation that a watch has taken and returns whether the rate is lowered now, since
 * more than `patience` evaluations gave no better value (PyTorch's ReduceLROnPlateau). */
bool dpt_schedule_lowers(const struct dpt_patience *plateau, struct dpt_watch *watch);

/* The base rate after scale_lr. global: samples per step. */
double dpt_schedule_scale(const struct dpt_variant_value *schedule, double lr, int64_t global);

/* Whole steps of the warm-up. */
double dpt_schedule_warmup(const struct dpt_variant_value *schedule,
                           const struct dpt_schedule_point *point);

/* The learning rate of a step; lr: base rate after scaling. */
double dpt_schedule_rate(const struct dpt_variant_value *schedule, double lr,
                         const struct dpt_schedule_point *point);

#endif
