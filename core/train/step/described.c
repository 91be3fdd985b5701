/* What is told of a step's list before it runs: the list itself, and what its actions move. */
#include "core/train/mesh/mesh.h"
#include "core/train/step/step.h"

enum dpt_status dpt_step_list(const struct dpt_trainer *t, struct dpt_actions *list,
                              int32_t *rounds, struct dpt_error *err)
{
    const struct dpt_step_share share = dpt_step_share_of(t, &t->data.train, 0, false);
    struct dpt_division division;

    *rounds = dpt_step_rounds(t, &share, false);
    division = dpt_step_division(t, *rounds, false);
    return dpt_actions_plan(&division, list, err);
}

/* Of a value, or its gradient, of all workers' micro-batches of the round. */
static double message_bytes(const struct dpt_trainer *t, const struct dpt_action *a)
{
    const struct dpt_step_share share = dpt_step_share_of(t, &t->data.train, 0, false);
    const bool to_next = (a->kind == DPT_ACTION_SEND) != a->back;
    double micro_batches = 0;

    for (int k = 0; k < share.workers; k++) {
        int32_t n;

        if (dpt_step_take(&share, k, a->round, &n) >= 0)
            micro_batches += n;
    }
    return micro_batches * (double)dpt_mesh_edge_floats(t, t->mesh.stage - !to_next) *
           sizeof(float);
}

double dpt_step_bytes(const struct dpt_trainer *t, const struct dpt_action *a)
{
    const double ranks = dpt_trainer_replicas(t)->world.size;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t *edge = t->units.edge;
    const double floats = a->unit < t->units.n
                              ? (double)(edge[a->unit + 1] - edge[a->unit])
                              : (double)(graph->arena - graph->floats) + DPT_TAIL_WORDS;
    size_t all, one;

    switch (dpt_action_types[a->kind].over) {
    case DPT_OVER_STAGES:
        return message_bytes(t, a);
    case DPT_OVER_REPLICAS:
        return floats * (ranks - 1) / ranks * sizeof(float) *
               (a->kind == DPT_ACTION_ADD ? t->team.gradient_workers : 1);
    case DPT_OVER_EVERYBODY:
        dpt_step_exchange_room(t, &all, &one);
        return (double)all / (double)one * 2 * t->model.graph.nodes[a->first].in.c * sizeof(double);
    default:
        return 0;
    }
}
