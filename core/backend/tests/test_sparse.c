/*
 * Backward over lists of winners gives what the definition of a convolution's gradients gives, for
 * every instruction set that this machine has, in every layout.
 */
#include "core/backend/tests/net.h"

#include "core/backend/cpu/fp32/sparse.h"

enum { SHAPES = 150 };

struct problem {
    struct dpt_sparse_shape shape;
    int32_t count, micro;
    int64_t x_sample, y_sample; /* floats */
    float *x, *dy, *weights;
    int32_t *argmax;
    char text[200];
};

struct gradients {
    float *dw, *db, *dx;
};

static int64_t index_of(enum dpt_memory_layout layout, const int32_t dims[3], int32_t c, int32_t h,
                        int32_t w)
{
    const int32_t block = dpt_layout_block(layout, dims[0]);

    return ((int64_t)c / block * dims[1] * dims[2] + h * dims[2] + w) * block + c % block;
}

/* In every layout the padding holds zeros in the activations, and nothing that counts in
 * `argmax`. */
static void problem_init(struct problem *p, uint64_t seed)
{
    static const enum dpt_memory_layout layouts[] = {DPT_LAYOUT_C16, DPT_LAYOUT_C16, DPT_LAYOUT_C8,
                                                     DPT_LAYOUT_NCHW, DPT_LAYOUT_NHWC};
    struct draw d = {seed};
    struct dpt_sparse_shape *s = &p->shape;

    do {
        const int32_t square = draw_int(&d, 0, 1) ? 3 : 5;
        const bool few = draw_int(&d, 0, 2) == 0;

        *s = (struct dpt_sparse_shape){.in_channels = draw_int(&d, 1, few ? 4 : 40),
                                       .out_channels = draw_int(&d, 1, 70),
                                       .x = layouts[draw_int(&d, 0, 4)],
                                       .y = layouts[draw_int(&d, 0, 4)],
                                       .wants_dx = !few};
        for (int i = 0; i < 2; i++) {
            s->kernel[i] = few ? draw_int(&d, 1, 5) : square;
            s->in[i] = draw_int(&d, 1, 13);
            s->before[i] = draw_int(&d, 0, s->kernel[i] + 1);
            s->out[i] =
                s->in[i] + s->before[i] + draw_int(&d, 0, s->kernel[i] + 1) - s->kernel[i] + 1;
            s->pooled[i] = s->out[i] / 2;
        }
    } while (s->pooled[0] < 1 || s->pooled[1] < 1 || !dpt_sparse_fits(s));
    p->micro = draw_int(&d, 1, 4);
    p->count = draw_int(&d, 1, p->micro);
    snprintf(p->text, sizeof p->text,
             "seed %d: %dx%dx%d by %dx%d (before %d, %d) to %dx%dx%d, layouts %d and %d, %d of %d",
             (int)seed, s->in_channels, s->in[0], s->in[1], s->kernel[0], s->kernel[1],
             s->before[0], s->before[1], s->out_channels, s->out[0], s->out[1], (int)s->x,
             (int)s->y, p->count, p->micro);
    p->x_sample = dpt_layout_floats(s->x, s->in_channels, s->in[0], s->in[1]);
    p->y_sample = dpt_layout_floats(s->y, s->out_channels, s->pooled[0], s->pooled[1]);
    p->x = draw_array(p->micro * p->x_sample, &d, 0);
    p->dy = draw_array(p->micro * p->y_sample, &d, 0);
    p->weights =
        draw_array((int64_t)s->out_channels * s->in_channels * s->kernel[0] * s->kernel[1], &d, 0);
    p->argmax = dpt_alloc_array((size_t)(p->micro * p->y_sample), sizeof *p->argmax);
    assert_non_null(p->argmax);
    for (int64_t i = 0; i < p->micro * p->y_sample; i++)
        p->argmax[i] = draw_int(&d, -1, 3);
}

static void problem_release(struct problem *p)
{
    dpt_free(p->x);
    dpt_free(p->dy);
    dpt_free(p->weights);
    dpt_free(p->argmax);
}

static int64_t weights_of(const struct problem *p)
{
    return (int64_t)p->shape.out_channels * p->shape.in_channels * p->shape.kernel[0] *
           p->shape.kernel[1];
}

static struct gradients gradients_open(const struct problem *p)
{
    return (struct gradients){draw_array(weights_of(p), NULL, 7),
                              draw_array(p->shape.out_channels, NULL, 7),
                              draw_array(p->micro * p->x_sample, NULL, 7)};
}

static void gradients_close(struct gradients *g)
{
    dpt_free(g->dw);
    dpt_free(g->db);
    dpt_free(g->dx);
}

/* One winner: its share of all gradients. */
static void slow_winner(const struct problem *p, int32_t sample, int32_t out, const int32_t at[2],
                        float much, struct gradients *g)
{
    const struct dpt_sparse_shape *s = &p->shape;
    const int32_t dims[3] = {s->in_channels, s->in[0], s->in[1]};

    g->db[out] += much;
    for (int32_t in = 0; in < s->in_channels; in++) {
        for (int32_t i = 0; i < s->kernel[0]; i++) {
            for (int32_t j = 0; j < s->kernel[1]; j++) {
                const int32_t h = at[0] + i - s->before[0], w = at[1] + j - s->before[1];
                const int64_t tap =
                    (((int64_t)out * s->in_channels + in) * s->kernel[0] + i) * s->kernel[1] + j;

                if (h < 0 || h >= s->in[0] || w < 0 || w >= s->in[1])
                    continue;
                const int64_t x = sample * p->x_sample + index_of(s->x, dims, in, h, w);

                g->dw[tap] += much * p->x[x];
                g->dx[x] += much * p->weights[tap];
            }
        }
    }
}

static struct gradients slow(const struct problem *p)
{
    const struct dpt_sparse_shape *s = &p->shape;
    const int32_t dims[3] = {s->out_channels, s->pooled[0], s->pooled[1]};
    struct gradients g = gradients_open(p);

    memset(g.dw, 0, (size_t)weights_of(p) * sizeof *g.dw);
    memset(g.db, 0, (size_t)s->out_channels * sizeof *g.db);
    memset(g.dx, 0, (size_t)(p->micro * p->x_sample) * sizeof *g.dx);
    for (int32_t n = 0; n < p->count; n++) {
        for (int32_t out = 0; out < s->out_channels; out++) {
            for (int32_t i = 0; i < s->pooled[0]; i++) {
                for (int32_t j = 0; j < s->pooled[1]; j++) {
                    const int64_t y = n * p->y_sample + index_of(s->y, dims, out, i, j);
                    const int32_t at[2] = {2 * i + p->argmax[y] / 2, 2 * j + p->argmax[y] % 2};

                    if (p->argmax[y] >= 0)
                        slow_winner(p, n, out, at, p->dy[y], &g);
                }
            }
        }
    }
    return g;
}

/* It runs twice: what the first run left in the scratch memory must not show. */
static struct gradients fast(const struct problem *p, enum dpt_isa isa, bool add)
{
    struct gradients g = gradients_open(p);
    struct dpt_sparse *sparse;
    struct dpt_error err;

    assert_int_equal(dpt_sparse_open(&p->shape, isa, &sparse, &err), DPT_OK);
    float *scratch = dpt_alloc_array((size_t)dpt_sparse_scratch(sparse), sizeof *scratch);
    float *packed = dpt_alloc_array((size_t)dpt_sparse_packed(sparse), sizeof *packed);
    struct dpt_sparse_work work = {.count = p->count,
                                   .micro = p->micro,
                                   .x = p->x,
                                   .dy = p->dy,
                                   .argmax = p->argmax,
                                   .packed = packed,
                                   .scratch = scratch,
                                   .dw = g.dw,
                                   .db = g.db,
                                   .dx = g.dx};

    assert_true(scratch != NULL && packed != NULL);
    dpt_sparse_pack(sparse, p->weights, packed);
    dpt_sparse_backward(sparse, &work);
    work.add = add;
    dpt_sparse_backward(sparse, &work);
    dpt_free(sparse);
    dpt_free(scratch);
    dpt_free(packed);
    return g;
}

static void assert_near(const struct problem *p, const float *a, const float *b, int64_t n,
                        float times, const char *what)
{
    double difference = 0, norm = 1e-6;

    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - times * b[i]) * ((double)a[i] - times * b[i]);
        norm += (double)times * b[i] * times * b[i];
    }
    if (!(sqrt(difference / norm) < 2e-6))
        fail_msg("%s: %s differs by %g", p->text, what, sqrt(difference / norm));
}

/* The padding of a layout's last block does not count. */
static void clear_filling(const struct problem *p, float *dx)
{
    const int32_t block = dpt_layout_block(p->shape.x, p->shape.in_channels);
    const int32_t used = p->shape.in_channels % block;
    const int64_t pixels = (int64_t)p->shape.in[0] * p->shape.in[1];

    for (int32_t n = 0; used != 0 && n < p->micro; n++) {
        float *last = dx + (n + 1) * p->x_sample - pixels * block;

        for (int64_t i = 0; i < pixels * block; i++) {
            if (i % block >= used)
                last[i] = 0;
        }
    }
}

static void gives_the_gradients(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SHAPES; seed += (uint64_t)net_every()) {
        struct problem p;
        struct gradients wanted;

        problem_init(&p, seed);
        wanted = slow(&p);
        for (int isa = DPT_ISA_PLAIN; isa <= DPT_ISA_OWN; isa++) {
            const bool add = (seed + (uint64_t)isa) % 2;
            struct gradients got = fast(&p, (enum dpt_isa)isa, add);

            assert_near(&p, got.dw, wanted.dw, weights_of(&p), add ? 2 : 1, "dw");
            assert_near(&p, got.db, wanted.db, p.shape.out_channels, add ? 2 : 1, "db");
            clear_filling(&p, got.dx);
            clear_filling(&p, wanted.dx);
            if (p.shape.wants_dx)
                assert_near(&p, got.dx, wanted.dx, p.micro * p.x_sample, 1, "dx");
            gradients_close(&got);
        }
        gradients_close(&wanted);
        problem_release(&p);
    }
}

/* NaN is where the definition has it, and nowhere else, except that a gradient of NaN may also meet
 * the zeros around the input: then all weights of that channel are NaN. */
static void assert_same_nan(const struct problem *p, const struct gradients *got,
                            const struct gradients *wanted)
{
    const int64_t each = weights_of(p) / p->shape.out_channels;

    for (int64_t i = 0; i < weights_of(p); i++) {
        if (isnan(wanted->dw[i]) || !isnan(wanted->db[i / each]))
            assert_int_equal(isnan(got->dw[i]), isnan(wanted->dw[i]));
    }
    for (int32_t i = 0; i < p->shape.out_channels; i++)
        assert_int_equal(isnan(got->db[i]), isnan(wanted->db[i]));
    for (int64_t i = 0; p->shape.wants_dx && i < p->micro * p->x_sample; i++)
        assert_int_equal(isnan(got->dx[i]), isnan(wanted->dx[i]));
}

/* One NaN, in the gradient or in the input. */
static void passes_nan_on(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SHAPES; seed += (uint64_t)net_every()) {
        struct problem p;
        struct draw d = {seed};
        struct gradients wanted;

        problem_init(&p, seed);
        if (seed % 2)
            p.dy[draw_int(&d, 0, (int32_t)(p.count * p.y_sample) - 1)] = NAN;
        else
            p.x[draw_int(&d, 0, (int32_t)(p.count * p.x_sample) - 1)] = NAN;
        wanted = slow(&p);
        clear_filling(&p, wanted.dx);
        for (int isa = DPT_ISA_PLAIN; isa <= DPT_ISA_OWN; isa++) {
            struct gradients got = fast(&p, (enum dpt_isa)isa, false);

            clear_filling(&p, got.dx);
            assert_same_nan(&p, &got, &wanted);
            gradients_close(&got);
        }
        gradients_close(&wanted);
        problem_release(&p);
    }
}

static void refuses_the_rest(void **state)
{
    const struct dpt_sparse_shape fine = {.in_channels = 20,
                                          .out_channels = 20,
                                          .in = {8, 8},
                                          .out = {8, 8},
                                          .kernel = {3, 3},
                                          .before = {1, 1},
                                          .pooled = {4, 4},
                                          .wants_dx = true};
    struct dpt_sparse_shape s = fine;

    (void)state;
    assert_true(dpt_sparse_fits(&s));
    s.kernel[0] = 2;
    assert_false(dpt_sparse_fits(&s));
    s = fine;
    s.kernel[0] = s.kernel[1] = 4;
    assert_false(dpt_sparse_fits(&s));
    s = fine;
    s.pooled[1] = 5;
    assert_false(dpt_sparse_fits(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_gradients),
        cmocka_unit_test(passes_nan_on),
        cmocka_unit_test(refuses_the_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
