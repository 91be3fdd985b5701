#include "core/trace/profile.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/probe.h"

enum dpt_status dpt_profile_open(struct dpt_profile *p, int threads, int32_t nodes, uint64_t events,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t lines = (size_t)threads + DPT_PROFILE_HELPERS;

    *p = (struct dpt_profile){
        .threads = threads,
        .whats = dpt_span_node(nodes, DPT_PASS_FORWARD),
    };
    DPT_TRY(DPT_ALLOCATE(p->timeline.threads, lines, "a profile", err));
    for (size_t i = 0; i < lines; i++) {
        struct dpt_spans *s = &p->timeline.threads[i];

        s->capacity = events;
        DPT_TRY(DPT_ALLOCATE(s->sum, (size_t)p->whats, "a profile", err));
        if (events > 0)
            DPT_TRY(DPT_ALLOCATE(s->ring, events, "a profile", err));
    }
    dpt_tick_rate_read(&p->rate, 0);
out:
    if (status != DPT_OK)
        dpt_profile_close(p);
    return status;
}

void dpt_profile_close(struct dpt_profile *p)
{
    for (int i = 0; p->timeline.threads != NULL && i < p->threads + DPT_PROFILE_HELPERS; i++) {
        dpt_free(p->timeline.threads[i].sum);
        dpt_free(p->timeline.threads[i].ring);
    }
    dpt_free(p->timeline.threads);
    *p = (struct dpt_profile){0};
}

struct dpt_spans *dpt_profile_helper(const struct dpt_profile *p, int helper)
{
    return &p->timeline.threads[p->threads + helper];
}

/* Time that another thread waited while the main thread worked alone counts as that work. It is all
 * the time that the thread recorded as waiting, and what followed its last mark. */
static void hold_up(const struct dpt_profile *p, struct dpt_spans *s)
{
    const uint64_t end = p->timeline.threads[0].last;
    uint64_t *waited = &s->sum[DPT_SPAN_WAIT_THREADS].ticks;

    *waited += end > s->last ? end - s->last : 0;
    *waited -= *waited < p->early ? *waited : p->early;
    for (int what = 0; what < DPT_SPAN_NODES; what++) {
        const uint64_t ticks = *waited < p->held[what] ? *waited : p->held[what];

        *waited -= ticks;
        s->sum[what].ticks += ticks;
    }
}

void dpt_profile_take(struct dpt_profile *p, struct dpt_span_sum *sums)
{
    memset(sums, 0, (size_t)p->whats * sizeof *sums);
    for (int i = 0; i < p->threads; i++) {
        struct dpt_span_sum *own = p->timeline.threads[i].sum;

        if (i > 0)
            hold_up(p, &p->timeline.threads[i]);
        for (int what = 0; what < p->whats; what++) {
            sums[what].ticks += own[what].ticks;
            sums[what].calls += own[what].calls;
        }
        memset(own, 0, (size_t)p->whats * sizeof *own);
    }
    memset(p->held, 0, sizeof p->held);
    p->early = 0;
}

/* --- clocks ----------------------------------------------------------------------------------- */

static double nanoseconds(void)
{
    return (double)dpt_now_ns();
}

enum dpt_status dpt_profile_offset(const struct dpt_comm *comm, double *offset, double *bound,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double both[2] = {0};

    if (comm->nodes > 1) {
        if (comm->leaders.rank >= 0)
            status = dpt_clock_offset(&comm->leaders, nanoseconds, &both[0], &both[1], err);
        DPT_TRY(dpt_group_agree(&comm->world, status, err));
        DPT_TRY(dpt_group_broadcast(&comm->node, 0, both, sizeof both, err));
    }
    *offset = both[0];
    *bound = both[1];
out:
    return status;
}
