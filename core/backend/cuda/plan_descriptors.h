/*
 * plan_descriptors: cuDNN's descriptors, as plan.c puts them together. For this folder only.
 *
 * Every descriptor that is made is noted in the struct dpt_cuda_plans and destroyed with it, last
 * one first: nothing that refers to another outlives it.
 */
#ifndef DPT_BACKEND_CUDA_PLAN_DESCRIPTORS_H
#define DPT_BACKEND_CUDA_PLAN_DESCRIPTORS_H

#include "core/backend/cuda/plan.h"

enum dpt_status dpt_cuda_make(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                              cudnnBackendDescriptor_t *made, struct dpt_error *err);
/* Destroys one of them before the others, and sets it to NULL; one that is NULL is fine. */
void dpt_cuda_unmake(struct dpt_cuda_plans *plans, cudnnBackendDescriptor_t *made);

struct dpt_cuda_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count; /* 0: is not set */
    const void *values;
};

/* Makes a descriptor and sets its attributes; `build` finalizes it besides. */
enum dpt_status dpt_cuda_describe(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                                  const struct dpt_cuda_attribute *rows, size_t n,
                                  cudnnBackendDescriptor_t *made, struct dpt_error *err);
enum dpt_status dpt_cuda_build(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                               const struct dpt_cuda_attribute *rows, size_t n,
                               cudnnBackendDescriptor_t *made, struct dpt_error *err);
/* What a device is told to. */
enum dpt_cuda_to {
    DPT_CUDA_TO_GRAPH,
    DPT_CUDA_TO_HEURISTICS,
    DPT_CUDA_TO_ENGINE,
    DPT_CUDA_TO_PLAN,
};
struct dpt_cuda_attribute dpt_cuda_device_row(enum dpt_cuda_to to,
                                              const struct dpt_cuda_device *device);

/* The operation graph of a pass, finalized, into plans->graph; plans->bias, relu: what is in it. */
enum dpt_status dpt_cuda_conv_graph(struct dpt_cuda_plans *plans,
                                    const struct dpt_cuda_device *device,
                                    const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                    struct dpt_error *err);

/* cuDNN's number of an array, a unique id of the graph. */
int64_t dpt_cuda_array_id(enum dpt_cuda_array array);

#endif
