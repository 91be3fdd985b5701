/* How a step's work is divided: into which rounds of micro-batches for which workers, and what the
 * planners make a list from. */
#include <limits.h>
#include <math.h>

#include "core/backend/operation.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/step/engine.h"
#include "core/train/step/step.h"

/* Whether the ranks take micro-batches in turn, so that nobody keeps more of a step's gradient than
 * its own part. */
static bool in_turn(const struct dpt_trainer *t)
{
    return dpt_trainer_owners(t) > 1 && t->job->parallel.shard >= DPT_SHARD_GRADIENTS;
}

/* --- who takes which micro-batch -------------------------------------------------------------- */

/* How many micro-batches a team computes at once from i on. */
static int32_t group_at(const struct dpt_step_share *s, int32_t i)
{
    return dpt_step_group(s->group, s->all, i, s->last);
}

static int32_t count_groups(const struct dpt_step_share *s)
{
    int32_t n = 0;

    for (int32_t i = s->first; i < s->last; i += group_at(s, i))
        n++;
    return n;
}

/* A team's round-th group of the rank's run. */
static int32_t take_group(const struct dpt_step_share *s, int32_t round, int32_t *n)
{
    int32_t i = s->first;

    while (round-- > 0 && i < s->last)
        i += group_at(s, i);
    *n = i < s->last ? group_at(s, i) : 0;
    return *n > 0 ? i : -1;
}

/* The rounds of all workers of all ranks go through the step's micro-batches in turn. */
static int32_t take_in_turn(const struct dpt_step_share *s, int worker, int32_t round, int32_t *n)
{
    const int64_t first =
        (((int64_t)round * s->ranks.size + s->ranks.rank) * s->workers + worker) * s->group;
    const int32_t begin = first < s->all ? (int32_t)first : s->all;

    *n = s->all - begin < s->group ? s->all - begin : s->group;
    return *n > 0 ? begin : -1;
}

int32_t dpt_step_take(const struct dpt_step_share *s, int worker, int32_t round, int32_t *n)
{
    int32_t begin, end;

    if (s->round_robin)
        return take_in_turn(s, worker, round, n);
    if (s->group > 1)
        return take_group(s, round, n);
    dpt_step_run(s->first, s->last, worker, s->workers, &begin, &end);
    *n = 1;
    if (round >= end - begin)
        return -1;
    return dpt_sampler_nth(s->sampler, s->ranks.size, s->first, begin + round - s->first);
}

bool dpt_step_run_of(const struct dpt_step_share *s, int rank, int32_t k, int32_t *first,
                     int32_t *last)
{
    const int64_t turn = (int64_t)s->workers * s->group,
                  begin = (k * (int64_t)s->ranks.size + rank) * turn;

    if (!s->round_robin) {
        dpt_sampler_partition(s->sampler, s->step, rank, s->ranks.size, first, last);
        return k == 0 && *first < *last;
    }
    *first = begin < s->all ? (int32_t)begin : s->all;
    *last = begin + turn < s->all ? (int32_t)(begin + turn) : s->all;
    return *first < *last;
}

/* How a rank shares a step's micro-batches. sampler: of a split, or of what a trainer is to
 * have. */
static struct dpt_step_share share_of(const struct dpt_trainer *t,
                                      const struct dpt_sampler *sampler, int64_t step, int rank,
                                      bool infers)
{
    struct dpt_step_share s = {
        .sampler = sampler,
        .ranks = {.rank = rank, .size = dpt_trainer_replicas(t)->world.size},
        .workers = !infers                      ? t->team.gradient_workers
                   : dpt_step_infers_as_team(t) ? 1
                                                : t->team.threads,
        .group = infers ? 1 : t->team.group,
        .round_robin = !infers && in_turn(t),
        .step = step,
        .samples = dpt_sampler_count(sampler, step),
        .all = dpt_sampler_micro_batches(sampler, step),
    };

    dpt_sampler_partition(sampler, step, rank, s.ranks.size, &s.first, &s.last);
    return s;
}

struct dpt_step_share dpt_step_share_of(const struct dpt_trainer *t, const struct dpt_split *split,
                                        int64_t step, bool infers)
{
    return share_of(t, &split->sampler, step, dpt_trainer_replicas(t)->world.rank, infers);
}

/* How many rounds a rank's busiest worker has. */
static int32_t count_rounds(const struct dpt_step_share *s)
{
    const int64_t turn = (int64_t)s->ranks.size * s->workers * s->group;

    if (s->round_robin)
        return (int32_t)((s->all + turn - 1) / turn);
    if (s->group > 1)
        return count_groups(s);
    return (s->last - s->first + s->workers - 1) / s->workers;
}

/* The most rounds that any replica has. */
static int32_t count_most(const struct dpt_trainer *t, const struct dpt_sampler *sampler,
                          int64_t step, bool infers)
{
    int32_t most = 0;

    for (int r = 0; r < dpt_trainer_replicas(t)->world.size; r++) {
        const struct dpt_step_share s = share_of(t, sampler, step, r, infers);
        const int32_t n = count_rounds(&s);

        most = n > most ? n : most;
    }
    return most;
}

int32_t dpt_step_rounds(const struct dpt_trainer *t, const struct dpt_step_share *s, bool infers)
{
    /* In an evaluation of units all replicas gather their weights. */
    return infers && t->units.sliced ? count_most(t, s->sampler, s->step, true) : count_rounds(s);
}

int32_t dpt_step_most_rounds(const struct dpt_trainer *t, int32_t micro)
{
    struct dpt_sampler s = t->data.train.sampler;
    int64_t steps;
    int32_t most = 1;

    s.micro = micro;
    s.global = (int32_t)t->job->batch.global;
    s.drop_last = t->job->data.drop_last;
    steps = dpt_sampler_steps(&s);
    for (int64_t step = 0; step<steps; step += steps> 1 && step == 0 ? steps - 1 : 1) {
        const int32_t n = count_most(t, &s, step, false); /* the last step may be short */

        most = n > most ? n : most;
    }
    return most;
}

/* --- how many micro-batches are computed at once ---------------------------------------------- */

/* Weights are read twice in a pass over a layer, and their gradient written and added: as long as
 * computing so many samples. 784-4096-4096-10 in micro-batches of 16, one at a time or 8, on a core
 * each of an AMD EPYC 9004 (`dptrain bench`): 586 and 326 ms. */
enum { PASS_SAMPLES = 16 };

/* The most micro-batches that a rank has of so many in groups of that size. */
static int64_t busiest(const struct dpt_trainer *t, int64_t batches, int32_t group)
{
    const int64_t turn = (int64_t)dpt_trainer_replicas(t)->world.size * (in_turn(t) ? group : 1);

    return (batches + turn - 1) / turn * (in_turn(t) ? group : 1);
}

/* What the slowest stage computes of a model, and the most numbers that cross a cut. */
static double slowest_stage(const struct dpt_trainer *t, int64_t *widest)
{
    const struct dpt_graph *graph = &t->model.graph;
    double all = 0, slowest = 0;

    *widest = 1;
    for (int k = 0; k < t->mesh.stages; k++) {
        const int64_t crossing = dpt_shape_size(&graph->nodes[t->mesh.first[k]].in);
        double own = 0;

        for (int32_t i = t->mesh.first[k]; i < t->mesh.first[k + 1]; i++)
            own += dpt_operation_flops(&graph->nodes[i]);
        all += own;
        slowest = own > slowest ? own : slowest;
        *widest = k > 0 && crossing > *widest ? crossing : *widest;
    }
    return all > 0 ? slowest / all : 1;
}

/*
 * In stages, the group with which a step is shortest, if to pass over all weights takes as long as
 * to compute PASS_SAMPLES samples. The slowest stage takes all groups, and waits until the others
 * have taken one: many small groups pass over the weights more often, few large ones wait longer.
 * It hangs on the job and the mesh alone, and from DPT_MICRO_TEAM samples on not on how many there
 * are.
 */
static int32_t group_of_stages(const struct dpt_trainer *t, int32_t micro, int64_t run)
{
    int64_t widest;
    const double slowest = slowest_stage(t, &widest);
    double shortest = INFINITY;
    int32_t chosen = 1;

    for (int32_t group = 1; group <= DPT_GROUP_MOST && group < 2 * run; group *= 2) {
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

int32_t dpt_step_choose_group(const struct dpt_trainer *t, int32_t micro)
{
    const int64_t batches = (t->job->batch.global + micro - 1) / micro;
    const int64_t run = busiest(t, batches, 1);
    int32_t group = 1;

    if (!t->team.together || t->job->comm.reduction != DPT_REDUCTION_REPRODUCIBLE)
        return 1;
    if (dpt_trainer_in_parts(t) && t->backend->devices != NULL) /* it works on all at once */
        return 1;
    if (t->mesh.stages > 1)
        return group_of_stages(t, micro, run);
    while (group < run && 2 * group <= DPT_GROUP_MOST && 2 * group * micro <= DPT_MICRO_TEAM)
        group *= 2;
    while (group > 1 && busiest(t, batches, group) > run + run / 8)
        group /= 2;
    return group;
}

int32_t dpt_step_choose_adds(const struct dpt_trainer *t, int32_t micro)
{
    const int64_t batches = (t->job->batch.global + micro - 1) / micro;
    const int64_t workers = t->team.gradient_workers > 1 ? t->team.gradient_workers : 1;
    const int32_t run = (int32_t)((busiest(t, batches, 1) + workers - 1) / workers);

    if (t->backend->adds == NULL || t->engine->on_device || !t->data.train.present || in_turn(t) ||
        (workers > 1 && t->backend->devices != NULL) || dpt_fault_strikes_gradients(&t->fault))
        return t->team.group;
    return run > t->team.group ? run : t->team.group;
}

/* --- what planners get ------------------------------------------------------------------------ */

int32_t dpt_step_turn(const struct dpt_trainer *t)
{
    return in_turn(t) ? t->team.group * t->team.gradient_workers : 0;
}

bool dpt_step_takes_all(const struct dpt_trainer *t)
{
    return dpt_trainer_model_ranks(t) > 1 || in_turn(t);
}

int dpt_step_most_workers(const struct dpt_trainer *t)
{
    return t->mesh.tensor > 1 && !t->team.together ? 1 : INT_MAX;
}

bool dpt_step_infers_as_team(const struct dpt_trainer *t)
{
    return dpt_trainer_in_parts(t) && (t->mesh.tensor > 1 || t->backend->devices != NULL);
}

int32_t dpt_step_in_flight(const struct dpt_trainer *t, int32_t micro)
{
    const int32_t rounds = dpt_step_most_rounds(t, micro);

    return t->team.synchronized
               ? rounds
               : dpt_step_schedule(t)->under_way(t->mesh.stages, t->mesh.stage, rounds);
}

const struct dpt_pipeline_schedule *dpt_step_schedule(const struct dpt_trainer *t)
{
    return &dpt_pipeline_schedules[t->mesh.stages == 1 ? DPT_PIPELINE_1F1B
                                                       : t->job->parallel.pipeline.schedule];
}

struct dpt_division dpt_step_division(const struct dpt_trainer *t, int32_t rounds, bool infers)
{
    return (struct dpt_division){
        .schedule = dpt_step_schedule(t),
        .stages = t->mesh.stages,
        .stage = t->mesh.stage,
        .units = t->units.n,
        .node = t->units.node,
        .rounds = rounds,
        .infers = infers,
        .in_passes = dpt_trainer_in_parts(t),
        .gathers = t->units.gathers,
        .round_robin = in_turn(t),
        .synchronized = t->team.synchronized,
    };
}

enum dpt_status dpt_step_list(const struct dpt_trainer *t, struct dpt_actions *list,
                              int32_t *rounds, struct dpt_error *err)
{
    const struct dpt_step_share share = dpt_step_share_of(t, &t->data.train, 0, false);
    struct dpt_division division;

    *rounds = dpt_step_rounds(t, &share, false);
    division = dpt_step_division(t, *rounds, false);
    return dpt_actions_plan(&division, list, err);
}
