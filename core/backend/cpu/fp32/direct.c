#include "core/backend/cpu/fp32/direct_private.h"

#include "core/backend/cpu/numbers.h"
#include "core/base/memory.h"

/* Planning of direct convolutions, and their weights. */

enum {
    LANES = DPT_TILE_LANES,
    MOST = DPT_TILE_MOST,
    CROWDED = 128,     /* pixels a multiple of this many floats apart share few lines of a cache */
    NEAR = 1 << 16,    /* floats of lines that stay near a core */
    SMALL = 64,        /* most pixels, and taps, of which parts are planned */
    NEAREST = 1 << 19, /* more of them, if the weights, which are read for each, are as many */
};

static int64_t taps_of(const struct dpt_window *w)
{
    return (int64_t)w->kernel[0] * w->kernel[1];
}

/* --- planning --------------------------------------------------------------------------------- */

/* Takes n numbers of the memory of all arrays. */
static int64_t *take(int64_t **at, int64_t n)
{
    int64_t *taken = *at;

    *at += n;
    return taken;
}

/* stride: from pixel to pixel of a sum. */
static int64_t pitch_of(int32_t channels, int32_t stride)
{
    return channels + (channels * stride % CROWDED == 0 ? LANES : 0);
}

static void finish_lines(struct dpt_direct_lines *lines, int32_t stride)
{
    lines->pitch = pitch_of(lines->channels, stride);
    lines->sample = (int64_t)lines->size[0] * lines->size[1] * lines->pitch;
}

/* The taps of a phase on one axis, in the order of what they read, and where that begins: both in
 * equal steps. */
struct axis {
    int32_t n, tap, tap_step, at, at_step;
    int32_t skipped; /* taps of the phase before them */
};

/* Outputs on one axis: how many, which is the first in a plane, and the steps between them in the
 * lines and in that plane. */
struct outputs {
    int32_t n, first, from, to;
};

/* Those outputs from `first` on, of the same taps without zeros, and these taps. */
static struct outputs cut_outputs(const struct outputs *all, int32_t first,
                                  const struct dpt_direct_lines *lines, int i, struct axis *axis)
{
    const struct axis whole = *axis;
    struct outputs some = *all;

    some.n = 0;
    some.first += first * all->to;
    for (int32_t at = first; at < all->n; at++) {
        int32_t low = 0, high = whole.n;

        while (low < high && whole.at + at * all->from + low * whole.at_step < lines->before[i])
            low++;
        while (high > low && whole.at + at * all->from + (high - 1) * whole.at_step >=
                                 lines->before[i] + lines->in[i])
            high--;
        if (at > first && (low != axis->skipped || high - low != axis->n))
            break;
        axis->skipped = low;
        axis->n = high - low;
        some.n++;
    }
    axis->at += first * all->from + axis->skipped * whole.at_step;
    return some;
}

/* The segments of a patch: a kernel's row is one if its pixels lie side by side. columns: taps of
 * such a row in the weights. */
static void plan_segments(struct dpt_direct_sum *sum, const struct dpt_direct_lines *lines,
                          const struct axis axes[2], int32_t columns, int64_t **at)
{
    const bool joined = lines->pitch == lines->channels && (axes[1].n == 1 || axes[1].at_step == 1);
    const int64_t n = (int64_t)axes[0].n * axes[1].n;
    int64_t segment = 0, *offsets = take(at, n), *first = take(at, n);

    for (int32_t i = 0; i < axes[0].n; i++)
        for (int32_t k = 0; k < axes[1].n; k++) {
            const int64_t y = axes[0].at + i * axes[0].at_step,
                          x = axes[1].at + k * axes[1].at_step;

            if (k > 0 && joined)
                continue;
            offsets[segment] = (y * lines->size[1] + x) * lines->pitch;
            first[segment++] =
                ((int64_t)(axes[0].skipped + i) * columns + axes[1].skipped + k) * lines->channels;
        }
    *sum = (struct dpt_direct_sum){.offsets = offsets,
                                   .first = first,
                                   .segments = segment,
                                   .k = joined ? (int64_t)axes[1].n * lines->channels
                                               : lines->channels,
                                   .step = 1};
}

static void plan_part(struct dpt_direct_pass *pass, const struct outputs outputs[2],
                      const struct axis axes[2], int32_t columns, int32_t width, int64_t **at)
{
    const struct dpt_direct_lines *lines = &pass->lines;
    struct dpt_direct_part *part = &pass->parts[pass->n_parts++];

    part->phase = pass->n_phases;
    part->pixels = (int64_t)outputs[0].n * outputs[1].n;
    part->step = (int64_t)outputs[1].to * LANES;
    part->in_at = take(at, part->pixels);
    part->out_at = take(at, part->pixels);
    for (int64_t i = 0; i < part->pixels; i++) {
        const int64_t row = i / outputs[1].n, column = i % outputs[1].n;

        part->in_at[i] =
            (row * outputs[0].from * lines->size[1] + column * outputs[1].from) * lines->pitch;
        part->out_at[i] = ((outputs[0].first + row * outputs[0].to) * width + outputs[1].first +
                           column * outputs[1].to) *
                          LANES;
    }
    plan_segments(&part->sum, lines, axes, columns, at);
}

/* Plans a phase in parts, or (`at` is NULL) only counts the products that these compute. */
static int64_t plan_parts(struct dpt_direct_pass *pass, int32_t samples,
                          const struct outputs outputs[2], const struct axis axes[2], int32_t width,
                          int64_t **at)
{
    int64_t products = 0;

    for (int32_t y = 0, rows; y < outputs[0].n; y += rows) {
        struct axis taps[2] = {axes[0]};
        struct outputs part[2] = {cut_outputs(&outputs[0], y, &pass->lines, 0, &taps[0])};

        rows = part[0].n;
        for (int32_t x = 0; x < outputs[1].n; x += part[1].n) {
            taps[1] = axes[1];
            part[1] = cut_outputs(&outputs[1], x, &pass->lines, 1, &taps[1]);
            products +=
                up((int64_t)samples * rows * part[1].n, DPT_TILE_ROWS) * taps[0].n * taps[1].n;
            if (at != NULL)
                plan_part(pass, part, taps, axes[1].n, width, at);
        }
    }
    return products;
}

/* Adds a phase of outputs in planes of `width` pixels: in parts if those have so few products that
 * this is faster than tiles that mostly write side by side. */
static void plan_phase(struct dpt_direct_pass *pass, const struct dpt_conv_shape *s,
                       const struct outputs outputs[2], const struct axis axes[2], int32_t width,
                       int64_t **at)
{
    struct dpt_direct_phase *phase = &pass->phases[pass->n_phases];
    const int64_t pixels = (int64_t)outputs[0].n * outputs[1].n;
    int64_t tap = 0, all;

    phase->n_taps = (int64_t)axes[0].n * axes[1].n;
    phase->taps = take(at, phase->n_taps);
    for (int32_t i = 0; i < axes[0].n; i++)
        for (int32_t k = 0; k < axes[1].n; k++)
            phase->taps[tap++] =
                (int64_t)(axes[0].tap + i * axes[0].tap_step) * s->window.kernel[1] + axes[1].tap +
                k * axes[1].tap_step;
    all = up(s->n * pixels, DPT_TILE_ROWS) * phase->n_taps;
    if (pass->plane <= SMALL && taps_of(&s->window) <= SMALL &&
        plan_parts(pass, s->n, outputs, axes, width, NULL) * 5 <= all * 4)
        plan_parts(pass, s->n, outputs, axes, width, at);
    else
        plan_part(pass, outputs, axes, axes[1].n, width, at);
    pass->n_phases++;
}

/* The weights' places, and how many samples are copied at a time. */
static void finish_pass(struct dpt_direct_pass *pass, const struct dpt_conv_shape *s)
{
    const struct dpt_direct_lines *lines = &pass->lines;
    const int64_t groups = s->window.groups;
    /* Sums are cut where a copy ends, which decides their bits: no stride does. */
    const int64_t sample = (int64_t)lines->size[0] * lines->size[1] * pitch_of(lines->channels, 1);

    pass->packed = 0;
    for (int32_t i = 0; i < pass->n_phases; i++) {
        pass->phases[i].packed = pass->packed;
        pass->packed +=
            groups * pass->phases[i].n_taps * pass->lines.channels * up(pass->outputs, LANES);
    }
    pass->samples =
        (int32_t)least(s->n, most(1, most(NEAR, least(pass->packed, NEAREST)) / sample));
}

static void plan_forward(struct dpt_direct *d, int64_t **at)
{
    const struct dpt_conv_shape *s = &d->shape.conv;
    const struct dpt_window *w = &s->window;
    struct dpt_direct_pass *pass = &d->forward;
    struct dpt_direct_lines *lines = &pass->lines;
    struct outputs outputs[2];
    struct axis axes[2];

    lines->layout = d->shape.x;
    lines->channels = s->in_channels / w->groups;
    lines->all = s->in_channels;
    for (int i = 0; i < 2; i++) {
        lines->in[i] = s->in[i];
        lines->before[i] = w->before[i];
        lines->size[i] = (s->out[i] - 1) * w->stride[i] + (w->kernel[i] - 1) * w->dilation[i] + 1;
        axes[i] = (struct axis){.n = w->kernel[i], .tap_step = 1, .at_step = w->dilation[i]};
        outputs[i] = (struct outputs){s->out[i], 0, w->stride[i], 1};
    }
    finish_lines(lines, w->stride[1]);
    pass->outputs = s->out_channels / w->groups;
    pass->all = s->out_channels;
    pass->plane = (int64_t)s->out[0] * s->out[1];
    plan_phase(pass, s, outputs, axes, s->out[1], at);
    finish_pass(pass, s);
    d->rows = taps_of(w) * lines->channels;
    d->row = take(at, d->rows);
    for (int64_t i = 0; i < d->rows; i++) {
        const int64_t tap = i % taps_of(w), y = tap / w->kernel[1], x = tap % w->kernel[1];

        d->row[i] = (y * w->dilation[0] * lines->size[1] + x * w->dilation[1]) * lines->pitch +
                    i / taps_of(w);
    }
}

/* Which taps an input of the phase went into, on one axis, and into which output counted from the
 * phase's first. */
static struct axis find_taps(const struct dpt_window *w, int i, int32_t phase)
{
    struct axis axis = {.n = 0};

    for (int32_t tap = w->kernel[i] - 1; tap >= 0; tap--) {
        const int32_t to = phase + w->before[i] - tap * w->dilation[i];

        if (to % w->stride[i] != 0)
            continue;
        if (axis.n == 0) {
            axis.tap = tap;
            axis.at = to / w->stride[i];
        } else if (axis.n == 1) {
            axis.tap_step = tap - axis.tap;
            axis.at_step = to / w->stride[i] - axis.at;
        }
        axis.n++;
    }
    return axis;
}

/* The planes of the gradient with zeros: as many before and after as any phase reads. */
static void plan_gradient(struct dpt_direct_lines *lines, const struct dpt_conv_shape *s)
{
    const struct dpt_window *w = &s->window;

    lines->layout = DPT_LAYOUT_C16;
    lines->channels = s->out_channels / w->groups;
    lines->all = s->out_channels;
    for (int i = 0; i < 2; i++) {
        int32_t before = 0, last = 0;

        for (int32_t phase = 0; phase < w->stride[i] && phase < s->in[i]; phase++) {
            const int32_t n = (s->in[i] - phase + w->stride[i] - 1) / w->stride[i];
            const struct axis axis = find_taps(w, i, phase);

            if (axis.n == 0)
                continue;
            before = (int32_t)most(before, -axis.at);
            last = (int32_t)most(last, n - 1 + axis.at + (axis.n - 1) * axis.at_step);
        }
        lines->in[i] = s->out[i];
        lines->before[i] = before;
        lines->size[i] = before + last + 1;
    }
    finish_lines(lines, 1);
}

static void plan_data(struct dpt_direct *d, int64_t **at)
{
    const struct dpt_conv_shape *s = &d->shape.conv;
    const struct dpt_window *w = &s->window;
    struct dpt_direct_pass *pass = &d->data;

    plan_gradient(&pass->lines, s);
    pass->outputs = s->in_channels / w->groups;
    pass->all = s->in_channels;
    pass->plane = (int64_t)s->in[0] * s->in[1];
    for (int32_t y = 0; y < w->stride[0] && y < s->in[0]; y++)
        for (int32_t x = 0; x < w->stride[1] && x < s->in[1]; x++) {
            const int32_t first[2] = {y, x};
            struct outputs outputs[2];
            struct axis axes[2];

            for (int i = 0; i < 2; i++) {
                outputs[i] =
                    (struct outputs){(s->in[i] - first[i] + w->stride[i] - 1) / w->stride[i],
                                     first[i], 1, w->stride[i]};
                axes[i] = find_taps(w, i, first[i]);
                axes[i].at += pass->lines.before[i];
            }
            plan_phase(pass, s, outputs, axes, s->in[1], at);
        }
    finish_pass(pass, s);
}

/* Numbers in all arrays. */
static int64_t count_numbers(const struct dpt_conv_shape *s)
{
    const int64_t taps = taps_of(&s->window), out = (int64_t)s->out[0] * s->out[1],
                  in = (int64_t)s->in[0] * s->in[1];

    return 6 * taps + 2 * (out + in) + 4 * SMALL * SMALL +
           taps * (s->in_channels / s->window.groups);
}

static bool take_phases(struct dpt_direct_pass *pass, size_t most_phases)
{
    const size_t parts = most_phases > SMALL ? most_phases : SMALL;

    pass->phases = dpt_alloc_array(most_phases, sizeof *pass->phases);
    pass->parts = dpt_alloc_array(parts, sizeof *pass->parts);
    return pass->phases != NULL && pass->parts != NULL;
}

enum dpt_status dpt_direct_open(const struct dpt_direct_shape *shape, struct dpt_direct **opened,
                                struct dpt_error *err)
{
    const struct dpt_window *w = &shape->conv.window;
    const int64_t numbers = count_numbers(&shape->conv);
    struct dpt_direct *d = *opened = dpt_alloc(sizeof *d);
    int64_t *at;

    if (d == NULL)
        return dpt_fail_memory(err, "a convolution", sizeof *d);
    d->shape = *shape;
    at = d->at = dpt_alloc_array((size_t)numbers, sizeof *at);
    if (at == NULL || !take_phases(&d->forward, 1) ||
        !take_phases(&d->data, (size_t)w->stride[0] * (size_t)w->stride[1])) {
        dpt_direct_close(d);
        *opened = NULL;
        return dpt_fail_memory(err, "a convolution", (double)numbers * sizeof *at);
    }
    plan_forward(d, &at);
    if (shape->wants_dx)
        plan_data(d, &at);
    return DPT_OK;
}

void dpt_direct_close(struct dpt_direct *direct)
{
    if (direct == NULL)
        return;
    dpt_free(direct->data.phases);
    dpt_free(direct->data.parts);
    dpt_free(direct->forward.phases);
    dpt_free(direct->forward.parts);
    dpt_free(direct->at);
    dpt_free(direct);
}

int64_t dpt_direct_scratch(const struct dpt_direct *d)
{
    const struct dpt_direct_pass *f = &d->forward;
    const int64_t outputs = up(f->outputs, LANES);
    const int64_t forward = f->samples * f->lines.sample;
    const int64_t data = d->shape.wants_dx ? d->data.samples * d->data.lines.sample : 0;
    const int64_t weights = d->shape.backward
                                ? f->samples * f->plane * outputs +
                                      up(d->rows, DPT_TILE_ROWS) * outputs + d->rows * MOST
                                : 0;

    return most(forward + weights, data) + (int64_t)4 * DPT_DIRECT_SLACK;
}

/* --- weights ---------------------------------------------------------------------------------- */

int64_t dpt_direct_packed(const struct dpt_direct *d, bool data)
{
    return data ? d->data.packed : d->forward.packed;
}

/* The weights of one tap and one input of the pass, of n outputs that are `step` apart. */
static inline void pack_lanes(const float *from, int64_t step, int64_t n, int64_t width, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i * step];
    for (int64_t i = n; i < width; i++)
        to[i] = 0;
}

/* [phase][group][block of outputs][tap][input][output of the block] */
void dpt_direct_pack(const struct dpt_direct *d, bool data, const float *weights, float *packed)
{
    const struct dpt_direct_pass *pass = data ? &d->data : &d->forward;
    const int64_t taps = taps_of(&d->shape.conv.window), inputs = pass->lines.channels,
                  outputs = pass->outputs, block = dpt_gemm_block(outputs);
    /* From one input or output of the pass to the next. */
    const int64_t input = data ? outputs * taps : taps, output = data ? taps : inputs * taps;

    for (int32_t i = 0; i < pass->n_phases; i++)
        for (int32_t group = 0; group < d->shape.conv.window.groups; group++) {
            const struct dpt_direct_phase *phase = &pass->phases[i];
            const float *w = weights + group * inputs * outputs * taps;

            for (int64_t first = 0; first < outputs; first += block) {
                const int64_t n = least(outputs - first, block), width = up(n, LANES);

                for (int64_t k = 0; k < inputs; k++)
                    for (int64_t tap = 0; tap < phase->n_taps; tap++)
                        pack_lanes(w + first * output + k * input + phase->taps[tap], output, n,
                                   width, packed + (tap * inputs + k) * width);
                packed += phase->n_taps * inputs * width;
            }
        }
}
