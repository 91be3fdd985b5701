#include "core/backend/ref/ref.h"

#include <math.h>

/* Ba, Kiros & Hinton 2016, over all numbers of a sample; Wu & He 2018, over each group of channels,
 * which is a run of numbers. */

struct statistics {
    double mean, scale;
};

/* Numbers that are normalised together. */
static size_t group_of(const struct dpt_ref_call *call)
{
    return call->in / (call->node->op == DPT_OP_GROUPNORM ? (size_t)call->node->window.groups : 1);
}

/* Numbers that have a weight together. */
static size_t shared_by(const struct dpt_ref_call *call)
{
    return call->node->op == DPT_OP_GROUPNORM ? call->in / (size_t)call->node->in.c : 1;
}

static struct statistics statistics_of(const struct dpt_ref_call *call, const float *x)
{
    const size_t n = group_of(call);
    double sum = 0, squares = 0, mean;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return (struct statistics){mean,
                               1 / sqrt(squares / (double)n + (double)call->node->attribute[0])};
}

static void forward(const struct dpt_ref_call *call)
{
    const size_t n = group_of(call), shared = shared_by(call);

    for (size_t first = 0; first < call->count * call->in; first += n) {
        const struct statistics s = statistics_of(call, call->x + first);

        for (size_t i = first; i < first + n; i++) {
            const size_t k = i % call->in / shared;

            call->y[i] = (float)((call->x[i] - s.mean) * s.scale * call->weight[k] + call->bias[k]);
        }
    }
}

/* dx = scale (g - mean of g - x' mean of (g x')), with x' what is normalised and g = dy weight. */
static void backward(const struct dpt_ref_call *call)
{
    const size_t n = group_of(call), shared = shared_by(call);

    for (size_t first = 0; first < call->count * call->in; first += n) {
        const struct statistics s = statistics_of(call, call->x + first);
        double sum = 0, inner = 0;

        for (size_t i = first; i < first + n; i++) {
            const size_t k = i % call->in / shared;
            const double normal = (call->x[i] - s.mean) * s.scale;
            const double g = (double)call->dy[i] * call->weight[k];

            call->dweight[k] += (float)(call->dy[i] * normal);
            call->dbias[k] += call->dy[i];
            sum += g;
            inner += g * normal;
        }
        for (size_t i = first; call->dx != NULL && i < first + n; i++) {
            const double normal = (call->x[i] - s.mean) * s.scale;
            const double g = (double)call->dy[i] * call->weight[i % call->in / shared];

            call->dx[i] += (float)(s.scale * (g - sum / (double)n - normal * inner / (double)n));
        }
    }
}

const struct dpt_ref_op dpt_ref_layernorm = {.forward = forward, .backward = backward},
                        dpt_ref_groupnorm = {.forward = forward, .backward = backward};
