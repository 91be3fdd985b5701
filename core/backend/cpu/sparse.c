#include "core/backend/cpu/sparse.h"

#include <string.h>

#include "core/backend/cpu/kernels.h"
#include "core/backend/cpu/sparse_private.h"
#include "core/base/memory.h"

/* Floats of the input that are worked on together: they stay in the nearest cache. */
enum { NEAR = 20480 / 4 };

static int32_t blocks_of(int32_t channels)
{
    return (channels + LANES - 1) / LANES;
}

static bool is_few(const struct dpt_sparse_shape *s)
{
    return s->in_channels <= FEW && !s->wants_dx;
}

bool dpt_sparse_fits(const struct dpt_sparse_shape *s)
{
    const int32_t taps = s->kernel[0] * s->kernel[1];

    for (int i = 0; i < 2; i++)
        if (s->pooled[i] * 2 > s->out[i])
            return false;
    /* With few taps the lists themselves cost more than they save. */
    if (is_few(s))
        return taps <= MOST_TAPS && s->in_channels * taps > LANES;
    return s->kernel[0] == s->kernel[1] && (s->kernel[0] == 3 || s->kernel[0] == 5);
}

/* --- preparing -------------------------------------------------------------------------------- */

/* One sample while it is worked on, in the scratch memory. What is not needed is NULL. */
struct sample {
    float *x;    /* its input, padded; zeros stay around it */
    float *rows; /* few: its input, rows of zeros around it */
    float *dx;   /* as x */
    const float *dy;
    const int32_t *argmax; /* blocks of LANES channels */
    float *blocks[2];      /* of these two, where the pool's output has another layout */
    struct dpt_sparse_bucket *buckets;
    int32_t *list_n, *list_at;
    float *list_dy, *dw, *db; /* the last two: the micro-batch's */
};

/* The next so many floats of the scratch memory; NULL while its size is being counted. */
static void *put(float *scratch, int64_t *end, int64_t floats)
{
    float *at = scratch != NULL ? scratch + *end : NULL;

    *end += (int64_t)dpt_round_up((size_t)floats, sizeof(float));
    return at;
}

/* Returns how many floats there are. dw and db are the last ones. */
static int64_t arrange(const struct dpt_sparse *s, float *scratch, struct sample *at)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int64_t outputs = (int64_t)s->out_blocks * LANES;
    int64_t end = 0;

    *at = (struct sample){0};
    /* Behind the last patch a whole line is read. */
    at->x = put(scratch, &end, s->few ? s->plane + s->line : s->in_blocks * s->plane);
    if (s->few)
        at->rows = put(scratch, &end,
                       (int64_t)(shape->out[0] + shape->kernel[0] - 1) * s->padded[1] *
                               shape->in_channels +
                           FEW);
    if (shape->wants_dx) {
        at->dx = put(scratch, &end, s->in_blocks * s->plane);
        at->buckets = put(scratch, &end,
                          (int64_t)(s->windows * sizeof(struct dpt_sparse_bucket) / sizeof(float)));
    }
    for (int i = 0; shape->y != DPT_LAYOUT_C16 && i < 2; i++)
        at->blocks[i] = put(scratch, &end, outputs * s->windows);
    at->list_n = put(scratch, &end, outputs);
    at->list_at = put(scratch, &end, outputs * s->step);
    at->list_dy = put(scratch, &end, outputs * s->step);
    at->dw = put(scratch, &end, outputs * (s->few ? s->line : s->in_blocks * s->taps * LANES));
    at->db = put(scratch, &end, outputs);
    return end;
}

/* Rows of windows that read at most NEAR floats of a block's plane, `each` of them a row; about the
 * same number in all chunks. */
static int32_t chunk_of(const struct dpt_sparse *s, int32_t each)
{
    const int32_t rows = s->shape.pooled[0], most = NEAR / each > 1 ? NEAR / each : 1;
    const int32_t chunks = (rows + most - 1) / most;

    return (rows + chunks - 1) / chunks;
}

enum dpt_status dpt_sparse_open(const struct dpt_sparse_shape *shape, enum dpt_isa isa,
                                struct dpt_sparse **opened, struct dpt_error *err)
{
    const int32_t windows = shape->pooled[0] * shape->pooled[1];
    const size_t bytes = sizeof(struct dpt_sparse) + (size_t)windows * sizeof(int32_t);
    struct dpt_sparse *s = dpt_alloc(bytes);
    int32_t pixel, pitch;

    *opened = NULL;
    if (s == NULL)
        return dpt_fail_memory(err, "a convolution's lists", (double)bytes);
    s->shape = *shape;
    s->kernels = dpt_sparse_kernels(isa);
    s->few = is_few(shape);
    s->taps = shape->kernel[0] * shape->kernel[1];
    s->in_blocks = blocks_of(shape->in_channels);
    s->out_blocks = blocks_of(shape->out_channels);
    s->windows = windows;
    s->column = shape->in_channels * shape->kernel[0];
    s->line = blocks_of(s->column * shape->kernel[1]) * LANES;
    s->padded[0] = shape->out[0] + (s->few ? 0 : shape->kernel[0] - 1);
    s->padded[1] = shape->out[1] + shape->kernel[1] - 1;
    pixel = s->few ? s->column : LANES;
    pitch = s->padded[1] * pixel;
    s->plane = (int64_t)s->padded[0] * pitch;
    s->chunk = chunk_of(s, 2 * pitch) * shape->pooled[1];
    s->step = blocks_of(s->chunk) * LANES;
    for (int32_t i = 0; i < windows; i++)
        s->start[i] = i / shape->pooled[1] * 2 * pitch + i % shape->pooled[1] * 2 * pixel;
    for (int32_t i = 0; i < 4; i++)
        s->corner[i] = i / 2 * pitch + i % 2 * pixel;
    *opened = s;
    return DPT_OK;
}

int64_t dpt_sparse_scratch(const struct dpt_sparse *sparse)
{
    struct sample at;

    return arrange(sparse, NULL, &at);
}

int64_t dpt_sparse_packed(const struct dpt_sparse *s)
{
    return (int64_t)s->in_blocks * s->out_blocks * LANES * s->taps * LANES;
}

/* Where input channel `in` of output channel `out` begins in [in / LANES][out][tap][LANES]. */
static int64_t blocked(const struct dpt_sparse *s, int32_t in, int32_t out)
{
    const int64_t outputs = (int64_t)s->out_blocks * LANES;

    return (in / LANES * outputs + out) * s->taps * LANES + in % LANES;
}

void dpt_sparse_pack(const struct dpt_sparse *s, const float *weights, float *packed)
{
    memset(packed, 0, (size_t)dpt_sparse_packed(s) * sizeof *packed);
    for (int32_t out = 0; out < s->shape.out_channels; out++) {
        for (int32_t in = 0; in < s->shape.in_channels; in++, weights += s->taps) {
            float *to = packed + blocked(s, in, out);

            for (int32_t tap = 0; tap < s->taps; tap++)
                to[tap * LANES] = weights[tap];
        }
    }
}

/* --- lists ------------------------------------------------------------------------------------ */

static int32_t used_lanes(const struct dpt_sparse *s, int32_t block)
{
    const int32_t left = s->shape.out_channels - block * LANES;

    return left < LANES ? left : LANES;
}

static void sum_bias(const struct dpt_sparse *s, const struct sample *at)
{
    for (int32_t b = 0; b < s->out_blocks; b++)
        dpt_sum_chosen(s->windows, at->argmax + (int64_t)b * s->windows * LANES,
                       at->dy + (int64_t)b * s->windows * LANES, at->db + b * LANES);
}

/* --- products --------------------------------------------------------------------------------- */

/* Of the windows [first, last), whose part of the input stays in the nearest cache. */
static void add_windows(const struct dpt_sparse *s, const struct sample *at, int32_t first,
                        int32_t last)
{
    const int64_t pitch = (int64_t)s->padded[1] * LANES;
    const int32_t outputs = s->shape.out_channels;

    for (int32_t b = 0; b < s->out_blocks; b++) {
        const int64_t from = ((int64_t)b * s->windows + first) * LANES;
        const int64_t to = (int64_t)b * LANES * s->step;

        s->kernels->list(used_lanes(s, b), last - first, at->argmax + from, at->dy + from,
                         s->start + first, s->corner, s->step, at->list_n + b * LANES,
                         at->list_at + to, at->list_dy + to);
    }
    for (int32_t b = 0; b < s->in_blocks; b++) {
        for (int32_t c = 0; c < outputs; c++) {
            const int32_t *list_at = at->list_at + (int64_t)c * s->step;
            const float *list_dy = at->list_dy + (int64_t)c * s->step;

            if (s->few)
                s->kernels->line(s->line, at->list_n[c], list_at, list_dy, at->x,
                                 at->dw + (int64_t)c * s->line);
            else
                s->kernels->patch(s->shape.kernel[0], at->list_n[c], list_at, list_dy,
                                  at->x + b * s->plane, pitch, at->dw + blocked(s, b * LANES, c));
        }
    }
}

static void gradient_of_weights(const struct dpt_sparse *s, const struct sample *at)
{
    for (int32_t first = 0; first < s->windows; first += s->chunk)
        add_windows(s, at, first, first + s->chunk < s->windows ? first + s->chunk : s->windows);
}

static void sort_group(const struct dpt_sparse *s, const struct sample *at, int32_t first,
                       int32_t last)
{
    for (int32_t i = 0; i < s->windows; i++) {
        struct dpt_sparse_bucket *bucket = &at->buckets[i];

        memset(bucket->n, 0, sizeof bucket->n);
        for (int32_t b = first; b < last; b++) {
            const int64_t from = ((int64_t)b * s->windows + i) * LANES;

            s->kernels->sort(used_lanes(s, b), at->argmax + from, at->dy + from,
                             (b - first) * LANES * s->taps * LANES, s->taps * LANES, bucket);
        }
    }
}

static void gradient_of_input(const struct dpt_sparse *s, const struct sample *at,
                              const float *packed)
{
    const int64_t pitch = (int64_t)s->padded[1] * LANES;

    memset(at->dx, 0, (size_t)(s->in_blocks * s->plane) * sizeof *at->dx);
    for (int32_t first = 0; first < s->out_blocks; first += GROUP / LANES) {
        const int32_t last =
            first + GROUP / LANES < s->out_blocks ? first + GROUP / LANES : s->out_blocks;

        sort_group(s, at, first, last);
        for (int32_t b = 0; b < s->in_blocks; b++) {
            const float *w = packed + blocked(s, b * LANES, first * LANES);

            for (int32_t i = 0; i < s->windows; i++)
                s->kernels->spread(s->shape.kernel[0], &at->buckets[i], w, pitch,
                                   at->dx + b * s->plane + s->start[i]);
        }
    }
}

/* Where canonical order has it: dw[out][in][tap]. */
static void hand_over(const struct dpt_sparse *s, const float *dw, bool add, float *to)
{
    const int32_t *kernel = s->shape.kernel, channels = s->shape.in_channels;
    const int32_t rows = s->few ? kernel[0] : 1, columns = s->few ? kernel[1] : s->taps;
    const int32_t step = s->few ? s->column : LANES; /* from column to column */

    for (int32_t out = 0; out < s->shape.out_channels; out++) {
        for (int32_t in = 0; in < channels; in++) {
            const float *from = dw + (s->few ? (int64_t)out * s->line + in : blocked(s, in, out));

            for (int32_t row = 0; row < rows; row++, from += channels) {
                for (int32_t column = 0; column < columns; column++, to++) {
                    const float sum = from[column * step];

                    *to = add ? *to + sum : sum;
                }
            }
        }
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

void dpt_sparse_backward(const struct dpt_sparse *s, const struct dpt_sparse_work *work)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int64_t x_floats =
        dpt_layout_floats(shape->x, shape->in_channels, shape->in[0], shape->in[1]);
    const int64_t y_floats =
        dpt_layout_floats(shape->y, shape->out_channels, shape->pooled[0], shape->pooled[1]);
    struct sample at;
    const int64_t end = arrange(s, work->scratch, &at);

    memset(at.dw, 0, (size_t)(work->scratch + end - at.dw) * sizeof *at.dw);
    for (int32_t i = 0; i < work->count; i++) {
        at.dy = work->dy + i * y_floats;
        at.argmax = work->argmax + i * y_floats;
        if (shape->y != DPT_LAYOUT_C16) {
            dpt_sparse_to_blocks(s, at.dy, at.blocks[0]);
            dpt_sparse_to_blocks(s, at.argmax, at.blocks[1]);
            at.dy = at.blocks[0];
            at.argmax = (const void *)at.blocks[1];
        }
        if (s->few)
            dpt_sparse_unroll(s, work->x + i * x_floats, at.x, at.rows);
        else
            dpt_sparse_pad(s, work->x + i * x_floats, at.x);
        sum_bias(s, &at);
        gradient_of_weights(s, &at);
        if (shape->wants_dx) {
            gradient_of_input(s, &at, work->packed);
            dpt_sparse_unpad(s, at.dx, work->dx + i * x_floats);
        }
    }
    if (shape->wants_dx)
        memset(work->dx + work->count * x_floats, 0,
               (size_t)((work->micro - work->count) * x_floats) * sizeof *work->dx);
    hand_over(s, at.dw, work->add, work->dw);
    if (work->db != NULL)
        dpt_accumulate(shape->out_channels, at.db, work->add, work->db);
}
