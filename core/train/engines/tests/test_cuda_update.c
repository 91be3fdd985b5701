/* The device's norm and rules, run on the host, against dpt_optimizer_apply: the same bits. */
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/emulate.h"
#include "core/train/tests/variant.h"
#include "core/train/trainer.h"
#include "core/train/update/optimizer.h"
#include "core/train/update/tests/golden_optimizers.h"

/* The kernels have their own names for the words after a gradient. */
_Static_assert((int)DPT_CUDA_TAIL_LOSS == (int)DPT_TAIL_LOSS &&
                   (int)DPT_CUDA_TAIL_SAMPLES == (int)DPT_TAIL_SAMPLES &&
                   (int)DPT_CUDA_TAIL_CORRECT == (int)DPT_TAIL_CORRECT &&
                   (int)DPT_CUDA_TAIL_WEIGHT == (int)DPT_TAIL_WEIGHT,
               "one order of the tail");

/* What there is of each parameter. */
enum { PARAMS, GRADIENT, FIRST, SECOND, AVERAGE, ARRAYS };

/* An arena of some tensors, of which every other one decays, some have a rate or a decay of their
 * own, and some are frozen; each is a group by itself. */
struct model {
    struct dpt_graph graph;
    struct dpt_tensor tensors[6];
    float *arrays[2 * ARRAYS]; /* on the host; then on the device */
    uint16_t *group;
    struct dpt_cuda_rates rates[6];
};

static void model_init(struct model *m, struct draw *d)
{
    *m = (struct model){.graph = {.tensors = m->tensors, .n_tensors = draw_int(d, 1, 6)}};
    for (int32_t t = 0; t < m->graph.n_tensors; t++) {
        m->tensors[t] = (struct dpt_tensor){.count = draw_int(d, 2, 9000),
                                            .offset = m->graph.floats,
                                            .decay = t % 2 == 0,
                                            .frozen = t > 0 && draw_int(d, 0, 3) == 0,
                                            .lr_scale = draw_int(d, 0, 1) ? 0 : 2 * draw_uniform(d),
                                            .weight_decay = draw_uniform(d),
                                            .decays_alone = draw_int(d, 0, 1)};
        m->graph.floats += (m->tensors[t].count + 15) / 16 * 16;
    }
    m->group = dpt_alloc_array((size_t)m->graph.floats / 16, sizeof *m->group);
    for (int k = 0; k < 2 * ARRAYS; k++)
        m->arrays[k] = dpt_alloc_array((size_t)m->graph.floats, sizeof(float));
    for (int32_t t = 0; t < m->graph.n_tensors; t++)
        for (int64_t i = m->tensors[t].offset; i < m->tensors[t].offset + m->tensors[t].count;
             i++) {
            const float normal = (float)draw_normal(d);

            for (int k = 0; k < 2 * ARRAYS; k += ARRAYS)
                m->arrays[k + PARAMS][i] = m->arrays[k + AVERAGE][i] = normal;
            m->group[i / 16] = m->tensors[t].frozen ? DPT_CUDA_FROZEN : (uint16_t)t;
        }
}

static void model_gradient(struct model *m, struct draw *d)
{
    for (int32_t t = 0; t < m->graph.n_tensors; t++)
        for (int64_t i = m->tensors[t].offset; i < m->tensors[t].offset + m->tensors[t].count; i++)
            m->arrays[GRADIENT][i] = m->arrays[ARRAYS + GRADIENT][i] =
                m->tensors[t].frozen ? 0 : (float)(100 * draw_normal(d));
}

static void model_release(struct model *m)
{
    for (int k = 0; k < 2 * ARRAYS; k++)
        dpt_free(m->arrays[k]);
    dpt_free(m->group);
}

/* An optimizer of the golden cases, on the host and on the device. */
struct optimizer {
    struct dpt_conf conf;
    struct dpt_variant_value value;
    struct dpt_rule rule;
    struct dpt_cuda_update_args args;
};

enum { CASES = sizeof golden_optimizers / sizeof golden_optimizers[0] };

/* Opens one with a rule; those without (optimizer.h) are the host's alone. */
static bool optimizer_open(struct optimizer *o, int which)
{
    struct dpt_error err;

    *o = (struct optimizer){0};
    if (read_variant(&o->conf, dpt_optimizer_variants, golden_optimizers[which].conf, &o->value,
                     &err) != DPT_OK)
        fail_msg("%s", err.text);
    o->rule = dpt_optimizer_rule(&o->value);
    if (o->rule.kind == DPT_RULE_NONE) {
        dpt_conf_release(&o->conf);
        return false;
    }
    o->args.scalars = dpt_rule_scalars(&o->rule, &(struct dpt_rule_group){1, 0}, 0, 1);
    return true;
}

/* The step's scalars, as the host hands them to the device. */
static void set_rates(struct model *m, const struct optimizer *o, double lr, int64_t step)
{
    for (int32_t t = 0; t < m->graph.n_tensors; t++) {
        const struct dpt_rule_group group = dpt_rule_group_of(&o->rule, &m->tensors[t]);
        const struct dpt_scalars f = dpt_rule_scalars(&o->rule, &group, lr, step);

        m->rates[t] = (struct dpt_cuda_rates){step, f.lr, f.keep, {f.rate[0], f.rate[1]}, f.l2};
    }
}

/* That of the new weights in their moving average. */
static const double SHARE = 0.01;

/* Takes one step on the device: norm, update, then the average. */
static void device_step(struct model *m, struct optimizer *o, struct dpt_cuda_state *state,
                        const float *loss, double clip, bool skip)
{
    const float tail[DPT_CUDA_TAIL_SUMS] = {
        [DPT_CUDA_TAIL_LOSS] = *loss, [DPT_CUDA_TAIL_SAMPLES] = 32, [DPT_CUDA_TAIL_WEIGHT] = 32};
    double *partial =
        dpt_alloc_array((size_t)dpt_cuda_norm_blocks(m->graph.floats), sizeof(double));
    struct dpt_cuda_update_args average;
    uint32_t counter = 0;

    dpt_emulate(DPT_CUDA_K_norm,
                &(struct dpt_cuda_norm_args){.gradient = m->arrays[ARRAYS + GRADIENT],
                                             .tail = tail,
                                             .rates = m->rates,
                                             .state = state,
                                             .partial = partial,
                                             .counter = &counter,
                                             .n = m->graph.floats,
                                             .clip = clip,
                                             .skip = skip});
    assert_int_equal(counter, 0);
    o->args.params = m->arrays[ARRAYS + PARAMS];
    o->args.gradient = m->arrays[ARRAYS + GRADIENT];
    o->args.slot[0] = m->arrays[ARRAYS + FIRST];
    o->args.slot[1] = m->arrays[ARRAYS + SECOND];
    o->args.group = m->group;
    o->args.rates = m->rates;
    o->args.state = state;
    o->args.n = m->graph.floats;
    for (int half = 0; half < 2; half++) { /* as ranks do that update a slice each */
        o->args.first = half == 0 ? 0 : o->args.end;
        o->args.end = half == 0 ? m->graph.floats / 32 * 16 : m->graph.floats;
        dpt_emulate(dpt_cuda_kernel_of_rule(o->rule.kind), &o->args);
    }
    average = o->args;
    average.first = 0;
    average.slot[0] = m->arrays[ARRAYS + AVERAGE];
    average.slot[1] = NULL;
    average.scalars.factor[0] = (float)SHARE;
    dpt_emulate(dpt_cuda_kernel_of_rule(DPT_RULE_AVERAGE), &average);
    dpt_free(partial);
}

static double plain_norm(const struct model *m)
{
    double sum = 0;

    for (int64_t i = 0; i < m->graph.floats; i++)
        sum += (double)m->arrays[GRADIENT][i] * (double)m->arrays[GRADIENT][i];
    return sqrt(sum);
}

static void same_bits(void **state)
{
    (void)state;
    for (int seed = 0; seed < 2 * CASES; seed++) {
        struct draw d = {(uint64_t)seed};
        struct optimizer o;
        struct model m;
        struct dpt_cuda_state reported = {0};
        const float loss = 3;
        const double clip = seed < CASES ? 0.5 : 0;
        float *slots[DPT_MAX_SLOTS];

        if (!optimizer_open(&o, seed % CASES))
            continue;
        model_init(&m, &d);
        memcpy(slots, &m.arrays[FIRST], sizeof slots);
        slots[o.rule.slots] = m.arrays[AVERAGE]; /* after the optimizer's */
        for (int64_t step = 1; step <= 4; step++) {
            const double lr = 0.01 / (double)step;
            struct dpt_update update = {.lr = lr, .step = step, .average = SHARE};

            model_gradient(&m, &d);
            set_rates(&m, &o, lr, step);
            device_step(&m, &o, &reported, &loss, clip, false);
            assert_true(fabs(reported.norm - plain_norm(&m) / 32) <= 1e-13 * reported.norm);
            if (clip > 0)
                assert_true(fabs((double)reported.scale - clip / plain_norm(&m)) <=
                            1e-7 * (double)reported.scale);
            else
                assert_true(reported.scale == 1.0f / 32);
            update.scale = reported.scale;
            dpt_optimizer_apply(&o.value, &m.graph, &update, 0, (size_t)m.graph.floats,
                                m.arrays[PARAMS], m.arrays[GRADIENT], slots, NULL);
            for (int k = 0; k < ARRAYS; k++)
                assert_memory_equal(m.arrays[k], m.arrays[k + ARRAYS],
                                    (size_t)m.graph.floats * sizeof(float));
        }
        assert_int_equal(reported.withheld, 0);
        dpt_conf_release(&o.conf);
        model_release(&m);
    }
}

/* A gradient or loss that is not finite is not applied, nor is any after it, unless it is to be
 * skipped. Large finite gradients pass. */
static void withholds(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0};

    (void)state;
    for (int seed = 0; seed < 40; seed++) {
        struct draw d = {(uint64_t)seed + 50};
        struct optimizer o;
        struct model m;
        struct dpt_cuda_state reported = {0};
        const bool skip = seed & 1, by_loss = seed % 4 == 3;

        if (!optimizer_open(&o, seed % CASES))
            continue;
        model_init(&m, &d);
        for (int64_t step = 1; step <= 5; step++) {
            const bool now = step == 2 || step == 4;
            const float loss = now && by_loss ? bad[seed / 4 % 3] : 3;
            float before;

            model_gradient(&m, &d);
            if (step == 1)
                m.arrays[ARRAYS + GRADIENT][0] = 1e30f; /* its square is no float */
            if (now && !by_loss)
                m.arrays[ARRAYS + GRADIENT][m.tensors[m.graph.n_tensors - 1].offset] =
                    bad[seed / 4 % 3];
            before = m.arrays[ARRAYS + PARAMS][1];
            set_rates(&m, &o, 0.01, step);
            device_step(&m, &o, &reported, &loss, 0, skip);
            assert_int_equal(reported.withheld, skip ? now : step >= 2);
            assert_true((m.arrays[ARRAYS + PARAMS][1] == before) == (reported.withheld != 0));
        }
        assert_int_equal(reported.withheld_update, skip ? 0 : 2);
        assert_int_equal(reported.skipped, skip ? 2 : 0);
        for (int64_t i = 0; i < m.graph.floats; i++)
            assert_true(isfinite(m.arrays[ARRAYS + PARAMS][i]));
        dpt_conf_release(&o.conf);
        model_release(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(withholds),
    };

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}
