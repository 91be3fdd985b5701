#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/pictures/transform.h"
#include "data/sets/parts.h"

bool dpt_dataset_suspect_layout(const struct dpt_dataset *set, char *buf, size_t size)
{
    const struct dpt_shard *first = set->parts->shards;
    const struct dpt_shape *s = &set->stored;

    if (first == NULL || !dpt_shard_suspect_layout(first))
        return false;
    snprintf(buf, size,
             "%s: /%s is [N, %d, %d, %d] without the attribute `layout`, so a sample has %d "
             "channels of %dx%d: if it is NHWC, set `data: {layout: nhwc}`, or in the file "
             "(h5py: file[\"%s\"].attrs[\"layout\"] = \"NHWC\")",
             first->file, first->images.name, s->c, s->h, s->w, s->c, s->h, s->w,
             first->images.name);
    return true;
}

bool dpt_dataset_suspect_classes(const struct dpt_dataset *set, char *buf, size_t size)
{
    const struct dpt_shard *first = set->parts->shards;

    if (first == NULL || set->target != DPT_TARGET_VECTOR || first->labels.name == NULL ||
        first->labels.info.n_dims != 1 || !dpt_shard_whole(first))
        return false;
    snprintf(buf, size,
             "%s: /%s holds whole numbers, as of classes, and `loss: mse` learns them as amounts: "
             "`loss: cross_entropy` tells classes apart (amounts are stored as float32)",
             first->file, first->labels.name);
    return true;
}

bool dpt_dataset_suspect_numbers(const struct dpt_dataset *set, char *buf, size_t size)
{
    enum { FEW = 20 };
    const struct dpt_shard *first = set->parts->shards;

    if (first == NULL || set->labels == NULL || set->parts->named != NULL || set->samples < FEW)
        return false;
    for (int64_t i = 0; i < set->samples; i++)
        if (set->labels[i] == 0)
            return false;
    snprintf(buf, size,
             "%s: no sample has the class 0: the model still has an output for it; if /%s "
             "begins at 1, subtract 1 from it (h5py: file[\"%s\"][...] -= 1)",
             first->file, first->labels.name, first->labels.name);
    return true;
}

static enum dpt_status check_list(const struct dpt_dataset *set, const struct dpt_reals *list,
                                  const char *name, struct dpt_error *err)
{
    char shape[40], doubt[1024] = "";

    if (list->n <= 1 || list->n == (size_t)set->shape.c)
        return DPT_OK;
    dpt_dataset_suspect_layout(set, doubt, sizeof doubt);
    return dpt_fail(err, DPT_BAD_JOB,
                    "data.normalize.%s has %zu numbers, the samples of %s (%s) have %d %s%s: give "
                    "one number, or one per %s%s%s",
                    name, list->n, set->parts->key, dpt_shape_text(&set->shape, shape),
                    set->shape.c, set->shape.flat ? "column" : "channel",
                    set->shape.c == 1 ? "" : "s", set->shape.flat ? "column" : "channel",
                    doubt[0] != '\0' ? "; " : "", doubt);
}

bool dpt_data_views(const struct dpt_data_conf *conf)
{
    return conf->resize.n > 0 || conf->crop.n > 0;
}

/* Height and width, of one number or two. */
static void take_sides(const struct dpt_ints *sides, struct dpt_shape *shape)
{
    shape->h = (int32_t)sides->at[0];
    shape->w = (int32_t)sides->at[sides->n - 1];
}

enum dpt_status dpt_data_view(const struct dpt_data_conf *conf, const char *key,
                              const struct dpt_shape *stored, struct dpt_shape *resized,
                              struct dpt_shape *cut, struct dpt_error *err)
{
    const char *const option = conf->resize.n > 0 ? "resize" : "crop";
    char text[40];

    *resized = *cut = *stored;
    if (!dpt_data_views(conf))
        return DPT_OK;
    if (stored->flat || stored->h < 2 || stored->w < 2)
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.%s: the samples of %s (%s) are not images; leave it out", option, key,
                        dpt_shape_text(stored, text));
    if (conf->resize.n > 0)
        take_sides(&conf->resize, resized);
    *cut = *resized;
    if (conf->crop.n > 0)
        take_sides(&conf->crop, cut);
    if (cut->h > resized->h || cut->w > resized->w)
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.crop: a window of %d x %d is larger than the images of %s, %d x %d"
                        "%s: make it smaller, or data.resize larger",
                        cut->h, cut->w, key, resized->h, resized->w,
                        conf->resize.n > 0 ? " once resized" : "");
    return DPT_OK;
}

/* Standard deviations that a mean may be from 0 before x * scale + shift, a difference of two large
 * numbers, loses more than half of the digits. */
enum { FAR = 4096 };

/* Readies (x - centre) * scale + rest instead: centre is the mean as a float, from which numbers
 * near it differ exactly, and rest what that leaves of the mean. */
static enum dpt_status centre(struct dpt_dataset *set, const struct dpt_reals *mean,
                              const struct dpt_reals *std, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = set->parts;
    const size_t c = (size_t)set->shape.c;

    DPT_TRY(DPT_ALLOCATE(parts->centre, c, "the normalisation", err));
    DPT_TRY(DPT_ALLOCATE(parts->rest, c, "the normalisation", err));
    for (size_t i = 0; i < c; i++) {
        const double m = mean->at[mean->n == 1 ? 0 : i];
        const double s = std->n == 0 ? 1.0 : std->at[std->n == 1 ? 0 : i];

        parts->centre[i] = fabs(m) > FAR * s ? (float)m : 0;
        parts->rest[i] = (float)((parts->centre[i] - m) / s);
    }
out:
    return status;
}

enum dpt_status dpt_fill_prepare(struct dpt_dataset *set, const struct dpt_data_conf *conf,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = set->parts;
    const struct dpt_reals *mean = &conf->normalize.mean, *std = &conf->normalize.std;
    const size_t c = (size_t)set->shape.c;
    const double unit = set->u8 ? 255.0 : 1.0;
    bool far = false;

    set->stored = set->shape;
    DPT_TRY(dpt_data_view(conf, parts->key, &set->stored, &parts->resized, &set->shape, err));
    set->views = !dpt_same_shape(&set->stored, &parts->resized) ||
                 !dpt_same_shape(&parts->resized, &set->shape);
    DPT_TRY(check_list(set, mean, "mean", err));
    DPT_TRY(check_list(set, std, "std", err));
    DPT_TRY(DPT_ALLOCATE(parts->scale, c, "the normalisation", err));
    DPT_TRY(DPT_ALLOCATE(parts->shift, c, "the normalisation", err));
    for (size_t i = 0; i < c; i++) {
        const double m = mean->n == 0 ? 0.0 : mean->at[mean->n == 1 ? 0 : i];
        const double s = std->n == 0 ? 1.0 : std->at[std->n == 1 ? 0 : i];

        parts->scale[i] = (float)(1.0 / (unit * s));
        parts->shift[i] = (float)(-m / s);
        far = far || fabs(m) > FAR * s;
    }
    parts->uniform = mean->n <= 1 && std->n <= 1;
    if (far && !set->u8)
        DPT_TRY(centre(set, mean, std, err));
out:
    return status;
}

/* Loops of a fixed length, so that compilers make vectors of them at any level of optimisation. */
#define KERNELS(name, type)                                                                        \
    static void name##_run(const type *x, size_t n, float scale, float shift, float *out)          \
    {                                                                                              \
        size_t i = 0;                                                                              \
                                                                                                   \
        for (; i + 16 <= n; i += 16)                                                               \
            for (int k = 0; k < 16; k++)                                                           \
                out[i + k] = (float)x[i + k] * scale + shift;                                      \
        for (; i < n; i++)                                                                         \
            out[i] = (float)x[i] * scale + shift;                                                  \
    }                                                                                              \
    static void name##_columns(const type *x, size_t n, const float *scale, const float *shift,    \
                               float *out)                                                         \
    {                                                                                              \
        size_t i = 0;                                                                              \
                                                                                                   \
        for (; i + 16 <= n; i += 16)                                                               \
            for (int k = 0; k < 16; k++)                                                           \
                out[i + k] = (float)x[i + k] * scale[i + k] + shift[i + k];                        \
        for (; i < n; i++)                                                                         \
            out[i] = (float)x[i] * scale[i] + shift[i];                                            \
    }                                                                                              \
    static void name##_strided(const type *x, size_t n, size_t stride, float scale, float shift,   \
                               float *out)                                                         \
    {                                                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            out[i] = (float)x[i * stride] * scale + shift;                                         \
    }                                                                                              \
    static void name##_sample(const struct dpt_dataset *set, const type *x, float *out)            \
    {                                                                                              \
        const struct dpt_dataset_parts *p = set->parts;                                            \
        const size_t c = (size_t)set->stored.c,                                                    \
                     plane = (size_t)set->stored.h * (size_t)set->stored.w;                        \
                                                                                                   \
        if (p->uniform && !set->nhwc)                                                              \
            name##_run(x, c *plane, p->scale[0], p->shift[0], out);                                \
        else if (plane == 1)                                                                       \
            name##_columns(x, c, p->scale, p->shift, out);                                         \
        else                                                                                       \
            for (size_t i = 0; i < c; i++)                                                         \
                if (set->nhwc)                                                                     \
                    name##_strided(x + i, plane, c, p->scale[i], p->shift[i], out + i * plane);    \
                else                                                                               \
                    name##_run(x + i * plane, plane, p->scale[i], p->shift[i], out + i * plane);   \
    }

KERNELS(bytes, uint8_t)
KERNELS(floats, float)

/* Floats of channels whose means are far from 0. */
static void centred_sample(const struct dpt_dataset *set, const float *x, float *out)
{
    const struct dpt_dataset_parts *p = set->parts;
    const size_t c = (size_t)set->stored.c;
    const size_t plane = (size_t)set->stored.h * (size_t)set->stored.w;
    const size_t stride = set->nhwc ? c : 1;

    for (size_t i = 0; i < c; i++) {
        const float *from = x + i * (set->nhwc ? 1 : plane);

        for (size_t k = 0; k < plane; k++)
            *out++ = (from[k * stride] - p->centre[i]) * p->scale[i] + p->rest[i];
    }
}

void dpt_fill_stored(const struct dpt_dataset *set, const uint8_t *stored, float *out)
{
    if (set->parts->centre != NULL)
        centred_sample(set, (const float *)(const void *)stored, out);
    else if (set->u8)
        bytes_sample(set, stored, out);
    else /* aligned: samples are a whole number of floats from an aligned start */
        floats_sample(set, (const float *)(const void *)stored, out);
}

static bool is_resized(const struct dpt_dataset *set)
{
    return !dpt_same_shape(&set->stored, &set->parts->resized);
}

size_t dpt_fill_scratch(const struct dpt_dataset *set)
{
    const struct dpt_shape *stored = &set->stored, *resized;

    if (!set->views) /* also of a set that is nothing but a shape, without parts */
        return 0;
    resized = &set->parts->resized;
    return (size_t)dpt_shape_size(resized) +
           (is_resized(set)
                ? (size_t)dpt_shape_size(stored) + dpt_picture_resize_scratch(stored->w, resized->w)
                : 0);
}

void dpt_fill_resized(const struct dpt_dataset *set, const uint8_t *stored, float *out,
                      float *scratch)
{
    const struct dpt_shape *shape = &set->stored;
    const struct dpt_box all = {0, 0, shape->h, shape->w};

    if (!set->views || !is_resized(set)) {
        dpt_fill_stored(set, stored, out);
        return;
    }
    dpt_fill_stored(set, stored, scratch);
    dpt_picture_resize(scratch, shape, all, out, set->parts->resized.h, set->parts->resized.w,
                       scratch + dpt_shape_size(shape));
}

void dpt_fill_sample(const struct dpt_dataset *set, const uint8_t *stored, float *out,
                     float *scratch)
{
    const struct dpt_shape *cut = &set->shape, *resized = &set->parts->resized;
    struct dpt_box box;

    if (!set->views || dpt_same_shape(resized, cut)) {
        dpt_fill_resized(set, stored, out, scratch);
        return;
    }
    dpt_fill_resized(set, stored, scratch, scratch + dpt_shape_size(resized));
    box = dpt_box_middle(resized, cut->h, cut->w);
    for (int32_t c = 0; c < cut->c; c++)
        for (int32_t y = 0; y < cut->h; y++, out += cut->w)
            memcpy(out,
                   scratch +
                       ((size_t)c * (size_t)resized->h + (size_t)(box.top + y)) *
                           (size_t)resized->w +
                       box.left,
                   (size_t)cut->w * sizeof *out);
}

int64_t dpt_find_nonfinite(const void *floats, size_t n)
{
    enum { RUN = 1024 };
    const uint32_t exponent = UINT32_C(0x7F800000);
    uint32_t bits[RUN];

    for (size_t i = 0; i < n; i += RUN) {
        const size_t m = n - i < RUN ? n - i : RUN;
        uint32_t bad = 0;

        memcpy(bits, (const char *)floats + i * sizeof *bits, m * sizeof *bits);
        for (size_t k = 0; k < m; k++)
            bad |= (bits[k] & exponent) == exponent;
        for (size_t k = 0; bad && k < m; k++)
            if ((bits[k] & exponent) == exponent)
                return (int64_t)(i + k);
    }
    return -1;
}
