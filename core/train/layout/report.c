#include <stdio.h>

#include "core/train/layout/report.h"

const char *dpt_layout_place_text(const struct dpt_layout *l, int rank, char text[DPT_PLACE_TEXT])
{
    const struct dpt_layout_place place = dpt_layout_place(l, rank);
    int n = 0;

    text[0] = '\0';
    if (l->stages > 1)
        n = snprintf(text, DPT_PLACE_TEXT, "stage %d of %d%s", place.stage + 1, l->stages,
                     l->tensor > 1 ? ", " : "");
    if (l->tensor > 1)
        snprintf(text + n, DPT_PLACE_TEXT - (size_t)n, "part %d of %d", place.part + 1, l->tensor);
    return text;
}

/* "3 x 2 replicas (1f1b): from a on ranks 0-1, ..." */
void dpt_layout_describe_stages(const struct dpt_layout *l, struct dpt_str *out)
{
    const int replicas = l->replicas, ranks = replicas * l->tensor;

    if (l->stages == 1)
        return;
    dpt_str_printf(out, "%d x %d replica%s, %s:", l->stages, replicas, replicas == 1 ? "" : "s",
                   DPT_CHOICES(DPT_PIPELINES)[l->job->parallel.pipeline.schedule]);
    for (int k = 0; k < l->stages; k++) {
        dpt_str_printf(out, "%s from %s on rank%s %d", k > 0 ? "," : "",
                       l->graph->nodes[l->stage[k].first].name, ranks == 1 ? "" : "s", k * ranks);
        if (ranks > 1)
            dpt_str_printf(out, "-%d", (k + 1) * ranks - 1);
    }
}

/* "2 x 3 replicas, each with a part of dense1, dense2, dense3 and 4 more" */
void dpt_layout_describe_parts(const struct dpt_layout *l, struct dpt_str *out)
{
    enum { NAMED = 3 };
    const struct dpt_graph *graph = l->graph;
    const int replicas = l->replicas;
    int n = 0;

    if (l->tensor == 1)
        return;
    dpt_str_printf(out, "%d x %d replica%s, each with a part of", l->tensor, replicas,
                   replicas == 1 ? "" : "s");
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];

        if (node->weight < 0 || dpt_graph_divided(graph, node->weight) == NULL)
            continue;
        if (n++ < NAMED)
            dpt_str_printf(out, "%s %s", n > 1 ? "," : "", node->name);
    }
    if (n > NAMED)
        dpt_str_printf(out, " and %d more", n - NAMED);
}

void dpt_layout_metrics(const struct dpt_layout *l, const int32_t *nodes, struct dpt_metrics *m)
{
    if (l->model_ranks == 1 && l->updaters == 1)
        return;
    dpt_metrics_int(m, "data", l->replicas);
    dpt_metrics_int(m, "tensor", l->tensor);
    dpt_metrics_int(m, "pipeline", l->stages);
    dpt_metrics_text(m, "shard", DPT_CHOICES(DPT_SHARDS)[l->job->parallel.shard]);
    if (l->model_ranks > 1) {
        const char *names[l->stages];

        for (int k = 0; k < l->stages; k++)
            names[k] = l->graph->nodes[l->stage[k].first].name;
        dpt_metrics_texts(m, "stages", names, (size_t)l->stages);
    }
    if (l->ranks <= DPT_RANKS_LISTED)
        dpt_metrics_ints(m, "rank_nodes", nodes, (size_t)l->ranks);
}
