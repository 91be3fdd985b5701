/*
 * cost: the least work that the parts of a step need, and how long the machine takes for it.
 *
 * Arithmetic is that of convolutions and dense layers, by their definition (taps that fall on
 * padding left out, no zeros made use of); everything else is counted by the bytes that must be
 * read and written at least once. A part's limit is the larger of its arithmetic at the machine's
 * speed and its bytes at the machine's bandwidth, taken at the size of what is moved: what a
 * micro-batch needs may come from a cache. So a limit is what a plain implementation at full speed
 * would take, and one that leaves work out may be faster.
 */
#ifndef DPT_PLAN_COST_H
#define DPT_PLAN_COST_H

#include "core/base/span.h"
#include "core/plan/machine.h"

enum { DPT_COST_MOVES = 2 };

/* The work of all ranks together, for a step. */
struct dpt_cost {
    double flop;
    struct {
        double bytes, footprint; /* footprint: bytes that one thread comes back to */
    } move[DPT_COST_MOVES];
};

enum dpt_cost_pass { DPT_COST_FORWARD, DPT_COST_DATA, DPT_COST_WEIGHTS, DPT_COST_BACKWARD };

/* Nodes `first` to `last`, a chain that is computed as one, on `samples` samples. BACKWARD: the
 * gradients of data and weights in one. wants_data: for BACKWARD, whether that of the data is
 * among them. */
struct dpt_cost dpt_cost_of_nodes(const struct dpt_trainer *t, int32_t first, int32_t last,
                                  enum dpt_cost_pass pass, bool wants_data);
/* The work of a part that is no layer, an enum dpt_span_what. Nothing for what is only waiting or
 * overhead. */
struct dpt_cost dpt_cost_of_part(const struct dpt_trainer *t, int what);

/* Seconds of a step, its work spread evenly over all threads. by_bytes: out, whether the bytes take
 * longer than the arithmetic. */
double dpt_cost_limit(const struct dpt_cost *cost, const struct dpt_machine *machine,
                      int64_t threads, bool *by_bytes);
double dpt_cost_bytes(const struct dpt_cost *cost);

#endif
