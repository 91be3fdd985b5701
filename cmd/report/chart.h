/*
 * chart: curves as inline SVG, and text and numbers as HTML. Private to the pages
 * of `dptrain report` and `dptrain bench`.
 *
 * Colours are classes of the page's style (k0 … k7), which knows light and dark; runs that share a
 * chart differ in colour, splits in how a line is drawn, so that nothing hangs on colour alone. The
 * chart's numbers can be read without a script; with one, a pointer shows the values under it.
 *
 * A curve of a million points is drawn with some hundred: each stands for a run of neighbours, by
 * their mean, and beside it by their least and largest, so that no spike goes missing.
 */
#ifndef DPT_CMD_REPORT_CHART_H
#define DPT_CMD_REPORT_CHART_H

#include <stdbool.h>

#include "core/base/memory.h"
#include "core/base/str.h"

/* x does not decrease. The arrays live in a region. */
struct dpt_series {
    double *x, *y;
    size_t n;
};

/* Allocates n points; n is 0 in it. False: memory ran out, as for all below. */
bool dpt_series_open(struct dpt_series *s, size_t n, struct dpt_region *region);
/* Whether a number can be drawn: finite, and far from where sums of some overflow. */
bool dpt_series_fits(double value);
/* There must be space for it. What does not fit is left out. */
void dpt_series_add(struct dpt_series *s, double x, double y);

/* Thins a series to at most `most` points: means of runs of `in`, and their extremes, two for each
 * run. A short one stays as it is. */
bool dpt_series_thin(const struct dpt_series *in, size_t most, struct dpt_series *mean,
                     struct dpt_series *extremes, struct dpt_region *region);

/* Means over a bell-shaped window of some percent of the points; of logarithms where `log` (all y
 * above 0). */
bool dpt_series_smooth(const struct dpt_series *in, bool log, struct dpt_series *out,
                       struct dpt_region *region);
/* Whether raw values stray from the smooth ones so far that both are worth drawing. */
bool dpt_series_noisy(const struct dpt_series *raw, const struct dpt_series *smooth);

/* The value that a fraction q of the y's does not exceed; n > 0. False: memory. */
bool dpt_series_quantile(const struct dpt_series *s, double q, double *value);

enum { DPT_CHART_COLOURS = 8, DPT_CHART_TICKS = 16, DPT_CHART_LABEL = 24 };

enum dpt_line_kind {
    DPT_LINE_RAW,    /* faint, behind the others; not in the legend */
    DPT_LINE_SOLID,  /* training */
    DPT_LINE_DASHED, /* evaluations, with a dot each */
    DPT_LINE_MARK,   /* a diamond each: the test */
    DPT_LINE_CLOUD,  /* a faint dot each */
    DPT_LINE_KINDS
};

struct dpt_line {
    const char *name; /* anything */
    const char *part; /* what it is of its run ("valid") */
    /* The run's name, where each of several runs has several lines; else NULL. */
    const char *run;
    enum dpt_line_kind kind;
    int colour; /* any number from 0; of several runs the run's */
    struct dpt_series points;
};

struct dpt_chart {
    const char *id; /* of the element; letters */
    const char *title, *x_label, *y_label;
    const char *about; /* text for readers who cannot see the chart; may be NULL */
    struct dpt_line *lines;
    size_t n;
    bool log;      /* the y axis; all y above 0 */
    bool powers;   /* x are exponents of ten */
    bool percent;  /* y are fractions */
    bool zero;     /* the y axis begins at 0 */
    bool diagonal; /* x and y have the same scale, and a line where they are equal */
    bool several;  /* lines are those of several runs */
    bool told;     /* the page has one legend of the runs for all charts */
    double cut;    /* fraction of the lowest values of solid lines that may fall off the chart */
    const double *bad; /* x at which y was not a number */
    size_t n_bad;
};

/* Adds a <figure>; nothing where no line has a point. The entries of its legend switch lines on
 * and off, those of runs in all charts. Check out->failed. */
void dpt_chart_write(const struct dpt_chart *chart, struct dpt_str *out);
/* Adds a run's entry of a legend. */
void dpt_chart_write_run(struct dpt_str *out, size_t run, const char *name);

/* Positions for ticks in [low, high], low < high, and their labels. */
struct dpt_ticks {
    double at[DPT_CHART_TICKS];
    char label[DPT_CHART_TICKS][DPT_CHART_LABEL];
    int n;
};
void dpt_ticks_linear(struct dpt_ticks *ticks, double low, double high, int about, bool percent);
void dpt_ticks_log(struct dpt_ticks *ticks, double low, double high);

/* Adds a text that may hold anything, as text or as a value in double quotes: markup is escaped,
 * controls and what is no UTF-8 become U+FFFD (tabs and newlines stay). dpt_html_element adds it
 * between two pieces of markup. */
void dpt_html_text(struct dpt_str *out, const char *text);
void dpt_html_element(struct dpt_str *out, const char *before, const char *text, const char *after);

enum { DPT_HTML_NUMBER = 48 };

/* Writes a number for a person into buf (DPT_HTML_NUMBER bytes); returns buf. NAN is a dash. */
const char *dpt_html_number(char *buf, double value, int digits); /* significant ones */
const char *dpt_html_percent(char *buf, double fraction);         /* "98.94 %" */
const char *dpt_html_count(char *buf, double value);              /* "1 234 567" */
const char *dpt_html_seconds(char *buf,
                             double seconds); /* "44.1 s", "12:05 min", "3:02:10 h", "1 d 04:00" */

/* Whether these values ask for a logarithmic axis: all above 0, and over more than a decade. */
bool dpt_chart_wants_log(const struct dpt_line *lines, size_t n);

#endif
