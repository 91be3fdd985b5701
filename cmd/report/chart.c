#include "cmd/report/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Lengths are in the chart's units; the style sheet scales it to the page. */
static const double WIDTH = 480, HEIGHT = 270, LEFT = 64, RIGHT = 22, TOP = 12, BOTTOM = 42;

/* The range of values that the chart shows. */
struct frame {
    const struct dpt_chart *chart;
    double low_x, high_x, low_y, high_y;
    struct dpt_str *out;
};

bool dpt_chart_wants_log(const struct dpt_line *lines, size_t n)
{
    double low = INFINITY, high = 0;

    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < lines[i].points.n; k++) {
            if (lines[i].points.y[k] < 1e-100) /* the ratio of two must not overflow */
                return false;
            if (lines[i].kind == DPT_LINE_RAW)
                continue;
            low = fmin(low, lines[i].points.y[k]);
            high = fmax(high, lines[i].points.y[k]);
        }
    }
    return high > 15 * low;
}

static double scale_y(const struct frame *f, double y)
{
    return f->chart->log ? log10(y) : y;
}

static double place_x(const struct frame *f, double x)
{
    return LEFT + (x - f->low_x) / (f->high_x - f->low_x) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct frame *f, double y)
{
    const double low = scale_y(f, f->low_y), high = scale_y(f, f->high_y);
    const double share = (scale_y(f, y) - low) / (high - low);

    /* Far off the chart is as good as off it, and short. */
    return HEIGHT - BOTTOM - fmin(fmax(share, -2), 3) * (HEIGHT - TOP - BOTTOM);
}

/* Finds the range of values, outliers left out. */
static void find_range(struct frame *f)
{
    const struct dpt_chart *chart = f->chart;

    f->low_x = f->low_y = INFINITY;
    f->high_x = f->high_y = -INFINITY;
    for (size_t i = 0; i < chart->n; i++) {
        const struct dpt_series *s = &chart->lines[i].points;
        const enum dpt_line_kind kind = chart->lines[i].kind;
        const double cut = kind == DPT_LINE_SOLID ? chart->cut : 0;
        double low, high;

        if (s->n == 0)
            continue;
        for (size_t k = 0; k < s->n; k++) {
            f->low_x = fmin(f->low_x, s->x[k]);
            f->high_x = fmax(f->high_x, s->x[k]);
        }
        if (dpt_series_quantile(s, kind == DPT_LINE_RAW ? fmax(0.02, chart->cut) : cut, &low) &&
            dpt_series_quantile(s, kind == DPT_LINE_RAW ? 0.98 : 1, &high)) {
            f->low_y = fmin(f->low_y, low);
            f->high_y = fmax(f->high_y, high);
        }
    }
}

static void make_room(struct frame *f)
{
    const struct dpt_chart *chart = f->chart;
    double pad;

    if (chart->diagonal) {
        f->low_x = f->low_y = fmin(f->low_x, f->low_y);
        f->high_x = f->high_y = fmax(f->high_x, f->high_y);
    }
    if (!(f->high_x > f->low_x)) {
        pad = fmax(0.5, 1e-6 * fabs(f->high_x)); /* more than rounding takes from a huge step */
        f->low_x -= pad;
        f->high_x += pad;
    }
    if (chart->log) {
        pad = pow(f->high_y / f->low_y, 0.04) * (f->high_y > f->low_y ? 1 : 1.5);
        f->low_y /= pad;
        f->high_y *= pad;
        return;
    }
    if (chart->zero)
        f->low_y = fmin(f->low_y, 0);
    pad = f->high_y > f->low_y ? 0.05 * (f->high_y - f->low_y) : fmax(fabs(f->high_y) * 0.05, 1e-9);
    f->high_y += pad;
    if (!chart->zero || f->low_y < 0)
        f->low_y -= pad;
    if (chart->percent)
        f->high_y = fmin(f->high_y, fmax(1, f->low_y + 2 * pad));
    if (chart->diagonal) {
        f->low_x = f->low_y;
        f->high_x = f->high_y;
    }
}

static void draw_axes(const struct frame *f)
{
    struct dpt_ticks ticks;

    if (f->chart->log)
        dpt_ticks_log(&ticks, f->low_y, f->high_y);
    else
        dpt_ticks_linear(&ticks, f->low_y, f->high_y, 5, f->chart->percent);
    for (int i = 0; i < ticks.n; i++) {
        const double y = place_y(f, ticks.at[i]);

        dpt_str_printf(f->out,
                       "<path class=\"grid\" d=\"M%g %.1fH%g\"/><text x=\"%g\" y=\"%.1f\" "
                       "class=\"tick end\">%s</text>\n",
                       LEFT, y, WIDTH - RIGHT, LEFT - 6, y + 4, ticks.label[i]);
    }
    dpt_ticks_linear(&ticks, f->low_x, f->high_x, 5, false);
    for (int i = 0; i < ticks.n; i++) {
        const double x = place_x(f, ticks.at[i]);

        if (f->chart->powers)
            snprintf(ticks.label[i], sizeof ticks.label[i], "%.2g", pow(10, ticks.at[i]));
        dpt_str_printf(f->out,
                       "<path class=\"axis\" d=\"M%.1f %gv4\"/><text x=\"%.1f\" y=\"%g\" "
                       "class=\"tick mid\">%s</text>\n",
                       x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 17, ticks.label[i]);
    }
    dpt_str_printf(f->out, "<path class=\"axis\" d=\"M%g %gH%g\"/>", LEFT, HEIGHT - BOTTOM,
                   WIDTH - RIGHT);
    dpt_str_printf(f->out, "<text x=\"%g\" y=\"%g\" class=\"tick mid\"", (LEFT + WIDTH - RIGHT) / 2,
                   HEIGHT - 6);
    dpt_html_element(f->out, ">", f->chart->x_label, "</text>\n");
}

static void draw_points(const struct frame *f, const struct dpt_line *line, int colour)
{
    for (size_t i = 0; i < line->points.n; i++) {
        const double x = place_x(f, line->points.x[i]), y = place_y(f, line->points.y[i]);

        if (line->kind == DPT_LINE_MARK)
            dpt_str_printf(f->out,
                           "<path class=\"mark k%d\" d=\"M%.1f %.2fl5.5 5.5-5.5 5.5-5.5-5.5z\"/>",
                           colour, x, y - 5.5);
        else
            dpt_str_printf(f->out, "<circle class=\"%s k%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>",
                           line->kind == DPT_LINE_CLOUD ? "cloud" : "dot", colour, x, y);
    }
}

/* After the last colour they repeat, with dashed lines. */
static const char *late(const struct dpt_line *line)
{
    return line->kind == DPT_LINE_SOLID && line->colour >= DPT_CHART_COLOURS ? " late" : "";
}

static void draw_line(const struct frame *f, const struct dpt_line *line)
{
    static const char *const classes[DPT_LINE_KINDS] = {
        [DPT_LINE_RAW] = "raw",     [DPT_LINE_SOLID] = "line", [DPT_LINE_DASHED] = "line dash",
        [DPT_LINE_MARK] = "hidden", [DPT_LINE_CLOUD] = NULL,
    };
    enum { MOST_DOTS = 60 };
    const int colour = line->colour % DPT_CHART_COLOURS;
    const bool dots = line->kind == DPT_LINE_MARK || line->kind == DPT_LINE_CLOUD ||
                      (line->kind == DPT_LINE_DASHED && line->points.n <= MOST_DOTS) ||
                      (line->kind == DPT_LINE_SOLID && line->points.n == 1);

    if (line->points.n == 0)
        return;
    dpt_str_printf(f->out, "<g");
    if (f->chart->several)
        dpt_str_printf(f->out, " data-r=\"%d\"", line->colour);
    if (line->part != NULL)
        dpt_html_element(f->out, " data-p=\"", line->part, "\"");
    dpt_str_printf(f->out, ">");
    if (classes[line->kind] != NULL) {
        dpt_str_printf(f->out, "<polyline class=\"%s%s k%d\"", classes[line->kind], late(line),
                       colour);
        if (line->kind != DPT_LINE_RAW)
            dpt_html_element(f->out, " data-name=\"", line->name, "\"");
        dpt_str_printf(f->out, " points=\"");
        for (size_t i = 0; i < line->points.n; i++)
            dpt_str_printf(f->out, "%s%.1f,%.2f", i == 0 ? "" : " ", place_x(f, line->points.x[i]),
                           place_y(f, line->points.y[i]));
        dpt_str_printf(f->out, "\"/>");
    }
    if (dots)
        draw_points(f, line, colour);
    dpt_str_printf(f->out, "</g>\n");
}

static void draw_bad(const struct frame *f)
{
    enum { MOST = 50 };
    const size_t n = f->chart->n_bad, stride = 1 + n / MOST;

    for (size_t i = 0; i < n; i += stride) {
        const double x = f->chart->bad[i];

        if (x >= f->low_x && x <= f->high_x)
            dpt_str_printf(f->out, "<path class=\"bad\" d=\"M%.1f %gl6 6m0-6l-6 6\"/>\n",
                           place_x(f, x) - 3, TOP + 1);
    }
}

/* A chart of one line that is called as the chart needs no legend. */
static bool wants_legend(const struct dpt_chart *chart)
{
    const struct dpt_line *last = &chart->lines[chart->n - 1];
    size_t named = 0;

    for (size_t i = 0; i < chart->n; i++)
        named +=
            chart->lines[i].kind != DPT_LINE_RAW && (chart->lines[i].run != NULL || !chart->told);
    return named > 1 || chart->n_bad > 0 || strcmp(last->name, chart->title) != 0;
}

/* Writes a piece of a line and its name; colour -1: none; of_run: it is the entry of a run. */
static void write_entry(struct dpt_str *out, const struct dpt_line *line, int colour, bool of_run,
                        const char *name)
{
    char class[16] = "any";

    if (colour >= 0)
        snprintf(class, sizeof class, "k%d", colour % DPT_CHART_COLOURS);
    if (of_run)
        dpt_str_printf(out, "<li data-r=\"%d\">", colour);
    else if (line->part != NULL)
        dpt_html_element(out, "<li data-p=\"", line->part, "\">");
    else
        dpt_str_printf(out, "<li>");
    dpt_str_printf(out,
                   "<svg class=\"%s\" viewBox=\"0 0 26 12\" width=\"26\" height=\"12\" "
                   "aria-hidden=\"true\">",
                   class);
    if (line->kind == DPT_LINE_MARK)
        dpt_str_printf(out, "<path class=\"mark\" d=\"M13 .5l5.5 5.5-5.5 5.5-5.5-5.5z\"/>");
    else if (line->kind == DPT_LINE_CLOUD)
        dpt_str_printf(out, "<circle class=\"dot\" cx=\"13\" cy=\"6\" r=\"3\"/>");
    else
        dpt_str_printf(out, "<path class=\"line%s%s\" d=\"M1 6h24\"/>",
                       line->kind == DPT_LINE_DASHED ? " dash" : "", late(line));
    dpt_html_element(out, "</svg>", name, "</li>\n");
}

void dpt_chart_write_run(struct dpt_str *out, size_t run, const char *name)
{
    const struct dpt_line whole = {.kind = DPT_LINE_SOLID, .colour = (int)run};

    write_entry(out, &whole, (int)run, true, name);
}

/* Whether an earlier line that is in the legend has this run (or, where `part`, this part). */
static bool told(const struct dpt_chart *chart, size_t line, bool part)
{
    const struct dpt_line *own = &chart->lines[line];

    for (size_t i = 0; i < line; i++) {
        const struct dpt_line *other = &chart->lines[i];

        if (other->kind == DPT_LINE_RAW)
            continue;
        if (part ? other->kind == own->kind && strcmp(other->part, own->part) == 0
                 : other->colour == own->colour)
            return true;
    }
    return false;
}

/* The lines of one run by their names; of several the runs by their colours, then how each one's
 * lines are drawn. */
static void write_legend(const struct frame *f)
{
    const struct dpt_chart *chart = f->chart;

    if (!wants_legend(chart))
        return;
    dpt_str_printf(f->out, "<ul class=\"legend\">\n");
    for (size_t i = 0; i < chart->n; i++) {
        const struct dpt_line *line = &chart->lines[i];

        if (line->kind == DPT_LINE_RAW || (chart->several && chart->told))
            continue;
        if (line->run == NULL)
            write_entry(f->out, line, line->colour, chart->several, line->name);
        else if (!told(chart, i, false))
            dpt_chart_write_run(f->out, (size_t)line->colour, line->run);
    }
    for (size_t i = 0; i < chart->n; i++) {
        const struct dpt_line *line = &chart->lines[i];

        if (line->kind != DPT_LINE_RAW && line->run != NULL && !told(chart, i, true))
            write_entry(f->out, line, -1, false, line->part);
    }
    if (chart->n_bad > 0)
        dpt_str_printf(f->out,
                       "<li><svg viewBox=\"0 0 26 12\" width=\"26\" height=\"12\" "
                       "aria-hidden=\"true\"><path class=\"bad\" d=\"M10 3l6 6m0-6l-6 "
                       "6\"/></svg>not a number (%zu)</li>\n",
                       chart->n_bad);
    dpt_str_printf(f->out, "</ul>\n");
}

static void write_head(const struct frame *f)
{
    const struct dpt_chart *chart = f->chart;

    dpt_str_printf(f->out, "<figure class=\"chart\" id=\"%s\">\n", chart->id);
    dpt_html_element(f->out, "<figcaption>", chart->title, "");
    if (chart->y_label != NULL)
        dpt_html_element(f->out, " <span>", chart->y_label, "</span>");
    dpt_str_printf(f->out,
                   "</figcaption>\n<svg class=\"plot\" viewBox=\"0 0 %g %g\" role=\"img\" "
                   "aria-label=\"",
                   WIDTH, HEIGHT);
    dpt_html_text(f->out, chart->about != NULL ? chart->about : chart->title);
    dpt_str_printf(f->out, "\" data-x=\"%.17g %.17g\" data-y=\"%.17g %.17g\"%s%s%s data-in=\"",
                   f->low_x, f->high_x, scale_y(f, f->low_y), scale_y(f, f->high_y),
                   chart->log ? " data-log" : "", chart->powers ? " data-powers" : "",
                   chart->percent ? " data-percent" : "");
    dpt_str_printf(f->out, "%g %g %g %g\"", LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
    dpt_html_element(f->out, " data-unit=\"", chart->x_label, "\">\n");
    dpt_str_printf(f->out,
                   "<clipPath id=\"%s-in\"><rect x=\"%g\" y=\"%g\" width=\"%g\" "
                   "height=\"%g\"/></clipPath>\n",
                   chart->id, LEFT - 4, TOP - 6, WIDTH - LEFT - RIGHT + 8,
                   HEIGHT - TOP - BOTTOM + 7);
}

void dpt_chart_write(const struct dpt_chart *chart, struct dpt_str *out)
{
    struct frame f = {.chart = chart, .out = out};

    find_range(&f);
    if (!(f.low_x <= f.high_x))
        return;
    make_room(&f);
    write_head(&f);
    draw_axes(&f);
    dpt_str_printf(out, "<g clip-path=\"url(#%s-in)\">\n", chart->id);
    if (chart->diagonal)
        dpt_str_printf(out, "<path class=\"grid strong\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n",
                       place_x(&f, f.low_x), place_y(&f, f.low_x), place_x(&f, f.high_x),
                       place_y(&f, f.high_x));
    for (size_t i = 0; i < chart->n; i++)
        draw_line(&f, &chart->lines[i]);
    draw_bad(&f);
    dpt_str_printf(out, "</g>\n</svg>\n");
    write_legend(&f);
    dpt_str_printf(out, "</figure>\n");
}
