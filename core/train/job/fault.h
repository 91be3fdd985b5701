/*
 * fault: makes a rank fail on purpose, to test how the other ranks handle it.
 *
 * A hook for tests, in every build. Only the environment sets it, and a run that finds it there
 * logs that at its start:
 *
 *     DPTRAIN_FAULT="ACTION:rank=R:step=S[:word=W][:exchange=E]"
 *
 * Rank R performs ACTION just before step S (from 1; 0: during setup), or within it just before its
 * exchange number E (from 1) of the statistics of batch norms (step/exchange.c):
 *
 *     kill          is killed
 *     exit          exits without telling the others
 *     stop          is stopped, as by SIGSTOP
 *     hang          sleeps for ever
 *     read          fails to read its samples
 *     memory        cannot allocate: the address space may not grow
 *     fail          fails with an error of its own
 *     flip-weight   flips a bit of weight number W
 *     flip-gradient flips a bit of number W in the gradient of its first micro-batch
 *
 * or, in an evaluation after step S, memory-evaluation, which does what memory does.
 */
#ifndef DPT_TRAIN_FAULT_H
#define DPT_TRAIN_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct dpt_fault {
    const struct dpt_fault_action *action; /* NULL: none, the usual case */
    int64_t rank, step, word, exchange;
};

/* From the environment. Errors: USAGE. */
enum dpt_status dpt_fault_read(struct dpt_fault *fault, struct dpt_error *err);

/* Whether the fault affects this rank in this step; whether it affects a gradient in host
 * memory. */
bool dpt_fault_strikes(const struct dpt_fault *fault, int rank, int64_t step);
bool dpt_fault_strikes_gradients(const struct dpt_fault *fault);

/* Performs the fault if it affects this rank in this step, or the evaluation after it, at this
 * point: the step's begin (0), an exchange by its number, or DPT_FAULT_EVALUATION. params: n
 * weights; n may be 0. Errors: the fault's own. */
enum { DPT_FAULT_EVALUATION = -1 };
enum dpt_status dpt_fault_strike(const struct dpt_fault *fault, int rank, int64_t step, int64_t at,
                                 float *params, int64_t n, struct dpt_error *err);

/* Performs a fault in the gradient of the rank's first micro-batch, of which the numbers
 * [begin, end) have just been computed. */
void dpt_fault_strike_gradient(const struct dpt_fault *fault, int rank, int64_t step,
                               float *gradient, int64_t begin, int64_t end);

#endif
