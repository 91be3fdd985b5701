/*
 * fault: breaks a rank on purpose, to test how the other ranks handle it.
 *
 * A hook for debugging and tests, in every build, controlled by the environment alone, and logged
 * at the start of every run that finds it there:
 *
 *     DPTRAIN_FAULT="ACTION:rank=R:step=S[:word=W]"
 *
 * Rank R does ACTION just before step S (from 1; 0: while it sets the job up):
 *
 *     kill          is killed
 *     exit          leaves without a word to the others
 *     stop          is stopped, as by SIGSTOP
 *     hang          sleeps for ever
 *     read          fails to read its samples
 *     memory        gets no more memory: the address space may not grow
 *     fail          meets an error that is its own
 *     flip-weight   has a bit of weight number W flipped
 *     flip-gradient has a bit flipped in number W of the gradient of its first micro-batch
 */
#ifndef DPT_TRAIN_FAULT_H
#define DPT_TRAIN_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct dpt_fault {
    const struct dpt_fault_action *action; /* NULL: none, the usual case */
    int64_t rank, step, word;
};

/* From the environment. Errors: USAGE. */
enum dpt_status dpt_fault_read(struct dpt_fault *fault, struct dpt_error *err);

/* Whether the fault hits this rank in this step; and whether it hits a gradient in host memory. */
bool dpt_fault_strikes(const struct dpt_fault *fault, int rank, int64_t step);
bool dpt_fault_strikes_gradients(const struct dpt_fault *fault);

/* Plays the fault if it hits this rank in this step. params: n weights; n may be 0. Errors: the one
 * that the fault plays. */
enum dpt_status dpt_fault_strike(const struct dpt_fault *fault, int rank, int64_t step,
                                 float *params, int64_t n, struct dpt_error *err);

/* Plays a fault that hits the gradient of the rank's first micro-batch, which was just computed. */
void dpt_fault_strike_gradient(const struct dpt_fault *fault, int rank, int64_t step,
                               float *gradient, int64_t n);

#endif
