#include "core/train/use/decide.h"

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
    if (d->region.failed)
        return dpt_fail_memory(err, "the classes", (double)d->classes);
    for (int32_t k = 0; k < d->classes; k++)
        d->threshold[k] = NAN;
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

enum dpt_status dpt_decision_take(struct dpt_decision *d, const char *text, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *equals = strrchr(text, '=');
    int32_t class;
    char *end;
    char *name;
    float value;

    if (equals == NULL || equals == text)
        return dpt_fail(err, DPT_USAGE, "--threshold %s: must be CLASS=PROBABILITY, as in 1=0.2",
                        text);
    value = strtof(equals + 1, &end);
    if (end == equals + 1 || *end != '\0' || !(value >= 0 && value <= 1))
        return dpt_fail(err, DPT_USAGE, "--threshold %s: '%s' is no probability from 0 to 1", text,
                        equals + 1);
    name = dpt_region_printf(&d->region, "%.*s", (int)(equals - text), text);
    if (name == NULL)
        return dpt_fail_memory(err, "the thresholds", 0);
    DPT_TRY(dpt_decision_find(d, "--threshold", name, &class, err));
    if (d->classes == 2 && !d->labels && !isnan(d->threshold[1 - class]))
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--threshold %s: one of two classes has a threshold; the other one is "
                         "what is left",
                         text));
    d->threshold[class] = value;
    d->decides = true;
out:
    return status;
}

void dpt_threshold_tell(const struct dpt_called *called, int32_t class, float threshold,
                        struct dpt_str *out)
{
    struct dpt_str word = {0};

    if ((size_t) class < called->n)
        dpt_str_printf(&word, "%s=", called->at[class]);
    else
        dpt_str_printf(&word, "%d=", class);
    dpt_str_float(&word, threshold);
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

int32_t dpt_decide(const struct dpt_decision *d, const float *probabilities)
{
    int32_t best = -1;

    for (int32_t k = 0; k < d->classes; k++)
        if (probabilities[k] >= d->threshold[k] && /* of NAN it is not */
            (best < 0 || probabilities[k] > probabilities[best]))
            best = k;
    for (int32_t k = 0, others = best < 0; others && k < d->classes; k++)
        if (isnan(d->threshold[k]) && (best < 0 || probabilities[k] > probabilities[best]))
            best = k;
    return best >= 0 ? best : dpt_argmax(probabilities, d->classes);
}

void dpt_pair_probabilities(float logit, float pair[2])
{
    const float logits[2] = {0, logit};

    dpt_softmax(logits, 2, pair);
}

/* --- precision-recall curves ------------------------------------------------------------------ */

/* A sample, as the curve of a class has it. */
struct judged {
    float probability;
    double weight, positive; /* its weight where it is of the class, else 0 */
};

static int largest_first(const void *a, const void *b)
{
    const float x = ((const struct judged *)a)->probability;
    const float y = ((const struct judged *)b)->probability;

    return (x < y) - (x > y);
}

/* What is said of a class, or label, in a row. */
static float probability_of(const struct dpt_said *said, const float *row, bool labels,
                            int32_t class)
{
    float probability;

    if (labels) {
        dpt_sigmoids(row + class, 1, &probability);
        return probability;
    }
    row += DPT_SAID_PROBABILITY;
    if (said->width - DPT_SAID_PROBABILITY == said->outputs)
        return row[class];
    return class == 1 ? row[0] : 1 - row[0];
}

/* Makes the points of samples in their order: one for all of a probability. */
static void walk(struct dpt_curve *curve, const struct judged *judged, int64_t n, double positives)
{
    double taken = 0, right = 0, before = 0;

    for (int64_t i = 0; i < n; i++) {
        taken += judged[i].weight;
        right += judged[i].positive;
        if (i + 1 < n && judged[i + 1].probability == judged[i].probability)
            continue;
        curve->at[curve->n] = (struct dpt_curve_point){
            .probability = judged[i].probability,
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
        one.probability = probability_of(said, said->rows + i * said->width, labels, class);
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

/* A number between two with as few digits as that takes, about in their middle; or the upper one
 * where no other lies there. */
static float between(float lower, float upper)
{
    const double middle = ((double)lower + (double)upper) / 2;
    char text[32];

    for (int digits = 1; digits <= 9; digits++) {
        float value;

        snprintf(text, sizeof text, "%.*g", digits, middle);
        value = strtof(text, NULL);
        if (lower < value && value < upper)
            return value;
    }
    return upper;
}

struct dpt_operating_point dpt_curve_find(const struct dpt_curve *curve, double recall)
{
    const struct dpt_curve_point *at = curve->at, *last = curve->at + curve->n - 1;

    while (at < last && at->recall < recall)
        at++;
    return (struct dpt_operating_point){
        .threshold = between(at < last ? at[1].probability : 0, at->probability),
        .precision = at->precision,
        .recall = at->recall,
    };
}
