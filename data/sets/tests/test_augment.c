/* A crop is a window of the padded image, a flip its mirror; which one follows from seed, epoch and
 * sample alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/sets/augment.h"
#include "data/sets/loader.h"
#include "data/sets/parts.h"
#include "data/tests/make_shards.h"

enum { MOST = 3 * 9 * 9, PADDED = 3 * 19 * 19, SCRATCH = 8 * MOST };

/* A data set of which only the shape and the normalisation matter. */
struct scene {
    struct dpt_dataset set;
    struct dpt_dataset_parts parts;
    float scale[3], shift[3], stored[MOST], image[MOST];
};

static void make_scene(struct scene *s, int32_t c, int32_t h, int32_t w)
{
    *s = (struct scene){.scale = {1, 1, 1}, .shift = {-0.5F, 0.25F, 3.0F}};
    s->parts.key = "data.train";
    s->parts.scale = s->scale;
    s->parts.shift = s->shift;
    s->set.parts = &s->parts;
    s->set.shape = s->set.stored = (struct dpt_shape){.c = c, .h = h, .w = w};
    for (int i = 0; i < c * h * w; i++) /* all different, and none a shift */
        s->stored[i] = (float)(10 + i);
    dpt_fill_stored(&s->set, (const uint8_t *)s->stored, s->image);
}

/* What becomes of the scene's sample. */
static void augment_scene(const struct scene *s, const struct dpt_augment *augment, uint64_t seed,
                          int64_t epoch, int64_t sample, float *out)
{
    const struct dpt_augment_key key = {seed, epoch, sample};
    static float scratch[SCRATCH];

    assert_true(dpt_augment_scratch(augment, &s->set) <= SCRATCH);
    dpt_augment_sample(augment, &s->set, &key, (const uint8_t *)s->stored, out, scratch);
}

/* The window that begins at (down, right) of the padded image, mirrored or not: the definition,
 * slowly. */
static void window(const struct scene *s, int p, int down, int right, bool flip, float *out)
{
    const int c = s->set.shape.c, h = s->set.shape.h, w = s->set.shape.w;
    const int high = h + 2 * p, wide = w + 2 * p;
    float padded[PADDED];

    for (int k = 0; k < c; k++)
        for (int y = 0; y < high; y++)
            for (int x = 0; x < wide; x++) {
                const bool inside = y >= p && y < p + h && x >= p && x < p + w;

                padded[(k * high + y) * wide + x] =
                    inside ? s->image[(k * h + y - p) * w + x - p] : s->shift[k];
            }
    for (int k = 0; k < c; k++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                out[(k * h + y) * w + x] =
                    padded[(k * high + y + down) * wide + right + (flip ? w - 1 - x : x)];
}

/* The number of the window that `out` is: (down * n + right) * 2 + flip; fails where it is none. */
static int which(const struct scene *s, int p, const float *out)
{
    const int n = 2 * p + 1;
    const size_t size = (size_t)dpt_shape_size(&s->set.shape) * sizeof(float);
    float want[MOST];

    for (int k = 0; k < n * n * 2; k++) {
        window(s, p, k / 2 / n, k / 2 % n, k % 2 != 0, want);
        if (memcmp(want, out, size) == 0)
            return k;
    }
    fail_msg("no window of the padded image");
    return -1;
}

static void every_window_comes_as_often(void **state)
{
    static const struct {
        int32_t c, h, w, padding;
        bool flip;
    } cases[] = {{1, 5, 6, 0, true}, {3, 9, 9, 1, false}, {2, 4, 7, 2, true}, {1, 4, 4, 3, false}};
    enum { EACH = 200 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct dpt_augment augment = {.crop_padding = cases[i].padding,
                                            .flip = cases[i].flip};
        const int n = 2 * cases[i].padding + 1, kinds = n * n * (cases[i].flip ? 2 : 1);
        int seen[7 * 7 * 2] = {0}, found = 0;
        double chi2 = 0;
        struct scene s;

        make_scene(&s, cases[i].c, cases[i].h, cases[i].w);
        for (int sample = 0; sample < kinds * EACH; sample++) {
            float out[MOST];

            augment_scene(&s, &augment, 7, sample % 3, sample, out);
            seen[which(&s, cases[i].padding, out)]++;
        }
        for (int k = 0; k < n * n * 2; k++) {
            found += seen[k] > 0;
            if (cases[i].flip || k % 2 == 0)
                chi2 += (seen[k] - EACH) * (double)(seen[k] - EACH) / EACH;
        }
        assert_int_equal(found, kinds);
        /* Mean kinds - 1, variance twice that: five standard deviations, and fixed draws. */
        assert_true(chi2 < kinds + 5 * 1.5 * kinds);
    }
}

static void another_key_is_another_window(void **state)
{
    const struct dpt_augment augment = {.crop_padding = 3, .flip = true};
    int same[3] = {0};
    float a[MOST], b[MOST];
    struct scene s;

    (void)state;
    make_scene(&s, 1, 9, 9);
    for (int i = 0; i < 500; i++) {
        augment_scene(&s, &augment, 1, 2, i, a);
        augment_scene(&s, &augment, 1, 2, i, b);
        assert_memory_equal(a, b, sizeof(float) * 81);
        augment_scene(&s, &augment, 2, 2, i, b);
        same[0] += which(&s, 3, a) == which(&s, 3, b);
        augment_scene(&s, &augment, 1, 3, i, b);
        same[1] += which(&s, 3, a) == which(&s, 3, b);
        augment_scene(&s, &augment, 1, 2, i + 1, b);
        same[2] += which(&s, 3, a) == which(&s, 3, b);
    }
    for (int k = 0; k < 3; k++) /* 500 / 98 expected */
        assert_true(same[k] < 25);
}

static void what_cannot_be_cropped_is_refused(void **state)
{
    const struct dpt_augment crop = {.crop_padding = 4};
    struct dpt_error err;
    struct scene s;

    (void)state;
    make_scene(&s, 3, 9, 4);
    assert_int_equal(dpt_augment_check(&crop, &s.set, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "data.augment.crop_padding is 4, the images of data.train"));
    make_scene(&s, 3, 9, 5);
    assert_int_equal(dpt_augment_check(&crop, &s.set, &err), DPT_OK);
    s.set.shape = (struct dpt_shape){.c = 24, .h = 1, .w = 1, .flat = true};
    assert_int_equal(dpt_augment_check(&crop, &s.set, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "crop_padding and flip: only for images [channels"));
}

static const struct dpt_comm alone = {
    .world = {0, 1, NULL}, .node = {0, 1, NULL}, .leaders = {0, 1, NULL}, .nodes = 1};

enum { SAMPLES = 101, EPOCHS = 2 };

/* All images of some epochs as the loaders of `ranks` ranks give them, by epoch and sample. */
static void collect(const char *pattern, int cache, int ranks, int32_t micro, float *images)
{
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    const struct dpt_augment augment = {.crop_padding = 2, .flip = true};
    const struct dpt_sampler s = {
        .seed = 3, .total = SAMPLES, .samples = SAMPLES, .global = 30, .micro = micro};
    struct dpt_dataset set;
    struct dpt_error err;

    conf.cache = cache;
    assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_OK);
    for (int rank = 0; rank < ranks; rank++) {
        const struct dpt_batch_form form = dpt_batch_form_of(&set, &augment, 1);
        struct dpt_batch_buffer buffer;
        struct dpt_loader *loader;

        if (dpt_loader_open(&loader, &form, &s, rank, ranks, &err) != DPT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(dpt_batch_buffer_open(&buffer, &form, micro, &err), DPT_OK);
        for (int64_t step = 0; step < EPOCHS * dpt_sampler_steps(&s); step++) {
            struct dpt_step_view view;
            struct dpt_batch batch = {0};

            assert_int_equal(dpt_loader_next(loader, &view, &err), DPT_OK);
            for (int32_t m = view.first; m < view.last; m++) {
                assert_int_equal(dpt_loader_fill(loader, &view, m, &buffer, &batch, &err), DPT_OK);
                for (int32_t i = 0; i < batch.count; i++)
                    memcpy(images + (view.epoch * SAMPLES + batch.sample[i]) * MAKE_ELEMENTS,
                           batch.input + (size_t)i * MAKE_ELEMENTS, MAKE_ELEMENTS * sizeof(float));
            }
        }
        dpt_batch_buffer_close(&buffer);
        dpt_loader_close(loader);
    }
    dpt_dataset_close(&set);
}

static void loaders_agree_wherever_the_data_lie(void **state)
{
    static float want[EPOCHS * SAMPLES * MAKE_ELEMENTS], have[EPOCHS * SAMPLES * MAKE_ELEMENTS];
    const struct make_form format = {.n_dims = 4, .nhwc = true};
    char folder[128], path[192];

    (void)state;
    make_folder(folder);
    snprintf(path, sizeof path, "%s/all.h5", folder);
    make_shard(path, &format, 0, SAMPLES);
    collect(path, DPT_CACHE_MEMORY, 1, 7, want);
    for (int cache = DPT_CACHE_MEMORY; cache <= DPT_CACHE_NONE; cache++)
        for (int ranks = 1; ranks <= 5; ranks += 2) {
            memset(have, 0, sizeof have);
            collect(path, cache, ranks, 4, have);
            assert_memory_equal(have, want, sizeof have);
        }
    make_remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_window_comes_as_often),
        cmocka_unit_test(another_key_is_another_window),
        cmocka_unit_test(what_cannot_be_cropped_is_refused),
        cmocka_unit_test(loaders_agree_wherever_the_data_lie),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
