/*
 * choose: what a job computes on.
 *
 * Twice: a GPU is taken before MPI starts, so that a CUDA-aware MPI sets itself up on the same one;
 * and all ranks decide together once they can talk. What the first search found wrong is reported
 * by the second, together with what the other ranks found. Where there is no driver both cost no
 * more than the search for its library.
 */
#ifndef DPT_TRAIN_CHOOSE_H
#define DPT_TRAIN_CHOOSE_H

#include "core/backend/backend.h"
#include "core/backend/devices.h"
#include "core/base/log.h"
#include "core/comm/cuda_aware.h"
#include "core/train/job.h"

/* Before MPI starts: this rank's GPU, where the kind may mean one, there is one and the launcher
 * says which rank of the node this is. */
void dpt_choose_early(enum dpt_device_kind kind);

/* The GPUs that this process sees and a job of this kind would use; 0: none. */
int dpt_choose_count(enum dpt_device_kind kind);

/* The GPU of a rank, as all know it. */
struct dpt_rank_gpu {
    bool usable;                 /* it has one, and that is its own now */
    int count;                   /* of the GPUs that its driver shows */
    struct dpt_device_info info; /* of its own */
    char why[400];               /* it is not usable */
};

/*
 * Collective over comm->world; all ranks come to the same backend. `auto` is the GPU where every
 * rank has one, else the CPU, with a warning that names who has none where only some do. Ranks that
 * share a GPU are a warning. device: out, the number of this rank's. all: out, [ranks], the
 * caller's to free, also after a failure; NULL where nobody has any. Errors: BAD_JOB: this build
 * has no such backend, or a rank no GPU.
 */
enum dpt_status dpt_choose_backend(const struct dpt_comm *comm, enum dpt_device_kind kind,
                                   struct dpt_log *log, const struct dpt_backend **backend,
                                   int *device, struct dpt_rank_gpu **all, struct dpt_error *err);
/* The backend of a planned job, whose ranks need not exist: without a GPU `cuda` is no error, and
 * `auto` is what it would be here. */
enum dpt_status dpt_choose_planned(enum dpt_device_kind kind, const struct dpt_backend **backend,
                                   struct dpt_error *err);

/* "rank 3 (node07)", "ranks 0-2, 5 (node01, node02)": those of the world for which `is`; buf. */
const char *dpt_choose_name_ranks(const struct dpt_comm *comm, const bool *is, char *buf,
                                  size_t size);

/* Collective: dpt_comm_device_sums with buffers on this rank's device. largest: floats of the
 * largest sum that there will be, the same on all ranks. */
enum dpt_status dpt_choose_sums(const struct dpt_comm *comm, const struct dpt_backend *backend,
                                int device, int64_t largest, enum dpt_cuda_aware wanted,
                                bool *on_device, char how[DPT_CUDA_AWARE_TEXT],
                                struct dpt_error *err);

/*
 * Whether all ranks compute with the same numerics (numerics.c). A library of another version, or
 * the same one on a processor with other instructions, rounds in another order: then the sums
 * depend on which rank computed what. `reproducible` promises that they do not, so such ranks are
 * refused there; elsewhere they are worth a warning.
 */

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
