/*
 * choose: which backend and device a job uses.
 *
 * The choice is made in two parts. Each rank selects its GPU before MPI starts, so that a
 * CUDA-aware MPI uses the same one; all ranks decide together once they can communicate. Errors of
 * the first part are reported by the second, together with those of other ranks. Without a driver
 * both parts cost no more than the search for its library.
 */
#ifndef DPT_TRAIN_CHOOSE_H
#define DPT_TRAIN_CHOOSE_H

#include "core/backend/backend.h"
#include "core/backend/devices.h"
#include "core/base/log.h"
#include "core/train/job/job.h"

/* Before MPI starts: selects this rank's GPU, if the kind of device allows one, there is one, and
 * the launcher says which rank of the node this is. */
void dpt_choose_early(enum dpt_device_kind kind);

/* The number of GPUs that this process sees and a job of this kind would use. */
int dpt_choose_count(enum dpt_device_kind kind);

/* The GPU of a rank, known to all ranks. */
struct dpt_rank_gpu {
    bool usable;                 /* the rank has a GPU and selected it */
    int count;                   /* GPUs that its driver reports */
    int first;                   /* the lowest rank that uses the same GPU */
    struct dpt_device_info info; /* the selected GPU's */
    char why[400];               /* why it is not usable */
    char cpus[64];               /* of its NUMA node, to which the rank is bound; "": it is not */
};

/* How many GPUs the ranks have together: fewer than there are ranks if some share one. all: as
 * dpt_choose_backend gives it. */
int dpt_count_gpus(const struct dpt_rank_gpu *all, int ranks);

/*
 * Collective over comm->world; all ranks choose the same backend. `auto` means the GPU if every
 * rank has one, else the CPU, with a warning that names the ranks without one if others have one.
 * Ranks that share a GPU give a warning. A rank that computes on a GPU binds its threads to the
 * CPUs of the GPU's NUMA node, among those that it may use; it stays as it is if none of these are
 * there, or if that would leave it less than half of its share. *device: out, the number of this
 * rank's. *all: out, [ranks], to be freed by the caller, also after a failure; NULL if no rank has
 * a GPU. Errors: BAD_JOB: this build has no such backend, or a rank has no GPU.
 */
enum dpt_status dpt_choose_backend(const struct dpt_comm *comm, enum dpt_device_kind kind,
                                   struct dpt_log *log, const struct dpt_backend **backend,
                                   int *device, struct dpt_rank_gpu **all, struct dpt_error *err);
/* The backend of a planned job, whose ranks need not exist: `cuda` without a GPU is no error, and
 * `auto` is chosen for this machine. */
enum dpt_status dpt_choose_planned(enum dpt_device_kind kind, const struct dpt_backend **backend,
                                   struct dpt_error *err);

/* Writes "rank 3 (node07)" or "ranks 0-2, 5 (node01, node02)" for the ranks of the world with `is`
 * set; returns buf. */
const char *dpt_choose_name_ranks(const struct dpt_comm *comm, const bool *is, char *buf,
                                  size_t size);

/*
 * --- numerics.c: whether all ranks compute with the same numerics. Another version of a library,
 * or the same version on a CPU with other instructions, adds in another order: then results depend
 * on which rank computed what. `reproducible` promises that they do not, so such ranks are an error
 * there and a warning elsewhere.
 */

/* Limits this process to the instruction set of the job (device.isa), before anything is computed.
 * Errors: BAD_JOB: the CPU does not have it, or the library knows no limit. */
enum dpt_status dpt_numerics_limit(const struct dpt_backend *backend, const struct dpt_job *job,
                                   struct dpt_error *err);
/* Checks that the backend has the job's precision. Errors: BAD_JOB. */
enum dpt_status dpt_numerics_precision(const struct dpt_backend *backend, const struct dpt_job *job,
                                       struct dpt_error *err);

/*
 * Collective over comm->world: calls dpt_numerics_limit on each rank, and compares how the ranks
 * compute. device: this rank's, of a backend with devices. Errors: as dpt_numerics_limit; BAD_JOB:
 * ranks differ under `reproducible`; the message, like rank 0's warning elsewhere, says which rank
 * has what.
 */
enum dpt_status dpt_numerics_check(const struct dpt_comm *comm, const struct dpt_backend *backend,
                                   int device, const struct dpt_job *job, struct dpt_log *log,
                                   struct dpt_error *err);

#endif
