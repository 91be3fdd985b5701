#include <math.h>

#include "cmd/compare.h"

static void text(struct dpt_str *out, const char *before, const char *key, const char *value)
{
    dpt_str_printf(out, "%s\"%s\": ", before, key);
    if (value != NULL)
        dpt_str_json(out, value);
    else
        dpt_str_printf(out, "null");
}

static void real(struct dpt_str *out, const char *key, double value)
{
    dpt_str_printf(out, ", \"%s\": ", key);
    dpt_str_number(out, value);
}

/* A count that is not there is null. */
static void whole(struct dpt_str *out, const char *key, int64_t value)
{
    real(out, key, value >= 0 ? (double)value : NAN);
}

static void write_eval(struct dpt_str *out, const char *key, const struct dpt_history_eval *e)
{
    dpt_str_printf(out, ", \"%s\": ", key);
    if (e == NULL) {
        dpt_str_printf(out, "null");
        return;
    }
    dpt_str_printf(out, "{\"step\": %lld", (long long)e->step);
    real(out, "loss", e->loss);
    real(out, "accuracy", e->accuracy);
    dpt_str_printf(out, "}");
}

static void write_start(struct dpt_str *out, const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    if (start == NULL)
        return;
    whole(out, "steps", start->steps);
    whole(out, "parameters", start->parameters);
    whole(out, "ranks", start->ranks);
    whole(out, "nodes", start->hosts);
    whole(out, "threads", start->threads);
    whole(out, "global", start->global);
    whole(out, "micro", start->micro);
    text(out, ", ", "device", start->device);
    text(out, ", ", "library", start->library);
    text(out, ", ", "version", start->version);
    text(out, ", ", "mpi", start->mpi);
    text(out, ", ", "hdf5", start->hdf5);
}

static void write_run(struct dpt_str *out, const struct dpt_compare *c, size_t number)
{
    const struct dpt_compare_run *run = &c->runs[number];
    const struct dpt_job_keys *jobs = &c->jobs;
    const struct dpt_history *h = &run->history;
    const struct dpt_history_train *train = h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    const struct dpt_history_start *start = dpt_history_start(h);
    bool first = true;

    text(out, "{", "folder", h->folder);
    text(out, ", ", "name", start != NULL ? start->name : NULL);
    text(out, ", ", "state", dpt_life_words[run->life.state]);
    text(out, ", ", "reason", dpt_history_end(h) != NULL ? run->life.reason : NULL);
    whole(out, "step", dpt_history_step(h));
    whole(out, "starts", (int64_t)h->n_starts);
    real(out, "train_loss", train != NULL ? train->loss : NAN);
    real(out, "train_accuracy", train != NULL ? train->accuracy : NAN);
    write_eval(out, "epoch", dpt_history_last(h, DPT_HISTORY_EPOCH));
    write_eval(out, "valid", dpt_history_last(h, DPT_HISTORY_VALID));
    write_eval(out, "best_valid", dpt_history_best(h, DPT_HISTORY_VALID));
    write_eval(out, "test", dpt_history_last(h, DPT_HISTORY_TEST));
    real(out, "samples_per_s", dpt_history_rate(h));
    real(out, "seconds", dpt_history_seconds(h));
    whole(out, "damaged_lines", h->damaged);
    write_start(out, h);
    dpt_str_printf(out, ", \"job\": {");
    for (size_t k = 0; k < jobs->n_keys; k++) {
        if (jobs->keys[k].value[number] == NULL)
            continue;
        dpt_str_printf(out, "%s", first ? "" : ", ");
        dpt_str_json(out, jobs->keys[k].path);
        dpt_str_printf(out, ": ");
        dpt_str_json(out, jobs->keys[k].value[number]);
        first = false;
    }
    dpt_str_printf(out, "}}");
}

void dpt_compare_json(const struct dpt_compare *c, struct dpt_str *out)
{
    bool first = true;

    dpt_str_printf(out, "{\"differs\": [");
    for (size_t k = 0; k < c->jobs.n_keys; k++) {
        if (!c->jobs.keys[k].differs)
            continue;
        dpt_str_printf(out, "%s", first ? "" : ", ");
        dpt_str_json(out, c->jobs.keys[k].path);
        first = false;
    }
    dpt_str_printf(out, "], \"runs\": [");
    for (size_t i = 0; i < c->n; i++) {
        dpt_str_printf(out, "%s\n", i == 0 ? "" : ",");
        write_run(out, c, i);
    }
    dpt_str_printf(out, "\n]}\n");
}
