#include "core/backend/cpu/fp32/kernels.h"

#include <string.h>

#include "core/base/vector.h"

/* The part of a window that lies inside the plane: elements [first, last) along each axis, and
 * where element 0 would be. */
struct window {
    int32_t origin[2], first[2], last[2];
};

/* inside: no window reaches over the edge. */
DPT_INLINE struct window window_at(const struct dpt_pool_shape *s, bool inside, int32_t row,
                                   int32_t column)
{
    const int32_t at[2] = {row, column};
    struct window w;

    for (int i = 0; i < 2; i++) {
        const int32_t origin = at[i] * s->stride[i] - s->before[i];

        w.origin[i] = origin;
        w.first[i] = inside || origin > 0 ? 0 : -origin;
        w.last[i] = inside || origin + s->kernel[i] <= s->in[i] ? s->kernel[i] : s->in[i] - origin;
    }
    return w;
}

/* The first element of a window's row `k`, lane 0 of a chunk of lanes. */
DPT_INLINE int64_t element(const struct dpt_pool_shape *s, const struct window *w, int32_t k,
                           int32_t j)
{
    return ((int64_t)(w->origin[0] + k) * s->in[1] + w->origin[1] + j) * s->block;
}

/*
 * One output position, `lanes` channels. The first of equal values wins; NaN wins over all. Locals
 * instead of the output arrays: the compiler keeps them in registers.
 */
DPT_INLINE void max_window(const struct dpt_pool_shape *s, const struct window *w, int lanes,
                           bool relu, const float *x, float *y, int32_t *argmax)
{
    float best[DPT_LANES];
    int32_t where[DPT_LANES];
    const float *p = x + element(s, w, w->first[0], w->first[1]);

    DPT_EACH_LANE(c, lanes)
    {
        best[c] = p[c];
        where[c] = w->first[0] * s->kernel[1] + w->first[1];
    }
    for (int32_t k = w->first[0]; k < w->last[0]; k++) {
        for (int32_t j = w->first[1]; j < w->last[1]; j++) {
            const int32_t number = k * s->kernel[1] + j;

            p = x + element(s, w, k, j);
            DPT_EACH_LANE(c, lanes)
            {
                const bool wins = (p[c] > best[c]) | (p[c] != p[c]);

                where[c] = wins ? number : where[c];
                best[c] = wins ? p[c] : best[c];
            }
        }
    }
    DPT_EACH_LANE(c, lanes)
    {
        y[c] = relu && best[c] < 0 ? 0 : best[c];
        where[c] = relu && !(best[c] > 0) ? -1 : where[c];
    }
    if (argmax != NULL)
        memcpy(argmax, where, (size_t)lanes * sizeof *argmax);
}

DPT_INLINE void max_back_window(const struct dpt_pool_shape *s, const struct window *w, int lanes,
                                bool overlap, const float *dy, const int32_t *argmax, float *dx)
{
    for (int32_t k = w->first[0]; k < w->last[0]; k++) {
        for (int32_t j = w->first[1]; j < w->last[1]; j++) {
            const int32_t number = k * s->kernel[1] + j;
            float *p = dx + element(s, w, k, j);

            DPT_EACH_LANE(c, lanes)
            {
                const float share = argmax[c] == number ? dy[c] : 0;

                p[c] = overlap ? p[c] + share : share;
            }
        }
    }
}

DPT_INLINE void average_window(const struct dpt_pool_shape *s, const struct window *w, int lanes,
                               const float *x, float *y)
{
    const float scale = 1.0f / (float)(s->kernel[0] * s->kernel[1]);
    float sum[DPT_LANES] = {0};

    for (int32_t k = w->first[0]; k < w->last[0]; k++) {
        for (int32_t j = w->first[1]; j < w->last[1]; j++) {
            const float *p = x + element(s, w, k, j);

            DPT_EACH_LANE(c, lanes)
            sum[c] += p[c];
        }
    }
    DPT_EACH_LANE(c, lanes)
    y[c] = sum[c] * scale;
}

DPT_INLINE void average_back_window(const struct dpt_pool_shape *s, const struct window *w,
                                    int lanes, const float *dy, float *dx)
{
    const float scale = 1.0f / (float)(s->kernel[0] * s->kernel[1]);

    for (int32_t k = w->first[0]; k < w->last[0]; k++) {
        for (int32_t j = w->first[1]; j < w->last[1]; j++) {
            float *p = dx + element(s, w, k, j);

            DPT_EACH_LANE(c, lanes)
            p[c] += dy[c] * scale;
        }
    }
}

/*
 * Walks all windows: `in` is the plane's first element, `out` counts output elements. In a macro,
 * so that lanes are a constant of the code inside: 16, 8, or 1 if channels lie apart.
 */
#define FOR_WINDOWS(s, inside, lanes, body)                                                        \
    for (int64_t plane = 0, out = 0; plane < (s)->planes; plane++) {                               \
        const int64_t in = plane * (s)->in[0] * (s)->in[1] * (s)->block;                           \
                                                                                                   \
        for (int32_t row = 0; row < (s)->out[0]; row++) {                                          \
            for (int32_t column = 0; column < (s)->out[1]; column++) {                             \
                const struct window w = window_at(s, inside, row, column);                         \
                                                                                                   \
                for (int32_t c = 0; c < (s)->block; c += (lanes), out += (lanes)) {                \
                    body(s, lanes);                                                                \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

#define FOR_BLOCKS(s, body)                                                                        \
    do {                                                                                           \
        if ((s)->block % 16 == 0)                                                                  \
            FOR_WINDOWS(s, false, 16, body)                                                        \
        else if ((s)->block % 8 == 0)                                                              \
            FOR_WINDOWS(s, false, 8, body)                                                         \
        else                                                                                       \
            FOR_WINDOWS(s, false, 1, body)                                                         \
    } while (0)

/* The common case: windows of 2 x 2 side by side, all of them inside. */
DPT_INLINE bool are_halves(const struct dpt_pool_shape *s)
{
    for (int i = 0; i < 2; i++)
        if (s->kernel[i] != 2 || s->stride[i] != 2 || s->before[i] != 0 || s->out[i] * 2 > s->in[i])
            return false;
    return true;
}

/* That case in blocks of 16, as a shape with constants in it: then the compiler unrolls it all,
 * which is several times as fast. False: it is another case. */
DPT_INLINE bool halves(const struct dpt_pool_shape *s, struct dpt_pool_shape *constant)
{
    *constant = *s;
    for (int i = 0; i < 2; i++) {
        constant->kernel[i] = constant->stride[i] = 2;
        constant->before[i] = 0;
    }
    constant->block = 16;
    return s->block == 16 && are_halves(s);
}

#define FOR_HALVES_OR_BLOCKS(s, constant, body)                                                    \
    do {                                                                                           \
        if (halves(s, &(constant)))                                                                \
            FOR_WINDOWS(&(constant), true, 16, body)                                               \
        else                                                                                       \
            FOR_BLOCKS(s, body);                                                                   \
    } while (0)

/*
 * The same where channels lie apart, as in planes: a lane is a column of the output. The last
 * columns of a row are computed twice where they are not a multiple of the lanes, since that writes
 * what is there. The compiler makes scalars of such loops, so these are its vectors; a comparison
 * gives -1 in each lane in which it holds.
 */
enum { COLUMNS = 8 };
typedef float floats __attribute__((vector_size(4 * COLUMNS), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * COLUMNS), aligned(4), may_alias));

DPT_INLINE bool has_columns(const struct dpt_pool_shape *s)
{
    return s->block == 1 && are_halves(s) && s->out[1] >= COLUMNS;
}

/* Walks all runs of columns: `out` counts output elements, `in` is the first element of the first
 * window. */
#define FOR_COLUMNS(s, body)                                                                       \
    for (int64_t line = 0; line < (s)->planes * (s)->out[0]; line++) {                             \
        const int64_t plane = line / (s)->out[0], row = line % (s)->out[0];                        \
                                                                                                   \
        for (int32_t column = 0; column < (s)->out[1]; column += COLUMNS) {                        \
            const int32_t last = (s)->out[1] - COLUMNS, at = column < last ? column : last;        \
            const int64_t out = line * (s)->out[1] + at;                                           \
            const int64_t in = (plane * (s)->in[0] + 2 * row) * (s)->in[1] + 2 * at;               \
                                                                                                   \
            body;                                                                                  \
        }                                                                                          \
    }

DPT_INLINE void take(const floats *p, int32_t number, floats *best, ints *where)
{
    const ints wins = (ints)(*p > *best) | (ints)(*p != *p);

    *where = (*where & ~wins) | (wins & number);
    *best = (floats)(((ints)*best & ~wins) | ((ints)*p & wins));
}

/* row: elements from one row of the plane to the next. */
DPT_INLINE void max_columns(const float *x, int32_t row, bool relu, float *y, int32_t *argmax)
{
    const floats zeros = {0};
    floats best = {0};
    ints where = {0};

    for (int32_t k = 0; k < 2; k++) {
        const floats *p = (const floats *)(x + (int64_t)k * row);
        const floats even = __builtin_shufflevector(p[0], p[1], 0, 2, 4, 6, 8, 10, 12, 14),
                     odd = __builtin_shufflevector(p[0], p[1], 1, 3, 5, 7, 9, 11, 13, 15);

        if (k == 0)
            best = even;
        take(&even, 2 * k, &best, &where);
        take(&odd, 2 * k + 1, &best, &where);
    }
    if (relu) {
        where |= ~(ints)(best > zeros);
        best = (floats)((ints)best & ~(ints)(best < zeros));
    }
    if (argmax != NULL)
        *(ints *)argmax = where;
    *(floats *)y = best;
}

DPT_INLINE void max_back_columns(const float *dy, const int32_t *argmax, int32_t row, float *dx)
{
    const ints where = *(const ints *)argmax, all = *(const ints *)dy;

    for (int32_t k = 0; k < 2; k++) {
        const ints even = (ints)(where == 2 * k) & all, odd = (ints)(where == 2 * k + 1) & all;
        ints *p = (ints *)(dx + (int64_t)k * row);

        p[0] = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
        p[1] = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

/* Whether windows share elements; whether each element lies in one. */
DPT_INLINE bool overlaps(const struct dpt_pool_shape *s)
{
    return s->kernel[0] > s->stride[0] || s->kernel[1] > s->stride[1];
}

static bool covers(const struct dpt_pool_shape *s)
{
    for (int i = 0; i < 2; i++) {
        if (s->kernel[i] < s->stride[i] || s->out[i] * s->stride[i] - s->before[i] < s->in[i])
            return false;
    }
    return true;
}

static void clear(const struct dpt_pool_shape *s, float *dx)
{
    memset(dx, 0, (size_t)(s->planes * s->in[0] * s->in[1] * s->block) * sizeof *dx);
}

DPT_INLINE void maxpool(const struct dpt_pool_shape *s, bool relu, const float *x, float *y,
                        int32_t *argmax)
{
    struct dpt_pool_shape constant;

    if (has_columns(s)) {
        FOR_COLUMNS(
            s, max_columns(x + in, s->in[1], relu, y + out, argmax != NULL ? argmax + out : NULL));
        return;
    }
#define BODY(shape, lanes)                                                                         \
    max_window(shape, &w, lanes, relu, x + in + c, y + out, argmax != NULL ? argmax + out : NULL)
    FOR_HALVES_OR_BLOCKS(s, constant, BODY);
#undef BODY
}

DPT_VECTOR void dpt_maxpool(const struct dpt_pool_shape *s, bool relu, const float *x, float *y,
                            int32_t *argmax)
{
    if (relu && argmax != NULL)
        maxpool(s, true, x, y, argmax);
    else
        maxpool(s, relu, x, y, argmax);
}

DPT_VECTOR void dpt_maxpool_back(const struct dpt_pool_shape *s, const float *dy,
                                 const int32_t *argmax, float *dx)
{
    struct dpt_pool_shape constant;

    if (overlaps(s) || !covers(s))
        clear(s, dx);
    if (has_columns(s)) {
        FOR_COLUMNS(s, max_back_columns(dy + out, argmax + out, s->in[1], dx + in));
        return;
    }
#define BODY(shape, lanes)                                                                         \
    max_back_window(shape, &w, lanes, overlaps(shape), dy + out, argmax + out, dx + in + c)
    FOR_HALVES_OR_BLOCKS(s, constant, BODY);
#undef BODY
}

DPT_VECTOR void dpt_avgpool(const struct dpt_pool_shape *s, const float *x, float *y)
{
#define BODY(shape, lanes) average_window(shape, &w, lanes, x + in + c, y + out)
    FOR_BLOCKS(s, BODY);
#undef BODY
}

DPT_VECTOR void dpt_avgpool_back(const struct dpt_pool_shape *s, const float *dy, float *dx)
{
    clear(s, dx);
#define BODY(shape, lanes) average_back_window(shape, &w, lanes, dy + out, dx + in + c)
    FOR_BLOCKS(s, BODY);
#undef BODY
}
