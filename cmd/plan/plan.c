#include "cmd/plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/warnings.h"

/* Typical networks between nodes. */
static const struct {
    const char *name;
    struct dpt_fabric fabric;
} fabrics[] = {
    {"10", {10e-6, 1e-6, 0.94 * 10e9 / 8}},
    {"100", {2e-6, 0.5e-6, 0.94 * 100e9 / 8}},
};

/* Reads a number above zero into *value, in `unit`s, if the option is given. */
static enum dpt_status read_real(const struct dpt_cli *cli, const char *name, double unit,
                                 double *value, struct dpt_error *err)
{
    const char *text = dpt_cli_value(cli, name);
    double number;

    if (text == NULL)
        return DPT_OK;
    if (!dpt_parse_real(text, &number) || !(number > 0) || number > 1e9)
        return dpt_fail(err, DPT_USAGE, "dptrain plan: %s %s: a number above 0 is wanted", name,
                        text);
    *value = number * unit;
    return DPT_OK;
}

static enum dpt_status read_fabric(const struct dpt_cli *cli, struct dpt_fabric *fabric,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *name = dpt_cli_value(cli, "--fabric");
    const size_t n = sizeof fabrics / sizeof fabrics[0];
    size_t i = 0;

    while (name != NULL && i < n && strcmp(name, fabrics[i].name) != 0)
        i++;
    if (i == n)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "dptrain plan: --fabric %s: 10 or 100 (Gbit/s); --bandwidth and --latency "
                         "say anything else",
                         name));
    *fabric = fabrics[i].fabric;
    DPT_TRY(read_real(cli, "--bandwidth", 1e9 / 8, &fabric->bandwidth, err));
    DPT_TRY(read_real(cli, "--latency", 1e-6, &fabric->latency, err));
out:
    return status;
}

/* Ranks that share a node, by either option; 0: neither is given. */
static enum dpt_status read_nodes(const struct dpt_cli *cli, long long ranks, int *node_ranks,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    long long nodes, each;

    DPT_TRY(dpt_cli_int(cli, "--ranks-per-node", 1, 65536, 0, &each, err));
    DPT_TRY(dpt_cli_int(cli, "--nodes", 1, 65536, 0, &nodes, err));
    if (nodes > 0 && each > 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "dptrain plan: --nodes %lld --ranks-per-node %lld: give one of the two",
                         nodes, each));
    if (nodes > 0)
        each = (ranks + nodes - 1) / nodes;
    if (nodes > 0 && (ranks + each - 1) / each != nodes)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "dptrain plan: --nodes %lld: %lld rank%s, %lld a node, %s only %lld",
                         nodes, ranks, ranks == 1 ? "" : "s", each, ranks == 1 ? "needs" : "need",
                         (ranks + each - 1) / each));
    *node_ranks = (int)each;
out:
    return status;
}

static enum dpt_status read_spec(const struct dpt_cli *cli, struct dpt_plan_spec *spec,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    long long ranks;

    DPT_TRY(dpt_cli_int(cli, "--ranks", 1, 65536, 1, &ranks, err));
    DPT_TRY(read_nodes(cli, ranks, &spec->node_ranks, err));
    spec->ranks = (int)ranks;
    spec->trial = !dpt_cli_has(cli, "--no-trial");
    if (dpt_cli_value(cli, "--device") != NULL)
        spec->gpu = dpt_gpu_type_find(dpt_cli_value(cli, "--device"));
    DPT_TRY(read_fabric(cli, &spec->fabric, err));
out:
    return status;
}

static void warn_network(struct dpt_cli *cli, const struct dpt_plan *plan)
{
    static const char *const names[] = {"--fabric", "--bandwidth", "--latency"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (plan->nodes == 1 && dpt_cli_has(cli, names[i]))
            dpt_log_warn(&cli->log,
                         "%s: all ranks are on one node, so nothing crosses a network; "
                         "--nodes N divides them",
                         names[i]);
}

static enum dpt_status plan_job(struct dpt_cli *cli, const struct dpt_job *job,
                                const struct dpt_plan_spec *spec, const char *job_text,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_plan plan = {0};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    struct dpt_plan_scale scales[DPT_PLAN_SCALES];

    DPT_TRY(dpt_plan_open(&plan, job, spec, job_text, err));
    dpt_splits_warn_layout(&plan.data, &cli->log);
    dpt_warn_data(job, &plan.data, &plan.model, &cli->log);
    dpt_warn_job(job, &plan.model, plan.steps, plan.steps_per_epoch, plan.lr, &cli->log);
    dpt_warn_idle(&plan.layout, &cli->log);
    warn_network(cli, &plan);
    if (!dpt_cli_has(cli, "--no-time") && !dpt_cli_has(cli, "--actions"))
        DPT_TRY(dpt_plan_time(&plan, err));
    if (plan.step.total > 0)
        DPT_TRY(dpt_plan_scales(&plan, scales, err));
    if (dpt_cli_has(cli, "--actions")) {
        status = dpt_plan_actions(&plan, &out, dpt_cli_has(cli, "--json") ? &json : NULL, err);
        if (status == DPT_INTERNAL && out.length > 0)
            fputs(out.text, stderr);
        DPT_TRY(status);
        status = dpt_cli_has(cli, "--json") ? dpt_json_finish(&json, "the plan", err)
                                            : dpt_output_text(&out, "the plan", err);
    } else if (dpt_cli_has(cli, "--json")) {
        dpt_plan_json(&plan, scales, &json);
        status = dpt_json_finish(&json, "the plan", err);
    } else {
        dpt_plan_print(&plan, scales, &out);
        status = dpt_output_text(&out, "the plan", err);
    }
out:
    dpt_plan_close(&plan);
    return status;
}

/* Bytes that --memory gives a rank; 0: it is left out. */
static enum dpt_status read_limit(const struct dpt_cli *cli, double *bytes, struct dpt_error *err)
{
    const char *text = dpt_cli_value(cli, "--memory"), *wrong;

    *bytes = 0;
    wrong = text != NULL ? dpt_parse_size(text, 1e9, bytes) : NULL;
    return wrong == NULL ? DPT_OK
                         : dpt_fail(err, DPT_USAGE, "dptrain plan: --memory %s: %s", text, wrong);
}

static enum dpt_status check_mesh(const struct dpt_cli *cli, struct dpt_error *err)
{
    const char *mesh = dpt_cli_value(cli, "--mesh");

    if (mesh != NULL && strcmp(mesh, "auto") != 0)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain plan: --mesh %s: auto tries all; one is planned with --set "
                        "parallel.pipeline=4 and the like",
                        mesh);
    if (mesh != NULL && dpt_cli_has(cli, "--actions"))
        return dpt_fail(err, DPT_USAGE, "dptrain plan: --actions is of one mesh: leave out --mesh");
    if (mesh == NULL && dpt_cli_has(cli, "--memory"))
        return dpt_fail(err, DPT_USAGE,
                        "dptrain plan: --memory goes with --mesh auto, which looks for what fits");
    return DPT_OK;
}

static enum dpt_status plan_meshes(struct dpt_cli *cli, const struct dpt_job *job,
                                   const struct dpt_plan_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_plan_meshes all = {0};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    double limit;

    DPT_TRY(read_limit(cli, &limit, err));
    DPT_TRY(dpt_plan_meshes_open(&all, cli, spec, job, limit, !dpt_cli_has(cli, "--no-time"), err));
    if (dpt_cli_has(cli, "--json")) {
        dpt_plan_meshes_json(&all, &json);
        status = dpt_json_finish(&json, "the plan", err);
    } else {
        dpt_plan_meshes_print(&all, &out);
        status = dpt_output_text(&out, "the plan", err);
    }
out:
    dpt_plan_meshes_close(&all);
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conf conf = {0};
    struct dpt_plan_spec spec = {0};
    struct dpt_str signature = {0};
    struct dpt_job job;

    DPT_TRY(read_spec(cli, &spec, err));
    DPT_TRY(check_mesh(cli, err));
    DPT_TRY(dpt_job_command_load(cli, &job, &conf, err));
    DPT_TRY(dpt_job_command_outputs(cli, &job, &conf, NULL, err));
    DPT_TRY(dpt_job_for_ranks(&job, spec.ranks, err));
    if (dpt_cli_has(cli, "--mesh")) {
        DPT_TRY(plan_meshes(cli, &job, &spec, err));
        goto out;
    }
    dpt_job_signature(&job, &conf, &signature);
    if (signature.failed)
        DPT_TRY(dpt_fail_memory(err, "the job", 0));
    DPT_TRY(plan_job(cli, &job, &spec, signature.text, err));
out:
    if (status == DPT_BAD_JOB && strncmp(err->text, "--set", 5) != 0)
        dpt_job_command_name(conf.path, err);
    dpt_str_release(&signature);
    dpt_conf_release(&conf);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--ranks", "N", "plan for N ranks; left out: 1. None is started"},
    {"--nodes", "N", "number of nodes; left out: 1; see above"},
    {"--ranks-per-node", "N", "number of ranks per node, instead of --nodes"},
    {"--device", "NAME", "short for --set device.kind=NAME; or a GPU's name: h100, see above"},
    {"--fabric", "GBITS", "network between the nodes: 10 (with 10 us) or 100 (2 us); 10"},
    {"--bandwidth", "GBITS", "the network's Gbit/s, instead of the fabric's"},
    {"--latency", "US", "microseconds from node to node, instead of the fabric's"},
    {"--mesh", "auto", "try all meshes of these ranks (parallel), and list them, the best first"},
    {"--memory", "SIZE",
     "with --mesh: what a rank may use, as 150MB, 1.5G or 80GiB, or a number of GB; left out: its "
     "GPU's, or what is free here"},
    {"--actions", NULL, "list the actions of a step for a rank of each stage"},
    {"--no-trial", NULL, "estimate a micro-batch's time, also where it could be tried"},
    {"--no-time", NULL, "leave the seconds out; done in some milliseconds"},
    {"--set", "KEY=VALUE", "override a key of the job file (batch.global=512); repeatable"},
    {"--json", NULL, "one JSON object"},
    {0},
};

const struct dpt_command dpt_cmd_plan = {
    .name = "plan",
    .usage = "JOB.yaml [--ranks N] [--nodes N] [--mesh auto] [--json] [options]",
    .summary = "estimate a job's steps, memory and time, and list its layers",
    .details =
        "Starts no ranks, reads no samples and makes nothing of the model's size, so it plans "
        "models that do not fit this machine. The shapes of samples come from the shards that the "
        "job names, or from data.synthetic.\n\n"
        "Memory is that of a process at its highest, its program and libraries included; what the "
        "ranks of a node share is counted once for the node. Times are for nodes like this "
        "machine, which is measured for "
        "half a second. A model that needs less than 250 MB is tried for another second: some "
        "micro-batches and updates, on all cores that the ranks of a node would use. Of a larger "
        "one the time is estimated from its FLOP and bytes, and is less certain, and so it is for "
        "a GPU. "
        "Between nodes the sum is that of Thakur, Rabenseifner and Gropp (2005): a lower bound, "
        "which small sums on many nodes miss by up to half.\n\n"
        "Left out, --nodes is 1: all ranks share a node like this machine, which the output says "
        "where they are more than its cores. A rank has a GPU, so of GPUs a node has as many ranks "
        "as this machine has GPUs, or 8 where it has none.\n\n"
        "No GPU need be here to plan for one: v100, t4, a100, a10, l4, l40s, h100, h200 or b200 by "
        "its data sheet; `cuda` is the one of this machine, else an h200.\n\n"
        "--mesh auto plans the job on each mesh that its ranks can make, whatever its `parallel` "
        "says, and lists what each rank needs, what it sends along each axis in a step, which part "
        "of a step a stage of a pipeline waits, and the seconds, the quickest of those that fit "
        "first. It tries no micro-batch.\n\n"
        "--actions prints what the first rank of each stage does in a full step: forward and back "
        "through which nodes, with which micro-batches (a round is what each worker takes next), "
        "and "
        "what it sends, how many ranks take part, how many bytes move.\n\n"
        "  dptrain plan configs/mnist-cnn.yaml --ranks 8 --mesh auto --memory 16GB\n"
        "  dptrain plan configs/mnist-cnn.yaml --ranks 8 --nodes 2 --fabric 100\n"
        "  dptrain plan configs/mnist-cnn.yaml --ranks 8 --device h100",
    .options = options,
    .one_rank = true,
    .run = run,
};
