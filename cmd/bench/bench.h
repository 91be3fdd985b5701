/*
 * bench: the results of `dptrain bench`, and how they are printed. Private to that command.
 */
#ifndef DPT_CMD_BENCH_H
#define DPT_CMD_BENCH_H

#include "cmd/cmd.h"
#include "core/base/json.h"
#include "core/plan/plan.h"
#include "core/trace/profile.h"

enum { DPT_BENCH_NAME = 256 };

/* What a step's time goes into: a layer's pass, or something else that the step needs or waits
 * for. */
struct dpt_bench_row {
    char part[DPT_BENCH_NAME]; /* "conv1+relu1+maxpool1", "optimizer" */
    const char *pass;          /* "forward", or "" */
    const char *way;           /* which code computes it, if there are several; else NULL */
    bool waiting;
    bool small;     /* may be printed with `other` */
    double seconds; /* per step: the mean over all threads */
    double limit;   /* seconds; 0: has none */
    bool by_bytes;
    struct dpt_cost cost;
};

/* Seconds: median, quartiles, extremes. */
struct dpt_bench_spread {
    double median, low, high, least, most;
};

struct dpt_bench {
    const struct dpt_trainer *t;
    struct dpt_workload workload;    /* a step's */
    struct dpt_plan_traffic traffic; /* a step's actions' */
    struct dpt_machine machine;
    struct dpt_gpu_type gpu;       /* if steps are taken on a device; else without a name */
    double flops;                  /* its peak, at the job's precision */
    int64_t steps;                 /* measured */
    int runs;                      /* device: in so many runs, over which the spread is */
    struct dpt_bench_spread step;  /* without timelines */
    struct dpt_bench_spread timed; /* with them: the rows are of its middle half */
    double samples_per_s;          /* at the median */
    int every;                     /* one step in so many has timelines */
    double overhead; /* the instrumentation's, as a fraction of a step that has timelines; if fewer
                      * than every other one has, of all steps together */
    double scale;    /* factor from the rows to a step without timelines */
    struct dpt_launch_cost *launches; /* device: what the rows are made of */
    struct dpt_bench_row *rows;
    size_t n_rows;
    double seconds, limit;    /* sums of the rows */
    struct dpt_region region; /* holds all of it; the caller releases it */
};

/* The rows from what each thing took: seconds of a step and calls, [whats]. Errors: RANK. */
enum dpt_status dpt_bench_rows(struct dpt_bench *b, const double *seconds, const double *calls,
                               struct dpt_error *err);

/* Steps until the time is over on rank 0; *seconds: of one, the median of the last ones.
 * Collective. */
enum dpt_status dpt_bench_warm_up(struct dpt_trainer *t, double *seconds, struct dpt_error *err);
/* Sorts n measurements. */
struct dpt_bench_spread dpt_bench_spread_of(double *sorted, int64_t n);
/* Sums of all ranks' n numbers, divided. Collective. */
enum dpt_status dpt_bench_mean(const struct dpt_trainer *t, double *values, size_t n,
                               double divisor, struct dpt_error *err);

/*
 * Measures and fills b if threads take the trainer's steps: every other pair of them has a timeline
 * of each thread, of which the rows are made. steps: to be measured; 0: some seconds of them.
 * Collective. Errors: as dpt_trainer_step.
 */
enum dpt_status dpt_bench_host(struct dpt_bench *b, struct dpt_trainer *t, long long steps,
                               struct dpt_error *err);

/* Measures and fills b if a device takes the steps: runs of steps that are waited for at their end
 * only, and some more in which each launch is timed by itself: a row each. */
enum dpt_status dpt_bench_device(struct dpt_bench *b, struct dpt_trainer *t, long long steps,
                                 struct dpt_error *err);

/* Does all of `bench --find-lr`: steps at rates that grow, a table or JSON of their losses, and the
 * page that --html names. Collective. Errors: as dpt_trainer_step; USAGE. */
enum dpt_status dpt_bench_find_lr(struct dpt_cli *cli, const struct dpt_job *job,
                                  const struct dpt_comm *comm, struct dpt_error *err);

/* Writes a table for a person, in so many columns if the names allow it (0: names are not cut), or
 * one JSON object. */
void dpt_bench_print(const struct dpt_bench *b, int columns, struct dpt_str *out);
void dpt_bench_json(const struct dpt_bench *b, struct dpt_json *j);

#endif
