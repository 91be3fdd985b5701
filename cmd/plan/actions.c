/* The lists of actions of a plan's ranks: what each does in a full step. */
#include <stdio.h>

#include "cmd/plan/plan.h"
#include "core/base/str.h"
#include "core/train/layout/lists.h"
#include "core/train/layout/report.h"
#include "core/train/layout/shares.h"

/* The width of a column, and of a number's text. */
enum { NODES = 22, DIGITS = 40 };
/* How many replicas' lists are run against each other: all do much the same. */
enum { CHECKED = 8 };

/* The first rank of a stage, and its list. */
struct listed {
    const struct dpt_plan *p;
    const struct dpt_layout_stage *stage;
    int rank;
    int32_t rounds;
    const struct dpt_actions *list;
};

/* "conv1 .. relu2"; for what is after the last unit, its name. */
static const char *nodes_text(const struct listed *l, const struct dpt_action *a,
                              char text[NODES + 1])
{
    const struct dpt_graph_node *node = l->p->model.graph.nodes;
    const int32_t last = a->last > a->first ? a->last - 1 : a->first;

    text[0] = '\0';
    if (a->kind == DPT_ACTION_STATE || (a->kind == DPT_ACTION_ADD && a->last == 0))
        snprintf(text, NODES + 1, "statistics, metrics");
    else if (a->last > 0)
        snprintf(text, NODES + 1, last > a->first ? "%.9s .. %.9s" : "%.22s", node[a->first].name,
                 node[last].name);
    return text;
}

/* How many ranks take part in an action. */
static int ranks_of(const struct listed *l, const struct dpt_action *a)
{
    const int ranks[DPT_OVER_GROUPS] = {[DPT_OVER_NOBODY] = 1,
                                        [DPT_OVER_STAGES] = 2,
                                        [DPT_OVER_REPLICAS] = l->p->layout.replicas,
                                        [DPT_OVER_EVERYBODY] = l->p->spec.ranks};

    return ranks[dpt_action_types[a->kind].over];
}

static double bytes_of(const struct listed *l, const struct dpt_action *a)
{
    return dpt_action_types[a->kind].bytes(&l->p->layout, l->stage, a);
}

static void print_list(const struct listed *l, struct dpt_str *out)
{
    const struct dpt_layout *layout = &l->p->layout;
    char nodes[NODES + 1], rounds[DIGITS], bytes[DIGITS], place[DPT_PLACE_TEXT];

    dpt_layout_place_text(layout, l->rank, place);
    dpt_str_printf(out, "rank %d%s%s", l->rank, place[0] != '\0' ? ", " : "", place);
    dpt_str_printf(out, ": %d action%s, %d round%s of %d worker%s, %d in flight\n", l->list->n,
                   l->list->n == 1 ? "" : "s", l->rounds, l->rounds == 1 ? "" : "s",
                   layout->gradient_workers, layout->gradient_workers == 1 ? "" : "s",
                   dpt_actions_in_flight(l->list));
    dpt_str_printf(out, "%4s  %-14s %4s %5s %6s  %-*s %5s %11s\n", "", "", "", "round", "flight",
                   NODES, "nodes", "ranks", "bytes");
    for (int32_t i = 0; i < l->list->n; i++) {
        const struct dpt_action *a = &l->list->at[i];
        const double moved = bytes_of(l, a);

        snprintf(rounds, DIGITS, a->rounds > 1 ? "%d-%d" : "%d", a->round,
                 a->round + a->rounds - 1);
        dpt_str_printf(out, "%4d  %-14s %4s %5s %6d  %-*s %5d", i + 1,
                       dpt_action_types[a->kind].name, a->back ? "back" : "", rounds, a->flight,
                       NODES, nodes_text(l, a, nodes), ranks_of(l, a));
        if (moved > 0)
            dpt_str_printf(out, " %11s", dpt_group_digits(bytes, (int64_t)moved));
        dpt_str_printf(out, "\n");
    }
}

static void json_list(const struct listed *l, struct dpt_json *j)
{
    const struct dpt_graph_node *node = l->p->model.graph.nodes;

    dpt_json_object(j, NULL);
    dpt_json_int(j, "rank", l->rank);
    dpt_json_int(j, "stage", l->stage->number);
    dpt_json_int(j, "rounds", l->rounds);
    dpt_json_int(j, "workers", l->p->layout.gradient_workers);
    dpt_json_int(j, "in_flight", dpt_actions_in_flight(l->list));
    dpt_json_array(j, "actions");
    for (int32_t i = 0; i < l->list->n; i++) {
        const struct dpt_action *a = &l->list->at[i];

        dpt_json_object(j, NULL);
        dpt_json_text(j, "action", dpt_action_types[a->kind].name);
        dpt_json_bool(j, "back", a->back);
        dpt_json_int(j, "round", a->round);
        dpt_json_int(j, "rounds", a->rounds);
        dpt_json_int(j, "flight", a->flight);
        dpt_json_int(j, "unit", a->unit);
        if (a->last > a->first) {
            dpt_json_text(j, "first", node[a->first].name);
            dpt_json_text(j, "last", node[a->last - 1].name);
        }
        dpt_json_int(j, "ranks", ranks_of(l, a));
        dpt_json_int(j, "bytes", (int64_t)bytes_of(l, a));
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
}

static struct dpt_division division_of(void *layout, int stage, int replica)
{
    const struct dpt_layout *l = layout;
    const struct dpt_share share = dpt_share_of(l, &l->sampler, 0, replica, false);

    return dpt_layout_division(l, &l->stage[stage], l->by_messages,
                               dpt_share_rounds(l, &share, false), false);
}

/* Makes the ranks' lists and runs them against each other; if they break a rule, *out gets what
 * each rank did up to there. Errors: INTERNAL, RANK. */
static enum dpt_status make_lists(struct dpt_plan *p, struct dpt_lists *lists, struct dpt_str *out,
                                  struct dpt_error *err)
{
    const struct dpt_layout *l = &p->layout;
    const int replicas = l->replicas < CHECKED ? l->replicas : CHECKED;
    struct dpt_str grid = {0};
    enum dpt_status status =
        dpt_lists_open(lists, l->stages, replicas, division_of, &p->layout, err);

    if (status == DPT_OK)
        status = dpt_lists_run(lists, NULL, NULL, &grid, err);
    if (status != DPT_OK && grid.text != NULL)
        dpt_str_printf(out, "%s", grid.text);
    dpt_str_release(&grid);
    return status;
}

enum dpt_status dpt_plan_actions(struct dpt_plan *p, struct dpt_str *out, struct dpt_json *j,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool whole = p->layout.on_device; /* its list is the device's graph */
    struct dpt_lists lists = {0};

    if (whole && j == NULL)
        dpt_str_printf(out, "%s takes whole steps: a rank has one action\n", p->backend->name);
    if (!whole)
        DPT_TRY(make_lists(p, &lists, out, err));
    if (j != NULL) {
        dpt_json_object(j, NULL);
        dpt_json_bool(j, "whole_steps", whole);
        dpt_json_array(j, "lists");
    }
    for (int k = 0; k < p->layout.stages && !whole; k++) {
        const struct listed l = {.p = p,
                                 .stage = &p->layout.stage[k],
                                 .rank = k * p->layout.replicas * p->layout.tensor,
                                 .rounds = division_of(&p->layout, k, 0).rounds,
                                 .list = dpt_lists_of(&lists, k, 0)};

        if (j != NULL)
            json_list(&l, j);
        else
            print_list(&l, out);
    }
    if (j != NULL) {
        dpt_json_end(j);
        dpt_json_end(j);
    }
out:
    dpt_lists_close(&lists);
    return status;
}
