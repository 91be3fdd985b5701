/* Two samples of a step become one, with both their labels; which ones, and how, hangs on the seed,
 * the epoch, the step and the sample alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/sets/loader.h"
#include "data/sets/mix.h"
#include "data/sets/parts.h"
#include "data/tests/make_shards.h"

static void partners_are_a_permutation(void **state)
{
    enum { MOST = 130 };
    int32_t first[MOST];

    (void)state;
    for (int32_t count = 1; count <= MOST; count += 1 + count / 3) {
        int alike[3] = {0}, seen[MOST] = {0};

        for (int32_t i = 0; i < count; i++) {
            first[i] = dpt_mix_partner(5, 1, 2, count, i);
            assert_in_range(first[i], 0, count - 1);
            seen[first[i]]++;
            alike[0] += first[i] == dpt_mix_partner(6, 1, 2, count, i);
            alike[1] += first[i] == dpt_mix_partner(5, 2, 1, count, i);
            alike[2] += first[i] == dpt_mix_partner(5, 1, 3, count, i);
        }
        for (int32_t i = 0; i < count; i++)
            assert_int_equal(seen[i], 1);
        for (int k = 0; count > 40 && k < 3; k++) /* one is expected */
            assert_true(alike[k] < 8);
    }
}

/* The distribution Beta(alpha, alpha) where it has a formula. */
static double beta(double alpha, double x)
{
    return alpha == 0.5 ? 2 / M_PI * asin(sqrt(x)) : alpha == 1 ? x : x * x * (3 - 2 * x);
}

enum { DRAWS = 4000 };

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void shares_are_of_beta(void **state)
{
    static const struct dpt_shape row = {9, 1, 1, true};
    static const double alphas[] = {0.5, 1, 2};
    static float share[DRAWS];

    (void)state;
    for (size_t k = 0; k < sizeof alphas / sizeof *alphas; k++) {
        const struct dpt_augment augment = {.mixup = alphas[k]};
        double farthest = 0;

        for (int i = 0; i < DRAWS; i++) {
            const struct dpt_augment_key key = {3, 2, i};
            const struct dpt_mix mix = dpt_mix_draw(&augment, &row, &key);

            assert_false(mix.cut);
            share[i] = mix.share;
        }
        qsort(share, DRAWS, sizeof *share, compare);
        for (int i = 0; i < DRAWS; i++)
            farthest = fmax(farthest, fabs(beta(alphas[k], (double)share[i]) - (i + 0.5) / DRAWS));
        if (farthest > 2.2 / sqrt(DRAWS)) /* Kolmogorov and Smirnov, 1e-4 */
            fail_msg("alpha %g: off by %.4f", alphas[k], farthest);
    }
}

/* Very small and large numbers make shares, too: 0 or 1, and a half. */
static void extreme_shares_are_numbers(void **state)
{
    static const struct dpt_shape row = {9, 1, 1, true};

    (void)state;
    for (int i = 0; i < 200; i++) {
        const struct dpt_augment_key key = {3, 2, i};
        const float hard = dpt_mix_draw(&(struct dpt_augment){.mixup = 1e-9}, &row, &key).share;
        const float half = dpt_mix_draw(&(struct dpt_augment){.mixup = 1000}, &row, &key).share;

        assert_true(hard == 0 || hard == 1);
        assert_true(fabsf(half - 0.5F) < 0.07F);
    }
}

/* A rectangle within the image, whose area is what the share says; it has the distribution of
 * torchvision's CutMix(alpha=1) for images of 24 x 32, by its tenths of 200 000 draws. */
static void rectangles_are_torchvisions(void **state)
{
    static const float tenths[] = {0.4531F, 0.5430F, 0.6133F, 0.6719F, 0.7188F,
                                   0.7656F, 0.8177F, 0.8750F, 0.9375F};
    static const struct dpt_shape shape = {3, 24, 32, false};
    const struct dpt_augment augment = {.cutmix = 1};
    int below[9] = {0};

    (void)state;
    for (int i = 0; i < DRAWS; i++) {
        const struct dpt_augment_key key = {3, 2, i};
        const struct dpt_mix mix = dpt_mix_draw(&augment, &shape, &key);
        const struct dpt_box *b = &mix.box;

        assert_true(mix.cut && b->top >= 0 && b->left >= 0 && b->top + b->height <= 24 &&
                    b->left + b->width <= 32);
        assert_true(fabsf(mix.share - (1 - (float)(b->height * b->width) / (24 * 32))) < 1e-6F);
        for (int k = 0; k < 9; k++)
            below[k] += mix.share < tenths[k];
    }
    for (int k = 0; k < 9; k++) /* areas are whole pixels, of which many are alike */
        if (fabs((double)below[k] / DRAWS - 0.1 * (k + 1)) > 0.03)
            fail_msg("%.3f of the shares are below %g", (double)below[k] / DRAWS,
                     (double)tenths[k]);
}

/* Each number of the input, and none after it: the sum by shares, or the partner's in the box. */
static void inputs_are_joined(void **state)
{
    static const struct dpt_shape shape = {2, 3, 4, false};
    const struct dpt_mix sum = {.share = 0.25F},
                         cut = {.cut = true, .share = 0.5F, .box = {1, 2, 2, 1}};

    (void)state;
    for (int k = 0; k < 2; k++) {
        float partner[25], image[25];

        for (int i = 0; i < 25; i++) {
            image[i] = (float)(4 * i);
            partner[i] = (float)(400 + 8 * i);
        }
        dpt_mix_input(k == 0 ? &sum : &cut, &shape, partner, image);
        for (int i = 0; i < 25; i++) {
            const int y = i / 4 % 3, x = i % 4;
            const bool there = i < 24 && y >= cut.box.top && y < cut.box.top + cut.box.height &&
                               x >= cut.box.left && x < cut.box.left + cut.box.width;
            const float joined = k == 0 && i < 24  ? (float)(300 + 7 * i)
                                 : k == 1 && there ? partner[i]
                                                   : (float)(4 * i);

            assert_true(image[i] == joined);
        }
    }
}

/* With both, each comes as often. */
static void either_is_drawn_as_often(void **state)
{
    static const struct dpt_shape shape = {3, 24, 32, false};
    const struct dpt_augment augment = {.cutmix = 1, .mixup = 0.2};
    int cut = 0;

    (void)state;
    for (int i = 0; i < DRAWS; i++)
        cut += dpt_mix_draw(&augment, &shape, &(struct dpt_augment_key){3, 2, i}).cut;
    assert_true(fabs((double)cut / DRAWS - 0.5) < 4 * 0.5 / sqrt(DRAWS));
}

/* A loss that is a sum over the target's parts: what mixing promises of it and of weights. */
static void shares_and_weights_make_the_same_loss(void **state)
{
    static const float weights[][2] = {{1, 1}, {0.25F, 3}, {0, 2}, {2, 0}, {0, 0}};
    const float loss[2] = {0.7F, 2.5F};
    const struct dpt_mix mix = {.share = 0.3F};

    (void)state;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        float share[2], weight;

        dpt_mix_shares(&mix, weights[i][0], weights[i][1], share, &weight);
        assert_true(fabsf(share[0] + share[1] - 1) < 1e-6F);
        assert_true(fabsf(weight * (share[0] * loss[0] + share[1] * loss[1]) -
                          (0.3F * weights[i][0] * loss[0] + 0.7F * weights[i][1] * loss[1])) <
                    1e-6F);
    }
}

/* --- what a loader makes ---------------------------------------------------------------------- */

static const struct dpt_comm alone = {
    .world = {0, 1, NULL}, .node = {0, 1, NULL}, .leaders = {0, 1, NULL}, .nodes = 1};

enum { SAMPLES = 101, EPOCHS = 2, OUTPUTS = 11, GLOBAL = 30 };

struct made {
    float image[EPOCHS * SAMPLES][MAKE_ELEMENTS], target[EPOCHS * SAMPLES][OUTPUTS];
};

/* All samples of some epochs as the loaders of `ranks` ranks give them, by epoch and sample; of
 * every other rank the labels come without samples, as to a later stage. */
static void collect(const char *pattern, const struct dpt_augment *augment, int cache, int ranks,
                    int32_t micro, int32_t round_robin, struct made *made)
{
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    const struct dpt_sampler s = {.seed = 3,
                                  .total = SAMPLES,
                                  .samples = SAMPLES,
                                  .global = GLOBAL,
                                  .micro = micro,
                                  .round_robin = round_robin};
    struct dpt_dataset set;
    struct dpt_error err;

    conf.cache = cache;
    assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_OK);
    for (int rank = 0; rank < ranks; rank++) {
        const struct dpt_batch_form form = dpt_batch_form_of(&set, augment, OUTPUTS);
        struct dpt_batch_buffer buffer, labels;
        struct dpt_loader *loader;

        if (dpt_loader_open(&loader, &form, &s, rank, ranks, &err) != DPT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(dpt_batch_buffer_open(&buffer, &form, micro, &err), DPT_OK);
        assert_int_equal(dpt_batch_buffer_open(&labels, &form, micro, &err), DPT_OK);
        for (int64_t step = 0; step < EPOCHS * dpt_sampler_steps(&s); step++) {
            struct dpt_step_view view;
            struct dpt_batch batch = {0};

            assert_int_equal(dpt_loader_next(loader, &view, &err), DPT_OK);
            for (int32_t k = 0; k < view.last - view.first; k++) {
                const int32_t m = dpt_sampler_nth(&s, ranks, view.first, k);
                int32_t count;

                assert_int_equal(dpt_loader_fill(loader, &view, m, &buffer, &batch, &err), DPT_OK);
                dpt_loader_fill_labels(loader, &view, m, &labels, NULL, &count);
                assert_int_equal(count, batch.count);
                for (int32_t i = 0; i < batch.count; i++) {
                    const int64_t at = view.epoch * SAMPLES + batch.sample[i];

                    memcpy(made->image[at], batch.input + (size_t)i * MAKE_ELEMENTS,
                           sizeof *made->image);
                    if (batch.targets == NULL)
                        continue;
                    memcpy(made->target[at], batch.targets + (size_t)i * OUTPUTS,
                           sizeof *made->target);
                    assert_memory_equal(made->target[at], labels.targets + (size_t)i * OUTPUTS,
                                        sizeof *made->target);
                }
            }
        }
        dpt_batch_buffer_close(&labels);
        dpt_batch_buffer_close(&buffer);
        dpt_loader_close(loader);
    }
    dpt_dataset_close(&set);
}

/* The definition, from samples that are augmented and not mixed. */
static void mix_slowly(const struct dpt_augment *augment, const struct made *plain,
                       struct made *mixed)
{
    static const struct dpt_shape shape = {2, 3, 4, false};
    const struct dpt_sampler s = {
        .seed = 3, .total = SAMPLES, .samples = SAMPLES, .global = GLOBAL, .micro = 1};
    int64_t order[GLOBAL];

    for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
        for (int64_t step = 0; step < dpt_sampler_steps(&s); step++) {
            const int32_t count = dpt_sampler_count(&s, step);

            dpt_sampler_samples(&s, epoch, step * GLOBAL, count, order);
            for (int32_t i = 0; i < count; i++) {
                const int64_t own = order[i];
                const int64_t other = order[dpt_mix_partner(3, epoch, step, count, i)];
                const struct dpt_augment_key key = {3, epoch, own};
                const struct dpt_mix mix = dpt_mix_draw(augment, &shape, &key);
                const struct dpt_box *b = &mix.box;
                const float *x = plain->image[epoch * SAMPLES + own];
                const float *y = plain->image[epoch * SAMPLES + other];
                float *image = mixed->image[epoch * SAMPLES + own];
                float *target = mixed->target[epoch * SAMPLES + own];

                for (int k = 0; k < MAKE_ELEMENTS; k++) {
                    const int row = k / 4 % 3, column = k % 4;
                    const bool inside = row >= b->top && row < b->top + b->height &&
                                        column >= b->left && column < b->left + b->width;

                    image[k] = !mix.cut ? mix.share * x[k] + (1 - mix.share) * y[k]
                               : inside ? y[k]
                                        : x[k];
                }
                memset(target, 0, OUTPUTS * sizeof *target);
                target[make_label(own)] = mix.share;
                target[make_label(other)] += 1 - mix.share;
            }
        }
}

static void loaders_mix_alike_wherever_the_data_lie(void **state)
{
    static struct made plain, want, have;
    const struct make_form format = {.n_dims = 4, .nhwc = true};
    const struct dpt_augment moved = {.crop_padding = 1, .flip = true};
    struct dpt_augment augment = moved;
    char folder[128], path[192];

    (void)state;
    make_folder(folder);
    snprintf(path, sizeof path, "%s/all.h5", folder);
    make_shard(path, &format, 0, SAMPLES);
    collect(path, &moved, DPT_CACHE_MEMORY, 1, 7, 0, &plain);
    augment.mixup = 0.7;
    augment.cutmix = 0.9;
    mix_slowly(&augment, &plain, &want);
    for (int cache = DPT_CACHE_MEMORY; cache <= DPT_CACHE_NONE; cache++)
        for (int ranks = 1; ranks <= 5; ranks += 2)
            for (int32_t round_robin = 0; round_robin <= 2; round_robin += 2) {
                memset(&have, 0, sizeof have);
                collect(path, &augment, cache, ranks, ranks == 1 ? 7 : 4, round_robin, &have);
                assert_memory_equal(&have, &want, sizeof have);
            }
    make_remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partners_are_a_permutation),
        cmocka_unit_test(shares_are_of_beta),
        cmocka_unit_test(extreme_shares_are_numbers),
        cmocka_unit_test(rectangles_are_torchvisions),
        cmocka_unit_test(inputs_are_joined),
        cmocka_unit_test(either_is_drawn_as_often),
        cmocka_unit_test(shares_and_weights_make_the_same_loss),
        cmocka_unit_test(loaders_mix_alike_wherever_the_data_lie),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
