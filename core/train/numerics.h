/*
 * numerics: whether all ranks compute with the same numerics.
 *
 * A library of another version, or the same one on a processor with other instructions, rounds in
 * another order: then the sums depend on which rank computed what. That is what `reproducible`
 * rules out, so such ranks are refused there; elsewhere they are worth a warning.
 */
#ifndef DPT_TRAIN_NUMERICS_H
#define DPT_TRAIN_NUMERICS_H

#include "core/backend/backend.h"
#include "core/base/log.h"
#include "core/comm/comm.h"
#include "core/train/job.h"

/* Limits this process to the instructions that the job wants (device.isa), before anything is
 * computed. Errors: BAD_JOB: the machine or the library has not so many, or knows no limit. */
enum dpt_status dpt_numerics_limit(const struct dpt_backend *backend, const struct dpt_job *job,
                                   struct dpt_error *err);

/*
 * Collective over comm->world: dpt_numerics_limit on each rank, and then how all compute. device: this
 * rank's, of a backend with devices. Errors: as dpt_numerics_limit; BAD_JOB: ranks differ under
 * `reproducible`; the text says which has what, as the warning of rank 0 does elsewhere.
 */
enum dpt_status dpt_numerics_check(const struct dpt_comm *comm, const struct dpt_backend *backend,
                                   int device, const struct dpt_job *job, struct dpt_log *log,
                                   struct dpt_error *err);

#endif
