/* Files of other programs into shards. */
#include <string.h>

#include "data/sources/source_type.h"

enum { BATCH_BYTES = 1 << 20, LABEL_MOST = INT32_MAX - 1 };

/* One more than the largest label. All are read: they are there, and they are good. */
static enum dpt_status count_classes(struct dpt_source *s, int64_t batch, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t samples = s->info.samples;
    struct dpt_source_rows rows;

    for (int64_t at = 0, n; at < samples; at += n) {
        n = samples - at < batch ? samples - at : batch;
        rows = (struct dpt_source_rows){.row = at, .n = n, .classes = s->classes};
        DPT_TRY(s->format->read(s, &rows, err));
        for (int64_t i = 0; i < n; i++)
            if (s->classes[i] >= s->info.classes)
                s->info.classes = (int64_t)s->classes[i] + 1;
    }
out:
    return status;
}

static struct dpt_shard_format form_of(const struct dpt_source *s)
{
    const struct dpt_shape *shape = &s->layout.shape;
    const int last = s->layout.nhwc ? 0 : 1;
    struct dpt_shard_format format = {
        .samples = s->info.samples,
        .n_dims = shape->flat ? 1 : 3,
        .u8 = s->layout.u8,
        .nhwc = s->layout.nhwc,
        .targets = s->info.truth == DPT_TRUTH_VECTOR ? s->info.width : 0,
        .classes = s->info.classes,
        .class_names = s->info.class_names,
    };

    format.dims[last] = shape->h;
    format.dims[last + 1] = shape->w;
    format.dims[s->layout.nhwc ? 2 : 0] = shape->c;
    return format;
}

static enum dpt_status copy(struct dpt_source *s, int64_t batch, struct dpt_shard_writer *writer,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t samples = s->info.samples;

    for (int64_t at = 0, n; at < samples; at += n) {
        n = samples - at < batch ? samples - at : batch;
        DPT_TRY(dpt_source_fetch(s, at, n, err));
        for (int64_t i = 0; s->format->render != NULL && i < n; i++)
            DPT_TRY(s->format->render(s, at + i, s->stored + (size_t)i * s->layout.stride, err));
        DPT_TRY(dpt_shard_writer_add(writer, s->stored, s->classes, s->targets, n, err));
    }
out:
    return status;
}

enum dpt_status dpt_source_convert(const struct dpt_source_spec *spec,
                                   const struct dpt_shard_output *output,
                                   struct dpt_shard_result *result, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source *s = NULL;
    struct dpt_shard_writer *writer = NULL;
    struct dpt_shard_format format;
    int64_t batch;

    DPT_TRY(dpt_source_open(&s, spec, 0, 1, err));
    batch = s->layout.stride < BATCH_BYTES ? (int64_t)(BATCH_BYTES / s->layout.stride) : 1;
    DPT_TRY(dpt_source_room(s, batch, err));
    if (s->info.truth == DPT_TRUTH_CLASS && s->info.classes == 0)
        DPT_TRY(count_classes(s, batch, err));
    format = form_of(s);
    DPT_TRY(dpt_shard_writer_open(&writer, output, &format, err));
    DPT_TRY(copy(s, batch, writer, err));
    DPT_TRY(dpt_shard_writer_commit(writer, result, err));
out:
    dpt_shard_writer_close(writer);
    dpt_source_close(s);
    return status;
}
