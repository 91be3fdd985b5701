/* The data sets of a job, and which of their samples train, validate and test. */
#include <stdio.h>
#include <string.h>

#include "core/train/setup/parts.h"
#include "models/model.h"

/* Micro-batches of a thread in a step of an evaluation. */
enum { EVAL_MICROS = 8, DEVICE_EVAL_MICROS = 2 };

static void add_split(struct dpt_split *split, const char *name, const struct dpt_dataset *set)
{
    split->name = name;
    split->present = true;
    split->set = set;
    split->sampler.total = split->sampler.samples = set->samples;
}

/* Opens a split with a data set of its own. */
static enum dpt_status open_split(struct dpt_splits *data, struct dpt_split *split,
                                  const struct dpt_job *job, const struct dpt_comm *comm,
                                  struct dpt_log *log, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    static const char *const names[DPT_SPLITS] = {"train", "valid", "test"};
    const struct dpt_texts *const paths[DPT_SPLITS] = {&job->data.train, &job->data.valid,
                                                       &job->data.test};
    const ptrdiff_t number = split - data->split;
    struct dpt_dataset *set = &data->sets[number];
    char word[32];
    struct dpt_dataset_spec spec = dpt_job_dataset(job, paths[number]);

    spec.part = (uint64_t)number;
    if (comm == NULL) {
        DPT_TRY(dpt_dataset_describe(set, &spec, NULL, err));
    } else {
        snprintf(word, sizeof word, "opening data.%s", names[number]);
        dpt_comm_note(comm, 0, word);
        DPT_TRY(dpt_dataset_open(set, &spec, comm, err));
        if (comm->world.rank == 0)
            dpt_dataset_warn_unused(set, log);
    }
    add_split(split, names[number], set);
out:
    return status;
}

/* If data.valid is a fraction of train, it is a split of that data set, not one of its own. */
static enum dpt_status open_valid(struct dpt_splits *data, const struct dpt_job *job,
                                  unsigned parts, const struct dpt_comm *comm, struct dpt_log *log,
                                  struct dpt_error *err)
{
    const struct dpt_texts *valid = &job->data.valid;
    double fraction;

    if (valid->n == 0)
        return DPT_OK;
    if (valid->n == 1 && dpt_parse_real(valid->at[0], &fraction)) {
        struct dpt_sampler *s = &data->train.sampler;

        if (!data->train.present)
            return DPT_OK;
        if (!(fraction > 0 && fraction <= 0.5))
            return dpt_fail(err, DPT_BAD_JOB, "data.valid: the fraction %s is not in (0, 0.5]",
                            valid->at[0]);
        s->held_out = (int64_t)((double)s->total * fraction + 0.5);
        if (s->held_out < 1)
            return dpt_fail(err, DPT_BAD_JOB, "data.valid: %s of %lld samples rounds to 0 samples",
                            valid->at[0], (long long)s->total);
        s->samples = s->total - s->held_out;
        add_split(&data->valid, "valid", data->train.set);
        data->valid.sampler.held_out = data->valid.sampler.samples = s->held_out;
        data->valid.sampler.validation = true;
        return DPT_OK;
    }
    if ((parts & DPT_PART_VALID) == 0)
        return DPT_OK;
    return open_split(data, &data->valid, job, comm, log, err);
}

void dpt_splits_warn_layout(const struct dpt_splits *data, struct dpt_log *log)
{
    char text[DPT_ERROR_TEXT];

    for (size_t i = 0; i < DPT_SPLITS; i++)
        if (data->split[i].present &&
            dpt_dataset_suspect_layout(data->split[i].set, text, sizeof text)) {
            dpt_log_warn(log, "%s", text);
            break;
        }
}

enum dpt_status dpt_splits_open(struct dpt_splits *data, const struct dpt_job *job, unsigned parts,
                                const struct dpt_comm *comm, struct dpt_log *log,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if ((parts & DPT_PART_TRAIN) != 0)
        DPT_TRY(open_split(data, &data->train, job, comm, log, err));
    DPT_TRY(open_valid(data, job, parts, comm, log, err));
    if ((parts & DPT_PART_TEST) != 0 && job->data.test.n > 0)
        DPT_TRY(open_split(data, &data->test, job, comm, log, err));
    if (log != NULL)
        dpt_splits_warn_layout(data, log);
out:
    return status;
}

enum dpt_status dpt_splits_open_targets(struct dpt_splits *data, const struct dpt_job *job,
                                        const struct dpt_trainer_model *model, bool reads,
                                        struct dpt_target_scale *targets, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_target_conf *conf = &job->data.targets;
    const struct dpt_split *train = &data->train;

    if (dpt_loss_judges(model->loss.kind))
        return DPT_OK;
    DPT_TRY(dpt_target_scale_init(targets, dpt_graph_outputs(&model->graph), err));
    for (size_t i = 0; i < DPT_SPLITS; i++)
        data->sets[i].scale = targets;
    targets->rates = model->loss.kind == DPT_LOSS_POISSON;
    targets->transform = (enum dpt_target_transform)conf->transform;
    for (const struct dpt_split *s = data->split; s < data->split + DPT_SPLITS; s++)
        if (s->present && reads)
            DPT_TRY(dpt_target_scale_check(targets, s->set, s->name, err));
    if (conf->scaled == DPT_TARGETS_GIVEN)
        DPT_TRY(dpt_target_scale_give(targets, &conf->given, err));
    /* Without training samples the scale comes with the weights. */
    if (conf->scaled == DPT_TARGETS_MEASURED && train->present && reads)
        DPT_TRY(dpt_target_scale_measure(targets, train->set, &train->sampler, err));
out:
    return status;
}

enum dpt_status dpt_splits_identify(struct dpt_splits *data, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_dataset_identity(data->train.set, data->identity, err));
    dpt_str_clear(&data->classes);
    dpt_dataset_write_classes(data->train.set, &data->classes);
    if (data->classes.failed)
        DPT_TRY(dpt_fail_memory(err, "the names of classes", (double)data->classes.length));
out:
    return status;
}

void dpt_splits_close(struct dpt_splits *data)
{
    dpt_str_release(&data->classes);
    for (size_t i = 0; i < DPT_SPLITS; i++)
        dpt_dataset_close(&data->sets[i]);
}

/* --- the samples of steps --------------------------------------------------------------------- */

/* "job.yaml:7:5: " of a layer, where that is known. */
static const char *place_of(const struct dpt_job *job, const struct dpt_graph_node *node,
                            char place[512])
{
    place[0] = '\0';
    if (node->line > 0 && job->model.file != NULL)
        snprintf(place, 512, "%s:%d:%d: ", job->model.file, node->line, node->column);
    return place;
}

/* A batch norm takes more than one number of each channel; many samples make good statistics. */
static enum dpt_status check_norms(const struct dpt_layout *l, struct dpt_error *err)
{
    enum { ENOUGH = 16 };
    const struct dpt_job *job = l->job;
    const int64_t global = job->batch.global, enough = global < ENOUGH ? global : ENOUGH;
    char place[512], cure[64] = "batch.global: 2 or more is needed", shape[40];

    for (int32_t i = 0; l->micro == 1 && i < l->graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &l->graph->nodes[i];

        if (node->op != DPT_OP_BATCHNORM || node->by_running ||
            (int64_t)node->in.h * node->in.w > 1 || (node->whole_step && global > 1))
            continue;
        if (enough > 1)
            snprintf(cure, sizeof cure, "batch.micro: %lld would do", (long long)enough);
        return dpt_fail(err, DPT_BAD_JOB,
                        "%smodel (%s): gets %s, and micro-batches of 1 sample (batch.micro: %s, "
                        "batch.global: %lld): one number of a channel has no variance; %s",
                        place_of(job, node, place), node->name, dpt_shape_text(&node->in, shape),
                        job->batch.micro == 0 ? "auto" : "1", (long long)global, cure);
    }
    return DPT_OK;
}

enum dpt_status dpt_splits_plan(struct dpt_splits *data, const struct dpt_layout *l,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (struct dpt_split *split = data->split; split < data->split + DPT_SPLITS; split++) {
        struct dpt_sampler *s = &split->sampler;

        if (!split->present)
            continue;
        if (split == &data->train) {
            DPT_TRY(check_norms(l, err));
            *s = l->sampler;
        } else {
            s->seed = l->sampler.seed;
            s->micro = l->micro;
            s->global =
                (int32_t)(l->micro * (l->backend->devices != NULL ? l->ranks * DEVICE_EVAL_MICROS
                                                                  : l->all_threads * EVAL_MICROS));
            s->shuffle = DPT_SHUFFLE_NONE;
        }
        if (dpt_sampler_steps(s) < 1)
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                             "data.%s: %lld samples are fewer than one step of %d", split->name,
                             (long long)s->samples, s->global));
    }
out:
    return status;
}

void dpt_splits_length(const struct dpt_splits *data, const struct dpt_job *job,
                       int64_t *steps_per_epoch, int64_t *steps)
{
    *steps_per_epoch = dpt_sampler_steps(&data->train.sampler);
    *steps = job->train.steps != 0 ? job->train.steps : job->train.epochs * *steps_per_epoch;
}

/* A mean over samples none of which counts is undefined: reported before the first step, not as
 * NaN. */
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
        /* Later stages get values from the stage before. */
        DPT_TRY((t->stage->number > 0 ? dpt_loader_open_labels : dpt_loader_open)(
            &s->loader, &s->form, &s->sampler, replicas->rank, replicas->size, err));
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
