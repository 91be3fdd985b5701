#include <stdio.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/plan/plan.h"
#include "core/train/run/run.h"

/* What would fit, after a failure for want of memory. */
static void advise(const struct dpt_job *job, const struct dpt_conf *conf,
                   const struct dpt_comm *comm, struct dpt_error *err)
{
    const struct dpt_plan_spec spec = {.ranks = comm->world.size, .node_ranks = comm->node.size};
    const struct dpt_error plain = *err;
    struct dpt_str signature = {0}, advice = {0};

    dpt_job_signature(job, conf, &signature);
    if (!signature.failed)
        dpt_plan_advise(job, &spec, signature.text, &advice);
    if (!advice.failed && advice.length > 0)
        dpt_fail(err, plain.status, "%.2000s\n%s", plain.text, advice.text);
    dpt_str_release(&signature);
    dpt_str_release(&advice);
}

static enum dpt_status train(struct dpt_cli *cli, const struct dpt_job *job,
                             const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status;
    const struct dpt_resume resume =
        dpt_resume_parse(dpt_cli_value(cli, "--resume"), dpt_cli_has(cli, "--overwrite"),
                         dpt_cli_has(cli, "--allow-nan"));
    struct dpt_str summary = {0};

    dpt_advice_before_training(job, cli->conf, comm, &cli->log);
    status = dpt_run_job(job, cli->conf, comm, &cli->log, &resume, &summary, err);
    if (status == DPT_OK)
        status = dpt_output_text(&summary, "the summary", err);
    if (status == DPT_RANK && err->memory && comm->world.rank == 0)
        advise(job, cli->conf, comm, err);
    dpt_str_release(&summary);
    return status;
}

static void list_keys(void)
{
    printf("\nkeys of the job file (`dptrain --help KEY` explains one):\n");
    dpt_cli_print_keys("");
}

static const struct dpt_cli_option options[] = {
    DPT_JOB_CLI_OPTIONS,
    {"--resume", "auto|none|PATH",
     "auto: resume from the run folder's newest checkpoint; none: require a fresh folder; PATH: "
     "this checkpoint, even if the job or its training data have changed"},
    {"--overwrite", NULL,
     "start from scratch even if the folder holds a run; the old run is in `overwritten` until the "
     "new run has saved or ended. Not for a batch file that is requeued: each start would do so"},
    {"--allow-nan", NULL, "load a checkpoint whose weights are not all finite"},
    {"--output", "DIR", "the run folder (the job's `output`)"},
    {"--init-from", "PATH",
     "load the weights of this safetensors, npz or checkpoint file (the job's init.from)"},
    {"--map", "FROM=TO",
     "replace prefix FROM of the file's tensor names by TO (features.0=conv1); repeatable"},
    {"--map-by-order", NULL, "load that file's tensors in their order, whatever their names"},
    {"--init-partial", NULL, "load matching tensors of that file, initialise the rest randomly"},
    {0},
};

const struct dpt_command dpt_cmd_train = {
    .name = "train",
    .usage = "JOB.yaml [options]",
    .summary = "train the model of a job file (the word `train` may be left out)",
    .details = "Reads the job, trains on all ranks that mpirun or srun started (or on one), and "
               "leaves in the run folder: job.yaml (the job with all defaults filled in), "
               "metrics.jsonl, log.txt and checkpoints/. Progress goes to stderr, the result to "
               "stdout. Started again it resumes where it stopped, or reports that it is finished. "
               "INT, TERM, USR1 and USR2 make it "
               "save and stop with exit code 75; under a bare mpirun send USR1.\n\n"
               "  mpirun -np 2 dptrain configs/mnist-cnn.yaml --set train.epochs=2",
    .options = options,
    .trains = true,
    .stops = true,
    .run = dpt_job_command,
    .work = train,
    .more_help = list_keys,
};
