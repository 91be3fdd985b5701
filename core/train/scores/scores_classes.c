#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/scores/scores.h"

/* The most logits that are kept for the scores of an evaluation; if there are more, none are kept.
 * For multi-label models fewer are kept while training. */
enum { MOST_SAID = 1 << 26, MOST_LABELS = 1 << 24 };
/* With fewer samples per class, some classes are rare by chance. */
enum { EVEN_BY_CHANCE = 30 };

int32_t dpt_argmax(const float *x, int32_t n)
{
    int32_t best = 0;

    for (int32_t k = 1; k < n; k++)
        if (x[k] > x[best])
            best = k;
    return best;
}

int32_t dpt_class_of(const struct dpt_dataset *set, int64_t sample)
{
    return set->target == DPT_TARGET_CLASS ? set->labels[sample]
           : set->target_width == 1
               ? set->targets[sample] >= 0.5F
               : dpt_argmax(set->targets + sample * set->target_width, set->target_width);
}

bool dpt_is_of(const struct dpt_dataset *set, int64_t sample, bool labels, int32_t class)
{
    return labels ? set->targets[sample * set->target_width + class] >= 0.5F
                  : dpt_class_of(set, sample) == class;
}

int32_t dpt_softmax(const float *logits, int32_t n, float *out)
{
    const int32_t best = dpt_argmax(logits, n);
    double sum = 0;

    for (int32_t k = 0; k < n; k++)
        sum += exp((double)logits[k] - (double)logits[best]);
    for (int32_t k = 0; k < n; k++)
        out[k] = (float)(exp((double)logits[k] - (double)logits[best]) / sum);
    return best;
}

void dpt_sigmoids(const float *logits, int32_t n, float *out)
{
    for (int32_t k = 0; k < n; k++)
        out[k] = (float)(1 / (1 + exp(-(double)logits[k])));
}

bool dpt_is_finite(const float *row, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (!isfinite(row[k]))
            return false;
    return true;
}

struct dpt_odds dpt_odds_sums(const float *logits, int32_t n)
{
    struct dpt_odds sums = {.best = dpt_argmax(logits, n)};
    double second = -INFINITY, sum = 0;

    for (int32_t k = 0; k < n; k++)
        if (k != sums.best && (double)logits[k] > second)
            second = logits[k];
    for (int32_t k = 0; k < n; k++)
        if (k != sums.best)
            sum += exp((double)logits[k] - second);
    sums.rest = second + log(sum);
    return sums;
}

double dpt_log_odds(const struct dpt_odds *sums, const float *logits, int32_t n, int32_t class)
{
    const double own = logits[class], best = logits[sums->best];

    if (n == 2) /* exactly */
        return own - (double)logits[1 - class];
    if (class == sums->best)
        return own - sums->rest;
    /* Its own exponential is at most half of the sum, so nothing cancels. */
    return own - best - log(1 + exp(sums->rest - best) - exp(own - best));
}

int32_t dpt_said_width(int32_t outputs, int64_t samples, bool all, bool labels)
{
    if (labels)
        return samples <= (all ? MOST_SAID : MOST_LABELS) / outputs ? outputs : 0;
    return DPT_SAID_LOGITS +
           (outputs == 2 || (all && samples <= MOST_SAID / outputs) ? outputs : 0);
}

void dpt_said_put(const struct dpt_said *said, int64_t position, int32_t label, const float *logits)
{
    float *row = said->rows + position * said->width;
    int32_t above = 0;

    for (int32_t k = 0; k < said->outputs; k++)
        above += logits[k] > logits[label] || (logits[k] == logits[label] && k < label);
    row[DPT_SAID_ABOVE] = (float)above;
    row[DPT_SAID_CHOSEN] = (float)dpt_argmax(logits, said->outputs);
    if (said->width > DPT_SAID_LOGITS)
        memcpy(row + DPT_SAID_LOGITS, logits, (size_t)said->outputs * sizeof *logits);
}

static void score_class(struct dpt_class_score *c)
{
    c->precision = c->chosen > 0 ? c->right / c->chosen : 0;
    c->recall = c->weight > 0 ? c->right / c->weight : 0;
    c->f1 = c->weight + c->chosen > 0 ? 2 * c->right / (c->weight + c->chosen) : 0;
}

void dpt_positive_count(struct dpt_positive *positive, const struct dpt_dataset *set,
                        const struct dpt_sampler *sampler, bool labels)
{
    const int64_t n = sampler != NULL ? sampler->samples : set->samples;
    const int32_t class = positive->told ? positive->class : 1;
    int64_t own = 0, sample;

    for (int64_t i = 0; i < n; i++) {
        sample = i;
        if (sampler != NULL)
            dpt_sampler_samples(sampler, 0, i, 1, &sample);
        own += dpt_is_of(set, sample, labels, class);
    }
    positive->class = positive->told || own == n || n - own >= own ? class : 0;
    positive->samples = positive->class == class ? own : n - own;
    positive->all = n;
    positive->training = sampler == NULL;
}

/* Computes the scores that follow from the predicted classes of each class's samples. */
static void score_counts(struct dpt_scores *scores, struct dpt_class_score *class, int32_t classes,
                         const struct dpt_positive *positive, int64_t samples)
{
    const struct dpt_class_score *told =
        classes == 2 || positive->told ? &class[positive->class] : NULL;
    double balanced = 0, precision = 0, recall = 0, f1 = 0, all = 0, most = 0, least = INFINITY;
    int32_t there = 0, known = 0;

    for (int32_t k = 0; k < classes; k++) {
        struct dpt_class_score *c = &class[k];

        score_class(c);
        all += c->weight;
        if (c->weight > 0 || c->chosen > 0) {
            known++;
            precision += c->precision;
            recall += c->recall;
            f1 += c->f1;
        }
        if (c->weight > 0) {
            there++;
            balanced += c->recall;
            if (c->weight > most) {
                most = c->weight;
                scores->common = k;
            }
            if (c->weight < least) {
                least = c->weight;
                scores->rare = k;
                scores->rare_recall = c->recall;
            }
        }
    }
    if (there == 0)
        return;
    scores->balanced_accuracy = balanced / there;
    scores->precision = told != NULL ? told->precision : precision / known;
    scores->recall = told != NULL ? told->recall : recall / known;
    scores->f1 = told != NULL ? told->f1 : f1 / known;
    scores->positive = told != NULL ? positive->class : -1;
    scores->uneven = most > 3 * least && samples >= EVEN_BY_CHANCE * (int64_t)there;
    scores->common_share = most / all;
    scores->rare_share = least / all;
}

/* A sample on the curve of a class. */
struct judged {
    double odds; /* log-odds of the class */
    double weight;
};

static int by_odds(const void *a, const void *b)
{
    const double x = ((const struct judged *)a)->odds;
    const double y = ((const struct judged *)b)->odds;

    return (x > y) - (x < y);
}

/* The weight of the sorted samples below some odds, or not above them. sum: [n], of each sample and
 * those before it. */
static double weight_below(const struct judged *sum, int64_t n, double odds, bool equal)
{
    int64_t first = 0;

    while (n > 0) {
        const double middle = sum[first + n / 2].odds;

        if (middle < odds || (equal && middle == odds)) {
            first += n / 2 + 1;
            n -= n / 2 + 1;
        } else {
            n /= 2;
        }
    }
    return first > 0 ? sum[first - 1].weight : 0;
}

/* The probability that a sample of the class has larger odds than a sample that is not of it; equal
 * odds count half. NAN if there are no samples of either kind. judged: samples of the class come
 * first. With many classes these are few, so only they are sorted. */
static double area(struct judged *judged, int64_t positives, int64_t n)
{
    double positive = 0, negative = 0, sum = 0;

    qsort(judged, (size_t)positives, sizeof *judged, by_odds);
    for (int64_t i = 0; i < positives; i++)
        judged[i].weight = positive += judged[i].weight;
    for (int64_t i = positives; i < n; i++) {
        const double below = weight_below(judged, positives, judged[i].odds, false);
        const double upto = weight_below(judged, positives, judged[i].odds, true);

        sum += judged[i].weight * (positive - (below + upto) / 2);
        negative += judged[i].weight;
    }
    return positive > 0 && negative > 0 ? sum / (positive * negative) : NAN;
}

/* The labels and weights of a sampler's samples, in its order, and what the odds are made from. */
struct truth {
    int32_t *label;
    double *weight;
    struct dpt_odds *odds;
};

/* Computes the classes' ROC AUC and returns their mean. Two classes have the same AUC. */
static double measure_areas(const struct dpt_said *said, const struct truth *truth, int64_t samples,
                            struct judged *judged, struct dpt_class_score *classes)
{
    const int32_t outputs = said->outputs, first = outputs == 2;
    const bool told = said->width > DPT_SAID_LOGITS;
    double sum = 0;

    for (int32_t k = 0; k < outputs; k++)
        classes[k].roc_auc = NAN;
    for (int64_t i = 0; told && i < samples; i++)
        truth->odds[i] = dpt_odds_sums(said->rows + i * said->width + DPT_SAID_LOGITS, outputs);
    for (int32_t k = first; told && k < outputs; k++) {
        int64_t n = 0, positives = 0;

        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < samples; i++) {
                const float *logits = said->rows + i * said->width + DPT_SAID_LOGITS;

                if (truth->weight[i] != 0 && (truth->label[i] != k) == pass)
                    judged[n++] = (struct judged){dpt_log_odds(&truth->odds[i], logits, outputs, k),
                                                  truth->weight[i]};
            }
            positives = pass == 0 ? n : positives;
        }
        sum += classes[k].roc_auc = area(judged, positives, n);
    }
    if (outputs == 2)
        classes[0].roc_auc = classes[1].roc_auc;
    return told ? sum / (outputs - first) : NAN;
}

enum dpt_status dpt_scores_classes(struct dpt_scores *scores, const struct dpt_dataset *set,
                                   const struct dpt_sampler *sampler, const struct dpt_said *said,
                                   const struct dpt_positive *positive,
                                   struct dpt_class_score *classes, double *confusion,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *what = "an evaluation";
    const int64_t n = sampler->samples;
    struct truth truth = {0};
    struct judged *judged = NULL;
    double all = 0, among = 0;

    dpt_scores_clear(scores);
    DPT_TRY(DPT_ALLOCATE(truth.label, (size_t)n, what, err));
    DPT_TRY(DPT_ALLOCATE(truth.weight, (size_t)n, what, err));
    DPT_TRY(DPT_ALLOCATE(truth.odds, (size_t)n, what, err));
    DPT_TRY(DPT_ALLOCATE(judged, (size_t)n, what, err));
    for (int64_t i = 0; i < n; i++) {
        const float *row = said->rows + i * said->width;
        const int32_t chosen = (int32_t)row[DPT_SAID_CHOSEN];
        double weight;
        int32_t label;
        int64_t sample;

        dpt_sampler_samples(sampler, 0, i, 1, &sample);
        label = truth.label[i] = said->outputs > 1 ? dpt_class_of(set, sample) : 0;
        weight = truth.weight[i] = set->weights != NULL ? set->weights[sample] : 1;
        if (weight == 0)
            continue;
        all += weight;
        among += row[DPT_SAID_ABOVE] < 5 ? weight : 0;
        classes[label].weight += weight;
        classes[chosen].chosen += weight;
        classes[label].right += label == chosen ? weight : 0;
        if (confusion != NULL)
            confusion[(size_t)label * (size_t)said->outputs + (size_t)chosen] += weight;
    }
    score_counts(scores, classes, said->outputs, positive, n);
    if (said->outputs > 5 && all > 0)
        scores->top5 = among / all;
    scores->roc_auc = measure_areas(said, &truth, n, judged, classes);
    if (scores->positive >= 0)
        scores->roc_auc = classes[scores->positive].roc_auc;
out:
    dpt_free(truth.label);
    dpt_free(truth.weight);
    dpt_free(truth.odds);
    dpt_free(judged);
    return status;
}

/* --- several labels at once ------------------------------------------------------------------- */

/* Counts one label; returns the weight of the samples for which it is predicted correctly. */
static double score_label(const struct dpt_said *said, const struct dpt_dataset *set,
                          const struct dpt_sampler *sampler, double threshold, int32_t k,
                          struct judged *judged, struct dpt_class_score *c)
{
    int64_t n = 0, positives = 0;
    double agreed = 0;

    for (int pass = 0; pass < 2; pass++) { /* those for which it holds come first */
        for (int64_t i = 0; i < sampler->samples; i++) {
            const float logit = said->rows[i * said->width + k];
            struct judged one = {.odds = logit, .weight = 1};
            const bool says = dpt_label_holds(logit, threshold);
            int64_t sample;
            bool holds;

            dpt_sampler_samples(sampler, 0, i, 1, &sample);
            if (set->weights != NULL)
                one.weight = set->weights[sample];
            holds = dpt_is_of(set, sample, true, k);
            if (one.weight == 0 || holds == pass)
                continue;
            judged[n++] = one;
            c->weight += holds ? one.weight : 0;
            c->chosen += says ? one.weight : 0;
            c->right += holds && says ? one.weight : 0;
            agreed += holds == says ? one.weight : 0;
        }
        positives = pass == 0 ? n : positives;
    }
    score_class(c);
    c->roc_auc = area(judged, positives, n);
    return agreed;
}

enum dpt_status dpt_scores_labels(struct dpt_scores *scores, const struct dpt_dataset *set,
                                  const struct dpt_sampler *sampler, const struct dpt_said *said,
                                  const double *thresholds, const struct dpt_positive *positive,
                                  struct dpt_class_score *labels, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t n = said->outputs;
    struct judged *judged = NULL;
    double all = 0, agreed = 0;

    dpt_scores_clear(scores);
    DPT_TRY(DPT_ALLOCATE(judged, (size_t)sampler->samples, "an evaluation", err));
    for (int64_t i = 0; i < sampler->samples; i++) {
        int64_t sample;

        dpt_sampler_samples(sampler, 0, i, 1, &sample);
        all += set->weights != NULL ? set->weights[sample] : 1;
    }
    scores->precision = scores->recall = scores->f1 = scores->roc_auc = 0;
    for (int32_t k = 0; k < n; k++) {
        struct dpt_class_score *c = &labels[k];

        const double right =
            score_label(said, set, sampler, thresholds != NULL ? thresholds[k] : NAN, k, judged, c);

        c->accuracy = all > 0 ? right / all : 0;
        c->base_rate = all > 0 ? c->weight / all : 0;
        agreed += right;
        scores->precision += c->precision / n;
        scores->recall += c->recall / n;
        scores->f1 += c->f1 / n;
        scores->roc_auc += c->roc_auc / n;
    }
    if (positive->told) {
        const struct dpt_class_score *c = &labels[positive->class];

        scores->positive = positive->class;
        scores->precision = c->precision;
        scores->recall = c->recall;
        scores->f1 = c->f1;
        scores->roc_auc = c->roc_auc;
    }
    if (all > 0)
        scores->label_accuracy = agreed / all / n;
    else
        dpt_scores_clear(scores);
out:
    dpt_free(judged);
    return status;
}

void dpt_positive_tell(const struct dpt_positive *positive, const struct dpt_called *called,
                       const char *split, struct dpt_str *out)
{
    const int64_t other = positive->all - positive->samples;

    dpt_str_printf(out, "positive: ");
    if ((size_t)positive->class < called->n)
        dpt_str_printf(out, "%s", called->at[positive->class]);
    else
        dpt_str_printf(out, "%d", positive->class);
    dpt_str_printf(out, " (%s%lld of %lld %s samples)",
                   positive->told               ? "as told, "
                   : positive->samples < other  ? "rarer, "
                   : positive->samples == other ? "no rarer than the other, "
                                                : "",
                   (long long)positive->samples, (long long)positive->all,
                   positive->training ? "training" : split);
}

static void put_class(const struct dpt_called *called, int32_t class, struct dpt_str *out)
{
    if ((size_t) class < called->n)
        dpt_str_printf(out, "'%s'", called->at[class]);
    else
        dpt_str_printf(out, "%d", class);
}

void dpt_scores_uneven(const struct dpt_scores *scores, const struct dpt_called *called,
                       const char *samples, struct dpt_str *out)
{
    const double rare = 100 * scores->rare_share;

    dpt_str_printf(out, rare < 0.1 ? "%.1g %% of %s are of class " : "%.1f %% of %s are of class ",
                   rare, samples);
    put_class(called, scores->rare, out);
    dpt_str_printf(out, ", of which %.1f %% are found; always saying class ",
                   100 * scores->rare_recall);
    put_class(called, scores->common, out);
    dpt_str_printf(out, " has accuracy %.4f; balanced accuracy is %.4f", scores->common_share,
                   scores->balanced_accuracy);
}
