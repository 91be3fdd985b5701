/*
 * plot: curves made of characters.
 *
 * A canvas of cells, each with dots: 2 x 4 of a braille character, or 1 x 2 where there is only
 * ASCII (' . :). Marks are letters that stand in front of the curves. Life cycle: set the public
 * members, dpt_plot_range for all points, dpt_plot_open, curves and marks, rows, dpt_plot_close.
 */
#ifndef DPT_CMD_PLOT_H
#define DPT_CMD_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/str.h"

struct dpt_plot_point {
    double x, y; /* not shown where y is not finite */
};

struct dpt_plot {
    int columns, rows; /* of the whole, axis included */
    bool ascii;
    bool color;
    double x_least, x_most;
    double y_least, y_most; /* grown by dpt_plot_range; start with least > most for "none yet" */
    bool logarithmic;       /* y; may be asked for where it makes sense (dpt_plot_range) */
    int cells;              /* a row, from here on plot.c's own */
    unsigned char *dots;    /* [rows * cells] */
    char *marks;            /* likewise; 0: none */
    const char **inks;      /* of the marks, likewise */
};

/* Takes n points into the range of y. */
void dpt_plot_range(struct dpt_plot *plot, const struct dpt_plot_point *points, size_t n);
/* False: memory ran out. A logarithmic y becomes a linear one unless it spans much, and above 0. */
bool dpt_plot_open(struct dpt_plot *plot);
void dpt_plot_close(struct dpt_plot *plot);

/* Points joined by lines. */
void dpt_plot_curve(struct dpt_plot *plot, const struct dpt_plot_point *points, size_t n);
/* A letter at each point. ink: an ANSI sequence that turns its colour on. */
void dpt_plot_marks(struct dpt_plot *plot, const struct dpt_plot_point *points, size_t n,
                    char letter, const char *ink);

/* Adds a row (0: the top) with its axis, without a newline. */
void dpt_plot_row(const struct dpt_plot *plot, int row, const char *ink, struct dpt_str *out);

/* ANSI sequence that ends a colour. */
#define DPT_PLOT_PLAIN "\033[0m"

#endif
