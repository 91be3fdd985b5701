#include "core/backend/backend.h"

#include <math.h>
#include <string.h>

/* The target of one row: a class, or a row of probabilities or values. */
struct target {
    int32_t label;
    const float *row; /* or NULL: 1 at `label`, 0 elsewhere */
};

static double target_at(const struct target *t, int32_t j)
{
    if (t->row != NULL)
        return t->row[j];
    return j == t->label ? 1.0 : 0.0;
}

/* The first of the largest; -1 if one is NaN. */
static int32_t arg_max(const float *row, int32_t n)
{
    int32_t best = 0;

    for (int32_t j = 0; j < n; j++) {
        if (isnan(row[j]))
            return -1;
        if (row[j] > row[best])
            best = j;
    }
    return best;
}

/* Whether all logits of a row are finite; else its gradient is set to NaN. A logit of -inf can
 * leave a formula finite, and the comparison in a maximum drops NaN. */
static bool takes_logits(int32_t n, const float *y, float *dy)
{
    int32_t good = 0;

    while (good < n && isfinite(y[good]))
        good++;
    for (int32_t j = 0; good < n && dy != NULL && j < n; j++)
        dy[j] = NAN;
    return good == n;
}

/*
 * -sum_j t_j log softmax(y)_j with the smoothed targets t, as lse x sum(t) - sum(t_j y_j) where y
 * is taken relative to its maximum. Its derivative by y_j is softmax(y)_j sum(t) - t_j.
 */
static double cross_entropy_row(const struct dpt_loss *loss, const struct target *target, int32_t n,
                                const float *y, float *dy)
{
    const double smoothing = loss->attribute;
    const double spread = smoothing / n;
    double top, sum = 0, weight = 0, product = 0;

    if (!takes_logits(n, y, dy))
        return NAN;
    top = y[arg_max(y, n)];
    for (int32_t j = 0; j < n; j++) {
        const double power = exp(y[j] - top);
        const double t = (1 - smoothing) * target_at(target, j) + spread;

        sum += power;
        weight += t;
        product += t * (y[j] - top);
        if (dy != NULL)
            dy[j] = (float)power;
    }
    for (int32_t j = 0; dy != NULL && j < n; j++) {
        const double t = (1 - smoothing) * target_at(target, j) + spread;

        dy[j] = (float)(dy[j] / sum * weight - t);
    }
    return weight * log(sum) - product;
}

/*
 * -sum_j t_j (1 - p_j)^gamma log p_j with p = softmax(y). With q = 1 - p and
 * g_j = t_j q_j^gamma (gamma p_j log(p_j) / q_j - 1) its derivative by y_j is g_j - p_j sum(g).
 */
static double focal_row(const struct dpt_loss *loss, const struct target *target, int32_t n,
                        const float *y, float *dy)
{
    const double gamma = loss->attribute;
    double top, sum = 0, all = 0, total = 0;

    if (!takes_logits(n, y, dy))
        return NAN;
    top = y[arg_max(y, n)];
    for (int32_t j = 0; j < n; j++)
        sum += exp(y[j] - top);
    for (int32_t j = 0; j < n; j++) {
        const double log_p = y[j] - top - log(sum), p = exp(log_p), q = -expm1(log_p);
        const double factor = target_at(target, j) * pow(q, gamma);
        /* log(p) / q tends to -1 as q does to 0. */
        const double g = factor * (gamma * p * (q > 0 ? log_p / q : -1) - 1);

        total -= factor * log_p;
        all += g;
        if (dy != NULL)
            dy[j] = (float)g;
    }
    for (int32_t j = 0; dy != NULL && j < n; j++)
        dy[j] = (float)(dy[j] - exp(y[j] - top) / sum * all);
    return total;
}

/* 1, -1 or 0; NaN stays NaN. */
static double sign_of(double x)
{
    return x > 0 ? 1 : x < 0 ? -1 : x;
}

/* A loss that is the mean over j of a function of the difference y_j - t_j, by its `value` and its
 * `slope`, which are expressions of difference, size (its absolute value) and delta. */
#define OF_DIFFERENCES(name, value, slope)                                                         \
    static double name##_row(const struct dpt_loss *loss, const struct target *target, int32_t n,  \
                             const float *y, float *dy)                                            \
    {                                                                                              \
        const double delta = loss->attribute;                                                      \
        double sum = 0;                                                                            \
                                                                                                   \
        for (int32_t j = 0; j < n; j++) {                                                          \
            const double difference = y[j] - target_at(target, j), size = fabs(difference);        \
                                                                                                   \
            (void)delta, (void)size;                                                               \
            sum += (value);                                                                        \
            if (dy != NULL)                                                                        \
                dy[j] = (float)((slope) / n);                                                      \
        }                                                                                          \
        return sum / n;                                                                            \
    }

OF_DIFFERENCES(mse, difference *difference, 2 * difference)
OF_DIFFERENCES(l1, size, sign_of(difference)) /* the gradient is 0 if both are equal */
OF_DIFFERENCES(huber, size <= delta ? difference * difference / 2 : delta * (size - delta / 2),
               size <= delta ? difference : delta * sign_of(difference))
/* Koenker & Bassett 1978, "Regression Quantiles", equation 2.1; delta is the quantile. */
OF_DIFFERENCES(quantile, difference < 0 ? delta * size : (1 - delta) * size,
               difference < 0 ? -delta : (1 - delta) * sign_of(difference))
#undef OF_DIFFERENCES

/* mean_j of exp(y_j) - t_j y_j, whose derivative is exp(y_j) - t_j. */
static double poisson_row(const struct dpt_loss *loss, const struct target *target, int32_t n,
                          const float *y, float *dy)
{
    double sum = 0;

    (void)loss;
    for (int32_t j = 0; j < n; j++) {
        const double t = target_at(target, j), rate = exp(y[j]);

        sum += rate - t * y[j];
        if (dy != NULL)
            dy[j] = (float)((rate - t) / n);
    }
    return sum / n;
}

/*
 * mean_j of log(1 + exp(y_j)) - t_j y_j, whose derivative is sigmoid(y_j) - t_j, from exp(-|y_j|),
 * which cannot overflow. A y_j that is not finite gives a loss that is not finite.
 */
static double binary_cross_entropy_row(const struct dpt_loss *loss, const struct target *target,
                                       int32_t n, const float *y, float *dy)
{
    double sum = 0;

    (void)loss;
    for (int32_t j = 0; j < n; j++) {
        const double t = target_at(target, j), power = exp(-fabs((double)y[j]));

        if (t < 0) {
            sum -= t * ((y[j] < 0 ? -y[j] : 0.0) + log1p(power));
            if (dy != NULL)
                dy[j] = (float)(t * (y[j] > 0 ? power : 1) / (1 + power) / n);
            continue;
        }
        sum += (y[j] > 0 ? y[j] : 0.0) - t * y[j] + log1p(power);
        if (dy != NULL)
            dy[j] = (float)(((y[j] > 0 ? 1 : power) / (1 + power) - t) / n);
    }
    return sum / n;
}

static bool right_class(const struct target *target, int32_t n, const float *y)
{
    const int32_t wanted = target->row != NULL ? arg_max(target->row, n) : target->label;

    return wanted >= 0 && arg_max(y, n) == wanted;
}

/* Whether a label holds, by its target; below 0 it does. */
static bool holds(double target)
{
    return target < 0 || target >= 0.5;
}

static bool right_labels(const struct target *target, int32_t n, const float *y)
{
    for (int32_t j = 0; j < n; j++) {
        if (isnan(y[j]) || (y[j] > 0) != holds(target_at(target, j)))
            return false;
    }
    return true;
}

static const struct loss_type {
    double (*row)(const struct dpt_loss *loss, const struct target *target, int32_t n,
                  const float *y, float *dy);
    bool (*right)(const struct target *target, int32_t n, const float *y); /* or NULL */
} types[DPT_LOSSES] = {
#define ROW(NAME, name, right) [DPT_LOSS_##NAME] = {name##_row, right},
#define OF_CLASSES(NAME, name) ROW(NAME, name, right_class)
#define OF_LABELS(NAME, name)  ROW(NAME, name, right_labels)
#define OF_NUMBERS(NAME, name) ROW(NAME, name, NULL)
    // clang-format off
    DPT_LOSSES_OF_CLASSES(OF_CLASSES, OF_CLASSES, OF_CLASSES)
    DPT_LOSSES_OF_NUMBERS(OF_NUMBERS, OF_NUMBERS, OF_NUMBERS)
    DPT_LOSSES_OF_COUNTS(OF_NUMBERS, OF_NUMBERS, OF_NUMBERS)
    DPT_LOSSES_OF_LABELS(OF_LABELS, OF_LABELS, OF_LABELS)
    // clang-format on
};

bool dpt_loss_judges(enum dpt_loss_kind kind)
{
    return types[kind].right != NULL;
}

bool dpt_loss_has_classes(enum dpt_loss_kind kind)
{
    return types[kind].right == right_class;
}

void dpt_loss_rows(const struct dpt_loss *loss, const struct dpt_batch *batch, int32_t outputs,
                   size_t stride, const float *y, float *dy, struct dpt_metric_sums *metric_sums)
{
    const struct loss_type *type = &types[loss->kind];
    const float *weights = batch->weights;
    const int32_t *labels = batch->labels;
    const int32_t count = batch->count;
    struct target target = {.row = labels == NULL ? batch->targets : NULL};
    struct dpt_metric_sums sums =
        *metric_sums; /* in registers: small models have little else to do */

    for (int32_t i = 0; i < count; i++, y += stride) {
        float *drow = dy != NULL ? dy + (size_t)i * stride : NULL;
        float weight = 1;

        if (labels != NULL)
            target.label = labels[i];
        else if (i > 0)
            target.row += outputs;
        if (weights != NULL) {
            weight = weights[i];
            sums.weight += weight;
        }
        if (weight == 0) { /* 0 x NaN would count */
            if (drow != NULL)
                memset(drow, 0, (size_t)outputs * sizeof *drow);
            continue;
        }
        sums.loss += weight * type->row(loss, &target, outputs, y, drow);
        for (int32_t j = 0; weight != 1 && drow != NULL && j < outputs; j++)
            drow[j] *= weight;
        if (type->right != NULL)
            sums.correct += type->right(&target, outputs, y) ? weight : 0;
    }
    if (weights == NULL)
        sums.weight += count;
    sums.samples += count;
    *metric_sums = sums;
}
