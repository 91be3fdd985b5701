#include "core/backend/cpu/fp32/direct_private.h"

#include "core/backend/cpu/numbers.h"
#include "core/base/memory.h"

/* Planning of direct convolutions, and their weights. */

enum {
    LANES = DPT_TILE_LANES,
    MOST = DPT_TILE_MOST,
    CROWDED = 128,     /* pixels a multiple of this many floats apart share few lines of a cache */
    NEAR = 1 << 16,    /* floats of lines that stay near a core */
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

static void finish_lines(struct dpt_direct_lines *lines)
{
    lines->pitch = lines->channels % CROWDED == 0 ? lines->channels + LANES : lines->channels;
    lines->sample = (int64_t)lines->size[0] * lines->size[1] * lines->pitch;
}

/* The taps of a phase on one axis, in the order of what they read, and where that begins: both in
 * equal steps. */
struct axis {
    int32_t n, tap, tap_step, at, at_step;
};

/* The segments of a patch: a kernel's row is one if its pixels lie side by side. */
static void plan_segments(struct dpt_direct_phase *phase, const struct dpt_direct_lines *lines,
                          const struct axis axes[2], int32_t width, int64_t **at)
{
    const bool joined = lines->pitch == lines->channels && (axes[1].n == 1 || axes[1].at_step == 1);
    int64_t segment = 0, tap = 0, *offsets;

    phase->n_taps = (int64_t)axes[0].n * axes[1].n;
    phase->taps = take(at, phase->n_taps);
    offsets = take(at, phase->n_taps);
    for (int32_t i = 0; i < axes[0].n; i++)
        for (int32_t k = 0; k < axes[1].n; k++) {
            const int64_t y = axes[0].at + i * axes[0].at_step,
                          x = axes[1].at + k * axes[1].at_step;

            if (k == 0 || !joined)
                offsets[segment++] = (y * lines->size[1] + x) * lines->pitch;
            phase->taps[tap++] = (int64_t)(axes[0].tap + i * axes[0].tap_step) * width +
                                 axes[1].tap + k * axes[1].tap_step;
        }
    phase->sum = (struct dpt_direct_sum){.offsets = offsets,
                                         .segments = segment,
                                         .k = joined ? (int64_t)axes[1].n * lines->channels
                                                     : lines->channels,
                                         .step = 1};
}

/* n: outputs on each axis; from, to: the step between them in the lines and in a plane of `width`
 * pixels, whose first one is at `first`. */
static void plan_pixels(struct dpt_direct_phase *phase, const struct dpt_direct_lines *lines,
                        const int32_t n[2], const int32_t from[2], const int32_t first[2],
                        const int32_t to[2], int32_t width, int64_t **at)
{
    phase->pixels = (int64_t)n[0] * n[1];
    phase->step = (int64_t)to[1] * LANES;
    phase->in_at = take(at, phase->pixels);
    phase->out_at = take(at, phase->pixels);
    for (int64_t i = 0; i < phase->pixels; i++) {
        const int64_t row = i / n[1], column = i % n[1];

        phase->in_at[i] = (row * from[0] * lines->size[1] + column * from[1]) * lines->pitch;
        phase->out_at[i] = ((first[0] + row * to[0]) * width + first[1] + column * to[1]) * LANES;
    }
}

/* The weights' places, and how many samples are copied at a time. */
static void finish_pass(struct dpt_direct_pass *pass, const struct dpt_conv_shape *s)
{
    const int64_t groups = s->window.groups;

    pass->packed = 0;
    for (int32_t i = 0; i < pass->n_phases; i++) {
        pass->phases[i].packed = pass->packed;
        pass->packed +=
            groups * pass->phases[i].n_taps * pass->lines.channels * up(pass->outputs, LANES);
    }
    pass->samples = (int32_t)least(
        s->n, most(1, most(NEAR, least(pass->packed, NEAREST)) / pass->lines.sample));
}

static void plan_forward(struct dpt_direct *d, int64_t **at)
{
    const struct dpt_conv_shape *s = &d->shape.conv;
    const struct dpt_window *w = &s->window;
    const int32_t none[2] = {0, 0}, one[2] = {1, 1};
    struct dpt_direct_pass *pass = &d->forward;
    struct dpt_direct_lines *lines = &pass->lines;
    struct axis axes[2];

    lines->layout = d->shape.x;
    lines->channels = s->in_channels / w->groups;
    lines->all = s->in_channels;
    for (int i = 0; i < 2; i++) {
        lines->in[i] = s->in[i];
        lines->before[i] = w->before[i];
        lines->size[i] = (s->out[i] - 1) * w->stride[i] + (w->kernel[i] - 1) * w->dilation[i] + 1;
        axes[i] = (struct axis){.n = w->kernel[i], .tap_step = 1, .at_step = w->dilation[i]};
    }
    finish_lines(lines);
    pass->outputs = s->out_channels / w->groups;
    pass->all = s->out_channels;
    pass->plane = (int64_t)s->out[0] * s->out[1];
    pass->n_phases = 1;
    plan_segments(pass->phases, lines, axes, w->kernel[1], at);
    plan_pixels(pass->phases, lines, s->out, w->stride, none, one, s->out[1], at);
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
    finish_lines(lines);
}

static void plan_data(struct dpt_direct *d, int64_t **at)
{
    const struct dpt_conv_shape *s = &d->shape.conv;
    const struct dpt_window *w = &s->window;
    const int32_t one[2] = {1, 1};
    struct dpt_direct_pass *pass = &d->data;

    plan_gradient(&pass->lines, s);
    pass->outputs = s->in_channels / w->groups;
    pass->all = s->in_channels;
    pass->plane = (int64_t)s->in[0] * s->in[1];
    pass->n_phases = 0;
    for (int32_t y = 0; y < w->stride[0] && y < s->in[0]; y++)
        for (int32_t x = 0; x < w->stride[1] && x < s->in[1]; x++) {
            const int32_t first[2] = {y, x};
            int32_t n[2];
            struct axis axes[2];

            for (int i = 0; i < 2; i++) {
                n[i] = (s->in[i] - first[i] + w->stride[i] - 1) / w->stride[i];
                axes[i] = find_taps(w, i, first[i]);
                axes[i].at += pass->lines.before[i];
            }
            plan_segments(&pass->phases[pass->n_phases], &pass->lines, axes, w->kernel[1], at);
            plan_pixels(&pass->phases[pass->n_phases], &pass->lines, n, one, first, w->stride,
                        s->in[1], at);
            pass->n_phases++;
        }
    finish_pass(pass, s);
}

/* Numbers in all arrays. */
static int64_t count_numbers(const struct dpt_conv_shape *s)
{
    const int64_t taps = taps_of(&s->window), out = (int64_t)s->out[0] * s->out[1],
                  in = (int64_t)s->in[0] * s->in[1];

    return 4 * taps + 2 * (out + in) + taps * (s->in_channels / s->window.groups);
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
    d->forward.phases = dpt_alloc(sizeof *d->forward.phases);
    d->data.phases =
        dpt_alloc_array((size_t)w->stride[0] * (size_t)w->stride[1], sizeof *d->data.phases);
    if (at == NULL || d->forward.phases == NULL || d->data.phases == NULL) {
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
    dpt_free(direct->forward.phases);
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
