#include <stdio.h>
#include <string.h>

#include "core/backend/cuda/steps/steps.h"

/* The memory of steps on the device beside the program's. The data set is stored there only if a
 * margin remains, since libraries allocate when they are first used, and other programs use the
 * device. */

enum { LINE = 256, MARGIN = 256 << 20 };

/* FLOPs of a step: a millisecond at 50 TFLOP/s. If it takes longer its launch hardly matters, and a
 * user who stops a job should not wait for many steps in flight. */
static const double LONG_STEP = 5e10;

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

enum dpt_status dpt_cuda_steps_prefix_error(enum dpt_status status, const char *what,
                                            struct dpt_error *err)
{
    if (status != DPT_OK)
        dpt_error_prefix(err, "GPU, %s: ", what);
    return status;
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* n rows of `size` bytes, each of which begins `stride` bytes after the one before. */
struct rows_in_memory {
    const void *from;
    size_t size, stride, n;
};

/* Copies n bytes of packed rows, from byte `at` of the packed array on. */
static void pack(unsigned char *to, const struct rows_in_memory *rows, size_t at, size_t n)
{
    while (n > 0) {
        const size_t within = at % rows->size, left = rows->size - within;
        const size_t bytes = left < n ? left : n;

        memcpy(to, (const unsigned char *)rows->from + at / rows->size * rows->stride + within,
               bytes);
        to += bytes;
        at += bytes;
        n -= bytes;
    }
}

static enum dpt_status upload_rows(struct dpt_cuda_steps *s, void *to,
                                   const struct rows_in_memory *rows, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const size_t bytes = rows->n * rows->size;
    enum dpt_status status = DPT_OK;
    int half = 0;

    for (size_t at = 0; at < bytes; at += DPT_CUDA_PIECE, half ^= 1) {
        const size_t n = bytes - at < DPT_CUDA_PIECE ? bytes - at : DPT_CUDA_PIECE;

        DPT_TRY(dpt_cuda_await_event(&s->p->ctx, s->moved[half], err));
        pack(s->piece[half], rows, at, n);
        DPT_CUDA_TRY(lib, cuMemcpyHtoDAsync(dpt_cuda_ptr((unsigned char *)to + at), s->piece[half],
                                            n, s->p->ctx.copy));
        DPT_CUDA_TRY(lib, cuEventRecord(s->moved[half], s->p->ctx.copy));
    }
    DPT_TRY(dpt_cuda_await_stream(&s->p->ctx, s->p->ctx.copy, err));
out:
    return status;
}

enum dpt_status dpt_cuda_steps_upload(struct dpt_cuda_steps *s, void *to, const void *from,
                                      size_t bytes, struct dpt_error *err)
{
    return upload_rows(s, to, &(struct rows_in_memory){from, bytes, bytes, 1}, err);
}

enum dpt_status dpt_cuda_steps_download(struct dpt_cuda_steps *s, void *to, const void *from,
                                        size_t bytes, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &s->p->ctx.lib;
    const size_t pieces = (bytes + DPT_CUDA_PIECE - 1) / DPT_CUDA_PIECE;
    enum dpt_status status = DPT_OK;

    /* A piece is transferred while the one before is copied out of pinned memory. */
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

            DPT_TRY(dpt_cuda_await_event(&s->p->ctx, s->moved[half ^ 1], err));
            memcpy((unsigned char *)to + before, s->piece[half ^ 1],
                   bytes - before < DPT_CUDA_PIECE ? bytes - before : DPT_CUDA_PIECE);
        }
    }
out:
    return status;
}

/* --- the data set ----------------------------------------------------------------------------- */

/* Stores the data set on the device if there is enough memory. */
static enum dpt_status store(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_steps_data *data = &s->spec.data;
    const struct dpt_shape *shape = &s->p->spec.graph->nodes[0].out;
    const size_t channels = (size_t)shape->c * sizeof(float);
    const size_t size = (size_t)dpt_shape_size(shape) * (data->u8 ? 1 : sizeof(float));
    /* Samples that are not contiguous in memory are packed during the upload. */
    const struct rows_in_memory rows = {data->memory, size, (size_t)data->stride,
                                        (size_t)data->samples};
    const int64_t bytes = (int64_t)size * data->samples;
    struct dpt_cuda_context *ctx = &s->p->ctx;
    enum dpt_status status = DPT_OK;
    size_t unused = 0, total = 0;
    void *at = NULL, *affine = NULL;
    const struct dpt_cuda_piece samples = {"the data set", bytes, &at, false};
    const struct dpt_cuda_piece scales = {"the channels' scales", (int64_t)(2 * channels), &affine,
                                          false};

    if (data->memory == NULL || bytes == 0)
        return DPT_OK;
    DPT_CUDA_TRY(&ctx->lib, cuMemGetInfo(&unused, &total));
    if ((size_t)bytes + (total / 16 < MARGIN ? total / 16 : MARGIN) > unused)
        return DPT_OK;
    /* If another program has taken the memory meanwhile, samples come from the host as well. */
    status = dpt_cuda_hold(ctx, &samples, 1, err);
    if (status == DPT_BAD_JOB)
        return DPT_OK;
    DPT_TRY(status);
    DPT_TRY(dpt_cuda_hold(ctx, &scales, 1, err));
    DPT_TRY(upload_rows(s, at, &rows, err));
    DPT_TRY(dpt_cuda_steps_upload(s, affine, data->scale, channels, err));
    DPT_TRY(
        dpt_cuda_steps_upload(s, (unsigned char *)affine + channels, data->shift, channels, err));
    for (int i = 0; i <= s->p->n_others; i++)
        dpt_cuda_program_store(dpt_cuda_flight(s->p, i), at, data->u8, data->nhwc, affine,
                               (float *)affine + shape->c);
    s->stored = true;
out:
    return status;
}

/* --- staging buffers -------------------------------------------------------------------------- */

static struct dpt_cuda_staging_layout lay_out(const struct dpt_cuda_steps *s)
{
    const struct dpt_shape *shape = &s->p->spec.graph->nodes[0].out;
    const size_t rows = (size_t)s->spec.micros * (size_t)s->p->micro;
    const bool vectors = s->spec.targets > 0;
    struct dpt_cuda_staging_layout at = {
        .row = {[DPT_CUDA_STAGED_LABELS] = vectors ? 0 : sizeof(int32_t),
                [DPT_CUDA_STAGED_TARGETS] = (size_t)s->spec.targets * sizeof(float),
                [DPT_CUDA_STAGED_WEIGHTS] = s->spec.weights ? sizeof(float) : 0,
                [DPT_CUDA_STAGED_SAMPLE] = sizeof(int64_t),
                [DPT_CUDA_STAGED_MOVE] = s->stored ? sizeof(struct dpt_cuda_move) : 0,
                [DPT_CUDA_STAGED_INPUT] =
                    s->stored || s->spec.stage > 0 ? 0 : (size_t)dpt_shape_size(shape) * 4}};

    at.bytes = lines((size_t)s->spec.micros * sizeof(struct dpt_cuda_control));
    for (int i = 0; i < DPT_CUDA_FIELDS; i++) {
        at.offset[i] = at.bytes;
        at.bytes += lines(rows * at.row[i]);
    }
    return at;
}

static enum dpt_status hold_staging_buffers(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    static const char samples[] = "the samples of the steps ahead";
    struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t bytes = (int64_t)s->staging_layout.bytes,
                  control = sizeof(struct dpt_cuda_control),
                  rates = s->n_groups * (int64_t)sizeof *s->rates;
    const struct dpt_cuda_piece controls[] = {
        {"the rates", s->n_staging * rates, (void **)&s->rates, true},
        {"the counts", s->n_staging * s->spec.micros * control, (void **)&s->batches, true},
    };
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->n_staging; i++) {
        struct dpt_cuda_staging_buffer *staging_buffer = &s->staging_buffers[i];
        const struct dpt_cuda_piece pieces[] = {
            {samples, bytes, (void **)&staging_buffer->device, false},
            {samples, bytes, (void **)&staging_buffer->pinned, true},
        };

        DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(pieces), err));
        DPT_TRY(dpt_cuda_event(ctx, CU_EVENT_DISABLE_TIMING, &staging_buffer->uploaded, err));
        DPT_TRY(dpt_cuda_event(ctx, CU_EVENT_DISABLE_TIMING, &staging_buffer->done, err));
    }
    DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(controls), err));
out:
    return status;
}

/* --- the optimizer's -------------------------------------------------------------------------- */

/* The number of a tensor's group, which is a new group if no earlier tensor has the same
 * settings. */
static int group_of(struct dpt_cuda_steps *s, const struct dpt_tensor *t)
{
    const struct dpt_rule_group group = dpt_rule_group_of(&s->spec.rule, t);
    int k = 0;

    while (k < s->n_groups &&
           (s->groups[k].lr_scale != group.lr_scale || s->groups[k].decay != group.decay))
        k++;
    s->groups[k] = group;
    s->n_groups = k < s->n_groups ? s->n_groups : k + 1;
    return k;
}

/* Finds the groups of tensors, and sends each tensor's group to the device. */
static enum dpt_status send_groups(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    const size_t n = (size_t)g->floats / DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_piece pieces[] = {
        {"the tensors' groups", (int64_t)(n * sizeof *s->group), (void **)&s->group, false},
        {"the groups' rates", 0, (void **)&s->step_rates, false},
    };
    uint16_t *numbers;

    DPT_TRY(DPT_ALLOCATE(numbers, n, "the tensors' groups", err));
    DPT_TRY(DPT_ALLOCATE(s->groups, (size_t)g->n_tensors + 1, "the groups' rates", err));
    for (int32_t k = 0; k < g->n_tensors; k++) {
        const struct dpt_tensor *t = &g->tensors[k];
        int number;

        if (t->state)
            continue;
        number = t->frozen ? DPT_CUDA_FROZEN : group_of(s, t);
        if (s->n_groups > DPT_CUDA_FROZEN)
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "more than %d pairs of learning rate and decay",
                             DPT_CUDA_FROZEN));
        for (int64_t at = t->offset; at < t->offset + t->count; at += DPT_TENSOR_ALIGN)
            numbers[at / DPT_TENSOR_ALIGN] = (uint16_t)number;
    }
    pieces[1].bytes = s->n_groups * (int64_t)sizeof *s->step_rates;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, DPT_CUDA_ROWS(pieces), err));
    DPT_TRY(dpt_cuda_steps_upload(s, s->group, numbers, n * sizeof *numbers, err));
out:
    dpt_free(numbers);
    return status;
}

/* Sends which tensors have copies. */
static enum dpt_status send_copies(struct dpt_cuda_steps *s, bool gradients,
                                   struct dpt_cuda_copies *copies, struct dpt_error *err)
{
    const size_t n = (size_t)s->p->spec.graph->floats / DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;
    const struct dpt_cuda_piece piece = {"the tensors' copies",
                                         (int64_t)(n * sizeof *copies->number),
                                         (void **)&copies->number, false};
    uint16_t *numbers;

    DPT_TRY(DPT_ALLOCATE(numbers, n, "the tensors' copies", err));
    dpt_cuda_copies_of(s->p, gradients, numbers, copies);
    if (copies->bytes == 0)
        goto out;
    DPT_TRY(dpt_cuda_hold(&s->p->ctx, &piece, 1, err));
    DPT_TRY(dpt_cuda_steps_upload(s, (void *)(uintptr_t)copies->number, numbers,
                                  n * sizeof *numbers, err));
out:
    dpt_free(numbers);
    return status;
}

/* Sends how each tensor of the state is updated, as in dpt_graph_update_state: frozen state keeps
 * its value. */
static enum dpt_status send_running(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    const size_t n = (size_t)(g->arena - g->floats) / DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_running *host = NULL;

    DPT_TRY(DPT_ALLOCATE(host, n, "the running statistics", err));
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const int32_t numbers[] = {g->nodes[i].mean, g->nodes[i].variance};

        for (int k = 0; k < 2 && numbers[k] >= 0; k++) {
            const struct dpt_tensor *t = &g->tensors[numbers[k]];

            for (int64_t at = 0; at < t->count; at += DPT_TENSOR_ALIGN)
                host[(t->offset - g->floats + at) / DPT_TENSOR_ALIGN] = (struct dpt_cuda_running){
                    .decay = t->frozen ? 1 : g->nodes[i].attribute[DPT_BATCHNORM_DECAY],
                    .each = k == 0 ? 0
                                   : (int32_t)dpt_graph_variance_samples(
                                         &g->nodes[i], s->spec.whole, s->p->micro)};
        }
    }
    DPT_TRY(dpt_cuda_steps_upload(s, s->running, host, n * sizeof *host, err));
out:
    dpt_free(host);
    return status;
}

static enum dpt_status hold_optimizer(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    struct dpt_cuda_context *ctx = &s->p->ctx;
    const int64_t floats = s->p->spec.graph->floats, state = s->p->spec.graph->arena - floats;
    const int64_t sums = s->norm_sums > 0 ? s->norm_sums : dpt_cuda_norm_blocks(floats + state);
    const struct dpt_cuda_piece pieces[] = {
        {"the gradient's norm", sums * (int64_t)sizeof(double), (void **)&s->partial, false},
        {"the gradient's norm", sizeof *s->counter, (void **)&s->counter, false},
        {"the running statistics", state / DPT_TENSOR_ALIGN * (int64_t)sizeof *s->running,
         (void **)&s->running, false},
        {"the device's state", sizeof *s->reported, (void **)&s->reported, true},
        {"copies", DPT_CUDA_PIECE, (void **)&s->piece[0], true},
        {"copies", DPT_CUDA_PIECE, (void **)&s->piece[1], true},
    };
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < s->spec.rule.slots; k++) {
        const struct dpt_cuda_piece slot = {"the optimizer's state",
                                            s->slot_floats * (int64_t)sizeof(float),
                                            (void **)&s->slot[k], false};

        DPT_TRY(dpt_cuda_hold(ctx, &slot, 1, err));
    }
    DPT_TRY(dpt_cuda_hold(ctx, DPT_CUDA_ROWS(pieces), err));
    for (int i = 0; i < 2; i++)
        DPT_TRY(dpt_cuda_event(ctx, CU_EVENT_DISABLE_TIMING, &s->moved[i], err));
    DPT_TRY(send_groups(s, err));
    DPT_TRY(send_copies(s, false, &s->copies, err));
    DPT_TRY(send_copies(s, true, &s->gradients, err));
    DPT_TRY(send_running(s, err));
out:
    return status;
}

/* --- what fits -------------------------------------------------------------------------------- */

/* Adds to a message about memory which micro-batch would fit. It takes all that the program holds
 * to be proportional to the micro-batch, except four arrays of the arena's size. */
static void advise(const struct dpt_cuda_steps *s, int64_t held, int64_t unused,
                   struct dpt_error *err)
{
    const int64_t arena = s->p->spec.graph->floats * (int64_t)sizeof(float);
    const int64_t staging_buffers = s->n_staging * (int64_t)s->staging_layout.bytes;
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
    DPT_TRY(store(s, err));
    if (s->stored && !s->spec.reduces && s->spec.at_once > 1 && s->spec.micros < DPT_CUDA_MANY &&
        dpt_cuda_program_flops(s->p) * s->spec.micros < LONG_STEP) {
        s->at_once = s->spec.at_once;
        s->n_staging = 2 * s->at_once; /* half of them are filled while the others are read */
    }
    s->staging_layout = lay_out(s);
    DPT_TRY(hold_staging_buffers(s, err));
out:
    if (status == DPT_BAD_JOB)
        advise(s, held, (int64_t)unused, err);
    return status;
}
