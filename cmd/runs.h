/*
 * runs: run folders as `report` and `compare` look at them: their histories, their jobs and in what
 * these differ, and where the figures stand that a table of runs tells.
 */
#ifndef DPT_CMD_RUNS_H
#define DPT_CMD_RUNS_H

#include "core/conf/yaml.h"
#include "core/state/history.h"
#include "core/state/jobs.h"

struct dpt_run_folder {
    struct dpt_history history;
    struct dpt_run_status run_status;
    struct dpt_conf job; /* job.yaml */
    const char *no_job;  /* not NULL: it cannot be read, and why */
};

struct dpt_runs {
    struct dpt_run_folder *at;
    size_t n;
    struct dpt_job_keys jobs;
    struct dpt_region texts;
};

/* Reads the folders, to be closed in any case. whole: the jobs as they stand, also of models that
 * are not alike; else see dpt_runs_fold_models. Errors: USAGE (no run), IO, RANK. */
enum dpt_status dpt_runs_open(struct dpt_runs *runs, const char *const *folders, size_t n,
                              bool whole, struct dpt_error *err);
/* Where the models do not have the same keys, `model.type` becomes "mlp, hidden [64, 32]" and each
 * layer of a list one text, `model.layers[0]`: "conv 32, kernel 3". False where memory ran out. */
bool dpt_runs_fold_models(struct dpt_runs *runs);
void dpt_runs_close(struct dpt_runs *runs);

/* A record of a history. */
enum dpt_record {
    DPT_RECORD_START, /* the newest */
    DPT_RECORD_TRAIN, /* the newest train event */
    DPT_RECORD_EPOCH, /* the newest evaluation of this split */
    DPT_RECORD_VALID,
    DPT_RECORD_TEST,
    DPT_RECORD_BEST, /* of the evaluations of valid */
};

enum dpt_figure_type { DPT_FIGURE_REAL, DPT_FIGURE_COUNT, DPT_FIGURE_TEXT };

/* Where a figure of a run stands: a member of a record, or it is computed. */
struct dpt_figure {
    enum dpt_record record;
    enum dpt_figure_type type;
    size_t member;
    double (*of)(const struct dpt_history *h); /* NULL: it is the member */
};

#define DPT_OF_START(type, member)                                                                 \
    {                                                                                              \
        DPT_RECORD_START, DPT_FIGURE_##type, offsetof(struct dpt_history_start, member), NULL      \
    }
#define DPT_OF_TRAIN(member)                                                                       \
    {                                                                                              \
        DPT_RECORD_TRAIN, DPT_FIGURE_REAL, offsetof(struct dpt_history_train, member), NULL        \
    }
#define DPT_OF_EVAL(record, type, member)                                                          \
    {                                                                                              \
        DPT_RECORD_##record, DPT_FIGURE_##type, offsetof(struct dpt_history_eval, member), NULL    \
    }
#define DPT_OF_RUN(function)                                                                       \
    {                                                                                              \
        .of = (function)                                                                           \
    }

/* A figure that is no text; NAN: the run does not have it. */
double dpt_figure_number(const struct dpt_figure *f, const struct dpt_history *h);
/* One that is a text; "": the run does not have it. */
const char *dpt_figure_text(const struct dpt_figure *f, const struct dpt_history *h);

/* How far a run is, in steps; how often it was started. */
double dpt_figure_step(const struct dpt_history *h);
double dpt_figure_starts(const struct dpt_history *h);

#endif
