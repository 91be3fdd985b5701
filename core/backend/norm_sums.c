#include "core/backend/norm_sums.h"

void dpt_norm_sums_begin(struct dpt_norm_sums *sums, enum dpt_norm_kind kind,
                         const struct dpt_shape *shape, int32_t micro, int32_t samples)
{
    sums->kind = kind;
    sums->channels = (size_t)shape->c;
    sums->pixels = (int64_t)shape->h * shape->w;
    sums->micro = micro;
    sums->samples = samples;
    dpt_tree_begin(&sums->tree, (samples + micro - 1) / micro);
}

/* The numbers of a channel in the micro-batches [begin, end), of which the step's last one may be
 * short. */
static double numbers(const struct dpt_norm_sums *sums, int64_t begin, int64_t end)
{
    const int64_t last = end * sums->micro;

    return (double)((last < sums->samples ? last : sums->samples) - begin * sums->micro) *
           (double)sums->pixels;
}

/* Chan, Golub & LeVeque 1983: a, the sums of the micro-batches [begin, middle), becomes the sums of
 * [begin, end). */
static void join_moments(const struct dpt_norm_sums *sums, int64_t begin, int64_t middle,
                         int64_t end, double *a, const double *b)
{
    const size_t channels = sums->channels;
    const double share = numbers(sums, middle, end) / numbers(sums, begin, end);
    const double weight = numbers(sums, begin, middle) * share;

    for (size_t c = 0; c < channels; c++) {
        const double delta = b[c] - a[c];

        a[c] += delta * share;
        a[channels + c] += b[channels + c] + delta * delta * weight;
    }
}

void dpt_norm_sums_push(struct dpt_norm_sums *sums, struct dpt_block block, double *value)
{
    struct dpt_tree *tree = &sums->tree;
    const int before = tree->n;
    const int64_t end = block.begin + (INT64_C(1) << block.level);
    int64_t begin = block.begin;
    int merged;

    dpt_tree_push(tree, block, NULL, 0, NULL, &merged);
    for (int k = before - 1; k >= before - merged; k--) {
        double *left = sums->value[k];

        if (sums->kind == DPT_NORM_MOMENTS)
            join_moments(sums, tree->block[k].begin, begin, end, left, value);
        for (size_t i = 0; sums->kind == DPT_NORM_GRADIENTS && i < 2 * sums->channels; i++)
            left[i] += value[i];
        begin = tree->block[k].begin;
        value = left;
    }
    sums->value[tree->n - 1] = value;
}
