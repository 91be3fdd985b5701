/*
 * devices: the accelerators that a backend can use on this machine.
 *
 * Which ones there are is the driver's answer, after CUDA_VISIBLE_DEVICES. A process uses one:
 * number (rank among the ranks of its node) modulo their count, chosen before MPI starts, so that a
 * CUDA-aware MPI sets itself up on the same one.
 */
#ifndef DPT_BACKEND_DEVICES_H
#define DPT_BACKEND_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct dpt_device_info {
    char name[96];   /* "NVIDIA H200" */
    char bus[32];    /* PCI address: the same device has the same on all ranks of a node */
    char driver[96]; /* "driver for CUDA 13.0, cuDNN 9.19.0, cuBLASLt 13.1" */
    int number, count;
    int major, minor; /* compute capability */
    int multiprocessors;
    int64_t memory, available; /* bytes */
    /* Peaks by the data sheet's formula from clock and units: bytes a second; 0: unknown. */
    double bandwidth;
};

/* A library that a backend opens at run time. */
struct dpt_device_library {
    char name[16];  /* "cuDNN" */
    char path[496]; /* of the file that was opened; cut at its end */
};

enum { DPT_DEVICE_LIBRARIES = 3 };

struct dpt_backend_devices {
    /* "CUDA 13.0, cuDNN 9.19.0": what this program was built with. */
    void (*built)(char *text, size_t size);
    /* How many there are; starts no context, allocates nothing there. Errors: BAD_JOB: what is
     * missing (driver, cuDNN, cuBLASLt) and what to do; there is no device. *count is then of those
     * that the driver shows. */
    enum dpt_status (*count)(int *count, struct dpt_error *err);
    /* Where its libraries were found, DPT_DEVICE_LIBRARIES of them. Errors: BAD_JOB, as above. */
    enum dpt_status (*libraries)(struct dpt_device_library *libraries, struct dpt_error *err);
    /* Makes device number local % count the calling process's, for all that comes. */
    enum dpt_status (*choose)(int local, struct dpt_error *err);
    /* Of device `number`, which it makes the calling thread's. Errors: BAD_JOB, RANK. */
    enum dpt_status (*info)(int number, struct dpt_device_info *info, struct dpt_error *err);
    /* A small float buffer in the device's memory, for probes: allocated and filled with `value`,
     * read back, freed. */
    enum dpt_status (*buffer)(int number, float value, int n, float **at, struct dpt_error *err);
    enum dpt_status (*fetch)(int number, const float *at, int n, float *host,
                             struct dpt_error *err);
    void (*release)(int number, float *at);
};

#endif
