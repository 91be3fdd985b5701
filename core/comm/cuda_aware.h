/*
 * cuda_aware: whether this MPI can sum data in a GPU's memory.
 *
 * What an MPI reports about itself is only a claim: it may have been built with CUDA and lack what
 * it needs at run time, or use another library that can do it and deny it. So a small sum is tried
 * and every element is checked. An MPI that is not CUDA-aware reads the address on the host and
 * crashes the rank; so the sum is tried only where the MPI claims to be CUDA-aware, or the job
 * insists. An MPI that can do it may still be slower than a copy to pinned memory of the host, a
 * sum there and a copy back, so `auto` times both and takes the faster one. This directory does not
 * use CUDA: the caller provides the buffers.
 */
#ifndef DPT_COMM_CUDA_AWARE_H
#define DPT_COMM_CUDA_AWARE_H

#include "core/base/str.h"
#include "core/comm/comm.h"

/* The job's comm.cuda_aware, in the order of its words. */
#define DPT_CUDA_AWARE_LIST(X)                                                                     \
    X(DPT_CUDA_AWARE_AUTO, "auto") X(DPT_CUDA_AWARE_ON, "on") X(DPT_CUDA_AWARE_OFF, "off")
enum dpt_cuda_aware { DPT_CUDA_AWARE_LIST(DPT_LIST_NAME) DPT_AWARE_COUNT };

/* A buffer in a device's memory, and another of the same size in pinned memory of the host. */
struct dpt_device_buffer {
    float *at, *pinned;
    int n;        /* floats */
    void *device; /* for who made it */
};

/* Who makes them: core/backend/devices.h. They are called only where a sum is tried. */
struct dpt_device_memory {
    /* Opens a buffer on device number `number`. at: filled with `value`. Errors: RANK. */
    enum dpt_status (*open)(int number, float value, int n, struct dpt_device_buffer *b,
                            struct dpt_error *err);
    /* Copies `at` to `pinned`, and back; waits. Errors: RANK. */
    enum dpt_status (*fetch)(struct dpt_device_buffer *b, struct dpt_error *err);
    enum dpt_status (*give)(struct dpt_device_buffer *b, struct dpt_error *err);
    void (*close)(struct dpt_device_buffer *b); /* a zeroed one, too */
};

enum { DPT_CUDA_AWARE_TEXT = 192 };

/*
 * Collective over comm->world; all ranks come to the same answer. device: this rank's. largest:
 * floats of the largest sum that the job makes, the same on all ranks. on_device: whether
 * dpt_group_sum_* is to be given device memory. how: "no (Open MPI 4.1.4 says so)", "yes (sums of
 * 1024 to 1310720 floats on the GPU came out right)", with the times where both ways were timed. A
 * single rank does not ask MPI: the answer is no.
 *
 * Errors: BAD_JOB: the job says `on`, and it does not work; RANK: the device, or MPI. If MPI
 * crashed in the sum, its state is undefined: the job ends at once, with a line that says what to
 * set.
 */
enum dpt_status dpt_comm_device_sums(const struct dpt_comm *comm, enum dpt_cuda_aware wanted,
                                     const struct dpt_device_memory *memory, int device,
                                     int64_t largest, bool *on_device,
                                     char how[DPT_CUDA_AWARE_TEXT], struct dpt_error *err);

/* Who sums a buffer over the ranks in place; waits. sums: whatever that takes. Errors: RANK. */
typedef enum dpt_status dpt_buffer_sum(void *sums, struct dpt_device_buffer *b,
                                       struct dpt_error *err);
/* Collective over comm->world. Tries a sum of n floats on this rank's device. *right: whether every
 * element came out right on all ranks. Errors: RANK. */
enum dpt_status dpt_comm_try_sum(const struct dpt_comm *comm,
                                 const struct dpt_device_memory *memory, int device, int n,
                                 dpt_buffer_sum *sum, void *sums, bool *right,
                                 struct dpt_error *err);

#endif
