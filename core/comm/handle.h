/*
 * handle: what a group's handle points to; for the files of this room that call MPI.
 */
#ifndef DPT_COMM_HANDLE_H
#define DPT_COMM_HANDLE_H

#include <mpi.h>

#include "core/comm/comm.h"

struct dpt_communicator {
    MPI_Comm comm;
};

static inline MPI_Comm dpt_group_comm(const struct dpt_group *g)
{
    return ((const struct dpt_communicator *)g->handle)->comm;
}

/* "MPI: WHAT failed: the library's words for the code", DPT_RANK. */
enum dpt_status dpt_mpi_fail(struct dpt_error *err, const char *what, int code);

/* Runs an MPI call; on failure goes to `out:` with a message that names it. */
#define TRY_MPI(function, ...)                                                                     \
    do {                                                                                           \
        const int mpi_code = function(__VA_ARGS__);                                                \
        if (mpi_code != MPI_SUCCESS)                                                               \
            DPT_TRY(dpt_mpi_fail(err, #function, mpi_code));                                       \
    } while (0)

#endif
