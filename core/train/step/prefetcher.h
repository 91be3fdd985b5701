/*
 * prefetcher: the samples of the next steps, in the memory that a device reads them from.
 *
 * A thread takes step after step from the loader, fills the staging buffers of a device's steps
 * (core/backend/steps.h) round-robin and sends them to the device, so that the device does not wait
 * for samples as long as they can be read fast enough. Samples that must be decoded are filled by
 * several threads. If the samples are on the device already, it sends only their numbers, targets
 * and what was drawn to augment them. A failure is returned with the step that it belongs to. The
 * loader belongs to this thread from the first call of next to a pause. All functions are called by
 * one thread.
 */
#ifndef DPT_TRAIN_PREFETCHER_H
#define DPT_TRAIN_PREFETCHER_H

#include "core/backend/steps.h"
#include "data/sets/loader.h"

struct dpt_prefetcher;

struct dpt_prefetcher_spec {
    struct dpt_loader *loader;         /* borrowed, as all here */
    const struct dpt_batch_form *form; /* the loader's */
    int32_t micro;
    int threads; /* threads that fill a staging buffer together, at least 1 */
    int staging_buffers;
    const struct dpt_backend_steps *type;
    void *steps; /* whose staging buffers these are */
};

/* A step whose samples are in a staging buffer. */
struct dpt_prefetched {
    int staging_buffer;
    int32_t micros; /* micro-batches in it */
};

/* Errors: RANK. */
enum dpt_status dpt_prefetcher_open(struct dpt_prefetcher **prefetcher,
                                    const struct dpt_prefetcher_spec *spec, struct dpt_error *err);
/* To be called before the steps are closed. NULL is fine. */
void dpt_prefetcher_close(struct dpt_prefetcher *prefetcher);

/* Waits until the next step's staging buffer is filled, and gives it to the caller until
 * dpt_prefetcher_release. Errors: as dpt_loader_fill, and the staging buffer's. */
enum dpt_status dpt_prefetcher_next(struct dpt_prefetcher *prefetcher,
                                    struct dpt_prefetched *prefetched, struct dpt_error *err);
/* Returns the staging buffers that were given, except the last `held` ones: all of their steps, the
 * updates included, has been enqueued. */
void dpt_prefetcher_release(struct dpt_prefetcher *prefetcher, int held);

/* Waits until the thread uses neither loader nor staging buffers, and discards what was filled
 * ahead. The loader must be positioned again (dpt_loader_seek) before dpt_prefetcher_next. */
void dpt_prefetcher_pause(struct dpt_prefetcher *prefetcher);

/* Seconds that dpt_prefetcher_next has waited, so far. */
double dpt_prefetcher_waited(const struct dpt_prefetcher *prefetcher);

#endif
