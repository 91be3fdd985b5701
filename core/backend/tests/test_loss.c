/* The losses against PyTorch's numbers, their gradients against finite differences, and numbers
 * that are not finite, which must never be hidden. */
#include "core/backend/tests/net.h"

enum { CELLS = 32, ROWS = 8 };

struct golden {
    const char *name;
    struct dpt_loss loss;
    int32_t count, outputs;
    bool soft;
    float y[CELLS], targets[CELLS];
    int32_t labels[ROWS];
    double sum;
    int64_t correct;
    double dy[CELLS];
};

static const struct golden goldens[] = {
#include "core/backend/tests/golden_loss.h"
};

static struct dpt_batch batch_of(const struct golden *g)
{
    return (struct dpt_batch){.count = g->count,
                              .labels = g->soft ? NULL : g->labels,
                              .targets = g->soft ? g->targets : NULL};
}

/* Also with rows apart, and without asking for the gradient. */
static void as_pytorch(void **state)
{
    enum { GAP = 3 };

    (void)state;
    for (size_t k = 0; k < sizeof goldens / sizeof *goldens; k++) {
        const struct golden *g = &goldens[k];
        const struct dpt_batch batch = batch_of(g);
        const size_t stride = (size_t)g->outputs + GAP;
        struct dpt_metric_sums metric_sums = {.loss = 0.5, .correct = 100, .samples = 1000},
                               other = {0};
        float y[CELLS + GAP * ROWS], dy[CELLS + GAP * ROWS];

        for (size_t i = 0; i < sizeof y / sizeof *y; i++)
            y[i] = dy[i] = 77;
        for (int32_t i = 0; i < g->count; i++)
            memcpy(y + (size_t)i * stride, g->y + i * g->outputs, (size_t)g->outputs * sizeof *y);
        dpt_loss_rows(&g->loss, &batch, g->outputs, stride, y, dy, &metric_sums);
        dpt_loss_rows(&g->loss, &batch, g->outputs, (size_t)g->outputs, g->y, NULL, &other);
        if (fabs(other.loss - g->sum) > 1e-12 + 1e-12 * fabs(g->sum))
            fail_msg("%s: loss %.17g, PyTorch %.17g", g->name, other.loss, g->sum);
        assert_true(fabs(metric_sums.loss - 0.5 - other.loss) <= 1e-14 * (1 + fabs(other.loss)));
        assert_int_equal(metric_sums.samples, 1000 + g->count);
        if (other.correct != (double)g->correct ||
            metric_sums.correct != (double)(100 + g->correct))
            fail_msg("%s: correct %lld, PyTorch %lld", g->name, (long long)other.correct,
                     (long long)g->correct);
        for (int32_t i = 0; i < g->count; i++) {
            for (size_t j = 0; j < stride; j++) {
                const double want =
                    j < (size_t)g->outputs ? g->dy[(size_t)i * (size_t)g->outputs + j] : 77;
                const double got = dy[(size_t)i * stride + j];

                if (fabs(got - want) > 2e-7 * (1 + fabs(want)))
                    fail_msg("%s: dy[%d][%zu] is %.9g, PyTorch %.9g", g->name, i, j, got, want);
            }
        }
    }
}

static void no_loss_goes_unchecked(void **state)
{
    (void)state;
    for (int kind = 0; kind < DPT_LOSSES; kind++) {
        bool found = false;

        for (size_t k = 0; k < sizeof goldens / sizeof *goldens; k++)
            found |= (int)goldens[k].loss.kind == kind;
        if (!found)
            fail_msg("loss %d: golden_loss.py has no case of it", kind);
    }
}

/* Each sample counts its weight. A weight of 1 gives the same bits as none, and a sample of weight
 * 0 does not count even if its outputs are NaN. */
static void weights_count(void **state)
{
    static const float weights[ROWS] = {2.5f, 0, 0.125f, 1, 7};

    (void)state;
    for (size_t k = 0; k < sizeof goldens / sizeof *goldens; k++) {
        const struct golden *g = &goldens[k];
        struct dpt_batch batch = batch_of(g), one = batch;
        struct dpt_metric_sums all = {0}, sum = {0};
        float y[CELLS], dy[CELLS], own[CELLS];
        const size_t n = (size_t)g->outputs;

        memcpy(y, g->y, (size_t)g->count * n * sizeof *y);
        batch.weights = weights;
        one.count = 1;
        if (g->count > 1)
            y[n] = NAN;
        dpt_loss_rows(&g->loss, &batch, g->outputs, n, y, dy, &all);
        for (int32_t i = 0; i < g->count; i++) {
            struct dpt_metric_sums metric_sums = {0};
            const double weight = weights[i];

            one.labels = g->soft ? NULL : g->labels + i;
            one.targets = g->soft ? g->targets + (size_t)i * n : NULL;
            dpt_loss_rows(&g->loss, &one, g->outputs, n, y + (size_t)i * n, own, &metric_sums);
            sum.loss += weight > 0 ? weight * metric_sums.loss : 0;
            sum.correct += weight * metric_sums.correct;
            sum.weight += weight;
            for (size_t j = 0; j < n; j++)
                assert_true(dy[(size_t)i * n + j] == (weight > 0 ? weights[i] * own[j] : 0));
        }
        assert_true(all.loss == sum.loss && all.correct == sum.correct && all.weight == sum.weight);
        assert_int_equal(all.samples, g->count);
    }
}

static double loss_of(const struct dpt_loss *loss, const struct dpt_batch *batch, int32_t n,
                      const float *y)
{
    struct dpt_metric_sums metric_sums = {0};

    dpt_loss_rows(loss, batch, n, (size_t)n, y, NULL, &metric_sums);
    return metric_sums.loss;
}

static void gradient_is_the_slope(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct draw d = {seed};
        const int32_t n = draw_int(&d, 1, 8);
        const struct dpt_loss loss = {(enum dpt_loss_kind)draw_int(&d, 0, DPT_LOSSES - 1),
                                      draw_int(&d, 0, 1) ? 0.3f * (float)draw_uniform(&d) : 0};
        const bool soft = !dpt_loss_has_classes(loss.kind) || draw_int(&d, 0, 1);
        const int32_t label = draw_int(&d, 0, n - 1);
        float y[8], targets[8], dy[8];
        const struct dpt_batch batch = {
            .count = 1, .labels = soft ? NULL : &label, .targets = soft ? targets : NULL};
        struct dpt_metric_sums metric_sums = {0};

        for (int32_t j = 0; j < n; j++) {
            y[j] = (float)(3 * draw_normal(&d));
            targets[j] = (float)draw_uniform(&d); /* need not sum to 1 */
        }
        dpt_loss_rows(&loss, &batch, n, (size_t)n, y, dy, &metric_sums);
        for (int32_t j = 0; j < n; j++) {
            const float middle = y[j], low = middle - 1e-3f, high = middle + 1e-3f;
            double slope;

            y[j] = high;
            slope = loss_of(&loss, &batch, n, y);
            y[j] = low;
            slope = (slope - loss_of(&loss, &batch, n, y)) / ((double)high - low);
            y[j] = middle;
            if (fabs(slope - dy[j]) > 1e-6 * (1 + fabs(slope)))
                fail_msg("seed %d: dy[%d] is %.9g, slope %.9g", (int)seed, j, dy[j], slope);
        }
    }
}

/* One bad logit anywhere makes the loss not finite, whatever the target, and other rows keep their
 * gradients. */
static void nothing_not_finite_is_hidden(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (int kind = 0; kind < DPT_LOSSES; kind++) {
        for (int at = 0; at < 4; at++) {
            for (size_t k = 0; k < 3; k++) {
                const struct dpt_loss loss = {(enum dpt_loss_kind)kind, 0};
                const float targets[8] = {0, 1, 0, 0, 0, 0, 1, 0};
                const struct dpt_batch batch = {.count = 2, .targets = targets};
                float y[8] = {1, 2, 3, 4, 5, 6, 7, 8}, dy[8];
                struct dpt_metric_sums metric_sums = {0};

                y[at] = bad[k];
                dpt_loss_rows(&loss, &batch, 4, 4, y, dy, &metric_sums);
                assert_false(isfinite(metric_sums.loss));
                for (int j = 0; j < 4 && dpt_loss_has_classes(loss.kind); j++)
                    assert_true(isnan(dy[j])); /* each depends on all logits */
                for (int j = 4; j < 8; j++)
                    assert_true(isfinite(dy[j]));
            }
        }
    }
}

static void correct_takes_the_first_and_never_nan(void **state)
{
    static const struct {
        float y[3], targets[3];
        int32_t label;
        int by_label, by_targets;
    } cases[] = {
        {{1, 1, 0}, {1, 0, 0}, 0, 1, 1},
        {{1, 1, 0}, {0, 1, 0}, 1, 0, 0},
        {{0, 0, 0}, {0.2f, 0.4f, 0.4f}, 2, 0, 0},
        {{0, 5, 5}, {0.2f, 0.4f, 0.4f}, 1, 1, 1},
        {{NAN, NAN, NAN}, {1, 0, 0}, 0, 0, 0},
        {{9, NAN, 1}, {1, 0, 0}, 0, 0, 0},
        {{9, 8, NAN}, {1, 0, 0}, 0, 0, 0},
        {{INFINITY, 8, 1}, {1, 0, 0}, 0, 1, 1},
        {{-INFINITY, -INFINITY, -INFINITY}, {1, 0, 0}, 0, 1, 1},
    };
    const struct dpt_loss loss = {DPT_LOSS_CROSS_ENTROPY, 0};

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const struct dpt_batch labels = {.count = 1, .labels = &cases[k].label};
        const struct dpt_batch targets = {.count = 1, .targets = cases[k].targets};
        struct dpt_metric_sums a = {0}, b = {0};

        dpt_loss_rows(&loss, &labels, 3, 3, cases[k].y, NULL, &a);
        dpt_loss_rows(&loss, &targets, 3, 3, cases[k].y, NULL, &b);
        if (a.correct != cases[k].by_label || b.correct != cases[k].by_targets)
            fail_msg("case %zu: correct %d by label, %d by targets", k, (int)a.correct,
                     (int)b.correct);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_pytorch),
        cmocka_unit_test(no_loss_goes_unchecked),
        cmocka_unit_test(weights_count),
        cmocka_unit_test(gradient_is_the_slope),
        cmocka_unit_test(nothing_not_finite_is_hidden),
        cmocka_unit_test(correct_takes_the_first_and_never_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
