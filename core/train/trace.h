/*
 * trace: a picture of a run, for Chrome's about:tracing and Perfetto.
 *
 * With log.trace every thread of every rank keeps the newest of its spans (core/base/span.h), so
 * many that all ranks' together have a bound; at the run's end, also where it was stopped on
 * request, they are gathered in FOLDER/trace.json: the Trace Event Format's array, a process a
 * rank, a thread a thread, complete events ("ph": "X") in microseconds since the trace began on
 * rank 0. Steps hold phases, phases hold layers. The clocks of other nodes are compared with rank
 * 0's at both ends, and what lies between is set right in proportion; how far off that may be, and
 * how many older spans were dropped, is in the processes' labels. A run that goes on later writes
 * its own trace over this one.
 */
#ifndef DPT_TRAIN_TRACE_H
#define DPT_TRAIN_TRACE_H

#include "core/train/profile.h"

struct dpt_trace;
struct dpt_saver;

/* Collective. Turns it on for the trainer's threads, its loader and the saver (NULL: none here). t
 * is borrowed. Errors: RANK. */
enum dpt_status dpt_trace_open(struct dpt_trace **trace, struct dpt_trainer *t,
                               struct dpt_saver *saver, struct dpt_error *err);
/* Turns it off. NULL is fine. */
void dpt_trace_close(struct dpt_trace *trace);

/* Collective, at the end: turns it off and writes the file, by rank 0. Errors: IO, RANK. */
enum dpt_status dpt_trace_write(struct dpt_trace *trace, const char *folder, struct dpt_error *err);

#endif
