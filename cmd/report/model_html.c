/* The models: their layers, what each gives, and how many parameters it has. */
#include <string.h>

#include "cmd/report/report.h"
#include "core/backend/operation.h"

/* Layers that do not read the one above them. */
static bool reads_others(const struct dpt_graph *graph)
{
    for (int32_t i = 1; i < graph->n_nodes; i++)
        if (graph->nodes[i].n_inputs != 1 || graph->nodes[i].inputs[0] != i - 1)
            return true;
    return false;
}

static void write_node(const struct dpt_graph *graph, int32_t i, bool reads, struct dpt_str *out)
{
    const struct dpt_graph_node *node = &graph->nodes[i];
    const int64_t parameters = dpt_graph_node_parameters(graph, node);
    char shape[40], digits[32];

    dpt_html_element(out, "<tr><th scope=\"row\">", node->name, "</th>");
    dpt_str_printf(out, "<td>%s</td>", dpt_operations[node->op]->name);
    if (reads) {
        dpt_str_printf(out, "<td>");
        for (int32_t k = 0; k < node->n_inputs; k++)
            dpt_html_element(out, k > 0 ? ", " : "", graph->nodes[node->inputs[k]].name, "");
        dpt_str_printf(out, "</td>");
    }
    dpt_str_printf(out, "<td>%s</td><td>%s</td></tr>\n", dpt_shape_text(&node->out, shape),
                   parameters > 0 ? dpt_group_digits(digits, parameters) : "");
}

enum dpt_status dpt_page_take_model(struct dpt_page *r, size_t run, const struct dpt_graph *graph,
                                    struct dpt_error *err)
{
    const bool reads = reads_others(graph);
    struct dpt_str text = {0};
    char digits[32];

    dpt_str_printf(
        &text,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"layers of the "
        "model\"><table class=\"pairs layers\"><thead><tr><th scope=\"col\">layer</th>"
        "<th scope=\"col\">kind</th>%s<th scope=\"col\">output</th><th "
        "scope=\"col\">parameters</th></tr></thead>\n<tbody>",
        reads ? "<th scope=\"col\">reads</th>" : "");
    for (int32_t i = 0; i < graph->n_nodes; i++)
        write_node(graph, i, reads, &text);
    dpt_str_printf(&text,
                   "</tbody>\n<tfoot><tr><th scope=\"row\">all</th><td></td>%s<td></td>"
                   "<td>%s</td></tr></tfoot></table></div>\n",
                   reads ? "<td></td>" : "", dpt_group_digits(digits, graph->parameters));
    r->models[run] = text.failed ? NULL : dpt_region_strdup(&r->region, text.text);
    dpt_str_release(&text);
    return r->models[run] != NULL ? DPT_OK : dpt_fail_memory(err, "the report", 0);
}

/* Runs of one model share its table. */
static bool is_first(const struct dpt_page *r, size_t run)
{
    for (size_t i = 0; i < run; i++)
        if (r->models[i] != NULL && strcmp(r->models[i], r->models[run]) == 0)
            return false;
    return true;
}

void dpt_page_models(struct dpt_page *r)
{
    size_t known = 0, kinds = 0;

    for (size_t i = 0; i < r->runs.n; i++) {
        known += r->models[i] != NULL;
        kinds += r->models[i] != NULL && is_first(r, i);
    }
    if (known == 0)
        return;
    dpt_str_printf(&r->out, "<section id=\"model\"><h2>%s</h2>\n", kinds == 1 ? "Model" : "Models");
    for (size_t i = 0; i < r->runs.n; i++) {
        if (r->models[i] == NULL || !is_first(r, i))
            continue;
        dpt_str_printf(&r->out, "<details%s><summary>", kinds == 1 ? " open" : "");
        for (size_t k = i; k < r->runs.n && kinds > 1; k++)
            if (r->models[k] != NULL && strcmp(r->models[k], r->models[i]) == 0)
                dpt_page_label(r, "<span class=\"run\">", k, "</span> ");
        dpt_str_printf(&r->out, "layers</summary>\n%s</details>\n", r->models[i]);
    }
    dpt_str_printf(&r->out, "</section>\n");
}
