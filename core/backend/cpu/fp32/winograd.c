#include "core/backend/cpu/fp32/winograd.h"

#include <string.h>

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/numbers.h"

enum {
    ALL = DPT_WINOGRAD_TOGETHER,
    LANES = DPT_WINOGRAD_LANES,
    POINTS = DPT_WINOGRAD_POINTS,
    BATCH = DPT_WINOGRAD_BATCH,
    OUT = DPT_WINOGRAD_OUT,
    /* Packing larger layers' weights, four times their size, takes as long as is won. */
    MOST_WEIGHTS = 128 * 128,
    NEAR = 64 * 128, /* as many stay in the cache between two batches of tiles */
    TOGETHER = 2,    /* batches of tiles for which more of them are read once */
    LEAST_CHANNELS = 16,
};

static int32_t tiles_along(const struct dpt_winograd *w, int axis)
{
    const int32_t outputs = w->pool ? w->pooled[axis] * 2 : w->out[axis];

    return (outputs + OUT - 1) / OUT;
}

bool dpt_winograd_pays(const struct dpt_winograd *w)
{
    const int64_t tiles = (int64_t)tiles_along(w, 0) * tiles_along(w, 1);
    const int64_t outputs = (int64_t)w->out[0] * w->out[1];

    /* 36 products per tile instead of 9 per output; the transforms cost about half as much
     * again. */
    return w->kernels != NULL && w->in_channels >= LEAST_CHANNELS &&
           w->out_channels >= LEAST_CHANNELS && w->in_channels * w->out_channels <= MOST_WEIGHTS &&
           tiles * POINTS * 3 <= outputs * 9 * 2;
}

static int32_t inputs_of(const struct dpt_winograd *w)
{
    return (int32_t)up(w->in_channels, LANES);
}

static int32_t groups_of(const struct dpt_winograd *w)
{
    return (int32_t)parts(w->out_channels, w->kernels->group);
}

/* Batches of tiles that are taken before the first group of outputs is multiplied. */
static int32_t together_of(const struct dpt_winograd *w)
{
    return w->in_channels * w->out_channels <= NEAR ? 1 : TOGETHER;
}

int64_t dpt_winograd_scratch(const struct dpt_winograd *w)
{
    return (int64_t)POINTS * BATCH * (together_of(w) * inputs_of(w) + w->kernels->group) +
           w->kernels->group;
}

int64_t dpt_winograd_packed(const struct dpt_winograd *w)
{
    return (int64_t)groups_of(w) * POINTS * inputs_of(w) * w->kernels->group;
}

/* --- weights ---------------------------------------------------------------------------------- */

/* G g for LANES filters at once: three numbers become six. */
static inline __attribute__((always_inline)) void pack_line(float g[3][LANES], float t[6][LANES])
{
    for (int i = 0; i < LANES; i++) {
        const float even = g[0][i] + g[2][i], even2 = g[0][i] + 4 * g[2][i];

        t[0][i] = g[0][i] * (1 / 4.0f);
        t[1][i] = (even + g[1][i]) * (-1 / 6.0f);
        t[2][i] = (even - g[1][i]) * (-1 / 6.0f);
        t[3][i] = (even2 + 2 * g[1][i]) * (1 / 24.0f);
        t[4][i] = (even2 - 2 * g[1][i]) * (1 / 24.0f);
        t[5][i] = g[2][i];
    }
}

/* G g G^T of LANES filters, `next` floats from one to the next. Points are `step` floats apart. */
DPT_VECTOR static void pack_filters(int32_t filters, const float *weights, int64_t next,
                                    bool turned, float *to, int64_t step)
{
    float g[9][LANES] = {{0}}, t[3][6][LANES], out[6][LANES];

    for (int32_t i = 0; i < filters; i++)
        for (int tap = 0; tap < 9; tap++)
            g[tap][i] = weights[i * next + (turned ? 8 - tap : tap)];
    for (int r = 0; r < 3; r++)
        pack_line(g + 3 * r, t[r]);
    for (int c = 0; c < 6; c++) {
        float column[3][LANES];

        for (int r = 0; r < 3; r++)
            memcpy(column[r], t[r][c], sizeof column[r]);
        pack_line(column, out);
        for (int r = 0; r < 6; r++)
            memcpy(to + (r * 6 + c) * step, out[r], sizeof out[r]);
    }
}

/* [group of outputs][point][input][output of the group] */
void dpt_winograd_pack(const struct dpt_winograd *w, const float *weights, bool turned,
                       float *packed)
{
    const int32_t group = w->kernels->group, inputs = inputs_of(w);
    const int64_t next = turned ? 9 : (int64_t)w->in_channels * 9;
    const int64_t each = turned ? (int64_t)w->out_channels * 9 : 9;

    memset(packed, 0, (size_t)dpt_winograd_packed(w) * sizeof *packed);
    for (int32_t out = 0; out < w->out_channels; out += LANES) {
        const int32_t left = w->out_channels - out;
        float *to = packed + (int64_t)(out / group) * POINTS * inputs * group + out % group;

        for (int32_t in = 0; in < w->in_channels; in++)
            pack_filters(left < LANES ? left : LANES, weights + out * next + in * each, next,
                         turned, to + (int64_t)in * group, (int64_t)inputs * group);
    }
}

/* --- forward ---------------------------------------------------------------------------------- */

struct tile {
    int32_t sample, row, column; /* of its first output */
};

static struct tile tile_at(const struct dpt_winograd *w, int64_t number)
{
    const int32_t across = tiles_along(w, 1), each = tiles_along(w, 0) * across;
    const int32_t rest = (int32_t)(number % each);

    return (struct tile){(int32_t)(number / each), rest / across * OUT, rest % across * OUT};
}

/* batch: tiles that v has room for. */
static void take_tiles(const struct dpt_winograd *w, int64_t first, int32_t tiles, const float *x,
                       int32_t batch, float *v)
{
    const int32_t inputs = inputs_of(w);
    const int64_t plane = (int64_t)w->in[0] * w->in[1] * LANES;

    for (int32_t i = 0; i < tiles; i++) {
        const struct tile t = tile_at(w, first + i);
        const int32_t at[2] = {t.row - w->before[0], t.column - w->before[1]};

        for (int32_t b = 0; b < inputs / LANES; b++)
            w->kernels->take(x + (t.sample * (int64_t)(inputs / LANES) + b) * plane, w->in, at,
                             v + (int64_t)i * inputs + b * LANES, (int64_t)batch * inputs);
    }
}

/* The outputs of one group of channels. */
static void give_tiles(const struct dpt_winograd *w, int64_t first, int32_t tiles, int32_t channel,
                       const float *m, const float *bias, float *y, int32_t *argmax)
{
    const int32_t blocks = (int32_t)parts(w->out_channels, LANES), group = w->kernels->group;
    const int32_t *size = w->pool ? w->pooled : w->out;
    const int64_t plane = (int64_t)size[0] * size[1] * LANES;

    for (int32_t i = 0; i < tiles; i++) {
        const struct tile t = tile_at(w, first + i);

        for (int32_t c = 0; c < group && channel + c < w->out_channels; c += LANES) {
            const int64_t at = (t.sample * (int64_t)blocks + (channel + c) / LANES) * plane;
            const struct dpt_winograd_target target = {.y = y + at,
                                                       .argmax =
                                                           argmax != NULL ? argmax + at : NULL,
                                                       .size = {size[0], size[1]},
                                                       .row = t.row,
                                                       .column = t.column,
                                                       .pool = w->pool,
                                                       .relu = w->relu};

            w->kernels->give(m + i * group + c, (int64_t)BATCH * group, bias + c, &target);
        }
    }
}

void dpt_winograd_forward(const struct dpt_winograd *w, int32_t samples, const float *x,
                          const float *packed, const float *bias, float *scratch, float *y,
                          int32_t *argmax)
{
    const int32_t inputs = inputs_of(w), group = w->kernels->group;
    const int64_t all = (int64_t)samples * tiles_along(w, 0) * tiles_along(w, 1);
    const int64_t together = (int64_t)together_of(w) * BATCH, each = (int64_t)POINTS * inputs;
    float *v = scratch, *m = v + together * each;
    float *none = m + (int64_t)POINTS * BATCH * group; /* zeros: no bias */

    memset(none, 0, (size_t)group * sizeof *none);
    for (int64_t first = 0; first < all; first += together) {
        const int64_t end = all - first < together ? all : first + together;

        for (int64_t at = first; at < end; at += BATCH)
            take_tiles(w, at, (int32_t)(end - at < BATCH ? end - at : BATCH), x, BATCH,
                       v + (at - first) * each);
        for (int32_t g = 0; g < groups_of(w); g++)
            for (int64_t at = first; at < end; at += BATCH) {
                const int32_t tiles = (int32_t)(end - at < BATCH ? end - at : BATCH);

                w->kernels->multiply(tiles, inputs, w->out_channels - g * group,
                                     v + (at - first) * each, packed + g * each * group, m);
                give_tiles(w, at, tiles, g * group, m, bias != NULL ? bias + g * group : none, y,
                           argmax);
            }
    }
}

/* --- the gradient of the weights -------------------------------------------------------------- */

static int32_t outputs_of(const struct dpt_winograd *w)
{
    return (int32_t)up(w->out_channels, LANES);
}

int64_t dpt_winograd_weights_scratch(const struct dpt_winograd *w)
{
    const int64_t inputs = inputs_of(w), outputs = outputs_of(w);

    return POINTS * (ALL * (inputs + outputs) + inputs * outputs);
}

/* G^T t for LANES filters at once: six numbers become three. */
static inline __attribute__((always_inline)) void unpack_line(float t[6][LANES], float g[3][LANES])
{
    for (int i = 0; i < LANES; i++) {
        const float even = t[1][i] + t[2][i], even2 = t[3][i] + t[4][i];

        g[0][i] = t[0][i] * (1 / 4.0f) - even * (1 / 6.0f) + even2 * (1 / 24.0f);
        g[1][i] = (t[2][i] - t[1][i]) * (1 / 6.0f) + (t[3][i] - t[4][i]) * (1 / 12.0f);
        g[2][i] = (even2 - even) * (1 / 6.0f) + t[5][i];
    }
}

/* G^T u G of LANES filters, whose points are `step` floats apart, into filters `next` floats
 * apart. */
DPT_VECTOR static void unpack_filters(int32_t filters, const float *u, int64_t step, bool add,
                                      float *dw, int64_t next)
{
    float t[6][LANES], columns[3][6][LANES], g[3][3][LANES];

    for (int c = 0; c < 6; c++) {
        float column[3][LANES];

        for (int r = 0; r < 6; r++)
            memcpy(t[r], u + (r * 6 + c) * step, sizeof t[r]);
        unpack_line(t, column);
        for (int r = 0; r < 3; r++)
            memcpy(columns[r][c], column[r], sizeof column[r]);
    }
    for (int r = 0; r < 3; r++)
        unpack_line(columns[r], g[r]);
    for (int32_t i = 0; i < filters; i++)
        for (int tap = 0; tap < 9; tap++)
            dw[i * next + tap] = g[tap / 3][tap % 3][i] + (add ? dw[i * next + tap] : 0);
}

static void spread_tiles(const struct dpt_winograd *w, int64_t first, int32_t tiles,
                         const float *dy, float *d)
{
    const int32_t outputs = outputs_of(w);
    const int64_t plane = (int64_t)w->out[0] * w->out[1] * LANES;

    for (int32_t i = 0; i < tiles; i++) {
        const struct tile t = tile_at(w, first + i);
        const int32_t at[2] = {t.row, t.column};

        for (int32_t b = 0; b < outputs / LANES; b++)
            w->kernels->spread(dy + (t.sample * (int64_t)(outputs / LANES) + b) * plane, w->out, at,
                               d + (int64_t)i * outputs + b * LANES, (int64_t)ALL * outputs);
    }
}

void dpt_winograd_weights(const struct dpt_winograd *w, int32_t samples, const float *x,
                          const float *dy, bool add, float *scratch, float *dw)
{
    const int32_t inputs = inputs_of(w), outputs = outputs_of(w);
    const int64_t all = (int64_t)samples * tiles_along(w, 0) * tiles_along(w, 1);
    const int64_t filter = (int64_t)w->in_channels * 9;
    float *v = scratch, *d = v + (int64_t)POINTS * ALL * inputs;
    float *u = d + (int64_t)POINTS * ALL * outputs;

    for (int64_t first = 0; first < all; first += ALL) {
        const int32_t tiles = (int32_t)(all - first < ALL ? all - first : ALL);

        take_tiles(w, first, tiles, x, ALL, v);
        spread_tiles(w, first, tiles, dy, d);
        w->kernels->accumulate(tiles, first > 0, inputs, outputs, v, d, u);
    }
    for (int32_t out = 0; out < w->out_channels; out += LANES) {
        const int32_t left = w->out_channels - out;

        for (int32_t in = 0; in < w->in_channels; in++)
            unpack_filters(left < LANES ? left : LANES, u + (int64_t)in * outputs + out,
                           (int64_t)inputs * outputs, add, dw + out * filter + (int64_t)in * 9,
                           filter);
    }
}
