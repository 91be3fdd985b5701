#include "data/sources/source.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/pictures/picture.h"
#include "data/pictures/picture_list.h"
#include "data/sets/parts.h"
#include "data/sources/source_type.h"

enum { HEAD = 1024 };

extern const struct dpt_source_format dpt_source_idx, dpt_source_cifar10, dpt_source_csv,
    dpt_source_npy, dpt_source_npz, dpt_source_pictures, dpt_source_h5;

const struct dpt_source_format *const dpt_source_formats[] = {
    &dpt_source_h5,  &dpt_source_idx, &dpt_source_cifar10,  &dpt_source_csv,
    &dpt_source_npy, &dpt_source_npz, &dpt_source_pictures, NULL,
};
enum { FORMATS = sizeof dpt_source_formats / sizeof dpt_source_formats[0] - 1 };

enum dpt_status dpt_source_format_find(const char *what, const char *name, bool convert,
                                       const struct dpt_source_format **format,
                                       struct dpt_error *err)
{
    const char *names[FORMATS], *near;
    struct dpt_str list = {0};
    size_t n = 0;

    for (size_t i = 0; i < FORMATS; i++) {
        const struct dpt_source_format *f = dpt_source_formats[i];

        if ((convert ? f->inputs : f->help) == NULL)
            continue;
        if (strcmp(f->name, name) == 0) {
            *format = f;
            dpt_str_release(&list);
            return DPT_OK;
        }
        dpt_str_printf(&list, "%s%s", n > 0 ? ", " : "", f->name);
        names[n++] = f->name;
    }
    near = dpt_nearest(name, names, n);
    dpt_fail(err, DPT_USAGE, "%s%s: is none of %s%s%s%s", what, name,
             list.text != NULL ? list.text : "", near != NULL ? "; did you mean '" : "",
             near != NULL ? near : "", near != NULL ? "'?" : "");
    dpt_str_release(&list);
    return err->status;
}

/* Adds what an input names: itself, or what matches it. */
static enum dpt_status add_input(struct dpt_source *s, const char *input, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t before = s->n_paths;
    char *const itself = (char *)input;
    char from[PATH_MAX + 32];

    /* A file may be called [1].png: then it is meant, not a pattern. */
    if (s->spec->convert || dpt_file_exists(input))
        return dpt_paths_add(&s->paths, &s->n_paths, &itself, 1, err);
    DPT_TRY(dpt_paths_match("--input", input, &s->paths, &s->n_paths, err));
    if (s->n_paths == before)
        DPT_TRY(dpt_paths_check_folder("--input", input, DPT_BAD_DATA, err));
    if (s->n_paths == before)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "--input: there is no '%s'%s", input,
                         dpt_file_relative_to(input, from, sizeof from)));
out:
    return status;
}

/* How a file begins once it is unpacked, where it is gzipped. */
static size_t read_head(const char *path, uint8_t head[HEAD])
{
    gzFile gz = gzopen(path, "rbe");
    int n;

    if (gz == NULL)
        return 0;
    n = gzread(gz, head, HEAD);
    gzclose_r(gz);
    return n > 0 ? (size_t)n : 0;
}

static enum dpt_status format_of(const char *path, const struct dpt_source_format **format,
                                 struct dpt_error *err)
{
    uint8_t head[HEAD];
    struct stat info;
    size_t n;

    *format = &dpt_source_pictures;
    if (stat(path, &info) != 0) {
        const int code = errno;

        if (dpt_picture_is_name(path) && lstat(path, &info) == 0)
            return DPT_OK; /* a link that leads nowhere, which is told with others */
        errno = code;
        return dpt_fail_errno(err, DPT_IO, "%s: cannot be looked at", path);
    }
    if (S_ISDIR(info.st_mode))
        return DPT_OK;
    if (!S_ISREG(info.st_mode))
        return dpt_fail(err, DPT_BAD_DATA, "%s: is no regular file and no folder", path);
    n = read_head(path, head);
    if (dpt_picture_is_name(path) && (n == 0 || dpt_source_csv.is(head, n)))
        return DPT_OK; /* also one that cannot be read, which is told with others */
    if (n == 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: is empty, or cannot be read", path);
    for (size_t i = FORMATS; i-- > 0;) { /* text, which may be anything, after npy */
        *format = dpt_source_formats[i];
        if ((*format)->is != NULL && (*format)->is(head, n))
            return DPT_OK;
    }
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: is no HDF5, IDX, npy, npz, " DPT_PICTURE_FORMATS
                    " file and no text: nothing that can be "
                    "predicted",
                    path);
}

const char *dpt_source_format_name(const char *path)
{
    const struct dpt_source_format *format = NULL;
    struct dpt_error why;

    return format_of(path, &format, &why) == DPT_OK ? format->name : NULL;
}

/* All inputs of one format: the one that was asked for, or what they are. */
static enum dpt_status choose_format(struct dpt_source *s, struct dpt_error *err)
{
    const struct dpt_source_format *format = NULL;
    enum dpt_status status = DPT_OK;

    s->format = s->spec->format;
    for (size_t i = 0; s->spec->format == NULL && i < s->n_paths; i++) {
        DPT_TRY(format_of(s->paths[i], &format, err));
        if (s->format == NULL)
            s->format = format;
        if (format != s->format)
            DPT_TRY(dpt_fail(err, DPT_USAGE,
                             "--input: '%s' is of the format %s, '%s' of the format %s; one kind "
                             "at a time",
                             s->paths[0], s->format->name, s->paths[i], format->name));
    }
out:
    return status;
}

/* Options that mean something to some formats only. */
static enum dpt_status check_options(const struct dpt_source *s, struct dpt_error *err)
{
    const struct dpt_source_spec *spec = s->spec;

    for (int i = 0; i < DPT_SOURCE_OPTION_COUNT; i++)
        if (spec->option[i] != NULL && (s->format->options & 1ull << i) == 0)
            return dpt_fail(err, DPT_USAGE,
                            spec->convert ? "%s is no option of the format %s"
                                          : "%s is no option for inputs of the format %s",
                            dpt_source_option_names[i], s->format->name);
    if (spec->n_labels > 0 && spec->n_labels != s->n_paths)
        return dpt_fail(err, DPT_USAGE, "--labels: %zu files for %zu inputs; one each is needed",
                        spec->n_labels, s->n_paths);
    return DPT_OK;
}

/* Makes the samples those of the model: the same numbers may be an image or a row. */
static enum dpt_status fit_shape(struct dpt_source *s, struct dpt_error *err)
{
    const struct dpt_source_model *model = &s->spec->model;
    struct dpt_dataset *layout = &s->layout;
    char have[40], want[40];

    s->info.shape = layout->shape;
    if (!model->known)
        return DPT_OK;
    if (dpt_shape_size(&layout->shape) != dpt_shape_size(&model->shape) ||
        (!layout->shape.flat && !model->shape.flat &&
         !dpt_same_shape(&layout->shape, &model->shape)))
        return dpt_fail(err, DPT_BAD_DATA, "%s: samples are %s, the model takes %s", s->paths[0],
                        dpt_shape_text(&layout->shape, have), dpt_shape_text(&model->shape, want));
    s->info.shape = model->shape;
    if (!layout->nhwc) /* numbers per channel, or a column, mean what they meant in training */
        layout->shape = model->shape;
    return DPT_OK;
}

/* Fits the shape if images of any size become those of the model (data.resize, data.crop). */
static enum dpt_status fit_view(struct dpt_source *s, struct dpt_error *err)
{
    const struct dpt_source_model *model = &s->spec->model;
    char stored[40], have[40], want[40];

    s->info.shape = s->layout.shape;
    if (!model->known || dpt_same_shape(&s->layout.shape, &model->shape))
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: samples are %s, after data.resize and data.crop %s; the model takes %s",
                    s->paths[0], dpt_shape_text(&s->layout.stored, stored),
                    dpt_shape_text(&s->layout.shape, have), dpt_shape_text(&model->shape, want));
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < s->spec->n_inputs; i++)
        DPT_TRY(add_input(s, s->spec->inputs[i], err));
    if (s->n_paths == 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "no input"));
    DPT_TRY(choose_format(s, err));
    DPT_TRY(check_options(s, err));
    DPT_TRY(DPT_ALLOCATE(s->layout.parts, 1, "the inputs", err));
    s->layout.parts->key = "--input";
    DPT_TRY(DPT_ALLOCATE(s->parts, s->n_paths, "the inputs", err));
    s->n_parts = s->n_paths;
    s->state = dpt_alloc(s->format->state);
    if (s->state == NULL)
        DPT_TRY(dpt_fail_memory(err, "the inputs", (double)s->format->state));
    DPT_TRY(s->format->open(s, err));
    for (size_t i = 0; i < s->n_parts; i++) {
        s->parts[i].first = s->info.samples;
        s->info.samples += s->parts[i].samples;
    }
    if (s->info.samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: holds no sample", s->paths[0]));
    s->info.named = s->format->sample_name != NULL && s->format->sample_name(s, 0) != NULL;
    s->layout.stride =
        (size_t)dpt_shape_size(&s->layout.shape) * (s->layout.u8 ? 1 : sizeof(float));
    if (s->spec->convert)
        goto out;
    s->layout.nhwc = s->layout.nhwc && s->layout.shape.c > 1;
    if (!dpt_data_views(s->spec->conf))
        DPT_TRY(fit_shape(s, err));
    DPT_TRY(dpt_fill_prepare(&s->layout, s->spec->conf, err));
    if (dpt_data_views(s->spec->conf))
        DPT_TRY(fit_view(s, err));
out:
    return status;
}

enum dpt_status dpt_source_open(struct dpt_source **source, const struct dpt_source_spec *spec,
                                int rank, int ranks, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source *s;

    *source = NULL;
    DPT_TRY(DPT_ALLOCATE(s, 1, "the inputs", err));
    s->spec = spec;
    s->rank = rank;
    s->ranks = ranks;
    DPT_TRY(open_source(s, err));
    *source = s;
    s = NULL;
out:
    dpt_source_close(s);
    return status;
}

void dpt_source_close(struct dpt_source *s)
{
    if (s == NULL)
        return;
    if (s->state != NULL)
        s->format->close(s->state);
    dpt_free(s->state);
    dpt_dataset_close(&s->layout);
    dpt_paths_release(s->paths);
    dpt_region_release(&s->region);
    dpt_free(s->parts);
    dpt_free(s->stored);
    dpt_free(s->classes);
    dpt_free(s->targets);
    dpt_free(s->weights);
    dpt_free(s);
}

enum dpt_status dpt_source_room(struct dpt_source *s, int64_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    static const char what[] = "a window of samples";

    if (n <= s->capacity)
        return DPT_OK;
    s->capacity = 0;
    dpt_free(s->stored);
    dpt_free(s->classes);
    dpt_free(s->targets);
    dpt_free(s->weights);
    s->classes = NULL;
    s->targets = s->weights = NULL;
    DPT_TRY(DPT_ALLOCATE(s->stored, (size_t)n * s->layout.stride, what, err));
    if (s->info.truth == DPT_TRUTH_CLASS)
        DPT_TRY(DPT_ALLOCATE(s->classes, n, what, err));
    if (s->info.truth == DPT_TRUTH_VECTOR)
        DPT_TRY(DPT_ALLOCATE(s->targets, n * s->info.width, what, err));
    if (s->info.weighted)
        DPT_TRY(DPT_ALLOCATE(s->weights, n, what, err));
    s->capacity = n;
out:
    return status;
}

enum dpt_status dpt_source_fetch(struct dpt_source *s, int64_t first, int64_t n,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source_rows rows;

    DPT_TRY(dpt_source_room(s, n, err));
    s->first = first;
    for (int64_t at = first, some; at < first + n; at += some) {
        const size_t part = dpt_source_part_of(s, at), place = (size_t)(at - first);
        const int64_t row = at - s->parts[part].first;

        some = s->parts[part].samples - row;
        some = some < first + n - at ? some : first + n - at;
        rows = (struct dpt_source_rows){
            .part = part,
            .row = row,
            .n = some,
            .stored = s->stored + place * s->layout.stride,
            .classes = s->classes != NULL ? s->classes + place : NULL,
            .targets = s->targets != NULL ? s->targets + place * (size_t)s->info.width : NULL,
            .weights = s->weights != NULL ? s->weights + place : NULL,
        };
        DPT_TRY(s->format->read(s, &rows, err));
    }
out:
    return status;
}

size_t dpt_source_scratch(const struct dpt_source *s)
{
    return dpt_fill_scratch(&s->layout);
}

enum dpt_status dpt_source_fill(const struct dpt_source *s, int64_t sample, float *input,
                                float *scratch, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint8_t *stored = s->stored + (size_t)(sample - s->first) * s->layout.stride;
    char where[512];

    if (s->format->render != NULL)
        DPT_TRY(s->format->render(s, sample, stored, err));
    if (!s->layout.u8 && dpt_find_nonfinite(stored, s->layout.stride / sizeof(float)) >= 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s holds NaN or an infinite value",
                         dpt_source_where(s, sample, where)));
    dpt_fill_sample(&s->layout, stored, input, scratch);
out:
    return status;
}

enum dpt_status dpt_source_tell_bad(const struct dpt_source *s, struct dpt_error *err)
{
    return s->format->tell_bad != NULL ? s->format->tell_bad(s, err) : err->status;
}

int32_t dpt_source_class(const struct dpt_source *s, int64_t sample)
{
    return s->classes[sample - s->first];
}

const float *dpt_source_target(const struct dpt_source *s, int64_t sample)
{
    return s->targets + (sample - s->first) * s->info.width;
}

const struct dpt_source_info *dpt_source_info(const struct dpt_source *s)
{
    return &s->info;
}

const char *dpt_source_name(const struct dpt_source *s, int64_t sample)
{
    return s->format->sample_name(s, sample);
}

const char *dpt_source_where(const struct dpt_source *s, int64_t sample, char *buf)
{
    const size_t part = dpt_source_part_of(s, sample);

    if (s->info.named && s->info.id == NULL)
        snprintf(buf, 512, "%.500s", s->format->sample_name(s, sample));
    else
        snprintf(buf, 512, "%.400s, sample %lld", s->paths[part],
                 (long long)(sample - s->parts[part].first));
    return buf;
}
