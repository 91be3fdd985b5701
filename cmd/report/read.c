/* What run folders tell: their histories and their jobs. */
#include <stdlib.h>
#include <string.h>

#include "cmd/report/report.h"
#include "core/base/file.h"

static enum dpt_status read_job(struct dpt_page *r, struct dpt_page_run *run, struct dpt_error *err)
{
    struct dpt_error why = {0};
    char *text = NULL;
    size_t length = 0;
    const char *path = dpt_region_printf(&r->region, "%s/job.yaml", run->history.folder);

    if (path == NULL)
        return dpt_fail_memory(err, "the report", 0);
    if (dpt_conf_load(&run->conf, path, &why) != DPT_OK ||
        dpt_file_read(path, DPT_YAML_BYTES, DPT_BAD_JOB, &text, &length, &why) != DPT_OK) {
        run->no_job = dpt_region_strdup(&r->region, why.text);
        return run->no_job != NULL ? DPT_OK : dpt_fail_memory(err, "the report", 0);
    }
    run->job_text = dpt_region_strndup(&r->region, text, length);
    free(text);
    if (run->job_text == NULL)
        return dpt_fail_memory(err, "the report", 0);
    return DPT_OK;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* The folders' names, or where two are alike their paths. */
static void name_runs(struct dpt_page *r)
{
    bool alike = false;

    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < i; k++)
            alike = alike || strcmp(last_part(r->runs[i].history.folder),
                                    last_part(r->runs[k].history.folder)) == 0;
    for (size_t i = 0; i < r->n; i++) {
        const char *folder = r->runs[i].history.folder;

        r->runs[i].label = alike ? folder : last_part(folder);
    }
}

static enum dpt_status compare_jobs(struct dpt_page *r, struct dpt_error *err)
{
    const struct dpt_conf_node **jobs = dpt_region_alloc(&r->region, r->n * sizeof *jobs);

    for (size_t i = 0; jobs != NULL && i < r->n; i++)
        jobs[i] = r->runs[i].no_job == NULL ? r->runs[i].conf.root : NULL;
    return jobs != NULL && dpt_job_keys_open(&r->jobs, jobs, r->n)
               ? DPT_OK
               : dpt_fail_memory(err, "the report", 0);
}

enum dpt_status dpt_page_read(struct dpt_page *r, const char *const *folders, size_t n,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    r->runs = calloc(n, sizeof *r->runs);
    if (r->runs == NULL)
        return dpt_fail_memory(err, "the runs", 0);
    for (size_t i = 0; i < n; i++) {
        struct dpt_page_run *run = &r->runs[i];

        run->path = folders[i];
        r->n = i + 1;
        DPT_TRY(dpt_history_open(&run->history, folders[i], err));
        DPT_TRY(read_job(r, run, err));
    }
    name_runs(r);
    DPT_TRY(compare_jobs(r, err));
out:
    return status;
}

void dpt_page_close(struct dpt_page *r)
{
    for (size_t i = 0; i < r->n; i++) {
        dpt_history_close(&r->runs[i].history);
        dpt_conf_release(&r->runs[i].conf);
    }
    free(r->runs);
    dpt_job_keys_close(&r->jobs);
    dpt_region_release(&r->region);
    dpt_str_release(&r->out);
}
