/* What a plan, made in a moment, says of how to train: on how many ranks, in which precision. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cmd/job_command.h"
#include "core/backend/operation.h"
#include "core/base/process.h"
#include "core/plan/plan.h"
#include "core/train/setup/choose.h"
#include "models/model.h"

/* Seconds that mpirun takes to start ranks and end them, about; and how much slower the model must
 * say that they are, which is not exact. */
static const double START = 0.3, SLOWER = 1.25;

/* A core of these years, so that nothing is measured: which way is quicker depends little on it. */
static const struct dpt_machine usual_machine = {
    .flops = 60e9,
    .memory = {{48e3, 100e9}, {400e3, 60e9}, {1.6e6, 40e9}, {6.4e6, 25e9}, {64e6, 10e9}},
};

/* What multiplies bf16, how many times as fast as fp32 is multiplied, and whether convolutions gain
 * by it, too: as whole models do that were measured on such processors. */
static const struct bf16_kind {
    const char *by;
    double faster;
    bool convolves;
} bf16_kinds[] = {{"AMX tiles", 3, true}, {"AVX-512 BF16", 1.7, false}};

/* A way to train, and what a plan says of it. */
struct way {
    int ranks;
    double faster;         /* products, than the usual machine's */
    double step, exchange; /* out: seconds, of a step and of the sum in it */
    double sample;         /* out: seconds a sample */
    double samples;        /* out: of the whole training */
    bool convolves;        /* out */
};

/* False: the job cannot be trained so, or cannot be planned. */
static bool plan_way(const struct dpt_job *job, const char *signature, struct way *way)
{
    struct dpt_machine machine = usual_machine;
    const struct dpt_plan_spec spec = {
        .ranks = way->ranks, .node_ranks = way->ranks, .machine = &machine};
    struct dpt_job sized = *job;
    struct dpt_plan plan = {0};
    struct dpt_error ignored;
    bool planned;

    machine.flops *= way->faster;
    planned = dpt_job_for_ranks(&sized, way->ranks, &ignored) == DPT_OK &&
              dpt_plan_open(&plan, &sized, &spec, signature, &ignored) == DPT_OK &&
              dpt_plan_time(&plan, &ignored) == DPT_OK;
    if (planned) {
        way->step = plan.step.total;
        way->exchange = plan.step.local + plan.step.network;
        way->sample = plan.step.total / (double)sized.batch.global;
        way->samples = (double)plan.t.steps * (double)sized.batch.global;
        way->convolves = false;
        for (int32_t i = 0; i < plan.t.model.graph.n_nodes; i++)
            way->convolves |=
                dpt_operation_of(&plan.t.model.graph.nodes[i])->kind == DPT_CLASS_CONV;
    }
    dpt_plan_close(&plan);
    return planned;
}

/* Plans n ways. False: one cannot be planned. */
static bool plan_ways(const struct dpt_job *job, const struct dpt_conf *conf, struct way *ways,
                      int n)
{
    struct dpt_str signature = {0};
    struct dpt_conf_node *node;
    int64_t *const outputs = dpt_model_outputs(&job->model, &node);
    const bool left = dpt_job_leaves_outputs(job);
    struct dpt_error ignored;
    bool planned;

    dpt_job_signature(job, conf, &signature);
    planned = !signature.failed &&
              (!left || dpt_job_find_outputs(job, NULL, outputs, &ignored) == DPT_OK);
    for (int i = 0; i < n && planned; i++)
        planned = plan_way(job, signature.text, &ways[i]);
    if (left)
        *outputs = 0; /* still: who trains asks the data, too, and says so in the resolved job */
    dpt_str_release(&signature);
    return planned;
}

/* Whether one rank is the better choice than so many; says so. */
static bool one_is_enough(const struct dpt_job *job, const struct dpt_conf *conf, int ranks,
                          struct dpt_log *log)
{
    struct way ways[] = {{.ranks = 1, .faster = 1}, {.ranks = ranks, .faster = 1}};
    const struct way *one = &ways[0], *many = &ways[1];

    if (!plan_ways(job, conf, ways, 2))
        return false;
    if (many->sample > SLOWER * one->sample)
        dpt_log_info(log,
                     "--ranks auto: one rank; %d would be slower: a step takes about %.3g us on "
                     "one, and exchanging %.3g us",
                     ranks, one->step * 1e6, many->exchange * 1e6);
    else if (one->samples * one->sample < START)
        dpt_log_info(log,
                     "--ranks auto: one rank; to start %d takes longer (%.1f s) than to train on "
                     "one (about %.2g s)",
                     ranks, START, one->samples * one->sample);
    else
        return false;
    return true;
}

int dpt_advice_ranks(const struct dpt_job *job, const struct dpt_conf *conf, bool trains,
                     struct dpt_log *log)
{
    const int cores = dpt_process_cores();
    const double online = (double)sysconf(_SC_NPROCESSORS_ONLN), busy = dpt_process_busy();
    const int idle = (int)fmax(1, floor(online - busy + 0.5));
    const int ranks = idle < cores ? idle : cores;

    if (cores > 1 && trains && one_is_enough(job, conf, cores, log))
        return 1;
    if (ranks < cores)
        dpt_log_info(log,
                     "--ranks auto: %d rank%s on %d cores: others keep about %.1f of this "
                     "machine's %.0f cores busy",
                     ranks, ranks == 1 ? "" : "s", cores, busy, online);
    return ranks;
}

/* Several ranks on one node's CPUs, each of which has all of the model. */
static void advise_ranks(const struct dpt_job *job, const struct dpt_conf *conf,
                         const struct dpt_comm *comm, struct dpt_log *log)
{
    const double matters = 5e-3; /* seconds of a step: small jobs are started as anybody likes */
    struct way ways[] = {{.ranks = 1, .faster = 1}, {.ranks = comm->world.size, .faster = 1}};

    if (comm->world.size == 1 || comm->node.size < comm->world.size)
        return;
    if (job->parallel.pipeline.stages > 1 || job->parallel.tensor > 1 ||
        job->parallel.shard != DPT_SHARD_NONE)
        return;
    if (plan_ways(job, conf, ways, 2) && ways[1].sample > SLOWER * ways[0].sample &&
        ways[1].step > ways[0].step + matters)
        dpt_log_info(log,
                     "one rank with all cores would be quicker than %d: each of them reads and "
                     "updates all weights (--ranks auto chooses)",
                     comm->world.size);
}

/* bf16, where this processor has it, and the run is long enough for it to matter. */
static void advise_precision(const struct dpt_job *job, const struct dpt_conf *conf,
                             const struct dpt_comm *comm, struct dpt_log *log)
{
    const double matters = 10;                               /* seconds of the whole training */
    const struct dpt_backend *cpu = dpt_backend_find("cpu"); /* as far as it was built */
    const struct bf16_kind *kind = bf16_kinds, *end = kind + sizeof bf16_kinds / sizeof *kind;
    const char *by;

    if (cpu == NULL || cpu->bf16 == NULL || job->device.kind == DPT_DEVICE_REF)
        return;
    /* A library that was asked what it uses can no longer be held to less. */
    if (job->device.precision != DPT_PRECISION_FP32 || job->device.isa != DPT_ISA_PLAIN)
        return;
    by = cpu->bf16();
    while (by != NULL && kind < end && strcmp(kind->by, by) != 0)
        kind++;
    if (by == NULL || kind == end)
        return;

    struct way now = {.ranks = comm->world.size, .faster = 1};
    struct way then = {.ranks = comm->world.size, .faster = kind->faster};
    if (!plan_ways(job, conf, &now, 1) || now.samples * now.sample < matters ||
        (now.convolves && !kind->convolves))
        return; /* so that short runs start as soon as they did, but for one plan */
    if (plan_ways(job, conf, &then, 1) && now.sample > SLOWER * then.sample &&
        now.samples * (now.sample - then.sample) > matters)
        dpt_log_info(log,
                     "device.precision: bf16 would be about %.1f times as fast: %s multiply it",
                     now.sample / then.sample, by);
}

void dpt_advice_before_training(const struct dpt_job *job, const struct dpt_conf *conf,
                                const struct dpt_comm *comm, struct dpt_log *log)
{
    struct dpt_job sized = *job;

    if (comm->world.rank != 0 || dpt_choose_count((enum dpt_device_kind)job->device.kind) > 0)
        return;
    sized.device.threads = 0;
    advise_ranks(&sized, conf, comm, log);
    advise_precision(job, conf, comm, log);
}
