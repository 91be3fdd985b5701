/* What a person and metrics.jsonl are told of the mesh. */
#include "core/base/memory.h"
#include "core/train/mesh/mesh.h"

/* "3 x 2 replicas (1f1b): from a on ranks 0-1, ..." */
void dpt_mesh_describe_stages(const struct dpt_trainer *t, struct dpt_str *out)
{
    const struct dpt_mesh *m = &t->mesh;
    const int replicas = m->replicas->world.size, ranks = replicas * m->tensor;

    if (m->stages == 1)
        return;
    dpt_str_printf(out, "%d x %d replica%s, %s:", m->stages, replicas, replicas == 1 ? "" : "s",
                   DPT_CHOICES(DPT_PIPELINES)[t->job->parallel.pipeline.schedule]);
    for (int k = 0; k < m->stages; k++) {
        dpt_str_printf(out, "%s from %s on rank%s %d", k > 0 ? "," : "",
                       t->model.graph.nodes[m->first[k]].name, ranks == 1 ? "" : "s", k * ranks);
        if (ranks > 1)
            dpt_str_printf(out, "-%d", (k + 1) * ranks - 1);
    }
}

/* "2 x 3 replicas, each with a part of dense1, dense2, dense3 and 4 more" */
void dpt_mesh_describe_parts(const struct dpt_trainer *t, struct dpt_str *out)
{
    enum { NAMED = 3 };
    const struct dpt_graph *graph = &t->model.graph;
    const int replicas = t->mesh.replicas->world.size;
    int n = 0;

    if (t->mesh.tensor == 1)
        return;
    dpt_str_printf(out, "%d x %d replica%s, each with a part of", t->mesh.tensor, replicas,
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

void dpt_mesh_metrics(const struct dpt_trainer *t, const int32_t *nodes, struct dpt_metrics *m)
{
    const struct dpt_mesh *mesh = &t->mesh;

    if (dpt_trainer_model_ranks(t) == 1 && dpt_trainer_owners(t) == 1)
        return;
    dpt_metrics_int(m, "data", dpt_trainer_replicas(t)->world.size);
    dpt_metrics_int(m, "tensor", mesh->tensor);
    dpt_metrics_int(m, "pipeline", mesh->stages);
    dpt_metrics_text(m, "shard", DPT_CHOICES(DPT_SHARDS)[t->job->parallel.shard]);
    if (dpt_trainer_model_ranks(t) > 1) {
        const char *names[mesh->stages];

        for (int k = 0; k < mesh->stages; k++)
            names[k] = t->model.graph.nodes[mesh->first[k]].name;
        dpt_metrics_texts(m, "stages", names, (size_t)mesh->stages);
    }
    if (t->comm->world.size <= DPT_RANKS_LISTED)
        dpt_metrics_ints(m, "rank_nodes", nodes, (size_t)t->comm->world.size);
}
