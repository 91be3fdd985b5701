/* Predictions of a run's model for its test data: the confusion matrix of classes, and the largest
 * losses. */
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/job_command.h"
#include "cmd/report/report.h"
#include "core/base/memory.h"
#include "core/state/checkpoint.h"
#include "core/train/setup/state.h"
#include "core/train/step/evaluate.h"
#include "core/train/use/predict.h"
#include "data/sources/source.h"
#include "data/tables/columns.h"
#include "models/model.h"

/* Puts an entry into a list of at most so many, the largest losses first. Entries begin with their
 * sample. */
static void keep(void *list, size_t size, int most, int *n, const void *entry)
{
    const float loss = ((const struct dpt_page_sample *)entry)->loss;
    char *at = (char *)list + (size_t)*n * size;

    for (; at > (char *)list; at -= size) {
        if (!(((const struct dpt_page_sample *)(const void *)(at - size))->loss < loss))
            break;
        if (at < (char *)list + (size_t)most * size)
            memcpy(at, at - size, size);
    }
    if (at == (char *)list + (size_t)most * size)
        return;
    memcpy(at, entry, size);
    *n += *n < most;
}

static void take_classes(struct dpt_page_predictions *v, const struct dpt_predicted *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        const size_t at = (size_t)i * (size_t)p->outputs;
        const float *row = p->probabilities + at;
        const int32_t chosen = p->labels[i];
        const int32_t label =
            p->classes != NULL ? p->classes[i] : dpt_argmax(p->targets + at, p->outputs);
        const struct dpt_page_wrong wrong = {
            .sample = {.number = p->sample[i], .loss = p->loss[i]},
            .position = p->first + i,
            .label = label,
            .chosen = chosen,
            .p_label = row[label],
            .p_chosen = row[chosen],
        };

        v->samples++;
        v->correct += label == chosen;
        dpt_said_put(&v->said, p->first + i, label, p->values + at);
        if (label == chosen)
            continue;
        v->all_wrong++;
        keep(v->wrong, sizeof wrong, DPT_PAGE_WORST, &v->n_wrong, &wrong);
    }
}

static void take_labels(struct dpt_page_predictions *v, const struct dpt_predicted *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        const size_t at = (size_t)i * (size_t)p->outputs;
        bool right = true;

        for (int32_t k = 0; k < p->outputs; k++)
            right =
                right && (p->values[at + (size_t)k] > 0) == (p->targets[at + (size_t)k] >= 0.5F);
        v->samples++;
        v->correct += right;
        if (v->said.width > 0)
            memcpy(v->said.rows + (p->first + i) * p->outputs, p->values + at,
                   (size_t)p->outputs * sizeof *p->values);
    }
}

static void take_numbers(struct dpt_page_predictions *v, const struct dpt_predicted *p)
{
    const int64_t stride = 1 + (v->all - 1) / DPT_PAGE_CLOUD;

    for (int32_t i = 0; i < p->count; i++) {
        const float *truth = p->targets + (size_t)i * (size_t)p->outputs;
        const float *predicted = p->values + (size_t)i * (size_t)p->outputs;
        struct dpt_page_off off = {.sample.number = p->sample[i]};
        double farthest = -1;

        dpt_error_sums_add(v->errors, p->outputs, v->samples++, predicted, truth);
        for (int32_t k = 0; k < p->outputs; k++) {
            const double error = fabs((double)predicted[k] - (double)truth[k]);

            if (error > farthest) {
                farthest = error;
                off.output = k;
                off.truth = truth[k];
                off.predicted = predicted[k];
            }
        }
        off.sample.loss = p->loss != NULL ? p->loss[i] : (float)farthest;
        keep(v->off, sizeof off, DPT_PAGE_OFF, &v->n_off, &off);
        if ((p->first + i) % stride != 0)
            continue;
        dpt_series_add(&v->cloud, (double)truth[0], (double)predicted[0]);
        dpt_series_add(&v->residuals, (double)predicted[0],
                       (double)predicted[0] - (double)truth[0]);
    }
}

enum dpt_status dpt_page_leave_out(struct dpt_page *r, size_t run, const char *why,
                                   struct dpt_error *err)
{
    r->predictions[run].why = dpt_region_strdup(&r->region, why);
    return r->predictions[run].why != NULL ? DPT_OK : dpt_fail_memory(err, "the report", 0);
}

static enum dpt_status take(void *arg, const struct dpt_predicted *p, struct dpt_error *err)
{
    struct dpt_page_predictions *v = arg;

    for (int32_t i = 0; i < p->count; i++)
        if (!dpt_is_finite(p->values + (size_t)i * (size_t)p->outputs, p->outputs))
            return dpt_fail(err, DPT_FAILED,
                            "the checkpoint's outputs are not numbers, as for sample %lld of "
                            "data.%s",
                            (long long)p->sample[i], v->split);
    if (v->classes)
        take_classes(v, p);
    else if (v->labels)
        take_labels(v, p);
    else
        take_numbers(v, p);
    return DPT_OK;
}

/* Allocates the arrays for predictions, before the first samples are predicted. */
static enum dpt_status open_predictions(struct dpt_page *r, struct dpt_page_predictions *v,
                                        const struct dpt_trainer *t, const struct dpt_split *split,
                                        struct dpt_error *err)
{
    const size_t n = (size_t)dpt_graph_outputs(&t->model.graph);

    v->split = split->name;
    v->all = split->sampler.samples;
    v->classes = dpt_loss_has_classes(t->model.loss.kind);
    v->labels = dpt_trainer_labels(t) > 0;
    v->outputs = (int32_t)n;
    if (v->classes || v->labels) {
        v->said.outputs = v->outputs;
        v->said.width = dpt_said_width(v->outputs, v->all, true, v->labels);
        v->class = dpt_region_alloc(&r->region, n * sizeof *v->class);
        if (v->classes && v->outputs <= DPT_PAGE_CLASSES)
            v->confusion = dpt_region_alloc(&r->region, n * n * sizeof *v->confusion);
        if (r->region.failed)
            return dpt_fail_memory(err, "the classes", (double)n);
        if (t->comm->world.rank != 0 || v->said.width == 0)
            return DPT_OK;
        return DPT_ALLOCATE(v->said.rows, (size_t)v->all * (size_t)v->said.width, "the predictions",
                            err);
    }
    v->errors = dpt_region_alloc(&r->region, 4 * n * sizeof *v->errors);
    v->targets = dpt_region_alloc(&r->region, n * sizeof *v->targets);
    if (r->region.failed || !dpt_series_open(&v->cloud, DPT_PAGE_CLOUD + 1, &r->region) ||
        !dpt_series_open(&v->residuals, DPT_PAGE_CLOUD + 1, &r->region))
        return dpt_fail_memory(err, "the predictions", 0);
    return DPT_OK;
}

/* The names of the columns that the outputs predict. */
static enum dpt_status name_targets(struct dpt_page *r, struct dpt_page_predictions *v,
                                    const struct dpt_source_model *model, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_columns columns = {0};
    int32_t k = 0;

    if (v->classes || v->labels || model->columns == NULL)
        return DPT_OK;
    DPT_TRY(dpt_columns_parse(&columns, model->columns, model->columns_of, err));
    for (; (size_t)k < columns.n_labels && k < v->outputs; k++) {
        const struct dpt_column *label = &columns.at[columns.labels[k]];

        v->targets[k] = label->offset == 0 ? dpt_region_strdup(&r->region, label->name)
                                           : dpt_region_printf(&r->region, "%s, less %.15g",
                                                               label->name, label->offset);
    }
    if (r->region.failed)
        DPT_TRY(dpt_fail_memory(err, "the names of the targets", (double)k));
out:
    dpt_columns_release(&columns);
    return status;
}

/* Gives the samples that the page lists the names that an id gave their rows. That there are none
 * is no failure. */
static enum dpt_status name_samples(struct dpt_page *r, struct dpt_page_predictions *v,
                                    const struct dpt_splits *data, const struct dpt_split *split,
                                    const struct dpt_job *job, struct dpt_error *err)
{
    const struct dpt_texts *paths = split->set == data->test.set    ? &job->data.test
                                    : split->set == data->train.set ? &job->data.train
                                                                    : &job->data.valid;
    struct dpt_data_conf conf = job->data;
    const struct dpt_source_spec spec = {
        .inputs = paths->at, .n_inputs = paths->n, .classes = v->classes, .conf = &conf};
    struct dpt_source *source = NULL;
    struct dpt_error why = {0};

    conf.verify = false; /* as was done when they were read */
    if (dpt_source_open(&source, &spec, 0, 1, &why) == DPT_OK &&
        dpt_source_info(source)->id != NULL) {
        for (int i = 0; i < v->n_wrong + v->n_off; i++) {
            struct dpt_page_sample *sample =
                i < v->n_wrong ? &v->wrong[i].sample : &v->off[i - v->n_wrong].sample;

            sample->name = dpt_region_strdup(&r->region, dpt_source_name(source, sample->number));
        }
    }
    dpt_source_close(source);
    return r->region.failed ? dpt_fail_memory(err, "the names of samples", 0) : DPT_OK;
}

/* Finds the name and step of the checkpoint that a link points to. */
static void name_checkpoint(struct dpt_page_predictions *v, const char *path)
{
    char target[PATH_MAX] = "";
    const ssize_t n = readlink(path, target, sizeof target - 1);
    const char *name;
    long long step;

    target[n > 0 ? n : 0] = '\0';
    name = strrchr(target, '/') != NULL ? strrchr(target, '/') + 1 : target;
    snprintf(v->checkpoint, sizeof v->checkpoint, "%.48s%s", n > 0 ? name : basename((char *)path),
             n > 0 && strcmp(strrchr(path, '/'), "/best") == 0 ? ", the best" : "");
    v->step = sscanf(name, "step-%lld.h5", &step) == 1 ? step : -1;
}

/* Opens the data of a job whose paths are meant from the folder in which it was started: this one,
 * or one of those that the run folder lies in. Leaves the process there. Collective. */
static enum dpt_status open_data(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_page *r, const char *folder,
                                 struct dpt_error *err)
{
    struct dpt_log *log = &r->cli->log;
    const bool test = job->data.test.n > 0;
    const unsigned parts = test ? DPT_PART_TEST : DPT_PART_TRAIN | DPT_PART_VALID;
    enum dpt_status status = dpt_trainer_open(t, job, &r->comm, log, parts, NULL, err);
    char above[PATH_MAX];

    snprintf(above, sizeof above, "%s", folder);
    while (status == DPT_BAD_JOB && strcmp(above, "/") != 0) {
        struct dpt_error other = {0};

        dirname(above);
        if (chdir(above) != 0)
            break;
        status = dpt_trainer_open(t, job, &r->comm, log, parts, NULL, &other);
        if (status != DPT_OK && status != DPT_BAD_JOB)
            *err = other;
    }
    return status;
}

/* Rank 0: the scores of what was predicted, and what classes, targets and samples are called. */
static enum dpt_status judge(struct dpt_page *r, struct dpt_page_predictions *v,
                             struct dpt_trainer *t, const struct dpt_split *split,
                             const char *checkpoint, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source_model model = {0};

    if (v->classes)
        DPT_TRY(dpt_scores_classes(&v->scores, split->set, &split->sampler, &v->said, &t->positive,
                                   v->class, v->confusion, err));
    if (v->labels && v->said.width > 0)
        DPT_TRY(dpt_scores_labels(&v->scores, split->set, &split->sampler, &v->said, NULL,
                                  &t->positive, v->class, err));
    if (v->classes || v->labels)
        DPT_TRY(dpt_page_take_curves(r, v, split, err));
    for (int32_t k = 0; v->classes && k < v->outputs; k++) {
        v->weight += v->class[k].weight;
        v->accuracy += v->class[k].right;
    }
    v->accuracy /= v->weight > 0 ? v->weight : 1;
    v->positive = t->positive;
    DPT_TRY(dpt_job_command_source_model(t->job, checkpoint, v->classes, &model, &r->region, err));
    v->called = v->labels ? (struct dpt_called){model.labels, model.n_labels}
                          : (struct dpt_called){model.classes, model.n_classes};
    DPT_TRY(name_targets(r, v, &model, err));
    DPT_TRY(name_samples(r, v, &t->data, split, t->job, err));
    DPT_TRY(dpt_page_pictures(r, v, t, split, err));
out:
    return status;
}

static enum dpt_status predict(struct dpt_page *r, size_t run, const struct dpt_job *job,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_page_predictions *v = &r->predictions[run];
    struct dpt_trainer t = {0};
    struct dpt_split *split;
    const struct dpt_group *world = &r->comm.world;
    char folder[PATH_MAX], path[PATH_MAX];

    if (realpath(r->runs.at[run].history.folder, folder) == NULL)
        return dpt_fail_errno(err, DPT_IO, "%s", r->runs.at[run].history.folder);
    DPT_TRY(open_data(&t, job, r, folder, err));
    DPT_TRY(dpt_page_take_model(r, run, &t.model.graph, err));
    if (job->data.test.n == 0 && job->data.valid.n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "the job names neither data.test nor data.valid"));
    dpt_checkpoint_tell(r->runs.at[run].history.folder, &r->cli->log);
    dpt_checkpoint_resolve(folder, path);
    if (access(path, R_OK) != 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "the run has no checkpoint"));
    name_checkpoint(v, path);
    split = t.data.test.present ? &t.data.test : &t.data.valid;
    DPT_TRY(dpt_trainer_load_params(&t, path, DPT_LOAD_AVERAGE, err));
    t.all_scores = true;
    dpt_trainer_find_positive(&t, split);
    DPT_TRY(dpt_group_agree(world, open_predictions(r, v, &t, split, err), err));
    DPT_TRY(dpt_trainer_predict(&t, split, world->rank == 0 ? take : NULL, v, NULL, err));
    if (world->rank == 0)
        status = judge(r, v, &t, split, path, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_page_take_importance(v, &t, split, err));
out:
    dpt_free(v->said.rows);
    v->said.rows = NULL;
    dpt_trainer_close(&t);
    return status;
}

enum dpt_status dpt_page_predict(struct dpt_page *r, size_t run, struct dpt_error *err)
{
    enum dpt_status status;
    const char *sets[r->cli->n_given + 1];
    const size_t n_sets = dpt_cli_all(r->cli, "--set", sets);
    struct dpt_error why = {0};
    struct dpt_conf conf = {0};
    struct dpt_job job;
    char here[PATH_MAX];
    char path[PATH_MAX + 16];

    snprintf(path, sizeof path, "%s/job.yaml", r->runs.at[run].history.folder);
    if (getcwd(here, sizeof here) == NULL)
        return dpt_fail_errno(err, DPT_IO, "this folder");
    status = dpt_job_load(&job, &conf, path, sets, n_sets, &why);
    if (status == DPT_OK)
        status = predict(r, run, &job, &why);
    dpt_conf_release(&conf);
    if (chdir(here) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", here);
    if (status == DPT_OK)
        return DPT_OK;
    return dpt_page_leave_out(r, run, why.text, err);
}
