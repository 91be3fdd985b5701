#include "core/train/use/checkpoint_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "models/model.h"

/* Opens a checkpoint, and reads its progress and its job. */
static enum dpt_status open_job(struct dpt_checkpoint *file, struct dpt_state *state,
                                struct dpt_job *job, struct dpt_conf *conf, const char *path,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char *text = NULL;

    DPT_TRY(dpt_checkpoint_open(file, path, err));
    DPT_TRY(dpt_checkpoint_read(file, state, DPT_LOAD_PROGRESS, &text, err));
    DPT_TRY(dpt_conf_parse(conf, path, text, strlen(text), err));
    if (!dpt_options_read(conf, conf->root, "", dpt_job_options, job))
        DPT_TRY(dpt_fail_memory(err, "a checkpoint's job", 0));
    DPT_TRY(dpt_conf_validation_result(conf, err));
out:
    free(text);
    return status;
}

enum dpt_status dpt_checkpoint_job(const char *path, struct dpt_job *job, struct dpt_conf *conf,
                                   struct dpt_error *err)
{
    struct dpt_checkpoint file = {0};
    struct dpt_state state = {0};
    enum dpt_status status;
    char real[PATH_MAX];

    dpt_checkpoint_resolve(path, real);
    status = open_job(&file, &state, job, conf, real, err);
    dpt_checkpoint_close(&file);
    return status;
}

enum dpt_status dpt_checkpoint_kept(const struct dpt_checkpoint *file, struct dpt_source_kept *kept,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    dpt_checkpoint_attribute(file, "input_type", kept->type, sizeof kept->type);
    DPT_TRY(dpt_checkpoint_text(file, "/columns", &kept->columns, err));
    DPT_TRY(dpt_checkpoint_text(file, "/classes", &kept->classes, err));
out:
    return status;
}

void dpt_checkpoint_kept_release(struct dpt_source_kept *kept)
{
    free(kept->columns);
    free(kept->classes);
    *kept = (struct dpt_source_kept){0};
}

enum dpt_status dpt_checkpoint_kept_share(struct dpt_source_kept *kept,
                                          const struct dpt_group *world, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char **const texts[] = {&kept->columns, &kept->classes};

    DPT_TRY(dpt_group_broadcast(world, 0, kept->type, sizeof kept->type, err));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        size_t n = *texts[i] != NULL ? strlen(*texts[i]) + 1 : 0;

        DPT_TRY(dpt_group_broadcast(world, 0, &n, sizeof n, err));
        if (n == 0)
            continue;
        if (world->rank != 0 && (*texts[i] = malloc(n)) == NULL)
            status = dpt_fail_memory(err, "a checkpoint's texts", (double)n);
        DPT_TRY(dpt_group_agree(world, status, err));
        DPT_TRY(dpt_group_broadcast(world, 0, *texts[i], n, err));
    }
out:
    return status;
}

static enum dpt_status find_shape(const struct dpt_checkpoint_model *m,
                                  const struct dpt_checkpoint *file, const struct dpt_shape *given,
                                  struct dpt_shape *shape, struct dpt_error *err)
{
    char have[40], want[40];

    if (!dpt_checkpoint_shape(file, "input_shape", shape)) {
        if (given == NULL)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: does not say which shape its samples have, since an older dptrain "
                            "made it: --input-shape says it",
                            m->path);
        *shape = *given;
    } else if (given != NULL && !dpt_same_shape(given, shape)) {
        return dpt_fail(err, DPT_BAD_DATA, "%s: its samples are %s, not %s", m->path,
                        dpt_shape_text(shape, have), dpt_shape_text(given, want));
    }
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_model_open(struct dpt_checkpoint_model *m, const char *path,
                                          const struct dpt_shape *shape, unsigned how,
                                          struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint file = {0};
    struct dpt_state state = {0};
    struct dpt_shape input;

    *m = (struct dpt_checkpoint_model){0};
    dpt_checkpoint_resolve(path, m->path);
    DPT_TRY(dpt_checkpoint_verify(m->path, err));
    DPT_TRY(open_job(&file, &state, &m->job, &m->conf, m->path, err));
    DPT_TRY(dpt_checkpoint_kept(&file, &m->kept, err));
    DPT_TRY(find_shape(m, &file, shape, &input, err));
    DPT_TRY(dpt_model_build(&m->job.model, &input, &m->graph, err));
    DPT_TRY(DPT_ALLOCATE(m->params, (size_t)m->graph.arena, "the parameters", err));
    if (!dpt_loss_judges(dpt_job_loss(&m->job).kind))
        DPT_TRY(dpt_target_scale_init(&m->targets, dpt_graph_outputs(&m->graph), err));
    m->targets.rates = dpt_job_loss(&m->job).kind == DPT_LOSS_POISSON;
    state.targets = &m->targets;
    state.graph = &m->graph;
    state.params = m->params;
    DPT_TRY(dpt_checkpoint_read(&file, &state, DPT_LOAD_PARAMS | how, NULL, err));
    m->progress = state.progress;
    m->averaged = state.averaged;
out:
    dpt_checkpoint_close(&file);
    if (status != DPT_OK)
        dpt_checkpoint_model_close(m);
    return status;
}

void dpt_checkpoint_model_close(struct dpt_checkpoint_model *m)
{
    dpt_checkpoint_kept_release(&m->kept);
    dpt_free(m->params);
    dpt_target_scale_release(&m->targets);
    dpt_graph_release(&m->graph);
    dpt_conf_release(&m->conf);
    *m = (struct dpt_checkpoint_model){0};
}

/* --- beside a job's model --------------------------------------------------------------------- */

/* "64", "64x13" */
static const char *dims_text(const struct dpt_tensor *t, char text[64])
{
    size_t used = 0;

    text[0] = '\0';
    for (int k = 0; k < t->n_dims && used < 64; k++)
        used += (size_t)snprintf(text + used, 64 - used, "%s%lld", k > 0 ? "x" : "",
                                 (long long)t->dims[k]);
    return text;
}

static enum dpt_status compare(const char *path, const struct dpt_graph *theirs,
                               const struct dpt_graph *ours, struct dpt_error *err)
{
    static const char cure[] = "it is another job's checkpoint";
    char a[64], b[64];
    int32_t k = 0;

    while (k < theirs->n_tensors && k < ours->n_tensors &&
           strcmp(theirs->tensors[k].name, ours->tensors[k].name) == 0 &&
           strcmp(dims_text(&theirs->tensors[k], a), dims_text(&ours->tensors[k], b)) == 0)
        k++;
    if (k == theirs->n_tensors && k == ours->n_tensors)
        return DPT_OK;
    if (k < theirs->n_tensors && k < ours->n_tensors &&
        strcmp(theirs->tensors[k].name, ours->tensors[k].name) == 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: its model's %s is %s, the job's is %s: %s", path,
                        theirs->tensors[k].name, a, b, cure);
    return dpt_fail(err, DPT_BAD_DATA, "%s: its model has %s where the job's has %s: %s", path,
                    k < theirs->n_tensors ? theirs->tensors[k].name : "its end",
                    k < ours->n_tensors ? ours->tensors[k].name : "its end", cure);
}

enum dpt_status dpt_checkpoint_fits(const char *path, const struct dpt_job *job,
                                    const struct dpt_shape *shape, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint file = {0};
    struct dpt_state state = {0};
    struct dpt_graph theirs = {0}, ours = {0};
    struct dpt_conf conf = {0};
    struct dpt_job made = {0};
    struct dpt_shape input;
    struct dpt_error ignored; /* what cannot be read is reported when the weights are read */
    char real[PATH_MAX], have[40], want[40];

    dpt_checkpoint_resolve(path, real);
    if (open_job(&file, &state, &made, &conf, real, &ignored) != DPT_OK ||
        !dpt_checkpoint_shape(&file, "input_shape", &input))
        goto out;
    if (dpt_loss_judges(dpt_job_loss(&made).kind) != dpt_loss_judges(dpt_job_loss(job).kind))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: its model predicts %s, the job's %s (`loss`): it is another job's "
                         "checkpoint",
                         path, dpt_loss_judges(dpt_job_loss(&made).kind) ? "classes" : "numbers",
                         dpt_loss_judges(dpt_job_loss(job).kind) ? "classes" : "numbers"));
    if (dpt_model_build(&made.model, &input, &theirs, &ignored) != DPT_OK ||
        dpt_model_build(&job->model, shape, &ours, &ignored) != DPT_OK)
        goto out;
    status = compare(path, &theirs, &ours, err);
    if (status != DPT_OK && !dpt_same_shape(&input, shape)) /* the shape is the cause */
        status = dpt_fail(err, DPT_BAD_DATA,
                          "%s: its model takes %lld inputs (%s), the job's samples have %lld (%s): "
                          "it is another job's checkpoint",
                          path, (long long)dpt_shape_size(&input), dpt_shape_text(&input, have),
                          (long long)dpt_shape_size(shape), dpt_shape_text(shape, want));
out:
    dpt_graph_release(&theirs);
    dpt_graph_release(&ours);
    dpt_conf_release(&conf);
    dpt_checkpoint_close(&file);
    return status;
}

/* --- as a file of weights --------------------------------------------------------------------- */

static bool is_hdf5(const unsigned char *head, size_t n)
{
    return n >= 8 && memcmp(head, "\x89HDF\r\n\x1a\n", 8) == 0;
}

static enum dpt_status open_checkpoint(struct dpt_weights *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint_model *m = NULL;
    char name[DPT_NAME];

    DPT_TRY(DPT_ALLOCATE(m, 1, w->path, err));
    w->file = m;
    DPT_TRY(dpt_checkpoint_model_open(m, w->path, NULL, DPT_LOAD_AVERAGE, err));
    for (int32_t k = 0; k < m->graph.n_tensors; k++) {
        const struct dpt_tensor *t = &m->graph.tensors[k];
        struct dpt_weight *weight;

        dpt_weight_name(t, name);
        DPT_TRY(dpt_weights_add(w, name, strlen(name), &weight, err));
        weight->type = "float32";
        weight->kind = DPT_FLOAT_32;
        weight->n_dims = t->n_dims;
        memcpy(weight->dims, t->dims, sizeof t->dims);
        weight->count = t->count;
        weight->position = (uint64_t)t->offset;
    }
out:
    return status;
}

static enum dpt_status read_checkpoint(struct dpt_weights *w, const struct dpt_weight *weight,
                                       void *bytes, size_t n, struct dpt_error *err)
{
    const struct dpt_checkpoint_model *m = w->file;

    (void)err;
    memcpy(bytes, m->params + weight->position, n);
    return DPT_OK;
}

static void close_checkpoint(struct dpt_weights *w)
{
    if (w->file != NULL)
        dpt_checkpoint_model_close(w->file);
    dpt_free(w->file);
    w->file = NULL;
}

const struct dpt_weights_format dpt_weights_checkpoint = {
    .name = "checkpoint",
    .suffix = ".h5",
    .summary = "of dptrain",
    .is = is_hdf5,
    .open = open_checkpoint,
    .read = read_checkpoint,
    .close = close_checkpoint,
    .ordered = true,
};
