#include "cmd/job_command.h"

#include <stdio.h>
#include <string.h>

#include "cmd/lead.h"
#include "core/base/hash.h"
#include "core/plan/plan.h"
#include "core/train/setup/choose.h"
#include "core/train/setup/state.h"
#include "core/train/use/checkpoint_model.h"
#include "core/train/use/init.h"

/* The file of weights that the command line names in place of the job's init.from, or NULL. */
static const char *init_file(const struct dpt_cli *cli)
{
    const char *checkpoint = dpt_cli_value(cli, "--checkpoint");

    if (checkpoint != NULL &&
        (dpt_cli_value(cli, "--map") != NULL || dpt_cli_has(cli, "--map-by-order") ||
         dpt_cli_has(cli, "--init-partial") ||
         dpt_weights_foreign(checkpoint, &dpt_weights_checkpoint)))
        return checkpoint;
    return dpt_cli_value(cli, "--init-from");
}

const char *dpt_job_command_checkpoint(const struct dpt_cli *cli)
{
    const char *checkpoint = dpt_cli_value(cli, "--checkpoint");

    return checkpoint != NULL && init_file(cli) != checkpoint ? checkpoint : NULL;
}

unsigned dpt_job_command_loaded(const struct dpt_cli *cli)
{
    return dpt_job_command_checkpoint(cli) != NULL ? DPT_PART_LOADED : 0;
}

enum dpt_status dpt_job_command_weights(const struct dpt_cli *cli, const struct dpt_job *job,
                                        const char **path, struct dpt_error *err)
{
    *path = dpt_cli_value(cli, "--checkpoint");
    if (*path == NULL)
        *path = job->init.from;
    if (*path != NULL)
        return DPT_OK;
    return dpt_fail(
        err, DPT_USAGE,
        "dptrain %s: no checkpoint: give --checkpoint FILE, a run folder (its best or newest "
        "checkpoint), or weights in safetensors or npz",
        cli->command->name);
}

enum dpt_status dpt_job_command_load_parts(const struct dpt_cli *cli, unsigned *how,
                                           struct dpt_error *err)
{
    const char *weights = dpt_cli_value(cli, "--weights");

    *how = dpt_cli_has(cli, "--allow-nan") ? DPT_LOAD_ANY : 0;
    if (weights == NULL)
        *how |= DPT_LOAD_AVERAGE;
    else if (strcmp(weights, "ema") == 0)
        *how |= DPT_LOAD_AVERAGE | DPT_LOAD_ONLY_AVERAGE;
    else if (strcmp(weights, "raw") != 0)
        return dpt_fail(err, DPT_USAGE, "dptrain %s: --weights %s is none of ema, raw",
                        cli->command->name, weights);
    return DPT_OK;
}

enum dpt_status dpt_job_command_load_weights(const struct dpt_cli *cli, struct dpt_trainer *t,
                                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *checkpoint = dpt_job_command_checkpoint(cli);
    struct dpt_init_result result = {0};
    unsigned how;

    DPT_TRY(dpt_job_command_load_parts(cli, &how, err));
    if (checkpoint != NULL) {
        dpt_checkpoint_tell(checkpoint, t->log);
        return dpt_trainer_load_params(t, checkpoint, how, err);
    }
    if (dpt_cli_has(cli, "--weights"))
        return dpt_fail(err, DPT_USAGE,
                        "dptrain %s: --weights: is for a checkpoint of dptrain that is read as a "
                        "whole; leave it out for a file of weights",
                        cli->command->name);
    if (t->job->data.targets.scaled == DPT_TARGETS_MEASURED && !t->targets.used)
        return dpt_fail(
            err, DPT_BAD_JOB,
            "data.targets.normalize: auto measures training targets, which these weights do "
            "not keep: give {mean: ..., std: ...}, or --checkpoint with the run's own");
    DPT_TRY(dpt_init_weights(t, &result, err));
    if (t->comm->world.rank == 0)
        dpt_init_log(t, &result, false);
out:
    dpt_init_release(&result);
    return status;
}

enum dpt_status dpt_job_command_source_model(const struct dpt_job *job, const char *weights,
                                             bool classes, struct dpt_source_model *model,
                                             struct dpt_region *region, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint checkpoint = {0};
    struct dpt_source_kept kept = {0};
    char path[PATH_MAX];

    DPT_TRY(dpt_source_model_find(model, &job->data, classes, region, err));
    if (dpt_weights_foreign(weights, &dpt_weights_checkpoint))
        return DPT_OK;
    DPT_TRY(dpt_checkpoint_open(&checkpoint, dpt_checkpoint_resolve(weights, path), err));
    DPT_TRY(dpt_checkpoint_kept(&checkpoint, &kept, err));
    DPT_TRY(dpt_source_model_keep(model, &kept, weights, region, err));
out:
    dpt_checkpoint_close(&checkpoint);
    dpt_checkpoint_kept_release(&kept);
    return status;
}

/* Collects --set and the options that are short for it, as KEY=VALUE. Errors: RANK. */
static enum dpt_status collect_sets(const struct dpt_cli *cli, struct dpt_region *region,
                                    const char *const **sets, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    /* They are quoted scalars: a folder may be called `null` or `a: b`. */
    const struct {
        const char *key, *value;
    } quoted[] = {{"output", dpt_cli_value(cli, "--output")}, {"init.from", init_file(cli)}};
    const char *device = dpt_cli_value(cli, "--device");
    const char *rules[cli->n_given + 1];
    const size_t n_rules = dpt_cli_all(cli, "--map", rules);
    const char **all = dpt_region_alloc(region, (cli->n_given + 6) * sizeof *all);
    struct dpt_str text = {0};

    if (all == NULL)
        DPT_TRY(dpt_fail_memory(err, "the command line", 0));
    if (quoted[0].value != NULL &&
        quoted[0].value[0] == '\0') /* as of a variable that is not set */
        DPT_TRY(dpt_fail(err, DPT_USAGE, "dptrain %s: --output is empty: give a folder",
                         cli->command->name));
    *n = dpt_cli_all(cli, "--set", all);
    for (size_t i = 0; i < sizeof quoted / sizeof quoted[0]; i++) {
        if (quoted[i].value == NULL)
            continue;
        dpt_str_clear(&text);
        dpt_str_json(&text, quoted[i].value);
        all[(*n)++] = dpt_region_printf(region, "%s=%s", quoted[i].key, text.text);
    }
    if (device != NULL)
        all[(*n)++] = dpt_region_printf(region, "device.kind=%s",
                                        dpt_gpu_type_find(device) != NULL ? "cuda" : device);
    dpt_str_clear(&text);
    for (size_t i = 0; i < n_rules; i++) {
        dpt_str_printf(&text, i == 0 ? "" : ", ");
        dpt_str_json(&text, rules[i]);
    }
    if (n_rules > 0)
        all[(*n)++] = dpt_region_printf(region, "init.map=[%s]", text.text);
    if (dpt_cli_has(cli, "--map-by-order"))
        all[(*n)++] = "init.by_order=true";
    if (dpt_cli_has(cli, "--init-partial"))
        all[(*n)++] = "init.partial=true";
    for (size_t i = 0; i < *n; i++)
        if (text.failed || all[i] == NULL)
            status = dpt_fail_memory(err, "the command line", 0);
    *sets = all;
out:
    dpt_str_release(&text);
    return status;
}

enum dpt_status dpt_job_command_outputs(const struct dpt_cli *cli, struct dpt_job *job,
                                        struct dpt_conf *conf, const struct dpt_comm *comm,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *checkpoint = dpt_job_command_checkpoint(cli); /* others do not say it */
    int64_t outputs = 0;

    if (!dpt_job_leaves_outputs(job))
        return DPT_OK;
    DPT_TRY(dpt_job_find_outputs(job, checkpoint, comm, &outputs, err));
    status = dpt_job_set_outputs(job, conf, outputs, err);
out:
    return status;
}

enum dpt_status dpt_job_command_load(struct dpt_cli *cli, struct dpt_job *job,
                                     struct dpt_conf *conf, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    static char job_of_run[PATH_MAX + 16];
    const char *const *sets;
    struct dpt_region region = {0};
    size_t n;

    if (cli->n_positional != 1)
        return dpt_cli_wrong(
            cli, cli->n_positional == 0 ? "no job file given;" : "one job file at a time;", err);
    dpt_lead_take_run(cli, job_of_run, sizeof job_of_run);
    DPT_TRY(dpt_lead_job(cli, err));
    DPT_TRY(collect_sets(cli, &region, &sets, &n, err));
    DPT_TRY(dpt_job_load(job, conf, cli->positional[0], sets, n, err));
out:
    dpt_region_release(&region);
    return status;
}

/* Ranks on hosts that see another job file must not continue. Collective. */
static enum dpt_status same_job(const struct dpt_conf *conf, const struct dpt_comm *comm,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str text = {0};
    uint32_t mine, first;

    dpt_conf_write(conf->root, &text);
    mine = first = dpt_crc32(0, text.text, text.length);
    dpt_str_release(&text);
    DPT_TRY(dpt_group_broadcast(&comm->world, 0, &first, sizeof first, err));
    if (mine != first)
        status = dpt_fail(err, DPT_BAD_JOB, "%s: is another job here than on rank 0", conf->path);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
out:
    return status;
}

enum dpt_status dpt_job_command_decision(const struct dpt_cli *cli, const struct dpt_job *job,
                                         int32_t outputs, const struct dpt_called *called,
                                         struct dpt_decision *decision, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const enum dpt_loss_kind kind = dpt_job_loss(job).kind;
    const char *given[cli->n_given + 1];
    const size_t n = dpt_cli_all(cli, "--threshold", given);

    if (!dpt_loss_judges(kind))
        return dpt_fail(err, DPT_USAGE,
                        "with loss %s the model predicts numbers: there are no classes to decide "
                        "for",
                        job->loss.variant->name);
    DPT_TRY(dpt_decision_open(decision, outputs, !dpt_loss_has_classes(kind), called, err));
    for (size_t i = 0; i < n; i++)
        DPT_TRY(dpt_decision_take(decision, given[i], err));
out:
    return status;
}

const char *dpt_class_text(const struct dpt_called *called, int32_t class,
                           char number[DPT_CLASS_NUMBER])
{
    snprintf(number, DPT_CLASS_NUMBER, "%d", class);
    return (size_t) class < called->n ? called->at[class] : number;
}

void dpt_job_command_name(const char *path, struct dpt_error *err)
{
    if (path != NULL && strstr(err->text, path) == NULL)
        dpt_error_prefix(err, "%s: ", path);
}

void dpt_job_command_end(struct dpt_cli *cli, struct dpt_comm *comm, enum dpt_status status,
                         struct dpt_error *err)
{
    /* The line must be out before the launcher sees the first rank go. */
    if (status != DPT_OK && comm->started && err->text[0] != '\0') {
        dpt_log_error(&cli->log, err);
        err->text[0] = '\0';
    }
    fflush(stdout);
    dpt_comm_close(comm);
}

enum dpt_status dpt_job_command(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conf conf = {0};
    struct dpt_comm comm = {0};
    struct dpt_job job;

    DPT_TRY(dpt_job_command_load(cli, &job, &conf, err));
    DPT_TRY(dpt_launch_ranks(cli, &job, &conf, err));
    dpt_choose_early((enum dpt_device_kind)job.device.kind);
    dpt_comm_start_limit(dpt_job_limits(&job));
    DPT_TRY(dpt_comm_open(&comm, err));
    if (comm.world.size == 1 && dpt_choose_count((enum dpt_device_kind)job.device.kind) > 0)
        DPT_TRY(
            dpt_comm_guard(&comm, 0, err)); /* a device may hang, and nobody else would notice */
    cli->log.silent = comm.world.rank != 0;
    DPT_TRY(same_job(&conf, &comm, err));
    DPT_TRY(dpt_job_command_outputs(cli, &job, &conf, &comm, err));
    DPT_TRY(dpt_job_for_ranks(&job, comm.world.size, err));
    cli->conf = &conf;
    DPT_TRY(cli->command->work(cli, &job, &comm, err));
out:
    if (status == DPT_BAD_JOB && strncmp(err->text, "--set", 5) != 0)
        dpt_job_command_name(conf.path, err);
    dpt_job_command_end(cli, &comm, status, err);
    dpt_conf_release(&conf);
    return status;
}
