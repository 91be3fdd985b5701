/*
 * plan: convolutions as cuDNN's graph API computes them.
 *
 * A convolution node, a number of samples and a precision make a struct dpt_cuda_conv: dimensions
 * with padded channels, types, strides. For one of its passes dpt_cuda_plans_build asks cuDNN's
 * heuristics for engines, leaves out those whose numerical notes or workspace are unsuitable, and
 * finalizes the others in heuristic order. The first one is used if results must not depend on
 * timings; otherwise the caller times them and uses the fastest. A plan's tag (engine and knobs)
 * names it in a checkpoint or a cache file, and the plan can be built again from it.
 *
 * Tensors are NHWC, and each pixel's channels begin at a multiple of 16 bytes (dpt_cuda_pitch).
 * Weights are KRSC with padded channels. The padding holds zeros. Sums are fp32 in every precision.
 * All arrays have the precision's type, also the gradient of the weights, since cuDNN 9 has no
 * engine that writes fp32 from 16-bit tensors; the layout kernel of kernels.h converts it to fp32
 * and adds it to the arena.
 *
 * Everything but running a plan works without a GPU, from a description of one (cuDNN 9.8 or later;
 * dpt_cuda_device_described), so plans can be built and compared on any machine.
 *
 * Threads: what is built here belongs to one thread at a time.
 */
#ifndef DPT_BACKEND_CUDA_PLAN_H
#define DPT_BACKEND_CUDA_PLAN_H

#include "core/backend/backend.h"
#include "core/backend/cuda/libraries/library.h"
#include "core/backend/graph.h"

enum dpt_cuda_pass {
    DPT_CUDA_FORWARD,
    DPT_CUDA_BACKWARD_DATA,
    DPT_CUDA_BACKWARD_FILTER,
    DPT_CUDA_PASSES
};

/* The arrays of a plan, for dpt_cuda_plan_bind: in the forward pass X, W, Y, and BIAS if it is
 * fused; in backward passes X, W and Y stand for dX, dW and dY too. */
enum dpt_cuda_array { DPT_CUDA_X, DPT_CUDA_W, DPT_CUDA_Y, DPT_CUDA_BIAS, DPT_CUDA_ARRAYS };

/* The device that plans are for: exactly one of the two members is set, and the caller owns it. */
struct dpt_cuda_device {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
};

/* A convolution with padded channels. Dimensions have cuDNN's order: n, c, h, w. */
struct dpt_cuda_conv {
    enum dpt_precision precision;
    bool bias, relu;             /* to be fused into the forward pass */
    int64_t x[4], w[4], y[4];    /* sizes; w: outputs, inputs of a group, height, width */
    int64_t x_pitch, y_pitch;    /* elements from one pixel to the next */
    int64_t before[2], after[2]; /* padding */
    int64_t stride[2], dilation[2];
};

/* The plans that a caller can use. */
struct dpt_cuda_plan_request {
    bool reproducible; /* only plans that give the same bits in each run */
    bool varying;      /* only plans whose bits may change from run to run */
    int64_t workspace; /* bytes at most; < 0: any number */
};

enum { DPT_CUDA_TAG = 256 };

struct dpt_cuda_plan {
    cudnnBackendDescriptor_t plan;
    char tag[DPT_CUDA_TAG]; /* "engine=48 2=5 13=1": the engine, then each knob's type and value */
    int64_t engine;
    int64_t workspace; /* bytes */
    unsigned notes;    /* bits 1 << cudnnBackendNumericalNote_t */
};

/* The plans of one pass, and the descriptors that they refer to. Zero-initialise: {0}. */
struct dpt_cuda_plans {
    const struct dpt_cuda_library *lib; /* borrowed */
    struct dpt_cuda_plan *plan;
    int n, capacity;
    bool bias, relu; /* whether these are fused into them */
    cudnnBackendDescriptor_t graph;
    cudnnBackendDescriptor_t *made; /* all descriptors, in the order in which they were made */
    int n_made;
    size_t made_room;
};

/* The elements from one pixel to the next of a tensor with `channels` channels; at least
 * `channels`. */
int64_t dpt_cuda_pitch(enum dpt_precision precision, int64_t channels);

/* Describes a convolution node for n samples. With groups only the pitch is padded, not the
 * channels. */
void dpt_cuda_conv_describe(const struct dpt_graph_node *node, int64_t n,
                            enum dpt_precision precision, int64_t x_pitch, int64_t y_pitch,
                            struct dpt_cuda_conv *conv);

/* Makes a device from its description by cuDNN, in JSON
 * (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). Errors: BAD_JOB: this cuDNN has no such function or
 * does not understand the text. */
enum dpt_status dpt_cuda_device_described(const struct dpt_cuda_library *lib, const char *json,
                                          struct dpt_cuda_device *device, struct dpt_error *err);
/* Destroys a description; a handle is left alone. */
void dpt_cuda_device_release(const struct dpt_cuda_library *lib, struct dpt_cuda_device *device);

/*
 * Finds at most `most` plans. In the forward pass bias and ReLU are fused into them if the
 * convolution has them and an engine supports that; else the plans are of the convolution alone
 * (plans->bias and plans->relu say which). Errors: BAD_JOB: no engine is suitable (the message says
 * how many were offered and why each was left out); RANK.
 */
enum dpt_status dpt_cuda_plans_build(const struct dpt_cuda_library *lib,
                                     const struct dpt_cuda_device *device,
                                     const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                     const struct dpt_cuda_plan_request *request, int most,
                                     struct dpt_cuda_plans *plans, struct dpt_error *err);
/* Builds the one plan that a tag names; conv->bias and conv->relu say what is fused into it.
 * Errors: BAD_JOB: this cuDNN cannot make such a plan for this device. */
enum dpt_status dpt_cuda_plans_rebuild(const struct dpt_cuda_library *lib,
                                       const struct dpt_cuda_device *device,
                                       const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                       const char *tag, struct dpt_cuda_plans *plans,
                                       struct dpt_error *err);
/* Whether a plan's results may change in the last bits from run to run. */
bool dpt_cuda_plan_varies(const struct dpt_cuda_plan *plan);
/* Destroys all plans but this one, which becomes the first, since each plan occupies device memory
 * for code and tables. No launch or captured graph may still use the others. */
void dpt_cuda_plans_keep(struct dpt_cuda_plans *plans, int which);
void dpt_cuda_plans_release(struct dpt_cuda_plans *plans);

/*
 * Binds a plan to arrays on the device, so that one call runs it. pointers: indexed by enum
 * dpt_cuda_array, NULL for an array that the plan does not have. *bound: out, owned by `plans`.
 * Errors: INTERNAL.
 */
enum dpt_status dpt_cuda_plan_bind(struct dpt_cuda_plans *plans, void *const *pointers,
                                   void *workspace, cudnnBackendDescriptor_t *bound,
                                   struct dpt_error *err);

/* --- cuDNN's descriptors: for plan*.c only ---------------------------------------------------- */

/* Makes a descriptor. The plans own it, and they destroy their descriptors in reverse order, so
 * that none outlives one that it refers to. */
enum dpt_status dpt_cuda_make(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                              cudnnBackendDescriptor_t *made, struct dpt_error *err);
/* Destroys one descriptor before the others and sets it to NULL; NULL is left alone. */
void dpt_cuda_unmake(struct dpt_cuda_plans *plans, cudnnBackendDescriptor_t *made);

struct dpt_cuda_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count; /* 0: the attribute is not set */
    const void *values;
};

/* Makes a descriptor and sets its attributes; dpt_cuda_build then finalizes it, too. */
enum dpt_status dpt_cuda_describe(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                                  const struct dpt_cuda_attribute *rows, size_t n,
                                  cudnnBackendDescriptor_t *made, struct dpt_error *err);
enum dpt_status dpt_cuda_build(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                               const struct dpt_cuda_attribute *rows, size_t n,
                               cudnnBackendDescriptor_t *made, struct dpt_error *err);
/* The descriptors that have a device as an attribute. */
enum dpt_cuda_to {
    DPT_CUDA_TO_GRAPH,
    DPT_CUDA_TO_HEURISTICS,
    DPT_CUDA_TO_ENGINE,
    DPT_CUDA_TO_PLAN,
};
struct dpt_cuda_attribute dpt_cuda_device_row(enum dpt_cuda_to to,
                                              const struct dpt_cuda_device *device);

/* Builds the operation graph of a pass as plans->graph, and sets plans->bias and plans->relu. */
enum dpt_status dpt_cuda_conv_graph(struct dpt_cuda_plans *plans,
                                    const struct dpt_cuda_device *device,
                                    const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                    struct dpt_error *err);

/* The unique id of an array in the operation graph. */
int64_t dpt_cuda_array_id(enum dpt_cuda_array array);

#endif
