/*
 * devices: the accelerators of this machine that a backend can use.
 *
 * The driver says which ones there are, and respects CUDA_VISIBLE_DEVICES. A process uses one of
 * them: number (its rank on the node) modulo their count. It is chosen before MPI starts, so that a
 * CUDA-aware MPI uses the same one.
 */
#ifndef DPT_BACKEND_DEVICES_H
#define DPT_BACKEND_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/str.h"
#include "core/comm/transport.h"

struct dpt_device_info {
    char name[96];   /* "NVIDIA H200" */
    char bus[32];    /* PCI address, the same on all ranks of a node */
    char driver[96]; /* "driver for CUDA 13.0, cuDNN 9.19.0, cuBLASLt 13.1" */
    int number, count;
    int major, minor; /* compute capability */
    int multiprocessors;
    int64_t memory, available; /* bytes */
    /* Peak memory bandwidth in bytes per second, computed from clock and bus width; 0: unknown. */
    double bandwidth;
};

/* A library that a backend opens at run time. */
struct dpt_device_library {
    char name[16];  /* "cuDNN" */
    char path[496]; /* of the file that was opened, truncated; "": there is none */
};

enum { DPT_DEVICE_LIBRARIES = 4 };

struct dpt_backend_devices {
    /* "CUDA 13.0, cuDNN 9.19.0": what this program was built with. */
    void (*built)(char *text, size_t size);
    /* Counts the devices; creates no context and allocates nothing on them. Errors: BAD_JOB: there
     * is no device, or the driver, cuDNN or cuBLASLt is missing (says what to do). *count is set
     * even then to what the driver reports. */
    enum dpt_status (*count)(int *count, struct dpt_error *err);
    /* Where its libraries were found: DPT_DEVICE_LIBRARIES entries. Errors: BAD_JOB, as for
     * `count`. */
    enum dpt_status (*libraries)(struct dpt_device_library *libraries, struct dpt_error *err);
    /* Selects device number local % count for the calling process. Errors: BAD_JOB, RANK. */
    enum dpt_status (*choose)(int local, struct dpt_error *err);
    /* Describes device `number` and makes it the calling thread's current one. Errors: BAD_JOB,
     * RANK. */
    enum dpt_status (*info)(int number, struct dpt_device_info *info, struct dpt_error *err);
    /* Memory of a device for probes (core/comm/cuda_aware.h). */
    struct dpt_device_memory memory;
    /* What connects the devices of several ranks; NULL: nothing. */
    const struct dpt_device_links *links;
    /* Adds what this process has done so far to get its devices ready, and how long that took:
     * "1.42 s: libraries 0.61, driver 0.38, ...". */
    void (*startup)(struct dpt_str *text);
};

#endif
