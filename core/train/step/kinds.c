/* The kinds of actions, a row each: what runs it, over which ranks, what it moves, what is told of
 * it. */
#include "core/base/span.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/step/engine.h"
#include "core/train/step/step.h"

/* --- units of the weights --------------------------------------------------------------------- */

static enum dpt_status gather(struct dpt_runner *r, struct dpt_error *err)
{
    return r->t->layout.sliced_there ? r->t->engine->gather(r->t, r->action->unit, err)
                                     : dpt_units_gather(r->t, r->action->unit, err);
}

static enum dpt_status derive(struct dpt_runner *r, struct dpt_error *err)
{
    return r->t->layout.sliced_there ? DPT_OK : dpt_units_derive(r->t, r->action->unit, err);
}

static enum dpt_status release(struct dpt_runner *r, struct dpt_error *err)
{
    (void)err;
    dpt_units_release(r->t, r->action->unit);
    return DPT_OK;
}

static enum dpt_status add(struct dpt_runner *r, struct dpt_error *err)
{
    return r->t->reduction.type->round(r->t, r->action->round, r->action->unit, err);
}

/* --- bytes ------------------------------------------------------------------------------------ */

static double no_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                       const struct dpt_action *a)
{
    (void)l, (void)stage, (void)a;
    return 0;
}

/* Bytes of a micro-batch's value between a stage and the next, or of its gradient. */
static double link_bytes(const struct dpt_layout *l, int stage)
{
    const struct dpt_graph_node *begins = &l->graph->nodes[l->stage[stage + 1].first];
    const bool half = l->backend->devices != NULL && l->job->device.precision >= DPT_PRECISION_BF16;

    return (double)dpt_shape_size(&begins->in) * l->micro *
           (half ? sizeof(float) / 2 : sizeof(float));
}

/* Bytes of a value, or of its gradient, of all workers' micro-batches of the round. */
static double message_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                            const struct dpt_action *a)
{
    const struct dpt_share share = dpt_share_of(l, &l->sampler, 0, 0, false);
    const bool to_next = (a->kind == DPT_ACTION_SEND) != a->back;
    double micro_batches = 0;

    for (int k = 0; k < share.workers; k++) {
        int32_t n;

        if (dpt_share_take(&share, k, a->round, &n) >= 0)
            micro_batches += n;
    }
    return micro_batches * link_bytes(l, stage->number - !to_next);
}

/* Bytes of the unit, or of what is after the last one. */
static double unit_bytes(const struct dpt_layout_stage *stage, const struct dpt_action *a)
{
    const struct dpt_graph *graph = &stage->graph;
    const size_t *edge = stage->edge;
    const double floats = a->last > a->first
                              ? (double)(edge[a->unit + 1] - edge[a->unit])
                              : (double)(graph->arena - graph->floats) + DPT_TAIL_WORDS;

    return floats * sizeof(float);
}

/* Of what other nodes own each rank of a node gets a part; a device gets all that others own. */
static double gather_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                           const struct dpt_action *a)
{
    const double nodes = dpt_layout_nodes(l), ranks = l->replicas;

    if (l->sliced_there)
        return unit_bytes(stage, a) / sizeof(float) * dpt_layout_gathered_weight(l) * (ranks - 1) /
               ranks;
    return unit_bytes(stage, a) * (nodes - 1) / nodes / l->node_replicas;
}

/* Bytes of what the others own. */
static double gradient_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                             const struct dpt_action *a)
{
    const double ranks = l->replicas;

    return unit_bytes(stage, a) * (ranks - 1) / ranks * l->gradient_workers;
}

static double exchange_bytes(const struct dpt_layout *l, const struct dpt_layout_stage *stage,
                             const struct dpt_action *a)
{
    (void)stage;
    return dpt_step_exchange_bytes(l, l->graph->nodes[a->first].in.c);
}

/* --- the table -------------------------------------------------------------------------------- */

const struct dpt_action_type dpt_action_types[DPT_ACTION_KINDS] = {
    [DPT_ACTION_TRAIN] = {.name = "train",
                          .computes = DPT_COMPUTES_FORWARD | DPT_COMPUTES_BACK,
                          .run = dpt_step_run_whole,
                          .bytes = no_bytes},
    [DPT_ACTION_INFER] = {.name = "infer",
                          .computes = DPT_COMPUTES_FORWARD,
                          .run = dpt_step_run_whole,
                          .bytes = no_bytes},
    [DPT_ACTION_FORWARD] = {.name = "forward",
                            .computes = DPT_COMPUTES_FORWARD,
                            .run = dpt_step_run_pass,
                            .bytes = no_bytes,
                            .agreed = true},
    [DPT_ACTION_BACKWARD] = {.name = "backward",
                             .computes = DPT_COMPUTES_BACK,
                             .run = dpt_step_run_pass,
                             .bytes = no_bytes,
                             .agreed = true},
    [DPT_ACTION_STATE] = {.name = "state", .run = dpt_step_run_state, .bytes = no_bytes},
    [DPT_ACTION_RECEIVE] = {.name = "receive",
                            .over = DPT_OVER_STAGES,
                            .run = dpt_step_run_receive,
                            .bytes = message_bytes,
                            .span = DPT_SPAN_WAIT_STAGE},
    [DPT_ACTION_SEND] = {.name = "send",
                         .over = DPT_OVER_STAGES,
                         .run = dpt_step_run_send,
                         .bytes = message_bytes,
                         .span = DPT_SPAN_OTHER},
    [DPT_ACTION_GATHER] = {.name = "gather",
                           .over = DPT_OVER_REPLICAS,
                           .run = gather,
                           .then = derive,
                           .bytes = gather_bytes,
                           .span = DPT_SPAN_REDUCTION,
                           .waits_for = "gathering the weights from"},
    [DPT_ACTION_RELEASE] = {.name = "release", .run = release, .bytes = no_bytes, .always = true},
    [DPT_ACTION_ADD] = {.name = "reduce-scatter",
                        .over = DPT_OVER_REPLICAS,
                        .run = add,
                        .bytes = gradient_bytes,
                        .span = DPT_SPAN_REDUCTION},
    [DPT_ACTION_EXCHANGE] = {.name = "exchange",
                             .over = DPT_OVER_EVERYBODY,
                             .run = dpt_step_run_exchange,
                             .bytes = exchange_bytes,
                             .span = DPT_SPAN_REDUCTION,
                             .waits_for = "exchanging the statistics of",
                             .goes_on = {"computing from", "computing back from"}},
};
