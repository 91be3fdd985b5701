/*
 * steps: whole training steps on a device that has memory of its own.
 *
 * A backend for a device may offer them beside its program (struct dpt_backend's `steps`). Parameters,
 * gradient and optimizer slots then live on the device between `put` and `get`, and a step is: the
 * host fills a staging buffer (pinned memory) and sends it, `compute` enqueues forward, loss and backward of this
 * rank's micro-batches, and `update` the optimizer. Nothing of that waits for the device; scalars
 * (rate, update number, losses, loss scale) are in its memory, so the enqueued work can be a graph
 * that is replayed. With several ranks the gradient's sum lies between the two: `bucket` waits for a
 * range of it, in the order in which backward finishes them, the host sums that over the ranks while
 * the device goes on, and `give` hands it back.
 *
 * The results of the steps are read now and then (`read`). A gradient or loss that is not finite
 * withholds its own update (`skip`) or all that follow, until the host reads of it; so the
 * parameters stay finite. Withheld updates are numbered as well.
 *
 * Calls come from one thread, but for `staging_buffer`, which a second one may call.
 */
#ifndef DPT_BACKEND_STEPS_H
#define DPT_BACKEND_STEPS_H

#include "core/backend/backend.h"
#include "core/backend/loss_scale.h"
#include "core/backend/optimizers.inc"

enum { DPT_STEPS_CHANNELS = 64 };

/* What an optimizer does to each parameter. */
struct dpt_rule {
    enum dpt_rule_kind kind; /* none: no device has it */
    int slots;               /* arenas that are kept; at least those of the rule */
    const void *options;     /* borrowed */
    void (*scalars)(const void *options, double lr, int64_t update, struct dpt_scalars *f);
};

/* Of update number `update` (from 1). */
static inline struct dpt_scalars dpt_rule_scalars(const struct dpt_rule *rule, double lr,
                                                  int64_t update)
{
    struct dpt_scalars f = {.keep = 1};

    rule->scalars(rule->options, lr, update, &f);
    return f;
}

/* Samples that lie in host memory as they are stored, to be kept on the device where they fit. */
struct dpt_steps_data {
    const void *memory;      /* NULL: none */
    int64_t samples, stride; /* stride: bytes of a sample */
    bool u8, nhwc;
    const float *scale, *shift; /* [c]: value x scale + shift */
};

struct dpt_steps_spec {
    struct dpt_rule rule;
    double clip;         /* the norm of the mean gradient at most; 0: any */
    bool skip;           /* what is not finite withholds this update only */
    int32_t micros;      /* most micro-batches of this rank in a step */
    int staging_buffers; /* how many steps may be filled ahead, at least 2 */
    int32_t targets;     /* numbers a sample where targets are vectors; 0: labels */
    bool weights;        /* samples have weights */
    bool reduces;        /* other ranks' gradients come in between compute and update */
    bool on_device; /* they are summed in device memory (a CUDA-aware MPI): buckets are there */
    int64_t bucket; /* bytes of a bucket, about */
    struct dpt_steps_data data;
};

/* What was drawn for a sample (data/sets/augment.h): where its window begins, in pixels of the image. */
struct dpt_steps_move {
    int16_t top, left;
    int32_t flip;
};

/* A step's samples of this rank in pinned memory: micro-batch after micro-batch, `micro` rows each. */
struct dpt_staging_buffer {
    float
        *input; /* normalised [row][c][h][w], what lies past a count is zero; NULL: the samples are
                       on the device, and `sample` and `move` say which and how */
    int32_t *labels;             /* NULL where targets are vectors */
    float *targets;              /* [row][targets] */
    float *weights;              /* [row]; NULL: samples have none */
    int64_t *sample;             /* numbers in the data set */
    struct dpt_steps_move *move; /* for samples on the device; all zero: as they are */
    int32_t *count;              /* [micros] */
};

/* Sums over all steps since `put` whose update was not withheld, on all ranks together. */
struct dpt_steps_state {
    double loss, correct; /* weighted, as in struct dpt_metric_sums */
    int64_t samples;
    double weight;
    double norm;             /* of the last step's mean gradient, before clipping */
    bool withheld;           /* an update and all behind it are: the parameters are from before */
    int64_t withheld_update; /* number of the first withheld one since `put`; 0: none */
    int64_t skipped;         /* withheld one by one (`skip`) */
    int64_t weightless;      /* withheld since their samples weigh nothing */
    struct dpt_loss_scale scale;
};

struct dpt_backend_steps {
    /* program: opened with `training`; borrowed. Errors: BAD_JOB (it does not fit: says what was
     * needed for what, and which micro-batch would fit), RANK. On failure *steps is NULL. */
    enum dpt_status (*open)(void *program, const struct dpt_steps_spec *spec, void **steps,
                            struct dpt_error *err);
    void (*close)(void *steps);
    /* Arenas to the device; waits. scale: as `read` gave it, or dpt_loss_scale_start. */
    enum dpt_status (*put)(void *steps, const float *params, float *const *slot,
                           const struct dpt_loss_scale *scale, struct dpt_error *err);
    /* Arenas to the host; waits for all that was enqueued. Each may be NULL. gradient: of the last
     * step with its tail, summed over the ranks. */
    enum dpt_status (*get)(void *steps, float *params, float *const *slot, float *gradient,
                           struct dpt_error *err);
    /* Gives staging buffer number `which`, once its last content has been copied to the device.
     * This function and `send` may be called by another thread than all others, but not for a
     * staging buffer whose step is under way: `send`, `compute` and `update` of one staging buffer
     * follow one another. */
    enum dpt_status (*staging_buffer)(void *steps, int which,
                                      struct dpt_staging_buffer *staging_buffer,
                                      struct dpt_error *err);
    /* Enqueues the copy of a staging buffer's samples to the device, which runs while earlier steps
     * compute. micros: that are in it. */
    enum dpt_status (*send)(void *steps, int which, int32_t micros, struct dpt_error *err);
    /* Enqueues all of a step up to this rank's gradient, of the samples that were sent. micros: as
     * sent; 0: its gradient is zero. seed, step: key the dropout. */
    enum dpt_status (*compute)(void *steps, int which, int32_t micros, uint64_t seed, uint64_t step,
                               struct dpt_error *err);
    /* Buckets of a step, in the order in which they come; 0 where nothing is reduced. */
    int (*buckets)(const void *steps);
    /* Waits for bucket i of the step. *at: [*n] floats, to be summed over the ranks in place: in
     * host memory or, with `on_device`, the device's. The last bucket's *n includes the tail behind
     * the gradient, whose first words are the loss, samples, correct ones and weight of this rank;
     * host_tail: where the host reads and writes these DPT_TENSOR_ALIGN words; with `on_device` a
     * separate place, which is summed apart and not counted in *n; NULL for the other buckets. */
    enum dpt_status (*bucket)(void *steps, int i, float **at, size_t *n, float **host_tail,
                              struct dpt_error *err);
    /* The bucket has been summed: enqueues its copy back to the device. */
    enum dpt_status (*give)(void *steps, int i, struct dpt_error *err);
    /* Enqueues norm, clipping and the optimizer's update number `update` (from 1) with this rate. */
    enum dpt_status (*update)(void *steps, double lr, int64_t update, struct dpt_error *err);
    /* Waits for all that was enqueued. */
    enum dpt_status (*read)(void *steps, struct dpt_steps_state *state, struct dpt_error *err);
};

#endif
