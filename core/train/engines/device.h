/*
 * device: what the files of the engine for devices share (device.c). Private to them.
 */
#ifndef DPT_TRAIN_ENGINES_DEVICE_H
#define DPT_TRAIN_ENGINES_DEVICE_H

#include "core/train/step/engine.h"
#include "core/train/step/prefetcher.h"

enum {
    DPT_STAGING_BUFFERS = 3, /* steps that are filled ahead */
    DPT_BUCKET = 4 << 20,    /* bytes: long enough for the network, short enough to begin early */
};

/* Where a bucket of this rank lies. */
struct dpt_device_bucket {
    float *at,
        *tail; /* tail: only of the last bucket; on the device it is in the host all the same */
    size_t n;
};

struct dpt_engine_state {
    const struct dpt_backend_steps *type;
    bool on_device; /* the ranks' sums are made in its memory */
    void *steps;    /* NULL: no program is attached */
    struct dpt_prefetcher *prefetcher;
    struct dpt_progress base;       /* the progress when the device got the arenas last */
    struct dpt_steps_state read;    /* what it told last of the steps since then */
    int64_t unread;                 /* steps that it was given since it was read */
    int64_t given;                  /* their samples */
    struct dpt_step_result pending; /* what was read and not told yet */
    bool fetched;                   /* the host's copies are current */
    bool with_gradient;             /* t->reduction.sum is, too */
    bool stepped;                   /* a step has ended */

    /* Only where MPI sums. */
    int buckets;
    struct dpt_device_bucket *bucket; /* [buckets]: of the last step */
    float *spare;                     /* what a rank gives in the host whose device failed */
    size_t spare_bytes;
    /* Sums pieces of buckets through memory that a node's ranks share; NULL: MPI_Allreduce does. */
    struct dpt_hierarchical_allreduce *shared;
    size_t piece; /* floats */

    /* Only with a link. */
    int32_t *first;       /* [ranks + 1]: the step's micro-batches of each rank */
    int32_t rounds;       /* of the step, each of which is summed by itself */
    int node_ranks;       /* that merge on a node what they sum; 1: they do not */
    int64_t asked, heard; /* sums that were enqueued, and of which the tail was read */
    int32_t count[DPT_STAGING_BUFFERS]; /* samples of the last steps */
    bool saves[DPT_STAGING_BUFFERS];    /* whether this rank asked for a checkpoint in them */
    struct dpt_error failure; /* what this rank's part failed of, until all ranks have heard it */
};

/* Collective. Chooses by what the ranks' gradients are summed. Errors: BAD_JOB, RANK. */
enum dpt_status dpt_device_sums_open(struct dpt_trainer *t, struct dpt_error *err);
void dpt_device_sums_close(struct dpt_trainer *t);
/* Fills in what the steps are to know of the sums. */
void dpt_device_sums_plan(const struct dpt_trainer *t, struct dpt_steps_spec *spec);
/* Before a step's part of this rank. Errors: RANK. */
enum dpt_status dpt_device_sums_begin(struct dpt_trainer *t, struct dpt_error *err);
/* Once the steps are open, and once they have parameters. Errors: RANK. */
enum dpt_status dpt_device_sums_attach(struct dpt_trainer *t, struct dpt_error *err);
enum dpt_status dpt_device_sums_measure(struct dpt_trainer *t, struct dpt_error *err);
void dpt_device_sums_detach(struct dpt_trainer *t);

/*
 * Sums the step's gradient over the ranks, with the tail. mine: in and out, what became of this
 * rank's part. total: the samples of all ranks. *counted: in, total; out, what the ranks counted.
 * The flags of all ranks come to t->reduction.reduced_flags: with a link those of some steps
 * before, the same on all ranks. Collective. Errors: RANK.
 */
enum dpt_status dpt_device_sum(struct dpt_trainer *t, float flags[DPT_FLAGS], enum dpt_status *mine,
                               int32_t total, double *summing, struct dpt_error *err);
/*
 * The first step's gradient, summed by MPI, too, if that is asked for; else these do nothing. What
 * fails on this rank is told by dpt_device_check_sum.
 */
struct dpt_device_check {
    bool asked;
    float *own, *amounts; /* [n]; summed over this rank's parts, then over the ranks */
    size_t n;
    struct dpt_error failure; /* of this rank's part */
};

/* Adds up floats [begin, end) of this rank's parts, before the links sum them. */
void dpt_device_check_parts(struct dpt_trainer *t, struct dpt_device_check *check, size_t begin,
                            size_t end);
/* Compares with the host's what the devices have gathered of a unit's weights. */
void dpt_device_check_weights(struct dpt_trainer *t, struct dpt_device_check *check, int unit);
/* Collective, once all parts were added. Errors: RANK. */
enum dpt_status dpt_device_check_sum(struct dpt_trainer *t, struct dpt_device_check *check,
                                     struct dpt_error *err);
/* Compares with MPI's sum what the links have summed. Collective with shards. Errors: RANK: they
 * differ, on this rank; or it failed to look, as `failure` says then. */
enum dpt_status dpt_device_check_compare(struct dpt_trainer *t, struct dpt_device_check *check,
                                         struct dpt_error *err);
void dpt_device_check_drop(struct dpt_device_check *check);

/* Ends the job since a call of this rank alone failed in which the others' devices wait for it. */
enum dpt_status dpt_device_give_up(const struct dpt_trainer *t, enum dpt_status status,
                                   struct dpt_error *err);

#endif
