/*
 * Synthetic samples, each a pure function of (seed, part, sample number).
 *
 * Classification: a class is a pattern of grey patches (PATCH x PATCH, so that pooling does not
 * wash it out; a number of its own for each column of flat data); a sample is its class's pattern
 * with noise on every pixel. Labels are balanced: every run of `classes` samples has each class
 * once, in random order. Regression: x is standard normal and y = w x + b + noise.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/rng.h"
#include "data/sets/parts.h"

enum { PATCH = 4 };

/* What a draw is for; the part of the data is added to those that differ between train, valid and
 * test. */
static const uint64_t PATTERN = UINT64_C(1) << 56, WEIGHTS = UINT64_C(2) << 56,
                      BIASES = UINT64_C(3) << 56, PIXELS = UINT64_C(4) << 56,
                      INPUTS = UINT64_C(5) << 56, NOISE = UINT64_C(6) << 56,
                      LABELS = UINT64_C(7) << 56; /* + part << 48 + run */

static enum dpt_status read_shape(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                  struct dpt_error *err)
{
    const struct dpt_ints *given = &spec->conf->synthetic.shape;
    const int64_t *at = given->at;
    int64_t c = 1, h = 1, w = 1;

    if (given->n == 0) {
        c = spec->classes ? 1 : 5;
        h = w = spec->classes ? 28 : 1;
    } else if (given->n == 1) {
        c = at[0];
    } else if (given->n == 3) {
        c = at[0];
        h = at[1];
        w = at[2];
    } else {
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.synthetic.shape: %zu numbers, not one ([D]) or three ([C, H, W])",
                        given->n);
    }
    if (c < 1 || h < 1 || w < 1 || c > INT32_MAX || h > INT32_MAX || w > INT32_MAX ||
        c * h > INT32_MAX || c * h * w > INT32_MAX / 8)
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.synthetic.shape: samples of no or too large a size");
    set->shape.c = (int32_t)c;
    set->shape.h = (int32_t)h;
    set->shape.w = (int32_t)w;
    set->shape.flat = given->n == 1 || (given->n == 0 && !spec->classes);
    return DPT_OK;
}

enum dpt_status dpt_synthetic_describe(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_synthetic *s = &spec->conf->synthetic;
    struct dpt_dataset_parts *parts = set->parts;
    size_t inputs, outputs;

    DPT_TRY(read_shape(set, spec, err));
    inputs = (size_t)dpt_shape_size(&set->shape);
    parts->synthetic = true;
    set->samples = s->samples;
    set->u8 = spec->classes;
    set->stride = inputs * (set->u8 ? 1 : sizeof(float));
    set->target = spec->classes ? DPT_TARGET_CLASS : DPT_TARGET_VECTOR;
    set->target_width = (int32_t)(spec->classes ? s->classes : s->outputs);
    if (set->samples > INT64_MAX / 8 / (int64_t)set->stride)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "data.synthetic.samples: too many of this shape"));
    set->bytes = set->samples * (int64_t)set->stride;
    if (spec->classes)
        return DPT_OK;
    outputs = (size_t)s->outputs;
    DPT_TRY(DPT_ALLOCATE(parts->weights, outputs * inputs, "the synthetic rule", err));
    DPT_TRY(DPT_ALLOCATE(parts->biases, outputs, "the synthetic rule", err));
    dpt_random_normal(spec->seed, DPT_RANDOM_SYNTHETIC, WEIGHTS, 0, outputs * inputs,
                      parts->weights);
    dpt_random_normal(spec->seed, DPT_RANDOM_SYNTHETIC, BIASES, 0, outputs, parts->biases);
out:
    return status;
}

/* The pattern of one class, [c][h][w] greys between 48 and 208. coarse: room for as many floats as
 * a sample has. */
static void make_pattern(const struct dpt_shape *shape, uint64_t seed, int64_t class, float *coarse,
                         uint8_t *out)
{
    const size_t c = (size_t)shape->c, h = (size_t)shape->h, w = (size_t)shape->w;
    const size_t rows = (h + PATCH - 1) / PATCH, columns = (w + PATCH - 1) / PATCH;
    const size_t n = c * rows * columns;

    dpt_random_uniform(seed, DPT_RANDOM_SYNTHETIC, PATTERN, (uint64_t) class * n, n, coarse);
    for (size_t k = 0; k < c; k++)
        for (size_t y = 0; y < h; y++)
            for (size_t x = 0; x < w; x++)
                *out++ = (uint8_t)(48.5F +
                                   160.0F * coarse[(k * rows + y / PATCH) * columns + x / PATCH]);
}

static int64_t make_label(const struct dpt_dataset_spec *spec, int64_t sample)
{
    const int64_t classes = spec->conf->synthetic.classes;
    const uint64_t run = (uint64_t)(sample / classes);

    return (int64_t)dpt_permute(spec->seed, DPT_RANDOM_SYNTHETIC, LABELS + (spec->part << 48) + run,
                                (uint64_t)classes, (uint64_t)(sample % classes));
}

/* Adds the sum of two random bytes (about normal, standard deviation 104), halved, to each grey. */
static void add_noise(const struct dpt_dataset_spec *spec, int64_t sample, const uint8_t *pattern,
                      size_t n, uint8_t *out)
{
    const size_t blocks = (n + 7) / 8;

    for (size_t block = 0; block < blocks; block++) {
        uint32_t word[4];
        uint8_t byte[16];

        dpt_random4(spec->seed, DPT_RANDOM_SYNTHETIC, PIXELS + spec->part,
                    (uint64_t)sample * blocks + block, word);
        memcpy(byte, word, sizeof byte);
        for (size_t k = 0; k < 8 && block * 8 + k < n; k++) {
            const int noise = ((int)byte[2 * k] + (int)byte[2 * k + 1] - 255) / 2;
            const int grey = pattern[block * 8 + k] + noise;

            out[block * 8 + k] = (uint8_t)(grey < 0 ? 0 : grey > 255 ? 255 : grey);
        }
    }
}

static enum dpt_status fill_classes(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                    int64_t begin, int64_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = set->stride;
    const int64_t classes = spec->conf->synthetic.classes;
    uint8_t *images = set->parts->images.bytes;
    int32_t *labels = set->parts->targets.bytes;
    uint8_t *patterns = NULL;
    float *coarse = NULL;

    DPT_TRY(DPT_ALLOCATE(patterns, (size_t)classes * n, "synthetic patterns", err));
    DPT_TRY(DPT_ALLOCATE(coarse, n, "synthetic patterns", err));
    for (int64_t class = 0; class < classes; class ++)
        make_pattern(&set->stored, spec->seed, class, coarse, patterns + (size_t) class * n);
    for (int64_t i = begin; i < end; i++) {
        labels[i] = (int32_t)make_label(spec, i);
        add_noise(spec, i, patterns + (size_t)labels[i] * n, n, images + (size_t)i * n);
    }
out:
    dpt_free(coarse);
    dpt_free(patterns);
    return status;
}

static void fill_regression(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                            int64_t begin, int64_t end)
{
    const size_t n = set->stride / sizeof(float), outputs = (size_t)set->target_width;
    float *images = set->parts->images.bytes, *targets = set->parts->targets.bytes;

    for (int64_t i = begin; i < end; i++) {
        float *x = images + (size_t)i * n, *y = targets + (size_t)i * outputs;

        dpt_random_normal(spec->seed, DPT_RANDOM_SYNTHETIC, INPUTS + spec->part, (uint64_t)i * n, n,
                          x);
        dpt_random_normal(spec->seed, DPT_RANDOM_SYNTHETIC, NOISE + spec->part,
                          (uint64_t)i * outputs, outputs, y);
        for (size_t k = 0; k < outputs; k++) {
            const float *w = set->parts->weights + k * n;
            double sum = set->parts->biases[k] + spec->conf->synthetic.noise * (double)y[k];

            for (size_t j = 0; j < n; j++)
                sum += (double)w[j] * (double)x[j];
            y[k] = spec->binary ? sum > 0 : (float)sum;
        }
    }
}

enum dpt_status dpt_synthetic_fill(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                   const struct dpt_group *node, struct dpt_error *err)
{
    int64_t begin, end;

    dpt_dataset_share(set, node, &begin, &end);
    if (spec->classes)
        return fill_classes(set, spec, begin, end, err);
    fill_regression(set, spec, begin, end);
    return DPT_OK;
}
