/*
 * engine: how a trainer's steps are computed.
 *
 * Each engine is a row. `device`: the backend takes whole steps in its device's memory, where the
 * layout says so (dpt_layout.on_device). `host`: steps on arenas in host memory, with any backend.
 * Other code calls dpt_trainer_step and the functions beside it, whatever the engine is.
 */
#ifndef DPT_TRAIN_ENGINE_H
#define DPT_TRAIN_ENGINE_H

#include "core/train/trainer.h"

struct dpt_engine {
    /* Collective, once the program is open. Creates t->engine_state and whatever else all ranks
     * must decide together. All ranks get the same status. Errors: BAD_JOB, RANK. */
    enum dpt_status (*open)(struct dpt_trainer *t, struct dpt_error *err);
    /* Collective; also after a failed open. */
    void (*close)(struct dpt_trainer *t);
    /* On this rank alone. attach creates what depends on the open program; detach frees it before
     * the program is closed, and returns whether there was anything. Optional: nothing depends on
     * it. Errors: BAD_JOB (it does not fit), RANK. */
    enum dpt_status (*attach)(struct dpt_trainer *t, struct dpt_error *err);
    bool (*detach)(struct dpt_trainer *t);

    /* Implement the functions of the same names in trainer.h. */
    enum dpt_status (*step)(struct dpt_trainer *t, struct dpt_step_result *result,
                            struct dpt_error *err);
    enum dpt_status (*refresh)(struct dpt_trainer *t, struct dpt_error *err);
    double (*waited)(const struct dpt_trainer *t); /* seconds that steps have waited for samples */
    /* NULL if each step is complete when `step` returns. Else parameters, slots and gradients are
     * on the device, and the trainer's arenas are copies: results of steps are known after
     * `settle`, parameters after `fetch`. gradient: also fetch the gradient. */
    enum dpt_status (*settle)(struct dpt_trainer *t, struct dpt_step_result *since,
                              struct dpt_error *err);
    enum dpt_status (*peek)(struct dpt_trainer *t, struct dpt_step_result *since,
                            struct dpt_error *err);
    enum dpt_status (*fetch)(struct dpt_trainer *t, bool gradient, struct dpt_error *err);
    void (*stop_prefetching)(struct dpt_trainer *t);
    /* Collective. Gathers a unit's weights for the next pass of an evaluation, where devices keep
     * slices of them (dpt_layout.sliced_there). Errors: RANK. */
    enum dpt_status (*gather)(struct dpt_trainer *t, int unit, struct dpt_error *err);
};

extern const struct dpt_engine dpt_engine_device, dpt_engine_host;

/* --- what the steps of every engine need (step.c) --------------------------------------------- */

/* Says in the batch where n micro-batches from i on, of a run [first, end), are in the sum that the
 * backend makes of their gradients: `before` of them are in it already (backend.h). */
void dpt_step_sum(const struct dpt_trainer *t, int32_t all, int32_t first, int32_t end, int32_t i,
                  int32_t n, struct dpt_batch *batch);

/* Fills in this rank's flags. failed: whether its part of the step failed. */
void dpt_step_flags(const struct dpt_trainer *t, bool failed, float flags[DPT_FLAGS]);
/* Sets the requests in `result` from the summed flags in t->reduction.reduced_flags. */
void dpt_step_read_flags(const struct dpt_trainer *t, struct dpt_step_result *result);

/* The learning rate of the next update. */
double dpt_step_rate(const struct dpt_trainer *t);

/* Checks that each sample of the step was counted once. Errors: INTERNAL. */
enum dpt_status dpt_step_check_count(const struct dpt_trainer *t, int64_t counted, int32_t total,
                                     struct dpt_error *err);
/* Puts the number of the next step in front of err's message; returns `status`. */
enum dpt_status dpt_step_fail(const struct dpt_trainer *t, enum dpt_status status,
                              struct dpt_error *err);

/* Advances t->progress by a step of so many samples; the engine counts updates. */
void dpt_step_advance(struct dpt_trainer *t, int64_t samples);

/*
 * Collective, after a step whose reduced gradient or loss is not finite and before the next one:
 * finds the rank, layer and sample where that began, fills err and returns FAILED. view: the
 * step's. gradient: memory for a gradient of this rank.
 */
enum dpt_status dpt_trainer_find_nonfinite(struct dpt_trainer *t, const struct dpt_step_view *view,
                                           float *gradient, struct dpt_error *err);

#endif
