#include "core/train/layout/layout.h"

#include <limits.h>
#include <stdio.h>

#include "core/base/memory.h"
#include "core/train/layout/layout_parts.h"
#include "core/train/layout/shares.h"
#include "core/train/update/optimizer.h"

/* Host threads of a rank whose device computes: they only hand samples over. */
enum { DEVICE_THREADS = 4 };
/* The ranks of a node share weights and optimizer state from this many bytes on: a smaller state is
 * in each core's caches. */
enum { WORTH_SHARING = 16 << 20 };

/* --- who has which part of the model ---------------------------------------------------------- */

/* "3 stages", "3 stages x tensor 2". */
static const char *unit_text(const struct dpt_layout *l, char text[64])
{
    if (l->tensor == 1)
        snprintf(text, 64, "%d stages", l->stages);
    else if (l->stages == 1)
        snprintf(text, 64, "tensor %d", l->tensor);
    else
        snprintf(text, 64, "%d stages x tensor %d", l->stages, l->tensor);
    return text;
}

/* Finds how many ranks there are for a part of the model. */
static enum dpt_status divide_ranks(struct dpt_layout *l, struct dpt_error *err)
{
    const int ranks = l->ranks, unit = l->model_ranks;
    const int64_t data = l->job->parallel.data;
    const int below = ranks / unit * unit;
    char text[192], parts[64];

    l->replicas = ranks / unit;
    unit_text(l, parts);
    if (data != 0 && data * unit != ranks)
        return dpt_fail(err, DPT_BAD_JOB,
                        "parallel.data: %lld x %s are %lld ranks, and %d %s started: start "
                        "%lld, or give `data: auto`",
                        (long long)data, parts, (long long)data * unit, ranks,
                        ranks == 1 ? "is" : "are", (long long)data * unit);
    if (below == ranks)
        return DPT_OK;
    if (below == 0)
        snprintf(text, sizeof text, "start %d", unit);
    else
        snprintf(text, sizeof text, "start %d or %d", below, below + unit);
    return dpt_fail(err, DPT_BAD_JOB, "parallel.%s: %d rank%s %s no multiple of %s: %s",
                    l->stages > 1 ? "pipeline" : "tensor", ranks, ranks == 1 ? "" : "s",
                    ranks == 1 ? "is" : "are", parts, text);
}

/* Fails if there is no layer to divide. */
static enum dpt_status check_layers(const struct dpt_graph *graph, struct dpt_error *err)
{
    const struct dpt_tensor *most = NULL;

    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i];

        if (dpt_graph_divided(graph, i) != NULL)
            return DPT_OK;
        if (tensor->n_dims == 2 && (most == NULL || tensor->count > most->count))
            most = tensor;
    }
    return dpt_fail(err, DPT_BAD_JOB,
                    "parallel.tensor: divides dense layers of at least 64 outputs and 65 536 "
                    "weights, and this model has none (the largest is %s, %lld x %lld); leave it "
                    "out",
                    most != NULL ? most->name : "nothing",
                    most != NULL ? (long long)most->dims[0] : 0,
                    most != NULL ? (long long)most->dims[1] : 0);
}

static enum dpt_status check_model(const struct dpt_layout *l, struct dpt_error *err)
{
    const struct dpt_graph *graph = l->graph;
    const char *option = l->stages > 1 ? "pipeline" : "tensor";

    if (l->tensor > 1 && l->backend->devices != NULL)
        return dpt_fail(err, DPT_BAD_JOB,
                        "parallel.tensor: runs on device.kind: cpu or ref; this would run on %s",
                        l->backend->name);
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].whole_step)
            return dpt_fail(err, DPT_BAD_JOB,
                            "parallel.%s: does not go with batchnorm's `statistics: batch` "
                            "(%s), for which all micro-batches wait in each such layer; "
                            "`statistics: micro` would do",
                            option, graph->nodes[i].name);
    return l->tensor > 1 ? check_layers(graph, err) : DPT_OK;
}

/* Checks parallel.data if all ranks of a job are replicas. */
static enum dpt_status check_data(const struct dpt_layout *l, struct dpt_error *err)
{
    const int64_t data = l->job->parallel.data;

    if (data == 0 || data == l->ranks || !l->trains)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_JOB,
                    "parallel.data: %lld, and %d rank%s started: start %lld, or give `data: auto`",
                    (long long)data, l->ranks, l->ranks == 1 ? " is" : "s are", (long long)data);
}

static enum dpt_status divide_model(struct dpt_layout *l, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_pipeline_options *pipeline = &l->job->parallel.pipeline;
    const int stages = pipeline->stages > 1 ? (int)pipeline->stages : 1;
    const int tensor = (int)l->job->parallel.tensor;
    const bool divides = l->trains && stages * tensor > 1;
    int on_node;

    l->stages = divides ? stages : 1;
    l->tensor = divides ? tensor : 1;
    l->model_ranks = l->stages * l->tensor;
    l->schedule = l->stages == 1 ? DPT_PIPELINE_1F1B : pipeline->schedule;
    if (divides)
        DPT_TRY(check_model(l, err));
    else
        DPT_TRY(check_data(l, err));
    DPT_TRY(dpt_layout_cut_stages(l, err));
    if (divides)
        DPT_TRY(divide_ranks(l, err));
    else
        l->replicas = l->ranks;
    on_node = l->node_ranks / l->tensor > 1 ? l->node_ranks / l->tensor : 1;
    l->node_replicas = on_node < l->replicas ? on_node : l->replicas;
out:
    return status;
}

/* --- who owns what ---------------------------------------------------------------------------- */

static enum dpt_status divide_state(struct dpt_layout *l, struct dpt_error *err)
{
    const int shard = (int)l->job->parallel.shard;

    l->updaters = shard != DPT_SHARD_NONE && l->trains ? l->replicas : 1;
    l->owners = l->on_device ? 1 : l->updaters;
    l->round_robin = l->updaters > 1 && shard >= DPT_SHARD_GRADIENTS;
    l->sliced = l->owners > 1 && shard == DPT_SHARD_PARAMETERS;
    l->sliced_there = l->on_device && l->updaters > 1 && shard == DPT_SHARD_PARAMETERS;
    l->by_messages = l->sliced && l->node_replicas < l->replicas;
    l->in_parts = l->model_ranks > 1 || dpt_layout_gathers(l);
    l->streams = l->model_ranks * l->owners > 1;
    if (l->sliced && l->synchronized)
        return dpt_fail(err, DPT_BAD_JOB,
                        "parallel.shard: parameters does not go with a batch norm over the whole "
                        "step (statistics: batch), for which all micro-batches are in flight at "
                        "once; gradients and optimizer do, or statistics: micro");
    return DPT_OK;
}

/* Makes the stages' graphs and units. */
static enum dpt_status fill_stages(struct dpt_layout *l, int part, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < l->stages; k++) {
        struct dpt_layout_stage *stage = &l->stage[k];
        const struct dpt_part own = {stage->first, stage->last, part, l->tensor};
        int64_t learned, state; /* where its floats begin, as in each tensor */

        DPT_TRY(dpt_graph_part(l->graph, &own, &stage->graph, &learned, &state, err));
        DPT_TRY(dpt_layout_cut_units(l, stage, err));
    }
out:
    return status;
}

bool dpt_layout_shares_state(const struct dpt_layout *l, const struct dpt_layout_stage *stage)
{
    const double bytes = (1 + l->slots) * (double)stage->graph.floats * sizeof(float);

    return l->trains && !l->on_device && l->owners == 1 && l->node_replicas > 1 &&
           dpt_optimizer_rule(&l->job->optimizer).kind != DPT_RULE_NONE && bytes >= WORTH_SHARING;
}

int dpt_layout_dividers(const struct dpt_layout *l, const struct dpt_layout_stage *stage)
{
    return dpt_layout_shares_state(l, stage) ? l->node_replicas : l->owners;
}

/* --- threads ---------------------------------------------------------------------------------- */

/* How many threads compute if there are cores for `most`; the job's own number takes precedence. */
static int count_threads(const struct dpt_layout *l, int most)
{
    const bool device = l->backend->devices != NULL;
    int useful = INT_MAX, threads;

    if (device && (l->on_device || !l->trains))
        useful = DEVICE_THREADS;
    else if (device && l->synchronized) /* each has programs of its own on the device */
        useful = 1;
    else if (!device && l->trains)
        useful = dpt_layout_useful_threads(l);
    threads = most < useful ? most : useful;
    if (l->job->device.threads != 0)
        threads = (int)l->job->device.threads;
    /* A divided layer has one worker, which exchanges values with the other ranks. */
    return l->tensor > 1 && !l->together ? 1 : threads;
}

void dpt_layout_set_threads(struct dpt_layout *l, int threads, int64_t all_threads,
                            int32_t micro_most)
{
    l->threads = threads;
    l->gradient_workers = l->together ? 1 : threads;
    l->all_threads = all_threads;
    dpt_layout_set_micro(l, dpt_layout_choose_micro(l, micro_most));
}

void dpt_layout_set_micro(struct dpt_layout *l, int32_t micro)
{
    int32_t rounds;

    l->micro = micro;
    l->sampler.micro = micro;
    l->sampler.round_robin = 0;
    l->at_once = dpt_layout_choose_at_once(l);
    rounds = dpt_layout_most_rounds(l);
    for (int k = 0; k < l->stages; k++)
        l->stage[k].in_flight =
            l->synchronized ? rounds : dpt_pipeline_in_flight(l->schedule, l->stages, k, rounds);
    l->adds = dpt_layout_choose_adds(l);
    l->sampler.round_robin = l->round_robin ? l->at_once * l->gradient_workers : 0;
}

/* --- the whole -------------------------------------------------------------------------------- */

void dpt_layout_settle_norms(const struct dpt_job *job, bool trains, struct dpt_graph *graph)
{
    const bool several = trains && job->batch.global > dpt_layout_fixed_micro(job, graph);

    for (int32_t i = 0; i < graph->n_nodes && !several; i++)
        graph->nodes[i].whole_step = false;
}

static bool synchronizes(const struct dpt_graph *graph)
{
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].whole_step)
            return true;
    return false;
}

bool dpt_layout_takes_steps(const struct dpt_layout *l)
{
    const struct dpt_job *job = l->job;
    const bool shards = job->parallel.shard != DPT_SHARD_NONE;
    const bool tree = job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE;
    /* A device numbers withheld updates, too, which the host does not: what depends on the numbers,
     * as Adam's bias correction, would have other bits. */
    const bool withholds =
        job->device.precision == DPT_PRECISION_FP16 || job->train.on_nan == DPT_ON_NAN_SKIP;

    return l->backend->steps != NULL && l->trains && job->parallel.tensor <= 1 &&
           !job->log.hashes && !job->log.trace && !(tree && withholds) &&
           !((tree || shards) && l->ranks > 1 && !l->linked) && !l->each_gradient &&
           !synchronizes(l->graph) && dpt_optimizer_rule(&job->optimizer).kind != DPT_RULE_NONE;
}

enum dpt_status dpt_layout_open(struct dpt_layout *l, const struct dpt_sampler *samples, int rank,
                                double cores, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_job *job = l->job;
    const int most = cores < 2 ? 1 : (int)(cores + 1e-6);
    int threads;

    l->trains = samples != NULL;
    l->slots = dpt_optimizer_slots(&job->optimizer) + (job->train.ema > 0);
    if (l->trains)
        l->sampler = *samples;
    l->sampler.seed = (uint64_t)job->seed;
    l->sampler.global = (int32_t)job->batch.global;
    l->sampler.shuffle = (enum dpt_shuffle)job->data.shuffle;
    l->sampler.drop_last = job->data.drop_last;
    l->synchronized = synchronizes(l->graph);
    l->together = !l->synchronized && l->backend->teams != NULL && l->backend->teams(l->graph);
    l->on_device = dpt_layout_takes_steps(l);
    DPT_TRY(divide_model(l, err));
    DPT_TRY(divide_state(l, err));
    DPT_TRY(fill_stages(l, dpt_layout_place(l, rank).part, err));
    threads = count_threads(l, most);
    l->decoders = !l->trains || !l->files ? 1 : job->device.threads != 0 ? threads : most;
    dpt_layout_set_threads(l, threads, (int64_t)threads * l->ranks, 0);
out:
    return status;
}

void dpt_layout_close(struct dpt_layout *l)
{
    for (int k = 0; l->stage != NULL && k < l->stages; k++) {
        dpt_graph_release(&l->stage[k].graph);
        dpt_free(l->stage[k].node);
        dpt_free(l->stage[k].edge);
    }
    dpt_free(l->stage);
    *l = (struct dpt_layout){0};
}

struct dpt_layout_place dpt_layout_place(const struct dpt_layout *l, int rank)
{
    return (struct dpt_layout_place){.stage = rank / (l->replicas * l->tensor),
                                     .replica = rank / l->tensor % l->replicas,
                                     .part = rank % l->tensor};
}
