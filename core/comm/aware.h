/*
 * aware: whether this MPI can sum what lies in a GPU's memory.
 *
 * What an MPI says of itself is a claim: it may have been built with CUDA and lack what it needs at
 * run time, or go through another library that can do it and say no. So a small sum is tried and
 * every element looked at. An MPI that cannot do it reads the address on the host and crashes the
 * rank; so it is tried only where the MPI claims that it can, or the job insists. This room knows
 * no CUDA: the buffer comes from the caller.
 */
#ifndef DPT_COMM_AWARE_H
#define DPT_COMM_AWARE_H

#include "core/base/str.h"
#include "core/comm/comm.h"

/* The job's comm.cuda_aware, in the order of its words. */
#define DPT_AWARE_WISHES(X) X(DPT_AWARE_AUTO, "auto") X(DPT_AWARE_ON, "on") X(DPT_AWARE_OFF, "off")
enum dpt_aware_wish { DPT_AWARE_WISHES(DPT_LIST_NAME) DPT_AWARE_COUNT };

/* How this rank gets a small buffer in its device's memory. The contracts of struct
 * dpt_backend_devices; `arg` comes first. Called only where a sum is tried. */
struct dpt_aware_memory {
    void *arg;
    enum dpt_status (*buffer)(void *arg, float value, int n, float **at, struct dpt_error *err);
    enum dpt_status (*fetch)(void *arg, const float *at, int n, float *host, struct dpt_error *err);
    void (*release)(void *arg, float *at);
    int64_t largest; /* floats of the largest sum that the job makes, the same on all ranks */
};

enum { DPT_AWARE_TEXT = 160 };

/*
 * Collective over comm->world; all ranks come to the same answer. on_device: whether
 * dpt_group_sum_* may be given device memory. how: "no (Open MPI 4.1.4 says so)", "yes (sums of
 * 1024 to 1310720 floats on the GPU came out right)". Alone no MPI is asked: no.
 *
 * Errors: BAD_JOB: the job says `on`, and it does not work; RANK: the device, or MPI. Where the MPI
 * crashed on it, it is in no state to go on with: the job ends there and then, with a line that
 * says what to set.
 */
enum dpt_status dpt_comm_device_sums(const struct dpt_comm *comm, enum dpt_aware_wish wanted,
                                     const struct dpt_aware_memory *memory, bool *on_device,
                                     char how[DPT_AWARE_TEXT], struct dpt_error *err);

#endif
