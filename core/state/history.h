/*
 * history: what a run folder tells of its run, from metrics.jsonl, while it runs and afterwards.
 *
 * The lines become arrays, in the order of the file; steps rise in each of them, since resuming
 * takes out what came after its checkpoint. A run that was resumed is one history with several
 * `starts`, each with its own ranks and versions. What a line lacks is NAN or -1.
 *
 * Anything may stand in the file: a half-written last line is left for later, a damaged one is
 * counted and passed over, so are events and fields of other versions. Reading needs no lock and
 * changes nothing; dpt_history_more looks again, also over NFS and also where the run started again
 * meanwhile. Lines are read in pieces, so the file may be larger than the memory; the arrays take
 * about 90 bytes per line.
 */
#ifndef DPT_STATE_HISTORY_H
#define DPT_STATE_HISTORY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/state/lock.h"

/* A `run` event: a process group that began or resumed. Texts are "" where the line lacks them. */
struct dpt_history_start {
    const char *name, *version, *mpi, *hdf5, *device, *library, *host;
    int64_t ranks, hosts, threads, parameters;
    int64_t learned; /* parameters that are not frozen; -1: all */
    int64_t train_samples, valid_samples, test_samples; /* -1: there is no such split */
    int64_t global, micro;
    int64_t steps, steps_per_epoch; /* of the whole run, as this start saw it */
    int64_t resumed_from;           /* the step that it resumed from; -1: it began */
    double *rank_seconds; /* [n_rank_seconds]: what each rank worked on its part of the steps of
                             this start's `train` events; NULL: they do not tell */
    size_t n_rank_seconds;
    double *rank_bytes; /* [ranks]: the most memory that each had so far; NULL: likewise */
    /* Ranks along each axis of the mesh; -1: they do not divide the model. */
    int64_t data, tensor, pipeline;
    const char *shard;   /* what is divided among the replicas; "": nothing */
    const char **stages; /* [pipeline]: the first layer of each; NULL: not told */
    double *rank_nodes;  /* [ranks]: the number of each one's node; NULL: not told */
};

/* A `train` event. */
struct dpt_history_train {
    int64_t step;
    int64_t samples;             /* trained on since the run began */
    int32_t start;               /* index into `starts`; -1: before any */
    double loss, accuracy;       /* means since the event before; accuracy NAN without classes */
    double lr, norm;             /* of the last step; norm: of its gradient, before clipping */
    double rate;                 /* samples/s in the steps since the event before */
    double rank_mean, rank_most; /* seconds that a rank worked on its part of these steps */
};

enum dpt_history_split {
    DPT_HISTORY_EPOCH, /* the training samples of an epoch, with the weights of each step */
    DPT_HISTORY_VALID,
    DPT_HISTORY_TEST,
    DPT_HISTORY_SPLITS
};

/* An `eval` event, or an `epoch` event. Scores are NAN where the line lacks them. */
struct dpt_history_eval {
    int64_t step, samples;
    enum dpt_history_split split;
    double loss, accuracy;    /* accuracy: NAN without classes */
    double weight;            /* of all samples together; NAN: each counts as one */
    double mae, rmse, r2;     /* of numbers, in their units */
    double label_accuracy;    /* multi-label: the share of all labels that is right */
    double balanced_accuracy; /* of classes */
    double rare_recall;       /* of the rarest class; NAN: classes are even, or there are none */
    double precision, recall, f1, roc_auc, top5;
    bool best; /* it became the best by what the job monitors (checkpoint.monitor) */
};

/* What only some evaluations have: a name in their lines, and a double of struct dpt_history_eval.
 * The last has no name. */
struct dpt_history_score {
    const char *name;
    size_t member;
};
extern const struct dpt_history_score dpt_history_scores[];

/* An `end` event. Times are of that start alone, from exec. */
struct dpt_history_end {
    int32_t start;
    const char *reason; /* "done", or why not: a line for a person */
    const char *early;  /* why it stopped early; "": it did not */
    double seconds;
    int64_t generation; /* of the lock's owner that a watchdog ended; -1: not told */
};

struct dpt_history {
    char folder[PATH_MAX]; /* as the caller gave it, without slashes at its end */
    struct dpt_history_start *starts;
    struct dpt_history_train *train;
    struct dpt_history_eval *evals;
    struct dpt_history_end *ends;
    size_t n_starts, n_train, n_evals, n_ends;
    /* The test of the best checkpoint at the end of a run whose job monitors a value; step -1: it
     * is not told, or data.test was evaluated since. */
    struct dpt_history_eval best_test;
    int64_t step;    /* the largest of any line */
    int64_t saved;   /* the step of the newest checkpoint; -1: none */
    int64_t lines;   /* read so far */
    int64_t damaged; /* of these, passed over */
    bool scaled;     /* losses are of scaled targets */
    bool labels;     /* a sample has several labels: `accuracy` is that all of them are right */
    bool uneven;     /* an evaluation says how many of a rare class are found */
    /* The rest is history.c's own. */
    size_t capacity[4];
    struct dpt_region texts;
    char path[PATH_MAX + 16];
    dev_t device;
    ino_t inode;
    long long offset; /* of the first line that was not read */
};

/*
 * Reads FOLDER/metrics.jsonl; `folder` may also name that file. *h need not be initialised; close
 * it also after a failure. Errors: USAGE (no such folder, or it holds no run), IO, RANK (memory).
 */
enum dpt_status dpt_history_open(struct dpt_history *h, const char *folder, struct dpt_error *err);
void dpt_history_close(struct dpt_history *h);

/*
 * Reads what was added since. *changed: out, whether anything was; where the file is another one by
 * now (resuming rewrites it) all is read again, so indices and texts from before are void.
 * Errors: IO, RANK; what was read stays.
 */
enum dpt_status dpt_history_more(struct dpt_history *h, bool *changed, struct dpt_error *err);

/* The newest start and its end; NULL where there is none: it runs, or was stopped by force. */
const struct dpt_history_start *dpt_history_start(const struct dpt_history *h);
const struct dpt_history_end *dpt_history_end(const struct dpt_history *h);
/* Whether the run made all its steps, or stopped early. */
bool dpt_history_done(const struct dpt_history *h);

/* The newest evaluation of a split: of test that of the best checkpoint, if it is told. And the
 * best one: by what the job monitors, else the highest accuracy or, without classes, the lowest
 * loss; of equal ones the first. NULL: none. */
const struct dpt_history_eval *dpt_history_last(const struct dpt_history *h,
                                                enum dpt_history_split split);
const struct dpt_history_eval *dpt_history_best(const struct dpt_history *h,
                                                enum dpt_history_split split);

/* How far it is: the largest step of any line; 0 before the first. */
int64_t dpt_history_step(const struct dpt_history *h);
/* The epoch of a step, counted from 1, and how many the newest start will make; 0: unknown. */
int64_t dpt_history_epoch(const struct dpt_history *h, int64_t step);
int64_t dpt_history_epochs(const struct dpt_history *h);

/* Samples/s of all train events of the newest start, weighted by their time; NAN: unknown. */
double dpt_history_rate(const struct dpt_history *h);
/* Seconds from exec, summed over all starts that ended by themselves; NAN: none did. */
double dpt_history_seconds(const struct dpt_history *h);

/* "epoch", "valid", "test". */
extern const char *const dpt_history_splits[DPT_HISTORY_SPLITS];

/* --- whether the run is still running, and how it ended --------------------------------------- */

enum dpt_run_state {
    DPT_RUN_RUNNING,
    DPT_RUN_DONE,    /* made all its steps, or stopped early */
    DPT_RUN_STOPPED, /* on request: started again, it resumes */
    DPT_RUN_FAILED,  /* and said why */
    DPT_RUN_LOST,    /* stopped by force, or its node is gone */
    DPT_RUN_STATES
};

struct dpt_run_status {
    enum dpt_run_state state;
    const char *reason; /* why it ended, or stopped early, the history's; "" */
    bool held;          /* a process holds the lock: */
    struct dpt_owner owner;
    double silent; /* seconds since its last sign of life */
};

/* One word each: "running", "done", "stopped", "failed", "lost". */
extern const char *const dpt_run_state_names[DPT_RUN_STATES];

/* Reads it from the run's history and the lock of its folder (see lock.h): a run that was stopped
 * by force leaves no end in metrics.jsonl and a lock that nobody renews. */
void dpt_run_status_read(const struct dpt_history *h, struct dpt_run_status *run_status);

#endif
