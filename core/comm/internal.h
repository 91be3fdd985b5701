/*
 * internal: what the files of this directory share, and what its tests use. It is the only header
 * that includes mpi.h, and no other directory includes it.
 */
#ifndef DPT_COMM_INTERNAL_H
#define DPT_COMM_INTERNAL_H

#include <mpi.h>

#include "core/comm/comm.h"

/* Far below INT_MAX, since MPI's counts are int and some libraries multiply them by the element's
 * size. */
enum { DPT_MESSAGE_LIMIT = 1 << 28 };

/* Stands in place of an axis: not all ranks that the comm has on this node are in the group. */
enum { DPT_SOME_OF_NODE = -1 };

/* What a group's handle points to. */
struct dpt_communicator {
    MPI_Comm comm;
    struct dpt_watch *watch; /* NULL: not watched yet */
    int axis;                /* of the comm (comm.h), or DPT_SOME_OF_NODE */
    size_t limit;            /* elements of a message at most */
};

static inline MPI_Comm dpt_mpi_comm(const struct dpt_group *g)
{
    return ((const struct dpt_communicator *)g->handle)->comm;
}

/* Elements of a message at most: MPI's counts are int. */
static inline size_t dpt_message_limit(const struct dpt_group *g)
{
    return ((const struct dpt_communicator *)g->handle)->limit;
}

/* "MPI: MPI_Bcast failed: ...", RANK. */
enum dpt_status dpt_mpi_fail(struct dpt_error *err, const char *what, int code);

/* A collective failed on this rank, and the others wait or fail elsewhere: ends the job where it is
 * watched, else as dpt_mpi_fail. */
enum dpt_status dpt_mpi_collective_fail(const struct dpt_group *g, struct dpt_error *err,
                                        const char *what, int code);

/* Collective over job->world. Gives *beside, to be closed as a dpt_comm_split, the same ranks by
 * communicators of its own, for a thread beside the main one. The watchdog does not see that thread
 * wait, which may be for a rank that still computes. Errors: as dpt_comm_split's. */
enum dpt_status dpt_comm_split_beside(const struct dpt_comm *job, struct dpt_comm *beside,
                                      struct dpt_error *err);

/* Waits for a message, asleep where that takes long; MPI_Wait then returns at once. */
void dpt_mpi_await(MPI_Request *request);

/* Called before and after everything that waits for the other ranks of a group, MPI or not. The
 * group has a handle. */
void dpt_group_enter(const struct dpt_group *g);
void dpt_group_leave(const struct dpt_group *g);

/* Runs an MPI call; on failure goes to `out:` with a message that names it. */
#define DPT_TRY_MPI(function, ...)                                                                 \
    do {                                                                                           \
        const int mpi_code = function(__VA_ARGS__);                                                \
        if (mpi_code != MPI_SUCCESS)                                                               \
            DPT_TRY(dpt_mpi_fail(err, #function, mpi_code));                                       \
    } while (0)

/* Waits until all ranks of the group have arrived, asleep where that takes long: a blocking call of
 * MPI polls, and the core that it polls on may be what the others lack. */
void dpt_group_await(const struct dpt_group *g);

/* Runs an MPI call that waits for the other ranks of a group; on failure as DPT_TRY_MPI. A step's
 * own calls, where microseconds count, are DPT_TRY_STEP: they do nothing but the call. */
#define DPT_TRY_COLLECTIVE(group, ...) DPT_TRY_TOGETHER(group, dpt_group_await, __VA_ARGS__)
#define DPT_TRY_STEP(group, ...)       DPT_TRY_TOGETHER(group, (void), __VA_ARGS__)
#define DPT_TRY_TOGETHER(group, await, function, ...)                                              \
    do {                                                                                           \
        dpt_group_enter(group);                                                                    \
        await(group);                                                                              \
        const int mpi_code = function(__VA_ARGS__);                                                \
        dpt_group_leave(group);                                                                    \
        if (mpi_code != MPI_SUCCESS)                                                               \
            DPT_TRY(dpt_mpi_collective_fail(group, err, #function, mpi_code));                     \
    } while (0)

/* How the pages of shared memory are obtained; tried in this order. */
enum dpt_shared_way { DPT_SHARED_MEMFD, DPT_SHARED_DEV_SHM, DPT_SHARED_WAYS };

/* Collective. As dpt_shared_open, for a group of several ranks and with one way only. */
enum dpt_status dpt_shared_open_by(struct dpt_shared *shared, const struct dpt_group *node,
                                   size_t size, enum dpt_shared_way way, struct dpt_error *err);

/*
 * Refuses several tasks of which MPI does not know that they belong together (srun without
 * --mpi=pmix, the launcher of another MPI), since each would train the same job by itself. ranks:
 * of MPI's world; 0 before MPI_Init. Errors: USAGE.
 */
enum dpt_status dpt_launcher_check(int ranks, struct dpt_error *err);

/* What usually starts ranks of the MPI that this is built with: "mpirun", "mpiexec". */
const char *dpt_mpirun_name(void);

/* Whether `text`, NAME=VALUE of an environment, is a rank's number: -1 where it is not, less where
 * NAME comes before another one that is there, too. */
int dpt_launcher_rank_variable(const char *text, const char **value);

/* Makes MPI_Init fast, free of side processes, and possible in a step of Slurm; for a process
 * without a launcher, before MPI_Init. */
void dpt_launcher_prepare_lone(void);

/* The name of this machine up to the first dot. */
void dpt_host_name(char host[DPT_HOST_TEXT]);

/* --- barrier.c -------------------------------------------------------------------------------- */

/*
 * A barrier for the ranks of a node, in memory that they share.
 *
 * An MPI_Barrier between two ranks of a node takes about a microsecond, and a small model's step
 * only a few. Here a rank that arrives increments a counter in a cache line of its own and reads
 * the other ranks' counters until they are as high: one cache line moves each way. A rank that
 * waits longer sleeps in the kernel and is woken by the last rank to arrive, so that ranks which
 * share a core do not keep it from a rank that must still arrive. The watchdog counts a barrier as
 * any other collective (watch.h). One thread of each rank takes part.
 */
struct dpt_node_barrier {
    const struct dpt_group *node;       /* borrowed; several ranks */
    struct dpt_node_barrier_page *page; /* borrowed, shared */
    uint32_t count;                     /* barriers that this rank has entered */
    bool spin;
};

/* Bytes of shared memory that the barrier of so many ranks needs, in whole cache lines. */
size_t dpt_node_barrier_bytes(int ranks);

/* memory: dpt_node_barrier_bytes zeroed bytes, aligned to a cache line, the same memory on all
 * ranks of the node. spin: every rank has a core of its own, so that waiting may spin at first.
 * There is nothing to close. */
void dpt_node_barrier_open(struct dpt_node_barrier *barrier, const struct dpt_group *node,
                           void *memory, bool spin);

/* Collective over the node. After it all ranks see what any of them wrote before it. */
void dpt_node_barrier_wait(struct dpt_node_barrier *barrier);

#endif
