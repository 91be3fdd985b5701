/*
 * exchange: parts of an array to and from each rank.
 */
#ifndef DPT_COMM_EXCHANGE_H
#define DPT_COMM_EXCHANGE_H

#include "core/comm/comm.h"

/* For each rank how many floats, and where in the array they begin. */
struct dpt_parts {
    int *count, *at;
};

/* Collective. Sends each rank its part of `send` and puts what comes from each at its part of
   `receive`; part k of rank r has the same size on both sides. Errors: RANK. */
enum dpt_status dpt_group_exchange(const struct dpt_group *g, const float *send,
                                   const struct dpt_parts *sent, float *receive,
                                   const struct dpt_parts *received, struct dpt_error *err);

/* Collective. Gives every rank's part to all: mine is this rank's. Errors: RANK. */
enum dpt_status dpt_group_gather_parts(const struct dpt_group *g, const float *mine, float *all,
                                       const struct dpt_parts *parts, struct dpt_error *err);

/* Collective. The same to one rank alone: `all` is looked at on rank root only. Any group. */
enum dpt_status dpt_group_collect_parts(const struct dpt_group *g, int root, const float *mine,
                                        float *all, const struct dpt_parts *parts,
                                        struct dpt_error *err);

/* Sends `partner` n floats and receives m from it; the two call this at once, with n and m the other
   way about. Errors: RANK. */
enum dpt_status dpt_group_swap(const struct dpt_group *g, int partner, const float *send, size_t n,
                               float *receive, size_t m, struct dpt_error *err);

#endif
