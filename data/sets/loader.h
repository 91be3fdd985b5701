/*
 * loader: a rank's samples of each step, ready when the step wants them.
 *
 * Where the data set is in memory a step is only a list of sample numbers, and filling a
 * micro-batch gathers from memory. Otherwise one thread reads ahead, dpt_loader_ahead() steps, with
 * pread on contiguous shards (HDF5 calls on others), sorted by file position. One thread calls
 * next; any thread may fill micro-batches of the current step.
 */
#ifndef DPT_DATA_LOADER_H
#define DPT_DATA_LOADER_H

#include "core/backend/backend.h"
#include "core/backend/steps.h"
#include "data/sets/batch.h"
#include "data/sets/sampler.h"

struct dpt_loader;

/*
 * How many steps are read ahead, of which a rank stores so many bytes: 3 to 16, in 8 MiB where more
 * than 3 fit. Where the ranks keep all cores busy the reading thread gets one for some milliseconds
 * now and then: steps shorter than that have to be there by the dozen.
 */
int dpt_loader_ahead(double step_bytes);

/* A step as one rank sees it. */
struct dpt_step_view {
    int64_t epoch, step; /* step within the epoch */
    int32_t first, last; /* this rank's micro-batches of the step */
    int32_t total;       /* samples of the step on all ranks */
    int entry;           /* private to the loader */
};

/* form and sampler are copied; what form borrows is borrowed. rank, ranks: who this is. Errors:
 * BAD_JOB (an epoch has no step; no images to augment), RANK. */
enum dpt_status dpt_loader_open(struct dpt_loader **loader, const struct dpt_batch_form *form,
                                const struct dpt_sampler *sampler, int rank, int ranks,
                                struct dpt_error *err);
/* One for dpt_loader_fill_labels alone: it reads no samples. */
enum dpt_status dpt_loader_open_labels(struct dpt_loader **loader,
                                       const struct dpt_batch_form *form,
                                       const struct dpt_sampler *sampler, int rank, int ranks,
                                       struct dpt_error *err);
void dpt_loader_close(struct dpt_loader *loader);

/* The next call of dpt_loader_next gives this epoch and step; reading ahead starts now and
 * continues over epochs. */
enum dpt_status dpt_loader_seek(struct dpt_loader *loader, int64_t epoch, int64_t step,
                                struct dpt_error *err);

/* Waits for the next step's samples, releases the last one's. Errors: BAD_DATA, IO (names the file
 * and sample). */
enum dpt_status dpt_loader_next(struct dpt_loader *loader, struct dpt_step_view *view,
                                struct dpt_error *err);

/* The number of this rank's k-th micro-batch of the step. */
int32_t dpt_loader_nth(const struct dpt_loader *loader, const struct dpt_step_view *view,
                       int32_t k);

/*
 * Fills a micro-batch of the step: normalised, augmented NCHW floats, targets, sample numbers; rows
 * past the count are zero. batch: out; seed and step are left as they are. Any thread, with a
 * buffer of its own. Errors: BAD_DATA (a value that is not finite; names the sample).
 */
enum dpt_status dpt_loader_fill(const struct dpt_loader *loader, const struct dpt_step_view *view,
                                int32_t micro_batch, struct dpt_batch_buffer *buffer,
                                struct dpt_batch *batch, struct dpt_error *err);

/*
 * Fills a micro-batch whose inputs the device reads from its own copy of the data set: sample
 * numbers, labels, targets and weights alone. buffer: all members but `input` and `scratch` are
 * filled, and must have room (dpt_batch_buffer_widen). move: [micro], the random augmentation of
 * each sample, all zero where there is none; NULL: not wanted. *count: out.
 */
void dpt_loader_fill_labels(const struct dpt_loader *loader, const struct dpt_step_view *view,
                            int32_t micro_batch, struct dpt_batch_buffer *buffer,
                            struct dpt_steps_move *move, int32_t *count);

/* Fills a micro-batch as dpt_loader_fill does, by `parts` threads, each of which fills its part of
 * the rows of one buffer, which has room; all threads must have returned before the batch is used.
 * Every thread gets the whole batch. scratch: the thread's own, of dpt_batch_scratch floats. */
enum dpt_status dpt_loader_fill_part(const struct dpt_loader *loader,
                                     const struct dpt_step_view *view, int32_t micro_batch,
                                     int part, int parts, struct dpt_batch_buffer *buffer,
                                     float *scratch, struct dpt_batch *batch,
                                     struct dpt_error *err);
/* From now on the thread that reads ahead, if there is one, records its reads in `spans`; NULL ends
 * the recording. Borrowed. */
void dpt_loader_observe(struct dpt_loader *loader, struct dpt_spans *spans);

/* Seconds that dpt_loader_next has waited for reading, so far. */
double dpt_loader_waited(const struct dpt_loader *loader);

#endif
