#include "core/comm/exchange.h"

#include "core/comm/mpi_call.h"

enum dpt_status dpt_group_exchange(const struct dpt_group *g, const float *send,
                                   const struct dpt_parts *sent, float *receive,
                                   const struct dpt_parts *received, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_COLLECTIVE(g, MPI_Alltoallv, send, sent->count, sent->at, MPI_FLOAT, receive,
                       received->count, received->at, MPI_FLOAT, dpt_mpi_comm(g));
out:
    return status;
}

enum dpt_status dpt_group_gather_parts(const struct dpt_group *g, const float *mine, float *all,
                                       const struct dpt_parts *parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY_COLLECTIVE(g, MPI_Allgatherv, mine, parts->count[g->rank], MPI_FLOAT, all, parts->count,
                       parts->at, MPI_FLOAT, dpt_mpi_comm(g));
out:
    return status;
}
