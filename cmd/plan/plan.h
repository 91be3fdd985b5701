/*
 * plan: how `dptrain plan` prints its results. Private to that command.
 */
#ifndef DPT_CMD_PLAN_H
#define DPT_CMD_PLAN_H

#include "core/base/json.h"
#include "core/plan/plan.h"

enum { DPT_PLAN_RATES = 9, DPT_PLAN_SCALES = 11 };

/* A learning rate of the run; step counts from 1, as in metrics.jsonl. */
struct dpt_plan_rate {
    int64_t step;
    double lr;
};

/* The first step, the last, and those between at equal distances; gives how many. */
int dpt_plan_rates(const struct dpt_plan *plan, struct dpt_plan_rate rates[DPT_PLAN_RATES]);

/* How the job scales on 1 to 1024 ranks: the job's batch (strong), and as many samples a rank as
 * the job has on its ranks (weak). total 0: more ranks than micro-batches. */
struct dpt_plan_scale {
    int ranks;
    int64_t weak_global;
    struct dpt_plan_step strong, weak;
};

void dpt_plan_scales(const struct dpt_plan *plan, struct dpt_plan_scale scales[DPT_PLAN_SCALES]);

/* For a person, in 80 columns; one JSON object. */
void dpt_plan_print(const struct dpt_plan *plan, struct dpt_str *out);
void dpt_plan_json(const struct dpt_plan *plan, struct dpt_json *j);

/* Their parts about train.freeze and optimizer.groups; for a person nothing where the job has
 * neither (tensors.c). */
void dpt_plan_print_tensors(const struct dpt_plan *plan, struct dpt_str *out);
void dpt_plan_json_tensors(const struct dpt_plan *plan, struct dpt_json *j);

#endif
