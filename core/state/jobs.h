/* jobs: in what jobs differ, key by key: of a checkpoint and its continuation, or of several runs.
 */
#ifndef DPT_STATE_JOBS_H
#define DPT_STATE_JOBS_H

#include <stdbool.h>

#include "core/base/memory.h"
#include "core/conf/option.h"

struct dpt_job_key {
    const char *path;       /* "optimizer.lr" */
    const char **value;     /* [jobs]: as a terminal may show it; NULL: that job does not have it */
    enum dpt_effect effect; /* as its row says; AS_ABOVE where the job was not read by rows */
    bool words;             /* its row wants text: 01 is not 1 */
    bool differs;           /* in two jobs; numbers by what they are: 1e-3 is 0.001 */
};

struct dpt_job_keys {
    size_t n;                 /* jobs */
    struct dpt_job_key *keys; /* the first job's in their order, then what others have besides */
    size_t n_keys, capacity;
    struct dpt_region arena;
    bool failed;
};

/* Finds the keys in which n jobs differ; NULL: a job that is not known, which takes no part. False
 * where memory ran out; to be closed in any case. Where a run lies always differs, and counts for
 * nothing. */
bool dpt_job_keys_open(struct dpt_job_keys *keys, const struct dpt_conf_node *const *jobs,
                       size_t n);
void dpt_job_keys_close(struct dpt_job_keys *keys);

/*
 * Compares the job of a checkpoint with the present one. table: the rows of a job, which say what
 * the keys mean to a resumed run, and the defaults of those that a text lacks; size: of the
 * struct that they fill. Without a table every key counts. settled: a key that may differ, since
 * what it names is known to be the same; NULL: none. *changes: one line per difference, "key: old
 * -> new"; all: also of the keys that change nothing, which only older checkpoints have. Returns
 * whether only such keys differ as a continued run may change. Memory that ran out is in
 * changes->failed.
 */
bool dpt_jobs_compare(const char *old_job, const char *new_job, const struct dpt_option *table,
                      size_t size, const char *settled, bool all, struct dpt_str *changes);

#endif
