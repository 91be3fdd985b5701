/* Whatever the shards are like, wherever they are kept and whoever reads them: the same batches. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>

#include "data/sets/loader.h"
#include "data/shards/shard.h"
#include "data/tests/make_shards.h"

/* The samples of a set as they are. */
#define form_of(set) ((const struct dpt_batch_form[]){dpt_batch_form_of((set), NULL, 1)})

static const struct dpt_comm alone = {
    .world = {0, 1, NULL}, .node = {0, 1, NULL}, .leaders = {0, 1, NULL}, .nodes = 1};

enum { SAMPLES = 257 }; /* a prime */

static char folder[128], pattern[192]; /* of the test that runs */
static double means[] = {0.25, 0.5}, stds[] = {0.5, 2.0};

static int set_up(void **state)
{
    (void)state;
    make_folder(folder);
    snprintf(pattern, sizeof pattern, "%s/*.h5", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    make_remove_folder(folder);
    return 0;
}

static void make_shards(const struct make_form *format)
{
    static const int64_t ends[] = {0, 100, 101, 190, SAMPLES};

    for (int i = 0; i < 4; i++) {
        char path[192];

        snprintf(path, sizeof path, "%s/%d.h5", folder, i);
        make_shard(path, format, ends[i], ends[i + 1] - ends[i]);
    }
}

static void open_set(struct dpt_dataset *set, int cache, bool classes, bool uniform)
{
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = classes};
    struct dpt_error err;

    conf.cache = cache;
    if (!uniform)
        conf.normalize = (struct dpt_normalize){{means, 2}, {stds, 2}};
    if (dpt_dataset_open(set, &spec, &alone, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_true((set->memory == NULL) == (cache == DPT_CACHE_NONE));
}

static struct dpt_sampler sampler_for(int shuffle)
{
    return (struct dpt_sampler){.seed = 11,
                                .total = SAMPLES,
                                .samples = SAMPLES,
                                .global = 48,
                                .micro = 7,
                                .shuffle = (enum dpt_shuffle)shuffle};
}

/* What a sample must look like to the model, from the rule that made it. */
static double expected(const struct dpt_dataset *set, int64_t sample, int k, bool uniform)
{
    const double value = set->u8 ? make_pixel(sample, k) / 255.0 : (double)make_float(sample, k);
    const int channel = k / 12;

    return uniform ? value : (value - means[channel]) / stds[channel];
}

static void check_batch(const struct dpt_dataset *set, const struct dpt_sampler *s,
                        const struct dpt_step_view *view, int32_t m, const struct dpt_batch *batch,
                        bool uniform)
{
    int64_t want[64];
    const int32_t left = dpt_sampler_count(s, view->step) - m * s->micro;
    const int32_t count = left < s->micro ? left : s->micro;

    dpt_sampler_samples(s, view->epoch, view->step * s->global + m * s->micro, count, want);
    assert_int_equal(batch->count, count);
    for (int32_t i = 0; i < s->micro; i++)
        for (int k = 0; k < MAKE_ELEMENTS; k++) {
            const double have = (double)batch->input[i * MAKE_ELEMENTS + k];

            if (i >= count)
                assert_true(have == 0);
            else if (fabs(have - expected(set, want[i], k, uniform)) > 1e-5)
                fail_msg("sample %lld, element %d is %g, not %g", (long long)want[i], k, have,
                         expected(set, want[i], k, uniform));
        }
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(batch->sample[i], want[i]);
        if (set->target == DPT_TARGET_CLASS)
            assert_int_equal(batch->labels[i], make_label(want[i]));
        for (int k = 0; set->target == DPT_TARGET_VECTOR && k < 3; k++)
            assert_true(batch->targets[i * 3 + k] == make_target(want[i], k));
    }
}

/* Takes n steps and checks all that they give. */
static void take(struct dpt_loader *loader, const struct dpt_dataset *set,
                 const struct dpt_sampler *s, int rank, int ranks, int64_t epoch, int64_t step,
                 int n, bool uniform)
{
    struct dpt_batch_buffer buffer;
    struct dpt_error err;

    assert_int_equal(dpt_batch_buffer_open(&buffer, form_of(set), s->micro, &err), DPT_OK);
    for (int i = 0; i < n; i++) {
        struct dpt_step_view view;
        struct dpt_batch batch = {.seed = 5, .step = 6};
        int32_t first, last;

        if (dpt_loader_next(loader, &view, &err) != DPT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(view.epoch, epoch);
        assert_int_equal(view.step, step);
        assert_int_equal(view.total, dpt_sampler_count(s, step));
        dpt_sampler_partition(s, step, rank, ranks, &first, &last);
        assert_int_equal(view.first, first);
        assert_int_equal(view.last, last);
        for (int32_t k = last - first - 1; k >= 0; k--) { /* in any order */
            const int32_t m = dpt_sampler_nth(s, ranks, first, k);

            assert_int_equal(dpt_loader_fill(loader, &view, m, &buffer, &batch, &err), DPT_OK);
            check_batch(set, s, &view, m, &batch, uniform);
            assert_int_equal(batch.seed, 5);
            assert_int_equal(batch.step, 6);
        }
        if (++step == dpt_sampler_steps(s)) {
            step = 0;
            epoch++;
        }
    }
    dpt_batch_buffer_close(&buffer);
}

static const struct make_form formats[] = {
    {.n_dims = 4, .crc = true},
    {.n_dims = 4, .nhwc = true, .vectors = true},
    {.n_dims = 4, .gzip = true},
    {.n_dims = 4, .nhwc = true, .floats = true, .chunked = true},
    {.n_dims = 4, .floats = true, .big = true},
    {.n_dims = 4, .doubles = true, .vectors = true},
    {.n_dims = 2, .floats = true},
    {.n_dims = 3},
};

static void every_form_and_place_gives_the_same(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const struct make_form *format = &formats[f];

        make_shards(format);
        for (int cache = DPT_CACHE_MEMORY; cache <= DPT_CACHE_NONE; cache++)
            for (int shuffle = DPT_SHUFFLE_FULL; shuffle <= DPT_SHUFFLE_NONE; shuffle++) {
                const bool uniform = format->n_dims != 4 || shuffle == DPT_SHUFFLE_NONE;
                const struct dpt_sampler s = sampler_for(shuffle);
                struct dpt_loader *loader;
                struct dpt_dataset set;
                struct dpt_error err;

                open_set(&set, cache, !format->vectors, uniform);
                assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_OK);
                take(loader, &set, &s, 0, 1, 0, 0, 14, uniform);
                dpt_loader_close(loader);
                dpt_dataset_close(&set);
            }
    }
}

/* More ranks than a short last step feeds: some get nothing, none fails. */
static void every_rank_gets_its_own(void **state)
{
    (void)state;
    make_shards(&formats[0]);
    for (int cache = DPT_CACHE_MEMORY; cache <= DPT_CACHE_NONE; cache++)
        for (int ranks = 2; ranks <= 7; ranks++) {
            struct dpt_sampler s = sampler_for(DPT_SHUFFLE_FULL);
            struct dpt_dataset set;

            s.round_robin = ranks % 3;
            open_set(&set, cache, true, false);
            for (int rank = 0; rank < ranks; rank++) {
                struct dpt_loader *loader;
                struct dpt_error err;

                assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, rank, ranks, &err),
                                 DPT_OK);
                take(loader, &set, &s, rank, ranks, 0, 0, 8, false);
                dpt_loader_close(loader);
            }
            dpt_dataset_close(&set);
        }
}

static void seeking_starts_there(void **state)
{
    const struct dpt_sampler s = sampler_for(DPT_SHUFFLE_FULL);

    (void)state;
    make_shards(&formats[0]);
    for (int cache = DPT_CACHE_MEMORY; cache <= DPT_CACHE_NONE; cache++) {
        struct dpt_loader *loader;
        struct dpt_dataset set;
        struct dpt_error err;

        open_set(&set, cache, true, true);
        assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_OK);
        for (uint64_t i = 0; i < 100; i++) {
            const int64_t epoch = (int64_t)(dpt_mix64(i) % 5), step = (int64_t)(dpt_mix64(~i) % 6);

            assert_int_equal(dpt_loader_seek(loader, epoch, step, &err), DPT_OK);
            if (i % 4 != 0) /* else sought again at once */
                take(loader, &set, &s, 0, 1, epoch, step, (int)(i % 6), true);
        }
        assert_int_equal(dpt_loader_seek(loader, 0, 6, &err), DPT_INTERNAL);
        assert_true(dpt_loader_waited(loader) >= 0);
        dpt_loader_close(loader);
        dpt_dataset_close(&set);
    }
}

/* The first step that fails, from the one that comes next on. */
static enum dpt_status first_failure(struct dpt_loader *loader, int64_t steps,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_step_view view;

    for (int64_t i = 0; i < steps && status == DPT_OK; i++)
        status = dpt_loader_next(loader, &view, err);
    return status;
}

/* By the look at the file that comes with its first sample, whichever samples are gone. */
static void a_shard_that_shrinks_is_told(void **state)
{
    const struct dpt_sampler s = sampler_for(DPT_SHUFFLE_NONE);
    struct dpt_loader *loader;
    struct dpt_dataset set;
    struct dpt_error err;
    char path[192];

    (void)state;
    make_shards(&formats[0]);
    snprintf(path, sizeof path, "%s/2.h5", folder);
    open_set(&set, DPT_CACHE_NONE, true, true);
    assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_OK);
    take(loader, &set, &s, 0, 1, 0, 0, 2, true); /* samples 0 to 95 */
    assert_int_equal(truncate(path, make_offset(path, "images") + 20 * MAKE_ELEMENTS + 1), 0);
    dpt_loader_close(loader);
    assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_OK);
    take(loader, &set, &s, 0, 1, 0, 0, 2, true); /* nobody looks at shards that are not read */
    assert_int_equal(first_failure(loader, dpt_sampler_steps(&s), &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "2.h5: became shorter while this run reads it"));
    dpt_loader_close(loader);
    dpt_dataset_close(&set);
}

/* Whose rank computes none of the first layers: it does not miss images that are gone. */
static void labels_alone_read_no_samples(void **state)
{
    const struct dpt_sampler s = sampler_for(DPT_SHUFFLE_FULL);
    struct dpt_step_view view;
    struct dpt_batch_buffer buffer;
    struct dpt_loader *loader;
    struct dpt_dataset set;
    struct dpt_error err;
    char path[192];

    (void)state;
    make_shards(&formats[0]);
    snprintf(path, sizeof path, "%s/2.h5", folder);
    open_set(&set, DPT_CACHE_NONE, true, true);
    assert_int_equal(truncate(path, make_offset(path, "images")), 0);
    assert_int_equal(dpt_batch_buffer_open(&buffer, form_of(&set), s.micro, &err), DPT_OK);
    assert_int_equal(dpt_loader_open_labels(&loader, form_of(&set), &s, 1, 2, &err), DPT_OK);
    assert_int_equal(dpt_loader_seek(loader, 3, 1, &err), DPT_OK);
    for (int64_t step = 1; step < dpt_sampler_steps(&s); step++) {
        assert_int_equal(dpt_loader_next(loader, &view, &err), DPT_OK);
        assert_int_equal(view.step, step);
        for (int32_t m = view.first; m < view.last; m++) {
            int64_t want[64];
            int32_t count;

            dpt_loader_fill_labels(loader, &view, m, &buffer, NULL, &count);
            dpt_sampler_samples(&s, 3, step * s.global + m * s.micro, count, want);
            for (int32_t i = 0; i < count; i++) {
                assert_int_equal(buffer.sample[i], want[i]);
                assert_int_equal(buffer.labels[i], make_label(want[i]));
            }
        }
    }
    dpt_batch_buffer_close(&buffer);
    dpt_loader_close(loader);
    dpt_dataset_close(&set);
}

/* A shard's checksum tells whether what was written is the same. */
static void a_shard_that_is_written_to_is_told(void **state)
{
    const struct dpt_sampler s = sampler_for(DPT_SHUFFLE_NONE);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1}};

    (void)state;
    for (int crc = 0; crc < 2; crc++)
        for (int touched = 0; touched < 2; touched++) {
            struct make_form format = formats[0];
            struct dpt_loader *loader;
            struct dpt_dataset set;
            struct dpt_error err;
            enum dpt_status status;
            char path[192];

            format.crc = crc;
            make_shards(&format);
            snprintf(path, sizeof path, "%s/2.h5", folder);
            open_set(&set, DPT_CACHE_NONE, true, true);
            if (!touched)
                make_damage(path, make_offset(path, "images"), "other", 5);
            assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
            assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_OK);
            status = first_failure(loader, dpt_sampler_steps(&s), &err);
            assert_int_equal(status, crc && !touched ? DPT_BAD_DATA : DPT_OK);
            if (status != DPT_OK)
                assert_non_null(strstr(err.text, "2.h5: /images does not match its checksum"));
            dpt_loader_close(loader);
            if (!crc)
                assert_string_equal(dpt_dataset_changed(&set), path);
            assert_null(dpt_dataset_changed(&set)); /* once, and not where all is known */
            dpt_dataset_close(&set);
        }
}

static void a_shard_that_is_replaced_meanwhile_is_told(void **state)
{
    const struct dpt_shard_spec how = {.classes = true, .need_labels = true};
    struct dpt_shard shard;
    struct dpt_error err;
    char path[192], other[192];

    (void)state;
    make_shards(&formats[0]);
    snprintf(path, sizeof path, "%s/0.h5", folder);
    snprintf(other, sizeof other, "%s/1.h5", folder);
    assert_int_equal(dpt_shard_open(&shard, path, &how, &err), DPT_OK);
    assert_int_equal(dpt_shard_attach(&shard, &err), DPT_OK);
    dpt_shard_detach(&shard);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(dpt_shard_attach(&shard, &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "0.h5: was changed since it was opened"));
    dpt_shard_close(&shard);
}

static void a_nan_in_a_stream_is_told(void **state)
{
    const struct make_form floats = {.n_dims = 4, .floats = true};
    const struct dpt_sampler s = sampler_for(DPT_SHUFFLE_NONE);
    const uint32_t nan = 0xFFC00000;
    struct dpt_batch_buffer buffer;
    struct dpt_step_view view;
    struct dpt_batch batch;
    struct dpt_loader *loader;
    struct dpt_dataset set;
    struct dpt_error err;
    char path[192];

    (void)state;
    make_shards(&floats);
    snprintf(path, sizeof path, "%s/0.h5", folder);
    make_damage(path, make_offset(path, "images") + 9 * MAKE_ELEMENTS * 4, &nan, 4);
    open_set(&set, DPT_CACHE_NONE, true, true);
    assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_OK);
    assert_int_equal(dpt_batch_buffer_open(&buffer, form_of(&set), s.micro, &err), DPT_OK);
    assert_int_equal(dpt_loader_next(loader, &view, &err), DPT_OK);
    assert_int_equal(dpt_loader_fill(loader, &view, 0, &buffer, &batch, &err), DPT_OK);
    assert_int_equal(dpt_loader_fill(loader, &view, 1, &buffer, &batch, &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "0.h5, sample 9 holds NaN"));
    dpt_batch_buffer_close(&buffer);
    dpt_loader_close(loader);
    dpt_dataset_close(&set);
}

static void an_epoch_without_a_step_is_refused(void **state)
{
    struct dpt_sampler s = sampler_for(DPT_SHUFFLE_NONE);
    struct dpt_loader *loader;
    struct dpt_dataset set;
    struct dpt_error err;

    (void)state;
    make_shards(&formats[0]);
    open_set(&set, DPT_CACHE_AUTO, true, true);
    s.global = SAMPLES + 1;
    s.drop_last = true;
    assert_int_equal(dpt_loader_open(&loader, form_of(&set), &s, 0, 1, &err), DPT_BAD_JOB);
    assert_null(loader);
    dpt_dataset_close(&set);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(every_form_and_place_gives_the_same),
        TEST(every_rank_gets_its_own),
        TEST(seeking_starts_there),
        TEST(a_shard_that_shrinks_is_told),
        TEST(labels_alone_read_no_samples),
        TEST(a_shard_that_is_written_to_is_told),
        TEST(a_shard_that_is_replaced_meanwhile_is_told),
        TEST(a_nan_in_a_stream_is_told),
        TEST(an_epoch_without_a_step_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
