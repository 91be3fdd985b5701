#include "core/train/mesh/mesh.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"

/* --- where a graph may be cut ----------------------------------------------------------------- */

static bool has_weights(const struct dpt_graph *graph, int32_t first, int32_t last)
{
    for (int32_t i = first; i < last; i++)
        if (graph->nodes[i].weight >= 0)
            return true;
    return false;
}

bool dpt_mesh_may_begin(const struct dpt_graph *graph, int32_t node)
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

/* Fails with "job.yaml:14:13: parallel.pipeline: ...", and names the places where the model may be
 * cut. */
static enum dpt_status refuse(const struct dpt_trainer *t, const char *what, struct dpt_error *err)
{
    const struct dpt_pipeline_options *p = &t->job->parallel.pipeline;
    const struct dpt_graph *graph = &t->model.graph;
    struct dpt_str text = {0};
    int n = 0;

    if (p->at->line > 0)
        dpt_str_printf(&text, "%s:%d:%d: ", p->file, p->at->line, p->at->column);
    dpt_str_printf(&text, "parallel.pipeline: %s", what);
    for (int32_t i = 1; i < graph->n_nodes; i++)
        if (dpt_mesh_may_begin(graph, i))
            dpt_str_printf(&text, "%s%s", n++ == 0 ? "; a stage may begin with " : ", ",
                           graph->nodes[i].name);
    if (n == 0)
        dpt_str_printf(&text, "; this model can be cut nowhere");
    dpt_fail(err, DPT_BAD_JOB, "%s", text.failed ? what : text.text);
    dpt_str_release(&text);
    return err->status;
}

/* Cuts the model where the job says. */
static enum dpt_status cut_at_names(struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_texts *cut = &t->job->parallel.pipeline.cut;
    const struct dpt_graph *graph = &t->model.graph;
    char text[256];

    for (size_t k = 0; k < cut->n; k++) {
        int32_t node = 0;

        while (node < graph->n_nodes && strcmp(graph->nodes[node].name, cut->at[k]) != 0)
            node++;
        if (node == graph->n_nodes)
            snprintf(text, sizeof text, "cut: the model has no layer '%.64s'", cut->at[k]);
        else if (!dpt_mesh_may_begin(graph, node))
            snprintf(text, sizeof text, "cut: no stage may begin with %s", cut->at[k]);
        else if (node <= t->mesh.first[k])
            snprintf(text, sizeof text, "cut: %s stands before the stage in front of it",
                     cut->at[k]);
        else
            text[0] = '\0';
        if (text[0] != '\0')
            return refuse(t, text, err);
        t->mesh.first[k + 1] = node;
    }
    return DPT_OK;
}

/* What a node weighs: its share of the model's arithmetic, and of its memory, which is weights,
 * gradient and slots, and values with their gradients. */
static void weigh(const struct dpt_trainer *t, double *weight)
{
    const struct dpt_graph *graph = &t->model.graph;
    const double arenas = 2 + dpt_trainer_slots(t);
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

/* Cuts so that the heaviest stage is as light as can be: best[k][c] is the weight of the heaviest
 * of the first k + 1 stages where the last of them ends at place c. */
static enum dpt_status cut_evenly(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = &t->model.graph;
    const int stages = t->mesh.stages;
    const size_t nodes = (size_t)graph->n_nodes, room = (nodes + 1) * (size_t)stages;
    double *weight = NULL, *best = NULL;
    int32_t *place = NULL, *from = NULL, n = 0;
    char text[96];

    DPT_TRY(DPT_ALLOCATE(weight, nodes + 1, "the stages", err));
    DPT_TRY(DPT_ALLOCATE(place, nodes + 1, "the stages", err));
    DPT_TRY(DPT_ALLOCATE(best, room, "the stages", err));
    DPT_TRY(DPT_ALLOCATE(from, room, "the stages", err));
    weigh(t, weight);
    for (int32_t i = 1; i < graph->n_nodes; i++)
        if (dpt_mesh_may_begin(graph, i))
            place[n++] = i;
    place[n++] = graph->n_nodes;
    if (n < stages) {
        snprintf(text, sizeof text, "%d stages are more than the %d that this model can have",
                 stages, n);
        status = refuse(t, text, err);
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
        t->mesh.first[k] = place[c];
    }
out:
    dpt_free(weight);
    dpt_free(place);
    dpt_free(best);
    dpt_free(from);
    return status;
}

/* --- who has which stage ---------------------------------------------------------------------- */

/* "3 stages", "3 stages x tensor 2". */
static const char *unit_text(const struct dpt_mesh *m, char text[64])
{
    if (m->tensor == 1)
        snprintf(text, 64, "%d stages", m->stages);
    else if (m->stages == 1)
        snprintf(text, 64, "tensor %d", m->tensor);
    else
        snprintf(text, 64, "%d stages x tensor %d", m->stages, m->tensor);
    return text;
}

/* Finds how many ranks there are for a part of the model. */
static enum dpt_status divide_ranks(const struct dpt_trainer *t, int *replicas,
                                    struct dpt_error *err)
{
    const int ranks = t->comm->world.size, unit = t->mesh.stages * t->mesh.tensor;
    const int64_t data = t->job->parallel.data;
    const int below = ranks / unit * unit;
    char text[192], parts[64];

    *replicas = ranks / unit;
    unit_text(&t->mesh, parts);
    if (data != 0 && data * unit != ranks)
        return dpt_fail(err, DPT_BAD_JOB,
                        "parallel.data: %lld x %s are %lld ranks, and %d %s started: start "
                        "%lld, or give `data: auto`",
                        (long long)data, parts, (long long)data * unit, ranks,
                        ranks == 1 ? "is" : "are", (long long)data * unit);
    if (below == ranks)
        return DPT_OK;
    if (below == 0)
        snprintf(text, sizeof text, "start %d", unit);
    else
        snprintf(text, sizeof text, "start %d or %d", below, below + unit);
    return dpt_fail(err, DPT_BAD_JOB, "parallel.%s: %d rank%s %s no multiple of %s: %s",
                    t->mesh.stages > 1 ? "pipeline" : "tensor", ranks, ranks == 1 ? "" : "s",
                    ranks == 1 ? "is" : "are", parts, text);
}

/* Fails where there is no layer to divide. */
static enum dpt_status check_layers(const struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_graph *graph = &t->model.graph;
    const struct dpt_tensor *most = NULL;

    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i];

        if (dpt_graph_divided(graph, i) != NULL)
            return DPT_OK;
        if (tensor->n_dims == 2 && (most == NULL || tensor->count > most->count))
            most = tensor;
    }
    return dpt_fail(err, DPT_BAD_JOB,
                    "parallel.tensor: divides dense layers of at least 64 outputs and 65 536 "
                    "weights, and this model has none (the largest is %s, %lld x %lld); leave it "
                    "out",
                    most != NULL ? most->name : "nothing",
                    most != NULL ? (long long)most->dims[0] : 0,
                    most != NULL ? (long long)most->dims[1] : 0);
}

static enum dpt_status check_model(const struct dpt_trainer *t, struct dpt_error *err)
{
    const struct dpt_graph *graph = &t->model.graph;
    const char *option = t->mesh.stages > 1 ? "pipeline" : "tensor";

    if (t->mesh.tensor > 1 && t->backend->devices != NULL)
        return dpt_fail(err, DPT_BAD_JOB,
                        "parallel.tensor: runs on device.kind: cpu or ref; this would run on %s",
                        t->backend->name);
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].whole_step)
            return dpt_fail(err, DPT_BAD_JOB,
                            "parallel.%s: does not go with batchnorm's `statistics: batch` "
                            "(%s), for which all micro-batches wait in each such layer; "
                            "`statistics: micro` would do",
                            option, graph->nodes[i].name);
    return t->mesh.tensor > 1 ? check_layers(t, err) : DPT_OK;
}

enum dpt_status dpt_mesh_take(struct dpt_trainer *t, int stage, struct dpt_error *err)
{
    struct dpt_mesh *m = &t->mesh;
    const struct dpt_part part = {m->first[stage], m->first[stage + 1], m->part, m->tensor};
    int64_t learned, state; /* where its floats begin, which each tensor says, too */

    m->stage = stage;
    dpt_graph_release(&m->graph);
    return dpt_graph_part(&t->model.graph, &part, &m->graph, &learned, &state, err);
}

/* Checks parallel.data where all ranks of a job are replicas. */
static enum dpt_status check_data(const struct dpt_trainer *t, struct dpt_error *err)
{
    const int64_t data = t->job->parallel.data;
    const int ranks = t->comm->world.size;

    if (data == 0 || data == ranks || !t->data.train.present)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_JOB,
                    "parallel.data: %lld, and %d rank%s started: start %lld, or give `data: auto`",
                    (long long)data, ranks, ranks == 1 ? " is" : "s are", (long long)data);
}

enum dpt_status dpt_mesh_plan(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_pipeline_options *p = &t->job->parallel.pipeline;
    const int64_t stages = p->stages > 1 ? p->stages : 1, tensor = t->job->parallel.tensor;
    struct dpt_mesh *m = &t->mesh;
    const bool divides = t->data.train.present && stages * tensor > 1;
    int replicas, on_node;

    if (!divides)
        DPT_TRY(check_data(t, err));
    m->stages = divides ? (int)stages : 1;
    m->tensor = divides ? (int)tensor : 1;
    DPT_TRY(DPT_ALLOCATE(m->first, (size_t)m->stages + 1, "the stages", err));
    m->first[m->stages] = t->model.graph.n_nodes;
    if (!divides)
        return dpt_mesh_take(t, 0, err);
    DPT_TRY(check_model(t, err));
    if (stages > 1)
        DPT_TRY(p->cut.n > 0 ? cut_at_names(t, err) : cut_evenly(t, err));
    DPT_TRY(divide_ranks(t, &replicas, err));
    m->part = t->planned ? m->tensor - 1 /* none is larger */ : t->comm->world.rank % m->tensor;
    DPT_TRY(dpt_mesh_take(t, t->comm->world.rank / (replicas * m->tensor), err));
    /* The groups get their sizes alone here, since the ranks need not be there. */
    on_node = t->comm->node.size / m->tensor > 1 ? t->comm->node.size / m->tensor : 1;
    m->replica_group.world = (struct dpt_group){.size = replicas};
    m->replica_group.node = (struct dpt_group){.size = on_node < replicas ? on_node : replicas};
    m->replicas = &m->replica_group;
out:
    return status;
}

const char *dpt_mesh_place(const struct dpt_trainer *t, int rank, char place[DPT_PLACE_TEXT])
{
    const struct dpt_mesh *m = &t->mesh;
    int n = 0;

    place[0] = '\0';
    if (m->stages > 1)
        n = snprintf(place, DPT_PLACE_TEXT, "stage %d of %d%s",
                     rank / (m->replicas->world.size * m->tensor) + 1, m->stages,
                     m->tensor > 1 ? ", " : "");
    if (m->tensor > 1)
        snprintf(place + n, DPT_PLACE_TEXT - (size_t)n, "part %d of %d", rank % m->tensor + 1,
                 m->tensor);
    return place;
}

/* Says what each rank is there for, for the lines that name it. */
static void tell_places(const struct dpt_trainer *t)
{
    const int ranks = t->comm->world.size;
    char(*places)[DPT_PLACE_TEXT] = dpt_alloc_array((size_t)ranks, sizeof *places);

    for (int r = 0; places != NULL && r < ranks; r++)
        dpt_mesh_place(t, r, places[r]);
    dpt_comm_places(t->comm, places);
}

enum dpt_status dpt_mesh_open(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_mesh *m = &t->mesh;
    const int tensor = m->tensor, replicas = dpt_trainer_replicas(t)->world.size;
    const int replica = t->comm->world.rank / tensor % replicas;
    const int lane = replica * tensor + m->part; /* the stages' ranks that tell each other */
    /* No two groups have one color; no two pairs of stages either. */
    const struct {
        struct dpt_comm *comm;
        int color;
        bool wanted;
    } splits[] = {
        {&m->replica_group, m->stage * tensor + m->part, true},
        {&m->model_group, replica, true},
        {&m->tensor_group, m->stage * replicas + replica, tensor > 1},
        {&m->stage_links[0], lane * (m->stages + 1) + m->stage / 2, m->stages > 1},
        {&m->stage_links[1], lane * (m->stages + 1) + (m->stage + 1) / 2, m->stages > 1},
    };

    if (dpt_trainer_model_ranks(t) == 1)
        return DPT_OK;
    tell_places(t);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        if (splits[i].wanted) {
            DPT_TRY(dpt_comm_split(t->comm, splits[i].color, splits[i].comm, err));
            m->open[m->splits++] = splits[i].comm;
        }
out:
    return status;
}

void dpt_mesh_close(struct dpt_trainer *t)
{
    struct dpt_mesh *m = &t->mesh;

    if (m->splits > 0)
        dpt_comm_places(t->comm, NULL);
    while (m->splits > 0)
        dpt_comm_close(m->open[--m->splits]);
    dpt_graph_release(&m->graph);
    dpt_free(m->first);
    *m = (struct dpt_mesh){0};
}

const struct dpt_group *dpt_mesh_link(const struct dpt_trainer *t, bool next)
{
    return &t->mesh.stage_links[(t->mesh.stage + !next) % 2].world;
}

double dpt_mesh_link_bytes(const struct dpt_trainer *t, int stage)
{
    const struct dpt_graph *graph = &t->model.graph;
    const struct dpt_graph_node *begins = &graph->nodes[t->mesh.first[stage + 1]];
    const bool half = t->backend->devices != NULL && t->job->device.precision >= DPT_PRECISION_BF16;

    return (double)dpt_shape_size(&begins->in) * t->data.train.sampler.micro *
           (half ? sizeof(float) / 2 : sizeof(float));
}

bool dpt_mesh_tells(const struct dpt_trainer *t, int32_t tensor)
{
    return t->mesh.part == 0 || dpt_graph_divided(&t->model.graph, tensor) != NULL;
}
