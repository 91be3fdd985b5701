#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/setup/choose.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"
#include "core/train/step/engine.h"
#include "core/train/step/runner.h"
#include "core/train/trainer.h"
#include "core/train/update/schedule.h"

/* Micro-batches of a thread in a step of an evaluation. A device's host threads only hand samples
 * over. */
enum { EVAL_MICROS = 8, DEVICE_EVAL_MICROS = 2, DEVICE_THREADS = 4 };

/* Bytes that must be free for the libraries beneath, some of which crash where memory runs out. */
enum { RESERVE = 128 << 20 };

/* Samples that an evaluation distributes over all ranks at once. */
static int32_t eval_step(const struct dpt_trainer *t, int32_t micro)
{
    if (t->backend->devices != NULL)
        return micro * t->comm->world.size * DEVICE_EVAL_MICROS;
    return (int32_t)(micro * t->team.all_threads * EVAL_MICROS);
}

/* "job.yaml:7:5: " of a layer, where that is known. */
static const char *place_of(const struct dpt_trainer *t, const struct dpt_graph_node *node,
                            char place[512])
{
    place[0] = '\0';
    if (node->line > 0 && t->job->model.file != NULL)
        snprintf(place, 512, "%s:%d:%d: ", t->job->model.file, node->line, node->column);
    return place;
}

/* A batch norm takes more than one number of each channel; many samples make good statistics. */
enum { ENOUGH = 16 };
static enum dpt_status check_norms(const struct dpt_trainer *t, int32_t micro,
                                   struct dpt_error *err)
{
    const struct dpt_job *job = t->job;
    const int64_t global = job->batch.global, enough = global < ENOUGH ? global : ENOUGH;
    char place[512], cure[64] = "batch.global: 2 or more is needed", shape[40];

    for (int32_t i = 0; micro == 1 && i < t->model.graph.n_nodes; i++) {
        const struct dpt_graph_node *node = &t->model.graph.nodes[i];

        if (node->op != DPT_OP_BATCHNORM || node->by_running ||
            (int64_t)node->in.h * node->in.w > 1 || (node->whole_step && global > 1))
            continue;
        if (enough > 1)
            snprintf(cure, sizeof cure, "batch.micro: %lld would do", (long long)enough);
        return dpt_fail(err, DPT_BAD_JOB,
                        "%smodel (%s): gets %s, and micro-batches of 1 sample (batch.micro: %s, "
                        "batch.global: %lld): one number of a channel has no variance; %s",
                        place_of(t, node, place), node->name, dpt_shape_text(&node->in, shape),
                        job->batch.micro == 0 ? "auto" : "1", (long long)global, cure);
    }
    return DPT_OK;
}

/* Sets the rates and sizes of the run's steps. */
static enum dpt_status plan_steps(struct dpt_trainer *t, int32_t micro, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_job *job = t->job;

    for (struct dpt_split *split = t->data.split; split < t->data.split + DPT_SPLITS; split++) {
        struct dpt_sampler *s = &split->sampler;
        const bool train = split == &t->data.train;

        if (!split->present)
            continue;
        if (train)
            DPT_TRY(check_norms(t, micro, err));
        s->seed = (uint64_t)job->seed;
        s->micro = micro;
        s->global = train ? (int32_t)job->batch.global : eval_step(t, micro);
        s->shuffle = train ? (enum dpt_shuffle)job->data.shuffle : DPT_SHUFFLE_NONE;
        s->drop_last = train && job->data.drop_last;
        s->deal = train ? dpt_step_turn(t) : 0;
        if (dpt_sampler_steps(s) < 1)
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                             "data.%s: %lld samples are fewer than one step of %d", split->name,
                             (long long)s->samples, s->global));
    }
    t->scale = dpt_loss_scale_start(job->device.precision == DPT_PRECISION_FP16, micro);
    if (t->data.train.present) {
        t->steps_per_epoch = dpt_sampler_steps(&t->data.train.sampler);
        t->steps =
            job->train.steps != 0 ? job->train.steps : job->train.epochs * t->steps_per_epoch;
        t->lr = dpt_schedule_scale(&job->schedule, dpt_optimizer_lr(&job->optimizer),
                                   job->batch.global);
    }
out:
    return status;
}

/* A model that only predicts is content with more exact numbers than it was trained with. */
static enum dpt_status check_precision(const struct dpt_trainer *t, struct dpt_error *err)
{
    const int wanted = t->job->device.precision;

    if ((t->backend->precisions & 1U << wanted) != 0 || t->data.given != NULL)
        return DPT_OK;
    return dpt_fail(
        err, DPT_BAD_JOB,
        "device.precision: %s needs device.kind: cuda; %s, which this would run on, has "
        "fp32 and bf16; take bf16",
        dpt_job_precision(t->job), t->backend->name);
}

/*
 * What a rank cannot do without: its weights, a gradient, the optimizer's slots. A system that
 * promises more memory than it has would kill a rank later, without a word. To be asked before any
 * rank of the node has taken its part.
 */
static enum dpt_status check_room(const struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const int ranks = t->comm->node.size;
    const double slots =
        dpt_trainer_slots(t) * (double)graph->floats / dpt_trainer_owners(t) * sizeof(float);
    const double part = dpt_units_room(t) * sizeof(float);
    const double need = 2 * part * ranks + (dpt_trainer_shares_slots(t) ? slots : slots * ranks);
    const double available = dpt_memory_available();

    if (!t->data.train.present || t->backend->devices != NULL || available < 0 || need <= available)
        return DPT_OK;
    dpt_fail(err, DPT_RANK,
             "not enough memory for weights, gradient and optimizer: %.2f GB for %d rank%s here, "
             "%.2f GB are free",
             need / 1e9, ranks, ranks == 1 ? "" : "s", available / 1e9);
    err->memory = true;
    return err->status;
}

/* Builds the model, and chooses the engine that can take its steps. */
static enum dpt_status build_model(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(check_precision(t, err));
    DPT_TRY(dpt_trainer_build_model(t, err));
    t->team.synchronized = dpt_trainer_synchronized(t);
    for (int32_t i = 0; i < t->model.graph.n_nodes && !t->team.synchronized; i++)
        t->model.graph.nodes[i].whole_step = false; /* a step is one micro-batch */
    t->team.together =
        !t->team.synchronized && t->backend->teams != NULL && t->backend->teams(&t->model.graph);
    t->engine = dpt_engine_choose(t);
    DPT_TRY(dpt_mesh_plan(t, err));
    DPT_TRY(dpt_units_plan(t, err));
    if (!t->planned)
        DPT_TRY(check_room(t, err));
    DPT_TRY(dpt_trainer_open_targets(t, err));
out:
    return status;
}

/* Sets how many threads compute. most: as many as there are cores for them; the job may want
 * another number, which counts. */
static void set_threads(struct dpt_trainer *t, int most)
{
    const bool device = t->backend->devices != NULL;
    int useful = INT_MAX;

    if (device && (t->engine->on_device || !t->data.train.present))
        useful = DEVICE_THREADS;
    else if (device && t->team.synchronized) /* each has programs of its own on the device */
        useful = 1;
    else if (!device && t->data.train.present)
        useful = dpt_trainer_useful_threads(t);
    t->team.threads = most < useful ? most : useful;
    if (t->job->device.threads != 0)
        t->team.threads = (int)t->job->device.threads;
    t->team.decoders = !t->data.train.present || !t->data.train.set->files ? 1
                       : t->job->device.threads != 0                       ? t->team.threads
                                                                           : most;
    if (t->team.threads > dpt_step_most_workers(t))
        t->team.threads = dpt_step_most_workers(t);
    t->team.gradient_workers = t->team.together ? 1 : t->team.threads;
}

/* Opens all that depends on the size of a micro-batch. */
static enum dpt_status open_sized(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t micro = dpt_trainer_choose_micro(t);

    t->team.group = dpt_step_choose_group(t, micro);
    t->team.in_flight = dpt_step_in_flight(t, micro);
    t->team.adds = dpt_step_choose_adds(t, micro);
    DPT_TRY(plan_steps(t, micro, err));
    DPT_TRY(dpt_trainer_open_loaders(t, err));
    DPT_TRY(dpt_trainer_open_evaluation(t, err));
    DPT_TRY(dpt_trainer_open_team(t, micro * t->team.group, err));
    if (t->arenas.params == NULL)
        DPT_TRY(dpt_trainer_open_arenas(t, err));
    if (!dpt_memory_reserve((size_t)RESERVE))
        DPT_TRY(dpt_fail_memory(err, "preparing the layers", RESERVE));
    DPT_TRY(dpt_trainer_open_program(t, micro, NULL, err));
out:
    return status;
}

static void close_sized(struct dpt_trainer *t)
{
    dpt_trainer_close_program(t);
    dpt_trainer_close_team(t);
    dpt_trainer_close_evaluation(t);
    dpt_trainer_close_loaders(t);
}

/*
 * After a failure of opening, on all ranks: where it is only that a micro-batch of our own choice
 * does not fit on some device, all are to try half of it, and this gives OK. Collective.
 */
static enum dpt_status shrink(struct dpt_trainer *t, enum dpt_status mine, enum dpt_status failed,
                              struct dpt_error *err)
{
    const bool ours = dpt_trainer_micro_is_open(t) && t->data.train.sampler.micro > 1;
    int64_t others = mine != DPT_OK && !(ours && t->model.too_large);
    const struct dpt_error first = *err;
    const int32_t micro = t->data.train.sampler.micro;

    if (t->backend->devices == NULL) /* of all ranks alike */
        return failed;
    if (dpt_group_sum_ints(&t->comm->world, &others, &others, 1, err) != DPT_OK || others > 0) {
        *err = first;
        return failed;
    }
    t->model.micro_most = micro / 2;
    dpt_log_info(t->log, "%d samples do not fit on the device at once: trying %d", micro,
                 t->model.micro_most);
    dpt_log_detail(t->log, "%s", first.text);
    if (t->engine->detach != NULL)
        t->engine->detach(t);
    close_sized(t);
    return DPT_OK;
}

/* Opens model, program and engine. Collective. */
static enum dpt_status open_all(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status, mine;
    bool opened = false;

    dpt_comm_note(t->comm, 0, "setting up the model");
    mine = dpt_fault_strike(&t->fault, t->comm->world.rank, 0, NULL, 0, err);
    if (mine == DPT_OK)
        mine = open_sized(t, err);
    for (;;) {
        status = dpt_group_agree(&t->comm->world, mine, err);
        if (status == DPT_OK)
            DPT_TRY(dpt_trainer_share_plans(t, t->model.plans.text, err));
        if (status == DPT_OK && !opened) {
            dpt_units_open(t);
            DPT_TRY(dpt_units_share(t, err));
            DPT_TRY(dpt_group_agree(&t->comm->world, dpt_trainer_join_slots(t, err), err));
            DPT_TRY(dpt_group_agree(&t->comm->world, dpt_runner_open(&t->runner, t, err), err));
            DPT_TRY(t->engine->open(t, err));
            opened = true;
        }
        if (status == DPT_OK && t->engine->attach != NULL) {
            mine = t->engine->attach(t, err);
            t->model.too_large = mine == DPT_BAD_JOB;
            status = dpt_group_agree(&t->comm->world, mine, err);
        }
        if (status == DPT_OK)
            return DPT_OK;
        DPT_TRY(shrink(t, mine, status, err));
        mine = open_sized(t, err);
    }
out:
    return status;
}

static enum dpt_status count_threads(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double cores, fewest;
    int64_t mine;

    DPT_TRY(dpt_core_share(&t->comm->node, &cores, err));
    set_threads(t, cores < 2 ? 1 : (int)(cores + 1e-6));
    if (dpt_step_takes_all(t)) {
        DPT_TRY(dpt_group_max(&t->comm->world, -t->team.threads, &fewest, err));
        t->team.threads = (int)-fewest;
        t->team.gradient_workers = t->team.together ? 1 : t->team.threads;
    }
    t->team.spin = t->team.threads <= cores + 1e-6;
    mine = t->team.threads;
    DPT_TRY(dpt_group_sum_ints(&t->comm->world, &mine, &t->team.all_threads, 1, err));
out:
    return status;
}

/* A fault may be asked for by a variable that was left behind in one rank's environment, so the log
 * of all ranks tells of it. Collective. */
static enum dpt_status announce_fault(const struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int rank = t->comm->world.rank;
    double last;

    DPT_TRY(dpt_group_max(&t->comm->world, t->fault.action != NULL ? rank : -1, &last, err));
    if (t->fault.action != NULL)
        dpt_log_warn(t->log, "this run breaks on purpose: DPTRAIN_FAULT=%s is in the environment",
                     getenv("DPTRAIN_FAULT"));
    else if (last >= 0)
        dpt_log_warn(t->log,
                     "this run breaks on purpose: DPTRAIN_FAULT is in the environment of "
                     "rank %d",
                     (int)last);
out:
    return status;
}

enum dpt_status dpt_trainer_open(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_comm *comm, struct dpt_log *log, unsigned parts,
                                 const struct dpt_shape *given, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(t, 0, sizeof *t);
    t->data.given = given;
    t->loads = (parts & DPT_PART_LOADED) != 0;
    t->job = job;
    t->comm = comm;
    t->mesh = dpt_mesh_whole(comm);
    t->log = log;
    t->model.loss = dpt_job_loss(job);
    t->progress.best_step = -1;
    dpt_comm_limit(comm, job->comm.timeout.n);
    DPT_TRY(dpt_group_agree(&comm->world, dpt_fault_read(&t->fault, err), err));
    DPT_TRY(announce_fault(t, err));
    DPT_TRY(dpt_choose_backend(comm, (enum dpt_device_kind)job->device.kind, log, &t->backend,
                               &t->gpu, &t->gpus, err));
    DPT_TRY(dpt_numerics_check(comm, t->backend, t->gpu, job, log, err));
    DPT_TRY(dpt_trainer_open_data(t, parts, err));
    DPT_TRY(dpt_group_agree(&comm->world, build_model(t, err), err));
    DPT_TRY(dpt_mesh_open(t, err));
    DPT_TRY(dpt_trainer_share_targets(t, err));
    DPT_TRY(count_threads(t, err));
    DPT_TRY(open_all(t, err));
    if (t->loads)
        return DPT_OK;
    DPT_TRY(dpt_units_init(t, err));
    DPT_TRY(dpt_group_agree(&comm->world, dpt_trainer_refresh(t, err), err));
out:
    if (status != DPT_OK)
        dpt_trainer_close(t);
    return status;
}

enum dpt_status dpt_trainer_plan(struct dpt_trainer *t, const struct dpt_job *job,
                                 const struct dpt_comm *comm, int threads, unsigned parts,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int32_t micro;

    memset(t, 0, sizeof *t);
    t->planned = true;
    t->job = job;
    t->comm = comm;
    t->mesh = dpt_mesh_whole(comm);
    t->model.loss = dpt_job_loss(job);
    dpt_trainer_count_slots(t);
    DPT_TRY(dpt_choose_planned((enum dpt_device_kind)job->device.kind, &t->backend, err));
    DPT_TRY(dpt_numerics_limit(t->backend, job, err));
    DPT_TRY(dpt_trainer_open_data(t, parts, err));
    DPT_TRY(build_model(t, err));
    set_threads(t, threads);
    t->team.all_threads = (int64_t)t->team.threads * comm->world.size;
    micro = dpt_trainer_choose_micro(t);
    t->team.group = dpt_step_choose_group(t, micro);
    t->team.in_flight = dpt_step_in_flight(t, micro);
    t->team.adds = dpt_step_choose_adds(t, micro);
    DPT_TRY(plan_steps(t, micro, err));
    t->reduction.type = dpt_gradient_reduction_choose(t);
out:
    if (status != DPT_OK)
        dpt_trainer_close(t);
    return status;
}

void dpt_trainer_close(struct dpt_trainer *t)
{
    if (t->engine != NULL)
        t->engine->close(t);
    dpt_runner_close(t->runner);
    close_sized(t);
    dpt_pool_close(t->team.pool);
    dpt_trainer_close_arenas(t);
    dpt_units_close(t);
    dpt_mesh_close(t);
    dpt_graph_release(&t->model.graph);
    dpt_trainer_close_data(t);
    dpt_free(t->gpus);
    memset(t, 0, sizeof *t);
}
