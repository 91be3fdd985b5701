/*
 * Fuzzer for the converters: any bytes become shards that a job can read, or are refused with a
 * reason.
 *
 * The input is a format (with the number of shards, the decimal mark and whether to divide), two
 * bytes of options and the files, with the text FUZZ between them.
 */
#include <stdint.h>

#include "data/sets/parts.h"
#include "data/sources/source.h"
#include "data/tests/forge.h"
#include "data/tests/make_shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 3, MOST_FILES = 3, PATH = 192 };

static const char *const labels[] = {NULL, "1", "-1", "2,1", "a", "a,b", "", "99"};
static const char *const headers[] = {NULL, "auto", "yes", "no"};
static const char *const shapes[] = {NULL, "1,1,2", "3,1,1", "2,2"};
static const char *const layouts[] = {NULL, "nhwc"};
static const char *const switches[] = {NULL, ""};
static const char *const delimiters[] = {NULL, ";"};
static const char *const missing[] = {NULL, "NA,?,-"};
static const char *const categories[] = {NULL, "2"};
static const char *const ids[] = {NULL, "1"};
static const char *const drops[] = {NULL, "-2"};
static const char *const decimals[] = {NULL, ","};

/* Options from bits, those that the format has. */
static void choose(const struct dpt_source_format *format, unsigned bits, const char **option)
{
    const struct {
        enum dpt_source_option which;
        const char *const *values;
        unsigned n;
    } rows[] = {
        {DPT_SOURCE_LABEL, labels, 8},     {DPT_SOURCE_HEADER, headers, 4},
        {DPT_SOURCE_SHAPE, shapes, 4},     {DPT_SOURCE_LAYOUT, layouts, 2},
        {DPT_SOURCE_CLASSES, switches, 2}, {DPT_SOURCE_REGRESSION, switches, 2},
        {DPT_SOURCE_U8, switches, 2},      {DPT_SOURCE_DELIMITER, delimiters, 2},
        {DPT_SOURCE_MISSING, missing, 2},  {DPT_SOURCE_CATEGORIES, categories, 2},
        {DPT_SOURCE_ID, ids, 2},           {DPT_SOURCE_DROP, drops, 2},
        {DPT_SOURCE_DECIMAL, decimals, 2},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (format->options & 1u << rows[i].which)
            option[rows[i].which] = rows[i].values[bits % rows[i].n];
        bits /= rows[i].n;
    }
}

/* Writes the parts of the input as files; returns how many. */
static size_t put_files(const uint8_t *data, size_t size, const char *folder,
                        char paths[MOST_FILES][PATH])
{
    size_t n = 0;

    for (bool more = true; more && n < MOST_FILES; n++) {
        const uint8_t *mark = n + 1 < MOST_FILES ? memmem(data, size, "FUZZ", 4) : NULL;
        const size_t length = mark != NULL ? (size_t)(mark - data) : size;
        FILE *file;

        snprintf(paths[n], PATH, "%s/in%zu", folder, n);
        file = fopen(paths[n], "wb");
        DEMAND(file != NULL && fwrite(data, 1, length, file) == length && fclose(file) == 0,
               "cannot write %s", paths[n]);
        more = mark != NULL;
        data += length + 4;
        size -= more ? length + 4 : length;
    }
    return n;
}

/* What was written is as it was said, and can be read. */
static void demand_readable(const struct dpt_shard_result *result, const char *prefix)
{
    static const struct dpt_comm lone = {.world = {.size = 1}, .node = {.size = 1}};
    char pattern[PATH + 16];
    const char *paths[] = {pattern};
    struct dpt_data_conf conf = make_conf(paths, 1);
    const struct dpt_dataset_spec spec = {
        .conf = &conf, .paths = &conf.train, .classes = result->format.targets == 0};
    struct dpt_dataset set;
    struct dpt_error err = {0};

    snprintf(pattern, sizeof pattern, "%s-*.h5", prefix);
    DEMAND(dpt_dataset_open(&set, &spec, &lone, &err) == DPT_OK, "%s", err.text);
    DEMAND(set.samples == result->format.samples && set.u8 == result->format.u8, "%lld samples",
           (long long)set.samples);
    dpt_dataset_close(&set);
}

static void demand_reason(enum dpt_status status, const struct dpt_error *err)
{
    DEMAND((status == DPT_BAD_DATA || status == DPT_USAGE) && err->status == status &&
               err->text[0] != '\0',
           "%d: %s", (int)status, err->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char folder[128], prefix[PATH], paths[MOST_FILES][PATH];
    const char *const inputs[MOST_FILES] = {paths[0], paths[1], paths[2]};
    struct dpt_log log = {.silent = true};
    struct dpt_conversion done = {0};
    const struct dpt_source_format *format;
    struct dpt_error err = {0};
    enum dpt_status status;

    if (size < HEAD)
        return -1;
    format = dpt_source_formats[1 + data[0] % 4]; /* idx, cifar10, csv, npy */
    make_folder(folder);
    snprintf(prefix, sizeof prefix, "%s/out", folder);
    struct dpt_source_spec spec = {
        .convert = true, .format = format, .inputs = inputs, .log = &log};
    const struct dpt_shard_output output = {
        .prefix = prefix, .from = paths[0], .shards = 1 + data[0] / 4 % 3, .log = &log};
    const unsigned more = data[0] / 12;

    choose(format, (unsigned)data[1] | (unsigned)data[2] << 8 | (more & 1) << 16, spec.option);
    if (more & 2)
        spec.split = (struct dpt_source_split){.n = 2, .share = {2, 1}, .stratify = more & 4};
    spec.n_inputs = put_files(data + HEAD, size - HEAD, folder, paths);
    status = dpt_source_convert(&spec, &output, &done, &err);
    for (size_t p = 0; status == DPT_OK && p < done.parts; p++) {
        char part[PATH];

        snprintf(part, sizeof part, "%.120s%s%s", prefix, done.part[p] != NULL ? "-" : "",
                 done.part[p] != NULL ? done.part[p] : "");
        demand_readable(&done.result[p], part);
    }
    if (status != DPT_OK)
        demand_reason(status, &err);
    dpt_conversion_release(&done);
    make_remove_folder(folder);
    return 0;
}
