/* The ranks of a run that divide the model: where each is, how long it worked, how much memory it
 * had. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/report/report.h"

/* Along each axis; without one there is one rank. */
struct mesh {
    int64_t data, tensor, pipeline;
};

static struct mesh mesh_of(const struct dpt_history_start *s)
{
    return (struct mesh){.data = s->data > 0 ? s->data : 1,
                         .tensor = s->tensor > 0 ? s->tensor : 1,
                         .pipeline = s->pipeline > 0 ? s->pipeline : 1};
}

bool dpt_page_has_mesh(const struct dpt_history_start *s)
{
    const struct mesh m = s != NULL ? mesh_of(s) : (struct mesh){0};

    /* Where there are very many ranks metrics.jsonl does not tell each one's node. */
    return s != NULL && s->data > 0 && s->ranks > 1 && s->rank_nodes != NULL &&
           m.data <= s->ranks && m.tensor <= s->ranks && m.pipeline <= s->ranks &&
           m.data * m.tensor * m.pipeline == s->ranks;
}

static double largest(const double *values, int64_t n)
{
    double most = 0;

    for (int64_t i = 0; values != NULL && i < n; i++)
        most = fmax(most, values[i]);
    return most;
}

static const char *show_bytes(char *buf, double bytes)
{
    snprintf(buf, DPT_HTML_NUMBER, bytes < 999.5e6 ? "%.3g\u00a0MB" : "%.3g\u00a0GB",
             bytes < 999.5e6 ? bytes / 1e6 : bytes / 1e9);
    return buf;
}

static void write_rank(struct dpt_page *r, const struct dpt_history_start *s, int64_t rank)
{
    const double most = largest(s->rank_seconds, s->ranks);
    const int node = (int)s->rank_nodes[rank];
    char text[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<div class=\"rank k%d\"><b>rank %lld</b>", node % DPT_CHART_COLOURS,
                   (long long)rank);
    if (s->hosts > 1)
        dpt_str_printf(&r->out, " <span class=\"dim\">node %d</span>", node + 1);
    if (most > 0)
        dpt_str_printf(&r->out,
                       "<svg viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" "
                       "aria-hidden=\"true\"><rect class=\"fill\" width=\"%.1f\" "
                       "height=\"6\"/></svg><span class=\"num\">%s</span>",
                       100 * s->rank_seconds[rank] / most,
                       dpt_html_seconds(text, s->rank_seconds[rank]));
    if (s->rank_bytes != NULL)
        dpt_str_printf(&r->out, " <span class=\"num dim\">%s</span>",
                       show_bytes(text, s->rank_bytes[rank]));
    dpt_str_printf(&r->out, "</div>");
}

/* A column per stage, a row per replica; a cell has the ranks that share a layer's outputs. */
static void write_grid(struct dpt_page *r, const struct dpt_history_start *s, const struct mesh *m)
{
    dpt_str_printf(&r->out, "<div class=\"scroll\"><table class=\"mesh\"><thead><tr><td></td>");
    for (int64_t k = 0; k < m->pipeline; k++) {
        dpt_str_printf(&r->out, "<th scope=\"col\">");
        if (m->pipeline > 1)
            dpt_str_printf(&r->out, "stage %lld%s", (long long)k + 1,
                           k + 1 < m->pipeline ? " →" : "");
        else
            dpt_str_printf(&r->out, "the whole model");
        if (s->stages != NULL)
            dpt_html_element(&r->out, "<small>from ", s->stages[k], "</small>");
        dpt_str_printf(&r->out, "</th>");
    }
    dpt_str_printf(&r->out, "</tr></thead><tbody>\n");
    for (int64_t d = 0; d < m->data; d++) {
        dpt_str_printf(&r->out, "<tr><th scope=\"row\">replica %lld</th>", (long long)d + 1);
        for (int64_t k = 0; k < m->pipeline; k++) {
            dpt_str_printf(&r->out, "<td>");
            for (int64_t t = 0; t < m->tensor; t++)
                write_rank(r, s, (k * m->data + d) * m->tensor + t);
            dpt_str_printf(&r->out, "</td>");
        }
        dpt_str_printf(&r->out, "</tr>\n");
    }
    dpt_page_close_table(r);
}

void dpt_page_mesh(struct dpt_page *r, size_t run)
{
    const struct dpt_history_start *s = dpt_history_start(&r->runs.at[run].history);
    const struct mesh m = mesh_of(s);

    dpt_str_printf(&r->out, "<h3>Mesh");
    if (r->runs.n > 1)
        dpt_page_label(r, " of ", run, "");
    dpt_str_printf(&r->out, "</h3>\n<p>%lld replica%s", (long long)m.data, m.data == 1 ? "" : "s");
    if (m.tensor > 1)
        dpt_str_printf(&r->out, " x %lld parts of each wide layer", (long long)m.tensor);
    if (m.pipeline > 1)
        dpt_str_printf(&r->out, " x %lld stages", (long long)m.pipeline);
    if (s->hosts > 1)
        dpt_str_printf(&r->out, ", on %lld nodes", (long long)s->hosts);
    if (m.data > 1 && s->shard[0] != '\0' && strcmp(s->shard, "none") != 0) {
        dpt_html_element(&r->out, "; shard: <b>", s->shard, "</b>");
        dpt_str_printf(&r->out, ", of which a replica keeps 1/%lld", (long long)m.data);
    }
    dpt_str_printf(&r->out, ". Seconds are a rank's own work in the logged steps");
    if (s->rank_bytes != NULL)
        dpt_str_printf(&r->out, "; memory is the most that it had, with what the ranks of a node "
                                "share");
    dpt_str_printf(&r->out, ".</p>\n");
    write_grid(r, s, &m);
}
