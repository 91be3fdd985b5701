#include "cmd/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/sort.h"

enum { WARM_STEPS = 5, LEAST_STEPS = 10, MOST_STEPS = 5000, LAST = 15, OFTEN = 2, SELDOM = 8 };

/* Seconds of warming up, and of each of the two measurements, where --steps does not say. */
static const double warming = 0.5, measuring = 3;
/* Seconds of a step of which a mark, some nanoseconds, is a part that can be seen. */
static const double short_step = 20e-6;

/*
 * Steps are measured in two ways in turn, in the order A B B A: A only from beginning to end, B
 * with the timelines of all threads. So the step's time is that of an untouched step, and the
 * difference is what the timelines cost. Short steps have theirs more seldom, A A A B B A A A, so
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
};

static void close_record(struct record *r)
{
    dpt_profile_close(&r->profile);
    dpt_free(r->plain);
    dpt_free(r->with);
    dpt_free(r->timed);
    dpt_free(r->arrived);
    dpt_free(r->ticks);
    dpt_free(r->calls);
    dpt_free(r->sums);
}

static enum dpt_status open_record(struct record *r, const struct dpt_trainer *t, int64_t n,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t whats;

    r->n = n;
    DPT_TRY(dpt_profile_open(&r->profile, t->team.threads, t->model.graph.n_nodes, 0, err));
    whats = (size_t)r->profile.whats;
    r->plain = dpt_alloc_array((size_t)n, sizeof *r->plain);
    r->with = dpt_alloc_array((size_t)n, sizeof *r->with);
    r->timed = dpt_alloc_array((size_t)n, sizeof *r->timed);
    r->arrived = dpt_alloc_array((size_t)n, sizeof *r->arrived);
    r->ticks = dpt_alloc_array((size_t)n * whats, sizeof *r->ticks);
    r->calls = dpt_alloc_array(whats, sizeof *r->calls);
    r->sums = dpt_alloc_array(whats, sizeof *r->sums);
    if (r->plain == NULL || r->with == NULL || r->timed == NULL || r->arrived == NULL ||
        r->ticks == NULL || r->calls == NULL || r->sums == NULL)
        DPT_TRY(dpt_fail_memory(err, "the measurements", (double)n * 8 * (double)whats));
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
        /* Steps before the middle of a turn, or behind it. */
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

struct dpt_bench_spread dpt_bench_spread_of(const double *sorted, int64_t n)
{
    return (struct dpt_bench_spread){
        .median = quantile(sorted, n, 0.5),
        .low = quantile(sorted, n, 0.25),
        .high = quantile(sorted, n, 0.75),
        .least = sorted[0],
        .most = sorted[n - 1],
    };
}

/* Of each step the time of the last rank to come; in `last`, nanoseconds on rank 0's clock. Turns
 * this rank's into such, too. Collective. */
static enum dpt_status align_arrivals(const struct dpt_trainer *t, struct record *r, double *last,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)r->n, ranks = (size_t)t->comm->world.size;
    double *all = dpt_alloc_array(n * ranks, sizeof *all);
    double offset, bound;

    if (all == NULL)
        status = dpt_fail_memory(err, "the measurements", (double)(n * ranks) * sizeof *all);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    DPT_TRY(dpt_profile_offset(t->comm, &offset, &bound, err));
    for (size_t k = 0; k < n; k++)
        r->arrived[k] = (double)r->profile.rate.ns[0] + offset +
                        1e9 * dpt_tick_seconds(&r->profile.rate, r->arrived[k]);
    DPT_TRY(dpt_group_allgather(&t->comm->world, r->arrived, all, n * sizeof *all, err));
    for (size_t k = 0; k < n; k++) {
        last[k] = r->arrived[k];
        for (size_t rank = 0; rank < ranks; rank++)
            last[k] = fmax(last[k], all[rank * n + k]);
    }
out:
    dpt_free(all);
    return status;
}

/*
 * Seconds of a step that each thing took, in the mean over the middle half of the steps (low to
 * high), of this rank's threads together. What all wait for in the reduction is that the last rank
 * comes.
 */
static void average(const struct dpt_trainer *t, const struct record *r, const double *last,
                    double low, double high, double *seconds)
{
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
        wait = fmax(0, last[k] - r->arrived[k]) * 1e-9 * t->team.threads;
        wait = fmin(wait, dpt_tick_seconds(&r->profile.rate, ticks[DPT_SPAN_REDUCTION]));
        seconds[DPT_SPAN_REDUCTION] -= wait;
        seconds[DPT_SPAN_STEP] += wait;
    }
    for (size_t what = 0; what < whats; what++)
        seconds[what] /= (double)(chosen > 0 ? chosen : 1);
}

/* The mean over the ranks of n numbers. Collective. */
static enum dpt_status mean_over_ranks(const struct dpt_trainer *t, double *values, size_t n,
                                       double divisor, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_group_sum_doubles(&t->comm->world, values, values, n, err));
    for (size_t i = 0; i < n; i++)
        values[i] /= divisor;
out:
    return status;
}

/* What a look at the clock adds to a step that is timed from outside. */
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
    double *seconds = dpt_alloc_array(whats, sizeof *seconds);
    double *sorted = dpt_alloc_array(n, sizeof *sorted), *last = dpt_alloc_array(n, sizeof *last);

    if (seconds == NULL || sorted == NULL || last == NULL)
        status = dpt_fail_memory(err, "the measurements", (double)n * sizeof *sorted);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    for (size_t k = 0; k < n; k++)
        r->timed[k] = dpt_tick_seconds(&r->profile.rate, r->timed[k]);
    /* Steps are the same ones on all ranks: their times differ by a little only. */
    DPT_TRY(mean_over_ranks(t, r->plain, n, ranks, err));
    DPT_TRY(mean_over_ranks(t, r->with, n, ranks, err));
    DPT_TRY(mean_over_ranks(t, r->timed, n, ranks, err));
    DPT_TRY(align_arrivals(t, r, last, err));
    memcpy(sorted, r->timed, n * sizeof *sorted);
    dpt_sort(sorted, n);
    b->timed = dpt_bench_spread_of(sorted, r->n);
    /* With few steps the quarters lie between two of them: at least one must be in. */
    average(t, r, last, n < 4 ? 0 : b->timed.low, n < 4 ? INFINITY : b->timed.high, seconds);
    DPT_TRY(mean_over_ranks(t, seconds, whats, (double)t->team.all_threads, err));
    DPT_TRY(mean_over_ranks(t, r->calls, whats, 1, err));
    dpt_sort(r->plain, n);
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
        seconds[what] *= b->scale;
    b->samples_per_s = t->data.train.sampler.global / b->step.median;
    DPT_TRY(dpt_group_agree(&t->comm->world, dpt_bench_rows(b, seconds, r->calls, err), err));
out:
    dpt_free(seconds);
    dpt_free(sorted);
    dpt_free(last);
    return status;
}

static enum dpt_status print(const struct dpt_bench *b, const struct dpt_cli *cli,
                             struct dpt_error *err)
{
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};

    if (dpt_cli_has(cli, "--json")) {
        dpt_bench_json(b, &json);
        return dpt_json_finish(&json, "the table", err);
    }
    dpt_bench_print(b, cli->log.terminal ? cli->log.columns : 0, &out);
    return dpt_output_text(&out, "the table", err);
}

static enum dpt_status bench(struct dpt_cli *cli, const struct dpt_job *job,
                             const struct dpt_conf *conf, const struct dpt_comm *comm,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer t = {0};
    struct dpt_bench b = {.t = &t, .scale = 1};
    struct record r = {0};
    long long steps;
    double seconds = 0;

    (void)conf;
    DPT_TRY(dpt_cli_int(cli, "--steps", 1, 1000000, 0, &steps, err));
    DPT_TRY(dpt_trainer_open(&t, job, comm, &cli->log, DPT_PART_TRAIN, NULL, err));
    dpt_trainer_warn_idle(&t, t.log);
    t.steps = INT64_MAX / 2; /* a schedule must not end before we do */
    if (t.backend->launches != NULL) {
        DPT_TRY(dpt_bench_device(&b, &t, steps, err));
        goto told;
    }
    dpt_log_info(t.log, "measuring the machine");
    DPT_TRY(dpt_machine_measure(&t, &b.machine, err));
    DPT_TRY(dpt_group_agree(&comm->world, dpt_loader_seek(t.data.train.loader, 0, 0, err), err));
    dpt_log_info(t.log, "warming up");
    DPT_TRY(dpt_bench_warm_up(&t, &seconds, err));
    if (steps == 0)
        steps = (long long)fmin(MOST_STEPS, fmax(LEAST_STEPS, measuring / seconds));
    DPT_TRY(dpt_group_agree(&comm->world, open_record(&r, &t, steps, err), err));
    r.every = seconds < short_step ? SELDOM : OFTEN;
    dpt_log_info(t.log, "measuring %lld steps, and %lld with timelines", steps, steps);
    DPT_TRY(measure(&t, &r, err));
    /* Machines have slow spells: the better of before and after. */
    DPT_TRY(dpt_machine_measure(&t, &b.machine, err));
    DPT_TRY(evaluate(&b, &t, &r, err));
told:
    if (comm->world.rank == 0)
        status = print(&b, cli, err);
out:
    dpt_free(b.rows);
    dpt_free(b.launches);
    close_record(&r);
    if (t.comm != NULL)
        dpt_trainer_close(&t);
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    return dpt_job_command(cli, bench, err);
}

static const struct dpt_cli_option options[] = {
    {"--steps", "N", "steps to measure, and as many with timelines; left out, about six seconds"},
    {"--json", NULL, "one JSON object instead of the table"},
    DPT_JOB_CLI_OPTIONS,
    {0},
};

const struct dpt_command dpt_cmd_bench = {
    .name = "bench",
    .usage = "JOB.yaml [--ranks N] [--steps N] [--json] [options]",
    .summary = "steps a second, and where a step's time goes",
    .details =
        "Trains for some seconds and throws the result away: no run folder, no checkpoint, no "
        "evaluation. First it measures the machine, a thread each on all ranks at once: a matrix "
        "product, and a loop over memory of several sizes. Then it times steps, every other pair "
        "of them with a timeline of each thread, which is where the table comes from; of steps of "
        "microseconds every eighth, and the table is scaled to the others.\n\n"
        "Times are means over all threads of all ranks, of the middle half of the steps. A limit "
        "is the larger of a part's arithmetic at the speed of that product and its bytes at the "
        "memory's bandwidth for as many bytes; a part that leaves out work may beat it. What was "
        "fused stands in one row (conv1+relu1+maxpool1). `waiting for ranks` is until the last "
        "rank is ready for the reduction.\n\n"
        "With device.kind: cuda runs of steps are timed, each waited for at its end only. The rows "
        "are rank 0's launches in some further steps, each timed alone by the device's clock, "
        "beside "
        "its bytes at the data sheet's bandwidth and its arithmetic at the peak of "
        "device.precision; "
        "how the step compares with their sum is told below.\n\n"
        "For a picture of single steps, train with --set "
        "log.trace=true.\n\n"
        "  dptrain bench configs/mnist-cnn.yaml --ranks 2",
    .options = options,
    .run = run,
};
