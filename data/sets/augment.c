#include "data/sets/augment.h"

#include <string.h>

#include "core/base/rng.h"
#include "data/sets/parts.h"

bool dpt_augment_wanted(const struct dpt_augment *augment)
{
    return augment->crop_padding > 0 || augment->flip;
}

enum dpt_status dpt_augment_check(const struct dpt_augment *augment, const struct dpt_dataset *set,
                                  struct dpt_error *err)
{
    const struct dpt_shape *shape = &set->shape;
    char text[40];

    if (shape->flat)
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.augment: the samples of %s are rows of %d numbers; only images "
                        "[channels, height, width] can be cropped and flipped",
                        set->parts->key, shape->c);
    if (augment->crop_padding >= shape->h || augment->crop_padding >= shape->w)
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.augment.crop_padding is %lld, the images of %s are %s: it must be "
                        "smaller than they are high and wide",
                        (long long)augment->crop_padding, set->parts->key,
                        dpt_shape_text(shape, text));
    return DPT_OK;
}

/* 0 … n - 1 of a random word; n is tiny, so the bias of 2^-32 n is of no account. */
static int32_t below(uint32_t word, int64_t n)
{
    return (int32_t)(((uint64_t)word * (uint64_t)n) >> 32);
}

/* out[x] = row[x + by], mirrored where flipped; `outside` where there is no such pixel. */
static void shift_row(const float *row, int32_t width, int32_t by, bool flip, float outside,
                      float *out)
{
    const int32_t begin = by < 0 ? -by : 0, end = by > 0 ? width - by : width;

    for (int32_t x = 0; x < begin; x++)
        out[flip ? width - 1 - x : x] = outside;
    for (int32_t x = end; x < width; x++)
        out[flip ? width - 1 - x : x] = outside;
    if (!flip)
        memcpy(out + begin, row + begin + by, (size_t)(end - begin) * sizeof *out);
    else
        for (int32_t x = begin; x < end; x++)
            out[width - 1 - x] = row[x + by];
}

struct dpt_steps_move dpt_augment_draw(const struct dpt_augment *augment, uint64_t seed,
                                       int64_t epoch, int64_t sample)
{
    const int32_t padding = (int32_t)augment->crop_padding;
    const int64_t places = 2 * (int64_t)padding + 1;
    uint32_t word[4];

    dpt_random4(seed, DPT_RANDOM_AUGMENT, (uint64_t)epoch, (uint64_t)sample, word);
    return (struct dpt_steps_move){.top = (int16_t)(below(word[0], places) - padding),
                                   .left = (int16_t)(below(word[1], places) - padding),
                                   .flip = augment->flip && (word[2] & 1) != 0};
}

void dpt_augment_sample(const struct dpt_augment *augment, const struct dpt_dataset *set,
                        uint64_t seed, int64_t epoch, int64_t sample, const float *image,
                        float *out)
{
    const struct dpt_shape *shape = &set->shape;
    const int32_t height = shape->h, width = shape->w;
    const struct dpt_steps_move move = dpt_augment_draw(augment, seed, epoch, sample);

    for (int32_t c = 0; c < shape->c; c++) {
        const float *plane = image + (size_t)c * (size_t)height * (size_t)width;
        const float outside = set->parts->shift[c];

        for (int32_t y = 0; y < height; y++, out += width) {
            const int32_t from = y + move.top;

            if (from >= 0 && from < height)
                shift_row(plane + (size_t)from * (size_t)width, width, move.left, move.flip != 0,
                          outside, out);
            else
                for (int32_t x = 0; x < width; x++)
                    out[x] = outside;
        }
    }
}
