/*
 * run: a job from its first step to its last, with its log, metrics and checkpoints.
 */
#ifndef DPT_TRAIN_RUN_H
#define DPT_TRAIN_RUN_H

#include <limits.h>

#include "core/base/str.h"
#include "core/state/board.h"
#include "core/state/lock.h"
#include "core/state/metrics.h"
#include "core/state/saver.h"
#include "core/trace/trace.h"
#include "core/train/run/resume.h"
#include "core/train/trainer.h"
#include "core/train/use/init.h"

/* What a rank reports with a line. */
struct dpt_rank_work {
    double seconds; /* computing its part of the steps since the last line */
    double bytes;   /* the most memory that it has had */
};

/* The metric sums of training steps, and the seconds that they took. */
struct dpt_run_sums {
    struct dpt_metric_sums metric_sums;
    double seconds;
};

/* A training run on one rank. Files are written by rank 0 alone. */
struct dpt_run {
    struct dpt_trainer trainer;
    const struct dpt_conf *conf; /* borrowed: the resolved job */
    struct dpt_lock *lock;       /* the run folder's; on rank 0 */
    struct dpt_saver *saver;     /* rank 0's */
    bool overwritten;            /* the folder's run before this one is still kept; rank 0's */
    int64_t resumed;             /* the step that it resumed from, -1: it is new */
    struct dpt_init_result init; /* rank 0's */
    struct dpt_metrics metrics;
    char metrics_path[PATH_MAX];
    struct dpt_board board;         /* log.tensorboard, rank 0 */
    FILE *hashes;                   /* log.hashes, rank 0 */
    struct dpt_board_counts counts; /* for it */
    int64_t *fingerprints;          /* the last step's, if they are logged */
    struct dpt_trace *trace;        /* log.trace */
    struct dpt_str job_text;        /* for checkpoints */
    struct dpt_str resolved;        /* for the run folder */
    double training;                /* seconds in steps, evaluation and saving not counted */
    double first_step;              /* seconds from exec to the end of the first step */
    struct dpt_every log_every;     /* the job's; never DPT_AUTO */
    int64_t epochs_every;           /* every so many epochs one is reported; 0: none */
    int64_t epochs_shown;           /* likewise shown; the others are in metrics.jsonl alone */
    double first_loss;          /* this process's first step's, before any update; NaN: none yet */
    double last_loss;           /* mean of the last line, or epoch; NaN: none yet */
    struct dpt_run_sums window; /* since the last line */
    struct dpt_run_sums epoch;  /* since the epoch began, or the process */
    int cuts;                   /* parts left out of the last line to fit the terminal */
    struct dpt_rank_work *rank_work; /* [ranks]; NULL: there is one rank */
    double lr, norm;                 /* from the last step that was not skipped */
    int64_t counted;                 /* samples trained on by this process */
    int64_t skipped, weightless;
    int64_t learned_step; /* up to which all ranks have a device's results; -1: none */
    double saved_at;      /* dpt_now */
    double save_seconds;  /* the longest save's */
    double step_seconds;  /* the longest step's, with what follows it */
    double deadline;      /* dpt_now by which the process must have ended; rank 0's */
    bool stopped;         /* on request: on all ranks after the same step */
    int64_t saved_step;   /* the newest checkpoint's, -1: none */
    int64_t checked_step; /* at which the replicas were compared last, -1: never */
    int64_t tested_step;  /* at which data.test was evaluated last, -1: never */
    struct dpt_metric_sums test, valid;
    struct dpt_scores test_scores, valid_scores;
    struct dpt_metric_sums best_test; /* the best checkpoint's; no samples: not tested */
    struct dpt_scores best_test_scores;
    /* The first and the last epoch that was reported, from 1, 0: none; and their mean losses. */
    int64_t first_epoch, last_epoch;
    double first_epoch_loss, last_epoch_loss;
    double live_at;
};

/*
 * Collective over comm->world. Trains the job: run folder, header, steps, evaluations, checkpoints,
 * logs. summary: out, on rank 0 the text for stdout at the end. Errors: as dpt_trainer_open,
 * dpt_trainer_step, dpt_resume_run, dpt_lock_take and dpt_lock_check; IO; STOPPED if a signal or
 * the clock stopped it and all is saved, FAILED if nothing is (checkpoint.every: never).
 */
enum dpt_status dpt_run_job(const struct dpt_job *job, const struct dpt_conf *conf,
                            const struct dpt_comm *comm, struct dpt_log *log,
                            const struct dpt_resume *resume, struct dpt_str *summary,
                            struct dpt_error *err);

/* Rank 0 keeps the run's folder, its files and its lock. */
static inline bool dpt_run_leads(const struct dpt_run *run)
{
    return run->trainer.comm->world.rank == 0;
}

/* All ranks agree on a status, so that they end together, also for a failure of rank 0 alone in
 * this step. Collective. */
static inline enum dpt_status dpt_run_agree(const struct dpt_run *run, enum dpt_status status,
                                            struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;

    return dpt_group_agree(&t->comm->world, status != DPT_OK ? status : t->requests.deferred_error,
                           err);
}

/* Converts a time in steps or epochs into steps. */
static inline double dpt_run_steps_of(const struct dpt_trainer *t, const struct dpt_every *every)
{
    return every->unit == DPT_EPOCHS ? every->n * (double)t->steps_per_epoch : every->n;
}

/* The epoch of a step > 0, counted from 1. */
static inline int64_t dpt_run_epoch(const struct dpt_trainer *t, int64_t step)
{
    return (step - 1) / t->steps_per_epoch + 1;
}

/* Adds to the time that training took. */
void dpt_run_spend(struct dpt_run *run, double seconds);
/* Adds the result of steps that had an update. */
void dpt_run_count(struct dpt_run *run, const struct dpt_step_result *result);
/* Counts the steps without an update; rank 0 warns about them. */
void dpt_run_count_skipped(struct dpt_run *run, const struct dpt_step_result *result);
/* Collective. If a device takes the steps, waits for it and takes their results. It stops the run
 * if a value is not finite, so it is called before anything that uses the parameters. Errors: as
 * dpt_trainer_settle. */
enum dpt_status dpt_run_settle(struct dpt_run *run, struct dpt_error *err);
/* Takes a device's results as dpt_run_settle does, but on rank 0 alone, for a line that only it
 * prints. */
enum dpt_status dpt_run_peek(struct dpt_run *run, struct dpt_error *err);
/* Collective. Copies the parameters and slots of this step to the arenas on all ranks. Errors: as
 * dpt_run_settle. */
enum dpt_status dpt_run_fetch(struct dpt_run *run, struct dpt_error *err);

/* Takes the lock of the run folder, before anything else. Collective. Errors: as dpt_lock_take. */
enum dpt_status dpt_run_take_lock(struct dpt_run *run, const struct dpt_comm *comm,
                                  struct dpt_log *log, const struct dpt_job *job,
                                  struct dpt_error *err);
/* Does all that comes between opening the trainer and the first step. *finished: there is nothing
 * left to do. Collective. */
enum dpt_status dpt_run_prepare(struct dpt_run *run, const struct dpt_resume *resume,
                                bool *finished, struct dpt_error *err);

/* Begins to watch what the job monitors, unless the state that the run resumes from has it. */
void dpt_run_watch(struct dpt_run *run);
/* Collective. Evaluates a split, reports it, and decides by data.valid. Errors: as
 * dpt_trainer_evaluate; BAD_JOB (what is monitored does not exist for these samples). */
enum dpt_status dpt_run_evaluate(struct dpt_run *run, struct dpt_split *split,
                                 struct dpt_error *err);
/* Whether evaluations have ended the run (train.early_stop), alike on all ranks. */
static inline bool dpt_run_stops_early(const struct dpt_run *run)
{
    const struct dpt_job *job = run->trainer.job;
    const struct dpt_progress *p = &run->trainer.progress;
    const int64_t patience = job->train.early_stop.patience;

    return patience > 0 && p->early_stop.waits >= patience &&
           (job->train.also == DPT_MONITOR_AUTO || p->also.waits >= patience);
}
/* Adds why, in words without an end. */
void dpt_run_why_stopped(const struct dpt_run *run, struct dpt_str *out);
/* Logs that and why evaluations ended the run, and which step was best; or does nothing. */
void dpt_run_log_stop(const struct dpt_run *run);
/* Collective, after the last step and save. Evaluates the best checkpoint on data.test, if the job
 * says by what it is chosen and it is not the last one; the trainer has its weights then. Errors:
 * as dpt_trainer_load_params and dpt_trainer_evaluate. */
enum dpt_status dpt_run_test_best(struct dpt_run *run, struct dpt_error *err);

/* Starts or stops recording what this run's threads do, if there is a trace. */
void dpt_run_observe(struct dpt_run *run, bool on);

/* Saves (run_save.c). Collective: starts one, beside the training or, with `wait`, at once and to
 * its end; the replicas are compared before. Errors: FAILED (the replicas differ), IO, RANK. */
enum dpt_status dpt_run_save(struct dpt_run *run, bool wait, struct dpt_error *err);
/* Collective. Waits until the ranks have written their parts of a save (t->file.pending), and
 * leaves the rest to rank 0's thread; await_save: waits for all of it, and reports it. Errors: IO,
 * RANK. */
enum dpt_status dpt_run_end_parts(struct dpt_run *run, struct dpt_error *err);
enum dpt_status dpt_run_await_save(struct dpt_run *run, struct dpt_error *err);
/* Reports a save that has ended; wait: first waits for one that rank 0's thread writes. Rank 0.
 * Errors: IO, RANK. */
enum dpt_status dpt_run_collect(struct dpt_run *run, bool wait, struct dpt_error *err);
/* Deletes the previous run, since the present one has a checkpoint or has ended. Rank 0. */
void dpt_run_drop_overwritten(struct dpt_run *run);
/* Collective. Compares the replicas, at most once per step, unless there is only one. Errors:
 * FAILED, which names the newest checkpoint. */
enum dpt_status dpt_run_check_replicas(struct dpt_run *run, struct dpt_error *err);

/* Collective. Logs what a person should know before the run starts, and writes the `run` event. */
enum dpt_status dpt_report_start(struct dpt_run *run, struct dpt_error *err);
/* The report functions append to the metrics, so they fail as dpt_lock_check does, too. Writes the
 * live line and, with `line`, the plain line and the `train` event. Rank 0. Errors: IO. */
enum dpt_status dpt_report_step(struct dpt_run *run, bool line, struct dpt_error *err);
/* Writes the line and the `epoch` event of the epoch that ended with the last step. Rank 0. Errors:
 * IO. */
enum dpt_status dpt_report_epoch(struct dpt_run *run, struct dpt_error *err);
/* Writes the line and the `eval` event of an evaluation of the weights of the last step, or the
 * `best` event of those of an earlier one, the best checkpoint. Rank 0. Errors: IO. */
enum dpt_status dpt_report_evaluation(struct dpt_run *run, const char *split, int64_t step,
                                      const struct dpt_metric_sums *metric_sums,
                                      const struct dpt_scores *scores, double seconds,
                                      struct dpt_error *err);
/* Writes the line and the `checkpoint` event of a save that ended. Errors: IO. */
enum dpt_status dpt_report_saved(struct dpt_run *run, const struct dpt_saved *saved,
                                 struct dpt_error *err);
/* Ends a line of the metrics. A run whose folder another one has taken over adds nothing to its
 * files. Errors: as dpt_lock_check; IO. */
enum dpt_status dpt_report_line(struct dpt_run *run, struct dpt_error *err);
enum { DPT_RATE_TEXT = 32 };
/* A rate with three digits that count, since the others change from line to line; returns
 * digits. */
const char *dpt_report_rate(double rate, char digits[DPT_RATE_TEXT]);
/* Writes the `end` event and, on success, the summary. reason: "done" or what failed. */
enum dpt_status dpt_report_end(struct dpt_run *run, const char *reason, struct dpt_str *summary,
                               struct dpt_error *err);

/* What a run reports about its devices (report_gpus.c). Rank 0: logs the lines of the header; adds
 * members to the `run` event. */
void dpt_gpus_log(const struct dpt_trainer *t);
void dpt_gpus_metrics(const struct dpt_trainer *t, struct dpt_metrics *m);

#endif
