/*
 * machine: what the cores that a job runs on can do, measured; and what a network needs, modelled.
 */
#ifndef DPT_PLAN_MACHINE_H
#define DPT_PLAN_MACHINE_H

#include "core/train/trainer.h"

enum { DPT_MACHINE_SIZES = 5 };

/* The speed of one thread while all threads of all ranks do the same work; the mean over the
 * threads. */
struct dpt_machine {
    double flops; /* floating point operations a second, in a matrix product of the backend */
    struct {
        double bytes;            /* that the loop goes over again and again */
        double rate;             /* bytes read and written a second */
    } memory[DPT_MACHINE_SIZES]; /* the last one: main memory */
};

/* Collective; takes about half a second. What is in `machine` already (zeroes, or an earlier
 * measurement) stays where it is better. Errors: RANK. */
enum dpt_status dpt_machine_measure(struct dpt_trainer *t, struct dpt_machine *machine,
                                    struct dpt_error *err);

/* Bytes a second for data of this size, interpolated between the measured sizes. */
double dpt_machine_bandwidth(const struct dpt_machine *machine, double bytes);

/* The network between nodes, as LogGP sees it (Alexandrov et al. 1995): a message of n bytes takes
 * latency + 2 x overhead + n / bandwidth. */
struct dpt_fabric {
    double latency, overhead; /* seconds; overhead: of the processor, at each end */
    double bandwidth;         /* bytes a second */
};

/* Seconds of an all-reduce of n floats over p nodes, by the better of recursive doubling and
 * Rabenseifner's algorithm (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
 * Operations in MPICH", 2005). add: seconds to add a float. */
double dpt_fabric_allreduce(const struct dpt_fabric *fabric, double n, int p, double add);
/* The same for `reproducible` (core/comm/deterministic_allreduce.h). pairs: each rank has one block; else slices go
 * straight to where they are added. */
double dpt_fabric_tree(const struct dpt_fabric *fabric, double n, int p, bool pairs, double add);

#endif
