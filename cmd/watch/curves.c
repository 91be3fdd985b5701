/*
 * Lines for a terminal, and among them the curves of a run.
 *
 * A plot is a canvas of cells, each with dots: 2 x 4 of a braille character, or 1 x 2 where there
 * is only ASCII (' . :). Marks are letters that stand in front of the curves.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/watch/view.h"
#include "core/base/memory.h"

static const char plain[] = DPT_VIEW_PLAIN, bold[] = "\033[1m";
static const char cyan[] = "\033[36m", yellow[] = "\033[33m", magenta[] = "\033[35m";

void dpt_view_add(const struct dpt_view *v, struct dpt_str *out, const char *text)
{
    const size_t before = out->length;
    bool colored = false;

    for (int column = 0; *text != '\0';) {
        const size_t escape = *text == '\033' ? strcspn(text, "m") + 1 : 0;
        size_t n;

        if (escape > 0) {
            if (v->color)
                dpt_str_add(out, text, escape);
            colored = v->color;
            text += escape;
            continue;
        }
        dpt_utf8_decode(text, strlen(text), &n);
        column += v->ascii ? 1 : (int)dpt_utf8_width(text, n);
        if (column > v->columns)
            break;
        if (v->ascii && (n > 1 || (unsigned char)*text > 0x7E))
            dpt_str_add(out, "?", 1);
        else
            dpt_str_add(out, text, n);
        text += n;
    }
    while (!colored && out->length > before && out->text[out->length - 1] == ' ')
        out->length--;
    dpt_str_printf(out, "%s\n", colored ? plain : "");
}

/* --- the canvas ------------------------------------------------------------------------------- */

struct point {
    double x, y; /* not shown where y is not finite */
};

struct plot {
    int columns, rows; /* of the whole, axis included */
    bool ascii;
    bool color;
    double x_most;
    double y_least, y_most; /* grown by find_range; start with least > most for "none yet" */
    bool logarithmic;       /* y; may be asked for where it makes sense (open_plot) */
    int cells;              /* a row, from here on of open_plot */
    unsigned char *dots;    /* [rows * cells] */
    char *marks;            /* likewise; 0: none */
    const char **inks;      /* of the marks, likewise */
};

/* Columns of the axis: a label and a bar. */
enum { LABEL = 8, AXIS = LABEL + 2 };
/* A logarithmic axis says more where the largest value is so many times the least. */
static const double MANY_TIMES = 20;

/* Takes n points into the range of y. */
static void find_range(struct plot *plot, const struct point *points, size_t n)
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

/* False: memory ran out. A logarithmic y becomes a linear one unless it spans much, and above 0. */
static bool open_plot(struct plot *plot)
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

static int dots_down(const struct plot *plot)
{
    return plot->rows * (plot->ascii ? 2 : 4);
}

/* Where in [0, n) a value lies between two others. */
static int position(double value, double least, double most, int n)
{
    const double part = most > least ? (value - least) / (most - least) : 0.5;

    return (int)lround(fmin(fmax(part, 0), 1) * (n - 1));
}

static double height(const struct plot *plot, double y)
{
    return plot->logarithmic ? log(y) : y;
}

/* The dot of a point; y counts from the top. */
static void place(const struct plot *plot, const struct point *point, int *x, int *y)
{
    *x = position(point->x, 0, plot->x_most, plot->cells * (plot->ascii ? 1 : 2));
    *y = dots_down(plot) - 1 -
         position(height(plot, point->y), height(plot, plot->y_least), height(plot, plot->y_most),
                  dots_down(plot));
}

static void set_dot(struct plot *plot, int x, int y)
{
    /* Bits of the braille characters from U+2800 on: [row][column]. */
    static const unsigned char braille[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const int across = plot->ascii ? 1 : 2, down = plot->ascii ? 2 : 4;
    const int cell = y / down * plot->cells + x / across;

    plot->dots[cell] |= plot->ascii ? (unsigned char)(1 << y % 2) : braille[y % 4][x % 2];
}

static void draw_line(struct plot *plot, int x0, int y0, int x1, int y1)
{
    const int dx = x1 - x0, dy = y1 - y0;
    const int n = abs(dx) > abs(dy) ? abs(dx) : abs(dy);

    for (int i = 0; i <= n; i++)
        set_dot(plot, x0 + (n == 0 ? 0 : (int)lround((double)dx * i / n)),
                y0 + (n == 0 ? 0 : (int)lround((double)dy * i / n)));
}

/* Draws points joined by lines. */
static void draw_curve(struct plot *plot, const struct point *points, size_t n)
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

/* Puts a letter at each point. ink: an ANSI sequence that turns its colour on. */
static void draw_marks(struct plot *plot, const struct point *points, size_t n, char letter,
                       const char *ink)
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

/* Writes the value in the middle of a row that has a label; "" for the others. With three digits,
 * or so many, up to what the column holds, as tell labels beside each other apart. */
static void label(const struct plot *plot, int row, char text[2 * LABEL])
{
    const bool labelled =
        row == 0 || row == plot->rows - 1 || (plot->rows >= 5 && row == plot->rows / 2);
    const double low = height(plot, plot->y_least), high = height(plot, plot->y_most);
    const double part = plot->rows > 1 ? (double)row / (plot->rows - 1) : 0;
    const double value = high + (low - high) * part;
    const double apart = (plot->y_most - plot->y_least) / 4,
                 largest = fmax(fabs(plot->y_most), fabs(plot->y_least));
    const int digits =
        apart > 0 ? (int)fmin(fmax(3, ceil(log10(largest / apart)) + 1), LABEL - 2) : 3;

    text[0] = '\0';
    if (labelled && high >= low)
        snprintf(text, 2 * (size_t)LABEL, "%.*g", digits, plot->logarithmic ? exp(value) : value);
}

static void add_cell(const struct plot *plot, unsigned char dots, struct dpt_str *out)
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

/* Adds a row (0: the top) with its axis, without a newline. */
static void draw_row(const struct plot *plot, int row, const char *ink, struct dpt_str *out)
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
            dpt_str_printf(out, "%s%s", now != NULL ? plain : "", want);
        now = want;
        if (plot->marks[cell] != 0)
            dpt_str_add(out, &plot->marks[cell], 1);
        else
            add_cell(plot, plot->dots[cell], out);
    }
    if (plot->color && now != NULL)
        dpt_str_printf(out, "%s", plain);
}

/* --- what is drawn on it ---------------------------------------------------------------------- */

/* What a plot shows: a member of the train events, and of the evaluations. */
static const struct curve {
    const char *title;
    bool logarithmic;   /* where it says more */
    double least, most; /* the range holds these, where least <= most */
    size_t train, eval;
} curves[] = {
    [DPT_VIEW_LOSS] = {"loss", true, 1, 0, offsetof(struct dpt_history_train, loss),
                       offsetof(struct dpt_history_eval, loss)},
    [DPT_VIEW_ACCURACY] = {"accuracy", false, 1, 1, offsetof(struct dpt_history_train, accuracy),
                           offsetof(struct dpt_history_eval, accuracy)},
};

static const struct {
    char letter;
    const char *ink;
} marks[DPT_HISTORY_SPLITS] = {{'+', cyan}, {'o', yellow}, {'x', magenta}};

/* All points: of the train events, then of the splits. */
struct points {
    struct point *at;
    size_t train, split[DPT_HISTORY_SPLITS]; /* how many of each */
    size_t n;
};

static struct point point_of(int64_t step, const void *event, size_t member)
{
    return (struct point){(double)step, *(const double *)((const char *)event + member)};
}

static bool collect(const struct dpt_history *h, const struct curve *curve, struct points *p)
{
    memset(p, 0, sizeof *p);
    p->at = dpt_alloc_array(h->n_train + h->n_evals + 1, sizeof *p->at);
    if (p->at == NULL)
        return false;
    for (size_t i = 0; i < h->n_train; i++)
        p->at[p->n++] = point_of(h->train[i].step, &h->train[i], curve->train);
    p->train = p->n;
    for (int split = 0; split < DPT_HISTORY_SPLITS; split++)
        for (size_t i = 0; i < h->n_evals; i++) {
            if ((int)h->evals[i].split != split)
                continue;
            p->at[p->n++] = point_of(h->evals[i].step, &h->evals[i], curve->eval);
            p->split[split]++;
        }
    return true;
}

static void view_legend(const struct dpt_view *v, const struct curve *curve, const struct points *p,
                        const struct plot *plot, struct dpt_str *out)
{
    struct dpt_str line = {0};

    dpt_str_printf(&line, "%s%s%s%s   %s%s train%s", bold, curve->title, plain,
                   plot->logarithmic ? " (logarithmic)" : "", cyan, v->ascii ? ":" : "⠒", plain);
    for (int split = 0; split < DPT_HISTORY_SPLITS; split++)
        if (p->split[split] > 0)
            dpt_str_printf(&line, "   %s%c %s%s", marks[split].ink, marks[split].letter,
                           dpt_history_splits[split], plain);
    if (line.text != NULL)
        dpt_view_add(v, out, line.text);
    dpt_str_release(&line);
}

static void draw(const struct dpt_view *v, const struct curve *curve, const struct points *p,
                 struct plot *plot, struct dpt_str *out)
{
    const struct point *at = p->at + p->train;
    struct dpt_str line = {0};

    view_legend(v, curve, p, plot, out);
    draw_curve(plot, p->at, p->train);
    for (int split = 0; split < DPT_HISTORY_SPLITS; at += p->split[split++])
        draw_marks(plot, at, p->split[split], marks[split].letter, marks[split].ink);
    for (int row = 0; row < plot->rows; row++) {
        draw_row(plot, row, cyan, &line);
        if (line.text != NULL)
            dpt_view_add(v, out, line.text);
        dpt_str_clear(&line);
    }
    dpt_str_release(&line);
}

void dpt_view_curve(const struct dpt_view *v, const struct dpt_history *h,
                    enum dpt_view_curve which, int rows, struct dpt_str *out)
{
    const struct curve *curve = &curves[which];
    struct plot plot = {.columns = v->columns,
                        .rows = rows,
                        .ascii = v->ascii,
                        .color = v->color,
                        .logarithmic = curve->logarithmic,
                        .x_most = (double)dpt_history_step(h),
                        .y_least = curve->least,
                        .y_most = curve->most};
    struct points points;

    if (!collect(h, curve, &points)) {
        out->failed = true;
        return;
    }
    find_range(&plot, points.at, points.n);
    if (open_plot(&plot))
        draw(v, curve, &points, &plot, out);
    else
        out->failed = true;
    dpt_free(plot.dots);
    dpt_free(plot.marks);
    dpt_free(plot.inks);
    dpt_free(points.at);
}
