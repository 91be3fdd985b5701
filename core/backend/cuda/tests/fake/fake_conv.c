/* Convolutions by plain loops, in fp32, each sum in the order that its engine has. */
#include <stdlib.h>

#include "core/backend/cuda/tests/fake/fake_conv.h"

/* A tensor as floats without gaps: [d0][d2][d3][d1], channels last. */
struct dense {
    int64_t n, c, h, w;
    float *at;
};

static struct dense dense_new(const struct fake_tensor *t)
{
    struct dense d = {t->dims[0], t->dims[1], t->dims[2], t->dims[3], NULL};

    d.at = calloc((size_t)(d.n * d.c * d.h * d.w), sizeof *d.at);
    if (d.at == NULL)
        abort();
    return d;
}

static size_t offset_of(const struct fake_tensor *t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (size_t)(n * t->strides[0] + c * t->strides[1] + h * t->strides[2] + w * t->strides[3]);
}

size_t fake_tensor_bytes(const struct fake_tensor *t)
{
    return (offset_of(t, t->dims[0] - 1, t->dims[1] - 1, t->dims[2] - 1, t->dims[3] - 1) + 1) *
           fake_size(t->type);
}

static struct dense dense_read(const struct fake_tensor *t, const void *at,
                               const struct fake_order *order)
{
    struct dense d = dense_new(t);
    float *to = d.at;

    for (int64_t n = 0; n < d.n; n++) {
        for (int64_t h = 0; h < d.h; h++) {
            for (int64_t w = 0; w < d.w; w++) {
                for (int64_t c = 0; c < d.c; c++) {
                    float f = fake_get(t->type, at, offset_of(t, n, c, h, w));

                    if (t->type == FAKE_F32 && order->tf32)
                        f = fake_to_tf32(f);
                    if (t->type == FAKE_F32 && order->narrow)
                        f = fake_from_f16(fake_to_f16(f));
                    *to++ = f;
                }
            }
        }
    }
    return d;
}

bool fake_conv_fits(const struct fake_conv *c)
{
    const int64_t *x = c->tensor[FAKE_X].dims, *w = c->tensor[FAKE_W].dims;
    const int64_t *y = c->tensor[FAKE_Y].dims;

    for (int a = 0; a < 2; a++) {
        const int64_t reach = (w[2 + a] - 1) * c->dilation[a] + 1;
        const int64_t span = x[2 + a] + c->before[a] + c->after[a] - reach;

        if (span < 0 || y[2 + a] != span / c->stride[a] + 1)
            return false;
    }
    return x[0] == y[0] && w[0] == y[1] && w[1] > 0 && x[1] % w[1] == 0 && w[0] % c->groups == 0;
}

/* Number i of n in an order. */
static int64_t in_order(const struct fake_order *o, int64_t i, int64_t n)
{
    i = (int64_t)(((uint64_t)i + o->start) % (uint64_t)n);
    return o->down ? n - 1 - i : i;
}

/* One term of the sums of a pass: a tap, how far it reaches, and a channel. */
struct term {
    int64_t tap, reach[2], channel;
};

/* The terms of a pass, in their order: `channels` for each tap. */
static struct term *terms_of(const struct fake_conv *c, const struct fake_order *o,
                             const struct dense *w, int64_t channels)
{
    const int64_t total = w->h * w->w * channels;
    struct term *terms = malloc((size_t)total * sizeof *terms);

    if (terms == NULL)
        abort();
    for (int64_t i = 0; i < total; i++) {
        const int64_t j = in_order(o, i, total), tap = j / channels;

        terms[i] =
            (struct term){.tap = tap,
                          .reach = {tap / w->w * c->dilation[0], tap % w->w * c->dilation[1]},
                          .channel = j % channels};
    }
    return terms;
}

/* to[] += scale * from[] */
static inline void add_scaled(float *restrict to, float scale, const float *restrict from,
                              int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += scale * from[i];
}

/* Weights as [tap][input of a group][output]. */
static float *transpose(const struct dense *w)
{
    const int64_t taps = w->h * w->w;
    float *to = malloc((size_t)(w->n * w->c * taps) * sizeof *to);

    if (to == NULL)
        abort();
    for (int64_t k = 0; k < w->n; k++) {
        for (int64_t t = 0; t < taps; t++) {
            for (int64_t c = 0; c < w->c; c++)
                to[(t * w->c + c) * w->n + k] = w->at[(k * taps + t) * w->c + c];
        }
    }
    return to;
}

static void forward(const struct fake_conv *c, const struct fake_order *o, const struct dense *x,
                    const struct dense *w, const struct dense *y)
{
    const int64_t each = w->n / c->groups, total = w->h * w->w * w->c;
    struct term *terms = terms_of(c, o, w, w->c);
    float *transposed_weights = transpose(w);

    for (int64_t i = 0; i < y->n * y->h * y->w * c->groups; i++) {
        const int64_t pixel = i / c->groups, g = i % c->groups, n = pixel / (y->h * y->w);
        const int64_t h = pixel / y->w % y->h * c->stride[0] - c->before[0];
        const int64_t v = pixel % y->w * c->stride[1] - c->before[1];
        float *to = y->at + pixel * y->c + g * each;

        for (const struct term *t = terms; t < terms + total; t++) {
            const int64_t ih = h + t->reach[0], iw = v + t->reach[1];

            if (ih < 0 || iw < 0 || ih >= x->h || iw >= x->w)
                continue;
            add_scaled(to, x->at[((n * x->h + ih) * x->w + iw) * x->c + g * w->c + t->channel],
                       transposed_weights + (t->tap * w->c + t->channel) * w->n + g * each, each);
        }
    }
    free(transposed_weights);
    free(terms);
}

/* Each input pixel: over taps and outputs, where an output pixel reads it. */
static void data(const struct fake_conv *c, const struct fake_order *o, const struct dense *x,
                 const struct dense *w, const struct dense *y)
{
    const int64_t each = w->n / c->groups, taps = w->h * w->w, total = taps * each;
    struct term *terms = terms_of(c, o, w, each);

    for (int64_t i = 0; i < x->n * x->h * x->w * c->groups; i++) {
        const int64_t pixel = i / c->groups, g = i % c->groups, n = pixel / (x->h * x->w);
        float *to = x->at + pixel * x->c + g * w->c;

        for (const struct term *t = terms; t < terms + total; t++) {
            const int64_t k = g * each + t->channel;
            int64_t h = pixel / x->w % x->h + c->before[0] - t->reach[0];
            int64_t v = pixel % x->w + c->before[1] - t->reach[1];

            if (h < 0 || v < 0 || h % c->stride[0] != 0 || v % c->stride[1] != 0)
                continue;
            h /= c->stride[0];
            v /= c->stride[1];
            if (h < y->h && v < y->w)
                add_scaled(to, y->at[((n * y->h + h) * y->w + v) * y->c + k],
                           w->at + (k * taps + t->tap) * w->c, w->c);
        }
    }
    free(terms);
}

/* The input that an output reads through a tap; < 0: padding. */
static int64_t source(const struct fake_conv *c, int axis, int64_t at, int64_t tap, int64_t size)
{
    const int64_t i = at * c->stride[axis] - c->before[axis] + tap * c->dilation[axis];

    return i < size ? i : -1;
}

/* Over samples and output pixels. */
static void filter(const struct fake_conv *c, const struct fake_order *o, const struct dense *x,
                   const struct dense *w, const struct dense *y)
{
    const int64_t each = w->n / c->groups, taps = w->h * w->w, pixels = y->n * y->h * y->w;

    for (int64_t i = 0; i < pixels; i++) {
        const int64_t j = in_order(o, i, pixels), n = j / (y->h * y->w);
        const float *dy = y->at + j * y->c;

        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t ih = source(c, 0, j / y->w % y->h, tap / w->w, x->h);
            const int64_t iw = source(c, 1, j % y->w, tap % w->w, x->w);
            const float *from = x->at + ((n * x->h + ih) * x->w + iw) * x->c;

            for (int64_t k = 0; ih >= 0 && iw >= 0 && k < w->n; k++)
                add_scaled(w->at + (k * taps + tap) * w->c, dy[k], from + k / each * w->c, w->c);
        }
    }
}

/* Applies a ReLU. A device may also drop NaNs that a graph asks to keep. */
static float relu(const struct fake_conv *c, float f)
{
    if (f != f && !c->drops_nan && fakegpu_number("FAKEGPU_DROPS_NAN", 0) == 0)
        return f;
    return f > 0 ? f : 0;
}

static void store(const struct fake_conv *c, const struct fake_order *o, int result,
                  const struct dense *d, void *const *at)
{
    const struct fake_tensor *t = &c->tensor[result], *b = &c->tensor[FAKE_BIAS];
    const float *from = d->at;

    for (int64_t n = 0; n < d->n; n++) {
        for (int64_t h = 0; h < d->h; h++) {
            for (int64_t w = 0; w < d->w; w++) {
                for (int64_t k = 0; k < d->c; k++) {
                    const size_t i = offset_of(t, n, k, h, w);
                    float f = c->alpha * *from++;

                    if (o->sloppy)
                        f *= 1.01f;
                    if (c->beta != 0)
                        f += c->beta * fake_get(t->type, at[result], i);
                    if (c->bias)
                        f += fake_get(b->type, at[FAKE_BIAS], offset_of(b, 0, k, 0, 0));
                    if (c->relu)
                        f = relu(c, f);
                    fake_put(t->type, at[result], i, f);
                }
            }
        }
    }
}

void fake_conv_run(const struct fake_conv *c, const struct fake_order *order,
                   void *const at[FAKE_TENSORS])
{
    static void (*const passes[])(const struct fake_conv *c, const struct fake_order *o,
                                  const struct dense *x, const struct dense *w,
                                  const struct dense *y) = {forward, data, filter};
    static const int results[] = {FAKE_Y, FAKE_X, FAKE_W};
    const int result = results[c->pass];
    struct dense d[3];

    for (int i = 0; i < 3; i++)
        d[i] = i == result ? dense_new(&c->tensor[i]) : dense_read(&c->tensor[i], at[i], order);
    passes[c->pass](c, order, &d[FAKE_X], &d[FAKE_W], &d[FAKE_Y]);
    store(c, order, result, &d[result], at);
    for (int i = 0; i < 3; i++)
        free(d[i].at);
}
