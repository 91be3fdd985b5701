#include "core/backend/ref/ref.h"

#include <math.h>

/* Operations that take each element by itself, and those that move none. */

/* value: of v; slope: from v and its value f. a: the node's first attribute. Both are pasted into
 * the loops so that the compiler can vectorise them. */
#define POINTWISE(name, value, slope)                                                              \
    static void name##_forward(const struct dpt_ref_call *call)                                    \
    {                                                                                              \
        const size_t n = call->count * call->out;                                                  \
        const float *restrict x = call->x;                                                         \
        float *restrict y = call->y;                                                               \
        const float a = call->node->attribute[0];                                                  \
                                                                                                   \
        (void)a;                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            const float v = x[i];                                                                  \
                                                                                                   \
            y[i] = (value);                                                                        \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void name##_backward(const struct dpt_ref_call *call)                                   \
    {                                                                                              \
        const size_t n = call->count * call->out;                                                  \
        const float *restrict x = call->x, *restrict y = call->y, *restrict dy = call->dy;         \
        float *restrict dx = call->dx;                                                             \
        const float a = call->node->attribute[0];                                                  \
                                                                                                   \
        (void)a;                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            const float v = x[i], f = y[i];                                                        \
                                                                                                   \
            (void)v, (void)f;                                                                      \
            dx[i] += dy[i] * (slope);                                                              \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    const struct dpt_ref_op dpt_ref_##name = {                                                     \
        .forward = name##_forward,                                                                 \
        .backward = name##_backward,                                                               \
    }

/* x Phi(x); erfc and not 1 + erf, which loses the tail on the left. */
static float gelu(double x)
{
    return (float)(0.5 * x * erfc(-x * M_SQRT1_2));
}

/* Phi(x) + x phi(x) */
static float gelu_slope(double x)
{
    return (float)(0.5 * erfc(-x * M_SQRT1_2) +
                   x * exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2));
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* s (1 + x (1 - s)), s being the logistic function */
static float silu_slope(double x)
{
    return (float)(logistic(x) * (1 + x * (1 - logistic(x))));
}

static float softplus(double x)
{
    return (float)(fmax(x, 0) + log1p(exp(-fabs(x))));
}

/* v < 0 and not v > 0 in the value: NaN must come through. */
POINTWISE(relu, (v < 0) ? 0 : v, (float)(v > 0));
POINTWISE(gelu, gelu(v), gelu_slope(v));
POINTWISE(tanh, tanhf(v), 1 - f * f);
POINTWISE(sigmoid, (float)logistic(v), (1 - f) * f);
POINTWISE(leaky_relu, (v < 0) ? a *v : v, (v > 0) ? 1 : a);
POINTWISE(silu, (float)(v *logistic(v)), silu_slope(v));
POINTWISE(hardswish,
          (v < -3)  ? 0
          : (v > 3) ? v
                    : v *(v + 3) / 6,
          (v < -3)  ? 0
          : (v > 3) ? 1
                    : (v + v + 3) / 6);
POINTWISE(relu6, (v < 0) ? 0 : (v > 6) ? 6 : v, (float)(f > 0 && f < 6));
POINTWISE(elu, (v < 0) ? (float)(a *expm1((double)v)) : v, (f > 0) ? 1 : f + a);
POINTWISE(softplus, (isnan(v)) ? v : softplus(v), (float)logistic(v));

/* The input's x is the batch's. */
POINTWISE(input, v, 1);
POINTWISE(flatten, v, 1);

static void dropout_forward(const struct dpt_ref_call *call)
{
    const struct dpt_batch *batch = call->batch;
    float *mask = call->saved;

    if (!call->training) {
        flatten_forward(call); /* a copy */
        return;
    }
    for (size_t i = 0; i < call->count; i++)
        dpt_dropout_mask(batch->seed, batch->step, batch->sample[i], call->index,
                         call->node->attribute[0], call->out, mask + i * call->out);
    for (size_t i = 0; i < call->count * call->out; i++)
        call->y[i] = call->x[i] * mask[i];
}

static void dropout_backward(const struct dpt_ref_call *call)
{
    const float *mask = call->saved;

    for (size_t i = 0; i < call->count * call->out; i++)
        call->dx[i] += call->dy[i] * mask[i];
}

const struct dpt_ref_op dpt_ref_dropout = {
    .forward = dropout_forward,
    .backward = dropout_backward,
    .saved = dpt_ref_save_outputs,
};
