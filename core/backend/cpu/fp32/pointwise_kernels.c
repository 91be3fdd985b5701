#include "core/backend/cpu/fp32/kernels.h"

#include <math.h>
#include <string.h>

/* If y is x the compiler would go element by element, and a relu's by jumps: 4 to 20 times as slow.
 * No element is read after another one was written. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Runs `expression` for all i < n, and further to the end of the cache line, so that vectors have
 * no remainder. */
#define FOR_LANES(n, expression)                                                                   \
    {                                                                                              \
        const int64_t whole = ((n) + DPT_LANES - 1) / DPT_LANES * DPT_LANES;                       \
                                                                                                   \
        INDEPENDENT                                                                                \
        for (int64_t i = 0; i < whole; i++) {                                                      \
            expression;                                                                            \
        }                                                                                          \
    }

static inline __attribute__((always_inline)) float float_of(int32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline __attribute__((always_inline)) int32_t bits_of(float x)
{
    int32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/*
 * e^x: x = k ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor series (seven terms: 2e-7 relative),
 * 2^k in the exponent bits. Comparisons are so that NaN passes through.
 */
static inline __attribute__((always_inline)) float exp_lane(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to an integer in the low bits */
    float k, r, p;

    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    k = x * 1.44269504f + shift;
    r = k - shift;
    r = x - r * 0.693145752f - r * 1.42860677e-6f;
    p = 1 / 720.0f + r * (1 / 5040.0f);
    p = 1 / 120.0f + r * p;
    p = 1 / 24.0f + r * p;
    p = 1 / 6.0f + r * p;
    p = 0.5f + r * p;
    p = 1.0f + r * p;
    p = 1.0f + r * p;
    return p * float_of((int32_t)(((uint32_t)bits_of(k) + 127) << 23));
}

/*
 * Phi(x), the normal distribution: 1 - t p(t) e^(-x^2 / 2) / 2 for x >= 0 (Abramowitz &
 * Stegun 7.1.26 with x / sqrt 2, absolute error 8e-8), by symmetry below. bell: e^(-x^2 / 2).
 */
static inline __attribute__((always_inline)) float normal_lane(float x, float bell)
{
    const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * fabsf(x));
    float p = -1.453152027f + t * 1.061405429f;

    p = 1.421413741f + t * p;
    p = -0.284496736f + t * p;
    p = 0.254829592f + t * p;
    p = 0.5f * t * p * bell;
    return x < 0 ? p : 1.0f - p;
}

static inline __attribute__((always_inline)) float bell_lane(float x)
{
    return exp_lane(-0.5f * x * x);
}

/* Near zero 1 - 2 / (e^2x + 1) would lose its digits: the continued fraction x / (1 + x^2 / (3 +
 * x^2 / (5 + x^2 / 7))) there. */
static inline __attribute__((always_inline)) float tanh_lane(float x)
{
    const float square = x * x;
    const float near = x * (105.0f + 10.0f * square) / (105.0f + square * (45.0f + square));
    const float far = 1.0f - 2.0f / (exp_lane(2.0f * x) + 1.0f);

    return fabsf(x) < 0.25f ? near : far;
}

/* d(x Phi(x)) = Phi(x) + x phi(x), phi the density. */
static inline __attribute__((always_inline)) float gelu_slope(float x)
{
    const float bell = bell_lane(x);

    return normal_lane(x, bell) + x * bell * 0.398942280f;
}

static inline __attribute__((always_inline)) float logistic_lane(float x)
{
    return 1.0f / (1.0f + exp_lane(-x));
}

/* s (1 + x (1 - s)), s being the logistic function. */
static inline __attribute__((always_inline)) float silu_slope(float x)
{
    const float s = logistic_lane(x);

    return s * (1.0f + x * (1.0f - s));
}

/* e^x - 1 = 2 t / (1 - t), t = tanh(x / 2), which keeps the digits near zero. */
static inline __attribute__((always_inline)) float expm1_lane(float x)
{
    const float t = tanh_lane(0.5f * x);

    return 2.0f * t / (1.0f - t);
}

/* log(1 + u) for u in [0, 1]: 2 atanh z, z = u / (2 + u) <= 1/3, by seven terms of its series. */
static inline __attribute__((always_inline)) float log1p_lane(float u)
{
    const float z = u / (2.0f + u), square = z * z;
    float p = 1 / 11.0f + square * (1 / 13.0f);

    p = 1 / 9.0f + square * p;
    p = 1 / 7.0f + square * p;
    p = 1 / 5.0f + square * p;
    p = 1 / 3.0f + square * p;
    return 2.0f * z * (1.0f + square * p);
}

/* value: of v. back: from v, which is known, and d, the output's gradient. a: the attribute. */
#define ACTIVATION(name, value, back)                                                              \
    DPT_VECTOR void dpt_##name(int64_t n, float a, const float *x, float *y)                       \
    {                                                                                              \
        (void)a;                                                                                   \
        FOR_LANES(n, const float v = x[i]; y[i] = (value))                                         \
    }                                                                                              \
                                                                                                   \
    DPT_VECTOR void dpt_##name##_back(int64_t n, float a, const float *known, const float *dy,     \
                                      float *dx)                                                   \
    {                                                                                              \
        (void)a;                                                                                   \
        FOR_LANES(n, const float v = known[i]; const float d = dy[i]; dx[i] = (back))              \
    }

/* v < 0 and not v > 0 in the value: NaN must come through. */
// clang-format off
ACTIVATION(relu, v < 0.0f ? 0.0f : v, v > 0.0f ? d : 0.0f)
ACTIVATION(gelu, v * normal_lane(v, bell_lane(v)), d * gelu_slope(v))
ACTIVATION(tanh, tanh_lane(v), d * (1.0f - v * v))
ACTIVATION(sigmoid, logistic_lane(v), d * v * (1.0f - v))
ACTIVATION(leaky_relu, v < 0.0f ? a * v : v, v > 0.0f ? d : d * a)
ACTIVATION(silu, v * logistic_lane(v), d * silu_slope(v))
ACTIVATION(hardswish, v < -3.0f ? 0.0f : v > 3.0f ? v : v * (v + 3.0f) / 6.0f,
           v < -3.0f ? 0.0f : v > 3.0f ? d : d * ((v + v + 3.0f) / 6.0f))
ACTIVATION(relu6, v < 0.0f ? 0.0f : v > 6.0f ? 6.0f : v, v > 0.0f && v < 6.0f ? d : 0.0f)
ACTIVATION(elu, v < 0.0f ? a * expm1_lane(v) : v, v > 0.0f ? d : d * (v + a))
ACTIVATION(softplus, (v < 0.0f ? 0.0f : v) + log1p_lane(exp_lane(-fabsf(v))), d * logistic_lane(v))
// clang-format on

#define PAIRS(name, value)                                                                         \
    DPT_VECTOR void name(int64_t n, const float *a, const float *b, float *y)                      \
    {                                                                                              \
        INDEPENDENT                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float v = (value);                                                               \
                                                                                                   \
            y[i] = v;                                                                              \
        }                                                                                          \
    }
PAIRS(dpt_multiply, a[i] * b[i])
PAIRS(dpt_add, a[i] + b[i])
PAIRS(dpt_add_relu, a[i] + b[i] < 0.0f ? 0.0f : a[i] + b[i])

DPT_VECTOR void dpt_add_relu_back(int64_t n, const float *known, const float *a, const float *b,
                                  float *y)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const float v = a[i] + b[i];

        y[i] = known[i] > 0.0f ? v : 0.0f;
    }
}

DPT_VECTOR void dpt_accumulate(int64_t n, const float *restrict x, bool add, float *restrict y)
{
    if (!add)
        memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}
