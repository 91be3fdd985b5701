/*
 * fake_driver: what the parts of the fake libcuda share. For this folder only.
 *
 * One lock is held by whoever calls or works, except while a host function runs. Functions that end
 * in _locked are called with it.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_DRIVER_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_DRIVER_H

#include "core/backend/cuda/tests/fake/fake.h"

enum { FAKE_DEVICES = 16 };

/* A list of what is alive, by kind, so that handles can be checked. */
enum fake_kind {
    FAKE_STREAM = 1,
    FAKE_EVENT,
    FAKE_GRAPH,
    FAKE_EXEC,
    FAKE_MODULE,
    FAKE_KINDS,
};
struct fake_object {
    struct fake_object *next;
    enum fake_kind kind;
    int number, device;
};

/* Something that is to happen: a recorded event. */
struct fake_ticket {
    int refs;
    bool done;
    double at; /* ms */
    struct CUstream_st *stream;
};

/* Work as it is kept. */
struct fake_op {
    int refs;
    struct fakegpu_work work;
};

enum fake_step { FAKE_WORK, FAKE_RECORD, FAKE_WAIT, FAKE_LAUNCH };

struct fake_item {
    struct fake_item *next;
    enum fake_step step;
    uint64_t number; /* in the order of enqueuing */
    struct fake_op *op;
    struct fake_ticket *ticket;
    struct fake_launch *launch;
};

struct CUstream_st {
    struct fake_object object;
    int refs;
    bool blocking, legacy, destroyed, busy;
    struct fake_item *first, *last;
    struct fake_capture *capture; /* in which it takes part */
    int *frontier;                /* nodes that the next one comes after */
    int n_frontier;
};

struct CUevent_st {
    struct fake_object object;
    int refs;
    bool timed;
    struct fake_ticket *ticket;   /* of the last record; NULL: never */
    struct fake_capture *capture; /* recorded inside of it */
    int *frontier;
    int n_frontier;
};

struct CUgraphNode_st {
    enum fake_step step;
    struct fake_op *op;
    struct CUevent_st *event;
    int *after; /* nodes */
    int n_after;
};

/* A capture in progress. Ended captures stay in memory until nothing refers to them. */
struct fake_capture {
    int refs;
    bool broken, ended;
    CUresult why; /* it is broken */
    CUstreamCaptureMode mode;
    struct CUstream_st *origin;
    unsigned long thread;
    struct CUgraph_st *graph;
    struct fake_capture *next;
    uint64_t id;
};

struct CUgraph_st {
    struct fake_object object;
    struct CUgraphNode_st **node;
    int n, capacity;
};

struct CUgraphExec_st {
    struct fake_object object;
    int refs;
    struct CUgraphNode_st **node;
    int n;
    struct fake_ticket *last; /* end of its last launch */
};

/* One launch of a graph, and which of its nodes are done. */
struct fake_launch {
    struct CUgraphExec_st *exec;
    bool *done;
    struct fake_ticket **ticket; /* of records and waits, by node */
    int left;
    struct fake_ticket *end;
};

struct CUctx_st {
    int device, refs;
    CUresult fault; /* it does nothing any more */
    struct CUstream_st *legacy;
};

/* --- locking and handles: fake_driver.c, fake_stream.c ---------------------------------------- */
void fake_lock(void);
void fake_unlock(void);
/* Puts a new object in the list. */
void fake_register(struct fake_object *object, enum fake_kind kind, int device);
void fake_unregister(struct fake_object *object);
/* Whether a handle is alive; reports it if not. */
bool fake_alive(const void *object, enum fake_kind kind);
/* The context, or why there is none. */
CUresult fake_context(struct CUctx_st **context);
CUresult fake_context_of(int device, struct CUctx_st **context);
/* Each live one of a kind. */
struct fake_object *fake_objects(void);
CUresult fake_enqueue_locked(CUstream handle, const struct fakegpu_work *work);
bool fake_queue_is_empty(void *stream);
/* The work that the device does now, for the message of a fault; NULL: none. */
extern const char *volatile fake_doing;
void fake_fault(int device, CUresult code);
void *fake_zalloc(size_t bytes);

/* --- memory: fake_memory.c -------------------------------------------------------------------- */
CUresult fake_memory_new(int device, size_t bytes, void **at); /* device < 0: pinned */
CUresult fake_memory_free(void *at, bool pinned);
/* The memory in which an address lies: *device, < 0: pinned. false: none. */
bool fake_memory_find(const void *at, int *device);
/* Whether all ranges of work lie where they should. */
bool fake_memory_check(int device, const struct fakegpu_work *work, const char *when);
void fake_memory_info(int device, size_t *unused, size_t *total);
/* While work is done the device's memory is open; nests. */
void fake_memory_open(void);
void fake_memory_shut(void);
/* Checks all guards, and reports what is still allocated. device < -1: all. */
void fake_memory_leaks(int device);

/* --- streams: fake_stream.c ------------------------------------------------------------------- */
struct fake_ticket *fake_ticket_new(struct CUstream_st *stream);
void fake_ticket_drop(struct fake_ticket *ticket);
void fake_ticket_complete(struct fake_ticket *ticket);
struct fake_op *fake_op_new(const struct fakegpu_work *work);
void fake_op_drop(struct fake_op *op);
void fake_event_drop(struct CUevent_st *event);
/* Does work until `over`; false: that never happens. */
bool fake_drain(bool (*over)(void *what), void *what, struct CUstream_st *target);
void fake_drain_device(int device); /* < 0: all */
/* Does one piece of work, if there is one that can be done. */
bool fake_work(struct CUstream_st *target);
CUresult fake_stream_of(CUstream handle, struct CUstream_st **stream);
/* Takes the references that item has. */
void fake_append(struct CUstream_st *stream, struct fake_item item);
/* Called at the end of each enqueuing: does all work if that is wanted. */
void fake_enqueued(void);
void fake_run(int device, struct fake_op *op, struct CUstream_st *stream);
struct CUstream_st *fake_stream_new(int device, bool blocking, bool legacy);
void fake_stream_end(struct CUstream_st *stream);

/* --- the clock: fake_clock.c ------------------------------------------------------------------ */
double fake_clock(void); /* ms */
/* Work of this name was done: by itself, or as a graph's node. */
void fake_clock_pass(const char *name, bool in_graph);
/* Whether it can be captured. */
bool fake_clock_captures(const char *name);

/* --- graphs: fake_graph.c, fake_capture.c ----------------------------------------------------- */
/* Adds a node after the stream's last ones; takes a reference to op and event. */
CUresult fake_capture_add(struct CUstream_st *stream, enum fake_step step, struct fake_op *op,
                          struct CUevent_st *event);
CUresult fake_capture_record(struct CUevent_st *event, struct CUstream_st *stream);
CUresult fake_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
void fake_capture_break(struct fake_capture *capture, CUresult why, const char *what);
void fake_capture_drop(struct fake_capture *capture);
/* Refuses a call that must not be made while something is captured on any stream that it could
 * meet. */
CUresult fake_capture_forbids(const char *what);
/* Refuses work on the legacy stream in the same case. */
CUresult fake_capture_forbids_legacy(void);
/* Whether a launch has a node that can be done now; if one of them only waits, on what. */
int fake_launch_ready(const struct fake_launch *launch, int *ready, int most,
                      struct fake_ticket **waits);
/* Does a node. true: it was the last. */
bool fake_launch_do(struct fake_launch *launch, int node, struct CUstream_st *stream);
void fake_launch_drop(struct fake_launch *launch);
void fake_graph_free(struct CUgraph_st *graph);

/* The memory that a kernel reads and writes, as far as they are known (fake_ranges.h). Lists may be
 * in arrays on the device, so the memory must be open. false: the work is no kernel. */
bool fake_kernel_accesses(const struct fake_op *op, struct fakegpu_work *work);

/* Runs `body` with the lock; its value is returned. */
#define FAKE_LOCKED(body)                                                                          \
    do {                                                                                           \
        CUresult result_;                                                                          \
                                                                                                   \
        fake_lock();                                                                               \
        result_ = (body);                                                                          \
        fake_unlock();                                                                             \
        return result_;                                                                            \
    } while (0)

#endif
