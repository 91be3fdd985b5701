/*
 * fake_ranges: the memory that a kernel reads and writes, by its argument. So a graph shows if two
 * kernels that no path orders touch the same memory. For the fake libcuda only.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_RANGES_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_RANGES_H

#include "core/backend/cuda/kernels/kernels.h"
#include "core/backend/cuda/tests/fake/fake.h"

/* Adds the ranges to work. Lists of tensors are read. */
void fake_kernel_ranges(enum dpt_cuda_kernel kernel, const void *argument,
                        struct fakegpu_work *work);

#endif
