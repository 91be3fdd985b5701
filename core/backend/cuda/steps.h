/*
 * steps: whole training steps on the GPU (core/backend/steps.h), on top of a program (program.h);
 * what steps*.c share. For these files only.
 *
 * A step is one graph, captured when it is first wanted and replayed from then on: the samples of
 * each micro-batch from the staging buffer's copy on the device, forward, loss, backward, and, where nothing
 * is reduced between them, norm, optimizer and layouts. So `compute` only notes, and the one launch
 * is `update`'s. Where ranks reduce, there are two graphs, and the first one records an
 * event behind each bucket, which the other stream waits for.
 *
 * A staging buffer is filled by the host in pinned memory, copied as one piece to the device on the
 * stream `copy` as soon as it is full (so the next steps' samples travel while this step computes,
 * and while ranks sum), and from there to where the program reads it by the graph's first kernel,
 * `feed`. That one also fetches counts and rates: they are known only when the launch is, so they
 * lie in pinned memory, which the device sees, one struct for each staging buffer. Graphs have
 * their addresses in them, so there is one for each staging buffer.
 */
#ifndef DPT_BACKEND_CUDA_STEPS_H
#define DPT_BACKEND_CUDA_STEPS_H

#include <stdlib.h>

#include "core/backend/cuda/program.h"
#include "core/base/memory.h"

/* Parts of a step that a graph does; a set of bits. */
enum { DPT_CUDA_COMPUTE = 1, DPT_CUDA_UPDATE = 2 };

/* Bytes that go between pageable memory and the device at once. */
enum { DPT_CUDA_PIECE = 4 << 20 };

/* What a staging buffer holds of each sample. The samples come last: of them only those of the
 * step's micro-batches are sent. */
enum dpt_cuda_field {
    DPT_CUDA_STAGED_LABELS,
    DPT_CUDA_STAGED_TARGETS,
    DPT_CUDA_STAGED_WEIGHTS,
    DPT_CUDA_STAGED_SAMPLE,
    DPT_CUDA_STAGED_MOVE,
    DPT_CUDA_STAGED_INPUT,
    DPT_CUDA_FIELDS
};

struct dpt_cuda_staging_layout {
    size_t row[DPT_CUDA_FIELDS]; /* bytes of a sample; 0: it is not there */
    size_t offset[DPT_CUDA_FIELDS], bytes;
};

struct dpt_cuda_staging_buffer {
    unsigned char *pinned, *device;
    CUevent uploaded; /* what is in it was copied */
    CUevent done;     /* the last launch that reads the copy, counts and rates has ended */
};

struct dpt_cuda_replay {
    int staging_buffer;
    int32_t micros;
    unsigned parts;
    CUgraphExec exec;
};

/* A range of the arena: the tensors of nodes `node` … behind-1. */
struct dpt_cuda_bucket {
    int64_t first, last; /* floats */
    int32_t node, behind;
    float *staged;  /* where it lies in pinned memory; NULL with on_device */
    CUevent ready;  /* it is in the gradient: recorded by the graph */
    CUevent copied; /* to pinned memory */
};

struct dpt_cuda_steps {
    struct dpt_cuda_program *p; /* borrowed */
    struct dpt_steps_spec spec;
    struct dpt_cuda_staging_layout staging_layout;
    bool stored; /* the data set is on the device */

    struct dpt_cuda_staging_buffer *staging_buffers;
    int32_t *counts;                  /* [staging_buffers][micros] */
    struct dpt_cuda_control *batches; /* pinned; [staging_buffers][micros]: seed, step and count */
    struct dpt_cuda_control *rates;   /* pinned; [staging_buffers]: the rest */
    struct dpt_cuda_replay *replays;
    int n_replays;
    size_t replay_room;

    float *slot[DPT_RULE_MOST_SLOTS]; /* device, as all up to `counter` */
    uint8_t *decays;
    double *partial;
    uint32_t *counter;
    unsigned char *piece[2];         /* pinned */
    CUevent moved[2];                /* what was in a piece is where it goes */
    struct dpt_cuda_state *reported; /* pinned */

    struct dpt_cuda_bucket *buckets;
    int n_buckets;
    float *staging, *tail; /* pinned; tail: the words of host_tail */
    CUevent given;         /* what was handed back is in the gradient */

    /* Of the step under way. */
    bool deferred; /* its launch is still to come */
    int staging_buffer;
    int32_t micros;
    int next; /* bucket to be finished; while the last micro-batch's backward is enqueued */
};

/* Micro-batch m's part of the control, of the step's staging buffer. */
static inline struct dpt_cuda_control *dpt_cuda_steps_batch(const struct dpt_cuda_steps *s,
                                                            int32_t m)
{
    return &s->batches[(size_t)s->staging_buffer * (size_t)s->spec.micros + (size_t)m];
}

/* --- steps_graph.c ---------------------------------------------------------------------------- */

/* Runs what a step runs on no samples at all, so that the libraries have loaded and allocated what
 * they want before anything is captured; waits. */
enum dpt_status dpt_cuda_steps_warm(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Launches these parts of the step in s->staging_buffer, s->micros. */
enum dpt_status dpt_cuda_steps_launch(struct dpt_cuda_steps *s, unsigned parts,
                                      struct dpt_error *err);
void dpt_cuda_steps_forget(struct dpt_cuda_steps *s);

/* --- steps_buckets.c -------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_buckets_open(struct dpt_cuda_steps *s, struct dpt_error *err);
/* While backward is enqueued: node and those behind it are done. arg: the steps. */
enum dpt_status dpt_cuda_buckets_done(void *arg, int32_t node, struct dpt_error *err);
/* Behind the launch: the way to pinned memory. */
enum dpt_status dpt_cuda_buckets_fetch(struct dpt_cuda_steps *s, struct dpt_error *err);
int dpt_cuda_steps_buckets(const void *steps);
enum dpt_status dpt_cuda_steps_bucket(void *steps, int i, float **at, size_t *n, float **host_tail,
                                      struct dpt_error *err);
enum dpt_status dpt_cuda_steps_give(void *steps, int i, struct dpt_error *err);

/* --- steps_memory.c --------------------------------------------------------------------------- */

/* Puts what was being done in front of an error's text: "GPU, uploading the data set: ...". Passes
 * the status on. */
enum dpt_status dpt_cuda_steps_prefix_error(enum dpt_status status, const char *what,
                                            struct dpt_error *err);
enum dpt_status dpt_cuda_steps_hold(struct dpt_cuda_steps *s, struct dpt_error *err);
/* Between pageable memory and the device, in pieces on the stream `copy`; wait. Nothing else may be
 * on its way. */
enum dpt_status dpt_cuda_steps_upload(struct dpt_cuda_steps *s, void *to, const void *from,
                                      size_t bytes, struct dpt_error *err);
enum dpt_status dpt_cuda_steps_download(struct dpt_cuda_steps *s, void *to, const void *from,
                                        size_t bytes, struct dpt_error *err);

#endif
