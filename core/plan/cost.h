/*
 * cost: what the cores that a job runs on can do, measured, and what a network needs, modelled
 * (machine.c); the least work that the parts of a step need, and how long the machine takes for it
 * (cost.c).
 *
 * Arithmetic is that of convolutions and dense layers, by their definition (taps that fall on
 * padding left out, no zeros made use of); everything else is counted by the bytes that must be
 * read and written at least once; a batch norm, which needs all values before it begins, reads
 * twice. A part's limit is the larger of its arithmetic at the machine's speed and its bytes at the
 * machine's bandwidth, taken at the size of what is moved: what a micro-batch needs may come from a
 * cache. So a limit is what a plain implementation at full speed would take, and one that leaves
 * work out may be faster.
 */
#ifndef DPT_PLAN_COST_H
#define DPT_PLAN_COST_H

#include "core/base/span.h"
#include "core/train/trainer.h"

enum { DPT_MACHINE_SIZES = 5 };

/* The speed of one thread while all threads of all ranks do the same work; the mean over the
 * threads. */
struct dpt_machine {
    double flops; /* floating point operations per second, in a matrix product of the backend, in
                   * the job's precision; */
    double fp32, bf16; /* and in these, bf16 if the CPU has instructions for it; else 0 */
    struct {
        double bytes;            /* bytes that the loop repeats over */
        double rate;             /* bytes read and written per second */
    } memory[DPT_MACHINE_SIZES]; /* the last one: main memory */
};

/* Collective; takes about half a second. What is in `machine` already (zeroes, or an earlier
 * measurement) stays if it is better. Errors: RANK. */
enum dpt_status dpt_machine_measure(struct dpt_trainer *t, struct dpt_machine *machine,
                                    struct dpt_error *err);

/* Bytes per second for data of this size, interpolated between the measured sizes. */
double dpt_machine_bandwidth(const struct dpt_machine *machine, double bytes);

/* The network between nodes, as LogGP sees it (Alexandrov et al. 1995): a message of n bytes takes
 * latency + 2 x overhead + n / bandwidth. */
struct dpt_fabric {
    double latency, overhead; /* seconds; overhead: of the CPU, at each end */
    double bandwidth;         /* bytes per second */
};

/* Seconds of an all-reduce of n floats over p nodes, by the better of recursive doubling and
 * Rabenseifner's algorithm (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
 * Operations in MPICH", 2005). add: seconds to add a float. */
double dpt_fabric_allreduce(const struct dpt_fabric *fabric, double n, int p, double add);
/* Seconds of an all-reduce under `reproducible` (core/comm/sums/internode.h). blocks: of the tree
 * that a node has; where it has several, some of them travel by themselves. */
double dpt_fabric_tree(const struct dpt_fabric *fabric, double n, int p, double blocks, double add);
/* Seconds in which every node gives each other one its slice of n floats, which adds them, or gets
 * all slices: half of an all-reduce. */
double dpt_fabric_slices(const struct dpt_fabric *fabric, double n, int p, double add);

enum { DPT_COST_MOVES = 2 };

/* The work of all ranks together, for a step. */
struct dpt_cost {
    double flop;
    struct {
        double bytes, footprint; /* footprint: bytes that one thread uses repeatedly */
    } move[DPT_COST_MOVES];
};

enum dpt_cost_pass { DPT_COST_FORWARD, DPT_COST_DATA, DPT_COST_WEIGHTS, DPT_COST_BACKWARD };

/* Whose work it is. */
struct dpt_workload {
    const struct dpt_graph *graph;
    const struct dpt_dataset *set; /* the training set; borrowed, as the graph is */
    double samples, micro;         /* samples per step; per micro-batch */
    double ranks, owners, threads; /* threads: of all ranks; owners: that divide the update */
    int slots;                     /* the optimizer's, the weights' average among them */
    bool norms;                    /* the optimizer takes norms of tensors */
    bool squares; /* the reduction computes the sums of squares: the norm adds up some of them */
};
/* The work of all ranks of a layout that trains, without `squares`. */
struct dpt_workload dpt_workload_of(const struct dpt_layout *layout, const struct dpt_dataset *set);
/* The work of a step that is one micro-batch of one rank. */
struct dpt_workload dpt_workload_alone(const struct dpt_workload *all, int32_t samples);
/* n nodes that are computed as one, on `samples` samples. BACKWARD: the gradients of data and
 * weights in one. wants_data: for BACKWARD, whether the data's gradient is computed. */
struct dpt_cost dpt_cost_of_nodes(const struct dpt_workload *w, const int32_t *nodes, int32_t n,
                                  enum dpt_cost_pass pass, bool wants_data);
/* The work of a part that is no layer, an enum dpt_span_what. Nothing for what is only waiting or
 * overhead. */
struct dpt_cost dpt_cost_of_part(const struct dpt_workload *w, int what);

/* Seconds of a step, its work spread evenly over all threads. by_bytes: out, whether the bytes take
 * longer than the arithmetic. */
double dpt_cost_limit(const struct dpt_cost *cost, const struct dpt_machine *machine,
                      int64_t threads, bool *by_bytes);
double dpt_cost_bytes(const struct dpt_cost *cost);

#endif
