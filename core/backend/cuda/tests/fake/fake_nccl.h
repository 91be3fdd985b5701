/* fake_nccl: the log that the fake NCCL writes of how the ranks are connected. */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_NCCL_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_NCCL_H

#include <stdio.h>

/* Opens a rank's log and says which network there is; NULL: it writes none. */
FILE *fakenccl_open_log(int rank);
void fakenccl_say_connections(FILE *log, int rank, int ranks);

#endif
