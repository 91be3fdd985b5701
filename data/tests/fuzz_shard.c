/*
 * Fuzzer for shards. The first byte of the input says how the data set is opened, the others are
 * choices of forge.h: a whole HDF5 file, which is opened, or refused with a reason. What is read
 * into memory at once and what is read when needed must be the same.
 */
#include <math.h>
#include <stdint.h>

#include "data/pictures/picture.h"
#include "data/sets/dataset.h"
#include "data/sets/parts.h"
#include "data/shards/h5.h"
#include "data/tests/forge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SAMPLES = 5, ELEMENTS = 24, CLASSES = 3, MOST = 1 << 20 };

/* How a set is opened: bits of the first byte. */
enum {
    VECTORS = 1,
    UNVERIFIED = 2,
    TWICE = 4,
    FLOATS = 8,
    FLAT = 16,
    NHWC = 32,
    SHORT_NAMES = 64,
    WEIGHTS = 128,
    FILES = FLAT | NHWC /* without VECTORS and FLOATS, instead of both */
};

static bool keeps_files(unsigned how)
{
    return (how & (FILES | VECTORS | FLOATS)) == FILES;
}

static const struct dpt_comm lone = {.world = {.rank = 0, .size = 1},
                                     .node = {.rank = 0, .size = 1},
                                     .leaders = {0, 1, NULL},
                                     .nodes = 1};

static void forge_images(struct forge *f, hid_t file, unsigned how)
{
    uint8_t pixels[SAMPLES * ELEMENTS];
    float floats[SAMPLES * ELEMENTS];
    struct forge_want want = {.name = how & SHORT_NAMES ? "/x" : "/images",
                              .type = how & FLOATS ? H5T_IEEE_F32LE : H5T_STD_U8LE,
                              .n_dims = how & FLAT ? 2 : 4,
                              .dims = {SAMPLES, how & FLAT ? ELEMENTS : 2, 3, 4},
                              .layout = how & NHWC ? "NHWC" : "NCHW",
                              .crc = true};

    for (int i = 0; i < SAMPLES * ELEMENTS; i++) {
        pixels[i] = (uint8_t)(7 * i);
        floats[i] = (float)i / 8.0F - 3.0F;
    }
    want.values = how & FLOATS ? (void *)floats : (void *)pixels;
    forge_put(f, file, &want);
}

/* Small images, each of another size, and where they begin. */
static void forge_files(struct forge *f, hid_t file)
{
    static const int32_t shape[3] = {3, 2, 4};
    uint64_t offsets[SAMPLES + 1] = {0};
    struct dpt_str bytes = {0};
    struct forge_want want = {.name = "/files", .type = H5T_STD_U8LE, .n_dims = 1, .crc = true};

    for (int i = 0; i < SAMPLES; i++) {
        uint8_t pixels[SAMPLES * 4 * 3];

        for (size_t k = 0; k < sizeof pixels; k++)
            pixels[k] = (uint8_t)(17 * k + 3 * (size_t)i);
        dpt_picture_write(&bytes, pixels, 4, 1 + i, i % 2 == 0 ? 3 : 1);
        offsets[i + 1] = bytes.length;
    }
    DEMAND(!bytes.failed && bytes.length <= FORGE_VALUES, "%zu bytes", bytes.length);
    want.dims[0] = bytes.length;
    want.values = bytes.text;
    want.shape = shape;
    forge_put(f, file, &want);
    want = (struct forge_want){.name = "/offsets",
                               .type = H5T_STD_U64LE,
                               .n_dims = 1,
                               .dims = {SAMPLES + 1},
                               .values = offsets,
                               .crc = true};
    forge_put(f, file, &want);
    dpt_str_release(&bytes);
}

static void forge_labels(struct forge *f, hid_t file, unsigned how)
{
    int32_t classes[SAMPLES];
    float targets[SAMPLES * CLASSES];
    struct forge_want want = {.name = how & SHORT_NAMES ? "/y" : "/labels",
                              .type = how & VECTORS ? H5T_IEEE_F32LE : H5T_STD_I32LE,
                              .n_dims = how & VECTORS ? 2 : 1,
                              .dims = {SAMPLES, CLASSES},
                              .values = how & VECTORS ? (void *)targets : (void *)classes,
                              .crc = true,
                              .classes = "ox"};

    for (int i = 0; i < SAMPLES; i++) {
        classes[i] = i % CLASSES;
        for (int k = 0; k < CLASSES; k++)
            targets[CLASSES * i + k] = k == i % CLASSES ? 0.5F : 0.25F;
    }
    forge_put(f, file, &want);
}

static void forge_weights(struct forge *f, hid_t file, unsigned how)
{
    const float weights[SAMPLES] = {0, 1, 0.25F, 3, 0};
    const struct forge_want want = {.name = how & SHORT_NAMES ? "/mask" : "/weights",
                                    .type = H5T_IEEE_F32LE,
                                    .n_dims = 1,
                                    .dims = {SAMPLES},
                                    .values = weights,
                                    .crc = true};

    forge_put(f, file, &want);
}

static bool forge_shard(struct forge *f, unsigned how, const char *path)
{
    const hid_t file = forge_create(f, path);

    if (keeps_files(how))
        forge_files(f, file);
    else
        forge_images(f, file, how);
    forge_labels(f, file, how);
    if (how & WEIGHTS)
        forge_weights(f, file, how);
    H5Fclose(file);
    return f->usual;
}

static void demand_reason(enum dpt_status status, const struct dpt_error *err)
{
    DEMAND((status == DPT_BAD_DATA || status == DPT_BAD_JOB) && err->status == status &&
               err->text[0] != '\0',
           "%d: %s", (int)status, err->text);
}

static void demand_sound(const struct dpt_dataset *set)
{
    const size_t element = set->u8 ? 1 : sizeof(float);
    const struct dpt_shard *named = set->parts->named;
    char where[256];

    DEMAND(named == NULL || named->names.n > 0, "no names");
    for (size_t i = 0; named != NULL && i < named->names.n; i++)
        DEMAND(strlen(named->names.at[i]) < MOST, "name %zu", i);
    DEMAND(set->samples > 0 && dpt_shape_size(&set->shape) > 0 &&
               set->stride == element * (size_t)dpt_shape_size(&set->shape),
           "%lld samples of %zu bytes", (long long)set->samples, set->stride);
    for (int64_t i = 0, at = 0; i < set->samples; i++) {
        size_t bytes;

        DEMAND(dpt_dataset_place(set, i, &bytes) == at && bytes > 0, "%lld", (long long)i);
        at += (int64_t)bytes;
        DEMAND(i < set->samples - 1 || at == set->bytes, "%lld of %lld bytes", (long long)at,
               (long long)set->bytes);
    }
    DEMAND((set->labels != NULL) != (set->targets != NULL), "%d", (int)set->target);
    for (int64_t i = 0; i < set->samples; i++) {
        DEMAND(set->labels == NULL || (set->labels[i] >= 0 && set->labels[i] < set->target_width),
               "%lld", (long long)i);
        DEMAND(set->weights == NULL || (set->weights[i] >= 0 && isfinite(set->weights[i])), "%lld",
               (long long)i);
        for (int32_t k = 0; set->targets != NULL && k < set->target_width; k++)
            DEMAND(isfinite(set->targets[i * set->target_width + k]), "%lld", (long long)i);
    }
    DEMAND(dpt_dataset_where(set, set->samples - 1, where)[0] != '\0', "no place");
}

/* All samples, read from the files. False where they cannot be read. */
static bool read_all(const struct dpt_dataset *set, uint8_t *bytes)
{
    int64_t *numbers = calloc((size_t)set->samples, sizeof *numbers);
    struct dpt_reader *reader = NULL;
    struct dpt_error err = {0};
    enum dpt_status status =
        dpt_reader_open(&reader, set, (size_t)set->samples, set->samples % 2 == 0, &err);

    DEMAND(status == DPT_OK && numbers != NULL, "%s", err.text);
    for (int64_t i = 0; i < set->samples; i++)
        numbers[i] = i;
    status = dpt_reader_read(reader, numbers, (int32_t)set->samples, bytes, &err);
    if (status != DPT_OK)
        demand_reason(status, &err);
    dpt_reader_close(reader);
    free(numbers);
    return status == DPT_OK;
}

/* Each sample as floats; usual: files are images. */
static void fill_all(const struct dpt_dataset *set, const uint8_t *bytes, float *sample, bool usual)
{
    struct dpt_error err = {0};
    uint8_t *decoded = malloc(set->stride);

    DEMAND(decoded != NULL, "no memory");
    for (int64_t i = 0; i < set->samples; i++) {
        size_t n;
        const uint8_t *stored = bytes + dpt_dataset_place(set, i, &n);
        const struct dpt_shard *shard = set->files ? dpt_dataset_shard(set, i) : NULL;
        const enum dpt_status status =
            set->files ? dpt_shard_decode(shard, i - shard->first, stored, n, decoded, &err)
                       : DPT_OK;

        DEMAND(!usual || status == DPT_OK, "%s", err.text);
        if (status == DPT_OK)
            dpt_fill_sample(set, set->files ? decoded : stored, sample, NULL);
        else
            demand_reason(status, &err);
    }
    free(decoded);
}

static void use(const struct dpt_dataset *set, const struct dpt_dataset *in_memory, bool usual)
{
    const size_t size = (size_t)set->bytes;
    float *sample = calloc((size_t)dpt_shape_size(&set->shape), sizeof *sample);
    uint8_t *bytes = malloc(size);

    DEMAND(sample != NULL && bytes != NULL, "no memory");
    if (read_all(set, bytes)) {
        fill_all(set, bytes, sample, usual);
        DEMAND(in_memory == NULL || memcmp(bytes, in_memory->memory, size) == 0,
               "read when needed, the samples are others");
    } else {
        DEMAND(in_memory == NULL, "only memory can be read");
    }
    free(bytes);
    free(sample);
}

/* Opens the set in memory and on disk; usual: it must be possible. */
static void try_open(char *const *paths, size_t n, unsigned how, bool usual)
{
    double zero = 0, one = 1;
    struct dpt_data_conf conf = {.train = {(const char **)paths, n},
                                 .normalize = {{&zero, 1}, {&one, 1}},
                                 .verify = !(how & UNVERIFIED)};
    const struct dpt_dataset_spec spec = {
        .conf = &conf, .paths = &conf.train, .classes = !(how & VECTORS)};
    struct dpt_dataset memory, disk;
    struct dpt_error err = {0};
    enum dpt_status status, other;

    conf.cache = DPT_CACHE_MEMORY;
    status = dpt_dataset_open(&memory, &spec, &lone, &err);
    if (status == DPT_OK)
        demand_sound(&memory);
    else
        demand_reason(status, &err);
    DEMAND(!usual || status == DPT_OK, "%s", err.text);
    conf.cache = DPT_CACHE_NONE;
    other = dpt_dataset_open(&disk, &spec, &lone, &err);
    DEMAND(status != DPT_OK || other == DPT_OK, "%s", err.text);
    if (other == DPT_OK) {
        enum dpt_status fits = dpt_dataset_check_targets(&disk, CLASSES, &err);

        if (fits != DPT_OK)
            demand_reason(fits, &err);
        demand_sound(&disk);
        if ((double)disk.samples * (double)disk.stride <= MOST && disk.bytes <= MOST)
            use(&disk, status == DPT_OK ? &memory : NULL, usual);
    } else {
        demand_reason(other, &err);
    }
    dpt_dataset_close(&disk);
    dpt_dataset_close(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const unsigned how = size > 0 ? data[0] : 0;
    struct forge *f = forge_new(data + (size > 0), size - (size > 0));
    struct forge *plain = forge_new(data, 0);
    char path[2][128];
    char *const paths[2] = {path[0], path[1]};
    const int fd[2] = {forge_open(path[0]), forge_open(path[1])};
    const size_t n = how & TWICE ? 2 : 1;
    long long before;
    bool usual;

    dpt_h5_enter();
    usual = forge_shard(f, how, paths[n - 1]);
    if (n == 2)
        forge_shard(plain, how, paths[0]);
    before = forge_identifiers();
    try_open(paths, n, how, usual);
    DEMAND(forge_identifiers() == before, "HDF5 objects were left open");
    dpt_h5_leave();
    forge_close(fd[0], path[0]);
    forge_close(fd[1], path[1]);
    free(plain);
    free(f);
    return 0;
}
