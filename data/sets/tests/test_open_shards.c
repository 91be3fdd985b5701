/* More shards than may be open: each is opened when it is read, by any thread, and told if it is no
 * longer what it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "data/sets/parts.h"
#include "data/tests/make_shards.h"

enum { FILES = 48, OPEN = FILES / 4, SHARDS = 30, EACH = 5, THREADS = 4, TURNS = 2000 };

static const struct dpt_comm alone = {.world = {0, 1, NULL}, .node = {0, 1, NULL}, .nodes = 1};
static char folder[128], pattern[192];

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

static const char *path_of(char path[192], int i)
{
    snprintf(path, 192, "%s/%02d.h5", folder, i);
    return path;
}

static void open_set(struct dpt_dataset *set, const struct make_form *form)
{
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    struct dpt_error err;
    char path[192];

    for (int i = 0; i < SHARDS; i++)
        make_shard(path_of(path, i), form, EACH * i, EACH);
    conf.cache = DPT_CACHE_NONE;
    if (dpt_dataset_open(set, &spec, &alone, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* --- any thread ------------------------------------------------------------------------------- */

struct reading {
    const struct dpt_dataset *set;
    pthread_t id;
    int number, most;
    bool wrong;
};

static void *read_many(void *arg)
{
    struct reading *r = arg;
    struct dpt_error err;
    bool opened;

    for (uint64_t i = 0; i < TURNS; i++) {
        const uint64_t dice = dpt_mix64(i * THREADS + (uint64_t)r->number);
        struct dpt_shard *shard = &r->set->parts->shards[dice % SHARDS];
        const int64_t row = (int64_t)(dice / SHARDS % EACH);
        uint8_t bytes[MAKE_ELEMENTS];

        if (dpt_shard_take(shard, false, &opened, &err) != DPT_OK ||
            dpt_field_read(&shard->images, row, 1, bytes, &err) != DPT_OK) {
            r->wrong = true;
            return NULL;
        }
        for (int k = 0; k < MAKE_ELEMENTS; k++)
            r->wrong = r->wrong || bytes[k] != make_pixel(shard->first + row, k);
        dpt_shard_release(shard);
        if (i % 64 == 0) {
            const int n = open_files();

            r->most = n > r->most ? n : r->most;
        }
    }
    return NULL;
}

static void threads_share_what_is_open(void **state)
{
    static const struct make_form forms[] = {{.n_dims = 4}, {.n_dims = 4, .gzip = true}};

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        const int before = open_files();
        struct reading readings[THREADS];
        struct dpt_dataset set;

        open_set(&set, &forms[f]);
        for (int i = 0; i < THREADS; i++) {
            readings[i] = (struct reading){.set = &set, .number = i};
            assert_int_equal(pthread_create(&readings[i].id, NULL, read_many, &readings[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(readings[i].id, NULL);
        for (int i = 0; i < THREADS; i++) { /* beside the shards: each thread looks at its files */
            assert_false(readings[i].wrong);
            assert_in_range(readings[i].most, before, before + OPEN + 2 * THREADS);
        }
        dpt_dataset_close(&set);
        assert_int_equal(open_files(), before);
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static void a_read_of_all_shards_takes_some_at_a_time(void **state)
{
    static const struct make_form forms[] = {{.n_dims = 4}, {.n_dims = 4, .gzip = true}};
    enum { N = SHARDS * EACH };
    static uint8_t bytes[N * MAKE_ELEMENTS];

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        int64_t samples[N];
        struct dpt_reader *reader;
        struct dpt_dataset set;
        struct dpt_error err;

        open_set(&set, &forms[f]);
        assert_int_equal(dpt_reader_open(&reader, &set, N, false, &err), DPT_OK);
        for (int round = 0; round < 3; round++) {
            for (int64_t i = 0; i < N; i++)
                samples[i] = i * 37 % N;
            assert_int_equal(dpt_reader_read(reader, samples, N, bytes, &err), DPT_OK);
            for (int64_t i = 0; i < N; i++)
                for (int k = 0; k < MAKE_ELEMENTS; k++)
                    assert_int_equal(bytes[i * MAKE_ELEMENTS + k], make_pixel(samples[i], k));
        }
        dpt_reader_close(reader);
        dpt_dataset_close(&set);
    }
}

/* As where MPI and its network need most of what the process may have. */
static void others_may_have_most_of_what_may_be_open(void **state)
{
    const struct make_form plain = {.n_dims = 4};
    int64_t samples[SHARDS * EACH];
    static uint8_t bytes[sizeof samples / sizeof *samples * MAKE_ELEMENTS];
    int others[FILES], n = 0;
    struct dpt_reader *reader;
    struct dpt_dataset set;
    struct dpt_error err;

    (void)state;
    open_set(&set, &plain);
    for (int64_t i = 0; i < SHARDS * EACH; i++)
        samples[i] = i;
    assert_int_equal(dpt_reader_open(&reader, &set, SHARDS * EACH, false, &err), DPT_OK);
    assert_int_equal(dpt_reader_read(reader, samples, EACH, bytes, &err), DPT_OK);
    while (n < FILES && (others[n] = open("/dev/null", O_RDONLY)) >= 0)
        n++;
    for (int64_t i = 0; i < SHARDS * EACH; i += EACH)
        if (dpt_reader_read(reader, samples + i, EACH, bytes, &err) != DPT_OK)
            fail_msg("%s", err.text);
    if (dpt_reader_read(reader, samples, SHARDS * EACH, bytes, &err) != DPT_OK)
        fail_msg("%s", err.text);
    while (n > 0)
        close(others[--n]);
    dpt_reader_close(reader);
    dpt_dataset_close(&set);
}

/* Which it is at the time when others have been read since, and it was closed for them. */
static void a_changed_shard_is_told_when_it_is_opened_again(void **state)
{
    const struct make_form plain = {.n_dims = 4};
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1}};
    const int64_t samples[] = {0, EACH, 2 * EACH};
    uint8_t bytes[MAKE_ELEMENTS];
    struct dpt_reader *reader;
    struct dpt_dataset set;
    struct dpt_error err;
    char path[192], other[192];

    (void)state;
    open_set(&set, &plain);
    assert_int_equal(dpt_reader_open(&reader, &set, 1, false, &err), DPT_OK);
    assert_int_equal(utimensat(AT_FDCWD, path_of(path, 0), times, 0), 0);
    assert_int_equal(truncate(path_of(path, 1), 100), 0);
    assert_int_equal(rename(path_of(other, 20), path_of(path, 2)), 0);
    assert_int_equal(dpt_reader_read(reader, &samples[0], 1, bytes, &err), DPT_OK);
    assert_string_equal(dpt_dataset_changed(&set), path_of(path, 0));
    assert_null(dpt_dataset_changed(&set));
    assert_int_equal(dpt_reader_read(reader, &samples[1], 1, bytes, &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "01.h5: became shorter while this run reads it"));
    assert_int_equal(dpt_reader_read(reader, &samples[2], 1, bytes, &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "02.h5: was changed since it was opened"));
    dpt_reader_close(reader);
    dpt_dataset_close(&set);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(threads_share_what_is_open),
        TEST(a_read_of_all_shards_takes_some_at_a_time),
        TEST(others_may_have_most_of_what_may_be_open),
        TEST(a_changed_shard_is_told_when_it_is_opened_again),
    };
    const struct rlimit files = {FILES, FILES};

    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
