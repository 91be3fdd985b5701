#include "data/sets/mix.h"

#include <math.h>
#include <string.h>

#include "core/base/rng.h"

/* The uses of a sample's random words. */
enum { OWN = 0, PARTNER = 64, ATTEMPTS = 64, WHICH = 128 };

int32_t dpt_mix_partner(uint64_t seed, int64_t epoch, int64_t step, int32_t count, int32_t position)
{
    const uint64_t key = dpt_mix64(dpt_mix64((uint64_t)epoch + 1) + (uint64_t)step);

    return (int32_t)dpt_permute(seed, DPT_RANDOM_PARTNER, key, (uint64_t)count, (uint64_t)position);
}

/* A standard normal number (Box & Muller 1958). */
static double normal(uint32_t a, uint32_t b)
{
    return sqrt(-2 * log(dpt_augment_between(a, 0, 1))) *
           cos(dpt_augment_between(b, 0, 2 * 3.14159265358979323846));
}

/* The logarithm of a number of the Gamma distribution (Marsaglia & Tsang 2000): from that of
 * alpha + 1, as they say for small alpha, where the number itself would be 0. */
static double log_gamma_number(const struct dpt_augment_key *key, uint32_t first, double alpha)
{
    const double d = alpha + 2.0 / 3, c = 1 / sqrt(9 * d);
    uint32_t word[4];
    double v = 1;

    for (uint32_t i = 0; i < ATTEMPTS; i++) { /* one in twenty is refused, so these suffice */
        double x;

        dpt_augment_words(key, DPT_MIX_KEY, first + i, word);
        x = normal(word[0], word[1]);
        v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log(dpt_augment_between(word[2], 0, 1)) < x * x / 2 + d - d * v + d * log(v))
            break;
    }
    return log(d) + log(v > 0 ? v : 1) + log(dpt_augment_between(word[3], 0, 1)) / alpha;
}

/* A rectangle that would have 1 - share of the area, about any pixel, cut at the image's edges;
 * the share becomes what is really left (torchvision's CutMix). */
static void draw_box(struct dpt_mix *mix, const struct dpt_shape *s, const uint32_t word[4])
{
    const double half = sqrt(1 - (double)mix->share) / 2;
    const int32_t x = (int32_t)(((uint64_t)word[1] * (uint64_t)s->w) >> 32);
    const int32_t y = (int32_t)(((uint64_t)word[2] * (uint64_t)s->h) >> 32);
    const int32_t wide = (int32_t)(half * s->w), high = (int32_t)(half * s->h);
    const int32_t left = x > wide ? x - wide : 0, top = y > high ? y - high : 0;
    const int32_t right = x + wide < s->w ? x + wide : s->w;
    const int32_t bottom = y + high < s->h ? y + high : s->h;

    mix->cut = true;
    mix->box = (struct dpt_box){top, left, bottom - top, right - left};
    mix->share = (float)(1 - (double)(bottom - top) * (right - left) / ((double)s->h * s->w));
}

struct dpt_mix dpt_mix_draw(const struct dpt_augment *augment, const struct dpt_shape *shape,
                            const struct dpt_augment_key *key)
{
    struct dpt_mix mix = {0};
    uint32_t word[4];
    double alpha;
    bool cut;

    dpt_augment_words(key, DPT_MIX_KEY, WHICH, word);
    cut = augment->cutmix > 0 && (augment->mixup <= 0 || (word[0] & 1) != 0);
    alpha = cut ? augment->cutmix : augment->mixup;
    /* A number of the distribution Beta(alpha, alpha): one of two of Gamma, of their sum. */
    mix.share = (float)(1 / (1 + exp(log_gamma_number(key, PARTNER, alpha) -
                                     log_gamma_number(key, OWN, alpha))));
    if (cut)
        draw_box(&mix, shape, word);
    return mix;
}

void dpt_mix_input(const struct dpt_mix *mix, const struct dpt_shape *shape, const float *partner,
                   float *image)
{
    const size_t n = (size_t)dpt_shape_size(shape), width = (size_t)shape->w;
    const float share = mix->share, rest = 1 - share;

    for (size_t i = 0; !mix->cut && i < n; i++)
        image[i] = share * image[i] + rest * partner[i];
    for (int32_t c = 0; mix->cut && c < shape->c; c++)
        for (int32_t y = mix->box.top; y < mix->box.top + mix->box.height; y++) {
            const size_t at = ((size_t)c * (size_t)shape->h + (size_t)y) * width;

            memcpy(image + at + mix->box.left, partner + at + mix->box.left,
                   (size_t)mix->box.width * sizeof *image);
        }
}

void dpt_mix_shares(const struct dpt_mix *mix, float own_weight, float partner_weight,
                    float share[2], float *weight)
{
    const float own = mix->share * own_weight, partner = (1 - mix->share) * partner_weight;

    *weight = own + partner;
    share[0] = *weight > 0 ? own / *weight : mix->share;
    share[1] = *weight > 0 ? partner / *weight : 1 - mix->share;
}
