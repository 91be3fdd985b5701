/*
 * engine: who takes a trainer's steps.
 *
 * A row each, the first one that can. `device`: the backend takes whole steps in its device's
 * memory, and nobody has to see each gradient on the host (under `reproducible`, with log.hashes
 * or log.trace, or a fault that strikes a gradient somebody does), and the optimizer has a rule.
 * `host`: on arenas in host memory, by any backend. Whoever else works with a trainer calls
 * dpt_trainer_step and the functions beside it, and need not know which it is.
 */
#ifndef DPT_TRAIN_ENGINE_H
#define DPT_TRAIN_ENGINE_H

#include "core/train/trainer.h"

struct dpt_engine {
    /* Whether it can take the steps of this trainer, whose backend and data are chosen. */
    bool (*takes)(const struct dpt_trainer *t);
    /* Parameters, slots and gradients are on the device, the trainer's own arenas copies: what
     * steps gave is known after `settle`, the parameters after `fetch`. */
    bool on_device;

    /* Collective, once the program is open. Makes t->engine_state and what else all ranks have to
     * decide on together. All ranks get the same status. Errors: BAD_JOB, RANK. */
    enum dpt_status (*open)(struct dpt_trainer *t, struct dpt_error *err);
    /* Collective; also after a failed open. */
    void (*close)(struct dpt_trainer *t);
    /* On this rank alone. attach makes what belongs to the open program, detach frees it before the
     * program is closed, and tells whether there was anything. NULL: nothing belongs to it. Errors:
     * BAD_JOB (it does not fit), RANK. */
    enum dpt_status (*attach)(struct dpt_trainer *t, struct dpt_error *err);
    bool (*detach)(struct dpt_trainer *t);

    /* What the functions of these names in trainer.h do. */
    enum dpt_status (*step)(struct dpt_trainer *t, struct dpt_step_result *result,
                            struct dpt_error *err);
    enum dpt_status (*refresh)(struct dpt_trainer *t, struct dpt_error *err);
    enum dpt_status (*evaluate)(struct dpt_trainer *t, struct dpt_split *split,
                                struct dpt_metric_sums *total, struct dpt_error *err);
    double (*waited)(const struct dpt_trainer *t);
    /* NULL where every step is done and known when it returns. gradient: fetch that, too. */
    enum dpt_status (*settle)(struct dpt_trainer *t, struct dpt_step_result *since,
                              struct dpt_error *err);
    enum dpt_status (*peek)(struct dpt_trainer *t, struct dpt_step_result *since,
                            struct dpt_error *err);
    enum dpt_status (*fetch)(struct dpt_trainer *t, bool gradient, struct dpt_error *err);
    void (*rest)(struct dpt_trainer *t);
};

extern const struct dpt_engine dpt_engine_device, dpt_engine_host;
/* In the order in which they are asked; ends with NULL. */
extern const struct dpt_engine *const dpt_engines[];

/* Who is to take this trainer's steps; `host` where it has none. */
const struct dpt_engine *dpt_engine_choose(const struct dpt_trainer *t);

/* --- what every step has, whoever takes it (step.c) ------------------------------------------- */

/* What this rank tells the others with the step. failed: its part of it. */
void dpt_step_flags(const struct dpt_trainer *t, bool failed, float flags[DPT_FLAGS]);
/* What the ranks told, from the sums of their flags in t->reduction.reduced_flags. */
void dpt_step_read_flags(const struct dpt_trainer *t, struct dpt_step_result *result);

/* The rate of the next update. */
double dpt_step_rate(const struct dpt_trainer *t);

/* All samples of the step were counted, each once. Errors: INTERNAL. */
enum dpt_status dpt_step_check_count(const struct dpt_trainer *t, int64_t counted, int32_t total,
                                     struct dpt_error *err);
/* A failure of the next step says so: returns `status`, err with the step's number in front. */
enum dpt_status dpt_step_fail(const struct dpt_trainer *t, enum dpt_status status,
                              struct dpt_error *err);

/* A step of so many samples is done: t->progress but for its updates. */
void dpt_step_advance(struct dpt_trainer *t, int64_t samples);

#endif
