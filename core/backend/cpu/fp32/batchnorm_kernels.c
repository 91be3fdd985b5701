#include "core/backend/cpu/fp32/batchnorm_kernels.h"

#include <string.h>

enum { LANES = DPT_LANES };
/* Numbers of a channel that are added up as floats, and read twice while they are near. */
enum { CHUNK = 256 };

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef float half_vector __attribute__((vector_size(LANES / 2 * sizeof(float))));
typedef int32_t mask __attribute__((vector_size(LANES * sizeof(int32_t))));

/* Missing lanes are zero. Vectors are passed by address, since passing them by value depends on the
 * instruction set. Halves are put together in registers, since the CPU would wait for them in
 * memory. */
DPT_INLINE void load(vector *v, const float *x, int lanes)
{
    half_vector half;

    if (lanes == LANES / 2) {
        memcpy(&half, x, sizeof half);
        *v = __builtin_shufflevector(half, (half_vector){0}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
                                     12, 13, 14, 15);
        return;
    }
    *v = (vector){0};
    memcpy(v, x, (size_t)lanes * sizeof *x);
}

DPT_INLINE void store(const vector *v, float *y, int lanes)
{
    if (lanes == LANES / 2) {
        const half_vector half = __builtin_shufflevector(*v, *v, 0, 1, 2, 3, 4, 5, 6, 7);

        memcpy(y, &half, sizeof half);
        return;
    }
    memcpy(y, v, (size_t)lanes * sizeof *y);
}

/* v if `keep` is set, and else 0. */
DPT_INLINE void keep_only(vector *v, const mask *keep)
{
    mask bits;

    memcpy(&bits, v, sizeof bits);
    bits &= *keep;
    memcpy(v, &bits, sizeof bits);
}

/* A map in vectors. */
struct map {
    vector center, scale, shift;
};

DPT_INLINE void load_map(struct map *map, const struct dpt_lanes_map *from)
{
    load(&map->center, from->center, LANES);
    load(&map->scale, from->scale, LANES);
    load(&map->shift, from->shift, LANES);
}

/* What the relu lets pass of g; a is the difference from the center. */
DPT_INLINE void pass_relu(const struct map *map, const vector *a, vector *g)
{
    const vector y = *a * map->scale + map->shift;
    const mask keep = y > 0.0F;

    keep_only(g, &keep);
}

/* Runs `function` with the number of lanes as a constant if it is usual: then a vector is moved as
 * one. */
#define FOR_LANES(v, function, ...)                                                                \
    do {                                                                                           \
        if ((v)->lanes == LANES)                                                                   \
            function(v, LANES, __VA_ARGS__);                                                       \
        else if ((v)->lanes == LANES / 2)                                                          \
            function(v, LANES / 2, __VA_ARGS__);                                                   \
        else                                                                                       \
            function(v, (v)->lanes, __VA_ARGS__);                                                  \
    } while (0)

/* Does what FOR_LANES does, with the map's relu as a constant, too. */
#define FOR_LANES_AND_RELU(v, map, function, ...)                                                  \
    do {                                                                                           \
        if ((map)->relu)                                                                           \
            FOR_LANES(v, function, true, map, __VA_ARGS__);                                        \
        else                                                                                       \
            FOR_LANES(v, function, false, map, __VA_ARGS__);                                       \
    } while (0)

/* --- channels side by side -------------------------------------------------------------------- */

/* The number of chunks that are added up side by side: an addition waits for the one before it, and
 * meanwhile the CPU adds those of the other chunk. */
enum { ABREAST = 2 };

/* Chunks of so many pixels of so many samples: at most CHUNK numbers each. */
struct chunks {
    int64_t rows, pixels;
    int n;
    int64_t at[ABREAST]; /* where each begins */
};

/* The sample and the pixel with which a chunk begins. */
struct start {
    int64_t row, pixel;
};

/* The next chunks in `rows` samples, and where the chunks after them begin; all have one shape.
 * false: there are none. */
DPT_INLINE bool next_chunks(const struct dpt_lanes *v, int64_t rows, struct start *start,
                            struct chunks *chunks)
{
    const int64_t most = v->pixels < CHUNK ? CHUNK / v->pixels : 1;

    for (chunks->n = 0; chunks->n < ABREAST && start->row < rows; chunks->n++) {
        const int64_t left = rows - start->row, ahead = v->pixels - start->pixel;
        const int64_t these = left < most ? left : most, pixels = ahead < CHUNK ? ahead : CHUNK;

        if (chunks->n > 0 && (these != chunks->rows || pixels != chunks->pixels))
            return true;
        chunks->rows = these;
        chunks->pixels = pixels;
        chunks->at[chunks->n] = start->row * v->row + start->pixel * v->pixel;
        start->pixel += pixels;
        if (start->pixel == v->pixels)
            *start = (struct start){start->row + these, 0};
    }
    return chunks->n > 0;
}

#define FOR_CHUNKS(v, all_rows, chunks)                                                            \
    for (struct start start_ = {0, 0}; next_chunks(v, all_rows, &start_, &(chunks));)

/* All numbers of chunks that lie side by side; `at` is where one is from the chunk's begin. */
#define FOR_NUMBERS(v, chunks)                                                                     \
    for (int64_t row_ = 0; row_ < (chunks)->rows; row_++)                                          \
        for (int64_t at = row_ * (v)->row, end_ = at + (chunks)->pixels * (v)->pixel; at < end_;   \
             at += (v)->pixel)

/* Runs `function` with the number of chunks as a constant. */
#define FOR_ABREAST(chunks, function, ...)                                                         \
    do {                                                                                           \
        if ((chunks)->n == ABREAST)                                                                \
            function(ABREAST, chunks, __VA_ARGS__);                                                \
        else                                                                                       \
            function(1, chunks, __VA_ARGS__);                                                      \
    } while (0)

/* The moments so far; squares: of the differences from the mean. */
struct moments {
    double n, mean[LANES], squares[LANES];
};

/* Chan, Golub & LeVeque 1983: joins n more numbers, given by the sums of their differences from
 * `center`, and of the squares of these. */
DPT_INLINE void join(struct moments *m, double n, const vector *centers, const vector *offs,
                     const vector *sums)
{
    const double all = m->n + n, share = n / all, weight = m->n * share, each = 1 / n;
    float center[LANES], off[LANES], squares[LANES];

    memcpy(center, centers, sizeof center);
    memcpy(off, offs, sizeof off);
    memcpy(squares, sums, sizeof squares);
    for (int c = 0; c < LANES; c++) {
        const double away = off[c] * each, delta = center[c] + away - m->mean[c];

        m->squares[c] += squares[c] - off[c] * away + delta * delta * weight;
        m->mean[c] += delta * share;
    }
    m->n = all;
}

DPT_INLINE void add_chunks(int n, const struct chunks *chunks, const struct dpt_lanes *v, int lanes,
                           const float *x, struct moments *m)
{
    const int64_t numbers = chunks->rows * chunks->pixels;
    vector one, sum[ABREAST] = {0}, center[ABREAST], off[ABREAST] = {0}, squares[ABREAST] = {0};

    FOR_NUMBERS(v, chunks)
    {
        DPT_UNROLL for (int k = 0; k < n; k++)
        {
            load(&one, x + chunks->at[k] + at, lanes);
            sum[k] += one;
        }
    }
    for (int k = 0; k < n; k++)
        center[k] = sum[k] * (1 / (float)numbers);
    FOR_NUMBERS(v, chunks)
    {
        DPT_UNROLL for (int k = 0; k < n; k++)
        {
            load(&one, x + chunks->at[k] + at, lanes);
            one -= center[k];
            off[k] += one;
            squares[k] += one * one;
        }
    }
    for (int k = 0; k < n; k++)
        join(m, (double)numbers, &center[k], &off[k], &squares[k]);
}

DPT_INLINE void moments(const struct dpt_lanes *v, int lanes, int64_t rows, const float *x,
                        struct moments *m)
{
    struct chunks chunks;

    FOR_CHUNKS(v, rows, chunks)
    FOR_ABREAST(&chunks, add_chunks, v, lanes, x, m);
}

DPT_INLINE void sum_chunks(int n, const struct chunks *chunks, const struct dpt_lanes *v, int lanes,
                           bool relu, const struct map *map, const float *x, const float *dy,
                           double *sum, double *inner)
{
    vector a, g, near[ABREAST] = {0}, nearer[ABREAST] = {0};
    float of[2][LANES];

    FOR_NUMBERS(v, chunks)
    {
        DPT_UNROLL for (int k = 0; k < n; k++)
        {
            load(&g, dy + chunks->at[k] + at, lanes);
            load(&a, x + chunks->at[k] + at, lanes);
            a -= map->center;
            if (relu)
                pass_relu(map, &a, &g);
            near[k] += g;
            nearer[k] += g * a;
        }
    }
    for (int k = 0; k < n; k++) {
        memcpy(of[0], &near[k], sizeof near[k]);
        memcpy(of[1], &nearer[k], sizeof nearer[k]);
        for (int c = 0; c < LANES; c++) {
            sum[c] += of[0][c];
            inner[c] += of[1][c];
        }
    }
}

DPT_INLINE void sums(const struct dpt_lanes *v, int lanes, bool relu,
                     const struct dpt_lanes_map *from, int64_t rows, const float *x,
                     const float *dy, double *sum, double *inner)
{
    struct chunks chunks;
    struct map map;

    load_map(&map, from);
    FOR_CHUNKS(v, rows, chunks)
    FOR_ABREAST(&chunks, sum_chunks, v, lanes, relu, &map, x, dy, sum, inner);
}

/* The last sample comes first, as in `back`, since the end of what was just summed is still in the
 * cache. */
DPT_INLINE void apply(const struct dpt_lanes *v, int lanes, bool relu,
                      const struct dpt_lanes_map *from, int64_t rows, const float *x,
                      const float *added, float *y)
{
    struct map map;
    vector a, b;

    load_map(&map, from);
    for (int64_t row = rows; row-- > 0;)
        for (int64_t i = 0; i < v->pixels; i++) {
            const int64_t at = row * v->row + i * v->pixel;

            load(&a, x + at, lanes);
            a = (a - map.center) * map.scale + map.shift;
            if (added != NULL) {
                load(&b, added + at, lanes);
                a += b;
            }
            if (relu) { /* NaN passes */
                const mask keep = ~(a < 0.0F);

                keep_only(&a, &keep);
            }
            store(&a, y + at, lanes);
        }
}

DPT_INLINE void back(const struct dpt_lanes *v, int lanes, bool relu,
                     const struct dpt_lanes_map *from, int64_t rows, const float *slope,
                     const float *less, const float *x, const float *dy, float *dx)
{
    vector a, g, along, off;
    struct map map;

    load_map(&map, from);
    load(&along, slope, LANES);
    load(&off, less, LANES);
    for (int64_t row = rows; row-- > 0;)
        for (int64_t i = 0; i < v->pixels; i++) {
            const int64_t at = row * v->row + i * v->pixel;

            load(&a, x + at, lanes);
            load(&g, dy + at, lanes);
            a -= map.center;
            if (relu)
                pass_relu(&map, &a, &g);
            g = (g - off - a * along) * map.scale;
            store(&g, dx + at, lanes);
        }
}

/* --- plane by plane --------------------------------------------------------------------------- */

/* Numbers of a plane that are added up as floats. */
enum { RUN = 64 * LANES };

/* The runs of channel c: `at` is where each begins, `n` how long it is. */
#define FOR_RUNS(v, c, rows)                                                                       \
    for (int64_t row_ = 0; row_ < (rows); row_++)                                                  \
        for (int64_t at = row_ * (v)->row + (c) * (v)->pixels, end_ = at + (v)->pixels, n = 0;     \
             at < end_ && (n = end_ - at < RUN ? end_ - at : RUN, true); at += n)

DPT_INLINE double sum_of(const vector *v)
{
    double sum = 0;

    for (int i = 0; i < LANES; i++)
        sum += (*v)[i];
    return sum;
}

/* Adds n numbers less `center`, and their squares. */
DPT_INLINE void add_run(int64_t n, const float *x, float center, double *sum, double *squares)
{
    const int64_t whole = n / LANES * LANES;
    vector off = {0}, square = {0}, a;

    for (int64_t i = 0; i < whole; i += LANES) {
        load(&a, x + i, LANES);
        a -= center;
        off += a;
        square += a * a;
    }
    for (int64_t i = whole; i < n; i++) {
        off[i - whole] += x[i] - center;
        square[i - whole] += (x[i] - center) * (x[i] - center);
    }
    *sum += sum_of(&off);
    *squares += sum_of(&square);
}

DPT_INLINE void plane_moments(const struct dpt_lanes *v, int c, int64_t rows, const float *x,
                              double *mean, double *variance)
{
    double n_all = 0, sum, off, squares, all = 0;

    *mean = 0;
    FOR_RUNS(v, c, rows)
    {
        double share, away;
        float center;

        sum = off = squares = 0;
        add_run(n, x + at, 0, &sum, &off);
        center = (float)(sum / (double)n);
        off = 0;
        add_run(n, x + at, center, &off, &squares);
        n_all += (double)n;
        share = (double)n / n_all;
        away = center + off / (double)n - *mean;
        all += squares - off * off / (double)n + away * away * (n_all - (double)n) * share;
        *mean += away * share;
    }
    *variance = all > 0 ? all / n_all : 0 * all;
}

/* What the relu lets pass; `a` is the difference from the center. */
DPT_INLINE float passed(bool relu, float a, float scale, float shift, float dy)
{
    return relu && !(a * scale + shift > 0) ? 0 : dy;
}

DPT_INLINE void plane_sums(const struct dpt_lanes *v, int c, int64_t rows, bool relu,
                           const struct dpt_lanes_map *map, const float *x, const float *dy,
                           double *sum, double *inner)
{
    const float center = map->center[c], scale = map->scale[c], shift = map->shift[c];
    const vector zero = {0};
    const struct map all = {.center = zero + center, .scale = zero + scale, .shift = zero + shift};

    FOR_RUNS(v, c, rows)
    {
        const int64_t whole = n / LANES * LANES;
        vector near = {0}, nearer = {0}, a, g;

        for (int64_t i = 0; i < whole; i += LANES) {
            load(&g, dy + at + i, LANES);
            load(&a, x + at + i, LANES);
            a -= all.center;
            if (relu)
                pass_relu(&all, &a, &g);
            near += g;
            nearer += g * a;
        }
        for (int64_t i = whole; i < n; i++) {
            const float off = x[at + i] - center;
            const float part = passed(relu, off, scale, shift, dy[at + i]);

            near[i - whole] += part;
            nearer[i - whole] += part * off;
        }
        *sum += sum_of(&near);
        *inner += sum_of(&nearer);
    }
}

/* All numbers of channel c, one after another: `at` is where each is. */
#define FOR_PLANE(v, c, rows)                                                                      \
    for (int64_t row_ = 0; row_ < (rows); row_++)                                                  \
        for (int64_t at = row_ * (v)->row + (c) * (v)->pixels, end_ = at + (v)->pixels; at < end_; \
             at++)

DPT_INLINE void plane_apply(const struct dpt_lanes *v, int c, int64_t rows, bool relu,
                            const struct dpt_lanes_map *map, const float *x, const float *added,
                            float *y)
{
    const float center = map->center[c], scale = map->scale[c], shift = map->shift[c];

    FOR_PLANE(v, c, rows)
    {
        const float own = (x[at] - center) * scale + shift;
        const float a = added != NULL ? own + added[at] : own;

        y[at] = relu && a < 0 ? 0 : a;
    }
}

DPT_INLINE void plane_back(const struct dpt_lanes *v, int c, int64_t rows, bool relu,
                           const struct dpt_lanes_map *map, float slope, float less, const float *x,
                           const float *dy, float *dx)
{
    const float center = map->center[c], scale = map->scale[c], shift = map->shift[c];

    FOR_PLANE(v, c, rows)
    {
        const float a = x[at] - center, g = passed(relu, a, scale, shift, dy[at]);

        dx[at] = (g - less - a * slope) * scale;
    }
}

/* --- either ----------------------------------------------------------------------------------- */

DPT_VECTOR void dpt_lanes_moments(const struct dpt_lanes *v, int64_t rows, const float *x,
                                  double *mean, double *variance)
{
    struct moments m = {0};

    for (int c = 0; v->planar && c < v->lanes; c++)
        plane_moments(v, c, rows, x, &mean[c], &variance[c]);
    if (v->planar)
        return;
    FOR_LANES(v, moments, rows, x, &m);
    for (int c = 0; c < LANES; c++) {
        mean[c] = m.mean[c];
        variance[c] = m.squares[c] > 0 ? m.squares[c] / m.n : 0 * m.squares[c];
    }
}

DPT_VECTOR void dpt_lanes_apply(const struct dpt_lanes *v, int64_t rows,
                                const struct dpt_lanes_map *map, const float *x, const float *added,
                                float *y)
{
    for (int c = 0; v->planar && c < v->lanes; c++)
        plane_apply(v, c, rows, map->relu, map, x, added, y);
    if (!v->planar)
        FOR_LANES_AND_RELU(v, map, apply, rows, x, added, y);
}

DPT_VECTOR void dpt_lanes_sums(const struct dpt_lanes *v, int64_t rows,
                               const struct dpt_lanes_map *map, const float *x, const float *dy,
                               double *sum, double *inner)
{
    for (int c = 0; c < LANES; c++)
        sum[c] = inner[c] = 0;
    for (int c = 0; v->planar && c < v->lanes; c++)
        plane_sums(v, c, rows, map->relu, map, x, dy, &sum[c], &inner[c]);
    if (!v->planar)
        FOR_LANES_AND_RELU(v, map, sums, rows, x, dy, sum, inner);
}

DPT_VECTOR void dpt_lanes_back(const struct dpt_lanes *v, int64_t rows,
                               const struct dpt_lanes_map *map, const float *slope,
                               const float *less, const float *x, const float *dy, float *dx)
{
    for (int c = 0; v->planar && c < v->lanes; c++)
        plane_back(v, c, rows, map->relu, map, slope[c], less[c], x, dy, dx);
    if (!v->planar)
        FOR_LANES_AND_RELU(v, map, back, rows, slope, less, x, dy, dx);
}
