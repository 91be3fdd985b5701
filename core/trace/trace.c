#include "core/trace/trace.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/memory.h"

/* Spans kept of a thread: at most so many, and of all threads of all ranks together. */
enum { MOST_EVENTS = 1 << 16, LEAST_EVENTS = 1 << 10, ALL_EVENTS = 1 << 21 };

/* This rank's clock against rank 0's, at one moment: nanoseconds. */
struct compared {
    double at, offset, bound;
};

struct dpt_trace {
    struct dpt_trace_spec spec;
    struct dpt_profile profile;
    struct compared begin, end;
    double origin; /* rank 0's clock when the trace began */
};

/* A span on the common axis. */
struct event {
    double start, end; /* microseconds */
    int32_t what, step;
};

/* What a rank sends before */
struct head {
    int64_t events, dropped;
    int32_t threads; /* of its pool */
    double bound;    /* nanoseconds */
};

static enum dpt_status compare_clocks(const struct dpt_comm *comm, struct compared *c,
                                      struct dpt_error *err)
{
    c->at = (double)dpt_now_ns();
    return dpt_profile_offset(comm, &c->offset, &c->bound, err);
}

static uint64_t ring_size(int64_t threads)
{
    uint64_t n = MOST_EVENTS;

    while (n > LEAST_EVENTS && n * (uint64_t)threads > ALL_EVENTS)
        n /= 2;
    return n;
}

enum dpt_status dpt_trace_open(struct dpt_trace **result, const struct dpt_trace_spec *spec,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &spec->comm->world;
    struct dpt_trace *trace = NULL;

    *result = NULL;
    status = DPT_ALLOCATE(trace, 1, "a trace", err);
    if (status == DPT_OK)
        status = dpt_profile_open(&trace->profile, spec->threads, spec->graph->n_nodes,
                                  ring_size(spec->all_threads), err);
    DPT_TRY(dpt_group_agree(world, status, err));
    trace->spec = *spec;
    DPT_TRY(compare_clocks(spec->comm, &trace->begin, err));
    trace->origin = (double)trace->profile.rate.ns[0];
    DPT_TRY(dpt_group_broadcast(world, 0, &trace->origin, sizeof trace->origin, err));
    *result = trace;
out:
    if (status != DPT_OK)
        dpt_trace_close(trace);
    return status;
}

void dpt_trace_close(struct dpt_trace *trace)
{
    if (trace == NULL)
        return;
    dpt_profile_close(&trace->profile);
    dpt_free(trace);
}

struct dpt_profile *dpt_trace_profile(struct dpt_trace *trace)
{
    return &trace->profile;
}

/* --- the common axis -------------------------------------------------------------------------- */

static double axis(const struct dpt_trace *trace, uint64_t tick)
{
    const double ns = dpt_tick_ns(&trace->profile.rate, tick);
    const double span = trace->end.at - trace->begin.at;
    const double part = span > 0 ? (ns - trace->begin.at) / span : 0;
    const double offset = trace->begin.offset + part * (trace->end.offset - trace->begin.offset);

    return (ns + offset - trace->origin) * 1e-3;
}

/* The spans that a thread's ring still holds, the oldest first. */
static void collect(const struct dpt_trace *trace, const struct dpt_spans *s, struct head *head,
                    struct event *events)
{
    const uint64_t kept = s->count < s->capacity ? s->count : s->capacity;

    head->events = (int64_t)kept;
    head->dropped = (int64_t)(s->count - kept);
    for (uint64_t i = 0; i < kept; i++) {
        const struct dpt_span *span = &s->ring[(s->count - kept + i) & (s->capacity - 1)];

        events[i] = (struct event){axis(trace, span->start), axis(trace, span->end), span->what,
                                   span->step};
    }
}

/* --- the file --------------------------------------------------------------------------------- */

static const char *const names[DPT_SPAN_NODES] = {
    [DPT_SPAN_OTHER] = "other",
    [DPT_SPAN_WAIT_THREADS] = "waiting for threads",
    [DPT_SPAN_WAIT_LOADER] = "waiting for samples",
    [DPT_SPAN_WAIT_STAGE] = "waiting for another stage",
    [DPT_SPAN_DATA] = "data",
    [DPT_SPAN_LOSS] = "loss",
    [DPT_SPAN_REDUCTION] = "reduction",
    [DPT_SPAN_NORM] = "gradient norm",
    [DPT_SPAN_OPTIMIZER] = "optimizer",
    [DPT_SPAN_LAYOUTS] = "weight layouts",
    [DPT_SPAN_STEP] = "step",
    [DPT_SPAN_COMPUTE] = "compute",
    [DPT_SPAN_EVALUATE] = "evaluate",
    [DPT_SPAN_SAVE] = "save",
    [DPT_SPAN_CHECK] = "compare replicas",
    [DPT_SPAN_READ] = "read",
};

static const char *const passes[DPT_SPAN_PASSES] = {
    [DPT_PASS_FORWARD] = "forward",
    [DPT_PASS_WEIGHTS] = "backward-weights",
    [DPT_PASS_BACKWARD] = "backward",
};

static const char *category(int what)
{
    if (what >= DPT_SPAN_NODES)
        return "layer";
    if (what == DPT_SPAN_WAIT_THREADS || what == DPT_SPAN_WAIT_LOADER ||
        what == DPT_SPAN_WAIT_STAGE)
        return "waiting";
    return what >= DPT_SPAN_STEP ? "phase" : "part";
}

/* "conv1+relu1 forward": what is computed in a pass of a node. */
static void put_pass(const struct dpt_trace_spec *spec, int32_t node, enum dpt_span_pass pass,
                     struct dpt_str *name)
{
    const struct dpt_backend *b = spec->backend;
    bool first = true;

    for (int32_t i = 0; i < spec->graph->n_nodes; i++) {
        if ((b->runs_in != NULL ? b->runs_in(spec->program, i, pass != DPT_PASS_FORWARD) : i) !=
            node)
            continue;
        dpt_str_printf(name, "%s%s", first ? "" : "+", spec->graph->nodes[i].name);
        first = false;
    }
    dpt_str_printf(name, " %s", passes[pass]);
}

static void put_name(const struct dpt_trace_spec *spec, int what, struct dpt_json *j)
{
    struct dpt_str name = {0};

    if (what < DPT_SPAN_NODES) {
        dpt_json_text(j, "name", names[what]);
        return;
    }
    what -= DPT_SPAN_NODES;
    put_pass(spec, what / DPT_SPAN_PASSES, (enum dpt_span_pass)(what % DPT_SPAN_PASSES), &name);
    j->text.failed = j->text.failed || name.failed;
    dpt_json_text(j, "name", name.text);
    dpt_str_release(&name);
}

/* Opens an event, a line each: of a thread, or of the whole process (-1). */
static void open_event(struct dpt_json *j, const char *kind, int rank, int thread)
{
    dpt_json_break(j);
    dpt_json_object(j, NULL);
    dpt_json_text(j, "ph", kind);
    dpt_json_int(j, "pid", rank);
    if (thread >= 0)
        dpt_json_int(j, "tid", thread);
}

static void close_event(struct dpt_json *j)
{
    dpt_json_end(j); /* "args" */
    dpt_json_end(j);
}

static void open_about(struct dpt_json *j, const char *what, int rank, int thread)
{
    open_event(j, "M", rank, thread);
    dpt_json_text(j, "name", what);
    dpt_json_object(j, "args");
}

/* Times to a thousandth: finer than any clock here, and short. */
static void put_time(struct dpt_json *j, const char *key, double value)
{
    dpt_json_real(j, key, rint(value * 1e3) / 1e3);
}

static void put_event(const struct dpt_trace_spec *spec, int rank, int thread,
                      const struct event *e, struct dpt_json *j)
{
    open_event(j, "X", rank, thread);
    put_name(spec, e->what, j);
    dpt_json_text(j, "cat", category(e->what));
    put_time(j, "ts", e->start);
    put_time(j, "dur", e->end - e->start);
    dpt_json_object(j, "args");
    dpt_json_int(j, "step", e->step);
    close_event(j);
}

static void put_process(const struct dpt_trace_spec *spec, int rank, const struct head *head,
                        int64_t dropped, struct dpt_json *j)
{
    char text[DPT_WHERE_TEXT + 64], where[DPT_WHERE_TEXT];
    int n;

    snprintf(text, sizeof text, "rank %d (%s)", rank, dpt_comm_where(spec->comm, rank, where));
    open_about(j, "process_name", rank, -1);
    dpt_json_text(j, "name", text);
    close_event(j);
    open_about(j, "process_sort_index", rank, -1);
    dpt_json_int(j, "sort_index", rank);
    close_event(j);
    n = snprintf(text, sizeof text,
                 head->bound > 0 ? "clock within %.1f us of rank 0's" : "same clock",
                 head->bound * 1e-3);
    snprintf(text + n, sizeof text - (size_t)n, ", %lld older events dropped", (long long)dropped);
    open_about(j, "process_labels", rank, -1);
    dpt_json_text(j, "labels", text);
    dpt_json_int(j, "dropped", dropped);
    put_time(j, "clock_bound_us", head->bound * 1e-3);
    close_event(j);
}

static void put_thread(int rank, int thread, const struct head *head, struct dpt_json *j)
{
    char name[32];

    if (thread == 0)
        snprintf(name, sizeof name, "main");
    else if (thread < head->threads)
        snprintf(name, sizeof name, "thread %d", thread);
    else
        snprintf(name, sizeof name, "%s",
                 thread == head->threads + DPT_PROFILE_LOADER ? "loader" : "saver");
    open_about(j, "thread_name", rank, thread);
    dpt_json_text(j, "name", name);
    close_event(j);
}

/* Sends the events of one thread of one rank to all ranks, of which rank 0 writes them. */
static enum dpt_status send_thread(const struct dpt_trace *trace, int rank, int thread,
                                   const struct head *first, struct event *events,
                                   struct dpt_json *j, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &trace->spec.comm->world;
    struct head head = *first;

    if (world->rank == rank)
        collect(trace, &trace->profile.timeline.threads[thread], &head, events);
    DPT_TRY(dpt_group_broadcast(world, rank, &head, sizeof head, err));
    DPT_TRY(dpt_group_broadcast(world, rank, events, (size_t)head.events * sizeof *events, err));
    if (world->rank != 0 || (thread >= head.threads && head.events == 0))
        return DPT_OK;
    put_thread(rank, thread, &head, j);
    for (int64_t i = 0; i < head.events; i++)
        put_event(&trace->spec, rank, thread, &events[i], j);
out:
    return status;
}

/* Sends all events of one rank. Collective. */
static enum dpt_status send_rank(const struct dpt_trace *trace, int rank, struct event *events,
                                 struct dpt_json *j, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &trace->spec.comm->world;
    struct head head = {.threads = trace->spec.threads};

    head.bound = trace->begin.bound > trace->end.bound ? trace->begin.bound : trace->end.bound;
    for (int i = 0; i < trace->spec.threads + DPT_PROFILE_HELPERS; i++) {
        const struct dpt_spans *s = &trace->profile.timeline.threads[i];

        head.dropped += (int64_t)(s->count > s->capacity ? s->count - s->capacity : 0);
    }
    DPT_TRY(dpt_group_broadcast(world, rank, &head, sizeof head, err));
    if (world->rank == 0) {
        put_process(&trace->spec, rank, &head, head.dropped, j);
        if (head.dropped > 0 && rank == 0)
            dpt_log_info(trace->spec.log, "trace.json holds the newest %lld events of each thread",
                         (long long)trace->profile.timeline.threads[0].capacity);
    }
    for (int thread = 0; thread < head.threads + DPT_PROFILE_HELPERS; thread++)
        DPT_TRY(send_thread(trace, rank, thread, &head, events, j, err));
out:
    return status;
}

/* The file is written under a temporary name first, so that a reader sees the old or the whole new
 * one. */
static enum dpt_status finish_file(struct dpt_json *j, const char *temporary, const char *path,
                                   struct dpt_error *err)
{
    enum dpt_status status;

    dpt_json_break(j);
    dpt_json_end(j);
    status = dpt_json_finish(j, "a trace", err);
    if ((fclose(j->file) != 0 || j->error != 0) && status == DPT_OK) {
        errno = j->error != 0 ? j->error : errno;
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
    }
    j->file = NULL;
    if (status == DPT_OK)
        return dpt_file_commit(temporary, path, err);
    unlink(temporary);
    return status;
}

enum dpt_status dpt_trace_write(struct dpt_trace *trace, const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_comm *comm = trace->spec.comm;
    const uint64_t capacity = trace->profile.timeline.threads[0].capacity;
    struct event *events = NULL;
    char path[PATH_MAX];
    char *temporary = NULL;
    struct dpt_json j = {0};

    dpt_comm_note(comm, -1, "writing trace.json");
    dpt_tick_rate_read(&trace->profile.rate, 1);
    snprintf(path, sizeof path, "%s/trace.json", folder);
    status = DPT_ALLOCATE(events, capacity, "a trace", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    DPT_TRY(compare_clocks(comm, &trace->end, err));
    if (comm->world.rank == 0) {
        status = dpt_file_temporary(path, &temporary, err);
        if (status == DPT_OK)
            status = dpt_file_stream(temporary, DPT_FILE_APPEND, DPT_IO, &j.file, err);
    }
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    if (comm->world.rank == 0)
        dpt_json_array(&j, NULL);
    for (int rank = 0; rank < comm->world.size; rank++)
        DPT_TRY(send_rank(trace, rank, events, &j, err));
    if (comm->world.rank == 0)
        status = finish_file(&j, temporary, path, err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
out:
    if (j.file != NULL) {
        fclose(j.file);
        unlink(temporary);
    }
    free(temporary);
    dpt_str_release(&j.text);
    dpt_free(events);
    return status;
}
