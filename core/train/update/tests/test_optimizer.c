#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base/memory.h"
#include "core/base/rng.h"
#include "core/train/job/job.h"
#include "core/train/tests/variant.h"
#include "core/train/update/tests/golden_optimizers.h"
#include "core/train/update/tests/trust.h"

enum {
    GOLDEN_FLOATS = 32,
    BIAS_AT = 16,
    GOLDEN_CASES = sizeof golden_optimizers / sizeof golden_optimizers[0]
};

static void open_optimizer(struct dpt_conf *conf, const char *text, struct dpt_variant_value *value)
{
    struct dpt_error err;

    if (read_variant(conf, dpt_optimizer_variants, text, value, &err) != DPT_OK)
        fail_msg("%s: %s", text, err.text);
}

static const struct dpt_optimizer_type *optimizer_type(const struct dpt_variant_value *optimizer)
{
    return optimizer->variant->impl;
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

/* What is measured of any graph here, before each step. */
static double squares[DPT_OPTIMIZER_SQUARES * 64];

/* Makes the first pass of an optimizer that has one, in `parts` parts. */
static void measure(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                    const struct dpt_update *update, size_t parts, float *params,
                    const float *gradient, float *const *slots)
{
    const size_t chunks = dpt_optimizer_chunks(optimizer, graph);

    assert_true(DPT_OPTIMIZER_SQUARES * chunks <= sizeof squares / sizeof squares[0]);
    for (size_t part = parts; part-- > 0 && chunks > 0;)
        dpt_optimizer_measure(optimizer, graph, update, chunks * part / parts,
                              chunks * (part + 1) / parts, params, gradient, slots, squares);
}

static void take_step(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                      const struct dpt_update *update, float *params, const float *gradient,
                      float *const *slots)
{
    measure(optimizer, graph, update, 1, params, gradient, slots);
    dpt_optimizer_apply(optimizer, graph, update, 0, GOLDEN_FLOATS, params, gradient, slots,
                        squares);
}

/* All options, weights with decay beside biases without, as PyTorch computes them. The gradient
   comes four times too large, for `scale` to mend. */
static void steps_are_pytorchs(void **state)
{
    struct dpt_tensor tensors[] = {
        {.count = GOLDEN_WEIGHTS, .whole = GOLDEN_WEIGHTS, .offset = 0, .decay = true},
        {.count = GOLDEN_BIASES, .whole = GOLDEN_BIASES, .offset = BIAS_AT, .decay = false},
    };
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 2, .floats = GOLDEN_FLOATS};

    (void)state;
    for (size_t k = 0; k < GOLDEN_CASES; k++) {
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
            take_step(&optimizer, &graph, &update, params, gradient, slots);
            assert_close(params, golden->after[step], golden->conf, step);
        }
        dpt_conf_release(&conf);
    }
}

/* A row whose values nobody compared, and a rule that no case makes use of, would be two. */
static void no_optimizer_goes_unchecked(void **state)
{
    bool checked[DPT_RULE_COUNT] = {[DPT_RULE_NONE] = true, [DPT_RULE_AVERAGE] = true};

    const char *texts[GOLDEN_CASES];

    (void)state;
    for (size_t k = 0; k < GOLDEN_CASES; k++)
        texts[k] = golden_optimizers[k].conf;
    assert_all_have_cases(dpt_optimizer_variants, texts, GOLDEN_CASES, " lr groups ",
                          "golden_optimizers.py");
    for (const struct dpt_variant *const *v = dpt_optimizer_variants; *v != NULL; v++) {
        const struct dpt_optimizer_type *type = (*v)->impl;
        const bool has_rule = type->rule != DPT_RULE_NONE || type->rule_of != NULL;

        for (size_t k = 0; k < GOLDEN_CASES; k++) {
            struct dpt_variant_value optimizer;
            struct dpt_conf conf;

            open_optimizer(&conf, golden_optimizers[k].conf, &optimizer);
            checked[dpt_optimizer_rule(&optimizer).kind] = true;
            assert_in_range(dpt_optimizer_slots(&optimizer), 0, optimizer_type(&optimizer)->slots);
            dpt_conf_release(&conf);
        }
        if (type->slots > DPT_MAX_SLOTS || has_rule == (type->step != NULL) ||
            (type->step == NULL) != (type->direction == NULL) || type->scalars == NULL)
            fail_msg("%s: its row is not complete", (*v)->name);
        for (int k = 0; k < type->slots; k++)
            assert_non_null(type->slot_names[k]);
    }
    for (int rule = 0; rule < DPT_RULE_COUNT; rule++)
        if (!checked[rule])
            fail_msg("rule %d: golden_optimizers.py has no case of it", rule);
}

/* Tensors of random sizes, with gaps behind them as in a real arena. */
static size_t random_graph(struct dpt_graph *graph, struct dpt_tensor *tensors, uint64_t seed,
                           uint64_t most)
{
    size_t at = 0;

    *graph = (struct dpt_graph){.tensors = tensors};
    graph->n_tensors = 1 + (int32_t)(dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 0, 0) % 6);
    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const uint64_t word = dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 1, (uint64_t)k);
        const size_t count = 1 + (size_t)(word % most);

        tensors[k] = (struct dpt_tensor){.count = (int64_t)count,
                                         .whole = (int64_t)count,
                                         .offset = (int64_t)at,
                                         .decay = (word >> 32) % 2 == 0};
        at += dpt_round_up(count, sizeof(float));
    }
    graph->floats = (int64_t)at;
    return at;
}

/* One step over the whole arena, over pieces cut anywhere, or over lines that are written past the
 * caches, gives the same bits; what lies outside is not touched. */
static void pieces_give_the_bits_of_the_whole(void **state)
{
    enum { MOST = 6 * 112 };

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        const char *text = golden_optimizers[seed % GOLDEN_CASES].conf;
        _Alignas(DPT_ALIGN) float pieces[3][MOST];
        float whole[3][MOST], gradient[MOST];
        float *const whole_slots[] = {whole[1], whole[2]}, *const slots[] = {pieces[1], pieces[2]};
        struct dpt_update update = {.lr = 0.05, .scale = 0.125f};
        struct dpt_variant_value optimizer;
        struct dpt_tensor tensors[6];
        struct dpt_graph graph;
        struct dpt_conf conf;
        const size_t n = random_graph(&graph, tensors, seed, 97);

        open_optimizer(&conf, text, &optimizer);
        memset(whole, 0, sizeof whole);
        dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 2, 0, n, whole[0]);
        memcpy(pieces, whole, sizeof whole);
        for (update.step = 1; update.step <= 3; update.step++) {
            dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 3 + (uint64_t)update.step, 0, n,
                              gradient);
            measure(&optimizer, &graph, &update, 1, whole[0], gradient, whole_slots);
            dpt_optimizer_apply(&optimizer, &graph, &update, 0, n, whole[0], gradient, whole_slots,
                                squares);
            measure(&optimizer, &graph, &update, 3, pieces[0], gradient, slots);
            update.for_others = seed % 2 > 0;
            for (size_t begin = 0, piece = 0; begin < n; piece++) {
                const uint64_t word = dpt_random64(seed, DPT_RANDOM_SYNTHETIC, 9, piece);
                const size_t left = n - begin, size = update.for_others
                                                          ? DPT_LINE * (1 + (size_t)(word % 4))
                                                          : 1 + (size_t)(word % 60);
                const size_t end = begin + (size < left ? size : left);

                dpt_optimizer_apply(&optimizer, &graph, &update, begin, end, pieces[0], gradient,
                                    slots, squares);
                begin = end;
            }
            update.for_others = false;
        }
        /* The bits. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
        if (memcmp(whole, pieces, sizeof whole) != 0)
            fail_msg("%s, seed %llu: the pieces' bits differ", text, (unsigned long long)seed);
        dpt_conf_release(&conf);
    }
}

/* The floats between two tensors and outside the range keep their values, whatever the gradient
 * there. */
static void floats_outside_are_left_alone(void **state)
{
    struct dpt_tensor tensors[] = {{.count = 5, .whole = 5, .offset = 0, .decay = true},
                                   {.count = 20, .whole = 20, .offset = 16, .decay = true}};
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 2, .floats = 48};
    const struct dpt_update update = {.lr = 0.1, .step = 1, .scale = 1};

    (void)state;
    for (const struct dpt_variant *const *v = dpt_optimizer_variants; *v != NULL; v++) {
        float params[48], gradient[48], slot0[48] = {0}, slot1[48] = {0}, measured[48];
        float *const slots[] = {slot0, slot1};
        struct dpt_variant_value optimizer;
        struct dpt_conf conf;

        open_optimizer(&conf, (*v)->name, &optimizer);
        for (int i = 0; i < 48; i++) {
            params[i] = 1;
            gradient[i] = 2;
        }
        measure(&optimizer, &graph, &update, 1, params, gradient, slots);
        memcpy(measured, slot1, sizeof measured);
        dpt_optimizer_apply(&optimizer, &graph, &update, 3, 30, params, gradient, slots, squares);
        for (int i = 0; i < 48; i++) {
            const bool inside = (i >= 3 && i < 5) || (i >= 16 && i < 30);

            if ((params[i] != 1) != inside || (slot1[i] != measured[i] && !inside))
                fail_msg("%s: element %d is %g", (*v)->name, i, (double)params[i]);
        }
        dpt_conf_release(&conf);
    }
}

/* Whichever the optimizer, the average is that of the weights behind each update, as double has
 * it. */
static void weights_have_an_average(void **state)
{
    enum { COUNT = 9000, FLOATS = 9024 };
    struct dpt_tensor tensors[] = {
        {.count = COUNT, .whole = COUNT, .offset = 0, .decay = true},
        {.count = 7, .whole = 7, .offset = FLOATS - 16, .decay = true, .frozen = true}};
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 2, .floats = FLOATS};
    static float params[FLOATS], gradient[FLOATS], slot[DPT_MAX_SLOTS][FLOATS];
    static double want[FLOATS];
    float *const slots[] = {slot[0], slot[1], slot[2]};

    (void)state;
    for (const struct dpt_variant *const *v = dpt_optimizer_variants; *v != NULL; v++) {
        struct dpt_update update = {.lr = 0.1, .scale = 1, .average = 1 - 0.9};
        struct dpt_variant_value optimizer;
        struct dpt_conf conf;
        float *average;

        open_optimizer(&conf, (*v)->name, &optimizer);
        average = slots[dpt_optimizer_slots(&optimizer)];
        memset(slot, 0, sizeof slot);
        dpt_random_normal(1, DPT_RANDOM_SYNTHETIC, 0, 0, FLOATS, params);
        memcpy(average, params, sizeof params);
        for (int i = 0; i < FLOATS; i++)
            want[i] = (double)params[i];
        for (update.step = 1; update.step <= 5; update.step++) {
            dpt_random_normal(1, DPT_RANDOM_SYNTHETIC, (uint64_t)update.step, 0, FLOATS, gradient);
            measure(&optimizer, &graph, &update, 1, params, gradient, slots);
            dpt_optimizer_apply(&optimizer, &graph, &update, 0, FLOATS, params, gradient, slots,
                                squares);
            for (int i = 0; i < COUNT; i++)
                want[i] = 0.9 * want[i] + (1 - 0.9) * (double)params[i];
        }
        for (int i = 0; i < FLOATS; i++)
            if (!(fabs((double)average[i] - want[i]) <= 1e-6 * (1 + fabs(want[i]))))
                fail_msg("%s: average %d is %g, not %g", (*v)->name, i, (double)average[i],
                         want[i]);
        dpt_conf_release(&conf);
    }
}

/* With a zero gradient only the decay moves a weight, and it moves no bias. */
static void decay_spares_biases(void **state)
{
    struct dpt_tensor tensors[] = {{.count = 3, .whole = 3, .offset = 0, .decay = true},
                                   {.count = 3, .whole = 3, .offset = 16, .decay = false}};
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
        measure(&optimizer, &graph, &update, 1, params, gradient, slots);
        dpt_optimizer_apply(&optimizer, &graph, &update, 0, 32, params, gradient, slots, squares);
        for (int i = 0; i < 3; i++) {
            assert_true(params[i] < 0.99995f);
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

/* With norms of tensors: the values of a slow way in double, and the same bits for any threads. */
static void norms_do_not_depend_on_threads(void **state)
{
    enum { MOST = 8 * 1024 };
    static float params[2][MOST], gradient[MOST], slot[2][MOST];
    static double want[MOST], kept[MOST];

    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        const struct dpt_update update = {.lr = 0.02, .step = 1, .scale = 0.125f};
        const int threads = 1 + (int)(seed % 7);
        struct dpt_tensor tensors[6];
        struct dpt_graph graph;
        const size_t n = random_graph(&graph, tensors, seed, 1300);
        const size_t chunks = dpt_optimizer_chunks(&trust, &graph);

        assert_true(n <= MOST && chunks >= (size_t)graph.n_tensors);
        memset(slot, 0, sizeof slot);
        memset(kept, 0, sizeof kept);
        dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 2, 0, n, params[0]);
        memcpy(params[1], params[0], sizeof params[0]);
        for (size_t i = 0; i < n; i++)
            want[i] = (double)params[0][i];
        for (uint64_t step = 0; step < 3; step++) {
            dpt_random_normal(seed, DPT_RANDOM_SYNTHETIC, 3 + step, 0, n, gradient);
            trust_by_hand(&graph, &update, gradient, kept, want);
            for (int way = 0; way < 2; way++) {
                const int parts = way == 0 ? 1 : threads;
                float *const slots[] = {slot[way]};

                measure(&trust, &graph, &update, (size_t)parts, params[way], gradient, slots);
                for (size_t part = 0; part < (size_t)parts; part++)
                    dpt_optimizer_apply(&trust, &graph, &update, n * part / (size_t)parts,
                                        n * (part + 1) / (size_t)parts, params[way], gradient,
                                        slots, squares);
            }
        }
        assert_memory_equal(params[0], params[1], n * sizeof(float));
        assert_memory_equal(slot[0], slot[1], n * sizeof(float));
        for (int32_t k = 0; k < graph.n_tensors; k++)
            for (int64_t i = tensors[k].offset; i < tensors[k].offset + tensors[k].count; i++)
                if (!(fabs((double)params[0][i] - want[i]) <= 1e-5 * (1 + fabs(want[i]))))
                    fail_msg("seed %llu, element %lld: %.9g, not %.9g", (unsigned long long)seed,
                             (long long)i, (double)params[0][i], want[i]);
    }
}

/* Weights that are all zero have no norm to be measured by, and would stay so: they move at the
 * optimizer's own rate. */
static void zero_weights_move(void **state)
{
    static const char *const texts[] = {"{type: lars, weight_decay: 0}",
                                        "{type: lamb, weight_decay: 0, beta1: 0, beta2: 0}"};
    static const float want[] = {-0.05f, -0.1f}; /* rate x gradient; rate x its sign */
    struct dpt_tensor tensors[] = {{.count = 16, .whole = 16, .decay = true}};
    const struct dpt_graph graph = {.tensors = tensors, .n_tensors = 1, .floats = 16};
    const struct dpt_update update = {.lr = 0.1, .step = 1, .scale = 1};

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        float params[16] = {0}, gradient[16], slot0[16] = {0}, slot1[16] = {0};
        float *const slots[] = {slot0, slot1};
        struct dpt_variant_value optimizer;
        struct dpt_conf conf;

        for (int i = 0; i < 16; i++)
            gradient[i] = 0.5f;
        open_optimizer(&conf, texts[k], &optimizer);
        measure(&optimizer, &graph, &update, 1, params, gradient, slots);
        dpt_optimizer_apply(&optimizer, &graph, &update, 0, 16, params, gradient, slots, squares);
        for (int i = 0; i < 16; i++)
            assert_true(fabsf(params[i] - want[k]) < 1e-6f);
        dpt_conf_release(&conf);
    }
}

/* A device that takes whole steps has only rules: others are taken on host arenas. */
static void a_step_of_its_own_is_taken_on_the_host(void **state)
{
    struct dpt_job job = {0};
    struct dpt_conf conf;

    (void)state;
    open_optimizer(&conf, "adam", &job.optimizer);
    assert_true(dpt_optimizer_rule(&job.optimizer).kind != DPT_RULE_NONE);
    job.optimizer = trust;
    assert_true(dpt_optimizer_rule(&job.optimizer).kind == DPT_RULE_NONE);
    dpt_conf_release(&conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_pytorchs),
        cmocka_unit_test(no_optimizer_goes_unchecked),
        cmocka_unit_test(pieces_give_the_bits_of_the_whole),
        cmocka_unit_test(floats_outside_are_left_alone),
        cmocka_unit_test(weights_have_an_average),
        cmocka_unit_test(decay_spares_biases),
        cmocka_unit_test(mistakes_are_told),
        cmocka_unit_test(norms_do_not_depend_on_threads),
        cmocka_unit_test(zero_weights_move),
        cmocka_unit_test(a_step_of_its_own_is_taken_on_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
