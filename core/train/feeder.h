/*
 * feeder: the samples of the next steps, in the memory that a device reads them from.
 *
 * A thread takes step after step from the loader, fills the rooms of a device's steps
 * (core/backend/steps.h) in turn and sends them there, so that the device never waits for samples
 * as long as they can be had fast enough. Where the samples lie on the device already, only their
 * numbers, targets and what was drawn to augment them go that way. What fails is told with the step
 * that it belongs to. The loader is this thread's from the first call of next to a pause. Calls
 * come from one thread.
 */
#ifndef DPT_TRAIN_FEEDER_H
#define DPT_TRAIN_FEEDER_H

#include "core/backend/steps.h"
#include "data/sets/loader.h"

struct dpt_feeder;

struct dpt_feeder_spec {
    struct dpt_loader *loader;     /* borrowed, as all here */
    const struct dpt_dataset *set; /* the loader's */
    int32_t micro;
    int rooms;
    const struct dpt_backend_steps *type;
    void *steps; /* whose rooms these are */
};

/* A step in a room. */
struct dpt_fed {
    struct dpt_step_view view;
    int room;
    int32_t micros; /* micro-batches in it */
};

/* Errors: RANK. */
enum dpt_status dpt_feeder_open(struct dpt_feeder **feeder, const struct dpt_feeder_spec *spec,
                                struct dpt_error *err);
/* Before the steps are closed. NULL is fine. */
void dpt_feeder_close(struct dpt_feeder *feeder);

/* The next step's room, once it is filled. It is the caller's until dpt_feeder_release. Errors: as
 * dpt_loader_fill, and the room's. */
enum dpt_status dpt_feeder_next(struct dpt_feeder *feeder, struct dpt_fed *fed,
                                struct dpt_error *err);
/* The step of the room that was given last is on its way, update included. */
void dpt_feeder_release(struct dpt_feeder *feeder);

/* Returns once the thread leaves loader and rooms alone; what was filled ahead is thrown away. Then
 * the loader has to be sought anew before dpt_feeder_next. */
void dpt_feeder_pause(struct dpt_feeder *feeder);

/* Seconds that dpt_feeder_next has waited, so far. */
double dpt_feeder_waited(const struct dpt_feeder *feeder);

#endif
