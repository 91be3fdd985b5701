/* `dptrain bench`: where the time of a step goes. */
#include "cmd/bench/bench.h"

#include <stdio.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/train/setup/warnings.h"

static enum dpt_status bench(struct dpt_cli *cli, const struct dpt_job *job,
                             const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer t = {0};
    struct dpt_bench b = {.t = &t, .scale = 1};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    long long steps;

    if (dpt_cli_has(cli, "--find-lr"))
        return dpt_bench_find_lr(cli, job, comm, err);
    if (dpt_cli_has(cli, "--lr-range") || dpt_cli_has(cli, "--html"))
        return dpt_fail(err, DPT_USAGE, "dptrain bench: --lr-range and --html are for --find-lr");
    DPT_TRY(dpt_cli_int(cli, "--steps", 1, 1000000, 0, &steps, err));
    DPT_TRY(dpt_trainer_open(&t, job, comm, &cli->log, DPT_PART_TRAIN, NULL, err));
    dpt_warn_data(job, &t.data, &t.model, t.log);
    dpt_warn_idle(&t.layout, t.log);
    t.steps = INT64_MAX / 2; /* a schedule must not end before we do */
    DPT_TRY(t.backend->launches != NULL ? dpt_bench_device(&b, &t, steps, err)
                                        : dpt_bench_host(&b, &t, steps, err));
    if (comm->world.rank == 0 && dpt_cli_has(cli, "--json")) {
        dpt_bench_json(&b, &json);
        status = dpt_json_finish(&json, "the table", err);
    } else if (comm->world.rank == 0) {
        dpt_bench_print(&b, cli->log.terminal ? cli->log.columns : 0, &out);
        status = dpt_output_text(&out, "the table", err);
    }
out:
    dpt_region_release(&b.region);
    dpt_trainer_close(&t);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--steps", "N", "steps to measure, and as many with timelines; left out, about six seconds"},
    {"--find-lr", NULL, "find a learning rate: the loss at growing rates, in N steps (200)"},
    {"--lr-range", "FROM,TO", "range of --find-lr (1e-7,10)"},
    {"--html", "FILE", "page with the curve of --find-lr"},
    {"--json", NULL, "one JSON object instead of the table"},
    DPT_JOB_CLI_OPTIONS,
    {0},
};

const struct dpt_command dpt_cmd_bench = {
    .name = "bench",
    .usage = "JOB.yaml [--ranks N] [--steps N] [--find-lr] [--json] [options]",
    .summary = "measure speed and profile a step; or find a learning rate",
    .details =
        "Trains for some seconds and throws the result away: no run folder, no checkpoint, no "
        "evaluation. First it measures the machine, a thread each on all ranks at once: a matrix "
        "product, and a loop over memory of several sizes. Then it times steps, every other pair "
        "of them with a timeline of each thread, which is where the table comes from; of steps of "
        "microseconds every eighth, and the table is scaled to the others.\n\n"
        "Times are means over all threads of all ranks, of the middle half of the steps. A limit "
        "is the larger of a part's arithmetic at the speed of that product and its bytes at the "
        "memory's bandwidth for as many bytes; a part that leaves out work may beat it. What was "
        "fused stands in one row (conv1+relu1+maxpool1). `way` names the code that computes a "
        "layer's pass if the layer's shape chooses among several. `waiting for ranks` is until "
        "the last rank is ready for the reduction.\n\n"
        "With device.kind: cuda runs of steps are timed, each waited for at its end only. The rows "
        "are rank 0's launches in some further steps, each timed alone by the device's clock, "
        "beside its bytes at the data sheet's bandwidth and its arithmetic at the peak of "
        "device.precision; how the step compares with their sum is told below.\n\n"
        "For a picture of single steps, train with --set log.trace=true.\n\n"
        "--find-lr finds a learning rate instead (Smith 2015): the rate grows by a factor from "
        "step to step, without the job's schedule, until the loss is four times its lowest. The "
        "table has the loss as a mean over the steps around. Suggested is half the rate at "
        "which it is lowest, as the job's optimizer.lr.\n\n"
        "  dptrain bench configs/mnist-cnn.yaml --ranks 2\n"
        "  dptrain bench configs/mnist-cnn.yaml --find-lr --html lr.html",
    .options = options,
    .run = dpt_job_command,
    .work = bench,
};
