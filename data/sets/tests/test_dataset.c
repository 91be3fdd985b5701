/* Shards of every kind give the same samples; damaged and incompatible ones are told apart by their
 * messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "data/sets/parts.h"
#include "data/tests/make_shards.h"

static const struct dpt_comm alone = {
    .world = {0, 1, NULL}, .node = {0, 1, NULL}, .leaders = {0, 1, NULL}, .nodes = 1};

/* HDF5 1.10 forgets some hundred bytes of its own for every damaged file; the leak checker is to
 * look at us. Its hook has this name. NOLINTBEGIN(bugprone-reserved-identifier) */
const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}
/* NOLINTEND(bugprone-reserved-identifier) */

struct files {
    char folder[128];
    char path[4][192];
    const char *paths[4];
    char glob[192];
};

static int set_up(void **state)
{
    struct files *f = calloc(1, sizeof *f);
    char folder[128];

    make_folder(folder);
    memcpy(f->folder, folder, sizeof folder);
    for (int i = 0; i < 4; i++) {
        snprintf(f->path[i], sizeof f->path[i], "%s/%c.h5", folder, 'a' + i);
        f->paths[i] = f->path[i];
    }
    snprintf(f->glob, sizeof f->glob, "%s/*.h5", folder);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct files *f = *state;

    make_remove_folder(f->folder);
    free(f);
    return 0;
}

static enum dpt_status open_paths(struct dpt_dataset *set, const char **paths, size_t n,
                                  bool classes, struct dpt_error *err)
{
    const struct dpt_data_conf conf = make_conf(paths, n);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = classes};

    memset(err, 0, sizeof *err);
    return dpt_dataset_open(set, &spec, &alone, err);
}

static enum dpt_status open_all(struct files *f, struct dpt_dataset *set, bool classes,
                                struct dpt_error *err)
{
    const char *paths[] = {f->glob};

    return open_paths(set, paths, 1, classes, err);
}

/* Opening fails with this status, and the text holds all of the words (separated by |). */
static void assert_refused(struct files *f, bool classes, enum dpt_status status, const char *words)
{
    struct dpt_dataset set;
    struct dpt_error err;
    char copy[256], *rest = copy, *word;

    snprintf(copy, sizeof copy, "%s", words);
    if (open_all(f, &set, classes, &err) != status)
        fail_msg("not the status of '%s': %s", words, err.text);
    while ((word = strsep(&rest, "|")) != NULL)
        if (strstr(err.text, word) == NULL)
            fail_msg("'%s' is not in '%s'", word, err.text);
    assert_null(set.parts);
}

static void assert_samples(const struct dpt_dataset *set, const struct make_form *format, int64_t n)
{
    assert_int_equal(set->samples, n);
    assert_non_null(set->memory);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < MAKE_ELEMENTS; k++) {
            const int element = make_canonical(format, k);

            if (set->u8)
                assert_int_equal(set->memory[i * 24 + k], make_pixel(i, element));
            else
                assert_true(((const float *)(const void *)set->memory)[i * 24 + k] ==
                            make_float(i, element));
        }
        if (set->target == DPT_TARGET_CLASS)
            assert_int_equal(set->labels[i], make_label(i));
        for (int k = 0; set->target == DPT_TARGET_VECTOR && k < 3; k++)
            assert_true(set->targets[i * 3 + k] == make_target(i, k));
    }
}

static const struct make_form formats[] = {
    {.n_dims = 4},
    {.n_dims = 4, .crc = true},
    {.n_dims = 4, .nhwc = true, .crc = true},
    {.n_dims = 4, .nhwc = true, .floats = true, .chunked = true},
    {.n_dims = 2, .floats = true, .big = true, .crc = true, .images = "x", .labels = "y"},
    {.n_dims = 2, .doubles = true, .crc = true, .vectors = true},
    {.n_dims = 3, .gzip = true, .crc = true},
    {.n_dims = 4, .doubles = true, .big = true, .gzip = true},
    {.n_dims = 4, .floats = true, .chunked = true, .crc = true, .vectors = true},
};

/* Shards of 10, 0, 1 and 37 samples, of every form. */
static void every_form_reads(void **state)
{
    struct files *f = *state;

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct make_form *format = &formats[i];
        struct dpt_dataset set;
        struct dpt_error err;

        make_shard(f->path[0], format, 0, 10);
        make_shard(f->path[1], format, 10, format->chunked || format->gzip ? 3 : 0);
        make_shard(f->path[2], format, format->chunked || format->gzip ? 13 : 10, 1);
        make_shard(f->path[3], format, format->chunked || format->gzip ? 14 : 11, 37);
        if (open_all(f, &set, !format->vectors, &err) != DPT_OK)
            fail_msg("form %zu: %s", i, err.text);
        assert_samples(&set, format, format->chunked || format->gzip ? 51 : 48);
        assert_int_equal(set.shape.c, format->n_dims == 4 ? 2 : format->n_dims == 3 ? 1 : 24);
        assert_int_equal(set.shape.flat, format->n_dims == 2);
        assert_int_equal(set.nhwc, format->nhwc);
        dpt_dataset_close(&set);
        dpt_dataset_close(&set);
    }
}

static void says_where_a_sample_is(void **state)
{
    struct files *f = *state;
    struct dpt_dataset set;
    struct dpt_error err;
    char text[256];

    make_shard(f->path[0], &formats[0], 0, 10);
    make_shard(f->path[1], &formats[0], 10, 5);
    assert_int_equal(open_all(f, &set, true, &err), DPT_OK);
    assert_string_equal(dpt_dataset_where(&set, 9, text), "a.h5, sample 9");
    assert_string_equal(dpt_dataset_where(&set, 12, text), "b.h5, sample 2");
    assert_int_equal(set.target_width, 10);
    assert_int_equal(dpt_dataset_check_targets(&set, 12, &err), DPT_OK);
    assert_int_equal(dpt_dataset_check_targets(&set, 9, &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "a.h5: /labels[8] is 9, the model has 9 outputs (0 to 8)"));
    dpt_dataset_close(&set);
}

static void refuses_paths(void **state)
{
    struct files *f = *state;
    struct dpt_dataset set;
    struct dpt_error err;
    const char *twice[] = {f->path[0], f->glob}, *nothing[] = {"no-such-*.h5"};

    assert_refused(f, true, DPT_BAD_JOB, "data.train: no file matches|*.h5");
    assert_int_equal(open_paths(&set, nothing, 1, true, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "(relative to /"));
    make_shard(f->path[0], &formats[0], 0, 10);
    assert_int_equal(open_paths(&set, twice, 2, true, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "are the same file"));
    assert_int_equal(open_paths(&set, twice, 0, true, &err), DPT_BAD_JOB);
}

static void refuses_broken_files(void **state)
{
    struct files *f = *state;
    const struct make_form crc = {.n_dims = 4, .crc = true};
    const char text[] = "this is not a shard at all, only text that is long enough to look at";
    FILE *file = fopen(f->path[0], "wb");

    assert_refused(f, true, DPT_BAD_DATA, "a.h5 is empty");
    fwrite(text, 1, sizeof text, file);
    fclose(file);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5 is not an HDF5 file");
    make_shard(f->path[0], &crc, 0, 100);
    assert_int_equal(truncate(f->path[0], 3000), 0);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5|truncated");
    make_shard(f->path[0], &crc, 0, 100);
    make_damage(f->path[0], make_offset(f->path[0], "images") + 1200, "\x55\xAA\x55", 3);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5: /images does not match its checksum (crc32 is ");
    make_shard(f->path[0], &crc, 0, 100);
    make_damage(f->path[0], make_offset(f->path[0], "labels") + 50, "\x07\x08\x07", 3);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5: /labels does not match its checksum");
}

/* A file with these two data sets instead. */
static void make_odd(const char *path, const char *name, int n_dims, hsize_t n, hsize_t d,
                     hid_t type, const char *label, hsize_t labels, hid_t label_type,
                     const void *values)
{
    static const float zeros[4096];
    const struct make_form plain = {0};
    const hsize_t dims[5] = {n, d, 1, 1, 1}, label_dims[1] = {labels};
    hid_t file;

    dpt_h5_enter();
    file = make_file(path, false);
    make_data(file, name, n_dims, dims, type, type, zeros, &plain);
    make_data(file, label, 1, label_dims, label_type, label_type, values != NULL ? values : zeros,
              &plain);
    H5Fclose(file);
    dpt_h5_leave();
}

static void refuses_odd_contents(void **state)
{
    struct files *f = *state;
    const int64_t large[4] = {0, 1, INT64_C(1) << 31, 3}, negative[4] = {0, 1, 2, -1};
    const float halves[4] = {0, 1, 1.5F, 2};
    const char *a = f->path[0];
    const hid_t u8 = H5T_NATIVE_UINT8, i64 = H5T_NATIVE_INT64;

    make_odd(a, "pictures", 2, 4, 3, u8, "labels", 4, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA,
                   "a.h5 has neither /images nor /x; it holds /labels, /pictures");
    make_odd(a, "images", 2, 4, 3, u8, "classes", 4, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "neither /labels nor /y; it holds /classes, /images");
    make_odd(a, "images", 1, 4, 3, u8, "labels", 4, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5: /images is [4], not [N, C, H, W]");
    make_odd(a, "images", 5, 4, 3, u8, "labels", 4, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5: /images is [4, 3, 1, 1, 1], not");
    make_odd(a, "images", 2, 4, 3, i64, "labels", 4, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "/images holds int64 values, not uint8 or float32");
    make_odd(a, "images", 2, 4, 3, u8, "labels", 5, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "/images has 4 samples, /labels has 5");
    make_odd(a, "images", 2, 4, 3, u8, "labels", 4, i64, large);
    assert_refused(f, true, DPT_BAD_DATA, "/labels[2] is 2147483648");
    make_odd(a, "images", 2, 4, 3, u8, "labels", 4, i64, negative);
    assert_refused(f, true, DPT_BAD_DATA, "/labels[3] is -1");
    make_odd(a, "images", 2, 4, 3, u8, "labels", 4, H5T_NATIVE_FLOAT, halves);
    assert_refused(f, true, DPT_BAD_DATA, "/labels[2] is 1.5|learns regression targets");
    make_odd(a, "images", 2, 0, 3, u8, "labels", 0, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "a.h5 holds no sample");
    make_shard(f->path[0], &formats[0], 0, 10);
    make_odd(f->path[1], "images", 2, 4, 3, u8, "labels", 4, u8, NULL);
    assert_refused(f, true, DPT_BAD_DATA, "b.h5 holds samples of 3 uint8|a.h5 of 2x3x4 uint8");
}

/* A data set that says it is larger than what was written of it, and one never written. */
static void refuses_what_was_never_written(void **state)
{
    struct files *f = *state;
    const struct make_form plain = {0};
    const hsize_t dims[2] = {1000, 3}, chunk[2] = {10, 3}, one = 1000,
                  largest[2] = {H5S_UNLIMITED, 3};
    uint8_t labels[1000] = {0};

    for (int chunked = 0; chunked < 2; chunked++) {
        hid_t file, space, plist;

        dpt_h5_enter();
        file = make_file(f->path[0], false);
        space = H5Screate_simple(2, dims, chunked ? largest : NULL);
        plist = H5Pcreate(H5P_DATASET_CREATE);
        if (chunked)
            H5Pset_chunk(plist, 2, chunk);
        H5Dclose(H5Dcreate2(file, "images", H5T_STD_U8LE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
        make_data(file, "labels", 1, &one, H5T_STD_U8LE, H5T_NATIVE_UINT8, labels, &plain);
        H5Pclose(plist);
        H5Sclose(space);
        H5Fclose(file);
        dpt_h5_leave();
        assert_refused(f, true, DPT_BAD_DATA, "/images was created but never written");
    }
}

static void refuses_values_that_are_no_numbers(void **state)
{
    struct files *f = *state;
    const struct make_form floats = {.n_dims = 4, .floats = true, .vectors = true};
    const uint32_t nan = 0x7FC00000, infinite = 0x7F800000;
    const int64_t stride = 24 * 4;

    make_shard(f->path[0], &floats, 0, 20);
    make_shard(f->path[1], &floats, 20, 20);
    make_damage(f->path[1], make_offset(f->path[1], "images") + 11 * stride + 5 * 4, &nan, 4);
    assert_refused(f, false, DPT_BAD_DATA, "b.h5: /images[11] holds NaN (element 5)");
    make_shard(f->path[1], &floats, 20, 20);
    make_damage(f->path[1], make_offset(f->path[1], "labels") + (4 * 3 + 1) * 4, &infinite, 4);
    assert_refused(f, false, DPT_BAD_DATA, "b.h5: /labels[4] holds an infinite value");
    make_shard(f->path[1], &floats, 20, 20);
    assert_refused(f, true, DPT_BAD_DATA, "/labels[0] is no distribution over 3 classes");
}

/*
 * A shard is damaged at random places, also in what describes it: it is refused by name, or nothing
 * that counts was hit. In HDF5's latest format: the old one has no checksums over its own
 * structures, and the library itself reads astray in some damaged ones.
 */
static void damage_is_found(void **state)
{
    struct files *f = *state;
    const struct make_form format = {.n_dims = 4, .crc = true, .latest = true};
    int refused = 0;

    for (uint64_t seed = 0; seed < 150; seed++) {
        struct dpt_dataset set;
        struct dpt_error err;
        uint8_t bytes[8];

        make_shard(f->path[0], &format, 0, 30);
        for (int k = 0; k < 8; k++)
            bytes[k] = (uint8_t)dpt_mix64(seed * 8 + (uint64_t)k);
        make_damage(f->path[0], (int64_t)(dpt_mix64(seed + 99) % 2700), bytes, 1 + seed % 8);
        if (open_all(f, &set, true, &err) == DPT_OK) {
            assert_samples(&set, &format, 30);
        } else {
            refused++;
            assert_int_equal(err.status, DPT_BAD_DATA);
            assert_non_null(strstr(err.text, "a.h5"));
        }
        dpt_dataset_close(&set);
    }
    assert_true(refused > 50);
}

static void normalisation_must_fit(void **state)
{
    struct files *f = *state;
    const char *paths[] = {f->glob};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    double three[] = {1, 2, 3};
    struct dpt_dataset set;
    struct dpt_error err;

    make_shard(f->path[0], &formats[0], 0, 10);
    conf.normalize.mean = (struct dpt_reals){three, 3};
    assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "data.normalize.mean has 3 numbers"));
    assert_non_null(strstr(err.text, "2 channels"));
}

/* A mean that is many standard deviations from 0 takes no digits of what is near it: the same as
 * in double. */
static void means_may_be_far_from_0(void **state)
{
    struct files *f = *state;
    const char *paths[] = {f->glob};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};

    for (int nhwc = 0; nhwc < 2; nhwc++)
        for (double distance = 1e3; distance < 1e9; distance *= 10) {
            const struct make_form form = {.n_dims = 4, .floats = true, .nhwc = nhwc == 1};
            double mean[] = {distance + 0.3, -0.1}, std[] = {0.7, 3};
            struct dpt_dataset set;
            struct dpt_error err;
            float x[MAKE_ELEMENTS], out[MAKE_ELEMENTS];

            make_shard(f->path[0], &form, 0, 1);
            conf.normalize.mean = (struct dpt_reals){mean, 2};
            conf.normalize.std = (struct dpt_reals){std, 2};
            assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_OK);
            for (int k = 0; k < MAKE_ELEMENTS; k++)
                x[k] = (float)(mean[nhwc ? k % 2 : k / 12] + 0.01 * k);
            dpt_fill_stored(&set, (const uint8_t *)x, out);
            for (int k = 0; k < MAKE_ELEMENTS; k++) {
                const int c = nhwc ? k % 2 : k / 12, at = make_canonical(&form, k);

                assert_true(fabs(out[at] - (x[k] - mean[c]) / std[c]) < 5e-4);
            }
            dpt_dataset_close(&set);
        }
}

static void a_checksum_may_be_ignored(void **state)
{
    struct files *f = *state;
    const struct make_form crc = {.n_dims = 4, .crc = true};
    const char *paths[] = {f->glob};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    struct dpt_dataset set;
    struct dpt_error err;

    make_shard(f->path[0], &crc, 0, 10);
    make_damage(f->path[0], make_offset(f->path[0], "images"), "\x01\x02\x03\x04", 4);
    conf.cache = DPT_CACHE_NONE; /* not read into memory, but checked all the same */
    assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_BAD_DATA);
    conf.verify = false;
    assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_OK);
    assert_null(set.memory);
    dpt_dataset_close(&set);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(every_form_reads),
        TEST(says_where_a_sample_is),
        TEST(refuses_paths),
        TEST(refuses_broken_files),
        TEST(refuses_odd_contents),
        TEST(refuses_what_was_never_written),
        TEST(refuses_values_that_are_no_numbers),
        TEST(damage_is_found),
        TEST(normalisation_must_fit),
        TEST(means_may_be_far_from_0),
        TEST(a_checksum_may_be_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
