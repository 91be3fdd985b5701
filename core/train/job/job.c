#include "core/train/job/job.h"

#include <stdio.h>
#include <string.h>

#include "core/base/file.h"

#include "core/train/update/schedule.h"
#include "data/sets/augment.h"

enum { DEFAULT_GLOBAL = 256 };

/* "configs/mnist-cnn.yaml" -> "mnist-cnn" */
static const char *stem(struct dpt_conf *conf, const char *path)
{
    const char *base = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    const char *dot = strrchr(base, '.');

    return dpt_region_strndup(&conf->region, base,
                              dot != NULL && dot != base ? (size_t)(dot - base) : strlen(base));
}

/* Puts a value that follows from others into the resolved tree. */
static bool put_text(struct dpt_conf *conf, struct dpt_conf_node *map, const char *key,
                     const char *text, bool quoted)
{
    struct dpt_conf_node *node = dpt_conf_new(conf, DPT_NODE_SCALAR, text);

    if (node == NULL)
        return false;
    node->filled = true;
    node->quoted = quoted; /* a job may be called `null` or `12` */
    return dpt_conf_put(conf, map, key, node);
}

/* Finds how many samples a step has. */
static bool finish_batch(struct dpt_job *job, struct dpt_conf *conf, struct dpt_conf_node *batch)
{
    const bool ranks = job->batch.per_rank != 0;
    char text[32];

    if (ranks) {
        job->batch.global = job->batch.per_rank;
    } else if (job->batch.global == 0) {
        job->batch.global = DEFAULT_GLOBAL;
        snprintf(text, sizeof text, "%d", DEFAULT_GLOBAL);
        if (batch != NULL && !put_text(conf, batch, "global", text, false))
            return false;
    }
    if (job->batch.micro > job->batch.global)
        dpt_conf_mistake(conf, dpt_conf_get(batch, "micro"), "batch.micro",
                         "%lld is more than batch.%s, %lld", (long long)job->batch.micro,
                         ranks ? "per_rank" : "global", (long long)job->batch.global);
    return true;
}

/* Refuses a key of `parallel` without the sums that do not depend on it. who: may vary. */
static bool check_sums(const struct dpt_job *job, struct dpt_conf *conf, const char *key,
                       const char *who)
{
    if (job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE)
        return true;
    dpt_conf_mistake(conf, dpt_conf_get(dpt_conf_get(conf->root, "parallel"), key),
                     dpt_option_path(conf, "parallel", key, 0),
                     "needs comm.reduction: reproducible, whose sums are the same whoever %s; "
                     "add it, or leave %s out",
                     who, key);
    return false;
}

/* Refuses settings that do not work with what ranks divide. */
static void check_parallel(const struct dpt_job *job, struct dpt_conf *conf)
{
    const struct dpt_pipeline_options *p = &job->parallel.pipeline;

    if (job->parallel.shard > DPT_SHARD_OPTIMIZER)
        check_sums(job, conf, "shard", "owns a part");
    if (p->cut.n > 0 && p->stages - 1 != (int64_t)p->cut.n)
        dpt_conf_mistake(
            conf, p->at, "parallel.pipeline.cut",
            "%zu layer%s make%s %zu stages, and stages says %lld: name the first layer "
            "of each stage but the first",
            p->cut.n, p->cut.n == 1 ? "" : "s", p->cut.n == 1 ? "s" : "", p->cut.n + 1,
            (long long)p->stages);
    if (p->stages > 1)
        check_sums(job, conf, "pipeline", "has a layer");
    if (job->parallel.tensor > 1 && check_sums(job, conf, "tensor", "has a layer") &&
        job->device.kind == DPT_DEVICE_CUDA)
        dpt_conf_mistake(
            conf, dpt_conf_get(dpt_conf_get(conf->root, "parallel"), "tensor"), "parallel.tensor",
            "runs on device.kind: cpu or ref; GPUs divide a model by parallel.pipeline");
}

/* Refuses to watch a value of data.valid that no evaluation gives. at: the node that asks for
 * it. */
static void check_monitor(const struct dpt_job *job, struct dpt_conf *conf,
                          const struct dpt_conf_node *at, const char *path, int monitor)
{
    if (!dpt_monitor_suits(monitor, dpt_job_loss(job).kind))
        dpt_conf_mistake(conf, at, path,
                         "%s is not available with `loss: %s`; valid.loss is with every loss",
                         dpt_monitor_name(monitor), job->loss.variant->name);
    if (job->data.valid.n == 0)
        dpt_conf_mistake(conf, at, path,
                         "goes by samples that are not trained on, and the job has none: give a "
                         "file of them as data.valid, or hold a share out of data.train by "
                         "`valid: 0.1` there");
    if (job->eval.every.unit == DPT_NEVER)
        dpt_conf_mistake(conf, at, path,
                         "goes by evaluations, and eval.every is never: give that a number of "
                         "steps or epochs");
}

/* Refuses to change targets that are classes, or counts. */
static void check_targets(const struct dpt_job *job, struct dpt_conf *conf)
{
    const struct dpt_target_conf *targets = &job->data.targets;
    const struct dpt_conf_node *at = dpt_conf_get(dpt_conf_get(conf->root, "data"), "targets");
    const bool scales = targets->scaled != DPT_TARGETS_AS_THEY_ARE;
    const enum dpt_loss_kind loss = dpt_job_loss(job).kind;

    if (!scales && targets->transform == DPT_TARGETS_PLAIN)
        return;
    if (dpt_loss_judges(loss))
        dpt_conf_mistake(conf, at, scales ? "data.targets.normalize" : "data.targets.transform",
                         "is for regression targets, with loss " DPT_LOSS_NAMES(
                             DPT_LOSSES_OF_NUMBERS) "; classes are not scaled");
    if (loss == DPT_LOSS_POISSON)
        dpt_conf_mistake(conf, at, "data.targets",
                         "does not go with loss %s, which takes counts as they are and learns the "
                         "logarithm of their rates by itself; leave it out",
                         job->loss.variant->name);
}

/* Whether a section has more than the filled-in defaults. */
static bool says_something(const struct dpt_conf_node *section)
{
    bool says = false;

    for (size_t i = 0; section != NULL && i < section->n; i++)
        says = says || !section->items[i]->filled;
    return says;
}

/* Checks what is monitored, and finds the value that selects `best` if the job does not give it. */
static bool finish_monitors(struct dpt_job *job, struct dpt_conf *conf)
{
    struct dpt_conf_node *root = conf->root, *checkpoint = dpt_conf_get(root, "checkpoint");
    const struct dpt_conf_node *stop = dpt_conf_get(dpt_conf_get(root, "train"), "early_stop");
    const struct dpt_conf_node *patience = dpt_conf_get(stop, "patience");
    const struct dpt_patience *plateau = dpt_schedule_plateau(&job->schedule);
    const bool stops = job->train.early_stop.patience > 0;
    int *best = &job->checkpoint.monitor;

    if (stops)
        check_monitor(job, conf, stop, "train.early_stop", job->train.early_stop.monitor);
    if (stops && job->train.also != DPT_MONITOR_AUTO)
        check_monitor(job, conf, stop, "train.early_stop", job->train.also);
    if (!stops && patience != NULL && patience->filled && says_something(stop))
        dpt_conf_mistake(conf, stop, "train.early_stop",
                         "patience says after how many evaluations without a better value the run "
                         "ends: add it, as patience: 10");
    if (plateau != NULL)
        check_monitor(job, conf, dpt_conf_get(root, "schedule"), "schedule", plateau->monitor);
    if (*best != DPT_MONITOR_AUTO)
        check_monitor(job, conf, dpt_conf_get(checkpoint, "monitor"), "checkpoint.monitor", *best);
    if (*best != DPT_MONITOR_AUTO || (!stops && plateau == NULL))
        return true;
    *best = stops ? job->train.early_stop.monitor : plateau->monitor;
    return put_text(conf, checkpoint, "monitor", dpt_monitor_name(*best), false);
}

/* Finds the files that `~/` names; the job's text keeps it as it is. False: memory ran out. */
static bool find_home(struct dpt_job *job, struct dpt_conf *conf)
{
    const char **const one[] = {&job->output, &job->init.from};
    const struct dpt_texts *const lists[] = {&job->data.train, &job->data.valid, &job->data.test};

    for (size_t k = 0; k < 2; k++)
        if (*one[k] != NULL && (*one[k] = dpt_file_from_home(*one[k], &conf->region)) == NULL)
            return false;
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < lists[k]->n; i++)
            if ((lists[k]->at[i] = dpt_file_from_home(lists[k]->at[i], &conf->region)) == NULL)
                return false;
    return true;
}

/* Checks keys against each other, and sets defaults that follow from other keys. */
static bool finish(struct dpt_job *job, struct dpt_conf *conf)
{
    struct dpt_conf_node *root = conf->root;
    struct dpt_conf_node *train = dpt_conf_get(root, "train");

    if (job->name == NULL) {
        job->name = stem(conf, conf->path);
        if (job->name == NULL || !put_text(conf, root, "name", job->name, true))
            return false;
        if (!dpt_option_is_name(job->name))
            dpt_conf_mistake(conf, NULL, "name",
                             "'%s', the file's, cannot name a folder: give the job another name",
                             dpt_conf_show(conf, job->name));
    }
    if (job->output == NULL || job->output[0] == '\0') {
        job->output = dpt_region_printf(&conf->region, "runs/%s", job->name);
        if (job->output == NULL || !put_text(conf, root, "output", job->output, true))
            return false;
    }
    if (job->train.epochs == 0 && job->train.steps == 0) {
        job->train.epochs = 1;
        if (train != NULL && !put_text(conf, train, "epochs", "1", false))
            return false;
    }
    if (!finish_monitors(job, conf))
        return false;
    if (!job->device.deterministic && job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE)
        dpt_conf_mistake(conf, dpt_conf_get(dpt_conf_get(root, "device"), "deterministic"),
                         "device.deterministic",
                         "false does not go with comm.reduction: reproducible, which promises the "
                         "same bytes; leave one of them out");
    check_parallel(job, conf);
    if (job->init.from == NULL && (job->init.map.n > 0 || job->init.by_order || job->init.partial))
        dpt_conf_mistake(conf, dpt_conf_get(root, "init"), "init",
                         "map, by_order and partial are for a file of weights: `from` names it");
    check_targets(job, conf);
    if (dpt_augment_mixes(&job->data.augment) && !dpt_loss_judges(dpt_job_loss(job).kind)) {
        const char *key = job->data.augment.mixup > 0 ? "mixup" : "cutmix";
        struct dpt_conf_node *augment = dpt_conf_get(dpt_conf_get(root, "data"), "augment");

        dpt_conf_mistake(conf, dpt_conf_get(augment, key),
                         dpt_option_path(conf, "data.augment", key, 0),
                         "mixes classes, and loss %s predicts numbers: leave it out, or take "
                         "another loss",
                         job->loss.variant->name);
    }
    return finish_batch(job, conf, dpt_conf_get(root, "batch"));
}

enum dpt_status dpt_job_load(struct dpt_job *job, struct dpt_conf *conf, const char *path,
                             const char *const *sets, size_t n_sets, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(job, 0, sizeof *job);
    DPT_TRY(dpt_conf_load(conf, path, err));
    conf->synonyms = dpt_job_synonyms;
    for (size_t i = 0; i < n_sets; i++)
        DPT_TRY(dpt_conf_set(conf, sets[i], err));
    if (!dpt_options_read(conf, conf->root, "", dpt_job_options, job))
        DPT_TRY(dpt_fail_memory(err, "the job file", 0));
    if (conf->n_mistakes == 0 && !(finish(job, conf) && find_home(job, conf)))
        DPT_TRY(dpt_fail_memory(err, "the job file", 0));
    DPT_TRY(dpt_conf_validation_result(conf, err));
out:
    return status;
}

enum dpt_status dpt_job_for_ranks(struct dpt_job *job, int ranks, struct dpt_error *err)
{
    if (job->batch.per_rank == 0)
        return DPT_OK;
    job->batch.global = job->batch.per_rank * ranks;
    if (job->batch.global <= DPT_MOST_GLOBAL)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_JOB,
                    "batch.per_rank: %lld on %d ranks are %lld samples per step, more than %d",
                    (long long)job->batch.per_rank, ranks, (long long)job->batch.global,
                    DPT_MOST_GLOBAL);
}

const char *dpt_job_precision(const struct dpt_job *job)
{
    return dpt_precision_names[job->device.precision];
}
