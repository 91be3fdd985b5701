/*
 * steps: whole training steps on a device with memory of its own.
 *
 * A backend for such a device offers them beside its programs (dpt_backend.steps). Parameters,
 * gradient and optimizer slots are in device memory between `put` and `get`. In each step the host
 * fills a staging buffer (pinned memory) and sends it, `compute` enqueues forward, loss and
 * backward of this rank's micro-batches, and `update` enqueues the optimizer. None of these waits
 * for the device. Scalars (learning rate, update number, losses, loss scale) are in device memory,
 * so the enqueued work can be captured in a graph and replayed. With several ranks the allreduce
 * comes between compute and update. Where the ranks' devices are linked, `sum` enqueues it, and the
 * host waits for nothing. Else `bucket` waits for a range of the gradient, in the order in which
 * backward finishes them, the host sums it over the ranks while the device continues, and `give`
 * returns it.
 *
 * If the samples are in device memory and no rank sums gradients, several steps may be launched
 * together (`at_once`): then `update` holds steps back until there are as many, or until `read`,
 * `get`, `put` or `launch` is called, so nobody can tell, except by the staging buffers, which are
 * read until then.
 *
 * The results of the steps are read now and then (`read`). A gradient or loss that is not finite
 * withholds its own update (`skip`), or also all later ones until the host reads the state; so the
 * parameters stay finite. Withheld updates are numbered as well.
 *
 * All calls come from one thread, except `staging_buffer` and `send`, which a second one may call.
 */
#ifndef DPT_BACKEND_STEPS_H
#define DPT_BACKEND_STEPS_H

#include "core/backend/backend.h"
#include "core/backend/loss_scale.h"
#include "core/backend/optimizers.inc"

enum { DPT_STEPS_CHANNELS = 64 };

/* The arithmetic of an optimizer for each parameter. */
struct dpt_rule {
    enum dpt_rule_kind kind; /* of optimizers.inc; none: devices cannot compute it */
    int slots;               /* arenas in device memory; at least those of the rule */
    const void *options;     /* borrowed */
    void (*scalars)(const void *options, double lr, int64_t update, struct dpt_scalars *f);
    double decay;   /* of tensors that decay */
    bool decoupled; /* it is taken off the weight itself, not added to the gradient */
};

/* What the updates of some tensors have in common. lr_scale: times the learning rate. */
struct dpt_rule_group {
    double lr_scale, decay;
};

static inline struct dpt_rule_group dpt_rule_group_of(const struct dpt_rule *rule,
                                                      const struct dpt_tensor *t)
{
    const double decay = t->decays_alone ? t->weight_decay : rule->decay;

    return (struct dpt_rule_group){t->lr_scale != 0 ? t->lr_scale : 1, t->decay ? decay : 0};
}

/* The scalars of update number `update` (from 1) of a group; `factor` is that of all groups and
 * updates. */
static inline struct dpt_scalars dpt_rule_scalars(const struct dpt_rule *rule,
                                                  const struct dpt_rule_group *group, double lr,
                                                  int64_t update)
{
    struct dpt_scalars f = {.keep = 1};

    lr *= group->lr_scale;
    rule->scalars(rule->options, lr, update, &f);
    if (rule->decoupled)
        f.keep = (float)(1 - lr * (double)(float)group->decay);
    else
        f.l2 = (float)group->decay;
    return f;
}

/* Samples in host memory in their stored format, copied to the device once if they fit there. */
struct dpt_steps_data {
    const void *memory;      /* NULL: none */
    int64_t samples, stride; /* stride: bytes of a sample */
    bool u8, nhwc;
    const float *scale, *shift; /* [c]: value x scale + shift */
};

struct dpt_steps_spec {
    struct dpt_rule rule;
    /* The share that the new weights have in their moving average, which is the last of the rule's
     * slots then; 0: there is none. */
    double average;
    double clip;         /* largest norm of the mean gradient; 0: not clipped */
    bool skip;           /* a gradient that is not finite withholds only its own update */
    int32_t micros;      /* most micro-batches of this rank in a step */
    int64_t whole;       /* samples of a whole step, of all ranks */
    int staging_buffers; /* how many steps may be filled in advance, at least 2 */
    int at_once;         /* steps that may be launched together; 0 or 1: each by itself */
    int32_t targets;     /* length of a sample's target vector; 0: labels */
    bool weights;        /* samples have weights */
    bool reduces;        /* gradients are summed over ranks between compute and update */
    /* They are summed in device memory (by a CUDA-aware MPI), where `bucket` then points. */
    bool on_device;
    void *link;      /* or by this (core/comm/transport.h), with `sum`; NULL: there is none */
    int64_t bucket;  /* approximate bytes of a bucket */
    int rank, ranks; /* this rank, of those that sum */
    /* Gradients are summed along the tree of core/comm/sums/tree.h, over the ranks only with a
     * link, and the norm as under `reproducible` (dpt_graph_chunks). blocks: how many values
     * wait at most until this rank's next micro-batch is computed. */
    bool tree;
    int blocks;
    /* With a link: so many ranks share a node, as many on each, which follow one another; they
     * merge what they have before it goes to other nodes. 1: nodes do not count. merged: how many
     * blocks a node has in a round at most. received: how many slices a rank gets at once at most:
     * of the blocks of the other ranks on its node one for each node, or one of the blocks of each
     * other node. */
    int node_ranks, merged, received;
    /* With a link: each rank has a part of the optimizer's state, and updates a part of the
     * parameters. What copies slots to the host or the gradient is then collective, and all ranks
     * get them whole. */
    bool shards;
    /* With `tree` and `shards`: in its k-th round a step has micro-batches k x ranks, k x ranks +
     * 1, ..., of each rank one, as long as there are any, and each round is summed by itself. So of
     * sums that wait a rank keeps its slices alone. blocks: how many wait after a round at most. */
    bool round_robin;
    /* With `tree` and a link: this rank has stage number `stage` of a pipeline's. The ranks of each
     * stage, of which `rank` and `ranks` are, follow one another on the link, as stages do. 0 or 1:
     * the whole model. chunks: of the gradient's norm (dpt_graph_chunks), in all stages; those of
     * this one are numbered from chunks_before on. */
    int stages, stage;
    int64_t chunks, chunks_before;
    struct dpt_steps_data data;
};

/* The random crop and flip of a sample (data/sets/augment.h): where its window begins, in
 * pixels. */
struct dpt_steps_move {
    int16_t top, left;
    int32_t flip;
};

/* The samples of this rank's share of a step in pinned memory: micro-batch after micro-batch,
 * `micro` rows each. */
struct dpt_staging_buffer {
    /* Normalised [row][c][h][w], rows past a count are zero. NULL: the samples are on the device,
     * and `sample` and `move` say which ones and how they are cropped. */
    float *input;
    int32_t *labels;             /* NULL if targets are vectors */
    float *targets;              /* [row][targets] */
    float *weights;              /* [row]; NULL: samples have none */
    int64_t *sample;             /* [row]: numbers of the samples in the data set */
    struct dpt_steps_move *move; /* [row], for samples on the device; zeros: no crop, no flip */
    int32_t *count;              /* [micros]: samples of each micro-batch */
};

/* What a rank does with a micro-batch, in a stage or a unit of the model. */
struct dpt_steps_pass {
    int32_t micro; /* this rank's, from 0; with `round_robin` the round */
    int flight;    /* which of the program's micro-batches in flight it is (dpt_program_spec) */
    int unit;      /* likewise; 0 without units */
    int next;      /* the unit of the pass that follows, else the same */
    bool back;
    bool last; /* nothing follows it in the step */
    bool idle; /* this rank has failed: it only takes part in the messages */
};

struct dpt_steps_state {
    /* Sums over all steps since the last `read` or `put` whose update was not withheld, over all
     * ranks: longer sums would lose a small loss beside a large one. */
    double loss, correct; /* weighted, as in struct dpt_metric_sums */
    int64_t samples;
    double weight;
    /* Since `put`. */
    double norm; /* of the last step's mean gradient, before clipping */
    /* an update and all after it were withheld: the parameters are those before it */
    bool withheld;
    int64_t withheld_update; /* number of the first withheld one since `put`; 0: none */
    int64_t skipped;         /* updates withheld with `skip` */
    int64_t weightless;      /* updates withheld since the samples' weights are 0 */
    struct dpt_loss_scale scale;
};

struct dpt_backend_steps {
    /* program: opened with `training`; borrowed. Errors: BAD_JOB (the device has too little memory:
     * says how much each part needs, and which micro-batch would fit), RANK. On failure *steps is
     * NULL. */
    enum dpt_status (*open)(void *program, const struct dpt_steps_spec *spec, void **steps,
                            struct dpt_error *err);
    void (*close)(void *steps);
    /* Copies arenas to the device and waits. slot: NULL: the device keeps its own. scale: as
     * `read` gave it, or dpt_loss_scale_start. */
    enum dpt_status (*put)(void *steps, const float *params, float *const *slot,
                           const struct dpt_loss_scale *scale, struct dpt_error *err);
    /* Waits for everything enqueued and copies arenas to the host; each may be NULL. gradient: of
     * the last step, with its tail, summed over the ranks. If the program has units, parameters are
     * whole only with slots, and else are what this rank has of them. */
    enum dpt_status (*get)(void *steps, float *params, float *const *slot, float *gradient,
                           struct dpt_error *err);
    /* How many staging buffers there are: as many as were wanted, or more. */
    int (*staging_buffers)(const void *steps);
    /* Returns staging buffer number `which`, once its last content has been copied to the device.
     * This function and `send` may be called by a second thread, but not for a staging buffer whose
     * step is not complete: `send`, `compute` and `update` of one staging buffer follow one
     * another, and the last `held` steps are not launched yet. */
    enum dpt_status (*staging_buffer)(void *steps, int which,
                                      struct dpt_staging_buffer *staging_buffer,
                                      struct dpt_error *err);
    /* Enqueues the copy of a staging buffer's samples to the device, which overlaps with the
     * computation of earlier steps. micros: how many micro-batches it holds. */
    enum dpt_status (*send)(void *steps, int which, int32_t micros, struct dpt_error *err);
    /* Says, before a step's `compute`, how its micro-batches are divided: rank r has numbers
     * first[r] to first[r + 1] - 1. To be called with a link, for sums along the tree. A rank that
     * fails calls it, too. */
    enum dpt_status (*divide)(void *steps, const int32_t *first, struct dpt_error *err);
    /* Enqueues a step up to this rank's gradient, for the samples that were sent; with
     * `round_robin` its first micro-batch; with stages or units nothing yet. micros: as sent;
     * with 0 the gradient is zero. seed, step: key the dropout. */
    enum dpt_status (*compute)(void *steps, int which, int32_t micros, uint64_t seed, uint64_t step,
                               struct dpt_error *err);
    /* With `round_robin`: enqueues this rank's next micro-batch, if it has one, which begins when
     * the sum enqueued last has ended. */
    enum dpt_status (*next)(void *steps, struct dpt_error *err);
    /* With stages: enqueues what comes next of the step, in the order of the schedule
     * (core/train/layout/actions.h), with the messages that it needs. With units of the program:
     * those of a round, forward from the first to the last, and back from the last to the first,
     * with the gathering of weights and the sums of gradients; ranks without a micro-batch take
     * part. If it fails, or was not called, other ranks' devices wait for this one's. */
    enum dpt_status (*pass)(void *steps, const struct dpt_steps_pass *pass, struct dpt_error *err);
    /* Enqueues the gathering of a unit's weights for passes of the program by itself, which must
     * follow before the next one. Collective. */
    enum dpt_status (*gather)(void *steps, int unit, struct dpt_error *err);
    /* Waits, and copies the weights of the last pass's unit to their place in `params`. */
    enum dpt_status (*weights)(void *steps, int unit, float *params, struct dpt_error *err);
    /* In how many parts this rank's gradient is before the sum over the ranks: one, but for sums
     * along the tree; in a round of which it has no micro-batch none. `part` waits, and copies part
     * k with its tail; with units that of the last pass back alone, to its place in `gradient`. */
    int (*parts)(const void *steps);
    enum dpt_status (*part)(void *steps, int k, float *gradient, struct dpt_error *err);
    /* Number of buckets of a step; 0 if nothing is reduced over ranks. */
    int (*buckets)(const void *steps);
    /* Waits for bucket i of the step, in the order in which they are finished. *at: out, [*n]
     * floats to be summed over the ranks in place, in host memory or, with `on_device`, in device
     * memory. The last bucket includes the tail after the gradient, whose first words are this
     * rank's loss, samples, correct samples and weight. *host_tail: out, where the host reads and
     * writes these DPT_TENSOR_ALIGN words; with `on_device` this is a separate place, which is
     * summed separately and not counted in *n; NULL for the other buckets. */
    enum dpt_status (*bucket)(void *steps, int i, float **at, size_t *n, float **host_tail,
                              struct dpt_error *err);
    /* Enqueues the copy of a summed bucket back to the device. */
    enum dpt_status (*give)(void *steps, int i, struct dpt_error *err);
    /* With a link, in place of `bucket` and `give`: enqueues the sum of the step's gradient and
     * tail over the ranks, bucket by bucket. tail: the words [at, at + n) of this rank's tail;
     * NULL: of a round that is not the step's last. A rank whose `compute` or `next` failed calls
     * this, too. Errors: RANK: the ranks are no longer linked. */
    enum dpt_status (*sum)(void *steps, const float *tail, int at, int n, struct dpt_error *err);
    /* Waits for the oldest sum whose tail was not told yet, and copies its DPT_TENSOR_ALIGN words.
     * At most staging_buffers sums may be untold. */
    enum dpt_status (*summed)(void *steps, float *tail, struct dpt_error *err);
    /* Enqueues norm, clipping and update number `update` (from 1) of the optimizer at learning rate
     * lr. */
    enum dpt_status (*update)(void *steps, double lr, int64_t update, struct dpt_error *err);
    /* How many of the last steps are held back; and launches them. */
    int (*held)(const void *steps);
    enum dpt_status (*launch)(void *steps, struct dpt_error *err);
    /* Waits for everything enqueued, copies the state, and begins its sums anew. */
    enum dpt_status (*read)(void *steps, struct dpt_steps_state *state, struct dpt_error *err);
};

#endif
