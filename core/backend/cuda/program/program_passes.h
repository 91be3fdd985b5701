/*
 * program_passes: programs over the host's arenas: one for each micro-batch in flight, their passes
 * over ranges of nodes (struct dpt_pass), and what these share with the backend's table. For
 * program*.c only.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_PASSES_H
#define DPT_BACKEND_CUDA_PROGRAM_PASSES_H

#include "core/backend/cuda/program/program.h"

/* --- program_batches.c ------------------------------------------------------------------------ */

/* Waits until no other thread uses the program, and makes the context the calling thread's. Errors,
 * as of the others: RANK. */
enum dpt_status dpt_cuda_lock(struct dpt_cuda_program *p, struct dpt_error *err);
/* Lets the next thread in; with a failure it waits for the device first, so that no copy from or to
 * the host's memory is left. */
void dpt_cuda_unlock(struct dpt_cuda_program *p, enum dpt_status status);
/* Waits for everything enqueued. */
enum dpt_status dpt_cuda_wait(struct dpt_cuda_program *p, struct dpt_error *err);
/* Marks the span that ends now, while a profile is recorded. */
void dpt_cuda_mark(struct dpt_cuda_program *p, int what);
/* Copies a sub-batch to pinned memory, and enqueues the copy from there to the device. Rows past
 * the last sample are set to zero. */
enum dpt_status dpt_cuda_send_sub_batch(struct dpt_cuda_program *p, const struct dpt_batch *batch,
                                        int32_t sub_batch, struct dpt_error *err);
/* Enqueues the copy of the metric sums to pinned memory, and clears them. */
enum dpt_status dpt_cuda_fetch_metric_sums(struct dpt_cuda_program *p, int32_t sub_batch,
                                           struct dpt_error *err);
void dpt_cuda_add_metric_sums(struct dpt_metric_sums *to, const struct dpt_cuda_metric_sums *from);

/* --- program_sums.c --------------------------------------------------------------------------- */

/* Bytes in which the program adds gradients for spec->adds, if the memory is large enough. */
int64_t dpt_cuda_sums_bytes(const struct dpt_program_spec *spec);
/* Allocates them, or as many of them as leave room for others; to be called last. Errors: RANK. */
enum dpt_status dpt_cuda_hold_sums(struct dpt_cuda_program *p, struct dpt_error *err);
/* Implements dpt_backend.adds. */
int32_t dpt_cuda_adds(const void *program);
/* Enqueues the addition of floats [begin, end) of p->gradient, multiples of 4, to those of the
 * `number` micro-batches or sub-batches before it. last: nothing follows it. *sum: out, with the
 * last one, the arena in which their sum is. Errors: RANK. */
enum dpt_status dpt_cuda_add_gradient(struct dpt_cuda_program *p, int32_t number, bool last,
                                      size_t begin, size_t end, float **sum, struct dpt_error *err);

/* --- program_stage.c -------------------------------------------------------------------------- */

static inline bool dpt_cuda_is_stage(const struct dpt_cuda_program *p)
{
    return p->spec.last > 0;
}

/* Allocates the pinned memory of a stage's edges. Errors, as of the others: RANK. */
enum dpt_status dpt_cuda_hold_edges(struct dpt_cuda_program *p, struct dpt_error *err);
/* Enqueues the copy of the value at an edge, or of its gradient, from the device; or, if another
 * stage gave it, to the device. Does nothing if there is no such edge. */
enum dpt_status dpt_cuda_move_edge(struct dpt_cuda_program *p, enum dpt_cuda_edge edge,
                                   bool gradient, struct dpt_error *err);
/* Enqueues the copy of the outputs for `rows` samples of an evaluation to pinned memory. */
enum dpt_status dpt_cuda_fetch_outputs(struct dpt_cuda_program *p, int64_t rows,
                                       struct dpt_error *err);
/* As dpt_backend.value, of one micro-batch's program. */
float *dpt_cuda_stage_value(const struct dpt_cuda_program *p, int32_t node, bool gradient,
                            size_t *floats);

/* --- program_passes.c ------------------------------------------------------------------------- */

/* Implement dpt_backend's open, close, measure, forward, loss, backward and value. */
enum dpt_status dpt_cuda_programs_open(const struct dpt_program_spec *spec, void **program,
                                       struct dpt_error *err);
void dpt_cuda_programs_close(void *program);
enum dpt_status dpt_cuda_programs_measure(const struct dpt_program_spec *spec,
                                          struct dpt_program_bytes *bytes, struct dpt_error *err);
/* Searches the outputs of nodes [first, last) for the last sub-batch's `count` samples, in all of
 * them at once, and their parameters; *bad: set if it is not yet. A tensor that is shared by a
 * layer and the ReLU after it counts as the layer's. */
enum dpt_status dpt_cuda_find_nonfinite(struct dpt_cuda_program *p, int32_t count, int32_t first,
                                        int32_t last, struct dpt_nonfinite *bad,
                                        struct dpt_error *err);
enum dpt_status dpt_cuda_pass_forward(void *program, int worker, const struct dpt_pass *pass,
                                      struct dpt_error *err);
enum dpt_status dpt_cuda_pass_loss(void *program, int worker, const struct dpt_pass *pass,
                                   struct dpt_metric_sums *metric_sums, struct dpt_error *err);
enum dpt_status dpt_cuda_pass_backward(void *program, int worker, const struct dpt_pass *pass,
                                       struct dpt_error *err);
float *dpt_cuda_pass_value(const void *program, int worker, int flight, int32_t node, bool gradient,
                           size_t *floats);

#endif
