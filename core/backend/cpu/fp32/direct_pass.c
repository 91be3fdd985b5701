#include "core/backend/cpu/fp32/direct_private.h"

#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/numbers.h"

/* The passes of direct convolutions. */

enum {
    ROWS = DPT_TILE_ROWS,
    LANES = DPT_TILE_LANES,
    MOST = DPT_TILE_MOST,
    PIECE = 128,   /* pixels of a sum over them whose operands stay in the nearest cache */
    FEW_ROWS = 32, /* weights of an output */
};

/* --- lines ------------------------------------------------------------------------------------ */

/* A row of pixels in blocks; what is written after a pixel's channels the next pixel overwrites. */
static void copy_blocks(const struct dpt_direct_lines *l, const float *row, int64_t plane,
                        int32_t first, int32_t columns, float *to)
{
    const int32_t last = first + l->channels;

    for (int32_t x = 0; x < columns; x++, to += l->pitch, row += LANES) {
        if (first % LANES != 0) {
            for (int32_t c = first; c < last; c++)
                to[c - first] = row[c / LANES * plane + c % LANES];
            continue;
        }
        for (int32_t c = first; c < last; c += LANES)
            memcpy(to + (c - first), row + c / LANES * plane, LANES * sizeof *to);
    }
}

static void copy_planes(const struct dpt_direct_lines *l, const float *row, int64_t plane,
                        int32_t first, int32_t columns, float *to)
{
    for (int32_t c = 0; c < l->channels; c++)
        for (int32_t x = 0; x < columns; x++)
            to[x * l->pitch + c] = row[(first + c) * plane + x];
}

/* A group's channels of one sample, with zeros around. */
static void write_lines(const struct dpt_direct_lines *l, const float *sample, int32_t group,
                        float *to)
{
    const bool blocks = l->layout == DPT_LAYOUT_C16;
    const int64_t plane = (int64_t)l->in[0] * l->in[1] * (blocks ? LANES : 1);
    const int64_t line = l->size[1] * l->pitch;
    const int64_t before = least(l->before[1], l->size[1]);
    const int32_t columns = (int32_t)least(l->in[1], l->size[1] - before);
    const int64_t left = before * l->pitch, right = left + columns * l->pitch;

    for (int32_t y = 0; y < l->size[0]; y++, to += line) {
        const int32_t from = y - l->before[0];

        if (from < 0 || from >= l->in[0]) {
            memset(to, 0, (size_t)line * sizeof *to);
            continue;
        }
        memset(to, 0, (size_t)left * sizeof *to);
        (blocks ? copy_blocks
                : copy_planes)(l, sample + (int64_t)from * l->in[1] * (blocks ? LANES : 1), plane,
                               group * l->channels, columns, to + left);
        memset(to + right, 0, (size_t)(line - right) * sizeof *to);
    }
}

static int64_t sample_floats(const struct dpt_direct_lines *l)
{
    return dpt_layout_floats(l->layout, l->all, l->in[0], l->in[1]);
}

static void write_samples(const struct dpt_direct_lines *l, const float *x, int32_t first,
                          int32_t samples, int32_t group, float *to)
{
    const int64_t sample = sample_floats(l);

    for (int32_t i = 0; i < samples; i++, to += l->sample)
        write_lines(l, x + (first + i) * sample, group, to);
    memset(to, 0, DPT_DIRECT_SLACK * sizeof *to);
}

/* --- forward, and the gradient of the input --------------------------------------------------- */

/* Where the results of a block of a group's outputs go. */
struct target {
    float *y; /* of the first sample of the lines */
    int64_t sample, plane;
    int32_t channel, n; /* first one of all, and how many */
};

/* Puts results [pixels][width] where they belong. to: each pixel's first channel's block. */
static void scatter(const struct target *t, const float *sum, int64_t width, int64_t m,
                    float *const *to)
{
    for (int64_t i = 0; i < m; i++, sum += width)
        for (int32_t c = 0; c < t->n; c++) {
            const int32_t channel = t->channel % LANES + c;

            to[i][channel / LANES * t->plane + channel % LANES] = sum[c];
        }
}

/* Puts whole blocks of results where they belong. */
static void put_blocks(const struct target *t, const float *sum, int64_t width, int64_t m,
                       float *const *to)
{
    for (int64_t i = 0; i < m; i++, sum += width)
        for (int64_t n = 0; n < width; n += LANES)
            memcpy(to[i] + n / LANES * t->plane, sum + n, LANES * sizeof *sum);
}

/* The outputs of a part, for a block of channels of some samples. whole: whole blocks of 16 are
 * written, with what is after the last channel. */
static void run_block(const struct dpt_direct_part *part, dpt_direct_tile *tile, int64_t width,
                      const float *lines, int64_t line, int32_t samples, const float *b,
                      const float *start, const struct target *t, bool whole)
{
    const int64_t pixels = samples * part->pixels;
    float *y = t->y + t->channel / LANES * t->plane;
    int64_t q = 0;
    _Alignas(64) float sum[ROWS * MOST];

    for (int64_t first = 0; first < pixels; first += ROWS) {
        const int64_t m = least(pixels - first, ROWS);
        const float *rows[ROWS];
        float *to[ROWS];
        bool even = whole && m == ROWS;

        for (int64_t i = 0; i < ROWS; i++) {
            if (i >= m) { /* read again, and dropped */
                rows[i] = rows[i - 1];
                continue;
            }
            rows[i] = lines + part->in_at[q];
            to[i] = y + part->out_at[q];
            even = even && (i == 0 || to[i] - to[i - 1] == part->step);
            if (++q == part->pixels) {
                q = 0;
                lines += line;
                y += t->sample;
            }
        }
        if (even) {
            tile(&part->sum, rows, b, start, false, to[0], part->step, t->plane);
            continue;
        }
        tile(&part->sum, rows, b, start, false, sum, width, LANES);
        (whole ? put_blocks : scatter)(t, sum, width, m, to);
    }
}

/* A group's outputs of some samples, whose lines are there. */
static void run_group(const struct dpt_direct *d, const struct dpt_direct_pass *pass, int32_t group,
                      const float *lines, int32_t samples, const float *packed, const float *bias,
                      float *y)
{
    const int64_t block = dpt_gemm_block(pass->outputs), outputs = up(pass->outputs, LANES);
    struct target t = {
        .y = y, .sample = up(pass->all, LANES) * pass->plane, .plane = pass->plane * LANES};
    const bool whole = pass->outputs % LANES == 0 || pass->outputs == pass->all;

    for (int64_t first = 0; first < pass->outputs; first += block) {
        const int64_t n = least(pass->outputs - first, block), width = up(n, LANES);
        dpt_direct_tile *tile = dpt_direct_tile_for(d->shape.isa, (int)(width / LANES));
        float start[MOST] = {0};

        t.channel = group * pass->outputs + (int32_t)first;
        t.n = (int32_t)n;
        if (bias != NULL)
            memcpy(start, bias + t.channel, (size_t)n * sizeof *start);
        for (int32_t i = 0; i < pass->n_parts; i++) {
            const struct dpt_direct_part *part = &pass->parts[i];
            const struct dpt_direct_phase *phase = &pass->phases[part->phase];
            const int64_t depth = phase->n_taps * pass->lines.channels;

            run_block(part, tile, width, lines, pass->lines.sample, samples,
                      packed + phase->packed + depth * (group * outputs + first), start, &t, whole);
        }
    }
}

static void run_pass(const struct dpt_direct *d, const struct dpt_direct_pass *pass, const float *x,
                     const float *packed, const float *bias, float *scratch, float *y)
{
    const int32_t all = d->shape.conv.n;
    const int64_t sample = up(pass->all, LANES) * pass->plane;

    if (d->shape.conv.window.groups > 1 && pass->all % LANES != 0)
        memset(y, 0, (size_t)(all * sample) * sizeof *y);
    for (int32_t first = 0; first < all; first += pass->samples) {
        const int32_t samples = (int32_t)least(all - first, pass->samples);

        for (int32_t group = 0; group < d->shape.conv.window.groups; group++) {
            write_samples(&pass->lines, x, first, samples, group, scratch);
            run_group(d, pass, group, scratch, samples, packed, bias, y + first * sample);
        }
    }
}

void dpt_direct_forward(const struct dpt_direct *d, const float *x, const float *packed,
                        const float *bias, float *scratch, float *y)
{
    run_pass(d, &d->forward, x, packed, bias, scratch, y);
}

void dpt_direct_data(const struct dpt_direct *d, const float *dy, const float *packed,
                     float *scratch, float *dx)
{
    run_pass(d, &d->data, dy, packed, NULL, scratch, dx);
}

/* --- the gradient of the weights -------------------------------------------------------------- */

/* A thread's workspace, and where the gradient lies: [block of outputs][pixel][output of the
 * block]. */
struct work {
    float *lines, *copy;
    const float *dy;       /* the copy, or the gradient itself */
    int64_t block;         /* outputs */
    int64_t plane, sample; /* pixels from block to block, and from sample to sample */
    float *sums;           /* [block of outputs][weight][output of the block] */
    float *transposed;
};

/* With few weights of an output, copying the gradient takes longer than wide tiles save. */
static bool reads_gradient(const struct dpt_direct *d)
{
    return d->rows <= FEW_ROWS &&
           (d->forward.outputs % LANES == 0 || d->shape.conv.window.groups == 1);
}

void dpt_direct_copy_gradient(const struct dpt_conv_shape *s, const float *dy, int32_t first,
                              int32_t samples, int32_t group, float *to)
{
    const int32_t outputs = s->out_channels / s->window.groups;
    const int64_t pixels = (int64_t)s->out[0] * s->out[1], plane = pixels * LANES;
    const int64_t block = dpt_gemm_block(outputs), sample = up(s->out_channels, LANES) * pixels;

    for (int64_t o = 0; o < outputs; o += block) {
        const int64_t n = least(outputs - o, block), width = up(n, LANES);
        const int32_t channel = group * outputs + (int32_t)o;

        for (int32_t i = first; i < first + samples; i++)
            for (int64_t p = 0; p < pixels; p++, to += width) {
                const float *from = dy + i * sample + channel / LANES * plane + p * LANES;

                if (channel % LANES == 0) {
                    for (int64_t k = 0; k < width; k += LANES)
                        memcpy(to + k, from + k / LANES * plane, LANES * sizeof *to);
                    continue;
                }
                for (int64_t k = 0; k < width; k++) {
                    const int64_t c = channel % LANES + k;

                    to[k] = k < n ? from[c / LANES * plane + c % LANES] : 0;
                }
            }
    }
}

/* Adds the sums over some rows of pixels, of all weights of a group. */
static void sum_rows(const struct dpt_direct *d, const struct work *w, int64_t first, int64_t rows,
                     bool add)
{
    const struct dpt_direct_pass *f = &d->forward;
    const struct dpt_conv_shape *s = &d->shape.conv;
    const int64_t columns = s->out[1];
    const int64_t row = s->window.stride[0] * f->lines.size[1] * f->lines.pitch;
    int64_t offsets[PIECE], of_b[PIECE];
    const struct dpt_direct_sum sum = {offsets, of_b, rows, columns,
                                       s->window.stride[1] * f->lines.pitch};
    float *c = w->sums;

    for (int64_t i = 0; i < rows; i++) {
        offsets[i] = (first + i) / s->out[0] * f->lines.sample + (first + i) % s->out[0] * row;
        of_b[i] = (first + i) / s->out[0] * w->sample + (first + i) % s->out[0] * columns;
    }
    for (int64_t o = 0; o < f->outputs; o += w->block) {
        const int64_t width = up(least(f->outputs - o, w->block), LANES);
        dpt_direct_tile *tile = dpt_direct_tile_for(d->shape.isa, (int)(width / LANES));
        const float *b = w->dy + o * w->plane;

        for (int64_t r = 0; r < d->rows; r += ROWS, c += ROWS * width) {
            const float *from[ROWS];

            for (int64_t i = 0; i < ROWS; i++)
                from[i] = w->lines + d->row[least(r + i, d->rows - 1)];
            tile(&sum, from, b, NULL, add, c, width, LANES);
        }
    }
}

/* Writes or adds a group's sums to its weights. */
static void give_sums(const struct dpt_direct *d, const struct work *w, bool add, float *dw)
{
    const int64_t outputs = d->forward.outputs;
    const float *c = w->sums;

    for (int64_t o = 0; o < outputs; o += w->block, dw += w->block * d->rows) {
        const int64_t n = least(outputs - o, w->block), width = up(n, LANES);

        dpt_transpose(c, width, d->rows, n, add ? w->transposed : dw, d->rows);
        if (add)
            dpt_accumulate(n * d->rows, w->transposed, true, dw);
        c += up(d->rows, ROWS) * width;
    }
}

void dpt_direct_weights(const struct dpt_direct *d, const float *x, const float *dy, bool add,
                        float *scratch, float *dw, float *db)
{
    const struct dpt_conv_shape *s = &d->shape.conv;
    const struct dpt_direct_pass *f = &d->forward;
    const int64_t outputs = up(f->outputs, LANES), all = up(f->all, LANES);
    const int64_t piece = least(most(1, PIECE / s->out[1]), PIECE);
    const bool copies = !reads_gradient(d);
    struct work w = {.sums = scratch,
                     .block = copies ? dpt_gemm_block(f->outputs) : LANES,
                     .sample = copies ? f->plane : all / LANES * f->plane};

    w.copy = w.sums + up(d->rows, ROWS) * outputs;
    w.lines = w.copy + f->samples * f->plane * outputs;
    w.transposed = w.lines + up(f->samples * f->lines.sample, LANES) + DPT_DIRECT_SLACK;
    for (int32_t group = 0; group < s->window.groups; group++) {
        for (int32_t first = 0; first < s->n; first += f->samples) {
            const int32_t samples = (int32_t)least(s->n - first, f->samples);
            const int64_t rows = (int64_t)samples * s->out[0];

            write_samples(&f->lines, x, first, samples, group, w.lines);
            w.dy = copies ? w.copy : dy + (first * all + group * f->outputs) * f->plane;
            w.plane = copies ? samples * f->plane : f->plane;
            if (copies)
                dpt_direct_copy_gradient(s, dy, first, samples, group, w.copy);
            for (int64_t at = 0; at < rows; at += piece)
                sum_rows(d, &w, at, least(rows - at, piece), first + at > 0);
        }
        give_sums(d, &w, add, dw + group * f->outputs * d->rows);
    }
    if (db != NULL)
        dpt_direct_bias(s, dy, add, db);
}

typedef float lanes __attribute__((vector_size(64)));

/* The sum of n pixels of a block: four chains, or the additions would wait for each other. */
DPT_VECTOR static void sum_block(const float *restrict block, int64_t n, float *restrict sum)
{
    lanes sums[4] = {{0}}, all;

    for (int64_t i = 0; i < n; i++) {
        lanes pixel;

        memcpy(&pixel, block + i * LANES, sizeof pixel);
        sums[i % 4] += pixel;
    }
    memcpy(&all, sum, sizeof all);
    all += (sums[0] + sums[1]) + (sums[2] + sums[3]);
    memcpy(sum, &all, sizeof all);
}

void dpt_direct_bias(const struct dpt_conv_shape *s, const float *dy, bool add, float *db)
{
    const int64_t plane = (int64_t)s->out[0] * s->out[1], blocks = parts(s->out_channels, LANES);

    for (int64_t b = 0; b < blocks; b++) {
        const int64_t n = least(s->out_channels - b * LANES, LANES);
        float sum[LANES] = {0};

        for (int32_t i = 0; i < s->n; i++)
            sum_block(dy + (i * blocks + b) * plane * LANES, plane, sum);
        for (int64_t lane = 0; lane < n; lane++)
            db[b * LANES + lane] = add ? db[b * LANES + lane] + sum[lane] : sum[lane];
    }
}
