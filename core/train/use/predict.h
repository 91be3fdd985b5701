/*
 * predict: a model's outputs for any number of samples, computed by all ranks.
 *
 * The samples are walked in windows of a few micro-batches per thread. Ranks and threads share a
 * window's micro-batches, its outputs are gathered, and rank 0 hands them to a sink, in the order
 * of the samples; so memory is some windows, whatever the number of samples. How the ranks share
 * them does not change results: a sample's outputs depend on the sample, the weights and the size
 * of a micro-batch.
 */
#ifndef DPT_TRAIN_PREDICT_H
#define DPT_TRAIN_PREDICT_H

#include "core/train/trainer.h"
#include "data/sources/source.h"

/* Consecutive samples. All pointers are borrowed for the call. */
struct dpt_predicted {
    int64_t first;         /* samples before these */
    int32_t count;         /* samples here */
    int32_t outputs;       /* the model's */
    const int64_t *sample; /* [count] their numbers in the data set */
    /* [count][outputs]: logits, or what an mse model predicts, in the targets' units. */
    const float *values;
    /* [count][outputs], the softmax of the logits, or with binary_cross_entropy their sigmoids;
     * NULL for mse. */
    const float *probabilities;
    /* [count] of cross_entropy the first of the largest logits, or -1 where these are not all
     * finite; else NULL */
    const int32_t *labels;
    /* The true classes or targets, if they are known: at most one of the two. */
    const int32_t *classes; /* [count] */
    const float *targets;   /* [count][outputs] */
    const float *loss;      /* [count] if the truth is known, else NULL; of targets as trained */
};

/* The samples whose outputs are not all finite. Zero-initialise; release `where`. */
struct dpt_unpredicted {
    int64_t samples;
    struct dpt_str where; /* the first ones */
};
void dpt_unpredicted_note(struct dpt_unpredicted *u, const struct dpt_predicted *predicted,
                          const struct dpt_source *source);
/* Fails if there are some of `all`, and names the first ones. Errors: FAILED. */
enum dpt_status dpt_unpredicted_tell(const struct dpt_unpredicted *u, int64_t all,
                                     struct dpt_error *err);

/* Called on rank 0 with one group of consecutive samples after another. Its failure ends the
 * prediction on all ranks. */
typedef enum dpt_status dpt_predict_sink(void *arg, const struct dpt_predicted *predicted,
                                         struct dpt_error *err);

/*
 * Collective. Predicts all samples of a split, in its sampler's order, which for valid and test is
 * that of the files. sink: NULL on other ranks than 0. total: out, or NULL; on all ranks, as
 * dpt_trainer_evaluate would have it up to rounding. Errors: BAD_DATA, IO, RANK, the sink's.
 */
enum dpt_status dpt_trainer_predict(struct dpt_trainer *t, struct dpt_split *split,
                                    dpt_predict_sink *sink, void *arg,
                                    struct dpt_metric_sums *total, struct dpt_error *err);

/* Collective. Predicts all samples of a source, which has the trainer's shape and which every rank
 * opened. Errors: as above; BAD_DATA also if the source's labels do not fit this model. */
enum dpt_status dpt_trainer_predict_source(struct dpt_trainer *t, struct dpt_source *source,
                                           dpt_predict_sink *sink, void *arg,
                                           struct dpt_metric_sums *total, struct dpt_error *err);

#endif
