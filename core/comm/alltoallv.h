/*
 * alltoallv: collectives in which each rank's part of an array has a length of its own.
 */
#ifndef DPT_COMM_ALLTOALLV_H
#define DPT_COMM_ALLTOALLV_H

#include "core/comm/comm.h"

/* The number of floats of each rank's part, and the offset in the array at which the part
 * begins. */
struct dpt_parts {
    int *count, *at;
};

/* Collective (MPI_Alltoallv). Sends each rank its part of `send` and stores what each rank sends in
 * its part of `receive`; part k of rank r has the same size on both sides. Errors: RANK. */
enum dpt_status dpt_group_alltoallv(const struct dpt_group *g, const float *send,
                                    const struct dpt_parts *sent, float *receive,
                                    const struct dpt_parts *received, struct dpt_error *err);

/* Collective (MPI_Allgatherv). Gives all ranks' parts to all ranks; mine: this rank's part. Errors:
 * RANK. */
enum dpt_status dpt_group_allgatherv(const struct dpt_group *g, const float *mine, float *all,
                                     const struct dpt_parts *parts, struct dpt_error *err);

/* Collective (MPI_Gatherv). Gives all ranks' parts to rank root alone; `all` is used on rank root
 * only. Works for any group. */
enum dpt_status dpt_group_gatherv(const struct dpt_group *g, int root, const float *mine,
                                  float *all, const struct dpt_parts *parts, struct dpt_error *err);

/* Sends n floats to `partner` and receives m floats from it (MPI_Sendrecv). Both ranks call this at
 * the same time, the partner with n and m exchanged. Errors: RANK. */
enum dpt_status dpt_group_sendrecv(const struct dpt_group *g, int partner, const float *send,
                                   size_t n, float *receive, size_t m, struct dpt_error *err);

#endif
