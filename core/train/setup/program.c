#include "core/train/setup/parts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/step/engine.h"
#include "models/model.h"

enum dpt_status dpt_model_of_splits(struct dpt_trainer_model *model, const struct dpt_job *job,
                                    struct dpt_splits *data, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset *named = NULL;
    const struct dpt_split *first = NULL;
    const char *columns, *from;
    char have[40], want[40];

    for (struct dpt_split *split = data->split; split < data->split + DPT_SPLITS; split++) {
        if (!split->present)
            continue;
        if (first == NULL) {
            first = split;
            DPT_TRY(dpt_model_build(&job->model, &first->set->shape, &model->graph, err));
        }
        if (!dpt_same_shape(&first->set->shape, &split->set->shape))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "data.%s: samples are %s, those of data.%s are %s",
                             split->name, dpt_shape_text(&split->set->shape, have), first->name,
                             dpt_shape_text(&first->set->shape, want)));
        DPT_TRY(dpt_dataset_check_classes(split->set, &named, err));
        columns = dpt_dataset_columns(first->set, &from);
        DPT_TRY(dpt_dataset_check_columns(split->set, columns, from, err));
        DPT_TRY(dpt_dataset_check_targets(split->set, dpt_graph_outputs(&model->graph), err));
        split->form =
            dpt_batch_form_of(split->set, split == &data->train ? &job->data.augment : NULL,
                              dpt_graph_outputs(&model->graph));
    }
    if (named != NULL)
        data->called.at = dpt_dataset_class_names(named, &data->called.n);
    if (data->given != NULL)
        DPT_TRY(dpt_model_build(&job->model, data->given, &model->graph, err));
    else if (first == NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "the job's `data` names no samples for this"));
    if (data->train.present) {
        DPT_TRY(dpt_tensor_groups_freeze(&job->train.freeze, &model->graph, err));
        DPT_TRY(dpt_tensor_groups_apply(dpt_optimizer_groups(&job->optimizer),
                                        dpt_optimizer_lr(&job->optimizer), &model->graph, err));
    }
    dpt_layout_settle_norms(job, data->train.present, &model->graph);
out:
    return status;
}

/* The folder that keeps, from one run to the next, what takes long to find out; NULL if the
 * environment names none. */
static const char *cache_folder(char path[PATH_MAX])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;

    if (base != NULL && base[0] == '/')
        n = snprintf(path, PATH_MAX, "%s/dptrain", base);
    else if (home != NULL && home[0] == '/')
        n = snprintf(path, PATH_MAX, "%s/.cache/dptrain", home);
    return n > 0 && n < PATH_MAX ? path : NULL;
}

/* Whether opening failed because the device's memory is too small: any other error would also occur
 * if nothing large were allocated. */
static bool is_too_large(const struct dpt_trainer *t, const struct dpt_program_spec *spec,
                         enum dpt_status status)
{
    struct dpt_program_bytes bytes;
    struct dpt_error ignored;

    return status == DPT_BAD_JOB && t->backend->devices != NULL &&
           t->backend->measure(spec, &bytes, &ignored) == DPT_OK;
}

struct dpt_program_spec dpt_layout_program(const struct dpt_layout *l,
                                           const struct dpt_layout_stage *stage,
                                           const struct dpt_loss *loss, struct dpt_pool *pool)
{
    const struct dpt_job *job = l->job;
    const bool precise = (l->backend->precisions & 1U << job->device.precision) == 0;

    return (struct dpt_program_spec){
        .graph = &stage->graph,
        .loss = *loss,
        .micro = l->micro * l->at_once,
        .sub_batch = l->micro,
        .adds = l->adds,
        .threads = l->threads,
        .in_flight = stage->in_flight,
        .first = l->in_parts ? stage->first : 0,
        .last = l->in_parts ? stage->last : 0,
        .training = l->trains,
        .team = l->together ? pool : NULL,
        .precision = precise ? DPT_PRECISION_FP32 : (enum dpt_precision)job->device.precision,
        .reproducible = job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE,
        .slices = l->on_device && l->linked ? l->replicas : 0,
        .units = l->sliced_there ? stage->units : 0,
        .unit = stage->node,
        .edge = stage->edge,
        .varying = !job->device.deterministic,
    };
}

enum dpt_status dpt_trainer_open_program(struct dpt_trainer *t, const char *plans,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char folder[PATH_MAX];
    struct dpt_program_spec spec =
        dpt_layout_program(&t->layout, t->stage, &t->model.loss, t->team.pool);

    dpt_trainer_close_program(t);
    spec.plans = plans;
    spec.device = t->gpu;
    spec.waits = dpt_comm_device_waits(t->comm);
    if (t->backend->devices != NULL)
        spec.cache = cache_folder(folder);
    status = t->backend->open(&spec, &t->model.program, err);
    t->model.too_large = status != DPT_OK && is_too_large(t, &spec, status);
    DPT_TRY(status);
    t->team.adds = t->backend->adds != NULL ? t->backend->adds(t->model.program) : t->layout.adds;
    if (t->backend->plans != NULL)
        t->backend->plans(t->model.program, &t->model.plans);
    if (t->model.plans.failed)
        status = dpt_fail_memory(err, "a text", (double)t->model.plans.length);
out:
    return status;
}

void dpt_trainer_close_program(struct dpt_trainer *t)
{
    if (t->backend != NULL)
        t->backend->close(t->model.program);
    t->model.program = NULL;
    dpt_str_release(&t->model.plans);
}

static enum dpt_status reopen_with(struct dpt_trainer *t, const char *plans, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool attached;

    if (t->model.plans.text == NULL || strcmp(t->model.plans.text, plans) == 0)
        return DPT_OK;
    attached = t->engine->detach != NULL && t->engine->detach(t);
    DPT_TRY(dpt_trainer_open_program(t, plans, err));
    if (attached)
        DPT_TRY(t->engine->attach(t, err));
out:
    return status;
}

enum dpt_status dpt_trainer_share_plans(struct dpt_trainer *t, const char *plans,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    size_t bytes = plans != NULL ? strlen(plans) + 1 : 0;
    char *shared = NULL;

    if (t->backend->plans == NULL)
        return DPT_OK;
    DPT_TRY(dpt_group_broadcast(world, 0, &bytes, sizeof bytes, err));
    if (bytes <= 1)
        goto out;
    DPT_TRY(dpt_group_agree(world, DPT_ALLOCATE(shared, bytes, "a text", err), err));
    if (world->rank == 0)
        memcpy(shared, plans, bytes);
    DPT_TRY(dpt_group_broadcast(world, 0, shared, bytes, err));
    DPT_TRY(dpt_group_agree(world, reopen_with(t, shared, err), err));
out:
    dpt_free(shared);
    return status;
}

/* Whether the text has this line. */
static bool has_line(const char *text, const char *line, size_t length)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");

        if (n == length && memcmp(text, line, n) == 0)
            return true;
        text += n + (text[n] == '\n');
    }
    return false;
}

int dpt_plans_changed(const char *before, const char *now, int *total, char *name, size_t size)
{
    int changed = 0;

    *total = 0;
    while (*before != '\0') {
        const size_t n = strcspn(before, "\n");

        if (!has_line(now, before, n) && changed++ == 0)
            snprintf(name, size, "%.*s", (int)strcspn(before, "\t\n"), before);
        before += n + (before[n] == '\n');
        ++*total;
    }
    return changed;
}
