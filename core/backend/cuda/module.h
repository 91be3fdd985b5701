/*
 * module: the kernels on the device.
 *
 * The image, code for each architecture it was built for and PTX for later ones, is part of the
 * program. Loaded into the current context once, its kernels are launched by their number. Launches
 * are enqueued on a stream, so that they are captured into a graph where one is being captured; the
 * argument is copied by the launch.
 *
 * Threads: load and release by one thread; launches by any that has the context current, one at a
 * time for a stream.
 */
#ifndef DPT_BACKEND_CUDA_MODULE_H
#define DPT_BACKEND_CUDA_MODULE_H

#include "core/backend/cuda/kernels.h"
#include "core/backend/cuda/library.h"

struct dpt_cuda_module {
    CUmodule module;
    CUfunction functions[DPT_CUDA_KERNEL_COUNT];
};

/* The image, as cuModuleLoadData takes it; *bytes: its size. */
const void *dpt_cuda_module_image(size_t *bytes);

/* Errors: BAD_JOB: no code in it for this GPU; RANK. */
enum dpt_status dpt_cuda_module_load(const struct dpt_cuda_library *lib,
                                     struct dpt_cuda_module *module, struct dpt_error *err);
void dpt_cuda_module_release(const struct dpt_cuda_library *lib, struct dpt_cuda_module *module);

/* argument: the kernel's struct of kernels.h. Nothing to do is no error. Errors: BAD_JOB: too large
 * for one launch; RANK. */
enum dpt_status dpt_cuda_launch(const struct dpt_cuda_library *lib,
                                const struct dpt_cuda_module *module, CUstream stream,
                                enum dpt_cuda_kernel kernel, const void *argument,
                                struct dpt_error *err);

#endif
