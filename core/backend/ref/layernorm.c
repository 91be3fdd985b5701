#include "core/backend/ref/ref.h"

#include <math.h>

/* Ba, Kiros & Hinton 2016, over all numbers of a sample. */

/* Of a sample: what it is normalised by. */
struct statistics {
    double mean, scale;
};

static struct statistics statistics_of(const struct dpt_ref_call *call, const float *x)
{
    double sum = 0, squares = 0, mean;

    for (size_t i = 0; i < call->in; i++)
        sum += x[i];
    mean = sum / (double)call->in;
    for (size_t i = 0; i < call->in; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return (struct statistics){
        mean, 1 / sqrt(squares / (double)call->in + (double)call->node->attribute[0])};
}

static void forward(const struct dpt_ref_call *call)
{
    for (size_t row = 0; row < call->count; row++) {
        const float *x = call->x + row * call->in;
        float *y = call->y + row * call->in;
        const struct statistics s = statistics_of(call, x);

        for (size_t i = 0; i < call->in; i++)
            y[i] = (float)((x[i] - s.mean) * s.scale * call->weight[i] + call->bias[i]);
    }
}

/* dx = scale (g - mean of g - x' mean of (g x')), with x' what is normalised and g = dy weight. */
static void backward(const struct dpt_ref_call *call)
{
    const double n = (double)call->in;

    for (size_t row = 0; row < call->count; row++) {
        const float *x = call->x + row * call->in, *dy = call->dy + row * call->in;
        const struct statistics s = statistics_of(call, x);
        double sum = 0, inner = 0;

        for (size_t i = 0; i < call->in; i++) {
            const double normal = (x[i] - s.mean) * s.scale, g = (double)dy[i] * call->weight[i];

            call->dweight[i] += (float)(dy[i] * normal);
            call->dbias[i] += dy[i];
            sum += g;
            inner += g * normal;
        }
        for (size_t i = 0; call->dx != NULL && i < call->in; i++) {
            const double normal = (x[i] - s.mean) * s.scale, g = (double)dy[i] * call->weight[i];

            call->dx[row * call->in + i] += (float)(s.scale * (g - sum / n - normal * inner / n));
        }
    }
}

const struct dpt_ref_op dpt_ref_layernorm = {.forward = forward, .backward = backward};
