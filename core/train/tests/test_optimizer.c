#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/train/optimizer.h"
#include "core/train/tests/golden_optimizers.h"
#include "core/train/tests/variant.h"

enum { GOLDEN_FLOATS = 32, BIAS_AT = 16 };

static void open_optimizer(struct dpt_conf *conf, const char *text, struct dpt_variant_value *value)
{
    struct dpt_error err;

    if (read_variant(conf, dpt_optimizer_variants, text, value, &err) != DPT_OK)
        fail_msg("%s: %s", text, err.text);
}

static void place(float *arena, const float *values)
{
    memcpy(arena, values, GOLDEN_WEIGHTS * sizeof *arena);
    memcpy(arena + BIAS_AT, values + GOLDEN_WEIGHTS, GOLDEN_BIASES * sizeof *arena);
}

static void assert_close(const float *arena, const float *want, const char *text, int step)
{
    for (int i = 0; i < GOLDEN_WEIGHTS + GOLDEN_BIASES; i++) {
        const float got = arena[i < GOLDEN_WEIGHTS ? i : BIAS_AT + i - GOLDEN_WEIGHTS];

        if (!(fabsf(got - want[i]) <= 1e-6f * fabsf(want[i]) + 1e-7f))
            fail_msg("%s, step %d, element %d: %.9g, PyTorch has %.9g", text, step + 1, i,
                     (double)got, (double)want[i]);
    }
}

/* All options, weights with decay beside biases without, as PyTorch computes them. The gradient
   comes four times too large, for `scale` to mend. */
static void steps_are_pytorchs(void **state)
{
    struct dpt_tensor tensors[] = {
        {.count = GOLDEN_WEIGHTS, .offset = 0, .decay = true},
        {.count = GOLDEN_BIASES, .offset = BIAS_AT, .decay = false},
    };
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 2, .floats = GOLDEN_FLOATS};

    (void)state;
    for (size_t k = 0; k < sizeof golden_optimizers / sizeof golden_optimizers[0]; k++) {
        const struct golden_optimizer *golden = &golden_optimizers[k];
        float params[GOLDEN_FLOATS] = {0}, gradient[GOLDEN_FLOATS] = {0};
        float slot0[GOLDEN_FLOATS] = {0}, slot1[GOLDEN_FLOATS] = {0};
        float *const slots[] = {slot0, slot1};
        struct dpt_variant_value optimizer;
        struct dpt_conf conf;

        open_optimizer(&conf, golden->conf, &optimizer);
        place(params, golden_start);
        for (int step = 0; step < GOLDEN_STEPS; step++) {
            const struct dpt_update update = {
                .lr = golden_rates[step], .step = step + 1, .scale = 0.25f};

            place(gradient, golden_gradients[step]);
            for (int i = 0; i < GOLDEN_FLOATS; i++)
                gradient[i] *= 4;
            dpt_optimizer_apply(&optimizer, &graph, &update, 0, GOLDEN_FLOATS, params, gradient,
                                slots);
            assert_close(params, golden->after[step], golden->conf, step);
        }
        dpt_conf_release(&conf);
    }
}

/* Tensors of random sizes, with gaps behind them as in a real arena. */
static size_t random_graph(struct dpt_graph *graph, struct dpt_tensor *tensors, uint64_t seed)
{
    size_t at = 0;

    *graph = (struct dpt_graph){.tensors = tensors};
    graph->n_tensors = 1 + (int32_t)(dpt_random64(seed, DPT_STREAM_SYNTHETIC, 0, 0) % 6);
    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const uint64_t word = dpt_random64(seed, DPT_STREAM_SYNTHETIC, 1, (uint64_t)k);
        const size_t count = 1 + (size_t)(word % 97);

        tensors[k] = (struct dpt_tensor){
            .count = (int64_t)count, .offset = (int64_t)at, .decay = (word >> 32) % 2 == 0};
        at += dpt_round_up(count, sizeof(float));
    }
    graph->floats = (int64_t)at;
    return at;
}

/* One step over the whole arena, or over pieces cut anywhere, gives the same bits; what lies
 * outside is not touched. */
static void pieces_give_the_bits_of_the_whole(void **state)
{
    static const char *const texts[] = {
        "{type: sgd, weight_decay: 0.1}",
        "{type: sgd, momentum: 0.9, weight_decay: 0.1}",
        "{type: sgd, momentum: 0.9, nesterov: true}",
        "{type: adam, weight_decay: 0.01}",
        "adamw",
    };
    enum { MOST = 6 * 112 };

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        const char *text = texts[seed % (sizeof texts / sizeof texts[0])];
        float whole[3][MOST], pieces[3][MOST], gradient[MOST];
        float *const whole_slots[] = {whole[1], whole[2]}, *const slots[] = {pieces[1], pieces[2]};
        struct dpt_update update = {.lr = 0.05, .scale = 0.125f};
        struct dpt_variant_value optimizer;
        struct dpt_tensor tensors[6];
        struct dpt_graph graph;
        struct dpt_conf conf;
        const size_t n = random_graph(&graph, tensors, seed);

        open_optimizer(&conf, text, &optimizer);
        memset(whole, 0, sizeof whole);
        dpt_random_normal(seed, DPT_STREAM_SYNTHETIC, 2, 0, n, whole[0]);
        memcpy(pieces, whole, sizeof whole);
        for (update.step = 1; update.step <= 3; update.step++) {
            dpt_random_normal(seed, DPT_STREAM_SYNTHETIC, 3 + (uint64_t)update.step, 0, n,
                              gradient);
            dpt_optimizer_apply(&optimizer, &graph, &update, 0, n, whole[0], gradient, whole_slots);
            for (size_t begin = 0, piece = 0; begin < n; piece++) {
                const uint64_t word = dpt_random64(seed, DPT_STREAM_SYNTHETIC, 9, piece);
                const size_t left = n - begin, size = 1 + (size_t)(word % 60);
                const size_t end = begin + (size < left ? size : left);

                dpt_optimizer_apply(&optimizer, &graph, &update, begin, end, pieces[0], gradient,
                                    slots);
                begin = end;
            }
        }
        if (memcmp(whole, pieces, sizeof whole) != 0)
            fail_msg("%s, seed %llu: the pieces' bits differ", text, (unsigned long long)seed);
        dpt_conf_release(&conf);
    }
}

/* The floats between two tensors and outside the range keep their values, whatever the gradient
 * there. */
static void floats_outside_are_left_alone(void **state)
{
    struct dpt_tensor tensors[] = {{.count = 5, .offset = 0, .decay = true},
                                   {.count = 20, .offset = 16, .decay = true}};
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 2, .floats = 48};
    const struct dpt_update update = {.lr = 0.1, .step = 1, .scale = 1};

    (void)state;
    for (const struct dpt_variant *const *v = dpt_optimizer_variants; *v != NULL; v++) {
        float params[48], gradient[48], slot0[48] = {0}, slot1[48] = {0};
        float *const slots[] = {slot0, slot1};
        struct dpt_variant_value optimizer;
        struct dpt_conf conf;

        open_optimizer(&conf, (*v)->name, &optimizer);
        for (int i = 0; i < 48; i++) {
            params[i] = 1;
            gradient[i] = 2;
        }
        dpt_optimizer_apply(&optimizer, &graph, &update, 3, 30, params, gradient, slots);
        for (int i = 0; i < 48; i++) {
            const bool inside = (i >= 3 && i < 5) || (i >= 16 && i < 30);

            if ((params[i] != 1) != inside || (slot1[i] != 0 && !inside))
                fail_msg("%s: element %d is %g", (*v)->name, i, (double)params[i]);
        }
        dpt_conf_release(&conf);
    }
}

/* With a zero gradient only the decay moves a weight, and it moves no bias. */
static void decay_spares_biases(void **state)
{
    struct dpt_tensor tensors[] = {{.count = 3, .offset = 0, .decay = true},
                                   {.count = 3, .offset = 16, .decay = false}};
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 2, .floats = 32};
    const struct dpt_update update = {.lr = 0.1, .step = 1, .scale = 1};

    (void)state;
    for (const struct dpt_variant *const *v = dpt_optimizer_variants; *v != NULL; v++) {
        float params[32], gradient[32] = {0}, slot0[32] = {0}, slot1[32] = {0};
        float *const slots[] = {slot0, slot1};
        struct dpt_variant_value optimizer;
        struct dpt_conf conf;
        char text[64];

        snprintf(text, sizeof text, "{type: %s, weight_decay: 0.5}", (*v)->name);
        open_optimizer(&conf, text, &optimizer);
        for (int i = 0; i < 32; i++)
            params[i] = 1;
        dpt_optimizer_apply(&optimizer, &graph, &update, 0, 32, params, gradient, slots);
        for (int i = 0; i < 3; i++) {
            assert_true(params[i] < 0.999f);
            assert_true(params[16 + i] == 1.0f);
        }
        dpt_conf_release(&conf);
    }
}

static void mistakes_are_told(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{type: sgd, nesterov: true}", "needs momentum"},
        {"{type: sgd, nesterov: true, momentum: 0}", "needs momentum"},
        {"{type: sgd, lr: -1}", "lr"},
        {"{type: sgd, momentum: 1}", "momentum"},
        {"{type: adam, beta1: 1}", "beta1"},
        {"{type: adam, eps: 0}", "eps"},
        {"{type: adam, momentum: 0.9}", "momentum"},
        {"adma", "did you mean 'adam'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_variant_value value;
        struct dpt_conf conf;
        struct dpt_error err = {0};

        assert_int_equal(read_variant(&conf, dpt_optimizer_variants, cases[i].text, &value, &err),
                         DPT_BAD_JOB);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s: no '%s' in: %s", cases[i].text, cases[i].want, err.text);
        dpt_conf_release(&conf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_pytorchs),
        cmocka_unit_test(pieces_give_the_bits_of_the_whole),
        cmocka_unit_test(floats_outside_are_left_alone),
        cmocka_unit_test(decay_spares_biases),
        cmocka_unit_test(mistakes_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
