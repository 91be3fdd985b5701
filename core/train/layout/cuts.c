/* Cuts the model into pipeline stages, and a stage into units. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"
#include "core/train/layout/layout_parts.h"

/* A unit ends when it has this part of the weights, or so many floats: more units would take less
 * memory and wait more often. */
enum { PARTS = 32, ENOUGH = 4 << 20 };

/* --- where a graph may be cut ----------------------------------------------------------------- */

static bool has_weights(const struct dpt_graph *graph, int32_t first, int32_t last)
{
    for (int32_t i = first; i < last; i++)
        if (graph->nodes[i].weight >= 0)
            return true;
    return false;
}

/* Whether a stage may begin with a node: the node must be a convolution or dense layer, which no
 * kernel computes together with the node before, and its input must be the only value that crosses
 * the cut. */
static bool may_begin(const struct dpt_graph *graph, int32_t node)
{
    const struct dpt_graph_node *at = &graph->nodes[node];

    if ((at->op != DPT_OP_CONV && at->op != DPT_OP_DENSE) || !has_weights(graph, 1, node))
        return false;
    for (int32_t i = node; i < graph->n_nodes; i++)
        for (int32_t k = 0; k < graph->nodes[i].n_inputs; k++)
            if (graph->nodes[i].inputs[k] < node && graph->nodes[i].inputs[k] != at->inputs[0])
                return false;
    return true;
}

/* Fails with "job.yaml:14:13: parallel.pipeline: ...", and lists the places where the model may be
 * cut. */
static enum dpt_status refuse(const struct dpt_layout *l, const char *what, struct dpt_error *err)
{
    const struct dpt_pipeline_options *p = &l->job->parallel.pipeline;
    const struct dpt_graph *graph = l->graph;
    struct dpt_str text = {0};
    int n = 0;

    if (p->at->line > 0)
        dpt_str_printf(&text, "%s:%d:%d: ", p->file, p->at->line, p->at->column);
    dpt_str_printf(&text, "parallel.pipeline: %s", what);
    for (int32_t i = 1; i < graph->n_nodes; i++)
        if (may_begin(graph, i))
            dpt_str_printf(&text, "%s%s", n++ == 0 ? "; a stage may begin with " : ", ",
                           graph->nodes[i].name);
    if (n == 0)
        dpt_str_printf(&text, "; this model can be cut nowhere");
    dpt_fail(err, DPT_BAD_JOB, "%s", text.failed ? what : text.text);
    dpt_str_release(&text);
    return err->status;
}

/* --- stages ----------------------------------------------------------------------------------- */

/* Cuts the model at the job's places. */
static enum dpt_status cut_at_names(struct dpt_layout *l, struct dpt_error *err)
{
    const struct dpt_texts *cut = &l->job->parallel.pipeline.cut;
    const struct dpt_graph *graph = l->graph;
    char text[256];

    for (size_t k = 0; k < cut->n; k++) {
        int32_t node = 0;

        while (node < graph->n_nodes && strcmp(graph->nodes[node].name, cut->at[k]) != 0)
            node++;
        if (node == graph->n_nodes)
            snprintf(text, sizeof text, "cut: the model has no layer '%.64s'", cut->at[k]);
        else if (!may_begin(graph, node))
            snprintf(text, sizeof text, "cut: no stage may begin with %s", cut->at[k]);
        else if (node <= l->stage[k].first)
            snprintf(text, sizeof text, "cut: %s stands before the stage in front of it",
                     cut->at[k]);
        else
            text[0] = '\0';
        if (text[0] != '\0')
            return refuse(l, text, err);
        l->stage[k + 1].first = node;
    }
    return DPT_OK;
}

/* Gives each node's weight: its share of the model's arithmetic, and of its memory, which is
 * weights, gradient and optimizer state, and values with their gradients. */
static void weigh(const struct dpt_layout *l, double *weight)
{
    const struct dpt_graph *graph = l->graph;
    const double arenas = 2 + l->slots;
    double flops = 0, memory = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < graph->n_nodes; i++) {
            const struct dpt_graph_node *node = &graph->nodes[i];
            const double own = dpt_operation_flops(node);
            double bytes = 2 * (double)dpt_shape_size(&node->out);

            if (node->weight >= 0)
                bytes += arenas * (double)graph->tensors[node->weight].count;
            flops += pass == 0 ? own : 0;
            memory += pass == 0 ? bytes : 0;
            weight[i] = own / (flops > 0 ? flops : 1) + bytes / memory;
        }
}

/* Cuts so that the heaviest stage is as light as possible: best[k][c] is the weight of the heaviest
 * of the first k + 1 stages if the last of them ends at place c. */
static enum dpt_status cut_evenly(struct dpt_layout *l, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = l->graph;
    const int stages = l->stages;
    const size_t nodes = (size_t)graph->n_nodes, room = (nodes + 1) * (size_t)stages;
    double *weight = NULL, *best = NULL;
    int32_t *place = NULL, *from = NULL, n = 0;
    char text[96];

    DPT_TRY(DPT_ALLOCATE(weight, nodes + 1, "the stages", err));
    DPT_TRY(DPT_ALLOCATE(place, nodes + 1, "the stages", err));
    DPT_TRY(DPT_ALLOCATE(best, room, "the stages", err));
    DPT_TRY(DPT_ALLOCATE(from, room, "the stages", err));
    weigh(l, weight);
    for (int32_t i = 1; i < graph->n_nodes; i++)
        if (may_begin(graph, i))
            place[n++] = i;
    place[n++] = graph->n_nodes;
    if (n < stages) {
        snprintf(text, sizeof text, "%d stages are more than the %d that this model can have",
                 stages, n);
        status = refuse(l, text, err);
        goto out;
    }
    for (size_t i = 1; i < nodes; i++) /* from here on of all nodes up to this one */
        weight[i] += weight[i - 1];
    for (int k = 0; k < stages; k++)
        for (int32_t c = k; c < n; c++) {
            double *at = &best[(size_t)k * nodes + (size_t)c];

            *at = k == 0 ? weight[place[c] - 1] : INFINITY;
            for (int32_t b = k - 1; k > 0 && b < c; b++) {
                const double before = best[(size_t)(k - 1) * nodes + (size_t)b];
                const double own = weight[place[c] - 1] - weight[place[b] - 1];

                if (fmax(before, own) < *at) {
                    *at = fmax(before, own);
                    from[(size_t)k * nodes + (size_t)c] = b;
                }
            }
        }
    for (int32_t k = stages - 1, c = n - 1; k > 0; k--) {
        c = from[(size_t)k * nodes + (size_t)c];
        l->stage[k].first = place[c];
    }
out:
    dpt_free(weight);
    dpt_free(place);
    dpt_free(best);
    dpt_free(from);
    return status;
}

enum dpt_status dpt_layout_cut_stages(struct dpt_layout *l, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(l->stage, (size_t)l->stages, "the stages", err));
    if (l->stages > 1)
        DPT_TRY(l->job->parallel.pipeline.cut.n > 0 ? cut_at_names(l, err) : cut_evenly(l, err));
    for (int k = 0; k < l->stages; k++) {
        l->stage[k].number = k;
        l->stage[k].last = k + 1 < l->stages ? l->stage[k + 1].first : l->graph->n_nodes;
    }
out:
    return status;
}

/* --- units ------------------------------------------------------------------------------------ */

/* Whether a unit is to begin with node i, after a unit that begins with the learned floats at
 * `from`: if the node is a norm that takes statistics of the whole step, or the weights so far are
 * enough. */
static bool begins_unit(const struct dpt_layout *l, const struct dpt_graph *graph, int32_t i,
                        size_t from, size_t enough)
{
    const size_t at = dpt_graph_from(graph, i, false);

    if (l->synchronized)
        return graph->nodes[i].whole_step;
    return dpt_layout_gathers(l) && may_begin(graph, i) && at - from >= enough && at > from;
}

enum dpt_status dpt_layout_cut_units(const struct dpt_layout *l, struct dpt_layout_stage *stage,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = &stage->graph;
    const size_t part = (size_t)graph->floats / PARTS, enough = part < ENOUGH ? part : ENOUGH;
    int n = 0;

    DPT_TRY(DPT_ALLOCATE(stage->node, (size_t)graph->n_nodes + 1, "the units", err));
    DPT_TRY(DPT_ALLOCATE(stage->edge, (size_t)graph->n_nodes + 1, "the units", err));
    stage->node[0] = stage->first;
    for (int32_t i = stage->first + 1; i < stage->last; i++)
        if (begins_unit(l, graph, i, stage->edge[n], enough)) {
            n++;
            stage->node[n] = i;
            stage->edge[n] = dpt_graph_from(graph, i, false);
        }
    n++;
    stage->node[n] = stage->last;
    stage->edge[n] = (size_t)graph->floats;
    stage->units = n;
out:
    return status;
}

bool dpt_layout_begins_unit(const struct dpt_layout_stage *stage, int32_t node)
{
    int k = 0;

    while (k < stage->units && stage->node[k] != node)
        k++;
    return k < stage->units;
}

double dpt_layout_unit(const struct dpt_layout *l, const struct dpt_layout_stage *stage)
{
    const size_t *edge = stage->edge;
    size_t most = 0;

    for (int k = 0; k < stage->units && dpt_layout_gathers(l); k++)
        most = edge[k + 1] - edge[k] > most ? edge[k + 1] - edge[k] : most;
    return (double)most;
}

double dpt_layout_parameters(const struct dpt_layout *l, const struct dpt_layout_stage *stage)
{
    const struct dpt_graph *graph = &stage->graph;

    return l->sliced ? (double)graph->floats / l->owners + (double)(graph->arena - graph->floats)
                     : (double)graph->arena;
}
