/* What `dptrain bench` measures if a device computes: it runs by itself, so only many steps
 * together have a time, and only the device's own clock shows where that goes. */
#include <math.h>
#include <stdio.h>

#include "cmd/bench/bench.h"
#include "core/backend/devices.h"
#include "core/base/clock.h"
#include "core/train/team.h"

enum { RUNS = 15, TIMED = 10, MOST_COSTS = 512 };

static const double measuring = 3; /* seconds, if --steps is not given */
static const double estimating = 0.02;

/* Takes n steps and waits for all of them; *seconds: of one. Collective. */
static enum dpt_status run_steps(struct dpt_trainer *t, int64_t n, double *seconds,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_step_result result;
    const double start = dpt_now();

    for (int64_t i = 0; i < n; i++)
        DPT_TRY(dpt_trainer_step(t, &result, err));
    DPT_TRY(dpt_trainer_settle(t, &result, err));
    *seconds = (dpt_now() - start) / (double)n;
out:
    return status;
}

/* Estimates the seconds of a step from a run that is long enough for its end not to count. A step
 * that is timed by itself, as the warm-up does, is only enqueued. Collective. */
static enum dpt_status estimate(struct dpt_trainer *t, double *seconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t n = 1;

    do {
        n *= 2;
        DPT_TRY(run_steps(t, n, seconds, err));
        DPT_TRY(dpt_group_broadcast(&t->comm->world, 0, seconds, sizeof *seconds, err));
    } while (*seconds * (double)n < estimating);
out:
    return status;
}

static enum dpt_status measure(struct dpt_bench *b, struct dpt_trainer *t, int64_t each,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double seconds[RUNS];

    for (int i = 0; i < RUNS; i++)
        DPT_TRY(run_steps(t, each, &seconds[i], err));
    /* All ranks take as many steps. */
    DPT_TRY(dpt_bench_mean(t, seconds, RUNS, t->comm->world.size, err));
    b->step = dpt_bench_spread_of(seconds, RUNS);
    b->steps = RUNS * each;
    b->runs = RUNS;
    b->samples_per_s = t->data.train.sampler.global / b->step.median;
out:
    return status;
}

/* Rank 0's launches, each by itself, while the other ranks wait: they may share its device.
 * Collective. */
static enum dpt_status time_launches(struct dpt_trainer *t, struct dpt_launch_cost *costs, int *n,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_profile profile = {0};
    double ignored;

    DPT_TRY(dpt_group_agree(
        &t->comm->world,
        dpt_profile_open(&profile, t->layout.threads, t->model.graph.n_nodes, 0, err), err));
    dpt_trainer_observe(t, &profile);
    status = run_steps(t, TIMED, &ignored, err);
    dpt_trainer_observe(t, NULL);
    DPT_TRY(status);
    if (t->comm->world.rank == 0)
        status = t->backend->launches(t->model.program, costs, MOST_COSTS, n, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
out:
    dpt_profile_close(&profile);
    return status;
}

static enum dpt_status make_rows(struct dpt_bench *b, int n, struct dpt_error *err)
{
    b->rows = dpt_region_alloc(&b->region, ((size_t)n + 1) * sizeof *b->rows);
    if (b->rows == NULL)
        return dpt_fail_memory(err, "the table", (double)n * sizeof *b->rows);
    for (int i = 0; i < n; i++) {
        const struct dpt_launch_cost *c = &b->launches[i];
        struct dpt_bench_row *row = &b->rows[b->n_rows++];
        const double calls = (double)c->calls / TIMED, moved = (double)c->bytes * calls;
        const double by_bytes = moved / b->gpu.bandwidth, by_flop = c->flops * calls / b->flops;

        *row = (struct dpt_bench_row){.pass = c->what,
                                      .seconds = c->seconds / TIMED,
                                      .limit = fmax(by_bytes, by_flop),
                                      .by_bytes = by_bytes >= by_flop,
                                      .cost = {.flop = c->flops * calls, .move = {{moved, moved}}}};
        snprintf(row->part, sizeof row->part, "%s", c->node[0] != '\0' ? c->node : "step");
        b->seconds += row->seconds;
        b->limit += row->limit;
    }
    return DPT_OK;
}

enum dpt_status dpt_bench_device(struct dpt_bench *b, struct dpt_trainer *t, long long steps,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_device_info info;
    double seconds = 0;
    int64_t each;
    int n = 0;

    b->launches = dpt_region_alloc(&b->region, MOST_COSTS * sizeof *b->launches);
    if (b->launches == NULL)
        status = dpt_fail_memory(err, "the table", (double)MOST_COSTS * sizeof *b->launches);
    else
        status = t->backend->devices->info(t->gpu, &info, err);
    DPT_TRY(dpt_group_agree(&t->comm->world, status, err));
    dpt_gpu_describe(&info, &b->gpu);
    b->flops = dpt_gpu_peak(&b->gpu, t->job->device.precision);
    DPT_TRY(dpt_group_agree(&t->comm->world, dpt_trainer_seek(t, err), err));
    dpt_log_info(t->log, "warming up");
    DPT_TRY(dpt_bench_warm_up(t, &seconds, err));
    if (steps == 0)
        DPT_TRY(estimate(t, &seconds, err));
    each = steps > 0 ? (steps + RUNS - 1) / RUNS : (int64_t)(measuring / RUNS / seconds) + 1;
    dpt_log_info(t->log, "measuring %d runs of %lld steps, then each launch by itself", RUNS,
                 (long long)each);
    DPT_TRY(measure(b, t, each, err));
    DPT_TRY(time_launches(t, b->launches, &n, err));
    DPT_TRY(dpt_group_agree(&t->comm->world, make_rows(b, n, err), err));
out:
    return status;
}
