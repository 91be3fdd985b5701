/* The data sets of a job, and which of their samples train, validate and test. */
#include <stdio.h>
#include <string.h>

#include "core/train/setup/parts.h"
#include "models/model.h"

static void add_split(struct dpt_split *split, const char *name, const struct dpt_dataset *set)
{
    split->name = name;
    split->present = true;
    split->set = set;
    split->sampler.total = split->sampler.samples = set->samples;
}

/* Opens a split with a data set of its own. */
static enum dpt_status open_split(struct dpt_trainer *t, struct dpt_split *split, const char *name,
                                  const struct dpt_texts *paths, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const ptrdiff_t number = split - t->data.split;
    struct dpt_dataset *set = &t->data.sets[number];
    char word[32];
    const struct dpt_dataset_spec spec = {
        .conf = &t->job->data,
        .paths = paths,
        .classes = dpt_loss_has_classes(t->model.loss.kind),
        .binary = t->model.loss.kind == DPT_LOSS_BINARY_CROSS_ENTROPY,
        .seed = (uint64_t)t->job->seed,
        .part = (uint64_t)number,
    };

    if (t->planned) {
        DPT_TRY(dpt_dataset_describe(set, &spec, err));
    } else {
        snprintf(word, sizeof word, "opening data.%s", name);
        dpt_comm_note(t->comm, 0, word);
        DPT_TRY(dpt_dataset_open(set, &spec, t->comm, err));
        if (t->comm->world.rank == 0)
            dpt_dataset_warn_unused(set, t->log);
    }
    add_split(split, name, set);
out:
    return status;
}

/* valid: a fraction of train is a split of the same data set, not a data set of its own. */
static enum dpt_status open_valid(struct dpt_trainer *t, unsigned parts, struct dpt_error *err)
{
    const struct dpt_texts *valid = &t->job->data.valid;
    double fraction;

    if (valid->n == 0)
        return DPT_OK;
    if (valid->n == 1 && dpt_parse_real(valid->at[0], &fraction)) {
        struct dpt_sampler *s = &t->data.train.sampler;

        if (!t->data.train.present)
            return DPT_OK;
        if (!(fraction > 0 && fraction <= 0.5))
            return dpt_fail(err, DPT_BAD_JOB, "data.valid: the fraction %s is not in (0, 0.5]",
                            valid->at[0]);
        s->held_out = (int64_t)((double)s->total * fraction + 0.5);
        if (s->held_out < 1)
            return dpt_fail(err, DPT_BAD_JOB, "data.valid: %s of %lld samples rounds to 0 samples",
                            valid->at[0], (long long)s->total);
        s->samples = s->total - s->held_out;
        add_split(&t->data.valid, "valid", t->data.train.set);
        t->data.valid.sampler.held_out = t->data.valid.sampler.samples = s->held_out;
        t->data.valid.sampler.validation = true;
        return DPT_OK;
    }
    if ((parts & DPT_PART_VALID) == 0)
        return DPT_OK;
    return open_split(t, &t->data.valid, "valid", valid, err);
}

void dpt_trainer_warn_layout(const struct dpt_trainer *t, struct dpt_log *log)
{
    char text[DPT_ERROR_TEXT];

    for (size_t i = 0; i < DPT_SPLITS; i++)
        if (t->data.split[i].present &&
            dpt_dataset_suspect_layout(t->data.split[i].set, text, sizeof text)) {
            dpt_log_warn(log, "%s", text);
            break;
        }
}

/* The first batch norm of which a step's last variance would be of a single number, or NULL. */
static const struct dpt_graph_node *lone_norm(const struct dpt_trainer *t, int64_t samples,
                                              int32_t micro)
{
    const int32_t whole = dpt_sampler_count(&t->data.train.sampler, 0);

    for (int32_t i = 0; i < t->model.graph.n_nodes; i++) {
        const struct dpt_graph_node *node = &t->model.graph.nodes[i];

        if (node->op == DPT_OP_BATCHNORM && !node->by_running) {
            const int64_t each = dpt_graph_variance_samples(node, whole, micro);

            if (each > 1 && samples % each == 1)
                return node;
        }
    }
    return NULL;
}

/* The micro-batch next to the present one with which no batch norm gets one sample alone, smaller
 * if there is one; 0: there is none. */
static int32_t micro_without(const struct dpt_trainer *t, int32_t whole, int32_t last)
{
    const int32_t now = t->data.train.sampler.micro;

    for (int32_t k = 0; k < whole; k++) {
        const int32_t micro = k < now ? now - k : k + 1;

        if (micro > 1 && lone_norm(t, whole, micro) == NULL && lone_norm(t, last, micro) == NULL)
            return micro;
    }
    return 0;
}

/* Warns where a batch norm gets a single number of each channel, which is its own mean. */
static void warn_lone(const struct dpt_trainer *t, struct dpt_log *log)
{
    const struct dpt_sampler *s = &t->data.train.sampler;
    const int32_t whole = dpt_sampler_count(s, 0),
                  last = dpt_sampler_count(s, dpt_sampler_steps(s) - 1);
    const struct dpt_graph_node *each = lone_norm(t, whole, s->micro),
                                *node = each != NULL ? each : lone_norm(t, last, s->micro);
    int32_t micro;
    char what[64] = "an epoch's last step is one sample";
    char cure[64] = "another batch.global would do";

    if (node == NULL)
        return;
    micro = micro_without(t, whole, last);
    if (each != NULL || last > 1)
        snprintf(what, sizeof what, "%s step of %d ends with a micro-batch of one sample",
                 each != NULL ? "each" : "an epoch's last", each != NULL ? whole : last);
    if (micro > 0)
        snprintf(cure, sizeof cure, "batch.micro: %d would do", micro);
    else if (each == NULL)
        snprintf(cure, sizeof cure, "data.drop_last: true leaves that step out");
    dpt_log_warn(log, "%s: %s, for which a batchnorm gives the same outputs whatever it is; %s",
                 node->name, what, cure);
}

/* Names of classes that do not name each class. */
static void warn_names(const struct dpt_trainer *t, struct dpt_log *log)
{
    enum { MOST = 4096 }; /* that are compared, each with each */
    const size_t outputs = (size_t)dpt_graph_outputs(&t->model.graph);
    const char *const *names = t->called.at;

    if (!dpt_loss_judges(t->model.loss.kind) || t->called.n == 0)
        return;
    if (t->called.n < outputs)
        dpt_log_warn(log,
                     "the data name %zu of %zu classes; predictions tell the others as numbers",
                     t->called.n, outputs);
    for (size_t i = 1; i < t->called.n && i < MOST; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(names[i], names[k]) == 0) {
                dpt_log_warn(log,
                             "the data call classes %zu and %zu both '%.60s': predictions tell "
                             "them as one",
                             k, i, names[i]);
                return;
            }
}

void dpt_trainer_warn_data(const struct dpt_trainer *t, struct dpt_log *log)
{
    const struct dpt_sampler *s = &t->data.train.sampler;
    char text[DPT_ERROR_TEXT];

    for (const struct dpt_split *split = t->data.split; split < t->data.split + DPT_SPLITS; split++)
        if (split->present && split->set != t->data.train.set &&
            dpt_dataset_shared(t->data.train.set, split->set) != NULL)
            dpt_log_warn(log,
                         "data.%s: %s is in data.train, too: its scores are of what was learned",
                         split->name, dpt_dataset_shared(t->data.train.set, split->set));
    warn_names(t, log);
    if (s->samples < s->global)
        dpt_log_warn(log,
                     "%s: a step of %d is more than the %lld training sample%s, so an epoch is one "
                     "step of %lld; batch.global: %lld or less would give it more",
                     t->job->batch.per_rank > 0 ? "batch.per_rank" : "batch.global", s->global,
                     (long long)s->samples, s->samples == 1 ? "" : "s", (long long)s->samples,
                     (long long)(s->samples > 1 ? s->samples / 2 : 1));
    warn_lone(t, log);
    if (!dpt_loss_judges(t->model.loss.kind) &&
        dpt_dataset_suspect_classes(t->data.train.set, text, sizeof text))
        dpt_log_warn(log, "%s", text);
    if (dpt_dataset_suspect_numbers(t->data.train.set, text, sizeof text))
        dpt_log_warn(log, "%s", text);
}

enum dpt_status dpt_trainer_open_data(struct dpt_trainer *t, unsigned parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if ((parts & DPT_PART_TRAIN) != 0)
        DPT_TRY(open_split(t, &t->data.train, "train", &t->job->data.train, err));
    DPT_TRY(open_valid(t, parts, err));
    if ((parts & DPT_PART_TEST) != 0 && t->job->data.test.n > 0)
        DPT_TRY(open_split(t, &t->data.test, "test", &t->job->data.test, err));
    if (t->log != NULL)
        dpt_trainer_warn_layout(t, t->log);
out:
    return status;
}

enum dpt_status dpt_trainer_open_targets(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_target_conf *conf = &t->job->data.targets;
    const struct dpt_split *train = &t->data.train;

    if (dpt_loss_judges(t->model.loss.kind))
        return DPT_OK;
    DPT_TRY(dpt_target_scale_init(&t->targets, dpt_graph_outputs(&t->model.graph), err));
    for (size_t i = 0; i < DPT_SPLITS; i++)
        t->data.sets[i].scale = &t->targets;
    t->targets.rates = t->model.loss.kind == DPT_LOSS_POISSON;
    t->targets.transform = (enum dpt_target_transform)conf->transform;
    for (const struct dpt_split *s = t->data.split; s < t->data.split + DPT_SPLITS; s++)
        if (s->present && !t->planned)
            DPT_TRY(dpt_target_scale_check(&t->targets, s->set, s->name, err));
    if (conf->scaled == DPT_TARGETS_GIVEN)
        DPT_TRY(dpt_target_scale_give(&t->targets, &conf->given, err));
    /* Without training samples the scale comes with the weights. */
    if (conf->scaled == DPT_TARGETS_MEASURED && train->present && !t->planned)
        DPT_TRY(dpt_target_scale_measure(&t->targets, train->set, &train->sampler, err));
out:
    return status;
}

void dpt_trainer_close_data(struct dpt_trainer *t)
{
    dpt_target_scale_release(&t->targets);
    dpt_str_release(&t->data.classes);
    for (size_t i = 0; t->comm != NULL && i < DPT_SPLITS; i++)
        dpt_dataset_close(&t->data.sets[i]);
}

/* A mean over samples none of which counts is nothing: told before the first step, not as NaN. */
static enum dpt_status check_weights(const struct dpt_split *split, struct dpt_error *err)
{
    const struct dpt_sampler *s = &split->sampler;
    int64_t samples[256];

    if (split->set->weights == NULL)
        return DPT_OK;
    for (int64_t first = 0, n; first < s->samples; first += n) {
        n = s->samples - first < 256 ? s->samples - first : 256;
        dpt_sampler_samples(s, 0, first, n, samples);
        for (int64_t i = 0; i < n; i++)
            if (split->set->weights[samples[i]] > 0)
                return DPT_OK;
    }
    return dpt_fail(err, DPT_BAD_DATA, "data.%s: all its %lld samples have weight 0: none counts",
                    split->name, (long long)s->samples);
}

enum dpt_status dpt_trainer_open_loaders(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;

    for (struct dpt_split *s = t->data.split; s < t->data.split + DPT_SPLITS; s++) {
        if (!s->present)
            continue;
        DPT_TRY(check_weights(s, err));
        if (t->mesh.stage > 0) /* values come from the stage in front of it */
            DPT_TRY(dpt_loader_open_labels(&s->loader, &s->form, &s->sampler, replicas->rank,
                                           replicas->size, err));
        else
            DPT_TRY(dpt_loader_open(&s->loader, &s->form, &s->sampler, replicas->rank,
                                    replicas->size, err));
    }
out:
    return status;
}

void dpt_trainer_close_loaders(struct dpt_trainer *t)
{
    for (size_t i = 0; i < DPT_SPLITS; i++) {
        dpt_loader_close(t->data.split[i].loader);
        t->data.split[i].loader = NULL;
    }
}
