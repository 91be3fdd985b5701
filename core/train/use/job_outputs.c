/* The width of a model's last layer, if the job leaves it to the data. */
#include <limits.h>
#include <stdlib.h>

#include "core/train/use/checkpoint_model.h"
#include "models/model.h"

bool dpt_job_leaves_outputs(const struct dpt_job *job)
{
    struct dpt_conf_node *node;
    const int64_t *outputs = dpt_model_outputs(&job->model, &node);

    return outputs != NULL && *outputs == 0;
}

/* *outputs: 0 if the checkpoint's model has none. */
static enum dpt_status ask_checkpoint(const char *path, int64_t *outputs, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conf conf = {0};
    struct dpt_conf_node *node;
    struct dpt_job job = {0};
    const int64_t *said;

    DPT_TRY(dpt_checkpoint_job(path, &job, &conf, err));
    said = dpt_model_outputs(&job.model, &node);
    *outputs = said != NULL ? *said : 0;
out:
    dpt_conf_release(&conf);
    return status;
}

static enum dpt_status ask_data(const struct dpt_job *job, const struct dpt_comm *comm,
                                int64_t *outputs, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset set = {0};
    const struct dpt_dataset_spec spec = dpt_job_dataset(job, &job->data.train);

    DPT_TRY(dpt_dataset_describe(&set, &spec, comm, err));
    status = dpt_dataset_count_outputs(&set, comm, outputs, err);
    if (status == DPT_BAD_JOB)
        dpt_error_prefix(err, "the model's outputs are left to the data (or give their number): ");
out:
    dpt_dataset_close(&set);
    return status;
}

enum dpt_status dpt_job_find_outputs(const struct dpt_job *job, const char *checkpoint,
                                     const struct dpt_comm *comm, int64_t *outputs,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *outputs = 0;
    if (checkpoint != NULL && (comm == NULL || comm->world.rank == 0))
        status = ask_checkpoint(checkpoint, outputs, err);
    if (comm != NULL)
        status = dpt_group_agree(&comm->world, status, err);
    DPT_TRY(status);
    if (comm != NULL)
        DPT_TRY(dpt_group_broadcast(&comm->world, 0, outputs, sizeof *outputs, err));
    if (*outputs == 0)
        DPT_TRY(ask_data(job, comm, outputs, err));
out:
    return status;
}

enum dpt_status dpt_job_set_outputs(struct dpt_job *job, struct dpt_conf *conf, int64_t outputs,
                                    struct dpt_error *err)
{
    struct dpt_conf_node *node;

    *dpt_model_outputs(&job->model, &node) = outputs;
    node->text = dpt_region_printf(&conf->region, "%lld", (long long)outputs);
    return node->text != NULL ? DPT_OK : dpt_fail_memory(err, "the job", 0);
}
