/*
 * span: where a thread's time goes.
 *
 * A thread's time is cut into spans that follow one another: dpt_spans_mark says that all since the
 * mark before was spent on one thing. So nothing is counted twice and nothing is lost: the things'
 * ticks add up to the time between the first mark and the last. A mark costs one reading of the
 * clock (about 10 ns) and an addition. With a ring the newest spans are also kept one by one, for
 * a trace; the oldest ones are written over. Each struct dpt_spans belongs to one thread, and is
 * read or reset by others only while that thread waits for them.
 */
#ifndef DPT_BASE_SPAN_H
#define DPT_BASE_SPAN_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/clock.h"
#include "core/base/error.h"

/* What time is spent on. From DPT_SPAN_NODES on: DPT_SPAN_PASSES for each node of a graph. */
enum dpt_span_what {
    DPT_SPAN_OTHER,
    DPT_SPAN_WAIT_THREADS, /* for the rank's other threads */
    DPT_SPAN_WAIT_LOADER,  /* for samples that are still being read */
    DPT_SPAN_WAIT_STAGE,   /* for a micro-batch from another stage of a pipeline */
    DPT_SPAN_DATA,         /* filling a micro-batch */
    DPT_SPAN_LOSS,
    DPT_SPAN_REDUCTION,
    DPT_SPAN_NORM,      /* of the gradient */
    DPT_SPAN_OPTIMIZER, /* the update of the weights */
    DPT_SPAN_LAYOUTS,   /* what the backend derives from the weights */
    DPT_SPAN_STEP,      /* from here on they hold others: traces only */
    DPT_SPAN_COMPUTE,
    DPT_SPAN_EVALUATE,
    DPT_SPAN_SAVE, /* asking for a checkpoint; on the saver's thread, writing it */
    DPT_SPAN_CHECK,
    DPT_SPAN_READ, /* the loader's thread */
    DPT_SPAN_NODES
};

enum dpt_span_pass {
    DPT_PASS_FORWARD,
    DPT_PASS_WEIGHTS,  /* gradients of a node's parameters */
    DPT_PASS_BACKWARD, /* the rest of its backward pass: the gradient of its input, or both in one
                        */
    DPT_SPAN_PASSES
};

struct dpt_span {
    uint64_t start, end; /* ticks */
    int32_t what, step;
};

struct dpt_span_sum {
    uint64_t ticks, calls;
};

struct dpt_spans {
    uint64_t last;            /* tick of the last mark */
    struct dpt_span_sum *sum; /* for each `what` */
    struct dpt_span *ring;    /* NULL: only sums */
    uint64_t capacity;        /* of the ring, a power of two */
    uint64_t count;           /* spans ever put there */
    int32_t step;             /* that they belong to */
} __attribute__((aligned(64)));

/* What the threads of a pool do between two marks of their own. */
struct dpt_timeline {
    struct dpt_spans *threads; /* one for each */
    int activity;              /* of all that a pool is run for now; set by who runs it */
};

static inline int dpt_span_node(int32_t node, enum dpt_span_pass pass)
{
    return DPT_SPAN_NODES + node * DPT_SPAN_PASSES + (int)pass;
}

/* Puts a span into the ring, where there is one. */
static inline void dpt_spans_add(struct dpt_spans *s, int what, uint64_t start, uint64_t end)
{
    if (s->ring == NULL)
        return;
    s->ring[s->count++ & (s->capacity - 1)] =
        (struct dpt_span){.start = start, .end = end, .what = what, .step = s->step};
}

/* Begins a new span now; the time since the last mark is not counted. */
static inline void dpt_spans_begin(struct dpt_spans *s)
{
    s->last = dpt_ticks();
}

/* Counts the time since the last mark as `what`. */
static inline void dpt_spans_mark(struct dpt_spans *s, int what)
{
    const uint64_t now = dpt_ticks();

    /* Cores' clocks may differ by some ticks where one thread reads what another wrote. */
    s->sum[what].ticks += now > s->last ? now - s->last : 0;
    s->sum[what].calls++;
    if (what != DPT_SPAN_OTHER)
        dpt_spans_add(s, what, s->last, now);
    s->last = now;
}

#endif
