/*
 * init: starts a run with weights from a file instead of random ones.
 */
#ifndef DPT_TRAIN_INIT_H
#define DPT_TRAIN_INIT_H

#include "core/base/str.h"
#include "core/train/trainer.h"

/* The result of the initialisation; zero-initialise, release. */
struct dpt_init_result {
    const char *format;   /* the file's; NULL: nothing was read */
    const char *prefix;   /* prefix of the file's names, "" if none */
    int32_t from, random; /* tensors from the file, and as they would have been without it */
    size_t of_no_layer;   /* tensors of the file that the model has no place for */
    struct dpt_str missing, unused; /* lists of the last two, one line each */
};

/*
 * Collective over the world, before the first step. Does what the job's `init` says, or nothing if
 * it names no file. Rank 0 reads; all get the same weights. result: on rank 0. Errors: BAD_DATA
 * (the file is missing, damaged or does not fit; the message lists all that does not fit), USAGE,
 * IO, RANK.
 */
enum dpt_status dpt_init_weights(struct dpt_trainer *t, struct dpt_init_result *result,
                                 struct dpt_error *err);
void dpt_init_release(struct dpt_init_result *result);

/* Logs for a person which tensors were loaded and which were not. resumed: the run resumes from a
 * checkpoint. */
void dpt_init_log(const struct dpt_trainer *t, const struct dpt_init_result *result, bool resumed);

#endif
