/*
 * decided: the predictions of `predict --threshold`, which a person's thresholds decide, and how
 * good they are where the truth is known.
 *
 * Used by one thread of rank 0; zero-initialise, close in any case.
 */
#ifndef DPT_CMD_DECIDED_H
#define DPT_CMD_DECIDED_H

#include "cmd/cmd.h"
#include "core/train/scores/decide.h"
#include "core/train/use/predict.h"

struct dpt_decided {
    struct dpt_decision decision; /* decides: there are thresholds, else nothing is done */
    struct dpt_str thresholds;    /* as they were typed */
    int32_t *said;                /* of one run: [count], or of a binary_cross_entropy model
                                     [count][outputs], 0 or 1 each; -1: no number */
    size_t said_room;
    struct dpt_class_score *score; /* [decision.classes], where the truth is known */
    int64_t samples, right;        /* of these */
};

/* Takes the thresholds of an open decision. Errors: RANK. */
enum dpt_status dpt_decided_open(struct dpt_decided *d, struct dpt_error *err);
void dpt_decided_close(struct dpt_decided *d);

/* Decides for the samples of a run, in d->said. Errors: RANK. */
enum dpt_status dpt_decided_take(struct dpt_decided *d, const struct dpt_predicted *predicted,
                                 struct dpt_error *err);
/* Adds "by ill=0.1: accuracy 0.9120, of ill precision 0.4103 and recall 0.9518". */
void dpt_decided_tell(const struct dpt_decided *d, struct dpt_str *out);

#endif
