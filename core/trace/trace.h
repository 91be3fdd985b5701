/*
 * trace: the timeline of a run, for Chrome's about:tracing and Perfetto.
 *
 * With log.trace every thread of every rank keeps the newest of its spans (core/base/span.h), so
 * many that all ranks' together have a bound; at the run's end, also where it was stopped on
 * request, they are gathered in FOLDER/trace.json: the Trace Event Format's array, a process per
 * rank, a thread per thread, complete events ("ph": "X") in microseconds since the trace began on
 * rank 0. Steps hold phases, phases hold layers. The clocks of other nodes are compared with rank
 * 0's at both ends, and what lies between is set right in proportion; how far off that may be, and
 * how many older spans were dropped, is in the processes' labels. A run that is resumed later
 * writes its own trace over this one.
 */
#ifndef DPT_TRACE_TRACE_H
#define DPT_TRACE_TRACE_H

#include "core/backend/backend.h"
#include "core/base/log.h"
#include "core/trace/profile.h"

struct dpt_trace;

/* Whose spans it keeps; pointers are borrowed. */
struct dpt_trace_spec {
    const struct dpt_comm *comm;
    struct dpt_log *log;
    const struct dpt_graph *graph;
    const struct dpt_backend *backend;
    void *program;
    int threads;         /* of this rank */
    int64_t all_threads; /* of all ranks */
};

/* Collective. Errors: RANK. */
enum dpt_status dpt_trace_open(struct dpt_trace **trace, const struct dpt_trace_spec *spec,
                               struct dpt_error *err);
/* NULL is fine. */
void dpt_trace_close(struct dpt_trace *trace);

/* Where the threads are to tell their spans, while they are observed. */
struct dpt_profile *dpt_trace_profile(struct dpt_trace *trace);

/* Collective, at the end, when nothing is observed any more: writes the file, by rank 0. Errors:
 * IO, RANK. */
enum dpt_status dpt_trace_write(struct dpt_trace *trace, const char *folder, struct dpt_error *err);

#endif
