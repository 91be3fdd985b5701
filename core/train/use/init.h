/*
 * init: a run that begins with weights from a file instead of random ones.
 */
#ifndef DPT_TRAIN_INIT_H
#define DPT_TRAIN_INIT_H

#include "core/base/str.h"
#include "core/train/trainer.h"

/* The result of the initialisation; zero-initialise, release. */
struct dpt_init_result {
    const char *format;   /* of the file; NULL: nothing was read */
    const char *prefix;   /* that its names had in front, "" where none */
    int32_t from, random; /* tensors from the file, and as they would have been without it */
    size_t of_no_layer;   /* of the file, that the model has no place for */
    struct dpt_str missing, unused; /* lists of the last two, a line each */
};

/*
 * Collective over the world, before the first step. Does what the job's `init` says, or nothing
 * where it names no file. Rank 0 reads; all get the same weights. result: on rank 0. Errors:
 * BAD_DATA (the file is missing, damaged or does not fit; all that does not fit is told), USAGE,
 * IO, RANK.
 */
enum dpt_status dpt_init_weights(struct dpt_trainer *t, struct dpt_init_result *result,
                                 struct dpt_error *err);
void dpt_init_release(struct dpt_init_result *result);

/* Logs for a person what became of which tensor. resumed: the run goes on from a checkpoint. */
void dpt_init_log(const struct dpt_trainer *t, const struct dpt_init_result *result, bool resumed);

#endif
