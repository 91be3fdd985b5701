/* The points of a curve, thinned and smoothed for drawing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/report/chart.h"
#include "core/base/sort.h"

bool dpt_series_open(struct dpt_series *s, size_t n, struct dpt_region *region)
{
    s->n = 0;
    s->x = dpt_region_alloc(region, (n + 1) * sizeof *s->x);
    s->y = dpt_region_alloc(region, (n + 1) * sizeof *s->y);
    return s->x != NULL && s->y != NULL;
}

bool dpt_series_fits(double value)
{
    return fabs(value) < 1e100; /* and no NAN */
}

void dpt_series_add(struct dpt_series *s, double x, double y)
{
    if (!dpt_series_fits(x) || !dpt_series_fits(y))
        return;
    s->x[s->n] = x;
    s->y[s->n++] = y;
}

/* Adds the least and the largest value of points [begin, end), in the order of their steps. */
static void add_extremes(const struct dpt_series *in, size_t begin, size_t end,
                         struct dpt_series *out)
{
    size_t low = begin, high = begin;

    for (size_t i = begin; i < end; i++) {
        low = in->y[i] < in->y[low] ? i : low;
        high = in->y[i] > in->y[high] ? i : high;
    }
    if (low == high) {
        dpt_series_add(out, in->x[low], in->y[low]);
        return;
    }
    dpt_series_add(out, in->x[low < high ? low : high], in->y[low < high ? low : high]);
    dpt_series_add(out, in->x[low < high ? high : low], in->y[low < high ? high : low]);
}

bool dpt_series_thin(const struct dpt_series *in, size_t most, struct dpt_series *mean,
                     struct dpt_series *extremes, struct dpt_region *region)
{
    const size_t runs = in->n <= most ? in->n : most;

    if (!dpt_series_open(mean, runs, region) || !dpt_series_open(extremes, 2 * runs, region))
        return false;
    for (size_t run = 0; run < runs; run++) {
        const size_t begin = run * in->n / runs, end = (run + 1) * in->n / runs;
        double x = 0, y = 0;

        for (size_t i = begin; i < end; i++) {
            x += in->x[i] / (double)(end - begin);
            y += in->y[i] / (double)(end - begin);
        }
        dpt_series_add(mean, x, y);
        add_extremes(in, begin, end, extremes);
    }
    return true;
}

bool dpt_series_smooth(const struct dpt_series *in, bool log_scale, struct dpt_series *out,
                       struct dpt_region *region)
{
    const double sigma = fmin(fmax((double)in->n / 60, 0.6), 10);
    const long reach = (long)ceil(2.5 * sigma), n = (long)in->n;

    if (!dpt_series_open(out, in->n, region))
        return false;
    for (long i = 0; i < n; i++) {
        double sum = 0, weights = 0;

        for (long k = i - reach < 0 ? 0 : i - reach; k <= i + reach && k < n; k++) {
            const double z = (double)(k - i) / sigma, weight = exp(-z * z / 2);

            sum += weight * (log_scale ? log(in->y[k]) : in->y[k]);
            weights += weight;
        }
        dpt_series_add(out, in->x[i], log_scale ? exp(sum / weights) : sum / weights);
    }
    return true;
}

bool dpt_series_noisy(const struct dpt_series *raw, const struct dpt_series *smooth)
{
    double low = INFINITY, high = -INFINITY, stray = 0;

    if (raw->n < 24)
        return false;
    for (size_t i = 0; i < smooth->n; i++) {
        low = fmin(low, smooth->y[i]);
        high = fmax(high, smooth->y[i]);
    }
    for (size_t i = 0; i < raw->n && i < smooth->n; i++)
        stray += fabs(raw->y[i] - smooth->y[i]) / (double)raw->n;
    return stray > 0.004 * (high - low);
}

bool dpt_series_quantile(const struct dpt_series *s, double q, double *value)
{
    double *sorted = malloc(s->n * sizeof *sorted);

    if (sorted == NULL)
        return false;
    memcpy(sorted, s->y, s->n * sizeof *sorted);
    dpt_sort(sorted, s->n);
    *value = sorted[(size_t)(q * (double)(s->n - 1) + 0.5)];
    free(sorted);
    return true;
}
