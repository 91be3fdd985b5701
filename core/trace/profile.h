/*
 * profile: where the time of a rank's threads goes.
 *
 * Attached to a trainer (dpt_trainer_observe) it gets a timeline (core/base/span.h) of each of its
 * threads: what the backend does (each layer's passes, the loss), filling micro-batches, the
 * reduction, the optimizer, waiting. What the main thread does while the others have nothing to do
 * counts for all of them, for it holds all of them up; so a step's things add up, on each thread,
 * to the step. With room for events it also keeps the newest of them, for a trace (trace.h), and
 * those of the threads that read and save. Off, it costs a comparison in each of these places.
 */
#ifndef DPT_TRACE_PROFILE_H
#define DPT_TRACE_PROFILE_H

#include "core/base/span.h"
#include "core/comm/comm.h"

struct dpt_profile {
    struct dpt_timeline timeline; /* of the pool's threads, then the loader's and the saver's */
    int threads;                  /* of the pool */
    int whats;                    /* things that are told apart: enum dpt_span_what and the nodes */
    struct dpt_tick_rate rate;
    uint64_t start;                /* tick at which what is timed now began */
    uint64_t early;                /* ticks by which the other threads' timelines began before */
    uint64_t held[DPT_SPAN_NODES]; /* ticks that the main thread spent while the others had nothing
                                      to do */
    uint64_t arrived;              /* tick at which this rank was ready for the reduction */
};

/* Threads beside the pool's. */
enum { DPT_PROFILE_LOADER, DPT_PROFILE_SAVER, DPT_PROFILE_HELPERS };

/* Opens a profile of so many threads, which compute a graph of so many nodes. events: to keep of
 * each thread, 0 or a power of two. Errors: RANK. */
enum dpt_status dpt_profile_open(struct dpt_profile *p, int threads, int32_t nodes, uint64_t events,
                                 struct dpt_error *err);
void dpt_profile_close(struct dpt_profile *p);

/* The timeline of a helper thread. */
struct dpt_spans *dpt_profile_helper(const struct dpt_profile *p, int helper);

/* Ticks that all threads of the pool spent on each thing since the last call: [whats], out. After
 * dpt_profile_end. */
void dpt_profile_take(struct dpt_profile *p, struct dpt_span_sum *sums);

/*
 * Collective. What to add to this rank's dpt_now_ns to get rank 0's, and how far off that may be;
 * both 0 on rank 0's node, whose ranks share a clock.
 */
enum dpt_status dpt_profile_offset(const struct dpt_comm *comm, double *offset, double *bound,
                                   struct dpt_error *err);

/* Something begins, on all threads, in step number `step` (from 1). p: NULL is fine, as below. */
static inline void dpt_profile_begin(struct dpt_profile *p, int64_t step)
{
    uint64_t start;

    if (p == NULL)
        return;
    start = dpt_ticks();
    for (int i = 0; i < p->threads; i++) {
        p->timeline.threads[i].last = start;
        p->timeline.threads[i].step = (int32_t)step;
    }
    p->start = p->timeline.threads[0].last = dpt_ticks();
    p->early += p->start - start;
}

/* This thread's time since its last mark was `what`. */
static inline void dpt_profile_mark(struct dpt_profile *p, int thread, int what)
{
    if (p != NULL)
        dpt_spans_mark(&p->timeline.threads[thread], what);
}

/* The main thread's time since its last mark was `what`, and the others waited for it. What pools
 * are run for from here on is `next`. */
static inline void dpt_profile_switch(struct dpt_profile *p, int what, int next)
{
    struct dpt_spans *own;
    uint64_t since;

    if (p == NULL)
        return;
    own = &p->timeline.threads[0];
    since = own->last;
    dpt_spans_mark(own, what);
    p->held[what] += own->last - since;
    p->timeline.activity = next;
}

/* A span of the main thread that holds others: from tick `start` to its last mark. */
static inline void dpt_profile_hold(struct dpt_profile *p, int what, uint64_t start)
{
    if (p != NULL)
        dpt_spans_add(&p->timeline.threads[0], what, start, p->timeline.threads[0].last);
}

/* What began with dpt_profile_begin has ended; it was `what`. */
static inline void dpt_profile_end(struct dpt_profile *p, int what)
{
    dpt_profile_switch(p, DPT_SPAN_OTHER, DPT_SPAN_OTHER);
    if (p != NULL)
        dpt_profile_hold(p, what, p->start);
}

#endif
