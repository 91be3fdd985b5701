/*
 * gpu_query: what the NVIDIA driver says about the GPUs of this machine, also to a program that was
 * built without CUDA.
 *
 * The driver's libraries are loaded where they are. All questions are asked by a child process
 * before MPI starts, which writes what it learns into memory that both have: a driver that hangs or
 * crashes, or an MPI that takes device memory for its own, ends the child and is told; and this
 * process has not begun to use the driver.
 */
#ifndef DPT_BACKEND_GPU_QUERY_H
#define DPT_BACKEND_GPU_QUERY_H

#include "core/backend/backend.h"
#include "core/backend/devices.h"

enum { DPT_GPU_QUERY_MOST = 16 };
struct dpt_gpu_query {
    bool library;     /* libcuda is there */
    int code;         /* of its start: 0 is well */
    int driver;       /* 12040: the CUDA version that the driver knows */
    char version[32]; /* of the driver, by libnvidia-ml; "": unknown */
    char nvml[64];    /* what libnvidia-ml has to say against it; "": nothing */
    int count;        /* of the devices, DPT_GPU_QUERY_MOST at most are described */
    struct {
        char name[64];
        double memory, available; /* bytes */
        int major, minor;         /* compute capability */
    } gpu[DPT_GPU_QUERY_MOST];
    int message; /* device memory through MPI: 1 arrived whole, 0 did not, -1 was not tried */
    char why[128];
    char libraries[96]; /* "driver for CUDA 13.0, cuDNN 9.19.0, ..." */
    struct dpt_device_library library_files[DPT_DEVICE_LIBRARIES];
    char missing[400]; /* what keeps this program from using them; "": nothing */
    /* The one that would be this rank's; "": it has none. */
    char own_bus[32], own_name[64];
};

/* Asks, before MPI starts: on the first rank of a node about all that there is, on the others which
 * device is theirs. */
void dpt_gpu_query(struct dpt_gpu_query *gpus);
/* The backend that computes on GPUs; NULL: this program has none. */
const struct dpt_backend *dpt_gpu_backend(void);

#endif
