/*
 * devices: the GPUs of this machine, for the backend's row (core/backend/devices.h).
 *
 * Each call opens the libraries anew, which is a matter of microseconds after the first time: they
 * stay in memory. What `choose` and `info` start, a device's primary context, stays until the
 * process ends: the same one is MPI's and every program's.
 */
#ifndef DPT_BACKEND_CUDA_DEVICES_H
#define DPT_BACKEND_CUDA_DEVICES_H

#include "core/backend/devices.h"

extern const struct dpt_backend_devices dpt_cuda_devices;

#endif
