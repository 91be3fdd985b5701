/* Advice on how to train, from a plan made in a moment: on how many ranks, in which precision. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
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

/* False: the job cannot be trained so, needs more memory than a GPU has, or cannot be planned. */
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
              plan.device_bytes <= plan.gpu.memory && dpt_plan_time(&plan, &ignored) == DPT_OK;
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

/* Plans the job on `all->ranks` ranks and on fewer: on GPUs on each power of two, on CPUs on one,
 * since cores that are left idle help none. best: out, the fastest; one: out. False: the job cannot
 * be planned. */
static bool plan_fewer(const struct dpt_job *job, const struct plans *plans, bool gpus,
                       struct way *all, struct way *best, struct way *one)
{
    *one = (struct way){.ranks = 1, .faster = 1};
    if (!plan_way(job, plans, one) || !plan_way(job, plans, all))
        return false;
    *best = one->sample < all->sample ? *one : *all;
    for (int n = 2; gpus && n < all->ranks; n *= 2) {
        struct way way = {.ranks = n, .faster = 1};

        if (plan_way(job, plans, &way) && way.sample < best->sample)
            *best = way;
    }
    return true;
}

/* What `--ranks auto` comes to; why: empty if it is a rank for each of `there` GPUs or cores. */
struct choice {
    int there, ranks;
    char why[200];
};

static void choose_fewer(const struct dpt_job *job, const struct dpt_conf *conf, bool gpus,
                         struct choice *c)
{
    struct way all = {.ranks = c->there, .faster = 1}, best, one;
    struct plans plans;
    bool planned;

    open_plans(&plans, job, conf);
    planned = plan_fewer(job, &plans, gpus, &all, &best, &one);
    close_plans(&plans);
    if (!planned)
        return;
    if (all.sample > SLOWER * best.sample) {
        c->ranks = best.ranks;
        snprintf(c->why, sizeof c->why,
                 "%d would be slower: a step takes about %.3g ms on one, and exchanging %.3g ms",
                 all.ranks, one.step * 1e3, all.exchange * 1e3);
    } else if (one.samples * one.sample < START) {
        c->ranks = 1;
        snprintf(c->why, sizeof c->why,
                 "to start %d takes longer (%.1f s) than to train on one (about %.2g s)", all.ranks,
                 START, one.samples * one.sample);
    }
}

static void count_gpus(const struct dpt_job *job, const struct dpt_conf *conf, bool trains,
                       struct choice *c)
{
    c->there = c->ranks =
        dpt_choose_count(job != NULL ? (enum dpt_device_kind)job->device.kind : DPT_DEVICE_AUTO);
    if (c->there > 1 && trains)
        choose_fewer(job, conf, true, c);
}

/* Asks the driver in a process of its own, whose end frees all of it: a context on a GPU would take
 * memory beside the ranks, or keep them out where a GPU takes one process only. */
static void ask_for_gpus(const struct dpt_job *job, const struct dpt_conf *conf, bool trains,
                         struct choice *c)
{
    int ends[2];
    pid_t child;

    *c = (struct choice){0};
    if (pipe(ends) != 0)
        return;
    child = fork();
    if (child == 0) {
        count_gpus(job, conf, trains, c);
        _exit(write(ends[1], c, sizeof *c) == (ssize_t)sizeof *c ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], c, sizeof *c) != (ssize_t)sizeof *c)
        *c = (struct choice){0};
    close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* One rank per core that others leave free. */
static int idle_cores(struct dpt_log *log)
{
    const int cores = dpt_process_cores();
    const double online = (double)sysconf(_SC_NPROCESSORS_ONLN), busy = dpt_process_busy();
    const int idle = (int)fmax(1, floor(online - busy + 0.5));
    const int ranks = idle < cores ? idle : cores;

    if (ranks < cores)
        dpt_log_info(log,
                     "--ranks auto: %d rank%s on %d cores: others keep about %.1f of this "
                     "machine's %.0f cores busy",
                     ranks, ranks == 1 ? "" : "s", cores, busy, online);
    return ranks;
}

int dpt_advice_ranks(const struct dpt_job *job, const struct dpt_conf *conf, bool trains,
                     struct dpt_log *log)
{
    struct choice c;
    bool gpus;

    ask_for_gpus(job, conf, trains, &c);
    gpus = c.there > 0;
    if (!gpus) {
        c = (struct choice){.there = dpt_process_cores()};
        if (c.there > 1 && trains)
            choose_fewer(job, conf, false, &c);
    }
    if (c.why[0] != '\0' && c.ranks == 1)
        dpt_log_info(log, "--ranks auto: one rank; %s", c.why);
    else if (c.why[0] != '\0')
        dpt_log_info(log, "--ranks auto: %d ranks; %s", c.ranks, c.why);
    return c.ranks > 0 ? c.ranks : idle_cores(log);
}

/* Several ranks on one node, each of which has all of the model. */
static bool may_be_one(const struct dpt_job *job, const struct dpt_comm *comm)
{
    return comm->world.size > 1 && comm->node.size == comm->world.size &&
           job->parallel.pipeline.stages <= 1 && job->parallel.tensor <= 1 &&
           job->parallel.shard == DPT_SHARD_NONE;
}

static void advise_ranks(const struct dpt_job *job, const struct plans *plans, bool gpus, int ranks,
                         struct dpt_log *log)
{
    /* Seconds per step, and of the whole training: for small jobs any start will do. */
    const double step_matters = 5e-3, matters = 10;
    struct way all = {.ranks = ranks, .faster = 1}, best, one;
    struct dpt_job sized = *job;

    sized.device.threads = 0;
    if (!plan_fewer(&sized, plans, gpus, &all, &best, &one) || all.sample <= SLOWER * best.sample ||
        (gpus ? all.samples * (all.sample - best.sample) <= matters
              : all.step <= best.step + step_matters))
        return;
    if (gpus)
        dpt_log_info(log,
                     "%d GPU%s would be faster than %d: a step takes about %.3g ms on one, and "
                     "exchanging its sum %.3g ms (--ranks auto chooses)",
                     best.ranks, best.ranks == 1 ? "" : "s", ranks, one.step * 1e3,
                     all.exchange * 1e3);
    else
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
    bool gpus;

    if (comm->world.rank != 0)
        return;
    gpus = dpt_choose_count((enum dpt_device_kind)job->device.kind) > 0;
    bf16 = gpus ? NULL : find_bf16(job);
    if (bf16 == NULL && !may_be_one(job, comm))
        return;
    open_plans(&plans, job, conf);
    if (may_be_one(job, comm))
        advise_ranks(job, &plans, gpus, comm->world.size, log);
    if (bf16 != NULL)
        advise_bf16(job, &plans, bf16, comm->world.size, log);
    close_plans(&plans);
}
