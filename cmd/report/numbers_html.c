/* What a model of numbers predicts: how far off it is, in the units of the data, and where most. */
#include <math.h>
#include <stdio.h>

#include "cmd/report/report.h"

enum { MOST_TARGETS = 20 };

/* Writes as many digits as are worth reading, and no exponent where there need be none. */
static const char *show(char *buf, double value)
{
    return fabs(value) >= 1e4 ? dpt_html_count(buf, value) : dpt_html_number(buf, value, 4);
}

/* What an output is called, between two pieces of markup. */
static void write_name(struct dpt_page *r, const struct dpt_page_predictions *v, int32_t output,
                       const char *before, const char *after)
{
    char number[32];

    snprintf(number, sizeof number, "output %d", output + 1);
    dpt_html_element(&r->out, before, v->targets[output] != NULL ? v->targets[output] : number,
                     after);
}

static void write_targets(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const double n = (double)v->samples;
    const double *absolute = v->errors, *squares = absolute + v->outputs,
                 *mean = squares + v->outputs, *spread = mean + v->outputs;
    char text[DPT_HTML_NUMBER];

    dpt_page_open_table(
        r, "pairs errors", "",
        (const char *const[]){"target", "mean absolute error", "root of the mean squared error",
                              "R²", "mean of the target", "its standard deviation", NULL});
    for (int32_t k = 0; k < v->outputs && k < MOST_TARGETS; k++) {
        write_name(r, v, k, "<tr><th scope=\"row\">", "</th>");
        dpt_str_printf(&r->out, "<td>%s</td>", show(text, absolute[k] / n));
        dpt_str_printf(&r->out, "<td>%s</td>", show(text, sqrt(squares[k] / n)));
        dpt_str_printf(&r->out, "<td>%s</td>",
                       dpt_html_number(text, spread[k] > 0 ? 1 - squares[k] / spread[k] : NAN, 5));
        dpt_str_printf(&r->out, "<td>%s</td>", show(text, mean[k]));
        dpt_str_printf(&r->out, "<td>%s</td></tr>\n", show(text, sqrt(spread[k] / n)));
    }
    dpt_page_close_table(r);
    if (v->outputs > MOST_TARGETS)
        dpt_str_printf(&r->out, "<p class=\"dim note\">The first %d of %d outputs.</p>\n",
                       MOST_TARGETS, v->outputs);
}

static void write_clouds(struct dpt_page *r, size_t run)
{
    struct dpt_page_predictions *v = &r->predictions[run];
    const struct dpt_series *s = &v->residuals;
    const char *name = v->targets[0] != NULL ? v->targets[0]
                       : v->outputs > 1      ? "first output"
                                             : NULL;
    double ends[2] = {INFINITY, -INFINITY}, zero[2] = {0, 0};
    struct dpt_line cloud = {
        .name = "Predicted against true", .kind = DPT_LINE_CLOUD, .colour = (int)run};
    struct dpt_line lines[2] = {{.name = "", .kind = DPT_LINE_RAW, .colour = (int)run},
                                {.name = "Errors", .kind = DPT_LINE_CLOUD, .colour = (int)run}};
    char id[32];
    struct dpt_chart chart = {
        .id = id,
        .title = "Predicted against true",
        .x_label = "true",
        .y_label = name,
        .lines = &cloud,
        .n = 1,
        .diagonal = true,
    };

    cloud.points = v->cloud;
    dpt_str_printf(&r->out, "<div class=\"charts\">\n");
    snprintf(id, sizeof id, "cloud%zu", run);
    dpt_chart_write(&chart, &r->out);
    for (size_t i = 0; i < s->n; i++) {
        ends[0] = fmin(ends[0], s->x[i]);
        ends[1] = fmax(ends[1], s->x[i]);
    }
    lines[0].points = (struct dpt_series){.x = ends, .y = zero, .n = s->n > 0 ? 2 : 0};
    lines[1].points = *s;
    chart.title = "Errors";
    chart.x_label = "predicted";
    chart.y_label = name != NULL ? dpt_region_printf(&r->region, "predicted - true, %s", name)
                                 : "predicted - true";
    chart.lines = lines;
    chart.n = 2;
    chart.diagonal = false;
    snprintf(id, sizeof id, "errors%zu", run);
    dpt_chart_write(&chart, &r->out);
    dpt_str_printf(&r->out, "</div>\n");
    if (v->cloud.n < (size_t)v->samples)
        dpt_str_printf(&r->out, "<p class=\"dim note\">Some of the samples are drawn.</p>\n");
}

/* The samples that are farthest off. */
static void write_off(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    static const char *const one[] = {"sample", "true", "predicted", "error", NULL};
    static const char *const several[] = {"sample", "target", "true", "predicted", "error", NULL};
    char text[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<h3>Farthest off</h3>\n");
    dpt_page_open_table(r, "pairs off", "", v->outputs > 1 ? several : one);
    for (int i = 0; i < v->n_off; i++) {
        const struct dpt_page_off *off = &v->off[i];

        dpt_page_row(r, &off->sample);
        if (v->outputs > 1)
            write_name(r, v, off->output, "<td>", "</td>");
        dpt_str_printf(&r->out, "<td>%s</td>", show(text, (double)off->truth));
        dpt_str_printf(&r->out, "<td>%s</td>", show(text, (double)off->predicted));
        dpt_str_printf(&r->out, "<td>%s</td></tr>\n",
                       show(text, (double)off->predicted - (double)off->truth));
    }
    dpt_page_close_table(r);
}

void dpt_page_numbers(struct dpt_page *r, size_t run)
{
    write_targets(r, &r->predictions[run]);
    write_clouds(r, run);
    write_off(r, &r->predictions[run]);
}
