#include "core/backend/cpu/fp32/sparse.h"

#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/fp32/sparse_private.h"
#include "core/base/memory.h"

/* Floats of the input that are worked on together: they stay in the nearest cache. */
enum { NEAR = 20480 / 4 };

enum { FEW = 4, MOST_TAPS = 25 };

struct dpt_sparse {
    struct dpt_sparse_shape shape;
    const struct dpt_sparse_kernels *kernels;
    bool few;     /* the first layer's way: a patch lies in one piece */
    int32_t taps; /* of a channel */
    int32_t in_blocks, out_blocks, windows;
    int32_t chunk; /* windows that are listed together: whole rows */
    int32_t step;  /* from a channel's list to the next */
    int32_t padded[2];
    int32_t line, column; /* few: floats of a patch, rounded up; of one column of it */
    int64_t plane;        /* floats of a padded input block */
    int32_t corner[4];    /* from a window's first element to each, in floats of the padded input */
    int32_t start[];      /* of each window, as an offset too */
};

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
    float *blocks[2];      /* of these two, if the pool's output has another layout */
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
    /* A whole line is read after the last patch. */
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

/* --- activations in and out of the shapes that the lists point into --------------------------- */

/* Channel c of a sample: its first element; elements are `block` floats apart. */
static int64_t channel_at(enum dpt_memory_layout layout, int32_t channels, int32_t c,
                          int64_t pixels)
{
    const int32_t block = dpt_layout_block(layout, channels);

    return c / block * block * pixels + c % block;
}

/* The rows and columns of the input that are in any patch. */
static int32_t inside(const struct dpt_sparse *s, int axis, int32_t padded)
{
    const int32_t most = padded - s->shape.before[axis];

    return s->shape.in[axis] < most ? s->shape.in[axis] : most;
}

/* Moves numbers between a sample's input (or its gradient) and the middle of its padded planes;
 * `in`: into the planes. */
DPT_INLINE void move(const struct dpt_sparse *s, bool in, float *x, float *padded)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *size = shape->in, width = s->padded[1];
    const int32_t rows = inside(s, 0, s->padded[0]), columns = inside(s, 1, width);
    const int64_t pixels = (int64_t)size[0] * size[1];
    const int32_t step = dpt_layout_block(shape->x, shape->in_channels);

    padded += ((int64_t)shape->before[0] * width + shape->before[1]) * LANES;
    for (int32_t row = 0; row < rows; row++, padded += (int64_t)width * LANES) {
        for (int32_t b = 0; shape->x == DPT_LAYOUT_C16 && b < s->in_blocks; b++) {
            float *line = padded + b * s->plane;
            float *plain = x + (b * pixels + (int64_t)row * size[1]) * LANES;

            memcpy(in ? line : plain, in ? plain : line, (size_t)columns * LANES * sizeof *line);
        }
        for (int32_t c = 0; shape->x != DPT_LAYOUT_C16 && c < shape->in_channels; c++) {
            float *line = padded + c / LANES * s->plane + c % LANES;
            float *plain = x + channel_at(shape->x, shape->in_channels, c, pixels) +
                           (int64_t)row * size[1] * step;

            for (int32_t k = 0; k < columns; k++) {
                if (in)
                    line[k * LANES] = plain[(int64_t)k * step];
                else
                    plain[(int64_t)k * step] = line[k * LANES];
            }
        }
    }
}

static void pad(const struct dpt_sparse *s, const float *x, float *padded)
{
    move(s, true, (float *)(uintptr_t)x, padded); /* x is only read */
}

/* What no patch reads has no gradient. */
static void unpad(const struct dpt_sparse *s, float *padded, float *x)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *in = shape->in;

    if (shape->x != DPT_LAYOUT_C16 || inside(s, 0, s->padded[0]) < in[0] ||
        inside(s, 1, s->padded[1]) < in[1])
        memset(x, 0,
               (size_t)dpt_layout_floats(shape->x, shape->in_channels, in[0], in[1]) * sizeof *x);
    move(s, false, x, padded);
}

/* Few channels: the rows of the input with channels side by side, between rows of zeros. */
static void side_by_side(const struct dpt_sparse *s, const float *x, float *to)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t *in = shape->in, channels = shape->in_channels;
    const int32_t rows = inside(s, 0, shape->out[0] + shape->kernel[0] - 1);
    const int32_t columns = inside(s, 1, s->padded[1]);
    const int32_t step = dpt_layout_block(shape->x, channels);

    to += (int64_t)shape->before[0] * columns * channels;
    for (int32_t c = 0; c < channels; c++) {
        const float *from = x + channel_at(shape->x, channels, c, (int64_t)in[0] * in[1]);

        for (int32_t row = 0; row < rows; row++) {
            const float *line = from + (int64_t)row * in[1] * step;
            float *lane = to + (int64_t)row * columns * channels + c;

            for (int32_t i = 0; i < columns; i++)
                lane[i * channels] = line[(int64_t)i * step];
        }
    }
}

/* Few channels: [row of outputs][column][row of the kernel][channel], so that a patch is one piece.
 * rows: scratch memory. FEW floats are copied at once: the excess is overwritten by the next copy,
 * up to the last column. */
static void unroll(const struct dpt_sparse *s, const float *x, float *to, float *rows)
{
    const struct dpt_sparse_shape *shape = &s->shape;
    const int32_t channels = shape->in_channels, columns = inside(s, 1, s->padded[1]);

    side_by_side(s, x, rows);
    to += (int64_t)shape->before[1] * s->column;
    for (int32_t row = 0; row < shape->out[0]; row++, to += (int64_t)s->padded[1] * s->column) {
        const float *from = rows + (int64_t)row * columns * channels;

        int32_t i = 0;

        for (; i < columns - FEW; i++)
            for (int32_t k = 0; k < shape->kernel[0]; k++)
                memcpy(to + i * s->column + k * channels, from + (k * columns + i) * channels,
                       FEW * sizeof *to);
        for (; i < columns; i++)
            for (int32_t k = 0; k < shape->kernel[0]; k++)
                memcpy(to + i * s->column + k * channels, from + (k * columns + i) * channels,
                       (size_t)channels * sizeof *to);
    }
}

/* Blocks of LANES channels out of the layout of the pool's output, words of 4 bytes. */
static void to_blocks(const struct dpt_sparse *s, const void *from, void *to)
{
    const int32_t channels = s->shape.out_channels;
    const int32_t step = dpt_layout_block(s->shape.y, channels);

    for (int32_t c = 0; c < channels; c++) {
        const int32_t *x = (const int32_t *)from + channel_at(s->shape.y, channels, c, s->windows);
        int32_t *y = (int32_t *)to + (int64_t)c / LANES * LANES * s->windows + c % LANES;

        for (int32_t i = 0; i < s->windows; i++)
            y[i * LANES] = x[(int64_t)i * step];
    }
}

/* --- lists ------------------------------------------------------------------------------------ */

static int32_t used_lanes(const struct dpt_sparse *s, int32_t block)
{
    const int32_t left = s->shape.out_channels - block * LANES;

    return left < LANES ? left : LANES;
}

/* --- products --------------------------------------------------------------------------------- */

/* Adds up the windows [first, last), whose part of the input stays in the nearest cache. */
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

/* Its place in canonical order: dw[out][in][tap]. */
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
            to_blocks(s, at.dy, at.blocks[0]);
            to_blocks(s, at.argmax, at.blocks[1]);
            at.dy = at.blocks[0];
            at.argmax = (const void *)at.blocks[1];
        }
        if (s->few)
            unroll(s, work->x + i * x_floats, at.x, at.rows);
        else
            pad(s, work->x + i * x_floats, at.x);
        for (int32_t b = 0; b < s->out_blocks; b++)
            s->kernels->sum(s->windows, at.argmax + (int64_t)b * s->windows * LANES,
                            at.dy + (int64_t)b * s->windows * LANES, at.db + b * LANES);
        for (int32_t first = 0; first < s->windows; first += s->chunk)
            add_windows(s, &at, first,
                        first + s->chunk < s->windows ? first + s->chunk : s->windows);
        if (shape->wants_dx) {
            gradient_of_input(s, &at, work->packed);
            unpad(s, at.dx, work->dx + i * x_floats);
        }
    }
    if (shape->wants_dx)
        memset(work->dx + work->count * x_floats, 0,
               (size_t)((work->micro - work->count) * x_floats) * sizeof *work->dx);
    hand_over(s, at.dw, work->add, work->dw);
    if (work->db != NULL)
        dpt_accumulate(shape->out_channels, at.db, work->add, work->db);
}
