#include "cmd/runs.h"

#include <stdio.h>
#include <stdlib.h>

/* A folder without a job, or with one that cannot be read, still has its results. */
static bool read_job(struct dpt_runs *runs, struct dpt_run_folder *run)
{
    char path[PATH_MAX + 16];
    struct dpt_error why = {0};

    snprintf(path, sizeof path, "%s/job.yaml", run->history.folder);
    if (dpt_conf_load(&run->job, path, &why) == DPT_OK)
        return true;
    run->no_job = dpt_region_strdup(&runs->texts, why.text);
    return run->no_job != NULL;
}

enum dpt_status dpt_runs_open(struct dpt_runs *runs, const char *const *folders, size_t n,
                              bool whole, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_conf_node **jobs;

    *runs = (struct dpt_runs){.at = calloc(n, sizeof *runs->at)};
    jobs = dpt_region_alloc(&runs->texts, n * sizeof(void *));
    if (runs->at == NULL || jobs == NULL)
        return dpt_fail_memory(err, "the runs", 0);
    for (size_t i = 0; i < n; i++) {
        struct dpt_run_folder *run = &runs->at[runs->n++];

        DPT_TRY(dpt_history_open(&run->history, folders[i], err));
        dpt_run_status_read(&run->history, &run->run_status);
        if (!read_job(runs, run))
            DPT_TRY(dpt_fail_memory(err, "the runs", 0));
        jobs[i] = run->no_job == NULL ? run->job.root : NULL;
    }
    if (!whole && !dpt_runs_fold_models(runs))
        DPT_TRY(dpt_fail_memory(err, "the models of the jobs", 0));
    if (!dpt_job_keys_open(&runs->jobs, jobs, n) || !dpt_runs_find_bases(runs) ||
        !dpt_runs_sort(runs))
        status = dpt_fail_memory(err, "the keys of the jobs", 0);
out:
    return status;
}

bool dpt_runs_jobs_differ(const struct dpt_runs *runs)
{
    for (size_t k = 0; k < runs->jobs.n_keys; k++)
        if (runs->jobs.keys[k].differs)
            return true;
    return false;
}

void dpt_runs_close(struct dpt_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++) {
        dpt_history_close(&runs->at[i].history);
        dpt_conf_release(&runs->at[i].job);
    }
    free(runs->at);
    dpt_job_keys_close(&runs->jobs);
    dpt_region_release(&runs->texts);
}
