/*
 * gpus: what a person is told of the devices that a run computes on.
 */
#ifndef DPT_TRAIN_GPUS_H
#define DPT_TRAIN_GPUS_H

#include "core/state/metrics.h"
#include "core/train/trainer.h"

/* Of every rank, on rank 0. */
struct dpt_gpu {
    char bus[32], name[96], driver[96];
    int64_t memory;
    int count;  /* that this rank sees */
    bool first; /* of the ranks on this device */
};

/* Collective. *all: out, [ranks], the caller's to free; NULL where the backend has no devices.
 * Errors: RANK. */
enum dpt_status dpt_gpus_gather(const struct dpt_trainer *t, struct dpt_gpu **all,
                                struct dpt_error *err);
/* Rank 0: the header's lines; the members of the `run` event. */
void dpt_gpus_log(const struct dpt_trainer *t, const struct dpt_gpu *all);
void dpt_gpus_metrics(const struct dpt_trainer *t, const struct dpt_gpu *all,
                      struct dpt_metrics *m);

#endif
