#include "cmd/watch/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/memory.h"

/* Columns of the axis: a label and a bar. */
enum { LABEL = 8, AXIS = LABEL + 2 };
/* A logarithmic axis says more where the largest value is so many times the least. */
static const double MANY_TIMES = 20;

void dpt_plot_range(struct dpt_plot *plot, const struct dpt_plot_point *points, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(points[i].y))
            continue;
        if (plot->y_least > plot->y_most)
            plot->y_least = plot->y_most = points[i].y;
        plot->y_least = fmin(plot->y_least, points[i].y);
        plot->y_most = fmax(plot->y_most, points[i].y);
    }
}

bool dpt_plot_open(struct dpt_plot *plot)
{
    size_t n;

    plot->cells = plot->columns > AXIS + 1 ? plot->columns - AXIS : 1;
    plot->rows = plot->rows > 1 ? plot->rows : 1;
    n = (size_t)plot->cells * (size_t)plot->rows;
    plot->logarithmic =
        plot->logarithmic && plot->y_least > 0 && plot->y_most > MANY_TIMES * plot->y_least;
    plot->dots = dpt_alloc(n);
    plot->marks = dpt_alloc(n);
    plot->inks = dpt_alloc_array(n, sizeof *plot->inks);
    return plot->dots != NULL && plot->marks != NULL && plot->inks != NULL;
}

void dpt_plot_close(struct dpt_plot *plot)
{
    dpt_free(plot->dots);
    dpt_free(plot->marks);
    dpt_free(plot->inks);
    plot->dots = NULL;
    plot->marks = NULL;
    plot->inks = NULL;
}

static int dots_across(const struct dpt_plot *plot)
{
    return plot->cells * (plot->ascii ? 1 : 2);
}

static int dots_down(const struct dpt_plot *plot)
{
    return plot->rows * (plot->ascii ? 2 : 4);
}

/* Where in [0, n) a value lies between two others. */
static int position(double value, double least, double most, int n)
{
    const double part = most > least ? (value - least) / (most - least) : 0.5;

    return (int)lround(fmin(fmax(part, 0), 1) * (n - 1));
}

static double height(const struct dpt_plot *plot, double y)
{
    return plot->logarithmic ? log(y) : y;
}

/* The dot of a point; y counts from the top. */
static void place(const struct dpt_plot *plot, const struct dpt_plot_point *point, int *x, int *y)
{
    *x = position(point->x, plot->x_least, plot->x_most, dots_across(plot));
    *y = dots_down(plot) - 1 -
         position(height(plot, point->y), height(plot, plot->y_least), height(plot, plot->y_most),
                  dots_down(plot));
}

static void set_dot(struct dpt_plot *plot, int x, int y)
{
    /* Bits of the braille characters from U+2800 on: [row][column]. */
    static const unsigned char braille[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const int across = plot->ascii ? 1 : 2, down = plot->ascii ? 2 : 4;
    const int cell = y / down * plot->cells + x / across;

    plot->dots[cell] |= plot->ascii ? (unsigned char)(1 << y % 2) : braille[y % 4][x % 2];
}

static void draw_line(struct dpt_plot *plot, int x0, int y0, int x1, int y1)
{
    const int dx = x1 - x0, dy = y1 - y0;
    const int n = abs(dx) > abs(dy) ? abs(dx) : abs(dy);

    for (int i = 0; i <= n; i++)
        set_dot(plot, x0 + (n == 0 ? 0 : (int)lround((double)dx * i / n)),
                y0 + (n == 0 ? 0 : (int)lround((double)dy * i / n)));
}

void dpt_plot_curve(struct dpt_plot *plot, const struct dpt_plot_point *points, size_t n)
{
    bool joined = false;
    int x = 0, y = 0;

    for (size_t i = 0; i < n; i++) {
        const int before_x = x, before_y = y;

        if (!isfinite(points[i].y)) {
            joined = false;
            continue;
        }
        place(plot, &points[i], &x, &y);
        draw_line(plot, joined ? before_x : x, joined ? before_y : y, x, y);
        joined = true;
    }
}

void dpt_plot_marks(struct dpt_plot *plot, const struct dpt_plot_point *points, size_t n,
                    char letter, const char *ink)
{
    const int across = plot->ascii ? 1 : 2, down = plot->ascii ? 2 : 4;

    for (size_t i = 0; i < n; i++) {
        int x, y, cell;

        if (!isfinite(points[i].y))
            continue;
        place(plot, &points[i], &x, &y);
        cell = y / down * plot->cells + x / across;
        plot->marks[cell] = letter;
        plot->inks[cell] = ink;
    }
}

/* Of the value in the middle of a row: where labels stand, and "" elsewhere. */
static void label(const struct dpt_plot *plot, int row, char text[2 * LABEL])
{
    const bool labelled =
        row == 0 || row == plot->rows - 1 || (plot->rows >= 5 && row == plot->rows / 2);
    const double low = height(plot, plot->y_least), high = height(plot, plot->y_most);
    const double part = plot->rows > 1 ? (double)row / (plot->rows - 1) : 0;
    const double value = high + (low - high) * part;

    text[0] = '\0';
    if (labelled && high >= low)
        snprintf(text, 2 * (size_t)LABEL, "%.3g", plot->logarithmic ? exp(value) : value);
}

static void add_cell(const struct dpt_plot *plot, unsigned char dots, struct dpt_str *out)
{
    static const char ascii[] = " '.:";
    char braille[3] = {(char)0xE2, (char)(0xA0 | dots >> 6), (char)(0x80 | (dots & 0x3F))};

    if (plot->ascii)
        dpt_str_add(out, &ascii[dots & 3], 1);
    else if (dots == 0)
        dpt_str_add(out, " ", 1);
    else
        dpt_str_add(out, braille, sizeof braille);
}

void dpt_plot_row(const struct dpt_plot *plot, int row, const char *ink, struct dpt_str *out)
{
    const char *now = NULL; /* the colour that is on */
    char text[2 * LABEL];

    label(plot, row, text);
    dpt_str_printf(out, "%*.*s %s", LABEL, LABEL, text, plot->ascii ? "|" : "│");
    for (int i = 0; i < plot->cells; i++) {
        const int cell = row * plot->cells + i;
        const char *want = plot->marks[cell] != 0  ? plot->inks[cell]
                           : plot->dots[cell] != 0 ? ink
                                                   : now;

        if (plot->color && want != now)
            dpt_str_printf(out, "%s%s", now != NULL ? DPT_PLOT_PLAIN : "", want);
        now = want;
        if (plot->marks[cell] != 0)
            dpt_str_add(out, &plot->marks[cell], 1);
        else
            add_cell(plot, plot->dots[cell], out);
    }
    if (plot->color && now != NULL)
        dpt_str_printf(out, "%s", DPT_PLOT_PLAIN);
}
