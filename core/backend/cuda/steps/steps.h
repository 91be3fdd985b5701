/*
 * steps: whole training steps on the GPU (core/backend/steps.h), on top of a program (program.h);
 * what steps*.c share. For these files only.
 *
 * A step is one graph, captured when it is first needed and replayed from then on. For each
 * micro-batch it copies the samples from the staging buffer's copy on the device and runs forward,
 * loss and backward; on one rank norm, optimizer and layouts follow in the same graph. So `compute`
 * only stores its arguments there, and `update` makes the one launch. If ranks reduce the gradient
 * there are two graphs, and the first one records an event after each bucket, for which the stream
 * `sums` waits, if the ranks' GPUs are linked, or else `copy`, which fetches it for the host. With
 * shards the update has three, between which the ranks sum the norm and gather the weights.
 *
 * The host fills a staging buffer in pinned memory. As soon as it is full it is copied to the
 * device at once, on the stream `samples`, so that the next steps' samples are transferred while
 * this step computes and ranks sum. The graph's first kernel makes activations of them, and copies
 * labels and the like on to where the program reads them. It also copies controls and rates, from
 * pinned memory that the device can access, since they are known only at the launch (a row of rates
 * for each group of tensors that have the same). A captured graph contains all these addresses, so
 * there is a graph for each staging buffer. If the samples are on the device and one rank trains,
 * one graph may contain `at_once` steps, whose staging buffers follow one another. A step of many
 * micro-batches has a graph for the first, one for the last with what follows it, and one for all
 * others, and what depends on the staging buffer is launched before each (DPT_CUDA_MANY).
 * A pipeline's stage has one graph forward and one back for each micro-batch in flight
 * (steps_stages.c), and a model of whose weights ranks keep slices one of each for a unit
 * (steps_units.c).
 */
#ifndef DPT_BACKEND_CUDA_STEPS_H
#define DPT_BACKEND_CUDA_STEPS_H

#include <stdlib.h>

#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/program/program_stage.h"
#include "core/base/memory.h"

/* The parts of a step that a graph contains, as a set of bits. Norm and update go together but with
 * shards; then what layers read is derived by a part of its own, and else by the update. */
enum {
    DPT_CUDA_COMPUTE = 1,
    DPT_CUDA_NORM = 2,
    DPT_CUDA_UPDATE = 4,
    DPT_CUDA_DERIVE = 8,
    DPT_CUDA_PASS_FORWARD = 16, /* of a stage's micro-batch in flight, or through a unit */
    DPT_CUDA_PASS_BACK = 32
};

/* From so many micro-batches of a rank on, graphs have one each: one of all of them would have as
 * many nodes as they have together, once for each staging buffer. */
enum { DPT_CUDA_MANY = 8 };

/* Bytes of what ranks sum by one call at most: a longer one would keep the sums of what is ready
 * behind it waiting. */
enum { DPT_CUDA_SUMMED = 32 << 20 };

/* The bytes of one copy between pageable memory and the device. */
enum { DPT_CUDA_PIECE = 4 << 20 };

/* The arrays of a staging buffer, each with a row for a sample. The inputs come last, so that only
 * those of the step's micro-batches are sent. */
enum dpt_cuda_field {
    DPT_CUDA_STAGED_LABELS,
    DPT_CUDA_STAGED_TARGETS,
    DPT_CUDA_STAGED_WEIGHTS,
    DPT_CUDA_STAGED_SAMPLE,
    DPT_CUDA_STAGED_MOVE,
    DPT_CUDA_STAGED_INPUT,
    DPT_CUDA_FIELDS
};

/* The counts of the micro-batches come before them: a control each, of which no more is known when
 * the samples are sent. */
struct dpt_cuda_staging_layout {
    size_t row[DPT_CUDA_FIELDS]; /* bytes of a sample; 0: there is no such array */
    size_t offset[DPT_CUDA_FIELDS], bytes;
};

struct dpt_cuda_staging_buffer {
    unsigned char *pinned, *device;
    CUevent uploaded; /* its content is on the device, so the host may fill it again */
    CUevent done;     /* the last launch that reads its copy, counts and rates has ended */
};

struct dpt_cuda_replay {
    int staging_buffer, steps; /* the first step's; how many there are */
    /* Of a micro-batch, without its samples, or of a pass: flight x units + unit; else -1. */
    int32_t only;
    int32_t micros;
    int32_t first, all; /* as in dpt_cuda_tree; else 0 */
    unsigned parts;
    CUgraphExec exec;
};

/* A range of the arena: the tensors of the nodes from `node` to end - 1. The bucket of the last
 * nodes, which is ready first, also has all state, which forward writes. */
struct dpt_cuda_bucket {
    int64_t first, last; /* floats */
    int32_t node, end;
    float *staged;  /* its copy in pinned memory; NULL with on_device */
    CUevent ready;  /* recorded by the graph when its gradient is complete */
    CUevent copied; /* recorded when it is in pinned memory */
};

/* A piece of the arena, of which linked ranks have a slice of `width` floats each, one after
 * another from `first` on; those from `end` on are none of its. Its gradient is summed as soon
 * as a bucket is ready; with units bucket k + 1 is unit k, and the first one what lies behind
 * them. at: where the optimizer's state of this rank's slice lies in a slot that is divided.
 * exact: of each 16 floats, which are not gathered as layers read them (struct
 * dpt_cuda_slices_args), on the device; NULL: none of the piece is. row: bytes of a slice that
 * is gathered so. */
struct dpt_cuda_slices {
    int bucket;
    int64_t first, end, width, at, row;
    uint16_t *exact;
};

/* What steps need that go unit by unit (steps_units.c). */
struct dpt_cuda_units {
    float *params;   /* this rank's slices of the weights, as in a slot */
    float *gradient; /* and of the gradient's sum, each with room for the rest of a chunk */
    int64_t rest;    /* that room, in floats */
    int computed;    /* the unit whose gradient is to be summed next; -1: there is none */
    /* Of the two windows: whose weights are there, or -1; the events that they are, that the pass
     * has ended that read them, and that the gradient there has been summed. */
    int there[2];
    CUevent gathered[2], passed[2], summed[2];
};

/* What sums along the tree need (steps_tree.c). */
struct dpt_cuda_tree {
    float *blocks; /* on the device; [spec.blocks][stride]; of this rank's slices with rounds */
    int64_t stride;
    int32_t first, all; /* the step's micro-batches, and the first one of this rank's */
    int32_t round;      /* of the step, which is summed next; else 0 */

    /* Only with a link. */
    struct dpt_cuda_schedule *schedules; /* of the divisions so far */
    int n_schedules, present;
    size_t schedule_room;
    struct dpt_cuda_message *messages; /* room for those of a piece */
    float *received;                   /* on the device; [spec.received][widest] */
    float *merged;                     /* likewise; [spec.merged][nodes][widest] */
    float *flags;                      /* on the device: what the ranks tell each other */
};

struct dpt_cuda_steps {
    struct dpt_cuda_program *p; /* borrowed */
    struct dpt_steps_spec spec;
    struct dpt_cuda_staging_layout staging_layout;
    bool stored; /* the data set is on the device */

    struct dpt_cuda_staging_buffer *staging_buffers; /* [n_staging] */
    int n_staging;
    int32_t *counts;                  /* [n_staging][micros] */
    struct dpt_cuda_control *batches; /* pinned; [n_staging][micros]: seed, step and count */
    /* What the tensors that learn differ in, and their rates. */
    struct dpt_rule_group *groups;
    int n_groups;
    struct dpt_cuda_rates *rates; /* pinned; [n_staging][n_groups] */
    struct dpt_cuda_replay *replays;
    int n_replays;
    size_t replay_room;

    float *slot[DPT_MAX_SLOTS];        /* in device memory, as the next five */
    struct dpt_cuda_rates *step_rates; /* [n_groups] */
    uint16_t *group;                   /* for each 16 floats of what is learned: its number */
    struct dpt_cuda_running *running;  /* for each 16 floats of state */
    struct dpt_cuda_copies copies, gradients; /* of the parameters, and of their gradients */
    double *partial;
    uint32_t *counter;
    unsigned char *piece[2];         /* pinned */
    CUevent moved[2];                /* the last copy from or to that piece has ended */
    struct dpt_cuda_state *reported; /* pinned */

    struct dpt_cuda_bucket *buckets;
    int n_buckets;
    float *staging, *tail; /* pinned; tail: the floats that are summed after the gradient */
    CUevent given;         /* the buckets that were given back are in the device's gradient */

    struct dpt_cuda_tree *tree; /* NULL without spec.tree */

    /* The pieces that linked ranks sum in slices, from the arena's end on (steps_slices.c). */
    struct dpt_cuda_slices *pieces;
    size_t piece_room;
    int n_pieces;
    int64_t widest;      /* floats of the widest slice */
    int64_t slot_floats; /* of each slot on this device */
    int64_t norm_sums;   /* room for the sums of a norm in chunks; 0: it is none */
    /* The chunks of a norm in chunks that this rank adds up, [listed] on the device, of so many. */
    struct dpt_cuda_chunk *chunk;
    int64_t listed, chunks;
    /* Only with shards: what ranks tell each other of chunks that lie in slices of several, and
     * room on the device for a piece. */
    struct dpt_cuda_message *shared;
    int n_shared;
    size_t shared_room;
    float *gathered;
    struct dpt_cuda_message *gathers; /* [n_pieces]: room for those of an arena */

    struct dpt_cuda_message unsent; /* of a stage, for a neighbour; n 0: there is none */
    bool due;                       /* a stage's round is to be summed beside the next pass */
    float *kept; /* with rounds of stages: what forward gave for the state, [flights][state] */
    struct dpt_cuda_units *units; /* NULL: each rank has all weights */

    /* Only with a link. */
    float *tails;           /* pinned; [n_staging][TENSOR_ALIGN]: of the last sums */
    float *flags;           /* pinned, likewise: what this rank's host writes into its tail */
    CUevent *told;          /* [n_staging]: that tail is there */
    int64_t sums, tellings; /* how many were enqueued, how many tails told */

    /* The step that is being computed. */
    bool deferred; /* it will be launched together with the update */
    int staging_buffer;
    int32_t micros;
    /* Steps whose update was called and that will be launched together, of `held_micros`
     * micro-batches each, from staging buffer first_held on, a multiple of at_once. */
    int at_once, held, first_held;
    int32_t held_micros;
    int next; /* the next bucket to complete while the last micro-batch's backward is enqueued */
};

/* The control of micro-batch m in the step's staging buffer. */
static inline struct dpt_cuda_control *dpt_cuda_steps_batch(const struct dpt_cuda_steps *s,
                                                            int32_t m)
{
    return &s->batches[(size_t)s->staging_buffer * (size_t)s->spec.micros + (size_t)m];
}

/* The rates of the step in its staging buffer, [n_groups]. */
static inline struct dpt_cuda_rates *dpt_cuda_steps_rates(const struct dpt_cuda_steps *s)
{
    return &s->rates[(size_t)s->staging_buffer * (size_t)s->n_groups];
}

/* Whether the norm that is read is made apart from the one that decides, with the bits that it has
 * on hosts, which add chunks up in their order. Where it clips the one that decides has them. */
static inline bool dpt_cuda_steps_shows(const struct dpt_cuda_steps *s)
{
    return s->spec.tree && s->spec.clip <= 0;
}

static inline bool dpt_cuda_steps_staged(const struct dpt_cuda_steps *s)
{
    return s->spec.stages > 1;
}

/* Whether a step is enqueued pass by pass, each followed or begun by messages. */
static inline bool dpt_cuda_steps_in_passes(const struct dpt_cuda_steps *s)
{
    return dpt_cuda_steps_staged(s) || s->p->spec.units > 0;
}

/* The words after the gradient. */
static inline float *dpt_cuda_steps_tail(const struct dpt_cuda_steps *s)
{
    return dpt_cuda_at(s->p, s->p->gradient, s->p->spec.graph->arena);
}

/* The units of a pass: one without slices of the weights. */
static inline int dpt_cuda_steps_units(const struct dpt_cuda_steps *s)
{
    return s->p->spec.units > 0 ? s->p->spec.units : 1;
}

/* Whether this rank has the model's outputs, and so the loss and the tail. */
static inline bool dpt_cuda_steps_ends(const struct dpt_cuda_steps *s)
{
    return s->spec.stage + 1 >= s->spec.stages;
}

/* Whether ranks update parts of the parameters, so that the norm is made of what they all have. */
static inline bool dpt_cuda_steps_apart(const struct dpt_cuda_steps *s)
{
    return s->spec.shards || dpt_cuda_steps_staged(s);
}

/* What ranks that have a part of the chunks each tell each other of them. Sums along the tree have
 * the same norm on any of them. */
static inline enum dpt_cuda_shared dpt_cuda_steps_shared(const struct dpt_cuda_steps *s)
{
    return !dpt_cuda_steps_apart(s) ? DPT_CUDA_SHARED_NOT
           : s->spec.tree           ? DPT_CUDA_SHARED_CHUNKS
                                    : DPT_CUDA_SHARED_SUM;
}

/* Where the program's arena would begin that has a piece there. */
static inline float *dpt_cuda_arena_of(const struct dpt_cuda_steps *s, float *arena,
                                       const struct dpt_cuda_slices *piece)
{
    return dpt_cuda_begin_of(dpt_cuda_at(s->p, arena, piece->first), piece->first);
}

/* With units: where this rank has the sum of the gradient's slice of a piece. */
static inline float *dpt_cuda_slices_sum_at(const struct dpt_cuda_steps *s,
                                            const struct dpt_cuda_slices *piece)
{
    return s->units->gradient + piece->at + (piece - s->pieces) * s->units->rest;
}

/* Where float `first` of an arena would be at 0, of which only those of a piece are there. */
static inline float *dpt_cuda_shifted(float *arena, const struct dpt_cuda_slices *piece,
                                      int64_t first)
{
    return arena == NULL ? NULL : dpt_cuda_begin_of(arena + piece->at, first);
}

/* --- steps_graph.c ---------------------------------------------------------------------------- */

/* Runs a step's launches on no samples and waits for them, so that the libraries load code and
 * allocate memory before a graph is captured, during which they must not. */
enum dpt_status dpt_cuda_steps_warm(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Launches these parts of the step whose samples are in s->staging_buffer; steps: or of so many,
 * one after another, whose samples are in this and the next staging buffers. */
enum dpt_status dpt_cuda_steps_launch(struct dpt_cuda_steps *s, unsigned parts, int steps,
                                      struct dpt_error *err);
/* Loads the step's micro-batch m on the device, for a program's next pass. */
enum dpt_status dpt_cuda_steps_load(struct dpt_cuda_steps *s, struct dpt_cuda_program *p, int32_t m,
                                    struct dpt_error *err);
/* Launches a part that depends on no staging buffer, `only` as in a replay. */
enum dpt_status dpt_cuda_steps_replay(struct dpt_cuda_steps *s, unsigned parts, int32_t only,
                                      struct dpt_error *err);
void dpt_cuda_steps_forget(struct dpt_cuda_steps *s);

/* --- steps_buckets.c -------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_buckets_open(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Completes the buckets whose nodes are all at `node` or after it. Called while backward is
 * enqueued; arg: the steps. */
enum dpt_status dpt_cuda_buckets_done(void *arg, int32_t node, struct dpt_error *err);
/* Enqueues the copies of all buckets to pinned memory, each after its event. */
enum dpt_status dpt_cuda_buckets_fetch(struct dpt_cuda_steps *s, struct dpt_error *err);
int dpt_cuda_steps_buckets(const void *steps);
enum dpt_status dpt_cuda_steps_bucket(void *steps, int i, float **at, size_t *n, float **host_tail,
                                      struct dpt_error *err);
enum dpt_status dpt_cuda_steps_give(void *steps, int i, struct dpt_error *err);

/* --- steps_tree.c ----------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_tree_open(struct dpt_cuda_steps *s, struct dpt_error *err);
void dpt_cuda_tree_close(struct dpt_cuda_steps *s);
/* Enqueues what merges the gradient of the step's micro-batch m with those before it, for the
 * floats [begin, end), on the program's present stream. */
enum dpt_status dpt_cuda_tree_push(struct dpt_cuda_steps *s, int32_t m, int64_t begin, int64_t end,
                                   struct dpt_error *err);
/* Enqueues the sum over the ranks of this rank's slice of a piece. */
enum dpt_status dpt_cuda_tree_sum(struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                                  struct dpt_error *err);
int dpt_cuda_steps_parts(const void *steps);
enum dpt_status dpt_cuda_steps_part(void *steps, int k, float *part, struct dpt_error *err);
enum dpt_status dpt_cuda_steps_divide(void *steps, const int32_t *first, struct dpt_error *err);

/* --- steps_slices.c --------------------------------------------------------------------------- */

/* Cuts the gradient with its tail into pieces, if ranks sum slices of it, and finds what has to be
 * held for slots and norms. */
enum dpt_status dpt_cuda_slices_cut(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Sends to the device what the norm adds up, once slots are there. */
enum dpt_status dpt_cuda_slices_open(struct dpt_cuda_steps *s, struct dpt_error *err);
void dpt_cuda_slices_close(struct dpt_cuda_steps *s);
/* Enqueues the sums over the ranks of what is ready with a bucket; and, of ranks apart, what is to
 * follow them all: the tail comes to all ranks, and shared chunks to one. Stages tell each
 * other their flags then, too. */
enum dpt_status dpt_cuda_slices_sum(struct dpt_cuda_steps *s, int bucket, struct dpt_error *err);
enum dpt_status dpt_cuda_slices_end(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Of ranks apart: enqueues the update, of which each makes a part. */
enum dpt_status dpt_cuda_slices_update(struct dpt_cuda_steps *s, struct dpt_error *err);
/* With shards: copy an arena of which each rank has slices on the device, `rest` floats apart, to
 * and from there; the second one is collective, unless `own` slices alone are wanted. And give all
 * ranks the sum of the gradient. */
enum dpt_status dpt_cuda_slices_put(struct dpt_cuda_steps *s, float *slices, const float *arena,
                                    struct dpt_error *err);
enum dpt_status dpt_cuda_slices_get(struct dpt_cuda_steps *s, const float *slices, int64_t rest,
                                    bool own, float *arena, struct dpt_error *err);
enum dpt_status dpt_cuda_slices_gather(struct dpt_cuda_steps *s, float *arena, CUstream stream,
                                       struct dpt_error *err);
/* Enqueue the gathering of the parameters of a bucket's pieces, or of all (ALL_BUCKETS), as far as
 * layers read them: of those that they read in half the width the others' are rounded. own: this
 * rank's slices, as in a slot; NULL: they are in their places, and stay. */
enum { DPT_CUDA_ALL_BUCKETS = -1 };
enum dpt_status dpt_cuda_slices_params(struct dpt_cuda_steps *s, int bucket, const float *own,
                                       CUstream stream, struct dpt_error *err);

/* --- steps_stages.c --------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_stages_open(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Begins a step in passes, whose samples are in s->staging_buffer. */
enum dpt_status dpt_cuda_stages_begin(struct dpt_cuda_steps *s, struct dpt_error *err);
enum dpt_status dpt_cuda_stages_pass(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                     struct dpt_error *err);

/* --- steps_units.c ---------------------------------------------------------------------------- */

/* Does nothing without units; else once slices are cut. */
enum dpt_status dpt_cuda_units_open(struct dpt_cuda_steps *s, struct dpt_error *err);
void dpt_cuda_units_close(struct dpt_cuda_steps *s);
/* Before and after a pass: enqueue the gathering of its unit's weights and of those of the next,
 * and the sum of the gradient that the last pass gave; and remember what this one gave. They do
 * nothing without units. */
enum dpt_status dpt_cuda_units_begin(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                     struct dpt_error *err);
enum dpt_status dpt_cuda_units_end(struct dpt_cuda_steps *s, const struct dpt_steps_pass *pass,
                                   struct dpt_error *err);
/* Enqueues the sum of the gradient that the last pass gave, so that it can be read before. */
enum dpt_status dpt_cuda_units_sum(struct dpt_cuda_steps *s, struct dpt_error *err);
/* The slices have other weights from here on. */
enum dpt_status dpt_cuda_units_updated(struct dpt_cuda_steps *s, struct dpt_error *err);
enum dpt_status dpt_cuda_steps_gather(void *steps, int unit, struct dpt_error *err);
enum dpt_status dpt_cuda_steps_weights(void *steps, int unit, float *params, struct dpt_error *err);

/* --- steps_sums.c ----------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_sums_open(struct dpt_cuda_steps *s, struct dpt_error *err);
enum dpt_status dpt_cuda_steps_sum(void *steps, const float *tail, int at, int n,
                                   struct dpt_error *err);
enum dpt_status dpt_cuda_steps_summed(void *steps, float *tail, struct dpt_error *err);
/* Enqueues the sum of a round that is due. */
enum dpt_status dpt_cuda_sums_round(struct dpt_cuda_steps *s, struct dpt_error *err);

/* --- steps_memory.c --------------------------------------------------------------------------- */

/* Prefixes an error's text with what was being done: "GPU, uploading the data set: ...". Returns
 * the status. */
enum dpt_status dpt_cuda_steps_prefix_error(enum dpt_status status, const char *what,
                                            struct dpt_error *err);
enum dpt_status dpt_cuda_steps_hold(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Copy between pageable memory and the device, in pieces on the stream `copy`, and wait for the
 * end. No other copy may be in flight there. */
enum dpt_status dpt_cuda_steps_upload(struct dpt_cuda_steps *s, void *to, const void *from,
                                      size_t bytes, struct dpt_error *err);
enum dpt_status dpt_cuda_steps_download(struct dpt_cuda_steps *s, void *to, const void *from,
                                        size_t bytes, struct dpt_error *err);

#endif
