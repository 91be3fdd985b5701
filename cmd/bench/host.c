/* What `dptrain bench` measures if threads compute: steps, and with timelines their parts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/bench/bench.h"
#include "core/base/clock.h"
#include "core/base/sort.h"
#include "core/train/team.h"

enum { WARM_STEPS = 5, LEAST_STEPS = 10, MOST_STEPS = 5000, LAST = 15, OFTEN = 2, SELDOM = 8 };

/* Seconds of warming up, and of each of the two measurements, if --steps is not given. */
static const double warming = 0.5, measuring = 3;
/* Steps shorter than this (seconds) are slowed down visibly by the marks of their timelines. */
static const double short_step = 20e-6;

/*
 * Steps are measured in two ways that alternate in the order A B B A: A only from beginning to end,
 * B with the timelines of all threads. So the step's time is that of an untouched step, and the
 * difference is what the timelines cost. Short steps have timelines less often, A A A B B A A A, so
 * that timelines cost little of the time in which they are on; only the A beside a B counts.
 */
struct record {
    struct dpt_profile profile;
    int64_t n;            /* steps of each kind */
    int every;            /* one step in so many has timelines */
    double *plain, *with; /* [n] seconds of a step: untouched, and with timelines */
    double *timed;        /* [n] ticks of the latter; later seconds */
    double *arrived;      /* [n] nanoseconds on this rank's clock: ready for the reduction */
    double *ticks;        /* [n][whats]: of all threads together */
    double *calls;        /* [whats] */
    struct dpt_span_sum *sums;
    /* Memory to evaluate them: seconds of each thing; for each step when the last rank came, when
     * each rank did, and a copy to be sorted. */
    double *seconds, *last, *all, *sorted;
};

/* Allocates n zeros; false: memory ran out. */
static bool open_values(struct dpt_bench *b, double **values, size_t n)
{
    *values = dpt_region_alloc(&b->region, n * sizeof **values);
    return *values != NULL;
}

static enum dpt_status open_record(struct dpt_bench *b, struct record *r,
                                   const struct dpt_trainer *t, int64_t steps,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)steps;
    size_t whats;

    r->n = steps;
    DPT_TRY(dpt_profile_open(&r->profile, t->layout.threads, t->model.graph.n_nodes, 0, err));
    whats = (size_t)r->profile.whats;
    r->sums = dpt_region_alloc(&b->region, whats * sizeof *r->sums);
    if (r->sums == NULL || !open_values(b, &r->plain, n) || !open_values(b, &r->with, n) ||
        !open_values(b, &r->timed, n) || !open_values(b, &r->arrived, n) ||
        !open_values(b, &r->ticks, n * whats) || !open_values(b, &r->calls, whats) ||
        !open_values(b, &r->seconds, whats) || !open_values(b, &r->last, n) ||
        !open_values(b, &r->sorted, n) || !open_values(b, &r->all, n * (size_t)t->comm->world.size))
        status = dpt_fail_memory(err, "the measurements", (double)n * 8 * (double)whats);
out:
    return status;
}

/* --- running ---------------------------------------------------------------------------------- */

enum dpt_status dpt_bench_warm_up(struct dpt_trainer *t, double *seconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double start = dpt_now();
    double last[LAST], over = 0;
    struct dpt_step_result result;
    int64_t n = 0;

    while (over == 0) {
        const double begin = dpt_now();

        DPT_TRY(dpt_trainer_step(t, &result, err));
        last[n++ % LAST] = dpt_now() - begin;
        over = n >= WARM_STEPS && dpt_now() - start > warming;
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, &over, sizeof over, err));
    }
    n = n < LAST ? n : LAST;
    *seconds = dpt_median(last, (size_t)n);
    DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, seconds, sizeof *seconds, err));
out:
    return status;
}

static enum dpt_status timed_step(struct dpt_trainer *t, struct record *r, int64_t k,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_profile *p = &r->profile;
    double *ticks = r->ticks + (size_t)k * (size_t)p->whats;
    struct dpt_step_result result;
    double start;

    dpt_trainer_observe(t, p);
    start = dpt_now();
    status = dpt_trainer_step(t, &result, err);
    r->with[k] = dpt_now() - start;
    dpt_trainer_observe(t, NULL);
    DPT_TRY(status);
    r->timed[k] = (double)(p->timeline.threads[0].last - p->start);
    r->arrived[k] = (double)(p->arrived - p->rate.tick[0]);
    dpt_profile_take(p, r->sums);
    for (int what = 0; what < p->whats; what++) {
        ticks[what] = (double)r->sums[what].ticks;
        r->calls[what] += (double)r->sums[what].calls;
    }
out:
    return status;
}

static void show(const struct dpt_trainer *t, int64_t done, int64_t steps, double *shown)
{
    char text[64];

    if (dpt_now() - *shown < 0.2)
        return;
    *shown = dpt_now();
    snprintf(text, sizeof text, "step %lld of %lld", (long long)done, (long long)steps);
    dpt_log_live(t->log, text);
}

static enum dpt_status plain_step(struct dpt_trainer *t, double *seconds, struct dpt_error *err)
{
    struct dpt_step_result result;
    const double start = dpt_now();
    const enum dpt_status status = dpt_trainer_step(t, &result, err);

    *seconds = dpt_now() - start;
    return status;
}

/* Collective. */
static enum dpt_status measure(struct dpt_trainer *t, struct record *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double shown = dpt_now(), ignored;
    int64_t plain = 0, timed = 0;

    for (int64_t i = 0; plain < r->n || timed < r->n; i++) {
        /* How many steps it is before the middle of a turn, or after it. */
        const int64_t at = i % (2 * r->every),
                      from = at < r->every ? r->every - 1 - at : at - r->every;

        if (from == 0 && timed < r->n)
            DPT_TRY(timed_step(t, r, timed++, err));
        else if (from == 1 && plain < r->n)
            DPT_TRY(plain_step(t, &r->plain[plain++], err));
        else
            DPT_TRY(plain_step(t, &ignored, err));
        show(t, plain + timed, 2 * r->n, &shown);
    }
out:
    dpt_log_live(t->log, NULL);
    dpt_tick_rate_read(&r->profile.rate, 1);
    return status;
}

/* --- what it amounts to ----------------------------------------------------------------------- */

/* Value at the fraction q of n sorted ones, between two neighbours. */
static double quantile(const double *sorted, int64_t n, double q)
{
    const double at = q * (double)(n - 1);
    const int64_t low = (int64_t)at, high = low + 1 < n ? low + 1 : low;

    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

struct dpt_bench_spread dpt_bench_spread_of(double *sorted, int64_t n)
{
    dpt_sort(sorted, (size_t)n);
    return (struct dpt_bench_spread){
        .median = quantile(sorted, n, 0.5),
        .low = quantile(sorted, n, 0.25),
        .high = quantile(sorted, n, 0.75),
        .least = sorted[0],
        .most = sorted[n - 1],
    };
}

/* Finds the time of the last rank to come in each step; in `last`, nanoseconds on rank 0's clock.
 * Converts this rank's times to that clock, too. Collective. */
static enum dpt_status align_arrivals(const struct dpt_trainer *t, struct record *r,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)r->n, ranks = (size_t)t->comm->world.size;
    double offset, bound;

    DPT_TRY(dpt_profile_offset(t->comm, &offset, &bound, err));
    for (size_t k = 0; k < n; k++)
        r->arrived[k] = (double)r->profile.rate.ns[0] + offset +
                        1e9 * dpt_tick_seconds(&r->profile.rate, r->arrived[k]);
    DPT_TRY(dpt_group_allgather(&t->comm->world, r->arrived, r->all, n * sizeof *r->all, err));
    for (size_t k = 0; k < n; k++) {
        r->last[k] = r->arrived[k];
        for (size_t rank = 0; rank < ranks; rank++)
            r->last[k] = fmax(r->last[k], r->all[rank * n + k]);
    }
out:
    return status;
}

/*
 * Averages the seconds of a step that each thing took over the middle half of the steps (low to
 * high), of this rank's threads together. In the reduction all wait until the last rank comes.
 */
static void average(const struct dpt_trainer *t, struct record *r, double low, double high)
{
    double *seconds = r->seconds;
    const size_t whats = (size_t)r->profile.whats;
    int64_t chosen = 0;

    for (int64_t k = 0; k < r->n; k++) {
        const double *ticks = r->ticks + (size_t)k * whats;
        double wait;

        if (r->timed[k] < low || r->timed[k] > high)
            continue;
        chosen++;
        for (size_t what = 0; what < whats; what++)
            seconds[what] += dpt_tick_seconds(&r->profile.rate, ticks[what]);
        wait = fmax(0, r->last[k] - r->arrived[k]) * 1e-9 * t->layout.threads;
        wait = fmin(wait, dpt_tick_seconds(&r->profile.rate, ticks[DPT_SPAN_REDUCTION]));
        seconds[DPT_SPAN_REDUCTION] -= wait;
        seconds[DPT_SPAN_STEP] += wait;
    }
    for (size_t what = 0; what < whats; what++)
        seconds[what] /= (double)(chosen > 0 ? chosen : 1);
}

enum dpt_status dpt_bench_mean(const struct dpt_trainer *t, double *values, size_t n,
                               double divisor, struct dpt_error *err)
{
    const enum dpt_status status = dpt_group_sum_doubles(&t->comm->world, values, values, n, err);

    for (size_t i = 0; status == DPT_OK && i < n; i++)
        values[i] /= divisor;
    return status;
}

/* What reading the clock adds to a step that is timed from outside. */
static double clock_seconds(void)
{
    enum { LOOKS = 256 };
    const double start = dpt_now();
    double now = start;

    for (int i = 0; i < LOOKS; i++)
        now = dpt_now();
    return (now - start) / LOOKS;
}

/* Collective. */
static enum dpt_status evaluate(struct dpt_bench *b, const struct dpt_trainer *t, struct record *r,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)r->n, whats = (size_t)r->profile.whats;
    const double ranks = t->comm->world.size;

    for (size_t k = 0; k < n; k++)
        r->timed[k] = dpt_tick_seconds(&r->profile.rate, r->timed[k]);
    /* Steps are the same ones on all ranks: their times differ by a little only. */
    DPT_TRY(dpt_bench_mean(t, r->plain, n, ranks, err));
    DPT_TRY(dpt_bench_mean(t, r->with, n, ranks, err));
    DPT_TRY(dpt_bench_mean(t, r->timed, n, ranks, err));
    DPT_TRY(align_arrivals(t, r, err));
    memcpy(r->sorted, r->timed, n * sizeof *r->sorted);
    b->timed = dpt_bench_spread_of(r->sorted, r->n);
    /* With few steps the quartiles lie between two of them: at least one step must be in. */
    average(t, r, n < 4 ? 0 : b->timed.low, n < 4 ? INFINITY : b->timed.high);
    DPT_TRY(dpt_bench_mean(t, r->seconds, whats, (double)t->layout.all_threads, err));
    DPT_TRY(dpt_bench_mean(t, r->calls, whats, 1, err));
    dpt_sort(r->with, n);
    b->steps = r->n;
    b->step = dpt_bench_spread_of(r->plain, r->n);
    b->every = r->every;
    b->overhead = quantile(r->with, r->n, 0.5) / b->step.median - 1;
    if (r->every > OFTEN) {
        b->scale = fmin(1, (b->step.median - clock_seconds()) / b->timed.median);
        b->overhead /= r->every;
    }
    for (size_t what = 0; what < whats; what++)
        r->seconds[what] *= b->scale;
    b->samples_per_s = t->data.train.sampler.global / b->step.median;
    DPT_TRY(dpt_group_agree(&t->comm->world, dpt_bench_rows(b, r->seconds, r->calls, err), err));
out:
    return status;
}

enum dpt_status dpt_bench_host(struct dpt_bench *b, struct dpt_trainer *t, long long steps,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct record r = {0};
    double seconds = 0;

    dpt_log_info(t->log, "measuring the machine");
    DPT_TRY(dpt_machine_measure(t, &b->machine, err));
    DPT_TRY(dpt_group_agree(world, dpt_loader_seek(t->data.train.loader, 0, 0, err), err));
    dpt_log_info(t->log, "warming up");
    DPT_TRY(dpt_bench_warm_up(t, &seconds, err));
    if (steps == 0)
        steps = (long long)fmin(MOST_STEPS, fmax(LEAST_STEPS, measuring / seconds));
    DPT_TRY(dpt_group_agree(world, open_record(b, &r, t, steps, err), err));
    r.every = seconds < short_step ? SELDOM : OFTEN;
    dpt_log_info(t->log, "measuring %lld steps, and %lld with timelines", steps, steps);
    DPT_TRY(measure(t, &r, err));
    /* Machines have slow spells: the better of before and after. */
    DPT_TRY(dpt_machine_measure(t, &b->machine, err));
    DPT_TRY(evaluate(b, t, &r, err));
out:
    dpt_profile_close(&r.profile);
    return status;
}
