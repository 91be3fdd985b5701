/*
 * compare: what `dptrain compare` found of several runs. Private to that command.
 */
#ifndef DPT_CMD_COMPARE_H
#define DPT_CMD_COMPARE_H

#include "core/base/json.h"
#include "core/conf/yaml.h"
#include "core/state/jobs.h"
#include "core/state/history.h"

/* One of the runs. */
struct dpt_compare_run {
    struct dpt_history history;
    struct dpt_run_status run_status;
    struct dpt_conf job; /* job.yaml */
    bool has_job;
};

struct dpt_compare {
    struct dpt_compare_run *runs;
    size_t n;
    struct dpt_job_keys jobs;
};

/* For a person, in so many columns, several blocks of runs where they do not fit beside each
 * other; one JSON object. */
void dpt_compare_print(const struct dpt_compare *c, int columns, bool ascii, struct dpt_str *out);
void dpt_compare_json(const struct dpt_compare *c, struct dpt_json *j);

#endif
