/*
 * which_device: what tests of `cuda` run on: a real GPU with DPT_CUDA_TESTS=device, else libraries
 * that compute on the CPU (fake.h), which lie in fakegpu/ beside the test programs.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_WHICH_DEVICE_H
#define DPT_BACKEND_CUDA_TESTS_WHICH_DEVICE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool real_device(void)
{
    const char *which = getenv("DPT_CUDA_TESTS");

    return which != NULL && strcmp(which, "device") == 0;
}

#endif
