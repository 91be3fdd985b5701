#include "core/backend/cpu/bf16/bf16_conv.h"

#include <string.h>

#include "core/backend/cpu/bf16/bf16_conv_lanes.h"
#include "core/backend/cpu/bf16/bf16_conv_private.h"
#include "core/backend/cpu/fp32/kernels.h"

/* --- weights ---------------------------------------------------------------------------------- */

int64_t dpt_bf16_conv_packed(const struct dpt_bf16_conv *conv, bool data)
{
    int64_t tiles = 0;

    for (int32_t i = 0; data && i < conv->n_data; i++)
        tiles += pass_tiles(&conv->data[i], &conv->dy, conv->shape.in_channels);
    if (!data)
        tiles = pass_tiles(&conv->forward, &conv->x, conv->shape.out_channels);
    return tiles * TILE / 2;
}

/* from: the number in a filter for each of 32 places along k; -1: none. */
static void list_numbers(const struct view *v, const struct run *run, int64_t step,
                         int32_t channels, int64_t each, int32_t from[DEPTH])
{
    for (int32_t i = 0; i < DEPTH; i++) {
        const int64_t tap = v->lanes >= DEPTH ? 0 : i / v->lanes;
        const int64_t channel = v->lanes >= DEPTH ? step * DEPTH + i : i % v->lanes;

        from[i] =
            tap < run->n && channel < channels ? (int32_t)(channel * each + run->number[tap]) : -1;
    }
}

/* columns: numbers that are apart by `next`; a channel's are apart by `each`. It goes over all taps
 * of 32 channels before the next ones, since their numbers share cache lines. */
static void pack_pass(const struct pass *p, const struct view *v, const float *weights,
                      int32_t channels, int64_t each, int32_t columns, int64_t next, uint16_t *to)
{
    const int64_t steps = steps_of(v);

    to += p->packed * TILE;
    for (int32_t o = 0; o < up(columns, PAIR); o += PAIR, to += p->n_runs * steps * 2 * TILE) {
        for (int64_t step = 0; step < steps; step++) {
            for (int32_t r = 0; r < p->n_runs; r++) {
                uint16_t *tile = to + (r * steps + step) * 2 * TILE;
                int32_t from[DEPTH];

                list_numbers(v, &p->runs[r], step, channels, each, from);
                for (int32_t t = o; t < o + PAIR; t += SIDE, tile += TILE)
                    dpt_bf16_conv_lanes.pack(weights + (t < columns ? t * next : 0), from, next,
                                             (int32_t)most(columns - t, 0), tile);
            }
        }
    }
}

void dpt_bf16_conv_pack(const struct dpt_bf16_conv *conv, bool data, const float *weights,
                        float *packed)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const int64_t taps = conv->taps, filter = s->in_channels * taps;

    if (!data)
        pack_pass(&conv->forward, &conv->x, weights, s->in_channels, taps, s->out_channels, filter,
                  (uint16_t *)packed);
    for (int32_t i = 0; data && i < conv->n_data; i++)
        pack_pass(&conv->data[i], &conv->dy, weights, s->out_channels, filter, s->in_channels, taps,
                  (uint16_t *)packed);
}

/* --- forward, and the gradient of the input --------------------------------------------------- */

/* Whether products can be written to the result directly. */
static bool is_direct(const struct dpt_bf16_result *result)
{
    return result->bias == NULL && result->added == NULL && !result->relu && result->step == SIDE;
}

/* The result from its number `at` on. */
static struct dpt_bf16_result result_at(const struct dpt_bf16_result *from, int64_t at)
{
    struct dpt_bf16_result to = *from;

    to.y += at;
    to.argmax = from->argmax != NULL ? from->argmax + at : NULL;
    to.added = from->added != NULL ? from->added + at : NULL;
    to.known = from->known != NULL ? from->known + at : NULL;
    return to;
}

/* Computes a pair of blocks whose rows are whole tiles: two tiles of a row at a time, or one tile
 * of each of two rows. products: memory for products that cannot be written directly. */
static void run_rows(const struct dpt_bf16_conv *conv, const struct pass *p, const struct view *v,
                     struct dpt_bf16_product product, const uint16_t *line, const uint16_t *b,
                     float *products, const struct dpt_bf16_result *result)
{
    const bool narrow = p->grid[1] == SIDE;
    /* Two rows are written as one only if the result has them without a gap. */
    const bool direct = is_direct(result) && (!narrow || result->line == (int64_t)SIDE * SIDE);

    product.c_tile = direct ? result->plane : SIDE;
    product.a_tile = (narrow ? v->pitch : SIDE) * (int64_t)v->lanes;
    for (int32_t row = 0; row < p->grid[0]; row += narrow ? 2 : 1)
        for (int32_t column = 0; column < p->grid[1]; column += PAIR) {
            const bool two = narrow ? row + 1 < p->grid[0] : column + SIDE < p->grid[1];
            const uint16_t *a = line + ((int64_t)row * v->pitch + column) * v->lanes;
            struct dpt_bf16_result to =
                result_at(result, row * result->line + column * result->step);

            product.m = two ? 2 : 1;
            if (direct) {
                conv->kernels->multiply(&product, a, b, false, to.y, SIDE);
                continue;
            }
            conv->kernels->multiply(&product, a, b, false, products, PAIR);
            to.sum = products;
            to.pitch = SIDE;
            to.rows = narrow && two ? 2 : 1;
            to.columns = narrow || !two ? SIDE : PAIR;
            dpt_bf16_conv_lanes.give(&to);
        }
}

static void give_sample(const struct dpt_bf16_result *first, int64_t products, int64_t outputs)
{
    struct dpt_bf16_result result = result_at(first, outputs);

    result.sum += products;
    dpt_bf16_conv_lanes.give(&result);
}

/* Computes a pass over a packed line. result: the first output of the first block of its first
 * sample; `out` floats further is the next sample's. Going through a wide convolution's weights one
 * part at a time over all places, so that a part stays in the L1 cache, was slower (resnet18's
 * third layer: 1.4 -> 1.6 ms). */
static void run_pass(const struct dpt_bf16_conv *conv, const struct pass *p, const struct view *v,
                     const uint16_t *line, const float *packed, int32_t outputs, int64_t out,
                     float *products, struct dpt_bf16_result result)
{
    const int64_t each = p->n_runs * steps_of(v) * 2 * TILE;
    const int32_t band = band_of(p, v), apart = result.pool ? 2 : 1;
    const uint16_t *b = (const uint16_t *)packed + p->packed * TILE;
    struct dpt_bf16_product product = {.taps = p->n_runs,
                                       .steps = steps_of(v),
                                       .tap = p->run_at,
                                       .a_row = v->lanes,
                                       .a_tile = (int64_t)SIDE * v->lanes,
                                       .a_step = DEPTH,
                                       .b_tile = TILE,
                                       .b_step = 2 * TILE,
                                       .b_tap = steps_of(v) * 2 * TILE,
                                       .c_tile = SIDE};

    for (int32_t o = 0; o < outputs; o += PAIR, b += each) {
        struct dpt_bf16_result to = result_at(&result, o / SIDE * result.plane);

        to.bias = result.bias != NULL ? result.bias + o : NULL;
        to.blocks = product.n = outputs - o > SIDE ? 2 : 1;
        if (v->samples == 1 && p->grid[1] % SIDE == 0 && !result.pool) {
            run_rows(conv, p, v, product, line, b, products, &to);
            continue;
        }
        to.sum = products;
        to.pitch = v->pitch;
        to.columns = p->grid[1];
        for (int32_t row = 0; row < p->grid[0]; row += band) {
            const int64_t start = (int64_t)row * v->pitch;
            int64_t places;

            to.rows = (int32_t)least(p->grid[0] - row, band);
            places = ((int64_t)(v->samples - 1) * v->rows + to.rows) * v->pitch;
            for (int64_t q = 0; q < places; q += PAIR) {
                product.m = places - q > SIDE ? 2 : 1;
                conv->kernels->multiply(&product, line + (start + q) * v->lanes, b, false,
                                        products + q * PAIR, PAIR);
            }
            for (int32_t sample = 0; sample < v->samples; sample++)
                give_sample(&to, (int64_t)sample * v->rows * v->pitch * PAIR, sample * out);
            to = result_at(&to, to.rows / apart * result.line);
        }
    }
}

/* The number that is so many after the first one. */
static const void *number_at(const void *x, bool bf16, int64_t at)
{
    return (const char *)x + at * (bf16 ? 2 : 4);
}

static struct dpt_bf16_pixels pixels_of(const struct dpt_bf16_conv *conv, const void *x,
                                        int32_t sample)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const bool planes = s->x == DPT_LAYOUT_NCHW;
    const int64_t each = dpt_layout_floats(s->x, s->in_channels, s->in[0], s->in[1]);

    return (struct dpt_bf16_pixels){.x = number_at(x, s->x_bf16, sample * each),
                                    .bf16 = s->x_bf16,
                                    .table = conv->x.table,
                                    .places = x_places(conv),
                                    .plane = (int64_t)s->in[0] * s->in[1] * (planes ? 1 : SIDE),
                                    .channels = s->in_channels,
                                    .planes = planes};
}

/* Numbers along k in the longest run of a pass. */
static int depth_of(const struct pass *p, const struct view *v)
{
    int n = 1;

    for (int32_t i = 0; i < p->n_runs; i++)
        n = p->runs[i].n > n ? p->runs[i].n : n;
    return (int)least((int64_t)n * v->lanes, DEPTH);
}

void dpt_bf16_conv_forward(const struct dpt_bf16_conv *conv, int32_t samples, const void *x,
                           const float *packed, const float *bias, const float *added,
                           float *scratch, float *y, int8_t *argmax)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const int32_t *size = s->pool ? s->pooled : s->out;
    const int64_t plane = (int64_t)size[0] * size[1] * SIDE;
    const int64_t out = blocks_of(s->out_channels) * plane;
    const struct dpt_bf16_conv_memory m = dpt_bf16_conv_arrange(conv, scratch);

    conv->kernels->begin(depth_of(&conv->forward, &conv->x));
    for (int32_t i = 0; i < samples; i += conv->stack) {
        const struct dpt_bf16_pixels pixels = pixels_of(conv, x, i);

        dpt_bf16_conv_lanes.line(&pixels, conv->x.lanes, m.line);
        run_pass(conv, &conv->forward, &conv->x, m.line, packed, s->out_channels, out, m.products,
                 (struct dpt_bf16_result){.bias = bias,
                                          .added = added != NULL ? added + i * out : NULL,
                                          .relu = s->relu,
                                          .pool = s->pool,
                                          .y = y + i * out,
                                          .argmax = argmax != NULL ? argmax + i * out : NULL,
                                          .plane = plane,
                                          .line = (int64_t)size[1] * SIDE,
                                          .step = SIDE});
    }
    conv->kernels->end();
}

static struct dpt_bf16_pixels gradient_of(const struct dpt_bf16_conv *conv,
                                          const struct dpt_bf16_conv_work *work, int32_t sample,
                                          const struct view *v, int64_t places)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const int32_t *size = s->pool ? s->pooled : s->out;
    const int64_t plane = (int64_t)size[0] * size[1] * SIDE;
    const int64_t at = sample * blocks_of(s->out_channels) * plane;

    return (struct dpt_bf16_pixels){.x = number_at(work->dy, work->dy_bf16, at),
                                    .bf16 = work->dy_bf16,
                                    .argmax = s->pool ? work->argmax + at : NULL,
                                    .table = v->table,
                                    .places = places,
                                    .plane = plane,
                                    .channels = s->out_channels};
}

static void input_gradient(const struct dpt_bf16_conv *conv, const struct dpt_bf16_conv_work *work,
                           const struct dpt_bf16_conv_memory *m, int32_t sample)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const struct dpt_bf16_pixels pixels =
        gradient_of(conv, work, sample, &conv->dy, conv->dy.length);
    const int64_t plane = (int64_t)s->in[0] * s->in[1] * SIDE;
    const int64_t first = sample * blocks_of(s->in_channels) * plane;

    dpt_bf16_conv_lanes.line(&pixels, conv->dy.lanes, m->line);
    for (int32_t i = 0; i < conv->n_data; i++) {
        const struct pass *p = &conv->data[i];
        const int64_t at = first + ((int64_t)p->phase[0] * s->in[1] + p->phase[1]) * SIDE;

        run_pass(conv, p, &conv->dy, m->line, work->packed, s->in_channels,
                 blocks_of(s->in_channels) * plane, m->products,
                 (struct dpt_bf16_result){.added = work->added != NULL ? work->added + at : NULL,
                                          .known = work->known != NULL ? work->known + at : NULL,
                                          .y = work->dx + at,
                                          .plane = plane,
                                          .line = (int64_t)s->window.stride[0] * s->in[1] * SIDE,
                                          .step = (int64_t)s->window.stride[1] * SIDE});
    }
}

/* --- the gradient of the weights -------------------------------------------------------------- */

/* The place of tile t of a group's rows in the planes of a sample. */
static int64_t row_tile(const struct dpt_bf16_conv *conv, int32_t group, int64_t t)
{
    const int32_t blocks = group_blocks(conv, group);

    if (is_unrolled(conv))
        return t * SIDE * plane_of(conv);
    return conv->forward.taps[t / blocks].at + (group * 2 + t % blocks) * SIDE * x_places(conv);
}

/* A sample's input, channel by channel. */
static void pack_planes(const struct dpt_bf16_conv *conv, const struct dpt_bf16_conv_memory *m,
                        const struct dpt_bf16_pixels *pixels, uint16_t *to)
{
    const int64_t line = plane_of(conv);

    if (!is_unrolled(conv)) {
        dpt_bf16_conv_lanes.planes(pixels, line, to);
        return;
    }
    dpt_bf16_conv_lanes.planes(pixels, x_places(conv), m->few);
    for (int32_t c = 0; c < conv->shape.in_channels; c++)
        for (int32_t tap = 0; tap < conv->taps; tap++, to += line)
            memcpy(to, m->few + c * x_places(conv) + conv->forward.taps[tap].at,
                   (size_t)line * sizeof *to);
}

/* Adds the products of some samples to the sums of a group of inputs and a pair of blocks of
 * outputs. */
static void add_group(const struct dpt_bf16_conv *conv, const struct dpt_bf16_conv_memory *m,
                      int32_t samples, int32_t group, int64_t pair, bool add, float *sums)
{
    const int64_t tiles = group_tiles(conv, group);

    for (int64_t t = 0; t < tiles; t += 2, sums += (ptrdiff_t)PAIR * PAIR) {
        const int64_t at = row_tile(conv, group, t);
        const struct dpt_bf16_product product = {
            .m = t + 1 < tiles ? 2 : 1,
            .n = conv->shape.out_channels - pair * PAIR > SIDE ? 2 : 1,
            .taps = samples,
            .steps = grid_places(conv) / DEPTH,
            .tap = conv->samples,
            .a_row = plane_of(conv),
            .a_tile = t + 1 < tiles ? row_tile(conv, group, t + 1) - at : 0,
            .a_step = DEPTH,
            .b_tile = TILE,
            .b_step = (int64_t)gradient_tiles(conv) * TILE,
            .b_tap = tiles_of(conv),
            .c_tile = SIDE};

        conv->kernels->multiply(&product, m->planes + at, m->tiles + pair * 2 * TILE, add, sums,
                                PAIR);
    }
}

/* Writes the sums of a group in canonical order: dw[out][in][tap]. */
static void hand_over(const struct dpt_bf16_conv *conv, int32_t group, int64_t pair,
                      const float *sums, bool add, float *dw)
{
    const int64_t outputs = least(conv->shape.out_channels, (pair + 1) * PAIR);
    const int64_t filter = (int64_t)conv->shape.in_channels * conv->taps;
    const int64_t first = (int64_t)group * PAIR * conv->taps;
    const int64_t n = group + 1 == groups_of(conv) ? filter - first : (int64_t)PAIR * conv->taps;

    for (int64_t o = pair * PAIR; o < outputs; o += SIDE)
        dpt_bf16_conv_lanes.gather(sums + o % PAIR, conv->sums + first, n,
                                   (int32_t)least(outputs - o, SIDE), add, dw + o * filter + first,
                                   filter);
}

/* Adds the products of some samples; with the last ones a group's sums go to the gradient while
 * they are in the nearest cache. */
static void add_samples(const struct dpt_bf16_conv *conv, const struct dpt_bf16_conv_memory *m,
                        int32_t samples, bool first, bool last,
                        const struct dpt_bf16_conv_work *work)
{
    const int64_t pairs = parts(conv->shape.out_channels, PAIR);
    float *sums = m->sums;

    for (int64_t pair = 0; pair < pairs; pair++)
        for (int32_t group = 0; group < groups_of(conv); group++) {
            add_group(conv, m, samples, group, pair, !first, sums);
            if (last)
                hand_over(conv, group, pair, sums, work->add, work->dw);
            sums += keeps_sums(conv) ? group_floats(conv) : 0;
        }
}

static void add_bias(const struct dpt_bf16_conv *conv, const struct dpt_bf16_conv_work *work,
                     int32_t sample, float *bias)
{
    for (int32_t i = 0; i < conv->stack; i++) {
        const struct dpt_bf16_pixels gradient = gradient_of(conv, work, sample + i, &conv->grid, 0);

        dpt_bf16_conv_lanes.sum(&gradient, gradient.plane / SIDE, bias);
    }
}

void dpt_bf16_conv_backward(const struct dpt_bf16_conv *conv, const struct dpt_bf16_conv_work *work)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const int64_t x_floats = dpt_layout_floats(s->x, s->in_channels, s->in[0], s->in[1]);
    const struct dpt_bf16_conv_memory m = dpt_bf16_conv_arrange(conv, work->scratch);
    /* Samples after `count` have no gradient, so they add nothing in the last line. */
    const int32_t lines = (int32_t)parts(work->count, conv->stack), done = lines * conv->stack;

    memset(m.bias, 0, (size_t)up(s->out_channels, PAIR) * sizeof *m.bias);
    conv->kernels->begin(DEPTH);
    for (int32_t first = 0; first < lines; first += conv->together) {
        const int32_t n = (int32_t)least(lines - first, conv->together);

        for (int32_t i = 0; i < n; i++) {
            const int32_t sample = (first + i) * conv->stack;
            const struct dpt_bf16_pixels pixels = pixels_of(conv, work->x, sample);
            const struct dpt_bf16_pixels gradient =
                gradient_of(conv, work, sample, &conv->grid, grid_places(conv));

            if (work->db != NULL)
                add_bias(conv, work, sample, m.bias);
            if (work->dw != NULL) {
                dpt_bf16_conv_lanes.tiles(&gradient, gradient_tiles(conv),
                                          m.tiles + i * tiles_of(conv));
                pack_planes(conv, &m, &pixels, m.planes + i * planes_of(conv));
            }
            if (work->dx != NULL)
                input_gradient(conv, work, &m, sample);
        }
        if (work->dw != NULL)
            add_samples(conv, &m, n, first == 0, first + n == lines, work);
    }
    conv->kernels->end();
    if (work->dx != NULL)
        memset(work->dx + done * x_floats, 0,
               (size_t)((work->micro - done) * x_floats) * sizeof *work->dx);
    if (work->db != NULL)
        dpt_accumulate(s->out_channels, m.bias, work->add, work->db);
}
