#include <stdio.h>

#include "cmd/bench/bench.h"
#include "core/backend/operation.h"
#include "core/train/reduction/gradient_reduction.h"

/* What is no layer, in the order of a step; layers stand before and after the loss. */
static const struct part {
    int what;
    const char *name;
    bool waiting;
} parts[] = {
    {DPT_SPAN_DATA, "data", false},
    {DPT_SPAN_LOSS, "loss", false},
    {DPT_SPAN_REDUCTION, "reduction", false},
    {DPT_SPAN_NORM, "gradient norm", false},
    {DPT_SPAN_OPTIMIZER, "optimizer", false},
    {DPT_SPAN_LAYOUTS, "weight layouts", false},
    {DPT_SPAN_OTHER, "other", false},
    {DPT_SPAN_WAIT_LOADER, "waiting for samples", true},
    {DPT_SPAN_WAIT_STAGE, "waiting for another stage", true},
    {DPT_SPAN_WAIT_THREADS, "waiting for threads", true},
    /* A part of the reduction's time: no thread marks it. */
    {DPT_SPAN_STEP, "waiting for ranks", true},
};

/* The layers that are computed in the passes of one. */
struct group {
    int32_t *nodes, n; /* n 0: none */
};

/* nodes: room for all of them. */
static struct group group_of(const struct dpt_trainer *t, int32_t node, bool backward,
                             int32_t *nodes)
{
    struct group g = {nodes, 0};

    for (int32_t i = 0; i < t->model.graph.n_nodes; i++) {
        const int32_t in =
            t->backend->runs_in != NULL ? t->backend->runs_in(t->model.program, i, backward) : i;

        if (in == node)
            nodes[g.n++] = i;
    }
    return g;
}

static bool has_weights(const struct dpt_graph *graph, struct group g)
{
    for (int32_t i = 0; i < g.n; i++)
        if (graph->nodes[g.nodes[i]].weight >= 0 || graph->nodes[g.nodes[i]].bias >= 0)
            return true;
    return false;
}

/* Whether a layer before the group gets a gradient from it. */
static bool passes_on(const struct dpt_graph *graph, struct group g)
{
    for (int32_t i = 0; i < g.n; i++) {
        const struct dpt_graph_node *node = &graph->nodes[g.nodes[i]];

        for (int32_t k = 0; k < node->n_inputs; k++) {
            bool inside = false;

            for (int32_t j = 0; j < g.n; j++)
                inside = inside || g.nodes[j] == node->inputs[k];
            if (!inside && graph->nodes[node->inputs[k]].learns)
                return true;
        }
    }
    return false;
}

static void add_row(struct dpt_bench *b, const struct dpt_bench_row *row)
{
    struct dpt_bench_row *added = &b->rows[b->n_rows++];

    *added = *row;
    added->limit =
        dpt_cost_limit(&row->cost, &b->machine, b->t->layout.all_threads, &added->by_bytes);
    b->seconds += added->seconds;
    b->limit += added->limit;
}

/* The bytes of the step's actions whose time is counted as `what`. */
static double moved(const struct dpt_bench *b, int what)
{
    double bytes = 0;

    for (int i = 0; i < DPT_ACTION_KINDS; i++)
        bytes += dpt_action_types[i].span == what ? b->traffic.kind[i] : 0;
    return bytes;
}

/* What filling a micro-batch does beside normalising. */
static const char *done_to_samples(const struct dpt_trainer *t)
{
    const struct dpt_batch_form *form = &t->data.train.form;
    const bool decodes = form->set->files, augments = form->augment != NULL;

    return decodes && augments ? ": decoding, augmentation"
           : decodes           ? ": decoding"
           : augments          ? ": augmentation"
                               : "";
}

/* A rank of one thread waits for none, nor does one alone wait for others: no row says so. */
static bool has_row(const struct dpt_bench *b, int what)
{
    const int ranks = b->t->comm->world.size;

    return what == DPT_SPAN_STEP           ? ranks > 1
           : what == DPT_SPAN_WAIT_STAGE   ? moved(b, what) > 0
           : what == DPT_SPAN_WAIT_THREADS ? b->t->layout.all_threads > ranks
                                           : true;
}

/* Seconds of what has no row: two marks that follow one another, between which a busy machine may
 * run something else for as long as it likes. */
static double without_row(const struct dpt_bench *b, const double *seconds)
{
    double sum = 0;

    for (const struct part *part = parts; part < parts + sizeof parts / sizeof *parts; part++)
        sum += has_row(b, part->what) ? 0 : seconds[part->what];
    return sum;
}

static void add_part(struct dpt_bench *b, const struct part *part, double seconds)
{
    const int what = part->what, ranks = b->t->comm->world.size;
    struct dpt_bench_row row = {.pass = "",
                                .waiting = part->waiting,
                                .small = what == DPT_SPAN_LAYOUTS,
                                .seconds = seconds,
                                .cost = dpt_cost_of_part(&b->workload, what)};

    /* Another rank reads what each rank sends in the rounds of a step. */
    if (what == DPT_SPAN_REDUCTION)
        row.cost.move[0].bytes += 2 * ranks * moved(b, what);
    snprintf(row.part, sizeof row.part, "%s%s", part->name,
             what == DPT_SPAN_DATA ? done_to_samples(b->t) : "");
    add_row(b, &row);
}

/* node: the one in whose passes the group is computed. */
static void add_nodes(struct dpt_bench *b, int32_t node, struct group g, const char *pass,
                      enum dpt_cost_pass kind, bool wants_data, double seconds)
{
    const struct dpt_backend *backend = b->t->backend;
    const struct dpt_graph_node *nodes = b->t->model.graph.nodes;
    const enum dpt_span_pass span = kind == DPT_COST_FORWARD ? DPT_PASS_FORWARD
                                    : kind == DPT_COST_DATA  ? DPT_PASS_BACKWARD
                                                             : DPT_PASS_WEIGHTS;
    struct dpt_bench_row row = {
        .pass = pass,
        .way = backend->way != NULL ? backend->way(b->t->model.program, node, span) : NULL,
        .seconds = seconds};
    size_t used = 0;

    for (int32_t i = 0; i < g.n && used < sizeof row.part; i++)
        used += (size_t)snprintf(row.part + used, sizeof row.part - used, "%s%s", i == 0 ? "" : "+",
                                 nodes[g.nodes[i]].name);
    row.small = g.n == 1 && dpt_operation_of(&nodes[g.nodes[0]])->kind == DPT_CLASS_NOTHING;
    if (!row.small) /* they need not move anything */
        row.cost = dpt_cost_of_nodes(&b->workload, g.nodes, g.n, kind, wants_data);
    add_row(b, &row);
}

static void add_forward(struct dpt_bench *b, const double *seconds, const double *calls,
                        int32_t *nodes)
{
    for (int32_t i = 0; i < b->t->model.graph.n_nodes; i++) {
        const int what = dpt_span_node(i, DPT_PASS_FORWARD);
        const struct group g = group_of(b->t, i, false, nodes);

        if (calls[what] > 0 && g.n > 0)
            add_nodes(b, i, g, "forward", DPT_COST_FORWARD, true, seconds[what]);
    }
}

static void add_backward(struct dpt_bench *b, const double *seconds, const double *calls,
                         int32_t *nodes)
{
    const struct dpt_graph *graph = &b->t->model.graph;

    for (int32_t i = graph->n_nodes - 1; i > 0; i--) {
        const int weights = dpt_span_node(i, DPT_PASS_WEIGHTS);
        const int rest = dpt_span_node(i, DPT_PASS_BACKWARD);
        const struct group g = group_of(b->t, i, true, nodes);
        const bool wants_data = passes_on(graph, g);

        if (g.n == 0 || calls[weights] + calls[rest] == 0)
            continue;
        if (calls[weights] > 0) {
            add_nodes(b, i, g, "backward-weights", DPT_COST_WEIGHTS, false,
                      seconds[weights] + (wants_data ? 0 : seconds[rest]));
            if (wants_data)
                add_nodes(b, i, g, "backward-data", DPT_COST_DATA, true, seconds[rest]);
        } else if (has_weights(graph, g)) {
            add_nodes(b, i, g, wants_data ? "backward" : "backward-weights", DPT_COST_BACKWARD,
                      wants_data, seconds[rest]);
        } else {
            add_nodes(b, i, g, "backward-data", DPT_COST_DATA, true, seconds[rest]);
        }
    }
}

enum dpt_status dpt_bench_rows(struct dpt_bench *b, const double *seconds, const double *calls,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t most = DPT_SPAN_NODES + (size_t)b->t->model.graph.n_nodes * DPT_SPAN_PASSES;
    int32_t *nodes =
        dpt_region_alloc(&b->region, (size_t)b->t->model.graph.n_nodes * sizeof *nodes);

    b->rows = dpt_region_alloc(&b->region, most * sizeof *b->rows);
    if (b->rows == NULL || nodes == NULL)
        return dpt_fail_memory(err, "the table", (double)most * sizeof *b->rows);
    b->workload = dpt_workload_of(&b->t->layout, b->t->data.train.set);
    /* The reduction has computed the sums of squares, and the norm only adds up some of them. */
    b->workload.squares =
        b->t->reduction.state != NULL && b->t->reduction.type->sums_of_squares(b->t) != NULL;
    DPT_TRY(dpt_plan_read_list(&b->t->layout, b->t->stage, &b->traffic, err));
    for (const struct part *part = parts; part < parts + sizeof parts / sizeof *parts; part++) {
        if (has_row(b, part->what))
            add_part(b, part,
                     seconds[part->what] +
                         (part->what == DPT_SPAN_OTHER ? without_row(b, seconds) : 0));
        if (part->what == DPT_SPAN_DATA)
            add_forward(b, seconds, calls, nodes);
        else if (part->what == DPT_SPAN_LOSS)
            add_backward(b, seconds, calls, nodes);
    }
out:
    return status;
}
