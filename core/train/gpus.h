/*
 * gpus: what a run logs about the devices that it computes on.
 */
#ifndef DPT_TRAIN_GPUS_H
#define DPT_TRAIN_GPUS_H

#include "core/state/metrics.h"
#include "core/train/trainer.h"

/* The device of a rank, as rank 0 knows it. */
struct dpt_gpu {
    char bus[32], name[96], driver[96];
    int64_t memory;
    int count;  /* that this rank sees */
    bool first; /* of the ranks on this device */
};

/* Collective. *all: out, [ranks], the caller's to free; NULL where the backend has no devices.
 * Errors: RANK. */
enum dpt_status dpt_gpus_allgather(const struct dpt_trainer *t, struct dpt_gpu **all,
                                   struct dpt_error *err);
/* Rank 0: logs the header's lines; adds members to the `run` event. */
void dpt_gpus_log(const struct dpt_trainer *t, const struct dpt_gpu *all);
void dpt_gpus_metrics(const struct dpt_trainer *t, const struct dpt_gpu *all,
                      struct dpt_metrics *m);

#endif
