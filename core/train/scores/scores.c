#include "core/train/scores/scores.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"

#define AT(member) .offset = offsetof(struct dpt_scores, member)

const struct dpt_score dpt_scores[] = {
    {"mae", "MAE", "%.5g", false, AT(mae),
     "mean absolute error, in the targets' units; mean over the outputs"},
    {"rmse", "RMSE", "%.5g", false, AT(rmse), "root of the mean squared error, likewise"},
    {"r2", "R2", "%.4f", false, AT(r2),
     "coefficient of determination: 1 is right, 0 as good as the mean"},
    {"label_accuracy", "label accuracy", "%.4f", false, AT(label_accuracy),
     "of several at once, the share that is right: 1 - Hamming loss"},
    {"balanced_accuracy", "balanced accuracy", "%.4f", true, AT(balanced_accuracy),
     "mean over the classes of their recall"},
    {"precision", "precision", "%.4f", true, AT(precision),
     "of those said to be of a class, the share that are; of two classes of the rarer one"},
    {"recall", "recall", "%.4f", true, AT(recall),
     "of those of a class, the share that is found; likewise"},
    {"f1", "F1", "%.4f", true, AT(f1), "harmonic mean of precision and recall; likewise"},
    {"roc_auc", "ROC AUC", "%.4f", true, AT(roc_auc),
     "chance that one of a class is ranked above one of another"},
    {"top5_accuracy", "top-5 accuracy", "%.4f", true, AT(top5),
     "share whose class is among the five likeliest, of more than five"},
    {0},
};

void dpt_scores_clear(struct dpt_scores *scores)
{
    for (const struct dpt_score *row = dpt_scores; row->name != NULL; row++)
        *(double *)(void *)((char *)scores + row->offset) = NAN;
    scores->uneven = false;
    scores->positive = -1;
}

const char *dpt_scores_text(const struct dpt_scores *scores, bool classes, const char *front,
                            const char *between, char buf[DPT_SCORES_TEXT])
{
    size_t n = 0;

    buf[0] = '\0';
    for (const struct dpt_score *row = dpt_scores; row->name != NULL; row++) {
        const double value = dpt_score_value(scores, row);
        char digits[32];

        if (isnan(value) || row->classes != classes)
            continue;
        snprintf(digits, sizeof digits, row->format, value);
        snprintf(buf + n, DPT_SCORES_TEXT - n, "%s%s %s", n == 0 ? front : between, row->label,
                 digits);
        n += strlen(buf + n);
    }
    return buf;
}

/* The weighted sum of squares of an output's targets about their mean. */
static void measure_spread(const struct dpt_dataset *set, const struct dpt_sampler *sampler,
                           double weight, double *mean, double *spread)
{
    const int32_t width = set->target_width;

    for (int pass = 0; pass < 2; pass++) {
        for (struct dpt_sample_run run = {0}; dpt_sample_run_next(&run, sampler);)
            for (int64_t i = 0; i < run.n; i++) {
                const float *row = set->targets + run.at[i] * width;
                const double w = set->weights != NULL ? set->weights[run.at[i]] : 1;

                for (int32_t k = 0; w != 0 && k < width; k++)
                    if (pass == 0)
                        mean[k] += w * row[k];
                    else
                        spread[k] += w * (row[k] - mean[k]) * (row[k] - mean[k]);
            }
        for (int32_t k = 0; pass == 0 && k < width; k++)
            mean[k] /= weight;
    }
}

/* Computes the scores of errors whose weights sum up to `weight`. spread: the targets' sums of
 * squares about their mean. */
static void score_errors(struct dpt_scores *scores, int32_t width, const double *absolute,
                         const double *squared, const double *spread, double weight,
                         int64_t samples)
{
    scores->mae = scores->rmse = scores->r2 = 0;
    for (int32_t k = 0; k < width; k++) {
        scores->mae += absolute[k] / weight / width;
        scores->rmse += sqrt(squared[k] / weight) / width;
        /* If all targets are equal, r2 is 1 if the outputs equal them, else 0. */
        scores->r2 += (spread[k] > 0 ? 1 - squared[k] / spread[k] : squared[k] > 0 ? 0 : 1) / width;
    }
    if (samples < 2)
        scores->r2 = NAN;
}

enum dpt_status dpt_scores_regression(struct dpt_scores *scores, const struct dpt_dataset *set,
                                      const struct dpt_sampler *sampler, const double *absolute,
                                      const double *squared, double weight, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int32_t width = set->target_width;
    double *mean = NULL, *spread = NULL;

    dpt_scores_clear(scores);
    if (!(weight > 0))
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(mean, (size_t)width, "an evaluation", err));
    DPT_TRY(DPT_ALLOCATE(spread, (size_t)width, "an evaluation", err));
    measure_spread(set, sampler, weight, mean, spread);
    score_errors(scores, width, absolute, squared, spread, weight, sampler->samples);
out:
    dpt_free(mean);
    dpt_free(spread);
    return status;
}

void dpt_error_sums_add(double *sums, int32_t width, int64_t before, const float *values,
                        const float *targets)
{
    double *absolute = sums, *squared = sums + width, *mean = squared + width,
           *spread = mean + width;

    for (int32_t k = 0; k < width; k++) {
        const double error = (double)values[k] - targets[k], from_mean = targets[k] - mean[k];

        absolute[k] += fabs(error);
        squared[k] += error * error;
        mean[k] += from_mean / (double)(before + 1);
        spread[k] += from_mean * (targets[k] - mean[k]);
    }
}

void dpt_scores_of_sums(struct dpt_scores *scores, const double *sums, int32_t width,
                        int64_t samples)
{
    const size_t n = (size_t)width;

    dpt_scores_clear(scores);
    if (samples > 0)
        score_errors(scores, width, sums, sums + n, sums + 3 * n, (double)samples, samples);
}
