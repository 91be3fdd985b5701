/* The size of a micro-batch, and how many threads a step feeds. */
#include <limits.h>
#include <sched.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/trainer.h"

/* A team's micro-batch may be large: its activations are shared, and each pass over wide weights is
 * dear. A device works on all samples at once. */
enum { MICRO_CONV = 16, MICRO_FLAT = 32, MICRO_DEVICE = 4096 };
/* Where what is computed hangs on the micro-batch, its size depends on the job alone, as if there
 * were this many workers. */
enum { FIXED_WORKERS = 8 };

/* Floating-point operations of a step with which a thread pays. A team meets in every layer, others
 * once a step; that costs 0.1 us where they share a cache, 0.5 us where they do not. Measured with
 * `dptrain bench` on both: 784-64-10 at batch 128, 39e6, takes two threads 0.66 and 1.4 times as
 * long as one, 256-64-10, 13e6, 0.8 and 1.6 times; convolutions of 8x8 pixels gain from 1e6 on. */
enum { TEAM_FLOPS = 16000000, OWN_FLOPS = 1000000 };

enum dpt_status dpt_core_share(const struct dpt_group *node, double *cores, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    cpu_set_t mine, *all = NULL;

    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        CPU_SET(0, &mine);
    *cores = 0;
    DPT_TRY(DPT_ALLOCATE(all, (size_t)node->size, "the list of cores", err));
    DPT_TRY(dpt_group_allgather(node, &mine, all, sizeof mine, err));
    for (int core = 0; core < CPU_SETSIZE; core++) {
        int users = 0;

        if (!CPU_ISSET(core, &mine))
            continue;
        for (int rank = 0; rank < node->size; rank++)
            users += CPU_ISSET(core, &all[rank]) != 0;
        *cores += 1.0 / users;
    }
out:
    dpt_free(all);
    return status;
}

/*
 * The micro-batch where the job leaves it open: at most `most` samples, as even as can be, and
 * small enough to feed every worker (threads x ranks), as far as that is even. 1 <= result <= most.
 */
static int32_t auto_micro(int64_t global, int64_t workers, int32_t most)
{
    const int64_t each = (global + workers - 1) / workers; /* samples of the busiest worker */
    const int64_t chunks = (each + most - 1) / most;
    const int64_t micro = (each + chunks - 1) / chunks;

    return (int32_t)(micro < 1 ? 1 : micro);
}

static bool has_windows(const struct dpt_graph *graph)
{
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (dpt_operation_of(&graph->nodes[i])->kind == DPT_CLASS_CONV)
            return true;
    return false;
}

/* Floating-point operations of all samples of a step: forward, and backward for the data and for
 * the weights. */
static double step_flops(const struct dpt_trainer *t)
{
    double flops = 0;

    for (int32_t i = 0; i < t->model.graph.n_nodes; i++)
        flops += 3 * dpt_operation_flops(&t->model.graph.nodes[i]);
    return flops * (double)t->job->batch.global;
}

int dpt_trainer_useful_threads(const struct dpt_trainer *t)
{
    const double least = t->team.together ? TEAM_FLOPS : OWN_FLOPS;
    const double useful = step_flops(t) / t->comm->world.size / least;

    return useful < 1 ? 1 : useful < INT_MAX ? (int)useful : INT_MAX;
}

int64_t dpt_feeding_micro(int64_t global, int ranks)
{
    /* More than ranks - 1 micro-batches are wanted: global > micro * (ranks - 1). */
    return ranks == 1 ? global : (global - 1) / (ranks - 1);
}

bool dpt_trainer_micro_is_open(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = &t->model.graph;

    return t->job->batch.micro == 0 && t->job->comm.reduction != DPT_REDUCTION_REPRODUCIBLE &&
           graph->arena == graph->floats;
}

int32_t dpt_trainer_choose_micro(const struct dpt_trainer *t)
{
    const int64_t global = t->job->batch.global;
    const int ranks = dpt_trainer_replicas(t)->world.size;
    const int64_t feeding = dpt_feeding_micro(global, ranks);
    int32_t micro;

    if (t->job->batch.micro != 0)
        return (int32_t)t->job->batch.micro;
    if (!dpt_trainer_micro_is_open(t))
        return auto_micro(global, FIXED_WORKERS,
                          has_windows(&t->model.graph) ? MICRO_CONV : MICRO_FLAT);
    if (t->backend->steps != NULL)
        micro = auto_micro(global, ranks,
                           t->model.micro_most != 0 ? t->model.micro_most : MICRO_DEVICE);
    else if (t->team.together)
        micro = auto_micro(global, ranks, DPT_MICRO_TEAM);
    else
        micro = auto_micro(global, t->team.all_threads,
                           has_windows(&t->model.graph) ? MICRO_CONV : MICRO_FLAT);
    /* An even partition may still leave a rank without any: 10 samples on 8 ranks are 5 times 2. */
    return micro > feeding && feeding > 0 ? (int32_t)feeding : micro;
}

/* Warns where a replica's micro-batches are fewer than the stages that they go through. */
static void warn_waiting(const struct dpt_trainer *t, struct dpt_log *log, int batches)
{
    const int replicas = dpt_trainer_replicas(t)->world.size, stages = t->mesh.stages;
    const int each = (batches + replicas - 1) / replicas;
    int64_t would;

    if (each >= stages)
        return;
    would = t->job->batch.global / ((int64_t)stages * replicas);
    dpt_log_warn(log,
                 "a replica has %d micro-batch%s a step, fewer than the %d stages, so each stage "
                 "waits %d %% of the time; batch.micro: %lld or less would feed all",
                 each, each == 1 ? "" : "es", stages, 100 * (stages - 1) / (each + stages - 1),
                 (long long)(would > 0 ? would : 1));
}

/* A device takes a rank's micro-batches one after another, each with launches of its own. */
static void warn_small(const struct dpt_trainer *t, struct dpt_log *log, int batches)
{
    const struct dpt_graph *graph = &t->model.graph;
    const int ranks = dpt_trainer_replicas(t)->world.size, each = (batches + ranks - 1) / ranks;

    if (t->backend->steps == NULL || t->job->batch.micro != 0 || graph->arena == graph->floats ||
        t->job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE || each < 2)
        return;
    dpt_log_warn(log,
                 "a GPU computes %d micro-batches of %d a step, one after another, since with a "
                 "batchnorm their size follows from the job alone; batch.micro: %d is one, whose "
                 "statistics are of that many samples, and is faster",
                 each, t->data.train.sampler.micro,
                 (t->data.train.sampler.global + ranks - 1) / ranks);
}

void dpt_trainer_warn_idle(const struct dpt_trainer *t, struct dpt_log *log)
{
    const struct dpt_sampler *s = &t->data.train.sampler;
    const struct dpt_sampler step = {.samples = s->global, .global = s->global, .micro = s->micro};
    const int ranks = dpt_trainer_replicas(t)->world.size,
              batches = dpt_sampler_micro_batches(&step, 0);
    const int64_t feeding = dpt_feeding_micro(s->global, ranks);
    struct dpt_str who = {0}, cure = {0};
    bool *idle = batches < ranks ? dpt_alloc_array((size_t)ranks, sizeof *idle) : NULL;

    warn_waiting(t, log, batches);
    warn_small(t, log, batches);
    if (idle == NULL)
        return;
    for (int r = 0; r < ranks; r++) {
        int32_t first, last;

        dpt_sampler_partition(&step, 0, r, ranks, &first, &last);
        idle[r] = first == last;
    }
    dpt_str_ranks_where(&who, idle, ranks);
    if (feeding > 0)
        dpt_str_printf(&cure, "batch.micro: %lld%s would feed all", (long long)feeding,
                       feeding > 1 ? " or less" : "");
    else
        dpt_str_printf(&cure, "start fewer ranks, or make batch.global larger");
    if (!who.failed && !cure.failed)
        dpt_log_warn(log,
                     ranks - batches == 1
                         ? "%s %s of %d stays idle: %d / %d gives %d micro-batch%s a step; %s"
                         : "%ss %s of %d stay idle: %d / %d gives %d micro-batch%s a step; %s",
                     ranks < t->comm->world.size ? "replica" : "rank", who.text, ranks, s->global,
                     s->micro, batches, batches == 1 ? "" : "es", cure.text);
    dpt_str_release(&who);
    dpt_str_release(&cure);
    dpt_free(idle);
}

bool dpt_trainer_synchronized(const struct dpt_trainer *t)
{
    const struct dpt_graph *graph = &t->model.graph;

    for (int32_t i = 0; i < graph->n_nodes && t->data.train.present; i++)
        if (graph->nodes[i].whole_step && t->job->batch.global > dpt_trainer_choose_micro(t))
            return true;
    return false;
}
