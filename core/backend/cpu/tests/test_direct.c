/*
 * Convolutions without oneDNN against their definition in double precision: all passes over random
 * windows, strides, dilations, paddings and groups, in each layout, for every instruction set that
 * this machine has; those with FMA give the same bits.
 */
#include "core/backend/tests/net.h"

#include "core/backend/cpu/fp32/depthwise.h"
#include "core/backend/cpu/fp32/direct_private.h"

enum { CASES = 400, MOST_TERMS = 400000, LANES = DPT_TILE_LANES };

struct problem {
    struct dpt_conv_shape s;
    enum dpt_memory_layout x_layout;
    bool add;
    int64_t x_floats, y_floats, n_weights; /* in layouts */
    float *x, *dy, *weights, *bias, *old;  /* old: what the gradients are added to */
    char text[200];
};

struct results {
    float *y, *dx, *dw, *db;
};

/* Where a number is within a sample. */
static int64_t index_of(enum dpt_memory_layout layout, const int32_t size[2], int32_t c, int32_t h,
                        int32_t w)
{
    const int32_t block = layout == DPT_LAYOUT_C16 ? LANES : 1;

    return (((int64_t)c / block * size[0] + h) * size[1] + w) * block + c % block;
}

static void draw_shape(struct draw *d, struct dpt_conv_shape *s)
{
    struct dpt_window *w = &s->window;
    const int32_t kind = draw_int(d, 0, 5);

    s->n = draw_int(d, 1, 4);
    w->groups = kind < 3 ? 1 : draw_int(d, 2, 5);
    s->in_channels = w->groups * draw_int(d, 1, kind == 0 ? 70 : 20);
    s->out_channels = w->groups * draw_int(d, 1, kind == 0 ? 140 : 20);
    if (kind == 1) { /* pixels in the cache's way */
        s->in_channels = 128;
        s->out_channels = draw_int(d, 1, 2) * 64;
    }
    if (kind == 5)
        w->groups = s->in_channels = s->out_channels = draw_int(d, 2, 40);
    s->bias = draw_int(d, 0, 1);
    if (kind == 2) /* few pixels of many samples */
        s->n = draw_int(d, 5, 20);
    for (int i = 0; i < 2; i++) {
        int32_t reach;

        w->kernel[i] = draw_int(d, 1, draw_int(d, 0, 9) == 0 ? 70 : 5);
        w->stride[i] = draw_int(d, 1, draw_int(d, 0, 1) ? 3 : 1);
        w->dilation[i] = draw_int(d, 1, draw_int(d, 0, 1) ? 3 : 1);
        w->before[i] = draw_int(d, 0, w->kernel[i]);
        w->after[i] = draw_int(d, 0, w->kernel[i]);
        reach = (w->kernel[i] - 1) * w->dilation[i] + 1 - w->before[i] - w->after[i];
        s->in[i] =
            draw_int(d, reach > 1 ? reach : 1, (reach > 1 ? reach : 1) + (kind == 2 ? 3 : 14));
        s->out[i] = (s->in[i] - reach) / w->stride[i] + 1;
    }
}

static int64_t terms_of(const struct dpt_conv_shape *s)
{
    return (int64_t)s->n * s->out_channels * s->out[0] * s->out[1] *
           (s->in_channels / s->window.groups) * s->window.kernel[0] * s->window.kernel[1];
}

static void problem_init(struct problem *p, uint64_t seed)
{
    struct draw d = {seed};
    struct dpt_conv_shape *s = &p->s;
    const struct dpt_window *w = &s->window;

    memset(p, 0, sizeof *p);
    do
        draw_shape(&d, s);
    while (terms_of(s) > MOST_TERMS);
    p->x_layout = draw_int(&d, 0, 2) == 0 ? DPT_LAYOUT_NCHW : DPT_LAYOUT_C16;
    p->add = draw_int(&d, 0, 1);
    p->x_floats = dpt_layout_floats(p->x_layout, s->in_channels, s->in[0], s->in[1]);
    p->y_floats = dpt_layout_floats(DPT_LAYOUT_C16, s->out_channels, s->out[0], s->out[1]);
    p->n_weights =
        (int64_t)s->out_channels * (s->in_channels / w->groups) * w->kernel[0] * w->kernel[1];
    p->x = draw_array(s->n * p->x_floats, &d, 0);
    p->dy = draw_array(s->n * p->y_floats, &d, 0);
    p->weights = draw_array(p->n_weights, &d, 0);
    p->bias = draw_array(s->out_channels, &d, 0);
    p->old = draw_array(p->n_weights + s->out_channels, &d, 0);
    snprintf(p->text, sizeof p->text,
             "seed %d: %d of %d to %d channels in %d groups, %dx%d to %dx%d, kernel %dx%d, stride "
             "%dx%d, dilation %dx%d, before %dx%d%s",
             (int)seed, s->n, s->in_channels, s->out_channels, w->groups, s->in[0], s->in[1],
             s->out[0], s->out[1], w->kernel[0], w->kernel[1], w->stride[0], w->stride[1],
             w->dilation[0], w->dilation[1], w->before[0], w->before[1],
             p->x_layout == DPT_LAYOUT_NCHW ? ", planes" : "");
}

static void problem_release(struct problem *p)
{
    float *const arrays[] = {p->x, p->dy, p->weights, p->bias, p->old};

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        dpt_free(arrays[i]);
}

static struct results results_new(const struct problem *p)
{
    struct results r = {draw_array(p->s.n * p->y_floats, NULL, 0),
                        draw_array(p->s.n * p->x_floats, NULL, 0),
                        draw_array(p->n_weights, NULL, 0), draw_array(p->s.out_channels, NULL, 0)};

    memcpy(r.dw, p->old, (size_t)p->n_weights * sizeof *r.dw);
    memcpy(r.db, p->old + p->n_weights, (size_t)p->s.out_channels * sizeof *r.db);
    return r;
}

static void results_release(struct results *r)
{
    dpt_free(r->y);
    dpt_free(r->dx);
    dpt_free(r->dw);
    dpt_free(r->db);
}

/* The sums that the definition gives, and of their terms' sizes, which bound the rounding. */
struct sums {
    double *value, *size;
    int64_t n;
};

static struct sums sums_new(int64_t n)
{
    struct sums s = {dpt_alloc_array((size_t)n, sizeof(double)),
                     dpt_alloc_array((size_t)n, sizeof(double)), n};

    assert_true(s.value != NULL && s.size != NULL);
    return s;
}

static void add_term(struct sums *s, int64_t at, double term)
{
    s->value[at] += term;
    s->size[at] += fabs(term);
}

/* found: at the same places; those that no term was added to are not looked at. */
static void assert_sums(const struct problem *p, struct sums *s, const float *found,
                        const char *what)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->size[i] > 0 && !(fabs(found[i] - s->value[i]) <= 1e-6 * s->size[i] + 1e-9))
            fail_msg("%s: %s %d is %.9g instead of %.9g", p->text, what, (int)i, found[i],
                     s->value[i]);
    dpt_free(s->value);
    dpt_free(s->size);
}

/* All terms of all passes, one by one. */
static void assert_defined(const struct problem *p, const struct results *r, bool wants_dx)
{
    const struct dpt_conv_shape *s = &p->s;
    const struct dpt_window *w = &s->window;
    const int32_t inputs = s->in_channels / w->groups, outputs = s->out_channels / w->groups;
    struct sums y = sums_new(s->n * p->y_floats), dx = sums_new(s->n * p->x_floats),
                dw = sums_new(p->n_weights), db = sums_new(s->out_channels);

    for (int64_t i = 0; i < p->n_weights && p->add; i++)
        add_term(&dw, i, p->old[i]);
    for (int32_t i = 0; i < s->out_channels && p->add; i++)
        add_term(&db, i, p->old[p->n_weights + i]);
    for (int32_t n = 0; n < s->n; n++)
        for (int32_t o = 0; o < s->out_channels; o++)
            for (int32_t at = 0; at < s->out[0] * s->out[1]; at++) {
                const int64_t to = n * p->y_floats + index_of(DPT_LAYOUT_C16, s->out, o,
                                                              at / s->out[1], at % s->out[1]);

                if (s->bias)
                    add_term(&y, to, p->bias[o]);
                add_term(&db, o, p->dy[to]);
                for (int32_t k = 0; k < inputs * w->kernel[0] * w->kernel[1]; k++) {
                    const int32_t ky = k / w->kernel[1] % w->kernel[0], kx = k % w->kernel[1];
                    const int32_t c = o / outputs * inputs + k / (w->kernel[0] * w->kernel[1]);
                    const int32_t h =
                        at / s->out[1] * w->stride[0] - w->before[0] + ky * w->dilation[0];
                    const int32_t v =
                        at % s->out[1] * w->stride[1] - w->before[1] + kx * w->dilation[1];
                    const int64_t weight = (int64_t)o * inputs * w->kernel[0] * w->kernel[1] + k;
                    int64_t from;

                    if (h < 0 || h >= s->in[0] || v < 0 || v >= s->in[1])
                        continue;
                    from = n * p->x_floats + index_of(p->x_layout, s->in, c, h, v);
                    add_term(&y, to, (double)p->x[from] * p->weights[weight]);
                    add_term(&dx, from, (double)p->dy[to] * p->weights[weight]);
                    add_term(&dw, weight, (double)p->dy[to] * p->x[from]);
                }
            }
    if (!wants_dx)
        memset(dx.size, 0, (size_t)dx.n * sizeof *dx.size);
    assert_sums(p, &y, r->y, "output");
    assert_sums(p, &dx, r->dx, "gradient of the input");
    assert_sums(p, &dw, r->dw, "gradient of the weights");
    assert_sums(p, &db, r->db, "gradient of the bias");
}

/* A sample's first channel past the last one, in blocks: lanes that must be zero if x is finite. */
static void assert_filled(const struct problem *p, const float *x, int32_t channels,
                          const int32_t size[2], const char *what)
{
    const int64_t sample = dpt_layout_floats(DPT_LAYOUT_C16, channels, size[0], size[1]);

    for (int32_t n = 0; n < p->s.n; n++)
        for (int32_t c = channels; c % LANES != 0; c++)
            for (int32_t i = 0; i < size[0] * size[1]; i++)
                if (x[n * sample + index_of(DPT_LAYOUT_C16, size, c, i / size[1], i % size[1])] !=
                    0)
                    fail_msg("%s: %s: lane %d is not zero", p->text, what, c);
}

static int in_parts; /* passes that leave out what is around a plane */

static void run_direct(const struct problem *p, enum dpt_isa isa, struct results *r)
{
    const bool wants_dx = p->x_layout == DPT_LAYOUT_C16;
    const struct dpt_direct_shape shape = {p->s, p->x_layout, true, wants_dx, isa};
    struct dpt_direct *d;
    struct dpt_error err;
    float *scratch, *packed;

    assert_int_equal(dpt_direct_open(&shape, &d, &err), DPT_OK);
    in_parts += (d->forward.n_parts > d->forward.n_phases) + (d->data.n_parts > d->data.n_phases);
    scratch = draw_array(dpt_direct_scratch(d), NULL, 0);
    /* What was there before makes no difference. */
    memset(scratch, 0xff, (size_t)dpt_direct_scratch(d) * sizeof *scratch);
    packed = draw_array(dpt_direct_packed(d, false), NULL, 0);
    dpt_direct_pack(d, false, p->weights, packed);
    dpt_direct_forward(d, p->x, packed, p->s.bias ? p->bias : NULL, scratch, r->y);
    dpt_free(packed);
    dpt_direct_weights(d, p->x, p->dy, p->add, scratch, r->dw, r->db);
    if (wants_dx) {
        packed = draw_array(dpt_direct_packed(d, true), NULL, 0);
        dpt_direct_pack(d, true, p->weights, packed);
        memset(r->dx, 0xff, (size_t)(p->s.n * p->x_floats) * sizeof *r->dx);
        dpt_direct_data(d, p->dy, packed, scratch, r->dx);
        assert_filled(p, r->dx, p->s.in_channels, p->s.in, "gradient of the input");
        dpt_free(packed);
    }
    assert_filled(p, r->y, p->s.out_channels, p->s.out, "output");
    dpt_free(scratch);
    dpt_direct_close(d);
}

static bool same(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static void direct_is_the_definition(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed += (uint64_t)net_every()) {
        const enum dpt_isa machine = dpt_isa_machine(),
                           best = machine < DPT_ISA_OWN ? machine : DPT_ISA_OWN;
        struct problem p;
        struct results first;

        problem_init(&p, seed);
        first = results_new(&p);
        run_direct(&p, best, &first);
        assert_defined(&p, &first, p.x_layout == DPT_LAYOUT_C16);
        for (int isa = DPT_ISA_PLAIN; isa < (int)best; isa++) {
            struct results r;

            if (isa == DPT_ISA_NEON)
                continue;
            r = results_new(&p);
            run_direct(&p, (enum dpt_isa)isa, &r);
            assert_defined(&p, &r, p.x_layout == DPT_LAYOUT_C16);
            if (isa != DPT_ISA_PLAIN &&
                !(same(r.y, first.y, p.s.n * p.y_floats) &&
                  same(r.dx, first.dx, p.s.n * p.x_floats) && same(r.dw, first.dw, p.n_weights)))
                fail_msg("%s: other bits by %s", p.text, dpt_isa_names[isa]);
            results_release(&r);
        }
        results_release(&first);
        problem_release(&p);
    }
    assert_true(in_parts * net_every() > CASES / 20);
}

/* The sums of an output have the same bits whichever samples are computed with it. */
static void samples_are_apart(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed += 8 * (uint64_t)net_every()) {
        struct problem p, one;
        struct results all, r;

        problem_init(&p, seed);
        all = results_new(&p);
        run_direct(&p, dpt_isa_machine(), &all);
        one = p;
        one.s.n = 1;
        for (int32_t n = 0; n < p.s.n; n++) {
            one.x = p.x + n * p.x_floats;
            one.dy = p.dy + n * p.y_floats;
            r = results_new(&one);
            run_direct(&one, dpt_isa_machine(), &r);
            if (!same(r.y, all.y + n * p.y_floats, p.y_floats) ||
                (p.x_layout == DPT_LAYOUT_C16 && !same(r.dx, all.dx + n * p.x_floats, p.x_floats)))
                fail_msg("%s: sample %d alone has other bits", p.text, n);
            results_release(&r);
        }
        results_release(&all);
        problem_release(&p);
    }
}

static void depthwise_is_the_definition(void **state)
{
    int cases = 0;

    (void)state;
    for (uint64_t seed = 0; seed < CASES; seed += (uint64_t)net_every()) {
        struct problem p;
        struct results r;
        float *scratch;

        problem_init(&p, seed);
        if (dpt_depthwise_fits(&p.s) && p.x_layout == DPT_LAYOUT_C16) {
            r = results_new(&p);
            scratch = draw_array(dpt_depthwise_scratch(&p.s), NULL, 0);
            memset(scratch, 0xff, (size_t)dpt_depthwise_scratch(&p.s) * sizeof *scratch);
            memset(r.dx, 0xff, (size_t)(p.s.n * p.x_floats) * sizeof *r.dx);
            dpt_depthwise_forward(&p.s, p.x, p.weights, p.s.bias ? p.bias : NULL, scratch, r.y);
            dpt_depthwise_data(&p.s, p.dy, p.weights, scratch, r.dx);
            dpt_depthwise_weights(&p.s, p.x, p.dy, p.add, scratch, r.dw);
            dpt_direct_bias(&p.s, p.dy, p.add, r.db);
            assert_defined(&p, &r, true);
            assert_filled(&p, r.y, p.s.out_channels, p.s.out, "output");
            cases++;
            dpt_free(scratch);
            results_release(&r);
        }
        problem_release(&p);
    }
    assert_true(cases * net_every() > CASES / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct_is_the_definition),
        cmocka_unit_test(samples_are_apart),
        cmocka_unit_test(depthwise_is_the_definition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
