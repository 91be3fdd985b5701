#include "core/train/use/init.h"

#include <math.h>

#include "core/interchange/match.h"
#include "core/train/setup/state.h"
#include "core/train/use/checkpoint_model.h"
#include "models/model.h"

static enum dpt_status check_finite(const struct dpt_weights *w, const struct dpt_weight *weight,
                                    const float *x, struct dpt_error *err)
{
    for (int64_t i = 0; i < weight->count; i++)
        if (!isfinite(x[i]))
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: number %lld of %s is not finite, or too large for float32",
                            w->path, (long long)i, weight->name);
    return DPT_OK;
}

/* The arguments of load. */
struct loading {
    const struct dpt_trainer *t;
    struct dpt_init_result *result;
};

/* Loads the weights, on rank 0. The parameters that no tensor of the file becomes stay as they
 * are. */
static enum dpt_status load(void *arg, struct dpt_state *whole, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct loading *loading = arg;
    const struct dpt_trainer *t = loading->t;
    struct dpt_init_result *result = loading->result;
    const struct dpt_job *job = t->job;
    const struct dpt_match_options options = {.map = job->init.map.at,
                                              .n_map = job->init.map.n,
                                              .by_order = job->init.by_order,
                                              .partial = job->init.partial};
    struct dpt_weights w = {0};
    struct dpt_match match = {0};

    DPT_TRY(dpt_weights_open(&w, job->init.from, &dpt_weights_checkpoint, err));
    DPT_TRY(dpt_match_open(&match, &w, &t->model.graph, &options, err));
    for (int32_t k = 0; k < t->model.graph.n_tensors; k++) {
        const struct dpt_tensor *tensor = &t->model.graph.tensors[k];
        float *to = whole->params + tensor->offset;

        if (match.weight[k] == NULL)
            continue;
        DPT_TRY(dpt_weights_read(&w, match.weight[k], to, err));
        DPT_TRY(check_finite(&w, match.weight[k], to, err));
        if (whole->give != NULL)
            DPT_TRY(whole->give(whole->owners, -1, (size_t)tensor->offset, (size_t)tensor->count,
                                to, err));
    }
    result->format = w.format->name;
    result->prefix = match.prefix;
    result->from = match.pairs;
    result->random = t->model.graph.n_tensors - match.pairs;
    dpt_match_missing(&match, &t->model.graph, &result->missing);
    result->of_no_layer = dpt_match_unused(&match, &w, &result->unused);
    if (result->missing.failed || result->unused.failed)
        DPT_TRY(dpt_fail_memory(err, "lists of tensors", 0));
out:
    dpt_match_release(&match);
    dpt_weights_close(&w);
    return status;
}

enum dpt_status dpt_init_weights(struct dpt_trainer *t, struct dpt_init_result *result,
                                 struct dpt_error *err)
{
    struct loading loading = {t, result};
    struct dpt_state whole = {.params = t->arenas.params};

    *result = (struct dpt_init_result){0};
    if (t->job->init.from == NULL)
        return DPT_OK;
    dpt_comm_note(t->comm, 0, "reading the weights to begin with");
    return dpt_trainer_share_params(t, dpt_trainer_read(t, &whole, load, &loading, err), err);
}

void dpt_init_release(struct dpt_init_result *result)
{
    dpt_str_release(&result->missing);
    dpt_str_release(&result->unused);
}

void dpt_init_log(const struct dpt_trainer *t, const struct dpt_init_result *result, bool resumed)
{
    const char *path = t->job->init.from;

    if (path == NULL)
        return;
    if (resumed) {
        dpt_log_info(t->log, "  weights  of the checkpoint; %s is for a run's beginning", path);
        return;
    }
    dpt_checkpoint_tell(path, t->log);
    dpt_log_info(t->log, "  weights  %d tensor%s of %s (%s)%s%s", result->from,
                 result->from == 1 ? "" : "s", path, result->format,
                 result->prefix[0] != '\0' ? ", names after " : "", result->prefix);
    if (result->random > 0)
        dpt_log_warn(
            t->log, "%d of the model's %d tensors %s randomly initialised, not loaded from %s:\n%s",
            result->random, result->random + result->from, result->random == 1 ? "is" : "are", path,
            result->missing.text);
    if (result->of_no_layer > 0)
        dpt_log_warn(t->log, "%zu tensor%s of %s match%s nothing in this model:\n%s",
                     result->of_no_layer, result->of_no_layer == 1 ? "" : "s", path,
                     result->of_no_layer == 1 ? "es" : "", result->unused.text);
}
