/*
 * runs: run folders as `report` and `compare` look at them: their histories, their jobs and in what
 * these differ, and where the figures stand that a table of runs tells.
 */
#ifndef DPT_CMD_RUNS_H
#define DPT_CMD_RUNS_H

#include "core/base/str.h"
#include "core/state/history.h"
#include "core/state/jobs.h"

/* What figures of two runs must have in common to be compared. */
enum dpt_basis {
    DPT_BASIS_DATA,    /* the samples that are evaluated */
    DPT_BASIS_WEIGHTS, /* how much each counts */
    DPT_BASIS_LOSS,    /* the loss function */
    DPT_BASIS_SCALE,   /* how targets are scaled */
    DPT_BASES
};
enum {
    DPT_ON_DATA = 1 << DPT_BASIS_DATA,
    DPT_ON_SHARE = DPT_ON_DATA | 1 << DPT_BASIS_WEIGHTS,
    DPT_ON_LOSS = DPT_ON_SHARE | 1 << DPT_BASIS_LOSS | 1 << DPT_BASIS_SCALE,
};

struct dpt_run_folder {
    struct dpt_history history;
    struct dpt_run_status run_status;
    struct dpt_conf job; /* job.yaml */
    const char *no_job;  /* not NULL: it cannot be read, and why */
    /* [DPT_HISTORY_SPLITS][DPT_BASES]: what the figures of a split are of, "weighted by
     * data.class_weights"; NULL: the run has no such figures. */
    const char *(*basis)[DPT_BASES];
};

struct dpt_figure;

struct dpt_runs {
    struct dpt_run_folder *at;
    size_t n;
    struct dpt_job_keys jobs;
    /* How tables tell them (runs_order.c): [n], and the groups of which figures can be compared. */
    size_t *order;
    int *group;
    const char *sorted_by;           /* "best valid accuracy"; NULL: they stay as they were given */
    const struct dpt_figure *sorted; /* likewise */
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
/* Whether the jobs differ in some key. */
bool dpt_runs_jobs_differ(const struct dpt_runs *runs);
/* What the job of a run says, "0.1"; NULL: it has no such key. */
const char *dpt_runs_value(const struct dpt_runs *runs, size_t run, const char *path);

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

/* The runs of which a figure is worth telling. */
enum dpt_figure_of {
    DPT_OF_ALL,
    DPT_OF_UNEVEN, /* accuracy hides a rare class, in one of the runs */
    DPT_OF_LABELS, /* a sample has several labels */
    DPT_OF_OTHERS, /* it has not */
};

/* Where a figure of a run stands: a member of a record, or it is computed. */
struct dpt_figure {
    enum dpt_record record;
    enum dpt_figure_type type;
    size_t member;
    double (*of)(const struct dpt_history *h); /* NULL: it is the member */
    enum dpt_figure_of runs;
    unsigned basis; /* DPT_ON_DATA, … */
};

#define DPT_OF_START(type, member)                                                                 \
    {                                                                                              \
        DPT_RECORD_START, DPT_FIGURE_##type, offsetof(struct dpt_history_start, member), NULL,     \
            DPT_OF_ALL, 0                                                                          \
    }
#define DPT_OF_TRAIN(member, runs, basis)                                                          \
    {                                                                                              \
        DPT_RECORD_TRAIN, DPT_FIGURE_REAL, offsetof(struct dpt_history_train, member), NULL, runs, \
            basis                                                                                  \
    }
#define DPT_OF_EVAL(record, type, member, runs, basis)                                             \
    {                                                                                              \
        DPT_RECORD_##record, DPT_FIGURE_##type, offsetof(struct dpt_history_eval, member), NULL,   \
            runs, basis                                                                            \
    }
/* The loss of the best evaluation of valid: of numbers, which have no accuracy, or of the rest. */
#define DPT_OF_LOSS(function)                                                                      \
    {                                                                                              \
        .record = DPT_RECORD_BEST, .of = (function), .basis = DPT_ON_LOSS                          \
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
double dpt_figure_best_loss(const struct dpt_history *h);
double dpt_figure_its_loss(const struct dpt_history *h);

/* --- which figures may be compared (runs_figures.c) ------------------------------------------- */

/* Finds what the figures of each run are of. False where memory ran out. */
bool dpt_runs_find_bases(struct dpt_runs *runs);
/* Whether a figure of two runs is of the same; and of all the runs that have it. */
bool dpt_runs_same_basis(const struct dpt_runs *runs, const struct dpt_figure *f, size_t a,
                         size_t b);
bool dpt_runs_alike(const struct dpt_runs *runs, const struct dpt_figure *f);
/* What has to be said after such a figure: "", "scaled", "weighted", "weighted, scaled". */
const char *dpt_runs_mark(const struct dpt_runs *runs, size_t run, const struct dpt_figure *f);
/*
 * Says why figures of the runs are not comparable, where they are not, in a sentence each: "The
 * train and valid losses and accuracies are not comparable: unweighted in a; weighted by
 * data.class_weights in b." names: [runs]. said: out, the region's; gives how many. Memory that ran
 * out is in region->failed.
 */
enum { DPT_MOST_REASONS = DPT_BASES * DPT_HISTORY_SPLITS };
size_t dpt_runs_tell_bases(const struct dpt_runs *runs, const char *const *names,
                           struct dpt_region *region, const char *said[DPT_MOST_REASONS]);

/* --- in which order (runs_order.c) ------------------------------------------------------------ */

/* Fills runs->order, group and sorted_by: by what the jobs monitor, the best first. False where
 * memory ran out. */
bool dpt_runs_sort(struct dpt_runs *runs);
/* Whether a figure of the best evaluations is the one that they are chosen and the runs sorted by;
 * true also where the runs stay as they were given. */
bool dpt_runs_sorted_by(const struct dpt_runs *runs, const struct dpt_figure *f);
/* "Sorted by best valid accuracy.", in the region; NULL: they are not, or memory ran out. */
const char *dpt_runs_tell_order(const struct dpt_runs *runs, struct dpt_region *region);

#endif
