/* ranks: 1 2 3 */
/* One copy per node, read in shares by its ranks; a failure that one rank alone sees is
 * everybody's.
 */
#include <limits.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "data/sets/parts.h"
#include "data/tests/make_shards.h"

static struct dpt_comm comm;
static char folder[128], pattern[192];

/* Rank 0 makes the folder and writes; the others wait for it. */
static int set_up(void **state)
{
    struct dpt_error err;

    (void)state;
    if (comm.world.rank == 0)
        make_folder(folder);
    dpt_group_broadcast(&comm.world, 0, folder, sizeof folder, &err);
    snprintf(pattern, sizeof pattern, "%s/*.h5", folder);
    return 0;
}

static int tear_down(void **state)
{
    struct dpt_error err;

    (void)state;
    dpt_group_barrier(&comm.world, &err);
    if (comm.world.rank == 0)
        make_remove_folder(folder);
    return 0;
}

static void write_shards(const struct make_form *format)
{
    static const int64_t ends[] = {0, 5, 6, 50, 101};
    struct dpt_error err;

    for (int i = 0; i < 4 && comm.world.rank == 0; i++) {
        char path[192];

        snprintf(path, sizeof path, "%s/%d.h5", folder, i);
        make_shard(path, format, ends[i], ends[i + 1] - ends[i]);
    }
    dpt_group_barrier(&comm.world, &err);
}

static enum dpt_status open_set(struct dpt_dataset *set, int cache, bool classes,
                                struct dpt_error *err)
{
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = classes};

    conf.cache = cache;
    return dpt_dataset_open(set, &spec, &comm, err);
}

static void all_ranks_see_all_samples(void **state)
{
    static const struct make_form formats[] = {
        {.n_dims = 4, .crc = true},
        {.n_dims = 4, .nhwc = true, .floats = true, .gzip = true, .crc = true},
        {.n_dims = 2, .doubles = true, .vectors = true, .crc = true},
    };

    (void)state;
    for (size_t f = 0; f < 3; f++) {
        struct dpt_dataset set;
        struct dpt_error err;

        write_shards(&formats[f]);
        if (open_set(&set, DPT_CACHE_MEMORY, !formats[f].vectors, &err) != DPT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(set.samples, 101);
        for (int64_t i = 0; i < 101; i++) {
            for (int k = 0; k < MAKE_ELEMENTS; k++) {
                const int element = make_canonical(&formats[f], k);

                if (set.u8)
                    assert_int_equal(set.memory[i * 24 + k], make_pixel(i, element));
                else
                    assert_true(((const float *)(const void *)set.memory)[i * 24 + k] ==
                                make_float(i, element));
            }
            if (set.target == DPT_TARGET_CLASS)
                assert_int_equal(set.labels[i], make_label(i));
            else
                assert_true(set.targets[i * 3 + 2] == make_target(i, 2));
        }
        dpt_dataset_close(&set);
    }
}

/* Damage anywhere lies in one rank's share only; all ranks get the same answer, in every way of
 * keeping the data. */
static void all_ranks_fail_together(void **state)
{
    const struct make_form crc = {.n_dims = 4, .crc = true};
    const struct make_form floats = {.n_dims = 4, .floats = true};
    const uint32_t nan = 0x7FC00000;

    (void)state;
    for (int shard = 0; shard < 4; shard++) {
        struct dpt_dataset set;
        struct dpt_error err;
        char path[192], words[64];

        snprintf(path, sizeof path, "%s/%d.h5", folder, shard);
        for (int cache = DPT_CACHE_AUTO; cache <= DPT_CACHE_NONE; cache++) {
            write_shards(&crc);
            if (comm.world.rank == 0)
                make_damage(path, make_offset(path, "images") + 17, "\x11\x22\x33", 3);
            dpt_group_barrier(&comm.world, &err);
            assert_int_equal(open_set(&set, cache, true, &err), DPT_BAD_DATA);
            snprintf(words, sizeof words, "%d.h5: /images does not match its checksum", shard);
            assert_non_null(strstr(err.text, words));
            assert_null(set.parts);
        }
        write_shards(&floats);
        if (comm.world.rank == 0)
            make_damage(path, make_offset(path, "images"), &nan, 4);
        dpt_group_barrier(&comm.world, &err);
        assert_int_equal(open_set(&set, DPT_CACHE_AUTO, true, &err), DPT_BAD_DATA);
        snprintf(words, sizeof words, "%d.h5: /images[0] holds NaN", shard);
        assert_non_null(strstr(err.text, words));
    }
}

/* What this process has read so far, as Linux counts it; 0: it does not tell. */
static int64_t bytes_read(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    long long bytes = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "rchar: %lld", &bytes) != 1)
        bytes = 0;
    fclose(file);
    return bytes;
}

/* As if each rank were a node: what is read when it is needed is verified by one of them. */
static void nodes_share_out_the_verification(void **state)
{
    static const struct make_form forms[] = {{.n_dims = 4, .crc = true},
                                             {.n_dims = 4, .gzip = true, .crc = true}};
    struct dpt_comm nodes = comm;
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};

    enum { MUCH = 100000 };
    int64_t bytes[2];

    (void)state;
    nodes.node = (struct dpt_group){.size = 1};
    nodes.nodes = comm.world.size;
    conf.cache = DPT_CACHE_NONE;
    for (int shard = -1; shard < 4; shard++) { /* -1: none is damaged */
        struct dpt_dataset set;
        struct dpt_error err;
        char path[192], words[64];

        write_shards(&forms[shard < 0]);
        snprintf(path, sizeof path, "%s/%d.h5", folder, shard);
        snprintf(words, sizeof words, "/%d.h5: /images does not match its checksum", shard);
        if (comm.world.rank == 0 && shard >= 0)
            make_damage(path, make_offset(path, "images") + 17, "\x11\x22\x33", 3);
        dpt_group_barrier(&comm.world, &err);
        assert_int_equal(dpt_dataset_open(&set, &spec, &nodes, &err),
                         shard < 0 ? DPT_OK : DPT_BAD_DATA);
        if (shard >= 0)
            assert_true(strstr(err.text, words) != NULL && strncmp(err.text, folder, 4) == 0);
        dpt_dataset_close(&set);
        conf.verify = false;
        assert_int_equal(dpt_dataset_open(&set, &spec, &nodes, &err), DPT_OK);
        dpt_dataset_close(&set);
        conf.verify = true;
    }
    for (int verify = 0; verify < 2; verify++) { /* all read one copy, together */
        struct dpt_dataset set;
        struct dpt_error err;
        char path[192];

        snprintf(path, sizeof path, "%s/3.h5", folder);
        if (comm.world.rank == 0)
            make_shard(path, &forms[0], 50, MUCH);
        conf.verify = verify;
        dpt_group_barrier(&comm.world, &err);
        bytes[verify] = -bytes_read();
        assert_int_equal(dpt_dataset_open(&set, &spec, &nodes, &err), DPT_OK);
        bytes[verify] += bytes_read();
        dpt_dataset_close(&set);
        dpt_group_sum_ints(&comm.world, &bytes[verify], &bytes[verify], 1, &err);
    }
    if (bytes_read() > 0)
        assert_in_range(bytes[1] - bytes[0], MUCH * MAKE_ELEMENTS, 1.5 * MUCH * MAKE_ELEMENTS);
}

/* As if each rank were a node with a disk of its own, on which a name means another file. */
static void ranks_with_other_files_are_told(void **state)
{
    const struct make_form plain = {.n_dims = 4};
    const char *paths[] = {"data.h5"};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    const int last = comm.world.size - 1;
    struct dpt_dataset set;
    struct dpt_error err;
    char disk[192], from[PATH_MAX], host[DPT_HOST_TEXT];

    (void)state;
    if (last == 0)
        return;
    assert_non_null(getcwd(from, sizeof from));
    snprintf(disk, sizeof disk, "%s/disk%d", folder, comm.world.rank);
    assert_int_equal(mkdir(disk, 0777), 0);
    assert_int_equal(chdir(disk), 0);
    memcpy(host, comm.hosts[0], sizeof host);
    snprintf(comm.hosts[0], sizeof comm.hosts[0], "another");

    make_shard("data.h5", &plain, 0, 20); /* copies are fine */
    dpt_group_barrier(&comm.world, &err);
    assert_int_equal(dpt_dataset_open(&set, &spec, &comm, &err), DPT_OK);
    dpt_dataset_close(&set);
    for (int length = 20; length <= 21; length++) { /* other bytes; another length */
        if (comm.world.rank == last)
            make_shard("data.h5", &plain, 0, length);
        if (comm.world.rank == last && length == 20)
            make_damage("data.h5", 100, "!", 1);
        dpt_group_barrier(&comm.world, &err);
        assert_int_equal(dpt_dataset_open(&set, &spec, &comm, &err), DPT_BAD_DATA);
        assert_non_null(strstr(err.text, "all nodes need the same files"));
    }
    if (comm.world.rank == last)
        unlink("data.h5");
    dpt_group_barrier(&comm.world, &err);
    assert_int_equal(dpt_dataset_open(&set, &spec, &comm, &err), DPT_BAD_DATA);
    assert_non_null(strstr(err.text, "another node has it: all nodes need the same files"));
    if (comm.world.rank == last)
        make_shard("data.h5", &plain, 0, 20);
    else
        unlink("data.h5");
    dpt_group_barrier(&comm.world, &err);
    assert_int_equal(dpt_dataset_open(&set, &spec, &comm, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "no file matches"));

    memcpy(comm.hosts[0], host, sizeof host);
    assert_int_equal(chdir(from), 0);
}

enum { MANY = 40 }; /* of which several ranks read the headers */

static void name_of(char path[192], int i)
{
    snprintf(path, 192, "%s/%02d.h5", folder, i);
}

/* By rank 0. Of 3 samples each, but where one has other classes. */
static void write_many(void)
{
    const struct make_form plain = {.n_dims = 4, .nhwc = true, .gzip = true, .crc = true};
    struct dpt_error err;

    for (int i = 0; i < MANY && comm.world.rank == 0; i++) {
        char path[192];
        hid_t file;

        name_of(path, i);
        make_shard(path, &plain, 3 * i, 3);
        if (i % 3 != 0)
            continue;
        dpt_h5_enter();
        file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        make_text_attribute(file, "labels", "classes", "cat", false);
        H5Fclose(file);
        dpt_h5_leave();
    }
    dpt_group_barrier(&comm.world, &err);
}

/* What the ranks tell each other of shards is all that there is to know. */
static void many_shards_are_as_one_rank_sees_them(void **state)
{
    const struct dpt_comm alone = {.world = {0, 1, NULL}, .node = {0, 1, NULL}, .nodes = 1};
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    struct dpt_dataset ours, mine;
    struct dpt_error err;
    const char *const *names;
    char where[256], other[256];
    int64_t outputs;
    size_t n;

    (void)state;
    write_many();
    assert_int_equal(dpt_dataset_open(&ours, &spec, &comm, &err), DPT_OK);
    assert_int_equal(dpt_dataset_open(&mine, &spec, &alone, &err), DPT_OK);
    assert_int_equal(ours.samples, 3 * MANY);
    assert_true(ours.nhwc && ours.u8 && ours.target == DPT_TARGET_CLASS);
    assert_memory_equal(ours.memory, mine.memory, 3 * MANY * ours.stride);
    assert_memory_equal(ours.labels, mine.labels, 3 * MANY * sizeof(int32_t));
    for (int64_t i = 0; i < ours.samples; i++)
        assert_string_equal(dpt_dataset_where(&ours, i, where), dpt_dataset_where(&mine, i, other));
    names = dpt_dataset_class_names(&ours, &n);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "cat");
    dpt_dataset_close(&mine);
    dpt_dataset_close(&ours);

    assert_int_equal(dpt_dataset_describe(&ours, &spec, &comm, &err), DPT_OK);
    assert_int_equal(dpt_dataset_count_outputs(&ours, &comm, &outputs, &err), DPT_OK);
    assert_int_equal(outputs, 10);
    dpt_dataset_close(&ours);
}

/* --- kept files ------------------------------------------------------------------------------- */

/* Where file i of a shard begins, which has 1 to 3 bytes. */
static uint64_t begin_of(uint64_t i)
{
    return i / 3 * 6 + i % 3 * (i % 3 + 1) / 2;
}

/* Writes, on rank 0, a shard of n files that nobody decodes. */
static void write_files(int number, size_t n)
{
    const hsize_t dims[] = {begin_of(n), n + 1, n, 3};
    const struct make_form format = {.crc = true};
    const int64_t shape[] = {1, 2, 2};
    uint8_t *bytes = calloc(dims[0], 1);
    uint64_t *begin = calloc(n + 1, sizeof *begin);
    int32_t *label = calloc(n, sizeof *label);
    char path[192];
    hid_t file, data, space, attribute;

    for (size_t i = 0; i <= n; i++)
        begin[i] = begin_of(i);
    snprintf(path, sizeof path, "%s/%d.h5", folder, number);
    dpt_h5_enter();
    file = make_file(path, false);
    make_data(file, "files", 1, &dims[0], H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes, &format);
    make_data(file, "offsets", 1, &dims[1], H5T_STD_U64LE, H5T_NATIVE_UINT64, begin, &format);
    make_data(file, "labels", 1, &dims[2], H5T_STD_I32LE, H5T_NATIVE_INT32, label, &format);
    data = H5Dopen2(file, "files", H5P_DEFAULT);
    space = H5Screate_simple(1, &dims[3], NULL);
    attribute = H5Acreate2(data, "shape", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT64, shape);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Dclose(data);
    H5Fclose(file);
    dpt_h5_leave();
    free(bytes);
    free(begin);
    free(label);
}

/* Bytes of memory that this process shares with nobody; -1: Linux does not tell, or what was freed
 * is among them. */
static int64_t own_bytes(void)
{
    FILE *file = NULL;
    char line[128];
    long long kb = -1;

#if defined __GLIBC__ && !defined __SANITIZE_ADDRESS__
    malloc_trim(0);
    file = fopen("/proc/self/status", "r");
#endif
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %lld", &kb) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kb < 0 ? -1 : kb * 1024;
}

/* Where kept files begin is once in a node's memory: a rank's own does not grow with them. */
static void a_node_knows_once_where_files_begin(void **state)
{
    enum { FILES = 1500000, SHARDS = 2 };
    struct dpt_dataset set;
    struct dpt_error err;
    int64_t before, after;
    int64_t *first;

    (void)state;
    for (int i = 0; i < SHARDS && comm.world.rank == 0; i++)
        write_files(i, i == 0 ? FILES : 100);
    dpt_group_barrier(&comm.world, &err);
    before = own_bytes();
    if (open_set(&set, DPT_CACHE_MEMORY, true, &err) != DPT_OK)
        fail_msg("%s", err.text);
    after = own_bytes();
    assert_true(set.files);
    assert_int_equal(set.samples, FILES + 100);
    for (int s = 0; s < SHARDS; s++)
        for (int64_t i = 0; i <= set.parts->shards[s].samples; i++)
            if (dpt_shard_row(&set.parts->shards[s], i) != (int64_t)begin_of((uint64_t)i))
                fail_msg("file %lld begins elsewhere", (long long)i);
    if (before >= 0 && comm.world.size > 1) /* what a node shares is a lone rank's own */
        assert_true(after - before < (int64_t)(FILES * sizeof(int64_t) / 2));
    dpt_group_barrier(&comm.world, &err);
    first = set.parts->shards[1].offsets;
    if (comm.world.rank == 0)
        first[50] = -1;
    dpt_group_barrier(&comm.world, &err);
    assert_int_equal(first[50], -1);
    dpt_group_barrier(&comm.world, &err);
    dpt_dataset_close(&set);
}

/* Makes a shard bad, on rank 0. */
static void spoil(int i, const struct make_form *other, const char *classes)
{
    char path[192];
    hid_t file;

    name_of(path, i);
    if (comm.world.rank != 0)
        return;
    if (other != NULL)
        make_shard(path, other, 0, 3);
    else
        assert_int_equal(truncate(path, 10), 0);
    if (classes == NULL)
        return;
    dpt_h5_enter();
    file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    make_text_attribute(file, "labels", "classes", classes, false);
    H5Fclose(file);
    dpt_h5_leave();
}

static void check_told(enum dpt_status status, const char *told)
{
    struct dpt_dataset set;
    struct dpt_error err;

    dpt_group_barrier(&comm.world, &err);
    assert_int_equal(open_set(&set, DPT_CACHE_AUTO, true, &err), status);
    if (strstr(err.text, told) == NULL || strncmp(err.text, "rank ", 5) == 0)
        fail_msg("%s, not %s", err.text, told);
}

/* Whoever reads the header: by all ranks, in the same words as by one. */
static void the_first_bad_shard_is_told(void **state)
{
    const struct make_form form = {.n_dims = 4, .nhwc = true, .gzip = true};
    const struct make_form other = {.n_dims = 2};
    char path[192], twice[256];

    (void)state;
    write_many();
    spoil(36, NULL, NULL);
    check_told(DPT_BAD_DATA, "/36.h5 cannot be opened: truncated");
    spoil(31, &form, "dog");
    check_told(DPT_BAD_DATA, "/31.h5: class 0 is 'dog', in ");
    spoil(17, NULL, NULL);
    check_told(DPT_BAD_DATA, "/17.h5 cannot be opened: truncated");
    spoil(12, &other, NULL);
    check_told(DPT_BAD_DATA, "/12.h5 holds samples of 24 uint8, ");
    if (comm.world.rank == 0) {
        name_of(path, 2);
        snprintf(twice, sizeof twice, "%s/11.h5", folder);
        unlink(twice);
        assert_int_equal(symlink(path, twice), 0);
    }
    check_told(DPT_BAD_DATA, "/12.h5 holds samples of 24 uint8, ");
    spoil(12, NULL, NULL);
    check_told(DPT_BAD_JOB, "/11.h5' are the same file");
}

/* The samples of a rule do not depend on how many ranks made them: compared with those that one
 * rank makes alone. */
static void synthetic_samples_do_not_depend_on_ranks(void **state)
{
    const struct dpt_comm alone = {.world = {0, 1, NULL}, .node = {0, 1, NULL}, .nodes = 1};
    const char *paths[] = {"synthetic"};
    struct dpt_data_conf conf = make_conf(paths, 1);

    (void)state;
    conf.synthetic.samples = 101;
    for (int classes = 0; classes < 2; classes++) {
        const struct dpt_dataset_spec spec = {
            .conf = &conf, .paths = &conf.train, .classes = classes == 1, .seed = 3};
        struct dpt_dataset ours, mine;
        struct dpt_error err;

        assert_int_equal(dpt_dataset_open(&ours, &spec, &comm, &err), DPT_OK);
        assert_int_equal(dpt_dataset_open(&mine, &spec, &alone, &err), DPT_OK);
        assert_memory_equal(ours.memory, mine.memory, 101 * ours.stride);
        if (classes)
            assert_memory_equal(ours.labels, mine.labels, 101 * sizeof(int32_t));
        else
            assert_memory_equal(ours.targets, mine.targets, 101 * sizeof(float));
        dpt_dataset_close(&mine);
        dpt_dataset_close(&ours);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(all_ranks_see_all_samples),
        TEST(all_ranks_fail_together),
        TEST(nodes_share_out_the_verification),
        TEST(ranks_with_other_files_are_told),
        TEST(many_shards_are_as_one_rank_sees_them),
        TEST(a_node_knows_once_where_files_begin),
        TEST(the_first_bad_shard_is_told),
        TEST(synthetic_samples_do_not_depend_on_ranks),
    };
    struct dpt_error err;
    int failed;

    if (dpt_comm_open(&comm, &err) != DPT_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    dpt_comm_close(&comm);
    return failed;
}
