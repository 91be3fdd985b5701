/*
 * count_messages: an LD_PRELOAD library that counts what a rank sends to another one.
 *
 * MPI's profiling interface lets it stand in front of MPI_Isend, of MPI_Sendrecv, and of the
 * collectives in which ranks give each other parts of arrays. At its end a rank appends a line to
 * the file that COUNT_MESSAGES names: its number; how many messages of at least 1000 bytes it has
 * sent, and their bytes, shorter ones being waiting and norms; and the bytes that it has given
 * other ranks in such collectives.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long long messages, bytes, given;

static long long bytes_of(int count, MPI_Datatype type)
{
    int size = 0;

    PMPI_Type_size(type, &size);
    return (long long)size * count;
}

static void count_message(int count, MPI_Datatype type)
{
    if (bytes_of(count, type) >= 1000) {
        messages++;
        bytes += bytes_of(count, type);
    }
}

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    count_message(count, type);
    return PMPI_Isend(buffer, count, type, to, tag, comm, request);
}

int MPI_Sendrecv(const void *send, int n, MPI_Datatype type, int to, int tag, void *receive, int m,
                 MPI_Datatype other, int from, int other_tag, MPI_Comm comm, MPI_Status *status)
{
    count_message(n, type);
    return PMPI_Sendrecv(send, n, type, to, tag, receive, m, other, from, other_tag, comm, status);
}

int MPI_Allgatherv(const void *send, int n, MPI_Datatype type, void *receive, const int *counts,
                   const int *at, MPI_Datatype other, MPI_Comm comm)
{
    int rank = 0, ranks = 0;

    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    given += (ranks - 1) * bytes_of(counts[rank], other);
    return PMPI_Allgatherv(send, n, type, receive, counts, at, other, comm);
}

int MPI_Alltoallv(const void *send, const int *counts, const int *at, MPI_Datatype type,
                  void *receive, const int *other_counts, const int *other_at, MPI_Datatype other,
                  MPI_Comm comm)
{
    int rank = 0, ranks = 0;

    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    for (int r = 0; r < ranks; r++)
        given += r == rank ? 0 : bytes_of(counts[r], type);
    return PMPI_Alltoallv(send, counts, at, type, receive, other_counts, other_at, other, comm);
}

int MPI_Finalize(void)
{
    FILE *file = fopen(getenv("COUNT_MESSAGES"), "a");
    int rank = 0;

    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (file != NULL) {
        fprintf(file, "%d %lld %lld %lld\n", rank, messages, bytes, given);
        fclose(file);
    }
    return PMPI_Finalize();
}
