/* The planners: each is a function that makes the list of actions for one way of dividing a
 * step. */
#include "core/base/memory.h"
#include "core/train/layout/actions.h"

void dpt_actions_release(struct dpt_actions *list)
{
    dpt_free(list->at);
    *list = (struct dpt_actions){0};
}

/* Appends an action. Weights that the next action would gather again are not released. */
static void add(struct dpt_actions *list, struct dpt_action action)
{
    struct dpt_action *more;

    if (action.kind == DPT_ACTION_GATHER && list->n > 0 &&
        list->at[list->n - 1].kind == DPT_ACTION_RELEASE &&
        list->at[list->n - 1].unit == action.unit) {
        list->n--;
        return;
    }
    more = list->failed ? NULL
                        : dpt_grow(list->at, &list->room, (size_t)list->n + 1, sizeof *list->at);
    list->failed = more == NULL;
    if (list->failed)
        return;
    list->at = more;
    list->at[list->n++] = action;
}

/* Makes an action of a kind for a round, without members that only some kinds have. */
static struct dpt_action of(enum dpt_action_kind kind, int32_t round, bool back)
{
    return (struct dpt_action){.kind = kind, .round = round, .rounds = 1, .back = back};
}

/* --- the whole model at once ------------------------------------------------------------------ */

/* Takes a round through all nodes. */
static struct dpt_action whole(const struct dpt_division *d, enum dpt_action_kind kind,
                               int32_t round)
{
    struct dpt_action all = of(kind, round, false);

    all.first = d->node[0];
    all.last = d->node[d->units];
    return all;
}

static void plan_plain(const struct dpt_division *d, struct dpt_actions *list)
{
    struct dpt_action all = whole(d, d->infers ? DPT_ACTION_INFER : DPT_ACTION_TRAIN, 0);

    all.rounds = d->rounds;
    if (d->rounds > 0)
        add(list, all);
}

/* Ranks take rounds round-robin. After each round the owners add its gradients. */
static void add_to_owners(const struct dpt_division *d, int32_t round, int32_t unit,
                          struct dpt_actions *list)
{
    struct dpt_action sum = of(DPT_ACTION_ADD, round, true);

    sum.unit = unit;
    if (unit < d->units) {
        sum.first = d->node[unit];
        sum.last = d->node[unit + 1];
    }
    if (d->round_robin)
        add(list, sum);
}

static void plan_round_robin(const struct dpt_division *d, struct dpt_actions *list)
{
    for (int32_t k = 0; k < d->rounds; k++) {
        add(list, whole(d, DPT_ACTION_TRAIN, k));
        add_to_owners(d, k, 0, list);
        add_to_owners(d, k, 1, list);
    }
}

/* --- the order of a stage's micro-batches ----------------------------------------------------- */

int32_t dpt_pipeline_in_flight(int schedule, int stages, int stage, int32_t micro_batches)
{
    const int32_t most = schedule == DPT_PIPELINE_FORWARD ? 1
                         : schedule == DPT_PIPELINE_GPIPE ? micro_batches
                                                          : stages - stage;

    return most < micro_batches ? most : micro_batches;
}

bool dpt_pipeline_next(struct dpt_pipeline_walk *walk, struct dpt_pipeline_action *action)
{
    const bool back = walk->schedule != DPT_PIPELINE_FORWARD;
    const int32_t most =
        dpt_pipeline_in_flight(walk->schedule, walk->stages, walk->stage, walk->micro_batches);

    if (walk->forward < walk->micro_batches && (!back || walk->forward - walk->back < most))
        *action = (struct dpt_pipeline_action){false, walk->forward++};
    else if (back && walk->back < walk->micro_batches)
        *action = (struct dpt_pipeline_action){true, walk->back++};
    else
        return false;
    return true;
}

bool dpt_unit_next(struct dpt_unit_walk *walk, struct dpt_unit_pass *pass)
{
    const int last = walk->units - 1;
    const struct dpt_pipeline_action *action = &walk->action, *follows = &walk->follows;

    if (walk->left == 0) {
        if (!walk->begun)
            walk->more = dpt_pipeline_next(&walk->pipeline, &walk->follows);
        if (!walk->more)
            return false;
        walk->begun = true;
        walk->action = walk->follows;
        walk->more = dpt_pipeline_next(&walk->pipeline, &walk->follows);
        walk->left = walk->units;
    }
    walk->left--;
    *pass = (struct dpt_unit_pass){.micro_batch = action->micro_batch,
                                   .unit = action->back ? walk->left : last - walk->left,
                                   .back = action->back,
                                   .ends = walk->left == 0,
                                   .last = walk->left == 0 && !walk->more};
    if (walk->left > 0)
        pass->next = pass->unit + (action->back ? -1 : 1);
    else
        pass->next = !walk->more ? pass->unit : follows->back ? last : 0;
    return true;
}

/* --- passes through the nodes of a stage ------------------------------------------------------ */

/* Takes a round through a unit, with its weights. */
static void pass_unit(const struct dpt_division *d, const struct dpt_action *at, int32_t unit,
                      struct dpt_actions *list)
{
    struct dpt_action action = *at;

    action.unit = unit;
    action.first = d->node[unit];
    action.last = d->node[unit + 1];
    action.kind = DPT_ACTION_GATHER;
    if (d->gathers)
        add(list, action);
    action.kind = at->kind;
    add(list, action);
    action.kind = DPT_ACTION_RELEASE;
    if (d->gathers)
        add(list, action);
}

/* Adds a message, if there is a stage on that side. */
static void pass_on(const struct dpt_division *d, const struct dpt_action *at,
                    enum dpt_action_kind kind, bool has_other, struct dpt_actions *list)
{
    struct dpt_action message = *at;

    message.kind = kind;
    if (has_other && d->stages > 1)
        add(list, message);
}

/*
 * Takes the rounds through a stage, in the order of its schedule, whose sources actions.h names.
 * Backward comes in the order of forward, so that gradients are added up in one order, whichever
 * schedule it is.
 */
static void plan_stage(const struct dpt_division *d, struct dpt_actions *list)
{
    struct dpt_pipeline_walk walk = {.schedule = d->infers ? DPT_PIPELINE_FORWARD : d->schedule,
                                     .stages = d->stages,
                                     .stage = d->stage,
                                     .micro_batches = d->rounds};
    const int32_t in_flight = dpt_pipeline_in_flight(walk.schedule, d->stages, d->stage, d->rounds);
    const bool is_first = d->stage == 0, is_last = d->stage == d->stages - 1;
    struct dpt_pipeline_action next;

    while (dpt_pipeline_next(&walk, &next)) {
        struct dpt_action at =
            of(next.back ? DPT_ACTION_BACKWARD : DPT_ACTION_FORWARD, next.micro_batch, next.back);

        at.flight = next.micro_batch % in_flight;
        pass_on(d, &at, DPT_ACTION_RECEIVE, next.back ? !is_last : !is_first, list);
        for (int32_t i = 0; i < d->units; i++) {
            const int32_t unit = next.back ? d->units - 1 - i : i;

            at.begins = i == 0;
            at.ends = i == d->units - 1;
            at.hands_over = next.back && at.ends;
            pass_unit(d, &at, unit, list);
            if (next.back)
                add_to_owners(d, at.round, unit, list);
        }
        if (next.back)
            add_to_owners(d, at.round, d->units, list);
        pass_on(d, &at, DPT_ACTION_SEND, next.back ? !is_first : !is_last, list);
    }
}

/* --- synchronized batch norms ----------------------------------------------------------------- */

/* Takes all rounds through a unit: at once or, if owners get each round's gradient, round by round.
 * Backward goes from a norm's readers down to the next norm, and ends with the gradient of that
 * norm. */
static void pass_all(const struct dpt_division *d, bool back, int32_t unit,
                     struct dpt_actions *list)
{
    const bool one_by_one = back && d->round_robin;
    const int32_t first = back ? d->units - 1 : 0;

    for (int32_t k = 0; k < (one_by_one ? d->rounds : 1); k++) {
        struct dpt_action at = of(back ? DPT_ACTION_BACKWARD : DPT_ACTION_FORWARD, k, back);

        at.rounds = one_by_one ? 1 : d->rounds;
        at.flight = k;
        at.unit = unit;
        at.first = d->node[unit] + (back && unit > 0);
        at.last = d->node[unit + 1] + (back && unit < d->units - 1);
        at.begins = unit == first;
        at.ends = unit == d->units - 1 - first;
        at.from_norm = !at.begins;
        at.again = back;
        add(list, at);
        if (back)
            add_to_owners(d, k, unit, list);
    }
}

/*
 * All rounds are in flight at once. They go forward up to a norm, whose sums all ranks then
 * exchange, then on to the next norm; backward goes likewise. Source: synchronized batch norm, as
 * in Peng et al. 2018 (MegDet, section 3.3), with several micro-batches per rank.
 */
static void plan_synchronized(const struct dpt_division *d, struct dpt_actions *list)
{
    struct dpt_action at = of(DPT_ACTION_EXCHANGE, 0, false);

    for (int32_t unit = 0; unit < d->units; unit++) {
        pass_all(d, false, unit, list);
        at.first = at.last = d->node[unit + 1];
        at.unit = unit;
        if (unit < d->units - 1)
            add(list, at);
    }
    for (int32_t k = 0; k < (d->round_robin ? d->rounds : 1); k++) {
        struct dpt_action state = of(DPT_ACTION_STATE, k, true);

        state.flight = k;
        state.rounds = d->round_robin ? 1 : d->rounds;
        add(list, state);
        add_to_owners(d, k, d->units, list);
    }
    at.back = true;
    for (int32_t unit = d->units - 1; unit >= 0; unit--) {
        pass_all(d, true, unit, list);
        at.first = at.last = d->node[unit];
        at.unit = unit;
        if (unit > 0)
            add(list, at);
    }
}

/* --- the choice ------------------------------------------------------------------------------- */

enum dpt_status dpt_actions_plan(const struct dpt_division *d, struct dpt_actions *list,
                                 struct dpt_error *err)
{
    if (!d->infers && d->synchronized)
        plan_synchronized(d, list);
    else if (d->in_passes)
        plan_stage(d, list);
    else if (!d->infers && d->round_robin)
        plan_round_robin(d, list);
    else
        plan_plain(d, list);
    return list->failed
               ? dpt_fail_memory(err, "a step's actions", (double)(list->room * sizeof *list->at))
               : DPT_OK;
}

int32_t dpt_actions_in_flight(const struct dpt_actions *list)
{
    int32_t most = 1;

    for (int32_t i = 0; i < list->n; i++) {
        const struct dpt_action *a = &list->at[i];
        const int32_t end = a->flight + a->rounds;

        if ((a->kind == DPT_ACTION_FORWARD) && end > most)
            most = end;
    }
    return most;
}
