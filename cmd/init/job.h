/*
 * init_job: the text of a job file for a data set, with comments.
 */
#ifndef DPT_CMD_INIT_JOB_H
#define DPT_CMD_INIT_JOB_H

#include "cmd/words.h"
#include "data/shards/shard_statistics.h"

struct dpt_init_job {
    const char *name; /* of the job */
    const char *path; /* of the job file, for the comments; NULL: standard output */
    const struct dpt_shard_statistics *statistics; /* NULL: synthetic data */
    struct dpt_str train, valid, test; /* values of data.train and so on, as YAML; empty: none */
    const struct dpt_word_keys *keys;
    struct dpt_data_keys data_keys; /* data.keys; NULL: the usual names */
    bool log_target;                /* targets are learned in log */
};

/* Writes it; check out->failed. */
void dpt_init_job_write(const struct dpt_init_job *init, struct dpt_str *out);

#endif
