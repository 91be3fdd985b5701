/*
 * transport: by what the gradients of ranks whose steps a device takes are summed.
 *
 * A library that knows the links between devices (NCCL: NVLink, PCIe, the network) sums in their
 * memory and asks the host for nothing but the call. It is used where each rank has it and a device
 * of its own, and where a trial sum comes out right; elsewhere MPI sums (cuda_aware.h). This
 * directory does not use CUDA: the caller provides the library.
 */
#ifndef DPT_COMM_TRANSPORT_H
#define DPT_COMM_TRANSPORT_H

#include "core/comm/cuda_aware.h"

/* The job's comm.transport, in the order of its words. */
#define DPT_TRANSPORT_LIST(X)                                                                      \
    X(DPT_TRANSPORT_AUTO, "auto") X(DPT_TRANSPORT_NCCL, "nccl") X(DPT_TRANSPORT_MPI, "mpi")
enum dpt_transport { DPT_TRANSPORT_LIST(DPT_LIST_NAME) DPT_TRANSPORTS };

/* Bytes by which the ranks that connect their devices find each other. */
enum { DPT_LINK_ID = 128 };

/* Who connects devices: core/backend/devices.h. */
struct dpt_device_links {
    /* Opens the library. link: out, to be closed. version: out, 22803 is 2.28.3. Errors: BAD_JOB:
     * the library is missing, broken or too old; says what to do. *link is NULL then. */
    enum dpt_status (*open)(void **link, int *version, struct dpt_error *err);
    /* What the other ranks need to connect to this one. Errors: RANK. */
    enum dpt_status (*identify)(void *link, unsigned char id[DPT_LINK_ID], struct dpt_error *err);
    /* Connects device number `number` with those of the other ranks, all of which call this.
     * Errors: RANK. */
    enum dpt_status (*connect)(void *link, int number, const unsigned char id[DPT_LINK_ID],
                               int rank, int ranks, struct dpt_error *err);
    dpt_buffer_sum *sum; /* its `sums` is a link */
    /* Ends what is under way, so that nothing on the device waits for other ranks any more. From
     * then on each call fails. Any thread; once is enough. It does nothing if another thread is in
     * a call that does not return within a second. */
    void (*abort)(void *link);
    void (*close)(void *link); /* NULL, too */
};

/*
 * Collective over comm->world; all ranks come to the same answer. links: may be NULL. shared: some
 * ranks share a device. link: out, NULL where MPI sums. how: "NCCL 2.28.3", or why not: "no (rank
 * 1: NCCL not found: ...)". A single rank sums nothing: NULL and "".
 *
 * Ranks whose connection waits for that of a rank which has failed leave it behind, in its thread.
 * From now on the watchdog aborts the link before it ends the job.
 *
 * Errors: BAD_JOB: the job says `nccl`, and it cannot be used; RANK.
 */
enum dpt_status dpt_comm_transport(const struct dpt_comm *comm, enum dpt_transport wanted,
                                   const struct dpt_device_links *links,
                                   const struct dpt_device_memory *memory, int device, bool shared,
                                   void **link, char how[DPT_CUDA_AWARE_TEXT],
                                   struct dpt_error *err);
/* Closes a link; NULL, too. */
void dpt_comm_unlink(const struct dpt_comm *comm, const struct dpt_device_links *links, void *link);

#endif
