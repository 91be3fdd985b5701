/*
 * internal: what the files of this room share, and what its tests reach into. Nobody else includes
 * it.
 */
#ifndef DPT_COMM_INTERNAL_H
#define DPT_COMM_INTERNAL_H

#include "core/comm/comm.h"

/* MPI counts are int, and libraries multiply them by the element's size in places: stay well below.
 */
enum { DPT_MESSAGE_LIMIT = 1 << 28 };

enum dpt_sum_kind { DPT_SUM_FLOATS, DPT_SUM_DOUBLES, DPT_SUM_INTS };

/* Collective. The public collectives with a limit of elements (bytes) a message. limit > 0. */
enum dpt_status dpt_group_sum_split(const struct dpt_group *g, enum dpt_sum_kind kind,
                                    const void *send, void *receive, size_t n, size_t limit,
                                    struct dpt_error *err);
enum dpt_status dpt_group_broadcast_split(const struct dpt_group *g, int root, void *bytes,
                                          size_t n, size_t limit, struct dpt_error *err);
enum dpt_status dpt_group_allgather_split(const struct dpt_group *g, const void *mine, void *all,
                                          size_t n, size_t limit, struct dpt_error *err);

/* How the pages of shared memory are obtained; tried in this order. */
enum dpt_shared_way { DPT_SHARED_MEMFD, DPT_SHARED_DEV_SHM, DPT_SHARED_WAYS };

/* Collective. As dpt_shared_open, for a group of several ranks and with one way only. */
enum dpt_status dpt_shared_open_by(struct dpt_shared *shared, const struct dpt_group *node,
                                   size_t size, enum dpt_shared_way way, struct dpt_error *err);

/*
 * Whether MPI sees what srun started: several tasks, but none is told its rank (srun without
 * --mpi=pmix), are refused instead of training the same job several times over. ranks: of the world
 * that MPI made; 0 before MPI_Init. Errors: USAGE.
 */
enum dpt_status dpt_launcher_check(int ranks, struct dpt_error *err);

/* Makes MPI_Init quick, free of side processes, and possible in a step of Slurm; for a process
 * without a launcher, before MPI_Init. */
void dpt_launcher_prepare_lone(void);

/* The name of this machine up to the first dot. */
void dpt_host_name(char host[DPT_HOST_TEXT]);

#endif
