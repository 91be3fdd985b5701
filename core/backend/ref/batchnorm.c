#include "core/backend/ref/ref.h"

#include <math.h>

/* Ioffe & Szegedy 2015: each channel, or each number of a flat vector, over all pixels of all
 * samples of the micro-batch. */

/* Of a channel: what it is normalised by. */
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

static struct statistics statistics_of(const struct dpt_ref_call *call, size_t channel)
{
    const size_t pixels = pixels_of(call);
    const double n = (double)call->count * (double)pixels;
    struct statistics s = {0};

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

static void forward(const struct dpt_ref_call *call)
{
    const size_t pixels = pixels_of(call);
    const double samples = (double)call->count, n = samples * (double)pixels;

    for (size_t c = 0; c < (size_t)call->node->in.c; c++) {
        struct statistics s;

        if (call->training) {
            s = statistics_of(call, c);
            call->means[c] += (float)(samples * s.mean);
            call->variances[c] += (float)(samples * s.variance * n / (n > 1 ? n - 1 : 1));
        } else {
            s.mean = call->mean[c];
            s.scale = 1 / sqrt((double)call->variance[c] +
                               (double)call->node->attribute[DPT_BATCHNORM_EPS]);
        }
        for (size_t row = 0; row < call->count; row++)
            for (size_t i = 0; i < pixels; i++) {
                const size_t at = plane_at(call, row, c) + i;

                call->y[at] =
                    (float)((call->x[at] - s.mean) * s.scale * call->weight[c] + call->bias[c]);
            }
    }
}

/* dx = scale weight (dy - mean of dy - x' mean of (dy x')), with x' what is normalised. */
static void backward(const struct dpt_ref_call *call)
{
    const size_t pixels = pixels_of(call);
    const double n = (double)call->count * (double)pixels;

    for (size_t c = 0; c < (size_t)call->node->in.c; c++) {
        const struct statistics s = statistics_of(call, c);
        double sum = 0, inner = 0;

        for (size_t row = 0; row < call->count; row++)
            for (size_t i = 0; i < pixels; i++) {
                const size_t at = plane_at(call, row, c) + i;

                sum += call->dy[at];
                inner += call->dy[at] * (call->x[at] - s.mean) * s.scale;
            }
        call->dweight[c] += (float)inner;
        call->dbias[c] += (float)sum;
        for (size_t row = 0; call->dx != NULL && row < call->count; row++)
            for (size_t i = 0; i < pixels; i++) {
                const size_t at = plane_at(call, row, c) + i;
                const double normal = (call->x[at] - s.mean) * s.scale;

                call->dx[at] += (float)(s.scale * call->weight[c] *
                                        (call->dy[at] - sum / n - normal * inner / n));
            }
    }
}

const struct dpt_ref_op dpt_ref_batchnorm = {.forward = forward, .backward = backward};
