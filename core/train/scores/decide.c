#include "core/train/scores/decide.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 20 }; /* classes that a message lists */

/* Names the two classes of a single label: "not ill" and "ill". */
static void name_pair(struct dpt_decision *d, const char *label)
{
    const char **names = dpt_region_alloc(&d->region, 2 * sizeof *names);

    if (names == NULL)
        return;
    names[0] = dpt_region_printf(&d->region, "not %s", label);
    names[1] = label;
    d->called = (struct dpt_called){names, 2};
}

enum dpt_status dpt_decision_open(struct dpt_decision *d, int32_t outputs, bool labels,
                                  const struct dpt_called *called, struct dpt_error *err)
{
    d->pair = labels && outputs == 1;
    d->labels = labels && !d->pair;
    d->classes = d->pair ? 2 : outputs;
    d->called = *called;
    if (d->pair && called->n == 1)
        name_pair(d, called->at[0]);
    d->threshold = dpt_region_alloc(&d->region, (size_t)d->classes * sizeof *d->threshold);
    d->odds = dpt_region_alloc(&d->region, (size_t)d->classes * sizeof *d->odds);
    if (d->region.failed)
        return dpt_fail_memory(err, "the classes", (double)d->classes);
    for (int32_t k = 0; k < d->classes; k++)
        d->threshold[k] = d->odds[k] = NAN;
    return DPT_OK;
}

void dpt_decision_close(struct dpt_decision *d)
{
    dpt_region_release(&d->region);
}

/* --- names ------------------------------------------------------------------------------------ */

/* Adds "; did you mean 'ill'? There are 0 (well), 1 (ill)", or without names "; there are 0 to 9".
 */
static void list_classes(const struct dpt_decision *d, const char *name, struct dpt_str *out)
{
    const char *near = dpt_nearest(name, d->called.at, d->called.n);

    if (near != NULL)
        dpt_str_printf(out, "; did you mean '%s'? There are", near);
    else
        dpt_str_printf(out, "; there are");
    if (d->called.n == 0) {
        dpt_str_printf(out, " 0 to %d", d->classes - 1);
        return;
    }
    for (size_t k = 0; k < d->called.n && k < LISTED; k++)
        dpt_str_printf(out, "%s %zu (%s)", k == 0 ? "" : ",", k, d->called.at[k]);
    if (d->called.n > LISTED)
        dpt_str_printf(out, ", and %zu more", d->called.n - LISTED);
}

enum dpt_status dpt_decision_find(struct dpt_decision *d, const char *option, const char *name,
                                  int32_t *class, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t at = dpt_find(name, d->called.at, d->called.n);
    struct dpt_str list = {0};
    char *end;
    long number;

    if (at < d->called.n && at < (size_t)d->classes) {
        *class = (int32_t)at;
        return DPT_OK;
    }
    number = strtol(name, &end, 10);
    if (isdigit((unsigned char)name[0]) && *end == '\0' && number < d->classes) {
        *class = (int32_t)number;
        return DPT_OK;
    }
    list_classes(d, name, &list);
    status = dpt_fail(err, DPT_USAGE, "%s: there is no %s '%s'%s", option,
                      d->labels ? "label" : "class", name, list.text != NULL ? list.text : "");
    dpt_str_release(&list);
    return status;
}

/* Fails for a threshold without its class: the message shows how to type one, with the classes'
 * names. */
static enum dpt_status which_class(const struct dpt_decision *d, const char *text, bool number,
                                   struct dpt_error *err)
{
    struct dpt_str forms = {0};

    for (int32_t k = d->classes == 2 ? 0 : 1; k < 2; k++) {
        struct dpt_str word = {0};

        if ((size_t)k < d->called.n)
            dpt_str_printf(&word, "%s=%s", d->called.at[k], number ? text : "0.2");
        else
            dpt_str_printf(&word, "%d=%s", k, number ? text : "0.2");
        dpt_str_printf(&forms, k == 1 && d->classes == 2 ? " or --threshold " : "--threshold ");
        dpt_str_shell(&forms, word.failed ? "" : word.text);
        dpt_str_release(&word);
    }
    dpt_fail(err, DPT_USAGE, "--threshold %s: must be CLASS=PROBABILITY, as in %s", text,
             forms.failed ? "1=0.2" : forms.text);
    dpt_str_release(&forms);
    return DPT_USAGE;
}

enum dpt_status dpt_decision_take(struct dpt_decision *d, const char *text, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *equals = strrchr(text, '=');
    /* A threshold without a class is for a single label. */
    const char *number = equals != NULL ? equals + 1 : text;
    int32_t class;
    const char *name;
    double value;
    char *end;

    value = strtod(number, &end);
    if (equals == text || (equals == NULL && (!d->pair || end == text)))
        return which_class(d, text, equals == NULL && end != text && *end == '\0', err);
    if (end == number || *end != '\0' || !(value >= 0 && value <= 1))
        return dpt_fail(err, DPT_USAGE, "--threshold %s: '%s' is no probability from 0 to 1", text,
                        number);
    name = equals == NULL ? "1" : dpt_region_printf(&d->region, "%.*s", (int)(equals - text), text);
    if (name == NULL)
        return dpt_fail_memory(err, "the thresholds", 0);
    DPT_TRY(dpt_decision_find(d, "--threshold", name, &class, err));
    if (d->classes == 2 && !d->labels && !isnan(d->threshold[1 - class]))
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--threshold %s: one of two classes has a threshold; the other one is "
                         "what is left",
                         text));
    d->threshold[class] = value;
    d->odds[class] = dpt_threshold_odds(value);
    d->decides = true;
out:
    return status;
}

void dpt_threshold_tell(const struct dpt_called *called, int32_t class, double threshold,
                        struct dpt_str *out)
{
    struct dpt_str word = {0};

    if ((size_t) class < called->n)
        dpt_str_printf(&word, "%s=", called->at[class]);
    else
        dpt_str_printf(&word, "%d=", class);
    dpt_str_number(&word, threshold);
    if (!word.failed)
        dpt_str_shell(out, word.text);
    out->failed = out->failed || word.failed;
    dpt_str_release(&word);
}

void dpt_decision_tell(const struct dpt_decision *d, const char *between, struct dpt_str *out)
{
    bool first = true;

    for (int32_t k = 0; k < d->classes; k++)
        if (!isnan(d->threshold[k])) {
            dpt_str_printf(out, "%s", first ? "" : between);
            dpt_threshold_tell(&d->called, k, d->threshold[k], out);
            first = false;
        }
}

/* --- deciding --------------------------------------------------------------------------------- */

double dpt_threshold_odds(double threshold)
{
    const float near = (float)threshold;
    struct dpt_str shown = {0};
    double from = threshold;

    dpt_str_float(&shown, near);
    /* Numbers that round to that float begin midway between it and the float before. */
    if (near > 0 && !shown.failed && strtod(shown.text, NULL) == threshold)
        from = ((double)near + (double)nextafterf(near, 0)) / 2;
    dpt_str_release(&shown);
    return log(from) - log1p(-from);
}

int32_t dpt_decide(const struct dpt_decision *d, const float *logits)
{
    const int32_t n = d->classes;
    const struct dpt_odds sums = dpt_odds_sums(logits, n);
    int32_t best = -1;

    if (!dpt_is_finite(logits, n))
        return -1;
    for (int32_t k = 0; k < n; k++)
        if (!isnan(d->odds[k]) && dpt_log_odds(&sums, logits, n, k) >= d->odds[k] &&
            (best < 0 || logits[k] > logits[best]))
            best = k;
    for (int32_t k = 0, others = best < 0; others && k < n; k++)
        if (isnan(d->odds[k]) && (best < 0 || logits[k] > logits[best]))
            best = k;
    return best >= 0 ? best : sums.best;
}

/* --- precision-recall curves ------------------------------------------------------------------ */

/* A sample on the curve of a class. */
struct judged {
    double odds;             /* log-odds of the class */
    double weight, positive; /* its weight if it is of the class, else 0 */
};

static int largest_first(const void *a, const void *b)
{
    const double x = ((const struct judged *)a)->odds;
    const double y = ((const struct judged *)b)->odds;

    return (x < y) - (x > y);
}

/* The log-odds of a class, or label, in a row. */
static double odds_of(const struct dpt_said *said, const float *row, bool labels, int32_t class)
{
    struct dpt_odds sums;

    if (labels)
        return row[class];
    row += DPT_SAID_LOGITS;
    sums = dpt_odds_sums(row, said->outputs);
    return dpt_log_odds(&sums, row, said->outputs, class);
}

/* Makes the curve's points from sorted samples: one point for all samples of the same odds. */
static void walk(struct dpt_curve *curve, const struct judged *judged, int64_t n, double positives)
{
    double taken = 0, right = 0, before = 0;

    for (int64_t i = 0; i < n; i++) {
        taken += judged[i].weight;
        right += judged[i].positive;
        if (i + 1 < n && judged[i + 1].odds == judged[i].odds)
            continue;
        curve->at[curve->n] = (struct dpt_curve_point){
            .odds = judged[i].odds,
            .precision = right / taken,
            /* Exactly 1 in the end, however the sums are rounded. */
            .recall = i + 1 < n ? right / positives : 1,
        };
        curve->average_precision +=
            (curve->at[curve->n].recall - before) * curve->at[curve->n].precision;
        before = curve->at[curve->n++].recall;
    }
}

enum dpt_status dpt_curve_open(struct dpt_curve *curve, const struct dpt_dataset *set,
                               const struct dpt_sampler *sampler, const struct dpt_said *said,
                               bool labels, int32_t class, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t all = (size_t)sampler->samples;
    struct judged *judged = NULL;
    double positives = 0;
    int64_t n = 0;

    *curve = (struct dpt_curve){0};
    DPT_TRY(DPT_ALLOCATE(judged, all, "a curve", err));
    DPT_TRY(DPT_ALLOCATE(curve->at, all, "a curve", err));
    for (int64_t i = 0; i < sampler->samples; i++) {
        struct judged one;
        int64_t sample;

        dpt_sampler_samples(sampler, 0, i, 1, &sample);
        one.weight = set->weights != NULL ? set->weights[sample] : 1;
        one.positive = dpt_is_of(set, sample, labels, class) ? one.weight : 0;
        one.odds = odds_of(said, said->rows + i * said->width, labels, class);
        positives += one.positive;
        if (one.weight > 0)
            judged[n++] = one;
    }
    qsort(judged, (size_t)n, sizeof *judged, largest_first);
    if (positives > 0)
        walk(curve, judged, n, positives);
out:
    dpt_free(judged);
    return status;
}

/* Rounds the probability of these log-odds down to so many digits. Digits count in the probability
 * if it is below one half, else in its difference from 1. 0: doubles have no such digits. */
static double below(double odds, int digits)
{
    const double p = 1 / (1 + exp(-odds)), rest = 1 / (1 + exp(odds));
    const int places = digits - 1 - (int)floor(log10(fmin(p, rest)));
    const double unit = pow(10, -places);
    char text[400];
    double value;

    if (p >= 0.5 && places > 17)
        return 0;
    snprintf(text, sizeof text, "%.*f", places, p);
    value = strtod(text, NULL);
    if (value < p)
        return value;
    snprintf(text, sizeof text, "%.*f", places, value - unit);
    return strtod(text, NULL);
}

/* Finds a threshold that samples with log-odds `upper` reach, and samples with `lower` do not. */
static bool separate(double lower, double upper, double *threshold)
{
    for (int digits = 4; digits <= 17; digits++) {
        const double value = below(upper, digits), odds = dpt_threshold_odds(value);

        if (value > 0 && lower < odds && odds <= upper) {
            *threshold = value;
            return true;
        }
    }
    return false;
}

struct dpt_operating_point dpt_curve_find(const struct dpt_curve *curve, double recall)
{
    const struct dpt_curve_point *at = curve->at, *last = curve->at + curve->n - 1;
    double threshold = 0;

    while (at < last && at->recall < recall)
        at++;
    while (!separate(at < last ? at[1].odds : -INFINITY, at->odds, &threshold) && at < last)
        at++;
    return (struct dpt_operating_point){
        .threshold = threshold,
        .precision = at->precision,
        .recall = at->recall,
    };
}
