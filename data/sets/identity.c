#include "data/sets/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/sets/parts.h"

/* What is sampled: so many runs of neighbours, evenly spread, of so many bytes each, or else of one
 * sample. */
enum { RUNS = 64, RUN_BYTES = 64 << 10 };

/* Samples of a run, at most. */
static int64_t run_length(const struct dpt_dataset *set)
{
    return (int64_t)set->stride < RUN_BYTES ? RUN_BYTES / (int64_t)set->stride : 1;
}

/* The samples [*first, *end) of a run; a small set is in the runs as a whole. */
static void place_run(const struct dpt_dataset *set, int64_t run, int64_t *first, int64_t *end)
{
    const int64_t n = set->samples, length = run_length(set);

    *first =
        n <= RUNS * length ? n * run / RUNS : (int64_t)((__int128)(n - length) * run / (RUNS - 1));
    *end = n <= RUNS * length ? n * (run + 1) / RUNS : *first + length;
}

/* Continues the checksum over samples that lie one after the other; of files also over their
 * sizes. */
static uint32_t add_samples(const struct dpt_dataset *set, int64_t first, int64_t end,
                            const uint8_t *bytes, uint32_t crc)
{
    for (int64_t i = first; i < end; i++) {
        size_t n;

        dpt_dataset_place(set, i, &n);
        if (set->files)
            crc = dpt_crc32(crc, &(uint64_t){n}, sizeof(uint64_t));
        crc = dpt_crc32(crc, bytes, n);
        bytes += n;
    }
    return crc;
}

/* Reads a run from the shards, to *bytes, which grows. */
static enum dpt_status read_run(const struct dpt_dataset *set, struct dpt_reader *reader,
                                int64_t first, int64_t end, uint8_t **bytes, size_t *room,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t *sample = NULL;
    size_t *at = NULL, need;

    DPT_TRY(DPT_ALLOCATE(sample, (size_t)(end - first), "some samples", err));
    DPT_TRY(DPT_ALLOCATE(at, (size_t)(end - first), "some samples", err));
    for (int64_t i = first; i < end; i++)
        sample[i - first] = i;
    need = dpt_reader_places(set, sample, (int32_t)(end - first), at);
    DPT_GROW(*bytes, room, need, "some samples", err);
    DPT_TRY(dpt_reader_read(reader, sample, (int32_t)(end - first), *bytes, err));
out:
    dpt_free(sample);
    dpt_free(at);
    return status;
}

/* The checksum of what is sampled of the inputs. */
static enum dpt_status sum_some(const struct dpt_dataset *set, uint32_t *crc, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_reader *reader = NULL;
    uint8_t *bytes = NULL;
    size_t room = 0;

    *crc = 0;
    if (set->memory == NULL) /* sequential: what is said of the files holds for the training, too */
        DPT_TRY(dpt_reader_open(&reader, set, (size_t)run_length(set), true, err));
    for (int64_t run = 0; run < RUNS; run++) {
        const uint8_t *from = set->memory;
        int64_t first, end;
        size_t ignored;

        place_run(set, run, &first, &end);
        if (first == end)
            continue;
        if (from != NULL)
            from += dpt_dataset_place(set, first, &ignored);
        else
            DPT_TRY(read_run(set, reader, first, end, &bytes, &room, err));
        *crc = add_samples(set, first, end, from != NULL ? from : bytes, *crc);
    }
out:
    dpt_reader_close(reader);
    free(bytes);
    return status;
}

/* The checksum of all inputs, one after the other, where all shards know theirs. */
static bool join_sums(const struct dpt_dataset_parts *parts, uint32_t *crc)
{
    *crc = 0;
    for (size_t i = 0; i < parts->n_shards; i++) {
        const struct dpt_h5_info *info = &parts->shards[i].images.info;

        if (!info->has_crc)
            return false;
        if (info->bytes > 0)
            *crc = dpt_crc32_join(*crc, info->crc, (uint64_t)info->bytes);
    }
    return true;
}

/* Weights of 1 change nothing, so they are the same as none. */
static bool weighted(const struct dpt_dataset *set)
{
    for (int64_t i = 0; set->weights != NULL && i < set->samples; i++)
        if (set->weights[i] != 1)
            return true;
    return false;
}

enum dpt_status dpt_dataset_identity(const struct dpt_dataset *set, char text[DPT_IDENTITY_TEXT],
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset_parts *parts = set->parts;
    const bool open = set->labels != NULL || set->targets != NULL;
    const void *labels = set->labels != NULL ? (const void *)set->labels : set->targets;
    const size_t width = set->labels != NULL ? 1 : (size_t)set->target_width;
    const size_t n = (size_t)set->samples * sizeof(float);
    uint32_t crc = 0;
    char shape[40];
    int at = snprintf(text, DPT_IDENTITY_TEXT, "samples %lld; form %s%s %s%s",
                      (long long)set->samples, parts->synthetic ? "synthetic " : "",
                      set->files ? "files"
                      : set->u8  ? "uint8"
                                 : "float32",
                      dpt_shape_text(&set->stored, shape), set->nhwc ? " NHWC" : "");

    if (parts->synthetic)
        return DPT_OK;
    if (join_sums(parts, &crc))
        at += snprintf(text + at, (size_t)(DPT_IDENTITY_TEXT - at), "; inputs %s %08x",
                       parts->shards[0].images.info.type_text, crc);
    crc = 0;
    if (open)
        DPT_TRY(sum_some(set, &crc, err));
    at += snprintf(text + at, (size_t)(DPT_IDENTITY_TEXT - at), "; sampled %08x; labels %08x", crc,
                   open ? dpt_crc32(0, labels, n * width) : 0);
    /* Where classes have weights, those of the samples are no longer the file's; they follow from
     * the labels there. */
    if (parts->shards[0].weights.name == NULL ||
        (open && parts->class_weights == NULL && !weighted(set)))
        snprintf(text + at, (size_t)(DPT_IDENTITY_TEXT - at), "; weights none");
    else if (parts->class_weights == NULL)
        snprintf(text + at, (size_t)(DPT_IDENTITY_TEXT - at), "; weights %08x",
                 open ? dpt_crc32(0, set->weights, n) : 0);
out:
    return status;
}

/* --- comparing -------------------------------------------------------------------------------- */

struct value {
    const char *at;
    size_t n;
};

/* The value of a key ("samples"), up to its ';' or the end; at NULL: it is not said. */
static struct value value_of(const char *text, const char *key)
{
    const size_t length = strlen(key);

    for (const char *at = text; *at != '\0'; at += strspn(at, "; ")) {
        const size_t all = strcspn(at, ";");

        if (all > length && strncmp(at, key, length) == 0 && at[length] == ' ')
            return (struct value){at + length + 1, all - length - 1};
        at += all;
    }
    return (struct value){0};
}

/* Checksums can be compared where they are of values of one type: "float32 1a2b3c4d". */
static bool same_type(struct value a, struct value b)
{
    const size_t n = strcspn(a.at, " ;");

    return a.n > n && b.n > n && strncmp(a.at, b.at, n + 1) == 0;
}

/* What is compared, and the words around the old and the new value. */
static const struct fact {
    const char *key, *before, *unit, *behind;
    bool last; /* where it or one before it differs, so does all that follows */
} facts[] = {
    {"samples", "", " samples", "", false},
    {"form", "samples of ", "", "", true},
    {"inputs", "other samples, or another order (checksum ", "", ")", false},
    {"sampled", "other samples, or another order (checksum of some ", "", ")", false},
    {"labels", "other labels, or another order (checksum ", "", ")", false},
    {"weights", "other weights, or another order (checksum ", "", ")", true},
};

static void tell(struct dpt_str *told, const char *key, const struct fact *fact, struct value then,
                 struct value now)
{
    dpt_str_printf(told, "%s%s changed: %s", told->length > 0 ? "\n" : "", key, fact->before);
    dpt_str_printable(told, then.at, then.n, false);
    dpt_str_printf(told, "%s then, ", fact->unit);
    dpt_str_printable(told, now.at, now.n, false);
    dpt_str_printf(told, " now%s", fact->behind);
}

enum dpt_identity_result dpt_identity_compare(const char *then, const char *now, const char *key,
                                              struct dpt_str *told)
{
    enum dpt_identity_result result = DPT_IDENTITY_SAME;
    bool summed = false; /* all inputs are compared, so some need not be */

    if (*then == '\0' || *now == '\0')
        return DPT_IDENTITY_UNKNOWN;
    for (const struct fact *fact = facts; fact < facts + sizeof facts / sizeof *facts; fact++) {
        const struct value old = value_of(then, fact->key), new = value_of(now, fact->key);
        const bool inputs = strcmp(fact->key, "inputs") == 0;

        if (old.at == NULL || new.at == NULL || (inputs && !same_type(old, new)) ||
            (summed && strcmp(fact->key, "sampled") == 0))
            continue;
        summed = summed || inputs;
        if (old.n != new.n || memcmp(old.at, new.at, new.n) != 0) {
            tell(told, key, fact, old, new);
            result = DPT_IDENTITY_OTHER;
        }
        if (fact->last && result == DPT_IDENTITY_OTHER)
            break;
    }
    return result;
}

/* --- names of classes ------------------------------------------------------------------------- */

void dpt_dataset_write_classes(const struct dpt_dataset *set, struct dpt_str *out)
{
    size_t n;
    const char *const *names = dpt_dataset_class_names(set, &n);

    dpt_class_names_write(names, n, out);
}

enum dpt_status dpt_dataset_compare_classes(const struct dpt_dataset *set, const char *text,
                                            const char *from, struct dpt_error *err)
{
    const struct dpt_shard *mine = set->parts->named;
    struct dpt_class_names others;
    enum dpt_status status;

    if (mine == NULL || text == NULL)
        return DPT_OK;
    status = dpt_class_names_parse(&others, text, from, err);
    if (status == DPT_OK)
        status = dpt_class_names_check(&mine->names, mine->path, &others, from, err);
    dpt_class_names_release(&others);
    return status;
}
