/*
 * nccl: NCCL, which sums in the memory of several GPUs over the links between them.
 *
 * It is opened (library.h) when ranks want to connect their GPUs. A job whose ranks lack it sums by
 * MPI.
 *
 * A communicator (`link` of core/comm/transport.h) is used by one thread at a time, but any thread
 * may abort it. Its sums are not captured in graphs: a captured collective must be captured
 * by all ranks alike, and their steps differ in micro-batches. The communicator is a blocking one:
 * of another kind (ncclCommInitRankConfig) each sum would start a thread and be asked for until it
 * has been enqueued. Once the ranks are connected no call waits. While they connect none can be
 * aborted, since it would be freed under the call that makes it.
 */
#ifndef DPT_BACKEND_CUDA_NCCL_H
#define DPT_BACKEND_CUDA_NCCL_H

#include "core/backend/cuda/libraries/library.h"
#include "core/base/device_waits.h"
#include "core/comm/transport.h"

/* A GPU's connections with those of the other ranks. */
struct dpt_cuda_link;

/* From now on calls are counted as waits, for a watchdog that reads them. Borrowed. */
void dpt_cuda_link_watch(struct dpt_cuda_link *link, struct dpt_device_waits *waits);

/* From now on messages and gatherings are among `ranks` ranks that follow one another from number
 * `first` on, this one among them, and are numbered from `first`. Sums stay over all. */
void dpt_cuda_link_among(struct dpt_cuda_link *link, int first, int ranks);

/* Enqueues the sum of n floats in device memory over the ranks, in place. The same call, in the
 * same order, on all ranks. Errors: RANK. */
enum dpt_status dpt_cuda_link_sum(struct dpt_cuda_link *link, float *at, size_t n, CUstream stream,
                                  struct dpt_error *err);
/* The same of doubles. */
enum dpt_status dpt_cuda_link_sum_doubles(struct dpt_cuda_link *link, double *at, size_t n,
                                          CUstream stream, struct dpt_error *err);
/* Enqueues the sum over the ranks of their slices of n floats each, which lie one after another
 * from `at` on: each rank gets the sum of its own there, and keeps what it had of the others. The
 * same call, in the same order, on all ranks. Errors: RANK. */
enum dpt_status dpt_cuda_link_scatter(struct dpt_cuda_link *link, float *at, size_t n,
                                      CUstream stream, struct dpt_error *err);
/* n floats that go to another rank's device, or come from there. rank: may lie outside those of
 * dpt_cuda_link_among. */
struct dpt_cuda_message {
    float *at;
    size_t n;
    int rank;
    bool sends;
    const float *own; /* for gatherings: where this rank's slice is; NULL: in its place */
};

/* Enqueues the gathering of all ranks' slices of n floats each, which lie one after another from
 * `at` on; this rank's is there, or is copied from `own`. count: so many of these, of which
 * `rank` and `sends` are not read, as one call. The same call, in the same order, on all ranks.
 * Errors: RANK. */
enum dpt_status dpt_cuda_link_gather(struct dpt_cuda_link *link,
                                     const struct dpt_cuda_message *pieces, int count,
                                     CUstream stream, struct dpt_error *err);

/* Enqueues messages as one call: each rank sends what the others receive from it, in the same
 * order. Errors: RANK. */
enum dpt_status dpt_cuda_link_exchange(struct dpt_cuda_link *link,
                                       const struct dpt_cuda_message *messages, int n,
                                       CUstream stream, struct dpt_error *err);
/* Whether what was enqueued has failed. Errors: RANK. */
enum dpt_status dpt_cuda_link_check(struct dpt_cuda_link *link, struct dpt_error *err);

extern const struct dpt_device_links dpt_cuda_links;

#endif
