/*
 * program: a graph on a device, for micro-batches of one size.
 *
 * Everything is laid out once: one list of launches (own kernels, cuDNN plans, cuBLASLt products)
 * for each part of a pass, with their arguments; memory for all that they read and write. Running a
 * list enqueues it on ctx.compute and waits for nothing, so it can be captured into a graph and
 * replayed: what changes from one micro-batch to the next (how many samples count, what keys the
 * dropout) stands in `control`, in device memory.
 *
 * The backend's table (backend.h) is made of these for host arenas (program_host.c); whole steps on
 * the device (steps.c) are made of the same lists. Threads: one at a time.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_H
#define DPT_BACKEND_CUDA_PROGRAM_H

#include <pthread.h>

#include "core/backend/backend.h"
#include "core/backend/cuda/context.h"
#include "core/backend/cuda/matmul.h"

/* Where the samples of a micro-batch come from. */
enum dpt_cuda_input {
    DPT_CUDA_STAGED, /* `input`: floats, canonical, already normalised */
    DPT_CUDA_STORED, /* the data set on the device, by `sample` and `move` (dpt_cuda_program_store)
                      */
};

struct dpt_cuda_program {
    struct dpt_program_spec spec;
    int32_t micro; /* samples of one pass: spec.sub_batch or spec.micro */
    struct dpt_cuda_context ctx;

    /* Device memory that others read and write. */
    float *params;   /* [floats] */
    float *gradient; /* [floats + DPT_TENSOR_ALIGN]: a tail of words is behind it, which no pass
                        touches */
    struct dpt_cuda_control *control;
    struct dpt_cuda_state *state;
    struct dpt_cuda_metric_sums *metric_sums; /* train and infer add to it */
    float *input;                             /* [micro][c][h][w] */
    int32_t *labels;                          /* [micro] */
    float *targets;                           /* [micro][outputs] */
    float *weights;                           /* [micro] */
    int64_t *sample;                          /* [micro] */
    struct dpt_cuda_move *move;               /* [micro] */
    void *outputs; /* of the last node: rows of `outputs_pitch` elements of its type */
    int32_t outputs_pitch;

    struct dpt_cuda_lists *lists; /* private to program*.c */
    pthread_mutex_t lock;         /* of threads that use the backend's table */
};

/*
 * Errors: BAD_JOB (a layer that cannot be done here: names it; libraries, device; memory: what was
 * needed for what, and the largest micro-batch that would fit), RANK. On failure everything is
 * released and *program is NULL.
 */
enum dpt_status dpt_cuda_program_open(const struct dpt_program_spec *spec,
                                      struct dpt_cuda_program **program, struct dpt_error *err);
void dpt_cuda_program_close(struct dpt_cuda_program *p);
/* What open would hold, from shapes alone: no device is needed. The workspace is a guess. */
enum dpt_status dpt_cuda_program_measure(const struct dpt_program_spec *spec,
                                         struct dpt_program_bytes *bytes, struct dpt_error *err);

/* The parts of a pass; each enqueues. Errors: RANK, INTERNAL. */

/* `params` into the layouts that the layers read. After each change of params. */
enum dpt_status dpt_cuda_enqueue_layouts(struct dpt_cuda_program *p, struct dpt_error *err);
/* The samples into the first layer's tensor; control->count of them. */
enum dpt_status dpt_cuda_enqueue_input(struct dpt_cuda_program *p, enum dpt_cuda_input from,
                                       struct dpt_error *err);
enum dpt_status dpt_cuda_enqueue_forward(struct dpt_cuda_program *p, bool training,
                                         struct dpt_error *err);
/* Adds to the metric sums; with `training` the gradient of the outputs too. labels or targets, and
 * weights, as the program was told (dpt_cuda_program_targets). */
enum dpt_status dpt_cuda_enqueue_loss(struct dpt_cuda_program *p, bool training,
                                      struct dpt_error *err);
/*
 * The layers' gradients, from the last to the first. add: the biases' gradients are added to what
 * is in `gradient`, else written. done(arg, node): called when all that backward does for a node
 * and those behind it is enqueued; may be NULL. The weights' gradients are then in the layers'
 * layout:
 */
enum dpt_status dpt_cuda_enqueue_backward(struct dpt_cuda_program *p, bool add,
                                          enum dpt_status (*done)(void *arg, int32_t node,
                                                                  struct dpt_error *err),
                                          void *arg, struct dpt_error *err);
/* the weights' gradients of nodes first … last-1, from the layouts into `gradient`. */
enum dpt_status dpt_cuda_enqueue_gradient(struct dpt_cuda_program *p, int32_t first, int32_t last,
                                          bool add, struct dpt_error *err);

/* Whether losses have labels or target vectors from here on (labels at first), and whether samples
 * have weights. */
void dpt_cuda_program_targets(struct dpt_cuda_program *p, bool vectors, bool weights);

/* Where DPT_CUDA_STORED finds the data set: device memory, as struct dpt_steps_data has it; scale,
 * shift: device memory, [c]. moves: whether `move` counts. */
void dpt_cuda_program_store(struct dpt_cuda_program *p, const void *data, bool u8, bool nhwc,
                            const float *scale, const float *shift, bool moves);

/*
 * While somebody asks where the time goes (the table's `profile`), each launch is waited for:
 * nothing can be captured then.
 */
bool dpt_cuda_program_profiled(const struct dpt_cuda_program *p);

/* An own kernel that is in no list, for the steps: as dpt_cuda_launch, and its time is told as
 * `span`.
 */
enum dpt_status dpt_cuda_program_launch(struct dpt_cuda_program *p, enum dpt_cuda_kernel kernel,
                                        const void *argument, int span, struct dpt_error *err);

/* The table's `launches`. */
enum dpt_status dpt_cuda_program_costs(struct dpt_cuda_program *p, struct dpt_launch_cost *costs,
                                       int most, int *n, struct dpt_error *err);

/* The table's `determinism`. */
void dpt_cuda_program_determinism(const struct dpt_cuda_program *p, struct dpt_str *text);

/* The table's `plans`: "conv1 forward<tab>conv forward bf16 x=... | NVIDIA H200 | cuDNN 91900<tab>
 * +engine=48 2=5". */
void dpt_cuda_program_plans(const struct dpt_cuda_program *p, struct dpt_str *text);

#endif
