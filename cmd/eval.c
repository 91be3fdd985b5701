#include <stdio.h>
#include <string.h>

#include "cmd/job_command.h"
#include "core/train/trainer.h"

static const struct {
    const char *name;
    unsigned parts; /* a held-out fraction needs the data that it is held out of */
} splits[] = {
    {"test", DPT_PART_TEST},
    {"valid", DPT_PART_TRAIN | DPT_PART_VALID},
    {"train", DPT_PART_TRAIN},
};

static enum dpt_status print_result(const struct dpt_trainer *t, const struct dpt_split *split,
                                    const struct dpt_metric_sums *metric_sums,
                                    struct dpt_error *err)
{
    struct dpt_str text = {0};

    dpt_trainer_tell(t, split->name, metric_sums, &t->scores, 6, &text);
    if (!text.failed)
        fputs(text.text, stdout);
    dpt_str_release(&text);
    return text.failed ? dpt_fail_memory(err, "the results", 0) : DPT_OK;
}

static enum dpt_status evaluate(struct dpt_cli *cli, const struct dpt_job *job,
                                const struct dpt_conf *conf, const struct dpt_comm *comm,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *name = dpt_cli_value(cli, "--split");
    struct dpt_trainer t = {0};
    struct dpt_split *const by_index[] = {&t.data.test, &t.data.valid, &t.data.train};
    struct dpt_metric_sums metric_sums = {0};
    const char *weights;
    size_t i = 0;

    (void)conf;
    DPT_TRY(dpt_job_command_weights(cli, job, &weights, err));
    while (name != NULL && i < 3 && strcmp(splits[i].name, name) != 0)
        i++;
    if (i == 3)
        return dpt_fail(err, DPT_USAGE, "dptrain eval: --split %s is none of test, valid, train",
                        name);
    DPT_TRY(dpt_trainer_open(&t, job, comm, &cli->log, splits[i].parts, NULL, err));
    if (!by_index[i]->present)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "data.%s: the job names none to evaluate on",
                         splits[i].name));
    DPT_TRY(dpt_job_command_load_weights(cli, &t, err));
    DPT_TRY(dpt_trainer_evaluate(&t, by_index[i], &metric_sums, err));
    if (comm->world.rank == 0)
        status = print_result(&t, by_index[i], &metric_sums, err);
out:
    if (t.comm != NULL)
        dpt_trainer_close(&t);
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    return dpt_job_command(cli, evaluate, err);
}

static const struct dpt_cli_option options[] = {
    DPT_WEIGHTS_CLI_OPTIONS,
    {"--split", "NAME", "test (the default), valid or train"},
    DPT_JOB_CLI_OPTIONS,
    {0},
};

const struct dpt_command dpt_cmd_eval = {
    .name = "eval",
    .usage = "JOB.yaml --checkpoint C [options]",
    .summary = "loss and accuracy of a checkpoint on the test data, over all ranks",
    .details =
        "Evaluates each sample once, shared out over all ranks, and prints one line. C may also be "
        "weights in safetensors or npz, from PyTorch or NumPy, for the job's model; left out, the "
        "job's init.from is taken.\n\n"
        "  mpirun -np 2 dptrain eval configs/mnist-cnn.yaml --checkpoint runs/mnist-cnn\n"
        "  dptrain eval job.yaml --checkpoint weights.safetensors --map-by-order",
    .options = options,
    .run = run,
    .more_help = dpt_job_keys_help,
};
