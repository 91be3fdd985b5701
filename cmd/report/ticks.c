#include <math.h>
#include <stdio.h>

#include "cmd/report/chart.h"

/* Small numbers as 2e-6. */
static void label_power(char *text, double value, double step)
{
    const int exponent = (int)floor(log10(fabs(value)) + 1e-9);
    const double decimals = ceil(exponent - log10(step) - 1e-9);

    snprintf(text, DPT_CHART_LABEL, "%.*fe%d", (int)fmin(fmax(decimals, 0), 3),
             value / pow(10, exponent), exponent);
}

/* "1.5M", "20k", "0.003", "2e-6": short, and told apart at this distance. largest: of the axis, so
 * that all its labels have one unit. */
static void label(char *text, double value, double step, double largest, bool percent)
{
    static const struct {
        double from, unit;
        const char *suffix;
    } units[] = {{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}, {0, 1, ""}};
    size_t i = 0;

    while (fabs(largest) < units[i].from)
        i++;
    if (percent && fabs(largest) < 1e6)
        snprintf(text, DPT_CHART_LABEL, "%.*f\u00a0%%",
                 (int)fmin(fmax(0, ceil(-log10(100 * step) - 1e-9)), 6), 100 * value);
    else if (fabs(value) < step / 1000)
        snprintf(text, DPT_CHART_LABEL, "0");
    else if (step < 0.99e-4 || fabs(value) >= 1e15)
        label_power(text, value, step);
    else
        snprintf(text, DPT_CHART_LABEL, "%.*f%s",
                 (int)fmin(fmax(0, ceil(-log10(step / units[i].unit) - 1e-9)), 8),
                 value / units[i].unit, units[i].suffix);
}

/* Steps of 1, 2 or 5 times a power of ten. */
void dpt_ticks_linear(struct dpt_ticks *ticks, double low, double high, int about, bool percent)
{
    const double rough = (high - low) / about, power = pow(10, floor(log10(rough)));
    const double part = rough / power;
    const double step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);

    ticks->n = 0;
    for (double i = ceil(low / step - 1e-6); i * step <= high + 1e-6 * step; i++) {
        if (ticks->n == DPT_CHART_TICKS)
            return;
        ticks->at[ticks->n] = i * step + 0.0; /* never -0 */
        label(ticks->label[ticks->n], ticks->at[ticks->n], step, fmax(fabs(low), fabs(high)),
              percent);
        ticks->n++;
    }
}

/* Powers of ten; with less than three decades also 2 and 5 times these. */
void dpt_ticks_log(struct dpt_ticks *ticks, double low, double high)
{
    static const double parts[] = {1, 2, 5};
    const int first = (int)floor(log10(low)), last = (int)floor(log10(high) + 1e-9);
    const bool dense = log10(high / low) < 2.7;
    const int stride = 1 + (last - first) / 7;

    ticks->n = 0;
    for (int e = first; e <= last; e++) {
        for (int k = 0; k < (dense ? 3 : 1); k++) {
            const double at = parts[k] * pow(10, e);

            if (at < low * (1 - 1e-9) || at > high * (1 + 1e-9) || (!dense && (e - last) % stride))
                continue;
            if (ticks->n == DPT_CHART_TICKS)
                return;
            ticks->at[ticks->n] = at;
            label(ticks->label[ticks->n++], at, pow(10, e), at, false);
        }
    }
}
