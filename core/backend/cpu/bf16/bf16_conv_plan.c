#include "core/backend/cpu/bf16/bf16_conv_private.h"
#include "core/base/memory.h"

/* Lays out the pixels that a convolution reads, and lists which of them each tap reads. */

static inline int32_t lanes_of(int32_t channels)
{
    const int32_t small[] = {4, 8, 16};

    for (int i = 0; i < 3; i++)
        if (channels <= small[i])
            return small[i];
    return (int32_t)up(channels, PAIR);
}

/* --- which pixels a tap reads, along an axis -------------------------------------------------- */

/* A tap of one axis: output j of a phase reads row j + shift of a phase of what is read. */
struct along {
    int32_t k, phase, shift;
};

static int32_t floor_of(int32_t a, int32_t b)
{
    return (a - (a % b + b) % b) / b;
}

/* Lists the taps of forward, or of the gradient of the inputs of phase `of`. Returns how many. */
static int32_t list_taps(const struct dpt_window *w, int axis, bool data, int32_t of,
                         struct along *taps)
{
    const int32_t stride = w->stride[axis];
    int32_t n = 0;

    for (int32_t k = 0; k < w->kernel[axis]; k++) {
        const int32_t reach = k * w->dilation[axis] - w->before[axis];
        const int32_t at = data ? of - reach : reach;
        const int32_t shift = floor_of(at, stride), phase = at - shift * stride;

        if (!data || phase == 0)
            taps[n++] = (struct along){k, data ? 0 : phase, shift};
    }
    /* Side by side from left to right. */
    for (int32_t i = 0; data && i < n / 2; i++) {
        const struct along swapped = taps[i];

        taps[i] = taps[n - 1 - i];
        taps[n - 1 - i] = swapped;
    }
    return n;
}

/* What a view has to hold along an axis. */
struct extent {
    int32_t low, high; /* shifts */
    int32_t grid;
};

static void widen(struct extent *e, const struct along *taps, int32_t n, int32_t grid)
{
    for (int32_t i = 0; i < n; i++) {
        e->low = taps[i].shift < e->low ? taps[i].shift : e->low;
        e->high = taps[i].shift > e->high ? taps[i].shift : e->high;
    }
    e->grid = grid > e->grid ? grid : e->grid;
}

/* What a view is of: samples of this size, `apart` pixels from one to the next, or windows of the
 * pool that reads them (NULL: none does); strides whose phases are apart. The pitch is a multiple
 * of `unit`. */
struct seen {
    int32_t channels, size[2], stride[2], unit, samples;
    int64_t apart;
    const struct dpt_bf16_conv_shape *pool;
};

/* What the table has for a pixel. */
static int32_t entry_of(const struct seen *of, int32_t sample, int32_t row, int32_t column)
{
    const struct dpt_bf16_conv_shape *pool = of->pool;
    const int64_t first = sample * of->apart;

    if (pool == NULL)
        return (int32_t)(first + (int64_t)row * of->size[1] + column);
    if (row / 2 >= pool->pooled[0] || column / 2 >= pool->pooled[1])
        return -1;
    return (int32_t)(4 * (first + (int64_t)(row / 2) * pool->pooled[1] + column / 2)) +
           row % 2 * 2 + column % 2;
}

static void fill_table(struct view *v, const struct seen *of)
{
    for (int32_t sample = 0; sample < of->samples; sample++)
        for (int32_t row = 0; row < of->size[0]; row++)
            for (int32_t column = 0; column < of->size[1]; column++) {
                const int32_t j = row / of->stride[0], i = column / of->stride[1];
                const int64_t phase =
                    (int64_t)(row % of->stride[0]) * of->stride[1] + column % of->stride[1];
                const int64_t place = v->front + ((int64_t)sample * v->rows + j) * v->pitch + i;

                if (place < v->length) /* else nobody reads it */
                    v->table[phase * v->length + place] = entry_of(of, sample, row, column);
            }
}

/* The zeros after a row (and after the last row) of a view, so that as many can be read before the
 * next row and after it, and every output of a row has a place. */
static int32_t zeros_of(const struct extent *e, int32_t size)
{
    return (int32_t)most(most(-e->low, e->grid - 1 + e->high - (size - 1)),
                         most(e->grid - size, 0));
}

static enum dpt_status open_view(struct view *v, const struct seen *of, const struct extent e[2],
                                 struct dpt_error *err)
{
    const int32_t height = (of->size[0] + of->stride[0] - 1) / of->stride[0];
    const int32_t width = (of->size[1] + of->stride[1] - 1) / of->stride[1];
    int64_t n;

    v->lanes = lanes_of(of->channels);
    v->phases = of->stride[1];
    v->samples = of->samples;
    v->pitch = (int32_t)up(width + zeros_of(&e[1], width), of->unit);
    v->rows = height + zeros_of(&e[0], height);
    v->front = (int64_t)-e[0].low * v->pitch + -e[1].low;
    v->length = up(
        v->front + ((int64_t)(of->samples - 1) * v->rows + e[0].grid + e[0].high + 1) * v->pitch +
            most(e[1].high, 0) + 2 * PAIR + MOST_TAPS,
        DEPTH);
    n = v->length * of->stride[0] * of->stride[1];
    v->table = dpt_alloc_array((size_t)n, sizeof *v->table);
    if (v->table == NULL)
        return dpt_fail_memory(err, "a convolution's table", 4.0 * (double)n);
    for (int64_t i = 0; i < n; i++)
        v->table[i] = -1;
    fill_table(v, of);
    return DPT_OK;
}

/* --- passes ----------------------------------------------------------------------------------- */

static enum dpt_status open_pass(struct pass *p, const struct view *v, const struct along *rows,
                                 int32_t n_rows, const struct along *columns, int32_t n_columns,
                                 int32_t width, struct dpt_error *err)
{
    const int together = v->lanes >= DEPTH ? 1 : DEPTH / v->lanes;
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)n_rows * (size_t)n_columns + 1;

    DPT_TRY(DPT_ALLOCATE(p->taps, n, "a convolution's taps", err));
    DPT_TRY(DPT_ALLOCATE(p->runs, n, "a convolution's taps", err));
    DPT_TRY(DPT_ALLOCATE(p->run_at, n, "a convolution's taps", err));
    for (int32_t r = 0; r < n_rows; r++) {
        struct run *run = NULL;
        int64_t next = -1;

        for (int32_t c = 0; c < n_columns; c++) {
            const int64_t phase = (int64_t)rows[r].phase * v->phases + columns[c].phase;
            const int64_t at =
                phase * v->length + v->front + (int64_t)rows[r].shift * v->pitch + columns[c].shift;
            const int32_t number = rows[r].k * width + columns[c].k;

            p->taps[p->n_taps++] = (struct tap){number, at};
            if (run == NULL || at != next || run->n == together) {
                p->run_at[p->n_runs] = at * v->lanes;
                run = &p->runs[p->n_runs++];
            }
            run->number[run->n++] = number;
            next = at + 1;
        }
    }
out:
    return status;
}

static void close_pass(struct pass *p)
{
    dpt_free(p->taps);
    dpt_free(p->runs);
    dpt_free(p->run_at);
}

static struct seen gradient_seen(const struct dpt_bf16_conv *conv)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const int32_t *size = s->pool ? s->pooled : s->out;

    return (struct seen){.channels = s->out_channels,
                         .size = {s->out[0], s->out[1]},
                         .stride = {1, 1},
                         .unit = 1,
                         .samples = conv->stack,
                         .apart = (int64_t)blocks_of(s->out_channels) * size[0] * size[1],
                         .pool = s->pool ? s : NULL};
}

static enum dpt_status open_forward(struct dpt_bf16_conv *conv, struct dpt_error *err)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const struct dpt_window *w = &s->window;
    struct along *taps[2] = {NULL, NULL};
    struct extent extents[2] = {{0}};
    const int64_t pixels = (int64_t)s->in[0] * s->in[1];
    const struct seen x = {.channels = s->in_channels,
                           .size = {s->in[0], s->in[1]},
                           .stride = {w->stride[0], w->stride[1]},
                           .unit = s->pool ? 2 : 1,
                           .samples = conv->stack,
                           .apart = s->x == DPT_LAYOUT_NCHW ? s->in_channels * pixels
                                                            : blocks_of(s->in_channels) * pixels};
    const struct seen dy = gradient_seen(conv);
    int32_t n[2];
    enum dpt_status status = DPT_OK;

    for (int axis = 0; axis < 2; axis++) {
        DPT_TRY(DPT_ALLOCATE(taps[axis], (size_t)w->kernel[axis], "a convolution's taps", err));
        n[axis] = list_taps(w, axis, false, 0, taps[axis]);
        widen(&extents[axis], taps[axis], n[axis], s->out[axis]);
        conv->forward.grid[axis] = s->out[axis];
    }
    DPT_TRY(open_view(&conv->x, &x, extents, err));
    DPT_TRY(open_pass(&conv->forward, &conv->x, taps[0], n[0], taps[1], n[1], w->kernel[1], err));
    for (int32_t i = 0; i < conv->taps; i++)
        conv->x_phases =
            (int32_t)most(conv->x_phases, conv->forward.taps[i].at / conv->x.length + 1);
    /* The weights' gradient has the outputs in the same grid, from the first place on. */
    for (int axis = 0; axis < 2; axis++)
        extents[axis] = (struct extent){
            0, (axis == 0 ? conv->x.rows : conv->x.pitch) - s->out[axis], s->out[axis]};
    if (s->backward)
        DPT_TRY(open_view(&conv->grid, &dy, extents, err));
out:
    dpt_free(taps[0]);
    dpt_free(taps[1]);
    return status;
}

static enum dpt_status open_data(struct dpt_bf16_conv *conv, struct dpt_error *err)
{
    const struct dpt_bf16_conv_shape *s = &conv->shape;
    const struct dpt_window *w = &s->window;
    struct along *taps[2] = {NULL, NULL};
    struct extent extents[2] = {{0}};
    const struct seen dy = gradient_seen(conv);
    enum dpt_status status = DPT_OK;

    conv->n_data = w->stride[0] * w->stride[1];
    DPT_TRY(DPT_ALLOCATE(conv->data, (size_t)conv->n_data, "a convolution's passes", err));
    for (int axis = 0; axis < 2; axis++) {
        DPT_TRY(DPT_ALLOCATE(taps[axis], (size_t)w->kernel[axis], "a convolution's taps", err));
        for (int32_t r = 0; r < w->stride[axis]; r++)
            widen(&extents[axis], taps[axis], list_taps(w, axis, true, r, taps[axis]),
                  (s->in[axis] - r + w->stride[axis] - 1) / w->stride[axis]);
    }
    DPT_TRY(open_view(&conv->dy, &dy, extents, err));
    for (int32_t i = 0; i < conv->n_data; i++) {
        struct pass *p = &conv->data[i];
        int32_t n[2];

        p->phase[0] = i / w->stride[1];
        p->phase[1] = i % w->stride[1];
        for (int axis = 0; axis < 2; axis++) {
            n[axis] = list_taps(w, axis, true, p->phase[axis], taps[axis]);
            p->grid[axis] = (s->in[axis] - p->phase[axis] + w->stride[axis] - 1) / w->stride[axis];
        }
        DPT_TRY(open_pass(p, &conv->dy, taps[0], n[0], taps[1], n[1], w->kernel[1], err));
        if (i > 0)
            p->packed = conv->data[i - 1].packed +
                        pass_tiles(&conv->data[i - 1], &conv->dy, s->in_channels);
    }
out:
    dpt_free(taps[0]);
    dpt_free(taps[1]);
    return status;
}

/* --- memory ----------------------------------------------------------------------------------- */

static int64_t sums_of(const struct dpt_bf16_conv *conv)
{
    const int64_t pairs = parts(conv->shape.out_channels, PAIR);

    return (keeps_sums(conv) ? pairs * groups_of(conv) : 1) * group_floats(conv);
}

static int64_t line_of(const struct view *v, int64_t places)
{
    return (places * v->lanes + PAIR) / 2; /* floats */
}

static int64_t products_of(const struct pass *p, const struct view *v)
{
    return up(((int64_t)(v->samples - 1) * v->rows + band_of(p, v)) * v->pitch, PAIR) * PAIR;
}

struct dpt_bf16_conv_memory dpt_bf16_conv_arrange(const struct dpt_bf16_conv *conv, float *scratch)
{
    int64_t line = line_of(&conv->x, x_places(conv)), end = 0;
    int64_t products = products_of(&conv->forward, &conv->x);
    struct dpt_bf16_conv_memory m;

    if (conv->n_data > 0)
        line = most(line, line_of(&conv->dy, conv->dy.length));
    for (int32_t i = 0; i < conv->n_data; i++)
        products = most(products, products_of(&conv->data[i], &conv->dy));
    m.line = (uint16_t *)(scratch + end);
    end += up(line, SIDE);
    m.products = scratch + end;
    end += up(products, SIDE);
    m.few = (uint16_t *)(scratch + end);
    end +=
        conv->shape.backward && is_unrolled(conv) ? up(SIDE * x_places(conv) / 2 + PAIR, SIDE) : 0;
    m.planes = (uint16_t *)(scratch + end);
    end += conv->shape.backward ? up(conv->together * planes_of(conv) / 2 + PAIR, SIDE) : 0;
    m.tiles = (uint16_t *)(scratch + end);
    end += conv->shape.backward ? up(conv->together * tiles_of(conv) / 2, SIDE) : 0;
    m.sums = scratch + end;
    end += conv->shape.backward ? sums_of(conv) : 0;
    m.bias = scratch + end;
    end += conv->shape.backward ? up(conv->shape.out_channels, PAIR) : 0;
    m.end = end;
    return m;
}

int64_t dpt_bf16_conv_scratch(const struct dpt_bf16_conv *conv)
{
    return dpt_bf16_conv_arrange(conv, NULL).end;
}

/* A line has as many small samples as make it long enough; their number divides the micro-batch. */
static int32_t stack_of(const struct dpt_bf16_conv_shape *s, int32_t micro)
{
    int32_t best = 1;

    for (int32_t n = 2; n <= micro; n++)
        if (micro % n == 0 && (int64_t)n * (s->out[0] + 1) * (s->out[1] + 1) <= STACKED)
            best = n;
    return best;
}

/* Where the products put the sums of a weight. */
static enum dpt_status list_sums(struct dpt_bf16_conv *conv, struct dpt_error *err)
{
    const int32_t channels = conv->shape.in_channels;
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(conv->sums, (size_t)channels * (size_t)conv->taps, "a convolution", err));
    for (int32_t c = 0; c < channels; c++)
        for (int32_t tap = 0; tap < conv->taps; tap++) {
            const int32_t tile =
                tap * group_blocks(conv, c / PAIR) + c % PAIR / SIDE; /* of 16 rows */
            const int32_t row = is_unrolled(conv) ? c * conv->taps + tap : tile * SIDE + c % SIDE;

            conv->sums[c * conv->taps + conv->forward.taps[tap].number] =
                row / PAIR * PAIR * PAIR + row % PAIR * PAIR;
        }
out:
    return status;
}

enum dpt_status dpt_bf16_conv_open(const struct dpt_bf16_conv_shape *shape,
                                   const struct dpt_bf16_kernels *kernels, int32_t micro,
                                   struct dpt_bf16_conv **opened, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_bf16_conv *conv;
    int64_t each;

    *opened = NULL;
    DPT_TRY(DPT_ALLOCATE(conv, 1, "a convolution", err));
    *opened = conv;
    conv->shape = *shape;
    conv->kernels = kernels;
    conv->taps = shape->window.kernel[0] * shape->window.kernel[1];
    conv->stack = stack_of(shape, micro);
    DPT_TRY(open_forward(conv, err));
    if (shape->backward && shape->wants_dx)
        DPT_TRY(open_data(conv, err));
    for (int64_t i = 0; shape->pool && conv->grid.table != NULL && i < conv->grid.length / 2; i++)
        conv->grid.table[i] = conv->grid.table[2 * i] < 0 ? -1 : conv->grid.table[2 * i] / 2;
    each = 2 * (planes_of(conv) + tiles_of(conv));
    conv->lines = micro / conv->stack;
    conv->together = (int32_t)least(most(TOGETHER / each, 1), conv->lines);
    DPT_TRY(DPT_ALLOCATE(conv->samples, (size_t)conv->together, "a convolution", err));
    for (int32_t i = 0; i < conv->together; i++)
        conv->samples[i] = i * planes_of(conv);
    if (shape->backward)
        DPT_TRY(list_sums(conv, err));
out:
    if (status != DPT_OK) {
        dpt_bf16_conv_close(*opened);
        *opened = NULL;
    }
    return status;
}

void dpt_bf16_conv_close(struct dpt_bf16_conv *conv)
{
    if (conv == NULL)
        return;
    for (int32_t i = 0; conv->data != NULL && i < conv->n_data; i++)
        close_pass(&conv->data[i]);
    close_pass(&conv->forward);
    dpt_free(conv->data);
    dpt_free(conv->samples);
    dpt_free(conv->sums);
    dpt_free(conv->x.table);
    dpt_free(conv->dy.table);
    dpt_free(conv->grid.table);
    dpt_free(conv);
}
