/*
 * advice: what would fit where a job does not.
 */
#ifndef DPT_PLAN_ADVICE_H
#define DPT_PLAN_ADVICE_H

#include "core/base/str.h"
#include "core/plan/plan.h"

/*
 * Adds lines for a person whose job found too little memory: what it needs and what is there, and
 * what it would need with each option that shrinks it, one after another and all together. Plans
 * the job for each, which allocates nothing of its size. Nothing is added where not even that can
 * be done.
 */
void dpt_plan_advise(const struct dpt_job *job, const struct dpt_plan_spec *spec,
                     const char *job_text, struct dpt_str *out);

#endif
