#include <stdio.h>
#include <string.h>

#include "core/backend/cuda/steps_parts.h"

/* What a step keeps on the device beside the program, and the data set, which goes there only where
 * it leaves a margin: libraries allocate when they are first used, and other programs live there.
 */

enum { LINE = 256, MARGIN = 256 << 20 };

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* --- pieces ----------------------------------------------------------------------------------- */

static enum dpt_status send_piece(struct dpt_cuda_steps *s, int half, void *to, size_t bytes,
                                  struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(lib, cuMemcpyHtoDAsync(dpt_cuda_ptr(to), s->piece[half], bytes, s->p->ctx.copy));
    DPT_CUDA_TRY(lib, cuEventRecord(s->moved[half], s->p->ctx.copy));
out:
    return status;
}

enum dpt_status dpt_cuda_steps_upload(struct dpt_cuda_steps *s, void *to, const void *from,
                                      size_t bytes, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    enum dpt_status status = DPT_OK;
    int half = 0;

    for (size_t at = 0; at < bytes; at += DPT_CUDA_PIECE, half ^= 1) {
        const size_t n = bytes - at < DPT_CUDA_PIECE ? bytes - at : DPT_CUDA_PIECE;

        DPT_CUDA_TRY(lib, cuEventSynchronize(s->moved[half]));
        memcpy(s->piece[half], (const unsigned char *)from + at, n);
        DPT_TRY(send_piece(s, half, (unsigned char *)to + at, n, err));
    }
    DPT_CUDA_TRY(lib, cuStreamSynchronize(s->p->ctx.copy));
out:
    return status;
}

enum dpt_status dpt_cuda_steps_download(struct dpt_cuda_steps *s, void *to, const void *from,
                                        size_t bytes, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const size_t pieces = (bytes + DPT_CUDA_PIECE - 1) / DPT_CUDA_PIECE;
    enum dpt_status status = DPT_OK;

    /* One is on its way while the one before is copied. */
    for (size_t i = 0; i <= pieces; i++) {
        const size_t at = i * DPT_CUDA_PIECE, half = i % 2;

        if (i < pieces) {
            const size_t n = bytes - at < DPT_CUDA_PIECE ? bytes - at : DPT_CUDA_PIECE;

            DPT_CUDA_TRY(lib, cuMemcpyDtoHAsync(s->piece[half],
                                                dpt_cuda_ptr((const unsigned char *)from + at), n,
                                                s->p->ctx.copy));
            DPT_CUDA_TRY(lib, cuEventRecord(s->moved[half], s->p->ctx.copy));
        }
        if (i > 0) {
            const size_t before = at - DPT_CUDA_PIECE;

            DPT_CUDA_TRY(lib, cuEventSynchronize(s->moved[half ^ 1]));
            memcpy((unsigned char *)to + before, s->piece[half ^ 1],
                   bytes - before < DPT_CUDA_PIECE ? bytes - before : DPT_CUDA_PIECE);
        }
    }
out:
    return status;
}

/* --- the data set ----------------------------------------------------------------------------- */

static size_t sample_bytes(const struct dpt_cuda_steps *s)
{
    const struct dpt_shape *shape = &s->p->spec.graph->nodes[0].out;

    return (size_t)dpt_shape_size(shape) * (s->spec.data.u8 ? 1 : sizeof(float));
}

/* Samples between which other things lie are packed on the way. */
static enum dpt_status upload_samples(struct dpt_cuda_steps *s, unsigned char *to,
                                      struct dpt_error *err)
{
    const struct dpt_steps_data *data = &s->spec.data;
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const size_t size = sample_bytes(s), stride = (size_t)data->stride;
    const int64_t group = size < DPT_CUDA_PIECE ? (int64_t)(DPT_CUDA_PIECE / size) : 1;
    const unsigned char *from = data->memory;
    enum dpt_status status = DPT_OK;
    int half = 0;

    if (stride == size)
        return dpt_cuda_steps_upload(s, to, from, size * (size_t)data->samples, err);
    for (int64_t first = 0; first < data->samples; first += group, half ^= 1) {
        const int64_t left = data->samples - first, n = left < group ? left : group;

        if (size > DPT_CUDA_PIECE) {
            DPT_TRY(dpt_cuda_steps_upload(s, to + (size_t)first * size,
                                          from + (size_t)first * stride, size, err));
            continue;
        }
        DPT_CUDA_TRY(lib, cuEventSynchronize(s->moved[half]));
        for (int64_t i = 0; i < n; i++)
            memcpy(s->piece[half] + (size_t)i * size, from + (size_t)(first + i) * stride, size);
        DPT_TRY(send_piece(s, half, to + (size_t)first * size, (size_t)n * size, err));
    }
    DPT_CUDA_TRY(lib, cuStreamSynchronize(s->p->ctx.copy));
out:
    return status;
}

/* *stored: whether there was room for it. */
static enum dpt_status store(struct dpt_cuda_steps *s, bool *stored, struct dpt_error *err)
{
    const struct dpt_steps_data *data = &s->spec.data;
    const struct dpt_shape *shape = &s->p->spec.graph->nodes[0].out;
    const size_t channels = (size_t)shape->c * sizeof(float);
    const int64_t bytes = (int64_t)sample_bytes(s) * data->samples;
    struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;
    size_t unused = 0, total = 0;
    void *at = NULL, *affine = NULL;
    const struct dpt_cuda_piece samples = {"the data set", bytes, &at, false};
    const struct dpt_cuda_piece scales = {"the channels' scales", (int64_t)(2 * channels), &affine,
                                          false};

    *stored = false;
    if (data->memory == NULL || bytes == 0)
        return DPT_OK;
    DPT_CUDA_TRY(&ctx->lib, cuMemGetInfo(&unused, &total));
    if ((size_t)bytes + (total / 16 < MARGIN ? total / 16 : MARGIN) > unused)
        return DPT_OK;
    /* Another program may have been faster: then the samples come from the host as well. */
    status = dpt_cuda_hold(ctx, &samples, 1, err);
    if (status == DPT_BAD_JOB)
        return DPT_OK;
    DPT_TRY(status);
    DPT_TRY(dpt_cuda_hold(ctx, &scales, 1, err));
    DPT_TRY(upload_samples(s, at, err));
    DPT_TRY(dpt_cuda_steps_upload(s, affine, data->scale, channels, err));
    DPT_TRY(
        dpt_cuda_steps_upload(s, (unsigned char *)affine + channels, data->shift, channels, err));
    dpt_cuda_program_store(s->p, at, data->u8, data->nhwc, affine, (float *)affine + shape->c,
                           true);
    *stored = true;
out:
    return status;
}

/* --- staging buffers -------------------------------------------------------------------------- */

static struct dpt_cuda_staging_layout lay_out(const struct dpt_cuda_steps *s)
{
    const struct dpt_shape *shape = &s->p->spec.graph->nodes[0].out;
    const size_t rows = (size_t)s->spec.micros * (size_t)s->p->micro;
    const bool vectors = s->spec.targets > 0;
    struct dpt_cuda_staging_layout at = {.row = s->stored ? 0 : (size_t)dpt_shape_size(shape) * 4};

    at.targets = at.labels + lines(vectors ? 0 : rows * sizeof(int32_t));
    at.weights = at.targets + lines(rows * (size_t)s->spec.targets * sizeof(float));
    at.sample = at.weights + lines(s->spec.weights ? rows * sizeof(float) : 0);
    at.move = at.sample + lines(rows * sizeof(int64_t));
    at.input = at.move + lines(s->stored ? rows * sizeof(struct dpt_cuda_move) : 0);
    at.bytes = at.input + lines(rows * at.row);
    return at;
}

static enum dpt_status hold_staging_buffers(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    static const char samples[] = "the samples of the steps ahead";
    struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t bytes = (int64_t)s->staging_layout.bytes,
                  control = sizeof(struct dpt_cuda_control);
    const struct dpt_cuda_piece controls[] = {
        {"the rates", s->spec.staging_buffers * control, (void **)&s->rates, true},
        {"the counts", s->spec.staging_buffers * s->spec.micros * control, (void **)&s->batches,
         true},
    };
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->spec.staging_buffers; i++) {
        struct dpt_cuda_staging_buffer *staging_buffer = &s->staging_buffers[i];
        const struct dpt_cuda_piece pieces[] = {
            {samples, bytes, (void **)&staging_buffer->device, false},
            {samples, bytes, (void **)&staging_buffer->pinned, true},
        };

        DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(pieces), err));
        DPT_TRY(dpt_cuda_steps_event(&ctx->lib, &staging_buffer->uploaded, err));
        DPT_TRY(dpt_cuda_steps_event(&ctx->lib, &staging_buffer->done, err));
    }
    DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(controls), err));
out:
    return status;
}

/* --- the optimizer's -------------------------------------------------------------------------- */

static enum dpt_status send_decays(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    const size_t n = (size_t)g->floats / DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;
    uint8_t *host = dpt_alloc(n);

    if (host == NULL)
        return dpt_fail_memory(err, "the weight decay", (double)n);
    for (int32_t k = 0; k < g->n_tensors; k++) {
        const struct dpt_tensor *t = &g->tensors[k];
        const size_t first = (size_t)t->offset / DPT_TENSOR_ALIGN;

        memset(host + first, t->decay,
               ((size_t)t->count + DPT_TENSOR_ALIGN - 1) / DPT_TENSOR_ALIGN);
    }
    DPT_TRY(dpt_cuda_steps_upload(s, s->decays, host, n, err));
out:
    dpt_free(host);
    return status;
}

static enum dpt_status hold_optimizer(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t floats = s->p->spec.graph->floats;
    const struct dpt_cuda_piece pieces[] = {
        {"the gradient's norm", (floats / DPT_CUDA_NORM_CHUNK + 1) * (int64_t)sizeof(double),
         (void **)&s->partial, false},
        {"the gradient's norm", sizeof *s->counter, (void **)&s->counter, false},
        {"the weight decay", floats / DPT_TENSOR_ALIGN, (void **)&s->decays, false},
        {"the device's state", sizeof *s->reported, (void **)&s->reported, true},
        {"copies", DPT_CUDA_PIECE, (void **)&s->piece[0], true},
        {"copies", DPT_CUDA_PIECE, (void **)&s->piece[1], true},
    };
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < s->spec.rule.slots; k++) {
        const struct dpt_cuda_piece slot = {
            "the optimizer's state", floats * (int64_t)sizeof(float), (void **)&s->slot[k], false};

        DPT_TRY(dpt_cuda_hold(ctx, &slot, 1, err));
    }
    DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(pieces), err));
    for (int i = 0; i < 2; i++)
        DPT_TRY(dpt_cuda_steps_event(&ctx->lib, &s->moved[i], err));
    DPT_TRY(send_decays(s, err));
out:
    return status;
}

/* --- what fits -------------------------------------------------------------------------------- */

/* Adds to a message about memory which micro-batch would fit: of what the program holds all but the
 * parameters, their gradient and two more copies grows with it. */
static void advise(const struct dpt_cuda_steps *s, int64_t held, int64_t unused,
                   struct dpt_error *err)
{
    const int64_t arena = s->p->spec.graph->floats * (int64_t)sizeof(float);
    const int64_t staging_buffers = s->spec.staging_buffers * (int64_t)s->staging_layout.bytes;
    const int64_t fixed = arena * (4 + s->spec.rule.slots);
    const int64_t each = (held - 4 * arena + staging_buffers) / s->p->micro;
    int64_t fits = each > 0 ? (held + unused - fixed) / each : 0;
    struct dpt_error reported = *err;

    if (fits >= s->p->micro)
        fits = s->p->micro - 1;
    if (fits > 0)
        dpt_fail(err, reported.status, "%.3000s; batch.micro: about %lld would fit, %d does not",
                 reported.text, (long long)fits, (int)s->p->micro);
}

enum dpt_status dpt_cuda_steps_hold(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t held = ctx->bytes;
    enum dpt_status status = DPT_OK;
    size_t unused = 0, total = 0;

    DPT_CUDA_TRY(&ctx->lib, cuMemGetInfo(&unused, &total));
    s->staging_layout = lay_out(s);
    DPT_TRY(hold_optimizer(s, err));
    DPT_TRY(store(s, &s->stored, err));
    s->staging_layout = lay_out(s);
    DPT_TRY(hold_staging_buffers(s, err));
out:
    if (status == DPT_BAD_JOB)
        advise(s, held, (int64_t)unused, err);
    return status;
}
