/*
 * plan: convolutions as cuDNN's graph API computes them.
 *
 * A convolution node, a number of samples and a precision make a struct dpt_cuda_conv: dimensions
 * with padded channels, types, strides. For one of its passes dpt_cuda_plans_build asks cuDNN's
 * heuristics for engines, leaves out those whose notes or workspace do not suit, and finalizes what
 * remains, in heuristic order. The first is the one to take where results must not depend on
 * timings; otherwise the caller times them and takes the fastest. A plan's tag (engine and knobs)
 * names it for a checkpoint or a cache file, and builds it again.
 *
 * Tensors are NHWC, each pixel's channels beginning at a multiple of 16 bytes (dpt_cuda_pitch);
 * weights KRSC with padded channels. What is padded holds zeros. Sums are fp32 in every precision.
 * All arrays are of the precision's type, the gradient of the weights too: cuDNN 9 has no engine
 * that writes fp32 from 16 bits (the layout kernel of kernels.h casts and adds it to an fp32
 * arena).
 *
 * All of it works without a GPU, from a description of one (dpt_cuda_device_described; cuDNN 9.8 or
 * later): plans are built, and their engines and workspace read, on any machine.
 *
 * Threads: what is built here belongs to one thread at a time.
 */
#ifndef DPT_BACKEND_CUDA_PLAN_H
#define DPT_BACKEND_CUDA_PLAN_H

#include "core/backend/backend.h"
#include "core/backend/cuda/library.h"
#include "core/backend/graph.h"
#include "core/base/str.h"

enum dpt_cuda_pass {
    DPT_CUDA_FORWARD,
    DPT_CUDA_BACKWARD_DATA,
    DPT_CUDA_BACKWARD_FILTER,
    DPT_CUDA_PASSES
};

/* Names of a plan's arrays, for dpt_cuda_plan_bind. Forward: X, W, Y, BIAS where it is fused;
 * backward: dY is Y, dX is X, dW is W. */
enum dpt_cuda_array { DPT_CUDA_X, DPT_CUDA_W, DPT_CUDA_Y, DPT_CUDA_BIAS, DPT_CUDA_ARRAYS };

/* The device that plans are for: one of the two is set. Owned by who opened it. */
struct dpt_cuda_device {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
};

/* A convolution with padded channels. Dimensions are in cuDNN's order: n, c, h, w. */
struct dpt_cuda_conv {
    enum dpt_precision precision;
    bool bias, relu;             /* to be fused behind the forward pass */
    int64_t x[4], w[4], y[4];    /* sizes; w: outputs, inputs of a group, height, width */
    int64_t x_pitch, y_pitch;    /* elements from one pixel to the next */
    int64_t before[2], after[2]; /* padding */
    int64_t stride[2], dilation[2];
};

/* What is wanted of a plan. */
struct dpt_cuda_plan_request {
    bool reproducible; /* the same bits in each run */
    bool varying;      /* other bits in each run: no others are wanted */
    int64_t workspace; /* bytes at most; < 0: any */
};

enum { DPT_CUDA_TAG = 256 };

struct dpt_cuda_plan {
    cudnnBackendDescriptor_t plan;
    char tag[DPT_CUDA_TAG]; /* "engine=48 2=5 13=1": the engine, then each knob's type and value */
    int64_t engine;
    int64_t workspace; /* bytes */
    unsigned notes;    /* bits 1 << cudnnBackendNumericalNote_t */
};

/* The plans of one pass, and the descriptors that they are made of. Zero-initialise: {0}. */
struct dpt_cuda_plans {
    const struct dpt_cuda_library *lib; /* borrowed */
    struct dpt_cuda_plan *plan;
    int n, capacity;
    bool bias, relu; /* are fused in them */
    cudnnBackendDescriptor_t graph;
    cudnnBackendDescriptor_t *made; /* all descriptors, in the order of their making */
    int n_made;
    size_t made_room;
};

/* Elements from one pixel to the next for so many channels: at least `channels`. */
int64_t dpt_cuda_pitch(enum dpt_precision precision, int64_t channels);

/* node: a convolution; n: samples. With groups the channels are not padded, only the pitch is. */
void dpt_cuda_conv_describe(const struct dpt_graph_node *node, int64_t n,
                            enum dpt_precision precision, int64_t x_pitch, int64_t y_pitch,
                            struct dpt_cuda_conv *conv);

/* A device from its description in JSON (the text of dpt_cuda_device_text on a machine that has
 * one). Errors: BAD_JOB: cuDNN cannot do that or does not understand the text. */
enum dpt_status dpt_cuda_device_described(const struct dpt_cuda_library *lib, const char *json,
                                          struct dpt_cuda_device *device, struct dpt_error *err);
/* The description of a device with a handle, or of one that was described; added to *json. */
enum dpt_status dpt_cuda_device_text(const struct dpt_cuda_library *lib,
                                     const struct dpt_cuda_device *device, struct dpt_str *json,
                                     struct dpt_error *err);
/* Ends a description; a handle is left alone. */
void dpt_cuda_device_release(const struct dpt_cuda_library *lib, struct dpt_cuda_device *device);

/*
 * Finds at most `most` plans. Forward: with bias and ReLU in the same kernel where they are wanted
 * and an engine does that; else plans of the convolution alone (plans->bias, ->relu tell).
 * Errors: BAD_JOB: no engine suits (says how many were offered and what was wrong with them); RANK.
 */
enum dpt_status dpt_cuda_plans_build(const struct dpt_cuda_library *lib,
                                     const struct dpt_cuda_device *device,
                                     const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                     const struct dpt_cuda_plan_request *request, int most,
                                     struct dpt_cuda_plans *plans, struct dpt_error *err);
/* The one plan of a tag, fused as `plans->bias, relu` were (given here). Errors: BAD_JOB: this
 * cuDNN does not make such a plan for this device. */
enum dpt_status dpt_cuda_plans_rebuild(const struct dpt_cuda_library *lib,
                                       const struct dpt_cuda_device *device,
                                       const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                       const char *tag, struct dpt_cuda_plans *plans,
                                       struct dpt_error *err);
/* Whether its bits change from run to run. */
bool dpt_cuda_plan_varies(const struct dpt_cuda_plan *plan);
/* Destroys all plans but this one, which becomes the first: a plan holds code and tables in the
 * device's memory. Nothing may be under way or captured that runs the others. */
void dpt_cuda_plans_keep(struct dpt_cuda_plans *plans, int which);
void dpt_cuda_plans_release(struct dpt_cuda_plans *plans);

/*
 * Binds a plan to arrays on the device, so that one call runs it. pointers: by enum dpt_cuda_array;
 * NULL: the plan has none. *bound: out, owned by `plans`. Errors: INTERNAL.
 */
enum dpt_status dpt_cuda_plan_bind(struct dpt_cuda_plans *plans, void *const *pointers,
                                   void *workspace, cudnnBackendDescriptor_t *bound,
                                   struct dpt_error *err);

/* --- cuDNN's descriptors: for plan*.c only ---------------------------------------------------- */

/* Every descriptor that is made is noted in the plans and destroyed with them, last one first:
 * nothing that refers to another outlives it. */
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
