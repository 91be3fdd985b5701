/* Files of other programs into shards. */
#include <stdlib.h>
#include <string.h>

#include "data/shards/labels.h"
#include "data/sources/source_type.h"

enum { BATCH_BYTES = 1 << 20 };

/* A conversion in progress. */
struct converter {
    struct dpt_source *source;
    int64_t batch;   /* samples that are read at once */
    int32_t *class;  /* [samples], where each class is divided by itself */
    int64_t *counts; /* [counted] samples of each class, where nobody counted them before */
    int64_t counted;
    size_t counts_room;
    uint8_t *part;   /* [samples] which part each goes into; NULL: there is one */
    size_t parts;    /* 1 to DPT_SOURCE_PARTS */
    size_t id_bytes; /* of the longest name of a sample; 0: they have none */
    int64_t samples[DPT_SOURCE_PARTS];
    int64_t *sizes[DPT_SOURCE_PARTS]; /* of each one's files; NULL: of all, or none are kept */
    struct dpt_str prefix[DPT_SOURCE_PARTS];
    struct dpt_shard_writer *writer[DPT_SOURCE_PARTS]; /* NULL: a dry run */
    /* The samples of a batch that go into one part: [batch] each. */
    struct dpt_source_rows some;
    char *ids;
};

/* --- what the samples are --------------------------------------------------------------------- */

/* Counts a class; of numbers that are none as a rule it may be any. */
static enum dpt_status count_class(struct converter *c, int32_t class, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source_info *info = &c->source->info;

    if (class < DPT_MOST_CLASSES) {
        DPT_GROW(c->counts, &c->counts_room, (size_t) class + 1, "the classes", err);
        for (; c->counted <= class; c->counted++)
            c->counts[c->counted] = 0;
        c->counts[class]++;
    }
    if (class >= info->classes)
        info->classes = (int64_t) class + 1;
out:
    return status;
}

/* Numbers of classes that nobody named, and that look as if they were none. */
static void warn_classes(const struct converter *c)
{
    const struct dpt_source *s = c->source;
    char text[512];

    if (s->spec->log != NULL && s->info.class_names == NULL && c->counted == s->info.classes &&
        dpt_labels_doubt(c->counts, c->counted, text, sizeof text))
        dpt_log_warn(s->spec->log, "%s: %s", s->paths[s->n_paths > s->n_parts ? 1 : 0], text);
}

/* All labels, into c->class where that is wanted: they are there, and they are good. Counts the
 * classes where nobody did: one more than the largest label. */
static enum dpt_status read_labels(struct converter *c, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source *s = c->source;
    const bool count = s->info.classes == 0;
    struct dpt_source_rows rows;

    for (size_t k = 0; k < s->n_parts; k++)
        for (int64_t at = 0, n; at < s->parts[k].samples; at += n) {
            n = s->parts[k].samples - at < c->batch ? s->parts[k].samples - at : c->batch;
            rows = (struct dpt_source_rows){.part = k, .row = at, .n = n, .classes = s->classes};
            DPT_TRY(s->format->read(s, &rows, err));
            for (int64_t i = 0; count && i < n; i++)
                DPT_TRY(count_class(c, s->classes[i], err));
            if (c->class != NULL)
                memcpy(c->class + s->parts[k].first + at, s->classes, (size_t)n * sizeof *c->class);
        }
    warn_classes(c);
out:
    return status;
}

static enum dpt_status divide(struct converter *c, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source *s = c->source;
    const struct dpt_source_split *split = &s->spec->split;
    const size_t all = (size_t)s->info.samples;

    c->parts = split->n > 0 ? split->n : 1;
    if (split->stratify && s->info.truth != DPT_TRUTH_CLASS)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--stratify: divides classes, and the labels of %s are targets",
                         s->paths[0]));
    if (split->stratify)
        DPT_TRY(DPT_ALLOCATE(c->class, all, "the classes", err));
    if (c->class != NULL || (s->info.truth == DPT_TRUTH_CLASS && s->info.classes == 0))
        DPT_TRY(read_labels(c, err));
    c->samples[0] = s->info.samples;
    if (split->n == 0)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(c->part, all, "the parts", err));
    for (size_t i = 0; c->class != NULL && i < all; i++) /* what nobody looked at until now */
        if (c->class[i] < 0 || c->class[i] >= s->info.classes)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: label %d of sample %zu is not below %lld",
                             s->paths[0], c->class[i], i, (long long)s -> info.classes));
    DPT_TRY(dpt_source_split_assign(split, &s->info, c->class, c->part, err));
    c->samples[0] = 0;
    for (size_t i = 0; i < all; i++)
        c->samples[c->part[i]]++;
out:
    return status;
}

/* The sizes of each part's files, in its order. */
static enum dpt_status divide_sizes(struct converter *c, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_source *s = c->source;
    size_t at[DPT_SOURCE_PARTS] = {0};

    if (s->info.sizes == NULL || c->part == NULL)
        return DPT_OK;
    for (size_t p = 0; p < c->parts; p++)
        DPT_TRY(DPT_ALLOCATE(c->sizes[p], c->samples[p], "the files' sizes", err));
    for (int64_t i = 0; i < s->info.samples; i++)
        c->sizes[c->part[i]][at[c->part[i]]++] = s->info.sizes[i];
out:
    return status;
}

/* Bytes of the longest name of a sample, a row's id or an image's file; 0: they have none. */
static size_t longest_id(const struct dpt_source *s)
{
    size_t longest = 1;

    for (int64_t i = 0; s->info.named && i < s->info.samples; i++) {
        const size_t n = strlen(dpt_source_name(s, i));

        longest = n > longest ? n : longest;
    }
    return s->info.named ? longest : 0;
}

static struct dpt_shard_format form_of(const struct converter *c, size_t part)
{
    const struct dpt_source *s = c->source;
    const struct dpt_shape *shape = &s->layout.shape;
    const int last = s->layout.nhwc ? 0 : 1;
    struct dpt_shard_format format = {
        .samples = c->samples[part],
        .n_dims = shape->flat ? 1 : 3,
        .sizes = c->sizes[part] != NULL ? c->sizes[part] : s->info.sizes,
        .files = s->info.sizes != NULL,
        .u8 = s->layout.u8,
        .nhwc = s->layout.nhwc,
        .targets = s->info.truth == DPT_TRUTH_VECTOR ? s->info.width : 0,
        .classes = s->info.classes,
        .class_names = s->info.class_names,
        .columns = s->info.columns,
        .id_bytes = c->id_bytes,
        .weighted = s->info.weighted,
    };

    format.dims[last] = shape->h;
    format.dims[last + 1] = shape->w;
    format.dims[s->layout.nhwc ? 2 : 0] = shape->c;
    return format;
}

/* --- writing ---------------------------------------------------------------------------------- */

static enum dpt_status open_writers(struct converter *c, const struct dpt_shard_output *output,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_source_split *split = &c->source->spec->split;
    const size_t length = output->prefix != NULL ? strlen(output->prefix) : 0;

    for (size_t p = 0; p < c->parts && !c->source->spec->dry_run; p++) {
        const struct dpt_shard_format format = form_of(c, p);
        struct dpt_shard_output out = *output;

        if (split->n > 0) {
            dpt_str_printf(&c->prefix[p], "%s%s%s", output->prefix,
                           length > 0 && output->prefix[length - 1] != '/' ? "-" : "",
                           dpt_source_split_name(split, p));
            if (c->prefix[p].failed)
                DPT_TRY(dpt_fail_memory(err, "a path", (double)length));
            out.prefix = c->prefix[p].text;
        }
        DPT_TRY(dpt_shard_writer_open(&c->writer[p], &out, &format, err));
    }
out:
    return status;
}

static enum dpt_status make_room(struct converter *c, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_source *s = c->source;
    const size_t n = (size_t)c->batch;

    if (c->id_bytes > 0)
        DPT_TRY(DPT_ALLOCATE(c->ids, n * c->id_bytes, "names", err));
    if (c->part == NULL)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(c->some.stored, n * s->layout.stride, "some samples", err));
    DPT_TRY(DPT_ALLOCATE(c->some.classes, n, "some samples", err));
    DPT_TRY(DPT_ALLOCATE(c->some.targets, n * (size_t)s->info.width, "some samples", err));
    DPT_TRY(DPT_ALLOCATE(c->some.weights, n, "some samples", err));
out:
    return status;
}

/* Takes those of the n samples fetched from `first` on that go into a part. */
static void gather(struct converter *c, int64_t first, int64_t n, size_t part)
{
    const struct dpt_source *s = c->source;
    const size_t stride = s->layout.stride, width = (size_t)s->info.width;
    struct dpt_source_rows *to = &c->some;
    size_t at = 0;

    for (size_t i = 0; i < (size_t)n; i++) {
        if (c->part != NULL && c->part[(size_t)first + i] != part)
            continue;
        if (c->id_bytes > 0) /* which fills up with zeros */
            strncpy(c->ids + at * c->id_bytes, dpt_source_name(s, first + (int64_t)i), c->id_bytes);
        if (c->part != NULL) {
            if (s->info.sizes == NULL)
                memcpy(to->stored + at * stride, s->stored + i * stride, stride);
            if (s->classes != NULL)
                to->classes[at] = s->classes[i];
            if (s->targets != NULL)
                memcpy(to->targets + at * width, s->targets + i * width, width * sizeof(float));
            if (s->weights != NULL)
                to->weights[at] = s->weights[i];
        }
        at++;
    }
    to->n = (int64_t)at;
}

/* Makes of the n samples fetched from `at` on what is stored: *file, of one, which is the caller's
 * to free, or s->stored. */
static enum dpt_status render(struct converter *c, int64_t at, int64_t n, char **file,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source *s = c->source;
    size_t bytes;

    free(*file);
    *file = NULL;
    if (s->info.sizes != NULL)
        return s->format->file(s, at, file, &bytes, err);
    for (int64_t i = 0; s->format->render != NULL && i < n; i++)
        DPT_TRY(s->format->render(s, at + i, s->stored + (size_t)i * s->layout.stride, err));
out:
    return status;
}

static enum dpt_status copy(struct converter *c, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source *s = c->source;
    const int64_t samples = s->info.samples;
    const bool whole = c->part == NULL;
    char *file = NULL;

    DPT_TRY(make_room(c, err));
    for (int64_t at = 0, n; at < samples; at += n) {
        n = samples - at < c->batch ? samples - at : c->batch;
        DPT_TRY(dpt_source_fetch(s, at, n, err));
        DPT_TRY(render(c, at, n, &file, err));
        for (size_t p = 0; p < c->parts && c->writer[p] != NULL; p++) {
            const void *stored = whole ? s->stored : c->some.stored;

            gather(c, at, n, p);
            DPT_TRY(dpt_shard_writer_add(
                c->writer[p], file != NULL ? file : stored, whole ? s->classes : c->some.classes,
                whole ? s->targets : c->some.targets, whole ? s->weights : c->some.weights, c->ids,
                c->some.n, err));
        }
    }
out:
    free(file);
    return status;
}

/* --- all of it -------------------------------------------------------------------------------- */

static void close_converter(struct converter *c)
{
    for (size_t p = 0; p < DPT_SOURCE_PARTS; p++) {
        dpt_shard_writer_close(c->writer[p]);
        dpt_str_release(&c->prefix[p]);
    }
    dpt_source_close(c->source);
    dpt_free(c->class);
    free(c->counts);
    dpt_free(c->part);
    for (size_t p = 0; p < DPT_SOURCE_PARTS; p++)
        dpt_free(c->sizes[p]);
    dpt_free(c->some.stored);
    dpt_free(c->some.classes);
    dpt_free(c->some.targets);
    dpt_free(c->some.weights);
    dpt_free(c->ids);
}

enum dpt_status dpt_source_convert(const struct dpt_source_spec *spec,
                                   const struct dpt_shard_output *output,
                                   struct dpt_conversion *done, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct converter c = {0};
    struct dpt_source *s;

    DPT_TRY(dpt_source_open(&c.source, spec, 0, 1, err));
    s = c.source;
    c.batch = s->layout.stride < BATCH_BYTES && s->info.sizes == NULL
                  ? (int64_t)(BATCH_BYTES / s->layout.stride)
                  : 1; /* a file at a time */
    DPT_TRY(dpt_source_room(s, c.batch, err));
    DPT_TRY(divide(&c, err));
    DPT_TRY(divide_sizes(&c, err));
    if (s->format->fit != NULL)
        DPT_TRY(s->format->fit(s, c.part, err));
    c.id_bytes = longest_id(s);
    DPT_TRY(open_writers(&c, output, err));
    DPT_TRY(copy(&c, err));
    done->parts = c.parts;
    for (size_t p = 0; p < c.parts; p++) {
        done->part[p] = spec->split.n > 0 ? dpt_source_split_name(&spec->split, p) : NULL;
        done->samples[p] = c.samples[p];
        if (c.writer[p] != NULL)
            DPT_TRY(dpt_shard_writer_commit(c.writer[p], &done->result[p], err));
    }
    if (s->info.told != NULL)
        dpt_str_printf(&done->told, "%s", s->info.told);
out:
    close_converter(&c);
    return status;
}

void dpt_conversion_release(struct dpt_conversion *done)
{
    for (size_t p = 0; p < DPT_SOURCE_PARTS; p++)
        dpt_shard_result_release(&done->result[p]);
    dpt_str_release(&done->told);
}
