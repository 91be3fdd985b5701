/* The size of a micro-batch, how many are computed at once, and how many threads a step feeds. */
#include <limits.h>
#include <math.h>

#include "core/backend/operation.h"
#include "core/train/layout/layout_parts.h"
#include "core/train/layout/shares.h"

/* A team's micro-batch may be large: its activations are shared, and each pass over wide weights is
 * expensive. A device works on all samples at once. */
enum { MICRO_CONV = 16, MICRO_FLAT = 32, MICRO_DEVICE = 4096 };
/* If the result depends on the micro-batch, its size depends on the job alone, as if there were
 * this many workers. */
enum { FIXED_WORKERS = 8 };

/* Floating-point operations per step from which on another thread is worth it. A team synchronizes
 * in every layer, other threads once per step; that costs 0.1 us if they share a cache, 0.5 us if
 * not. Measured with `dptrain bench` on both: 784-64-10 at batch 128, 39e6, takes two threads 0.66
 * and 1.4 times as long as one, 256-64-10, 13e6, 0.8 and 1.6 times; convolutions of 8x8 pixels gain
 * from 1e6 on. */
enum { TEAM_FLOPS = 16000000, OWN_FLOPS = 1000000 };

/*
 * The micro-batch if the job does not set it: at most `most` samples, as even as possible, and
 * small enough to feed every worker (threads x ranks), as far as that stays even. 1 <= result <=
 * most.
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

int dpt_layout_useful_threads(const struct dpt_layout *l)
{
    const double least = l->together ? TEAM_FLOPS : OWN_FLOPS;
    double flops = 0, useful; /* of a sample: forward, and backward for data and weights */

    for (int32_t i = 0; i < l->graph->n_nodes; i++)
        flops += 3 * dpt_operation_flops(&l->graph->nodes[i]);
    useful = flops * (double)l->job->batch.global / l->ranks / least;
    return useful < 1 ? 1 : useful < INT_MAX ? (int)useful : INT_MAX;
}

int64_t dpt_feeding_micro(int64_t global, int ranks)
{
    /* More than ranks - 1 micro-batches are wanted: global > micro * (ranks - 1). */
    return ranks == 1 ? global : (global - 1) / (ranks - 1);
}

bool dpt_layout_micro_is_open(const struct dpt_job *job, const struct dpt_graph *graph)
{
    return job->batch.micro == 0 && job->comm.reduction != DPT_REDUCTION_REPRODUCIBLE &&
           graph->arena == graph->floats;
}

int32_t dpt_layout_fixed_micro(const struct dpt_job *job, const struct dpt_graph *graph)
{
    return job->batch.micro != 0 ? (int32_t)job->batch.micro
                                 : auto_micro(job->batch.global, FIXED_WORKERS,
                                              has_windows(graph) ? MICRO_CONV : MICRO_FLAT);
}

int32_t dpt_layout_choose_micro(const struct dpt_layout *l, int32_t micro_most)
{
    const int64_t global = l->job->batch.global;
    const int64_t feeding = dpt_feeding_micro(global, l->replicas);
    int32_t micro;

    if (!dpt_layout_micro_is_open(l->job, l->graph))
        return dpt_layout_fixed_micro(l->job, l->graph);
    if (l->backend->steps != NULL)
        micro = auto_micro(global, l->replicas, micro_most != 0 ? micro_most : MICRO_DEVICE);
    else if (l->together)
        micro = auto_micro(global, l->replicas, DPT_MICRO_TEAM);
    else
        micro = auto_micro(global, l->all_threads, has_windows(l->graph) ? MICRO_CONV : MICRO_FLAT);
    /* An even partition may still leave a rank without any: 10 samples on 8 ranks are 5 times 2. */
    return micro > feeding && feeding > 0 ? (int32_t)feeding : micro;
}

/* --- how many micro-batches are computed at once ---------------------------------------------- */

/* Weights are read twice in a pass over a layer, and their gradient written and added: these take
 * as long as computing so many samples. 784-4096-4096-10 in micro-batches of 16, one or 8 at a
 * time, on one core per rank of an AMD EPYC 9004 (`dptrain bench`): 586 and 326 ms. */
enum { PASS_SAMPLES = 16 };

/* The most of so many micro-batches that one rank has, in groups of that size. */
static int64_t busiest(const struct dpt_layout *l, int64_t batches, int32_t group)
{
    const int64_t each = l->round_robin ? group : 1, all = each * l->replicas;

    return (batches + all - 1) / all * each;
}

/* The slowest stage's share of a model's arithmetic, and the most numbers that cross a cut. */
static double slowest_stage(const struct dpt_layout *l, int64_t *widest)
{
    const struct dpt_graph *graph = l->graph;
    double all = 0, slowest = 0;

    *widest = 1;
    for (int k = 0; k < l->stages; k++) {
        const int64_t crossing = dpt_shape_size(&graph->nodes[l->stage[k].first].in);
        double own = 0;

        for (int32_t i = l->stage[k].first; i < l->stage[k].last; i++)
            own += dpt_operation_flops(&graph->nodes[i]);
        all += own;
        slowest = own > slowest ? own : slowest;
        *widest = k > 0 && crossing > *widest ? crossing : *widest;
    }
    return all > 0 ? slowest / all : 1;
}

/*
 * With stages, the group size that makes a step shortest, if a pass over all weights takes as long
 * as computing PASS_SAMPLES samples. The slowest stage takes all groups, and waits until the others
 * have taken one: many small groups pass over the weights more often, few large ones wait longer.
 * It depends on the job and the mesh alone, and from DPT_MICRO_TEAM samples on not on how many
 * there are.
 */
static int32_t group_of_stages(const struct dpt_layout *l, int32_t micro, int64_t run)
{
    int64_t widest;
    const double slowest = slowest_stage(l, &widest);
    double shortest = INFINITY;
    int32_t chosen = 1;

    for (int32_t group = 1; group <= DPT_MOST_AT_ONCE && group < 2 * run; group *= 2) {
        const int64_t samples = (int64_t)group * micro, groups = (run + group - 1) / group;
        const double time = ((double)(groups - 1) * slowest + 1) * (double)(samples + PASS_SAMPLES);

        if (samples > DPT_MICRO_TEAM ||
            (size_t)(samples * widest) > DPT_MESSAGE_BYTES / sizeof(float))
            break;
        if (time < shortest) {
            shortest = time;
            chosen = group;
        }
    }
    return chosen;
}

int32_t dpt_layout_choose_at_once(const struct dpt_layout *l)
{
    const int32_t micro = l->micro;
    const int64_t batches = (l->job->batch.global + micro - 1) / micro;
    const int64_t run = busiest(l, batches, 1);
    int32_t group = 1;

    if (!l->together || l->on_device || !dpt_layout_along_tree(l))
        return 1;
    if (l->in_parts && l->backend->devices != NULL) /* it works on all at once */
        return 1;
    if (l->stages > 1)
        return group_of_stages(l, micro, run);
    while (group < run && 2 * group <= DPT_MOST_AT_ONCE && 2 * group * micro <= DPT_MICRO_TEAM)
        group *= 2;
    while (group > 1 && busiest(l, batches, group) > run + run / 8)
        group /= 2;
    return group;
}

int32_t dpt_layout_choose_adds(const struct dpt_layout *l)
{
    const int32_t micro = l->micro;
    const int64_t batches = (l->job->batch.global + micro - 1) / micro;
    const int64_t workers = l->gradient_workers > 1 ? l->gradient_workers : 1;
    const int32_t run = (int32_t)((busiest(l, batches, 1) + workers - 1) / workers);

    if (l->backend->adds == NULL || l->on_device || !l->trains || l->round_robin ||
        (workers > 1 && l->backend->devices != NULL) || l->each_gradient)
        return l->at_once;
    return run > l->at_once ? run : l->at_once;
}
