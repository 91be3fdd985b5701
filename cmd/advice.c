/* Advice on how to train, from a plan made in a moment: on how many ranks, in which precision. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cmd/job_command.h"
#include "core/backend/operation.h"
#include "core/base/process.h"
#include "core/plan/plan.h"
#include "core/train/setup/choose.h"
#include "models/model.h"

/* About how many seconds mpirun takes to start and end ranks; and how much slower the model, which
 * is not exact, must predict them to be. */
static const double START = 0.3, SLOWER = 1.25;

/* A typical core of recent years, so that nothing is measured: which way is faster depends little
 * on it. */
static const struct dpt_machine usual_machine = {
    .flops = 60e9,
    .memory = {{48e3, 100e9}, {400e3, 60e9}, {1.6e6, 40e9}, {6.4e6, 25e9}, {64e6, 10e9}},
};

/* What multiplies bf16, how many times as fast as fp32 is multiplied, and whether convolutions gain
 * by it, too: measured with whole models on such CPUs. */
static const struct bf16_kind {
    const char *by;
    double faster;
    bool convolves;
} bf16_kinds[] = {{"AMX tiles", 3, true}, {"AVX-512 BF16", 1.7, false}};

/* What plans of a job are made with, found once. */
struct plans {
    struct dpt_str signature;
    int64_t *outputs; /* the model's, if the job leaves them to the data; else NULL */
    bool good;        /* the job can be planned */
};

static void open_plans(struct plans *plans, const struct dpt_job *job, const struct dpt_conf *conf)
{
    struct dpt_conf_node *node;
    struct dpt_job guess = *job;
    struct dpt_error ignored;

    guess.data.few = true;
    *plans = (struct plans){0};
    if (dpt_job_leaves_outputs(job))
        plans->outputs = dpt_model_outputs(&job->model, &node);
    dpt_job_signature(job, conf, &plans->signature);
    plans->good = !plans->signature.failed &&
                  (plans->outputs == NULL ||
                   dpt_job_find_outputs(&guess, NULL, NULL, plans->outputs, &ignored) == DPT_OK);
}

static void close_plans(struct plans *plans)
{
    if (plans->outputs != NULL)
        *plans->outputs = 0; /* still: training asks the data, too, and notes it in the job */
    dpt_str_release(&plans->signature);
}

/* A way to train, and what a plan predicts for it. */
struct way {
    int ranks;
    double faster;         /* products, than the usual machine's */
    double step, exchange; /* out: seconds, of a step and of the sum in it */
    double sample;         /* out: seconds per sample */
    double samples;        /* out: of the whole training */
    bool convolves;        /* out */
};

/* False: the job cannot be trained so, or cannot be planned. */
static bool plan_way(const struct dpt_job *job, const struct plans *plans, struct way *way)
{
    struct dpt_machine machine = usual_machine;
    const struct dpt_plan_spec spec = {
        .ranks = way->ranks, .node_ranks = way->ranks, .machine = &machine};
    struct dpt_job sized = *job;
    struct dpt_plan plan = {0};
    struct dpt_error ignored;
    bool planned;

    sized.data.few = true;
    machine.flops *= way->faster;
    planned = plans->good && dpt_job_for_ranks(&sized, way->ranks, &ignored) == DPT_OK &&
              dpt_plan_open(&plan, &sized, &spec, plans->signature.text, &ignored) == DPT_OK &&
              dpt_plan_time(&plan, &ignored) == DPT_OK;
    if (planned) {
        way->step = plan.step.total;
        way->exchange = plan.step.local + plan.step.network;
        way->sample = plan.step.total / (double)sized.batch.global;
        way->samples = (double)plan.steps * (double)sized.batch.global;
        way->convolves = false;
        for (int32_t i = 0; i < plan.model.graph.n_nodes; i++)
            way->convolves |= dpt_operation_of(&plan.model.graph.nodes[i])->kind == DPT_CLASS_CONV;
    }
    dpt_plan_close(&plan);
    return planned;
}

/* Whether one rank is a better choice than so many; logs it if so. */
static bool one_is_enough(const struct dpt_job *job, const struct dpt_conf *conf, int ranks,
                          struct dpt_log *log)
{
    struct way one = {.ranks = 1, .faster = 1}, many = {.ranks = ranks, .faster = 1};
    struct plans plans;
    bool planned;

    open_plans(&plans, job, conf);
    planned = plan_way(job, &plans, &one) && plan_way(job, &plans, &many);
    close_plans(&plans);
    if (!planned)
        return false;
    if (many.sample > SLOWER * one.sample)
        dpt_log_info(log,
                     "--ranks auto: one rank; %d would be slower: a step takes about %.3g us on "
                     "one, and exchanging %.3g us",
                     ranks, one.step * 1e6, many.exchange * 1e6);
    else if (one.samples * one.sample < START)
        dpt_log_info(log,
                     "--ranks auto: one rank; to start %d takes longer (%.1f s) than to train on "
                     "one (about %.2g s)",
                     ranks, START, one.samples * one.sample);
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
static bool may_be_one(const struct dpt_job *job, const struct dpt_comm *comm)
{
    return comm->world.size > 1 && comm->node.size == comm->world.size &&
           job->parallel.pipeline.stages <= 1 && job->parallel.tensor <= 1 &&
           job->parallel.shard == DPT_SHARD_NONE;
}

static void advise_ranks(const struct dpt_job *job, const struct plans *plans, int ranks,
                         struct dpt_log *log)
{
    const double matters = 5e-3; /* seconds per step: for small jobs any start will do */
    struct way one = {.ranks = 1, .faster = 1}, many = {.ranks = ranks, .faster = 1};
    struct dpt_job sized = *job;

    sized.device.threads = 0;
    if (plan_way(&sized, plans, &one) && plan_way(&sized, plans, &many) &&
        many.sample > SLOWER * one.sample && many.step > one.step + matters)
        dpt_log_info(log,
                     "one rank with all cores would be faster than %d: each of them reads and "
                     "updates all weights (--ranks auto chooses)",
                     ranks);
}

/* What multiplies bf16 here, if the job computes in fp32; NULL: nothing that is known. */
static const struct bf16_kind *find_bf16(const struct dpt_job *job)
{
    const struct dpt_backend *cpu = dpt_backend_find("cpu"); /* as far as it was built */
    const char *by;

    if (cpu == NULL || cpu->bf16 == NULL || job->device.kind == DPT_DEVICE_REF)
        return NULL;
    /* A library that was asked what it uses can no longer be held to less. */
    if (job->device.precision != DPT_PRECISION_FP32 || job->device.isa != DPT_ISA_PLAIN)
        return NULL;
    by = cpu->bf16();
    for (size_t i = 0; by != NULL && i < sizeof bf16_kinds / sizeof bf16_kinds[0]; i++)
        if (strcmp(bf16_kinds[i].by, by) == 0)
            return &bf16_kinds[i];
    return NULL;
}

/* Suggests bf16, if the run is long enough for it to matter. */
static void advise_bf16(const struct dpt_job *job, const struct plans *plans,
                        const struct bf16_kind *bf16, int ranks, struct dpt_log *log)
{
    const double matters = 10; /* seconds of the whole training */
    struct way now = {.ranks = ranks, .faster = 1}, then = {.ranks = ranks, .faster = bf16->faster};

    if (!plan_way(job, plans, &now) || now.samples * now.sample < matters ||
        (now.convolves && !bf16->convolves))
        return; /* short runs start as soon as before, except for one plan */
    if (plan_way(job, plans, &then) && now.sample > SLOWER * then.sample &&
        now.samples * (now.sample - then.sample) > matters)
        dpt_log_info(log,
                     "device.precision: bf16 would be about %.1f times as fast: %s multiply it",
                     now.sample / then.sample, bf16->by);
}

void dpt_advice_before_training(const struct dpt_job *job, const struct dpt_conf *conf,
                                const struct dpt_comm *comm, struct dpt_log *log)
{
    const struct bf16_kind *bf16;
    struct plans plans;

    if (comm->world.rank != 0 || dpt_choose_count((enum dpt_device_kind)job->device.kind) > 0)
        return;
    bf16 = find_bf16(job);
    if (bf16 == NULL && !may_be_one(job, comm))
        return;
    open_plans(&plans, job, conf);
    if (may_be_one(job, comm))
        advise_ranks(job, &plans, comm->world.size, log);
    if (bf16 != NULL)
        advise_bf16(job, &plans, bf16, comm->world.size, log);
    close_plans(&plans);
}
