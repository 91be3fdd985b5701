/*
 * tensor: what the tests of the device's kernels share: tensors as the device has them, in each
 * type.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_TENSOR_H
#define DPT_BACKEND_CUDA_TESTS_TENSOR_H

#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/emulate.h"

enum type { F32, B16, H16, TYPES };

static const int lanes_of[TYPES] = {4, 8, 8};
static const size_t bytes_of[TYPES] = {4, 2, 2};
static const char *const type_names[TYPES] = {"f32", "b16", "h16"};
/* The error of rounding to the type: relative, and absolute for small numbers. */
static const double precision_of[TYPES] = {0, 0x1p-8, 0x1p-11}, least_of[TYPES] = {0, 0, 0x1p-25};

/* A kernel in each type, and in one of them. */
#define OF_ALL(name)                                                                               \
    {                                                                                              \
        DPT_CUDA_K_##name##_f32, DPT_CUDA_K_##name##_b16, DPT_CUDA_K_##name##_h16                  \
    }
#define OF(type, name) (((const enum dpt_cuda_kernel[])OF_ALL(name))[type])

static inline float element_get(enum type type, const void *at, size_t i)
{
    if (type == F32)
        return ((const float *)at)[i];
    return type == B16 ? b16_to_float(((const b16 *)at)[i]) : h16_to_float(((const h16 *)at)[i]);
}

static inline void element_put(enum type type, void *at, size_t i, float value)
{
    if (type == F32)
        ((float *)at)[i] = value;
    else
        ((uint16_t *)at)[i] = (uint16_t)(type == B16 ? float_to_b16(value) : float_to_h16(value));
}

/* As a tensor of that type keeps it. */
static inline float rounded(enum type type, float value)
{
    float kept;

    element_put(type, &kept, 0, value);
    return element_get(type, &kept, 0);
}

static inline float *random_values(struct draw *d, size_t n)
{
    float *x = dpt_alloc_array(n + 1, sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)draw_normal(d);
    return x;
}

/* A tensor of the device: n samples of c channels, `pixels` each, in rows of `pitch`. */
struct device_tensor {
    size_t n, c, pixels, pitch;
    enum type type;
    void *at;
};

static inline struct device_tensor tensor_make(enum type type, size_t n, const struct dpt_shape *s)
{
    const size_t lanes = (size_t)lanes_of[type];
    struct device_tensor t = {.n = n,
                              .c = (size_t)s->c,
                              .pixels = (size_t)s->h * (size_t)s->w,
                              .pitch = ((size_t)s->c + lanes - 1) / lanes * lanes,
                              .type = type};

    t.at = dpt_alloc(n * t.pixels * t.pitch * bytes_of[type]);
    assert_non_null(t.at);
    return t;
}

static inline size_t tensor_elements(const struct device_tensor *t)
{
    return t->n * t->pixels * t->pitch;
}

static inline size_t tensor_bytes(const struct device_tensor *t)
{
    return tensor_elements(t) * bytes_of[t->type];
}

static inline float tensor_get(const struct device_tensor *t, size_t i)
{
    return element_get(t->type, t->at, i);
}

static inline void tensor_put(struct device_tensor *t, size_t i, float value)
{
    element_put(t->type, t->at, i, value);
}

/* The place of element i of the canonical [n][c][pixels]. */
static inline size_t tensor_place(const struct device_tensor *t, size_t i)
{
    const size_t pixel = i % t->pixels, channel = i / t->pixels % t->c;

    return (i / t->pixels / t->c * t->pixels + pixel) * t->pitch + channel;
}

/* Rounds the canonical values to the tensor's type and puts them there. */
static inline void tensor_fill(struct device_tensor *t, float *canonical)
{
    for (size_t i = 0; i < t->n * t->c * t->pixels; i++) {
        tensor_put(t, tensor_place(t, i), canonical[i]);
        canonical[i] = tensor_get(t, tensor_place(t, i));
    }
}

/* Normal numbers, also in the padding. */
static inline struct device_tensor tensor_random(enum type type, size_t n,
                                                 const struct dpt_shape *s, struct draw *d)
{
    struct device_tensor t = tensor_make(type, n, s);

    for (size_t i = 0; i < tensor_elements(&t); i++)
        tensor_put(&t, i, (float)draw_normal(d));
    return t;
}

/* Whether both have the same bits at i, or NaN. */
static inline bool tensor_same(const struct device_tensor *a, const struct device_tensor *b,
                               size_t i)
{
    const float x = tensor_get(a, i), y = tensor_get(b, i);

    return memcmp(&x, &y, sizeof x) == 0 || (isnan(x) && isnan(y));
}

/* tolerance: of a float's result, relative to 1 + |want|; shorter ones may be off by their own
 * rounding besides. */
static inline void tensor_check(const struct device_tensor *t, const float *want, double tolerance,
                                const char *what, int seed)
{
    for (size_t i = 0; i < t->n * t->c * t->pixels; i++) {
        const bool over = t->type == H16 && fabsf(want[i]) >= 65520; /* half of its last step */
        const double got = (double)tensor_get(t, tensor_place(t, i));
        const double w = over ? copysign(INFINITY, (double)want[i]) : (double)want[i];
        const double off =
            tolerance * (1 + fabs(w)) + precision_of[t->type] * fabs(w) + least_of[t->type];

        if (isnan(w) ? !isnan(got) : !(got == w || fabs(got - w) <= off))
            fail_msg("%s, seed %d, %s: element %zu is %.9g, not %.9g", what, seed,
                     type_names[t->type], i, got, w);
    }
}

#endif
