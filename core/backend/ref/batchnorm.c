#include "core/backend/ref/ref.h"

#include <math.h>

/* Ioffe & Szegedy 2015: each channel, or each number of a flat vector, over all pixels of all
 * samples of the micro-batch, or of the step; the sums of a step are exchanged between the
 * passes. */

/* The statistics that normalise a channel. */
struct statistics {
    double mean, variance, scale;
};

static size_t pixels_of(const struct dpt_ref_call *call)
{
    return (size_t)call->node->in.h * (size_t)call->node->in.w;
}

/* Where a channel of a sample begins. */
static size_t plane_at(const struct dpt_ref_call *call, size_t row, size_t channel)
{
    return row * call->in + channel * pixels_of(call);
}

/* The statistics of this micro-batch. */
static struct statistics statistics_of(const struct dpt_ref_call *call, size_t channel)
{
    const size_t pixels = pixels_of(call);
    const double n = (double)call->count * (double)pixels;
    struct statistics s = {0};

    if (call->node->by_running || !call->training)
        return (struct statistics){.mean = call->mean[channel],
                                   .scale =
                                       1 / sqrt((double)call->variance[channel] +
                                                (double)call->node->attribute[DPT_BATCHNORM_EPS])};
    for (size_t row = 0; row < call->count; row++)
        for (size_t i = 0; i < pixels; i++)
            s.mean += call->x[plane_at(call, row, channel) + i] / n;
    for (size_t row = 0; row < call->count; row++)
        for (size_t i = 0; i < pixels; i++) {
            const double away = call->x[plane_at(call, row, channel) + i] - s.mean;

            s.variance += away * away / n;
        }
    s.scale = 1 / sqrt(s.variance + (double)call->node->attribute[DPT_BATCHNORM_EPS]);
    return s;
}

/* --- statistics of the whole step ------------------------------------------------------------- */

static bool is_synchronised(const struct dpt_ref_call *call)
{
    return call->node->whole_step && call->pass != NULL;
}

static size_t channels_of(const struct dpt_ref_call *call)
{
    return (size_t)call->node->in.c;
}

/* The number of values per channel that the statistics cover. */
static double numbers_of(const struct dpt_ref_call *call)
{
    return (is_synchronised(call) ? (double)call->pass->samples : (double)call->count) *
           (double)pixels_of(call);
}

/* A synchronized norm keeps the statistics of each channel for its backward pass, in the place of
 * the first samples. */
static size_t saved(const struct dpt_graph_node *node)
{
    return node->whole_step ? (size_t)node->in.c * sizeof(struct statistics) / sizeof(float) : 0;
}

static void sum_forward(const struct dpt_ref_call *call)
{
    for (size_t c = 0; c < channels_of(call); c++) {
        const struct statistics s = statistics_of(call, c);

        call->pass->own[c] = s.mean;
        call->pass->own[channels_of(call) + c] =
            s.variance * (double)call->count * (double)pixels_of(call);
    }
}

/* The statistics of this micro-batch, or of the step. */
static struct statistics forward_statistics(const struct dpt_ref_call *call, size_t channel)
{
    struct statistics s, *kept = call->saved;

    if (!is_synchronised(call))
        return statistics_of(call, channel);
    s.mean = call->pass->all[channel];
    s.variance = call->pass->all[channels_of(call) + channel] / numbers_of(call);
    s.scale = 1 / sqrt(s.variance + (double)call->node->attribute[DPT_BATCHNORM_EPS]);
    kept[channel] = s;
    return s;
}

static struct statistics backward_statistics(const struct dpt_ref_call *call, size_t channel)
{
    const struct statistics *kept = call->saved;

    return is_synchronised(call) ? kept[channel] : statistics_of(call, channel);
}

/* --- passes ----------------------------------------------------------------------------------- */

static void forward(const struct dpt_ref_call *call)
{
    const size_t pixels = pixels_of(call);
    const double samples = (double)call->count, n = numbers_of(call);

    for (size_t c = 0; c < channels_of(call); c++) {
        const struct statistics s =
            call->training ? forward_statistics(call, c) : statistics_of(call, c);

        if (call->training && !call->node->by_running) {
            call->means[c] += (float)(samples * s.mean);
            call->variances[c] += (float)(samples * s.variance * n / (n > 1 ? n - 1 : 1));
        }
        for (size_t row = 0; row < call->count; row++)
            for (size_t i = 0; i < pixels; i++) {
                const size_t at = plane_at(call, row, c) + i;

                call->y[at] =
                    (float)((call->x[at] - s.mean) * s.scale * call->weight[c] + call->bias[c]);
            }
    }
}

/* The sums of dy, and of dy x', over this micro-batch: the gradients of bias and weight. */
static void sums_of(const struct dpt_ref_call *call, size_t c, const struct statistics *s,
                    double *sum, double *inner)
{
    *sum = *inner = 0;
    for (size_t row = 0; row < call->count; row++)
        for (size_t i = 0; i < pixels_of(call); i++) {
            const size_t at = plane_at(call, row, c) + i;

            *sum += call->dy[at];
            *inner += call->dy[at] * (call->x[at] - s->mean) * s->scale;
        }
    call->dweight[c] += (float)*inner;
    call->dbias[c] += (float)*sum;
}

static void sum_backward(const struct dpt_ref_call *call)
{
    for (size_t c = 0; c < channels_of(call); c++) {
        const struct statistics s = backward_statistics(call, c);

        sums_of(call, c, &s, &call->pass->own[c], &call->pass->own[channels_of(call) + c]);
    }
}

/* dx = scale weight (dy - mean of dy - x' mean of (dy x')), with x' what is normalised. */
static void backward(const struct dpt_ref_call *call)
{
    const size_t pixels = pixels_of(call);
    const double n = numbers_of(call);

    for (size_t c = 0; c < channels_of(call); c++) {
        const struct statistics s = backward_statistics(call, c);
        double sum, inner;

        if (is_synchronised(call)) {
            sum = call->pass->all[c];
            inner = call->pass->all[channels_of(call) + c];
        } else {
            sums_of(call, c, &s, &sum, &inner);
        }
        if (call->node->by_running) /* constants, which pass nothing back */
            sum = inner = 0;
        for (size_t row = 0; call->dx != NULL && row < call->count; row++)
            for (size_t i = 0; i < pixels; i++) {
                const size_t at = plane_at(call, row, c) + i;
                const double normal = (call->x[at] - s.mean) * s.scale;

                call->dx[at] += (float)(s.scale * call->weight[c] *
                                        (call->dy[at] - sum / n - normal * inner / n));
            }
    }
}

const struct dpt_ref_op dpt_ref_batchnorm = {
    .forward = forward,
    .backward = backward,
    .sum_forward = sum_forward,
    .sum_backward = sum_backward,
    .saved = saved,
};
