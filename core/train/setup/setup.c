#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/choose.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state.h"
#include "core/train/step/engine.h"
#include "core/train/step/evaluate.h"
#include "core/train/step/runner.h"
#include "core/train/team.h"
#include "core/train/trainer.h"
#include "core/train/update/schedule.h"

/* What a trainer has before its work is divided. */
static const struct dpt_layout_stage no_stage;

/* Bytes that must be free for the libraries beneath, some of which crash if memory runs out. */
enum { RESERVE = 128 << 20 };

/*
 * The bytes that a rank needs in any case: its weights, a gradient, the optimizer's slots. A system
 * that promises more memory than it has would kill a rank later, without a message. To be called
 * before any rank of the node has allocated its part.
 */
static enum dpt_status check_room(const struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const int ranks = t->comm->node.size;
    const double slots = t->layout.slots * (double)graph->floats / t->layout.owners * sizeof(float);
    const double own = dpt_layout_parameters(&t->layout, t->stage) * sizeof(float),
                 unit = dpt_layout_unit(&t->layout, t->stage) * sizeof(float);
    const int held = dpt_layout_shares_state(&t->layout, t->stage) ? 1 : ranks; /* copies of both */
    const double need =
        (own + unit) * ranks + (t->layout.by_messages ? unit : 0) + (own + slots) * held;
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

/* Builds the model. */
static enum dpt_status build_model(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (t->data.given == NULL) /* for prediction alone more exact numbers will do */
        DPT_TRY(dpt_numerics_precision(t->backend, t->job, err));
    DPT_TRY(dpt_model_of_splits(&t->model, t->job, &t->data, err));
out:
    return status;
}

static struct dpt_layout layout_input(const struct dpt_trainer *t, bool linked)
{
    const struct dpt_split *train = &t->data.train;

    return (struct dpt_layout){
        .job = t->job,
        .backend = t->backend,
        .graph = &t->model.graph,
        .files = train->present && train->set->files,
        .each_gradient = dpt_fault_strikes_gradients(&t->fault),
        .linked = linked,
        .ranks = t->comm->world.size,
        .node_ranks = t->comm->node.size,
        .trains = train->present,
    };
}

/* Connects the ranks' devices where these take the steps, if they can. Collective. Errors: BAD_JOB:
 * NCCL is to sum what no GPU has. */
static enum dpt_status link_devices(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_layout would = layout_input(t, true);
    const struct dpt_backend_devices *devices = t->backend->devices;
    int64_t others;

    if (t->comm->world.size == 1 || !would.trains)
        return DPT_OK;
    others = !dpt_layout_takes_steps(&would); /* a fault may strike on one rank alone */
    DPT_TRY(dpt_group_sum_ints(&t->comm->world, &others, &others, 1, err));
    if (others > 0 && t->job->comm.transport == DPT_TRANSPORT_NCCL)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "comm.transport: nccl: the gradients of this job are summed on the host; "
                         "NCCL sums those of GPUs that update by themselves: device.kind: cuda, "
                         "without log.hashes, log.trace and statistics: batch"));
    if (others == 0)
        DPT_TRY(dpt_comm_transport(t->comm, (enum dpt_transport)t->job->comm.transport,
                                   devices->links, &devices->memory, t->gpu, t->shares_gpu,
                                   &t->link, t->transport, err));
out:
    return status;
}

/* Finds how the work is divided, as far as this rank knows by itself, and who takes the steps. */
static enum dpt_status make_layout(struct dpt_trainer *t, double cores, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_split *train = &t->data.train;

    t->layout = layout_input(t, t->link != NULL);
    DPT_TRY(dpt_layout_open(&t->layout, train->present ? &train->sampler : NULL,
                            t->comm->world.rank, cores, err));
    t->stage = &t->layout.stage[dpt_layout_place(&t->layout, t->comm->world.rank).stage];
    t->engine = t->layout.on_device ? &dpt_engine_device : &dpt_engine_host;
    dpt_mesh_plan(t);
    t->units.gathers = t->layout.by_messages; /* until they open */
    DPT_TRY(check_room(t, err));
    DPT_TRY(dpt_splits_open_targets(&t->data, t->job, &t->model, true, &t->targets, err));
out:
    return status;
}

/* Makes the layout, alike on all ranks. Collective. */
static enum dpt_status divide_work(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_layout *layout = &t->layout;
    double cores, fewest;
    int64_t threads, all;

    DPT_TRY(dpt_core_share(&t->comm->node, &cores, err));
    DPT_TRY(dpt_group_agree(world, make_layout(t, cores, err), err));
    threads = layout->threads;
    if (layout->model_ranks > 1 || layout->round_robin) { /* a round takes all workers */
        DPT_TRY(dpt_group_max(world, (double)-threads, &fewest, err));
        threads = (int64_t)-fewest;
    }
    DPT_TRY(dpt_group_sum_ints(world, &threads, &all, 1, err));
    dpt_layout_set_threads(layout, (int)threads, all, 0);
    t->team.spin = (double)threads <= cores + 1e-6;
out:
    return status;
}

/* Opens all that depends on the size of a micro-batch. */
static enum dpt_status open_sized(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t micro = t->layout.micro;

    DPT_TRY(dpt_splits_plan(&t->data, &t->layout, err));
    if (t->layout.trains)
        dpt_splits_length(&t->data, t->job, &t->steps_per_epoch, &t->steps);
    t->scale = dpt_loss_scale_start(t->job->device.precision == DPT_PRECISION_FP16, micro);
    DPT_TRY(dpt_trainer_open_loaders(t, err));
    DPT_TRY(dpt_trainer_open_evaluation(t, err));
    DPT_TRY(dpt_trainer_open_team(t, micro * t->layout.at_once, err));
    if (t->arenas.params == NULL)
        DPT_TRY(dpt_trainer_open_arenas(t, err));
    if (!dpt_memory_reserve((size_t)RESERVE))
        DPT_TRY(dpt_fail_memory(err, "preparing the layers", RESERVE));
    DPT_TRY(dpt_trainer_open_program(t, NULL, err));
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
 * After opening failed, on all ranks: if the only cause is that a micro-batch of our own choice
 * does not fit on some device, gives OK, and all are to try half of it. Collective.
 */
static enum dpt_status shrink(struct dpt_trainer *t, enum dpt_status mine, enum dpt_status failed,
                              struct dpt_error *err)
{
    const bool ours =
        dpt_layout_micro_is_open(t->job, &t->model.graph) && t->data.train.sampler.micro > 1;
    int64_t others = mine != DPT_OK && !(ours && t->model.too_large);
    const struct dpt_error first = *err;
    const int32_t micro = t->data.train.sampler.micro;

    if (t->backend->devices == NULL) /* alike on all ranks */
        return failed;
    if (dpt_group_sum_ints(&t->comm->world, &others, &others, 1, err) != DPT_OK || others > 0) {
        *err = first;
        return failed;
    }
    dpt_layout_set_threads(&t->layout, t->layout.threads, t->layout.all_threads, micro / 2);
    dpt_log_info(t->log, "%d samples do not fit on the device at once: trying %d", micro,
                 t->layout.micro);
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
    mine = dpt_fault_strike(&t->fault, t->comm->world.rank, 0, 0, NULL, 0, err);
    if (mine == DPT_OK)
        mine = open_sized(t, err);
    for (;;) {
        status = dpt_group_agree(&t->comm->world, mine, err);
        if (status == DPT_OK)
            DPT_TRY(dpt_trainer_share_plans(t, t->model.plans.text, err));
        if (status == DPT_OK && !opened) {
            dpt_units_open(t);
            DPT_TRY(dpt_units_share(t, err));
            DPT_TRY(dpt_group_agree(&t->comm->world, dpt_trainer_join_state(t, err), err));
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

/* A variable that was left in one rank's environment may ask for a fault, so the log reports it for
 * all ranks. Collective. */
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
    t->stage = &no_stage;
    t->mesh.replicas = comm;
    t->log = log;
    t->lr =
        dpt_schedule_scale(&job->schedule, dpt_optimizer_lr(&job->optimizer), job->batch.global);
    t->model.loss = dpt_job_loss(job);
    t->progress.best_step = -1;
    dpt_comm_limit(comm, dpt_job_limits(job));
    DPT_TRY(dpt_group_agree(&comm->world, dpt_fault_read(&t->fault, err), err));
    DPT_TRY(announce_fault(t, err));
    DPT_TRY(dpt_choose_backend(comm, (enum dpt_device_kind)job->device.kind, log, &t->backend,
                               &t->gpu, &t->gpus, err));
    t->shares_gpu = t->gpus != NULL && dpt_count_gpus(t->gpus, comm->world.size) < comm->world.size;
    DPT_TRY(dpt_numerics_check(comm, t->backend, t->gpu, job, log, err));
    DPT_TRY(dpt_splits_open(&t->data, job, parts, comm, log, err));
    DPT_TRY(dpt_group_agree(&comm->world, build_model(t, err), err));
    t->called = t->data.called;
    DPT_TRY(link_devices(t, err));
    DPT_TRY(divide_work(t, err));
    DPT_TRY(dpt_mesh_open(t, err));
    DPT_TRY(dpt_trainer_share_targets(t, err));
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

void dpt_trainer_close(struct dpt_trainer *t)
{
    if (t->comm == NULL)
        return;
    if (t->engine != NULL)
        t->engine->close(t);
    if (t->link != NULL)
        dpt_comm_unlink(t->comm, t->backend->devices->links, t->link);
    dpt_runner_close(t->runner);
    close_sized(t);
    dpt_pool_close(t->team.pool);
    dpt_trainer_close_arenas(t);
    dpt_units_close(t);
    dpt_mesh_close(t);
    dpt_layout_close(&t->layout);
    dpt_graph_release(&t->model.graph);
    dpt_target_scale_release(&t->targets);
    dpt_splits_close(&t->data);
    dpt_free(t->gpus);
    memset(t, 0, sizeof *t);
}
