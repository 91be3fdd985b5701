/*
 * mpi_call: how this room calls MPI. Private to core/comm; the only header that brings mpi.h.
 */
#ifndef DPT_COMM_MPI_CALL_H
#define DPT_COMM_MPI_CALL_H

#include <mpi.h>

#include "core/comm/comm.h"

/* What a group's handle points to. */
struct dpt_communicator {
    MPI_Comm comm;
    struct dpt_watch *watch; /* NULL: not watched yet */
    bool whole;              /* all ranks of this node are in it */
};

static inline MPI_Comm dpt_mpi_comm(const struct dpt_group *g)
{
    return ((const struct dpt_communicator *)g->handle)->comm;
}

/* "MPI: MPI_Bcast failed: ...", RANK. */
enum dpt_status dpt_mpi_fail(struct dpt_error *err, const char *what, int code);

/* A collective failed on this rank, and the others wait or fail elsewhere: ends the job where it is
 * watched, else as dpt_mpi_fail. */
enum dpt_status dpt_mpi_collective_fail(const struct dpt_group *g, struct dpt_error *err,
                                        const char *what, int code);

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

/* Runs an MPI call that waits for the other ranks of a group; on failure as DPT_TRY_MPI. */
#define DPT_TRY_COLLECTIVE(group, function, ...)                                                   \
    do {                                                                                           \
        dpt_group_enter(group);                                                                    \
        const int mpi_code = function(__VA_ARGS__);                                                \
        dpt_group_leave(group);                                                                    \
        if (mpi_code != MPI_SUCCESS)                                                               \
            DPT_TRY(dpt_mpi_collective_fail(group, err, #function, mpi_code));                     \
    } while (0)

#endif
