/*
 * count_messages: an LD_PRELOAD library that counts what a rank sends to another one.
 *
 * MPI's profiling interface lets it stand in front of MPI_Isend. At its end a rank appends a line
 * to the file that COUNT_MESSAGES names: its number, and how many messages of at least 1000 bytes
 * it has sent, and their bytes. Shorter ones are waiting and norms.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long long messages, bytes;

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int size = 0;

    PMPI_Type_size(type, &size);
    if ((long long)size * count >= 1000) {
        messages++;
        bytes += (long long)size * count;
    }
    return PMPI_Isend(buffer, count, type, to, tag, comm, request);
}

int MPI_Finalize(void)
{
    FILE *file = fopen(getenv("COUNT_MESSAGES"), "a");
    int rank = 0;

    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (file != NULL) {
        fprintf(file, "%d %lld %lld\n", rank, messages, bytes);
        fclose(file);
    }
    return PMPI_Finalize();
}
