/* The lists of actions of a plan's stages (core/train/layout/actions.h): what a rank sends by them
 * in a step and, run against each other, how long ranks compute and wait for each other. */
#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/plan/plan.h"
#include "core/train/layout/lists.h"

enum { WORD = sizeof(float) };

/* Lists are made of so many rounds at most, or of so many for each stage. If a step has more, each
 * further round costs what those of the list's second half do. */
enum { ROUNDS = 256, ROUNDS_A_STAGE = 4 };

/* A message between ranks of a node is written and read twice, through memory that they share; if
 * the memory was not measured, this is its rate. */
static const double passes = 4, memory_rate = 8e9;

/* --- a stage's list --------------------------------------------------------------------------- */

static enum dpt_status make_list(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                                 int32_t rounds, struct dpt_actions *list, struct dpt_error *err)
{
    const struct dpt_division division =
        dpt_layout_division(l, stage, l->by_messages, rounds, false);

    return dpt_actions_plan(&division, list, err);
}

/* Adds `times` times the sums of the rounds in the list's second half; half: the sums of its first
 * half. */
static void extend(double *sums, const double *half, int n, double times)
{
    for (int i = 0; i < n; i++)
        sums[i] += (sums[i] - half[i]) * times;
}

static int32_t listed_rounds(int stages, int32_t rounds)
{
    const int32_t most = stages * ROUNDS_A_STAGE > ROUNDS ? stages * ROUNDS_A_STAGE : ROUNDS;

    return rounds < most ? rounds : most;
}

/* --- what is sent ----------------------------------------------------------------------------- */

static void add_traffic(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                        const struct dpt_actions *list, struct dpt_plan_traffic *sum)
{
    *sum = (struct dpt_plan_traffic){0};
    for (int32_t i = 0; i < list->n; i++) {
        const struct dpt_action *a = &list->at[i];
        const double bytes = dpt_action_types[a->kind].bytes(l, stage, a);

        sum->kind[a->kind] += bytes;
        if (a->kind == DPT_ACTION_SEND && !a->back)
            sum->to_next += bytes;
        if (a->kind == DPT_ACTION_EXCHANGE) {
            sum->exchanges++;
            sum->largest_exchange = fmax(sum->largest_exchange, bytes);
        }
    }
    sum->in_flight = dpt_actions_in_flight(list);
}

enum dpt_status dpt_plan_read_list(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                                   struct dpt_plan_traffic *traffic, struct dpt_error *err)
{
    enum { N = sizeof *traffic / sizeof(double) };
    enum dpt_status status = DPT_OK;
    const int32_t rounds = dpt_layout_most_rounds(l), most = listed_rounds(l->stages, rounds);
    struct dpt_plan_traffic half;
    struct dpt_actions list = {0};

    DPT_TRY(make_list(l, stage, most, &list, err));
    add_traffic(l, stage, &list, traffic);
    if (rounds > most) {
        dpt_actions_release(&list);
        DPT_TRY(make_list(l, stage, most / 2, &list, err));
        add_traffic(l, stage, &list, &half);
        extend((double *)traffic, (double *)&half, N, (double)(rounds - most) / (most - most / 2));
    }
out:
    dpt_actions_release(&list);
    return status;
}

/* --- messages -------------------------------------------------------------------------------- */

bool dpt_plan_link_crosses(const struct dpt_plan *p, int replicas, int stage)
{
    for (int r = stage * replicas; r < (stage + 1) * replicas; r++)
        if (r / p->spec.node_ranks != (r + replicas) / p->spec.node_ranks)
            return true;
    return false;
}

double dpt_plan_copy_seconds(const struct dpt_plan *p, double bytes)
{
    const double rate =
        p->machine.flops > 0 ? dpt_machine_bandwidth(&p->machine, bytes) : memory_rate;

    return passes / 2 * bytes / rate;
}

/* --- seconds ---------------------------------------------------------------------------------- */

/* What a rank's seconds are spent on and, after that, how many of its actions were collective. */
enum { COMPUTE, MESSAGES, COLLECTIVES, ENDS, CALLS, SUMS };

/* A rank of a stage on its way through its list. */
struct walker {
    double sum[SUMS]; /* ENDS: the time, since the step's begin */
    double *cost;     /* [unit][back]: seconds of a round's pass; -1: not known yet */
    double *sent[2];  /* [back][round]: when it has sent */
};

/* The ranks of one model on their way through a step. */
struct walk {
    const struct dpt_plan *p;
    const struct dpt_layout *layout;
    const struct dpt_plan_pace *pace;
    bool messages; /* they take time */
    int32_t rounds;
    struct dpt_lists lists;
    struct walker *stage; /* [stages] */
    double *room;         /* memory of their arrays */
};

/* The seconds of a message between a stage and the next: those in which the CPU, or a device that
 * sends it by itself, is busy with it, and those on the way. */
static double message_seconds(const struct walk *w, int link, bool sends, double bytes,
                              double *away)
{
    const struct dpt_fabric *f = &w->p->spec.fabric;
    const bool crosses = dpt_plan_link_crosses(w->p, w->pace->replicas, link);

    *away = 0;
    if (w->messages && w->layout->on_device) /* while it sends, a device computes nothing */
        return sends ? dpt_plan_gpu_message(w->p, w->layout, crosses, bytes) : 0;
    *away = w->messages && crosses ? f->latency + bytes / f->bandwidth : 0;
    if (!w->messages)
        return 0;
    return (crosses ? f->overhead : dpt_plan_copy_seconds(w->p, bytes)) * w->pace->slower;
}

/* The seconds between nodes of what is collective; on a node they are the reduction's. */
static double collective_seconds(const struct walk *w, const struct dpt_action *a, double bytes)
{
    const struct dpt_plan_pace *pace = w->pace;
    const struct dpt_fabric *f = &w->p->spec.fabric;
    const double replicas = pace->replicas, nodes = pace->nodes, floats = bytes / WORD;

    if (pace->nodes == 1)
        return 0;
    if (a->kind == DPT_ACTION_GATHER)
        return dpt_fabric_slices(f, floats * w->layout->node_replicas * nodes / (nodes - 1),
                                 pace->nodes, 0);
    if (dpt_action_types[a->kind].over == DPT_OVER_EVERYBODY)
        return dpt_fabric_allreduce(f, floats, pace->replicas, pace->add);
    /* A rank sends all but what is its own; there and back would be an allreduce. */
    return dpt_fabric_slices(f, floats * replicas / (replicas - 1), pace->replicas, pace->add);
}

/* The seconds of a round's pass through the action's nodes. */
static double pass_seconds(const struct walk *w, const struct walker *s, const struct dpt_action *a,
                           int computes)
{
    double *cost = &s->cost[2 * a->unit + a->back];

    if (*cost < 0)
        *cost =
            w->pace->seconds(w->p, a->first > 0 ? a->first : 1, a->last, w->pace->micro, computes) *
            w->pace->slower;
    return *cost;
}

/* Counts the seconds of a stage's action, whose row says what they depend on. */
static void count(void *arg, int k, const struct dpt_action *a)
{
    const struct walk *w = arg;
    struct walker *s = &w->stage[k];
    const struct dpt_action_type *type = &dpt_action_types[a->kind];
    const double bytes = type->bytes(w->layout, &w->layout->stage[k], a);
    const bool sends = a->kind == DPT_ACTION_SEND, to_next = sends != a->back;
    double took = 0, away = 0;
    int what = MESSAGES;

    if (type->over == DPT_OVER_STAGES)
        took = message_seconds(w, to_next ? k : k - 1, sends, bytes, &away);
    if (type->over == DPT_OVER_STAGES && !sends) {
        const double sent = w->stage[to_next ? k + 1 : k - 1].sent[a->back][a->round];

        /* A large message is on its way once its receiver asks for it (MPI's rendezvous). */
        s->sum[ENDS] = fmax(s->sum[ENDS], sent) + away;
    } else if (type->over != DPT_OVER_NOBODY && !sends) {
        took = collective_seconds(w, a, bytes);
        s->sum[CALLS]++;
        what = COLLECTIVES;
    } else if (type->computes != 0) {
        took = a->rounds * pass_seconds(w, s, a, type->computes);
        what = COMPUTE;
    }
    s->sum[what] += took;
    s->sum[ENDS] += took;
    if (sends)
        s->sent[a->back][a->round] = s->sum[ENDS];
}

static struct dpt_division division_of(void *arg, int stage, int replica)
{
    const struct walk *w = arg;

    (void)replica;
    return dpt_layout_division(w->layout, &w->layout->stage[stage], w->layout->by_messages,
                               w->rounds, false);
}

/* One replica stands for all, since all do the same. */
static enum dpt_status open_walk(struct walk *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int stages = w->layout->stages;
    size_t n = 0;
    double *at;

    DPT_TRY(dpt_lists_open(&w->lists, stages, 1, division_of, w, err));
    DPT_TRY(DPT_ALLOCATE(w->stage, (size_t)stages, "a step's actions", err));
    for (int k = 0; k < stages; k++)
        n += 2 * (size_t)(w->layout->stage[k].units + w->rounds);
    DPT_TRY(DPT_ALLOCATE(w->room, n, "a step's actions", err));
    for (size_t i = 0; i < n; i++)
        w->room[i] = -1;
    at = w->room;
    for (int k = 0; k < stages; k++) {
        struct walker *s = &w->stage[k];

        s->cost = at;
        s->sent[0] = s->cost + 2 * w->layout->stage[k].units;
        s->sent[1] = s->sent[0] + w->rounds;
        at = s->sent[1] + w->rounds;
    }
out:
    return status;
}

/* Runs the lists of that many rounds. sum: out, of the stage that computes longest; the step ends
 * when the last stage does. */
static enum dpt_status run(const struct dpt_plan *p, const struct dpt_layout *l,
                           const struct dpt_plan_pace *pace, int32_t rounds, bool messages,
                           double sum[SUMS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct walk w = {.p = p, .layout = l, .pace = pace, .messages = messages, .rounds = rounds};
    double ends = 0;

    DPT_TRY(open_walk(&w, err));
    DPT_TRY(dpt_lists_run(&w.lists, count, &w, NULL, err));
    for (int i = 0; i < SUMS; i++)
        sum[i] = 0;
    for (int k = 0; k < l->stages; k++) {
        const struct walker *s = &w.stage[k];

        ends = fmax(ends, s->sum[ENDS]);
        for (int i = 0; k == 0 || s->sum[COMPUTE] > sum[COMPUTE] ? i < SUMS : false; i++)
            sum[i] = s->sum[i];
    }
    sum[ENDS] = ends;
out:
    dpt_lists_close(&w.lists);
    dpt_free(w.stage);
    dpt_free(w.room);
    return status;
}

/* Runs lists of any number of rounds. */
static enum dpt_status run_all(const struct dpt_plan *p, const struct dpt_layout *l,
                               const struct dpt_plan_pace *pace, int32_t rounds, bool messages,
                               double sum[SUMS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t most = listed_rounds(l->stages, rounds);
    double half[SUMS];

    DPT_TRY(run(p, l, pace, most, messages, sum, err));
    if (rounds > most) {
        DPT_TRY(run(p, l, pace, most / 2, messages, half, err));
        extend(sum, half, SUMS, (double)(rounds - most) / (most - most / 2));
    }
out:
    return status;
}

enum dpt_status dpt_plan_run_lists(const struct dpt_plan *p, const struct dpt_layout *l,
                                   const struct dpt_plan_pace *pace, int32_t rounds,
                                   struct dpt_plan_step *step, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double sum[SUMS], silent[SUMS];

    DPT_TRY(run_all(p, l, pace, rounds, true, sum, err));
    memcpy(silent, sum, sizeof silent);
    if (sum[MESSAGES] > 0)
        DPT_TRY(run_all(p, l, pace, rounds, false, silent, err));
    step->compute = sum[COMPUTE];
    step->wait = fmax(0, silent[ENDS] - silent[COMPUTE] - silent[COLLECTIVES]);
    step->between = fmax(0, sum[ENDS] - silent[ENDS]);
    step->network = sum[COLLECTIVES];
    step->meetings = sum[CALLS];
out:
    return status;
}

/* --- the bubble ------------------------------------------------------------------------------- */

/* Stages that take equally long, backward twice as long as forward. */
static double even_seconds(const struct dpt_plan *p, int32_t first, int32_t last, int32_t micro,
                           int computes)
{
    const struct dpt_layout_stage *stage = p->layout.stage;

    (void)micro;
    while (stage->last <= first)
        stage++;
    return (double)(last - first) / (stage->last - (stage->first > 0 ? stage->first : 1)) *
           ((computes & DPT_COMPUTES_FORWARD ? 1 : 0) + (computes & DPT_COMPUTES_BACK ? 2 : 0));
}

enum dpt_status dpt_plan_find_bubble(struct dpt_plan *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_plan_pace even = {
        .seconds = even_seconds, .slower = 1, .replicas = 1, .nodes = 1};
    double sum[SUMS];

    DPT_TRY(run_all(p, &p->layout, &even, dpt_layout_most_rounds(&p->layout), false, sum, err));
    p->bubble = fmax(0, 1 - sum[COMPUTE] / sum[ENDS]);
out:
    return status;
}
