/* How a step's work is divided: into which rounds of micro-batches for which workers, and what the
 * planners make a list from. */
#include "core/train/step/engine.h"
#include "core/train/step/step.h"

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
        .round_robin = !infers && dpt_trainer_round_robin(t),
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

/* --- what planners get ------------------------------------------------------------------------ */

int32_t dpt_step_turn(const struct dpt_trainer *t)
{
    return dpt_trainer_round_robin(t) ? t->team.group * t->team.gradient_workers : 0;
}

bool dpt_step_infers_together(const struct dpt_trainer *t)
{
    return dpt_mesh_divides(&t->mesh) || t->units.gathers;
}

bool dpt_step_infers_as_team(const struct dpt_trainer *t)
{
    return dpt_trainer_in_parts(t) && (t->mesh.tensor > 1 || t->backend->devices != NULL);
}

int32_t dpt_step_in_flight(const struct dpt_trainer *t, int32_t micro)
{
    const int32_t rounds = dpt_step_most_rounds(t, micro);

    if (t->team.synchronized)
        return rounds;
    return t->mesh.stages == 1
               ? 1
               : dpt_step_schedule(t)->under_way(t->mesh.stages, t->mesh.stage, rounds);
}

const struct dpt_pipeline_schedule *dpt_step_schedule(const struct dpt_trainer *t)
{
    return &dpt_pipeline_schedules[t->job->parallel.pipeline.schedule];
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
        .round_robin = dpt_trainer_round_robin(t),
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
