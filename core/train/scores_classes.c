#include <math.h>
#include <stdlib.h>

#include "core/base/memory.h"
#include "core/train/scores.h"

int32_t dpt_softmax(const float *logits, int32_t n, float *out)
{
    int32_t best = 0;
    double sum = 0;

    for (int32_t k = 1; k < n; k++)
        if (logits[k] > logits[best])
            best = k;
    for (int32_t k = 0; k < n; k++)
        sum += exp((double)logits[k] - (double)logits[best]);
    for (int32_t k = 0; k < n; k++)
        out[k] = (float)(exp((double)logits[k] - (double)logits[best]) / sum);
    return best;
}

void dpt_said_put(const struct dpt_said *said, int64_t position, int32_t label, const float *logits,
                  float *probabilities)
{
    float *row = said->rows + position * said->width;
    const int32_t told = said->width - DPT_SAID_PROBABILITY;
    int32_t above = 0;

    for (int32_t k = 0; k < said->outputs; k++)
        above += logits[k] > logits[label] || (logits[k] == logits[label] && k < label);
    row[DPT_SAID_ABOVE] = (float)above;
    row[DPT_SAID_CHOSEN] = (float)dpt_softmax(logits, said->outputs, probabilities);
    for (int32_t k = 0; k < told; k++)
        row[DPT_SAID_PROBABILITY + k] = probabilities[told == 1 ? 1 : k];
}

struct dpt_class_score dpt_scores_class(const double *confusion, int32_t classes, int32_t k)
{
    struct dpt_class_score c = {0};
    const double right = confusion[(size_t)k * (size_t)classes + (size_t)k];

    for (int32_t i = 0; i < classes; i++) {
        c.weight += confusion[(size_t)k * (size_t)classes + (size_t)i];
        c.chosen += confusion[(size_t)i * (size_t)classes + (size_t)k];
    }
    c.precision = c.chosen > 0 ? right / c.chosen : 0;
    c.recall = c.weight > 0 ? right / c.weight : 0;
    c.f1 = c.weight + c.chosen > 0 ? 2 * right / (c.weight + c.chosen) : 0;
    return c;
}

/* What follows from the confusion matrix. */
static void score_confusion(struct dpt_scores *scores, const double *confusion, int32_t classes)
{
    double balanced = 0, precision = 0, recall = 0, f1 = 0, all = 0, most = 0, least = INFINITY;
    int32_t there = 0, known = 0;

    for (int32_t k = 0; k < classes; k++) {
        const struct dpt_class_score c = dpt_scores_class(confusion, classes, k);

        all += c.weight;
        if (c.weight > 0 || c.chosen > 0) {
            known++;
            precision += c.precision;
            recall += c.recall;
            f1 += c.f1;
        }
        if (c.weight > 0) {
            there++;
            balanced += c.recall;
            if (c.weight > most) {
                most = c.weight;
                scores->common = k;
            }
            if (c.weight < least) {
                least = c.weight;
                scores->rare = k;
                scores->rare_recall = c.recall;
            }
        }
        if (classes == 2 && k == 1) {
            scores->precision = c.precision;
            scores->recall = c.recall;
            scores->f1 = c.f1;
        }
    }
    if (there == 0)
        return;
    scores->balanced_accuracy = balanced / there;
    if (classes != 2) {
        scores->precision = precision / known;
        scores->recall = recall / known;
        scores->f1 = f1 / known;
    }
    scores->uneven = most > 3 * least;
    scores->common_share = most / all;
    scores->rare_share = least / all;
}

struct judged {
    float probability;
    bool positive;
    double weight;
};

static int by_probability(const void *a, const void *b)
{
    const float x = ((const struct judged *)a)->probability;
    const float y = ((const struct judged *)b)->probability;

    return (x > y) - (x < y);
}

/* The chance that a sample of the class has the larger probability than one that is not of it, half
 * of which counts where they are the same. NAN where either is missing. */
static double area(struct judged *judged, int64_t n)
{
    double below = 0, positive = 0, sum = 0;

    qsort(judged, (size_t)n, sizeof *judged, by_probability);
    for (int64_t i = 0; i < n;) {
        const float probability = judged[i].probability;
        double in = 0, out = 0;

        do /* at least once: NAN is not even like itself */
            *(judged[i].positive ? &in : &out) += judged[i].weight;
        while (++i < n && judged[i].probability == probability);
        sum += in * (below + out / 2);
        below += out;
        positive += in;
    }
    return positive > 0 && below > 0 ? sum / (positive * below) : NAN;
}

/* The labels and weights of a sampler's samples, in its order. */
struct truth {
    int32_t *label;
    double *weight;
};

static double mean_area(const struct dpt_said *said, const struct truth *truth, int64_t samples,
                        struct judged *judged)
{
    const int32_t told = said->width - DPT_SAID_PROBABILITY;
    double sum = 0;

    for (int32_t k = 0; k < told; k++) {
        int64_t n = 0;

        for (int64_t i = 0; i < samples; i++)
            if (truth->weight[i] != 0)
                judged[n++] =
                    (struct judged){said->rows[i * said->width + DPT_SAID_PROBABILITY + k],
                                    truth->label[i] == (told == 1 ? 1 : k), truth->weight[i]};
        sum += area(judged, n);
    }
    return told > 0 ? sum / told : NAN;
}

enum dpt_status dpt_scores_classes(struct dpt_scores *scores, const struct dpt_dataset *set,
                                   const struct dpt_sampler *sampler, const struct dpt_said *said,
                                   double *confusion, struct dpt_error *err)
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
    DPT_TRY(DPT_ALLOCATE(judged, (size_t)n, what, err));
    for (int64_t i = 0; i < n; i++) {
        const float *row = said->rows + i * said->width;
        int64_t sample;

        dpt_sampler_samples(sampler, 0, i, 1, &sample);
        truth.label[i] = set->labels[sample];
        truth.weight[i] = set->weights != NULL ? set->weights[sample] : 1;
        all += truth.weight[i];
        among += row[DPT_SAID_ABOVE] < 5 ? truth.weight[i] : 0;
        confusion[(size_t)truth.label[i] * (size_t)said->outputs + (size_t)row[DPT_SAID_CHOSEN]] +=
            truth.weight[i];
    }
    score_confusion(scores, confusion, said->outputs);
    if (said->outputs > 5 && all > 0)
        scores->top5 = among / all;
    scores->roc_auc = mean_area(said, &truth, n, judged);
out:
    dpt_free(truth.label);
    dpt_free(truth.weight);
    dpt_free(judged);
    return status;
}
