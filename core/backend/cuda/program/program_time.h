/*
 * program_time: the time of a program's launches on the device, as they are in a step's graph. For
 * the files that choose plans and profile.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_TIME_H
#define DPT_BACKEND_CUDA_PROGRAM_TIME_H

#include "core/backend/cuda/program/program.h"

typedef enum dpt_status dpt_cuda_enqueue(void *arg, struct dpt_error *err);

/* A launch repeated in a graph often enough to be timed: it costs what it does in a step's graph,
 * with the arrays in cache if they fit. Zero-initialise: {0}. */
struct dpt_cuda_repeat {
    dpt_cuda_enqueue *enqueue;
    void *arg;
    CUgraphExec exec;
    int repeats;
    float replay; /* ms, of the last replay */
    float spent;  /* ms, of all replays */
    float least;  /* ms of one launch in the fastest replay */
};

/* Captures the launches of enqueue(arg), which must have run before and be allowed in a capture;
 * replays them at least once, and waits. cuEventElapsedTime must be available. Errors: enqueue's,
 * RANK. */
enum dpt_status dpt_cuda_repeat_open(struct dpt_cuda_program *p, dpt_cuda_enqueue *enqueue,
                                     void *arg, struct dpt_cuda_repeat *r, struct dpt_error *err);
/* Replays once more, and waits. Errors: RANK. */
enum dpt_status dpt_cuda_repeat_time(struct dpt_cuda_program *p, struct dpt_cuda_repeat *r,
                                     struct dpt_error *err);
/* Whether another replay would make `least` more certain. rounds: replays so far. */
bool dpt_cuda_repeat_more(const struct dpt_cuda_repeat *r, int rounds);
void dpt_cuda_repeat_close(struct dpt_cuda_program *p, struct dpt_cuda_repeat *r);

#endif
