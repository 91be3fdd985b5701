#include <math.h>

#include "cmd/compare/compare.h"

/* A count that is not there is null. */
static void count(struct dpt_json *j, const char *key, int64_t value)
{
    if (value >= 0)
        dpt_json_int(j, key, value);
    else
        dpt_json_null(j, key);
}

static void write_eval(struct dpt_json *j, const char *key, const struct dpt_history_eval *e)
{
    if (e == NULL) {
        dpt_json_null(j, key);
        return;
    }
    dpt_json_object(j, key);
    dpt_json_int(j, "step", e->step);
    dpt_json_real(j, "loss", e->loss);
    dpt_json_real(j, "accuracy", e->accuracy);
    dpt_json_end(j);
}

static void write_start(struct dpt_json *j, const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    if (start == NULL)
        return;
    count(j, "steps", start->steps);
    count(j, "parameters", start->parameters);
    count(j, "ranks", start->ranks);
    count(j, "nodes", start->hosts);
    count(j, "threads", start->threads);
    count(j, "global", start->global);
    count(j, "micro", start->micro);
    dpt_json_text(j, "device", start->device);
    dpt_json_text(j, "library", start->library);
    dpt_json_text(j, "version", start->version);
    dpt_json_text(j, "mpi", start->mpi);
    dpt_json_text(j, "hdf5", start->hdf5);
}

static void write_run(struct dpt_json *j, const struct dpt_runs *c, size_t number)
{
    const struct dpt_run_folder *run = &c->at[number];
    const struct dpt_job_keys *jobs = &c->jobs;
    const struct dpt_history *h = &run->history;
    const struct dpt_history_train *train = h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    const struct dpt_history_start *start = dpt_history_start(h);

    dpt_json_object(j, NULL);
    dpt_json_text(j, "folder", h->folder);
    dpt_json_text(j, "name", start != NULL ? start->name : NULL);
    dpt_json_text(j, "state", dpt_run_state_names[run->run_status.state]);
    dpt_json_text(j, "reason", dpt_history_end(h) != NULL ? run->run_status.reason : NULL);
    count(j, "step", dpt_history_step(h));
    count(j, "starts", (int64_t)h->n_starts);
    dpt_json_real(j, "train_loss", train != NULL ? train->loss : NAN);
    dpt_json_real(j, "train_accuracy", train != NULL ? train->accuracy : NAN);
    write_eval(j, "epoch", dpt_history_last(h, DPT_HISTORY_EPOCH));
    write_eval(j, "valid", dpt_history_last(h, DPT_HISTORY_VALID));
    write_eval(j, "best_valid", dpt_history_best(h, DPT_HISTORY_VALID));
    write_eval(j, "test", dpt_history_last(h, DPT_HISTORY_TEST));
    dpt_json_real(j, "samples_per_s", dpt_history_rate(h));
    dpt_json_real(j, "seconds", dpt_history_seconds(h));
    count(j, "damaged_lines", h->damaged);
    write_start(j, h);
    dpt_json_object(j, "job");
    for (size_t k = 0; k < jobs->n_keys; k++)
        if (jobs->keys[k].value[number] != NULL)
            dpt_json_text(j, jobs->keys[k].path, jobs->keys[k].value[number]);
    dpt_json_end(j);
    dpt_json_end(j);
}

void dpt_compare_json(const struct dpt_runs *c, struct dpt_json *j)
{
    dpt_json_object(j, NULL);
    dpt_json_array(j, "differs");
    for (size_t k = 0; k < c->jobs.n_keys; k++)
        if (c->jobs.keys[k].differs)
            dpt_json_text(j, NULL, c->jobs.keys[k].path);
    dpt_json_end(j);
    dpt_json_array(j, "runs");
    for (size_t i = 0; i < c->n; i++) {
        dpt_json_break(j);
        write_run(j, c, i);
    }
    dpt_json_break(j);
    dpt_json_end(j);
    dpt_json_end(j);
}
