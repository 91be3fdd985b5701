/*
 * gpu_query: what the NVIDIA driver says about the GPUs of this machine, even for a program built
 * without CUDA.
 *
 * The driver's libraries are loaded at run time if they are installed. A child process asks all
 * questions before MPI starts, and writes the answers to shared memory. So a driver that hangs or
 * crashes, or an MPI that allocates device memory, affects only the child, and this process has not
 * initialised the driver.
 */
#ifndef DPT_BACKEND_GPU_QUERY_H
#define DPT_BACKEND_GPU_QUERY_H

#include "core/backend/backend.h"
#include "core/backend/devices.h"

enum { DPT_GPU_QUERY_MOST = 16 };
struct dpt_gpu_query {
    bool library;     /* libcuda was found */
    int code;         /* that cuInit returned; 0: success */
    int driver;       /* 12040: the newest CUDA version that the driver supports */
    char version[32]; /* of the driver, from libnvidia-ml; "": unknown */
    char nvml[64];    /* error of libnvidia-ml; "": none */
    int count;        /* of devices; at most DPT_GPU_QUERY_MOST are described */
    struct {
        char bus[32]; /* also for the ranks that ask about nothing else */
        char name[64];
        double memory, available; /* bytes */
        int major, minor;         /* compute capability */
    } gpu[DPT_GPU_QUERY_MOST];
    int node;            /* GPUs of this node by its files, also if this process may not use them */
    int apart, first[2]; /* pairs of devices that do not reach each other's memory; one of them */
    int message;         /* MPI with device memory: 1: works, 0: does not, -1: was not tried */
    char why[128];
    char libraries[96]; /* "driver for CUDA 13.0, cuDNN 9.19.0, ..." */
    struct dpt_device_library library_files[DPT_DEVICE_LIBRARIES];
    char missing[400]; /* why this program cannot use them; "": it can */
    /* The device that this rank would use; "": it has none. */
    char own_bus[32], own_name[64];
};

/* Asks, before MPI starts: the first rank of a node about everything, the others only which
 * devices they see and would use. */
void dpt_gpu_query(struct dpt_gpu_query *gpus);
/* The backend that computes on GPUs; NULL: this build has none. */
const struct dpt_backend *dpt_gpu_backend(void);

#endif
