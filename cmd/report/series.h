/*
 * series: the points of a curve, thinned and smoothed for drawing. Private to `dptrain report`.
 *
 * A curve of a million points is drawn with some hundred: each stands for a run of neighbours, by
 * their mean, and beside it by their least and largest, so that no spike goes missing.
 */
#ifndef DPT_CMD_REPORT_SERIES_H
#define DPT_CMD_REPORT_SERIES_H

#include <stdbool.h>

#include "core/base/memory.h"

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

/* At most `most` points: means of runs of `in`, and their extremes, two for each run. A short one
 * stays as it is. */
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

#endif
