#include "core/train/layout/lists.h"

#include <stdio.h>

#include "core/base/memory.h"

/* The progress of one rank. */
struct dpt_lists_rank {
    struct dpt_division division;
    struct dpt_actions list;
    int32_t at;                   /* its next action */
    int32_t in_flight;            /* places for micro-batches, per worker */
    int32_t *forward, *back;      /* [rounds]: units that a round has been through */
    bool *added;                  /* [rounds][units + 1]: units, and what follows them */
    bool *handed;                 /* [rounds]: STATE */
    int32_t *place;               /* [in_flight]: round + 1; 0: it is free */
    int32_t (*pending)[2];        /* [in_flight]: round + 1 that was last sent from it, [back] */
    int32_t gathered;             /* unit + 1 whose weights are there */
    int32_t sent[2], received[2]; /* rounds, [back] */
    int32_t exchanges;
};

static struct dpt_lists_rank *rank_at(const struct dpt_lists *l, int stage, int replica)
{
    return &l->rank[stage * l->replicas + replica];
}

const struct dpt_actions *dpt_lists_of(const struct dpt_lists *l, int stage, int replica)
{
    return &rank_at(l, stage, replica)->list;
}

static enum dpt_status open_rank(struct dpt_lists_rank *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t rounds = (size_t)r->division.rounds + 1;
    size_t places;

    DPT_TRY(dpt_actions_plan(&r->division, &r->list, err));
    r->in_flight = dpt_actions_in_flight(&r->list);
    places = (size_t)(r->in_flight > r->division.rounds ? r->in_flight : r->division.rounds) + 1;
    DPT_TRY(DPT_ALLOCATE(r->forward, rounds, "a step's actions", err));
    DPT_TRY(DPT_ALLOCATE(r->back, rounds, "a step's actions", err));
    DPT_TRY(
        DPT_ALLOCATE(r->added, rounds * (size_t)(r->division.units + 1), "a step's actions", err));
    DPT_TRY(DPT_ALLOCATE(r->handed, rounds, "a step's actions", err));
    DPT_TRY(DPT_ALLOCATE(r->place, places, "a step's actions", err));
    DPT_TRY(DPT_ALLOCATE(r->pending, places, "a step's actions", err));
out:
    return status;
}

enum dpt_status dpt_lists_open(struct dpt_lists *l, int stages, int replicas,
                               struct dpt_division (*of)(void *arg, int stage, int replica),
                               void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *l = (struct dpt_lists){.stages = stages, .replicas = replicas};
    DPT_TRY(DPT_ALLOCATE(l->rank, (size_t)(stages * replicas), "a step's actions", err));
    for (int s = 0; s < stages; s++)
        for (int r = 0; r < replicas; r++) {
            rank_at(l, s, r)->division = of(arg, s, r);
            DPT_TRY(open_rank(rank_at(l, s, r), err));
        }
out:
    return status;
}

void dpt_lists_close(struct dpt_lists *l)
{
    for (int i = 0; l->rank != NULL && i < l->stages * l->replicas; i++) {
        struct dpt_lists_rank *r = &l->rank[i];

        dpt_actions_release(&r->list);
        dpt_free(r->forward);
        dpt_free(r->back);
        dpt_free(r->added);
        dpt_free(r->handed);
        dpt_free(r->place);
        dpt_free(r->pending);
    }
    dpt_free(l->rank);
    *l = (struct dpt_lists){0};
}

/* --- the rules: each gives NULL or what is wrong ---------------------------------------------- */

static const char *go_forward(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    for (int32_t k = 0; k < a->rounds; k++) {
        const int32_t round = a->round + k, flight = a->flight + k;

        if (flight >= r->in_flight)
            return "it has more micro-batches in flight than the list says";
        if (a->unit == 0 && r->place[flight] != 0)
            return "its place in flight still holds another round";
        if (a->unit == 0)
            r->place[flight] = round + 1;
        if (r->place[flight] != round + 1)
            return "its place in flight holds another round";
        if (r->forward[round]++ != a->unit)
            return "the round has not been through the unit before";
        if (r->division.infers && a->unit == r->division.units - 1)
            r->place[flight] = 0;
    }
    return NULL;
}

static const char *go_back(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    for (int32_t k = 0; k < a->rounds; k++) {
        const int32_t round = a->round + k, flight = a->flight + k, units = r->division.units;

        if (r->place[flight] != round + 1)
            return "its place in flight holds another round";
        if (r->forward[round] != units)
            return "the round has not gone forward through all units";
        if (a->unit != units - 1 - r->back[round]++)
            return "the round has not been back through the unit after";
        if (a->unit == 0)
            r->place[flight] = 0;
    }
    return NULL;
}

/* The whole model at once: the rounds count as having been through each unit. */
static const char *go_whole(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    for (int32_t k = a->round; k < a->round + a->rounds; k++) {
        if (r->forward[k] != 0)
            return "the round has gone forward already";
        r->forward[k] = r->division.units;
        r->back[k] = a->kind == DPT_ACTION_TRAIN ? r->division.units : 0;
    }
    return NULL;
}

static const char *check_nodes(const struct dpt_lists_rank *r, const struct dpt_action *a)
{
    const int32_t *node = &r->division.node[a->unit];
    const bool past = r->division.synchronized && a->back; /* from a norm's readers to the next */

    if (a->first != node[0] + (past && a->unit > 0) ||
        a->last != node[1] + (past && a->unit < r->division.units - 1))
        return "its nodes are not the unit's";
    if (r->division.gathers ? r->gathered != a->unit + 1 : r->gathered != 0)
        return "the unit's weights are not there";
    return NULL;
}

static bool *was_added(const struct dpt_lists_rank *r, int32_t round, int32_t unit)
{
    return &r->added[round * (r->division.units + 1) + unit];
}

/* A unit's gradient is added after its pass; what follows the units is added after it was handed
 * over. */
static const char *add(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    const int32_t units = r->division.units, back = r->back[a->round];

    if (a->unit < units ? back < units - a->unit : !r->handed[a->round] && back != units)
        return "the round has not computed that gradient yet";
    if (*was_added(r, a->round, a->unit))
        return "the gradient was added before";
    *was_added(r, a->round, a->unit) = true;
    return NULL;
}

static const char *gather(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    if (r->gathered != 0) /* one unit's weights are there at a time */
        return "another unit's weights are there";
    r->gathered = a->unit + 1;
    return NULL;
}

static const char *release(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    if (r->gathered != a->unit + 1)
        return "the unit's weights are not there";
    r->gathered = 0;
    return NULL;
}

static const char *state(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    for (int32_t k = a->round; k < a->round + a->rounds; k++)
        r->handed[k] = true;
    return NULL;
}

static const char *pass(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    const char *wrong = check_nodes(r, a);

    return wrong != NULL ? wrong : a->back ? go_back(r, a) : go_forward(r, a);
}

static const char *send(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    if (r->sent[a->back]++ != a->round)
        return "the round before was not sent";
    r->pending[a->flight][a->back] = a->round + 1;
    return NULL;
}

static const char *receive(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    return r->received[a->back]++ != a->round ? "the round before was not received" : NULL;
}

static const char *exchange(struct dpt_lists_rank *r, const struct dpt_action *a)
{
    (void)a;
    r->exchanges++;
    return NULL;
}

/* A row for each kind: its letter in the grid, its rule. */
static const struct {
    char letter;
    const char *(*rule)(struct dpt_lists_rank *r, const struct dpt_action *a);
} kinds[DPT_ACTION_KINDS] = {
    [DPT_ACTION_TRAIN] = {'T', go_whole},    [DPT_ACTION_INFER] = {'I', go_whole},
    [DPT_ACTION_FORWARD] = {'F', pass},      [DPT_ACTION_BACKWARD] = {'B', pass},
    [DPT_ACTION_STATE] = {'S', state},       [DPT_ACTION_RECEIVE] = {'r', receive},
    [DPT_ACTION_SEND] = {'s', send},         [DPT_ACTION_GATHER] = {'g', gather},
    [DPT_ACTION_RELEASE] = {'f', release},   [DPT_ACTION_ADD] = {'a', add},
    [DPT_ACTION_EXCHANGE] = {'x', exchange},
};

/* The rules at the end of a rank's list. */
static const char *check_end(const struct dpt_lists *l, const struct dpt_lists_rank *r)
{
    const struct dpt_division *d = &r->division;
    const int32_t all = d->infers ? 0 : d->units;
    const bool passes = d->in_passes && !d->synchronized;

    if (r->gathered != 0)
        return "a unit's weights are still there";
    for (int32_t k = 0; k < d->rounds; k++)
        if (r->forward[k] != d->units || r->back[k] != all)
            return "a round has not been through all units";
        else if (d->synchronized && !d->infers && !r->handed[k])
            return "a round's statistics were not handed over";
    for (int32_t k = 0; k < d->rounds * (d->units + 1); k++)
        if (r->added[k] != (d->round_robin && !d->infers))
            return "a round's gradient was not added once";
    for (int32_t k = 0; k < r->in_flight; k++)
        if (r->place[k] != 0)
            return "a place in flight is not free";
    if (d->synchronized && !d->infers && r->exchanges != 2 * (d->units - 1))
        return "not each norm was exchanged twice";
    for (int back = 0; passes && back < 2; back++) {
        const int32_t messages = back && d->infers ? 0 : d->rounds;
        const bool to_next = d->stage + 1 != l->stages;
        const bool from_last = d->stage != 0;

        if (r->sent[back] != ((back ? from_last : to_next) ? messages : 0) ||
            r->received[back] != ((back ? to_next : from_last) ? messages : 0))
            return "not each round was sent on and received";
    }
    if (passes && !d->infers && d->rounds > 0 &&
        r->in_flight > dpt_pipeline_in_flight(d->schedule, d->stages, d->stage, d->rounds))
        return "it has more micro-batches in flight than its schedule allows";
    return NULL;
}

/* --- running ---------------------------------------------------------------------------------- */

/* The arguments of dpt_lists_run. */
struct course {
    struct dpt_lists *l;
    void (*done)(void *arg, int stage, const struct dpt_action *action);
    void *arg;
    const char *wrong; /* the first failure; NULL: there is none */
    int stage, replica;
};

static void take(struct course *c, int stage, int replica)
{
    struct dpt_lists_rank *r = rank_at(c->l, stage, replica);
    const struct dpt_action *a = &r->list.at[r->at];
    const char *wrong = kinds[a->kind].rule(r, a);

    if (wrong != NULL && c->wrong == NULL) {
        c->wrong = wrong;
        c->stage = stage;
        c->replica = replica;
        return;
    }
    if (c->done != NULL && replica == 0)
        c->done(c->arg, stage, a);
    r->at++;
}

/* Whether the message sent from a place in flight has been received. The runner waits for that
 * before it uses the place again. */
static bool has_arrived(const struct dpt_lists *l, int stage, int replica, int32_t flight)
{
    const int32_t *pending = rank_at(l, stage, replica)->pending[flight];

    return (pending[0] == 0 || rank_at(l, stage + 1, replica)->received[0] >= pending[0]) &&
           (pending[1] == 0 || rank_at(l, stage - 1, replica)->received[1] >= pending[1]);
}

/* Whether all replicas of a stage take part in it. */
static bool is_collective(const struct dpt_action *a)
{
    return dpt_action_types[a->kind].over >= DPT_OVER_REPLICAS;
}

/* Whether a rank can take its next action by itself. */
static bool is_ready(const struct dpt_lists *l, int stage, int replica)
{
    const struct dpt_lists_rank *r = rank_at(l, stage, replica);
    const struct dpt_action *a = &r->list.at[r->at];

    if (r->at == r->list.n || is_collective(a) || !has_arrived(l, stage, replica, a->flight))
        return false;
    return a->kind != DPT_ACTION_RECEIVE ||
           rank_at(l, stage + (a->back ? 1 : -1), replica)->sent[a->back] > a->round;
}

/* Takes a collective action on all replicas of a stage, once they all stand at one. */
static bool take_together(struct course *c, int stage)
{
    const struct dpt_lists_rank *first = rank_at(c->l, stage, 0);
    const struct dpt_action *a = &first->list.at[first->at];

    for (int k = 0; k < c->l->replicas; k++) {
        const struct dpt_lists_rank *r = rank_at(c->l, stage, k);
        const struct dpt_action *own = &r->list.at[r->at];

        if (r->at == r->list.n || !is_collective(own))
            return false;
        if (a->kind != own->kind || a->back != own->back || a->round != own->round ||
            a->unit != own->unit) {
            c->wrong = "the replicas of its stage stand at another collective action";
            c->stage = stage;
            c->replica = k;
            return false;
        }
    }
    for (int k = 0; k < c->l->replicas; k++)
        take(c, stage, k);
    c->l->collective++;
    return true;
}

/* Reports a rank that has not reached the end of its list, or has broken a rule at the end. */
static void check_ends(struct course *c)
{
    for (c->stage = 0; c->stage < c->l->stages; c->stage++)
        for (c->replica = 0; c->replica < c->l->replicas; c->replica++) {
            const struct dpt_lists_rank *r = rank_at(c->l, c->stage, c->replica);

            c->wrong = r->at < r->list.n ? "it waits for ever" : check_end(c->l, r);
            if (c->wrong != NULL)
                return;
        }
}

static void print_grid(const struct dpt_lists *l, struct dpt_str *grid)
{
    for (int s = 0; s < l->stages; s++)
        for (int k = 0; k < l->replicas; k++) {
            const struct dpt_lists_rank *r = rank_at(l, s, k);

            dpt_str_printf(grid, "stage %d replica %d:", s + 1, k + 1);
            for (int32_t i = 0; i < r->at; i++)
                dpt_str_printf(grid, " %c%d", kinds[r->list.at[i].kind].letter,
                               r->list.at[i].round);
            dpt_str_printf(grid, r->at < r->list.n ? " !\n" : "\n");
        }
}

enum dpt_status dpt_lists_run(struct dpt_lists *l,
                              void (*done)(void *arg, int stage, const struct dpt_action *action),
                              void *arg, struct dpt_str *grid, struct dpt_error *err)
{
    struct course c = {.l = l, .done = done, .arg = arg};
    const struct dpt_lists_rank *r;
    bool moves = true;

    while (moves && c.wrong == NULL) {
        moves = false;
        for (int s = 0; s < l->stages && c.wrong == NULL; s++) {
            for (int k = 0; k < l->replicas; k++)
                while (c.wrong == NULL && is_ready(l, s, k)) {
                    take(&c, s, k);
                    moves = true;
                }
            moves = (c.wrong == NULL && take_together(&c, s)) || moves;
        }
    }
    if (c.wrong == NULL)
        check_ends(&c);
    if (grid != NULL)
        print_grid(l, grid);
    if (c.wrong == NULL)
        return DPT_OK;
    r = rank_at(l, c.stage, c.replica);
    return dpt_fail(err, DPT_INTERNAL, "stage %d, replica %d, action %d of %d: %s", c.stage + 1,
                    c.replica + 1, r->at + (r->at < r->list.n), r->list.n, c.wrong);
}
