#include "core/comm/alltoallv.h"

#include <string.h>

#include "core/comm/mpi_call.h"

enum { TAG = 0x7ee }; /* of swaps */

enum dpt_status dpt_group_alltoallv(const struct dpt_group *g, const float *send,
                                    const struct dpt_parts *sent, float *receive,
                                    const struct dpt_parts *received, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_COLLECTIVE(g, MPI_Alltoallv, send, sent->count, sent->at, MPI_FLOAT, receive,
                       received->count, received->at, MPI_FLOAT, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_allgatherv(const struct dpt_group *g, const float *mine, float *all,
                                     const struct dpt_parts *parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_COLLECTIVE(g, MPI_Allgatherv, mine, parts->count[g->rank], MPI_FLOAT, all, parts->count,
                       parts->at, MPI_FLOAT, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_gatherv(const struct dpt_group *g, int root, const float *mine,
                                  float *all, const struct dpt_parts *parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (g->size == 1) {
        memcpy(all + parts->at[0], mine, (size_t)parts->count[0] * sizeof *all);
        return DPT_OK;
    }
    DPT_TRY_COLLECTIVE(g, MPI_Gatherv, mine, parts->count[g->rank], MPI_FLOAT, all, parts->count,
                       parts->at, MPI_FLOAT, root, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_sendrecv(const struct dpt_group *g, int partner, const float *send,
                                   size_t n, float *receive, size_t m, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_COLLECTIVE(g, MPI_Sendrecv, send, (int)n, MPI_FLOAT, partner, TAG, receive, (int)m,
                       MPI_FLOAT, partner, TAG, dpt_mpi_comm(g), MPI_STATUS_IGNORE);
out:
    return status;
}
