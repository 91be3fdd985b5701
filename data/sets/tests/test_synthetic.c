/* Synthetic data: balanced, learnable, the same rule for every part, other samples in each. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/tests/make_shards.h"

static const struct dpt_comm alone = {
    .world = {0, 1, NULL}, .node = {0, 1, NULL}, .leaders = {0, 1, NULL}, .nodes = 1};
static const char *word[] = {"synthetic"};

static void open_set(struct dpt_dataset *set, struct dpt_data_conf *conf, bool classes,
                     uint64_t seed, uint64_t part)
{
    const struct dpt_dataset_spec spec = {
        .conf = conf, .paths = &conf->train, .classes = classes, .seed = seed, .part = part};
    struct dpt_error err;

    if (dpt_dataset_open(set, &spec, &alone, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void the_defaults_are_as_documented(void **state)
{
    struct dpt_data_conf conf = make_conf(word, 1);
    struct dpt_dataset set;
    char text[256];

    (void)state;
    open_set(&set, &conf, true, 1, 0);
    assert_int_equal(set.samples, 4096);
    assert_int_equal(set.shape.c, 1);
    assert_int_equal(set.shape.h, 28);
    assert_int_equal(set.shape.w, 28);
    assert_false(set.shape.flat);
    assert_int_equal(set.target_width, 10);
    assert_null(dpt_dataset_true_weights(&set));
    assert_string_equal(dpt_dataset_where(&set, 7, text), "synthetic sample 7");
    dpt_dataset_close(&set);
    open_set(&set, &conf, false, 1, 0);
    assert_int_equal(set.shape.c, 5);
    assert_true(set.shape.flat);
    assert_int_equal(set.target, DPT_TARGET_VECTOR);
    assert_int_equal(set.target_width, 1);
    dpt_dataset_close(&set);
}

static void labels_are_balanced(void **state)
{
    (void)state;
    for (int64_t classes = 1; classes < 40; classes += 6) {
        struct dpt_data_conf conf = make_conf(word, 1);
        struct dpt_dataset set;
        int64_t count[40] = {0}, in_order = 0;

        conf.synthetic.classes = classes;
        conf.synthetic.samples = 1009;
        open_set(&set, &conf, true, 2, 0);
        for (int64_t i = 0; i < set.samples; i++) {
            count[set.labels[i]]++;
            in_order += set.labels[i] == i % classes;
        }
        for (int64_t k = 0; k < classes; k++)
            assert_in_range(count[k], 1009 / classes, 1009 / classes + 1);
        assert_true(classes < 4 || in_order < 1009 / 2);
        dpt_dataset_close(&set);
    }
}

/* The mean image of each class of `train`. */
static void class_means(const struct dpt_dataset *set, double *means)
{
    const size_t n = set->stride;
    int64_t count[10] = {0};

    memset(means, 0, 10 * n * sizeof *means);
    for (int64_t i = 0; i < set->samples; i++)
        count[set->labels[i]]++;
    for (int64_t i = 0; i < set->samples; i++)
        for (size_t k = 0; k < n; k++)
            means[(size_t)set->labels[i] * n + k] +=
                (double)set->memory[(size_t)i * n + k] / (double)count[set->labels[i]];
}

/* Nearest class mean (Duda & Hart), learned on one part, right on another: so the parts share the
 * rule. */
static void classes_can_be_learned(void **state)
{
    static int64_t image[] = {1, 12, 12}, colour[] = {3, 8, 8}, flat[] = {64};
    const struct dpt_ints shapes[] = {{image, 3}, {colour, 3}, {flat, 1}};

    (void)state;
    for (int s = 0; s < 3; s++) {
        struct dpt_data_conf conf = make_conf(word, 1);
        struct dpt_dataset train, test;
        double *means;
        int64_t right = 0, equal = 0;

        conf.synthetic.samples = 500;
        conf.synthetic.shape = shapes[s];
        open_set(&train, &conf, true, 9, 0);
        open_set(&test, &conf, true, 9, 2);
        means = malloc(10 * train.stride * sizeof *means);
        class_means(&train, means);
        for (int64_t i = 0; i < test.samples; i++) {
            const uint8_t *x = test.memory + (size_t)i * test.stride;
            double least = INFINITY;
            int best = -1;

            equal += memcmp(x, train.memory + (size_t)i * train.stride, train.stride) == 0;
            for (int c = 0; c < 10; c++) {
                double d = 0;

                for (size_t k = 0; k < test.stride; k++)
                    d += pow((double)x[k] - means[(size_t)c * test.stride + k], 2);
                if (d < least) {
                    least = d;
                    best = c;
                }
            }
            right += best == test.labels[i];
        }
        assert_int_equal(equal, 0);
        assert_true(right > 450);
        free(means);
        dpt_dataset_close(&train);
        dpt_dataset_close(&test);
    }
}

/* y - (w x + b) is noise of the right size and mean, in every part; x is standard normal. */
static void regression_follows_its_rule(void **state)
{
    (void)state;
    for (uint64_t part = 0; part < 3; part++) {
        struct dpt_data_conf conf = make_conf(word, 1);
        double sum = 0, sum_of_squares = 0, x_squares = 0;
        struct dpt_dataset set;
        const float *w, *b, *x;

        conf.synthetic.outputs = 3;
        conf.synthetic.noise = 0.25;
        open_set(&set, &conf, false, 4, part);
        w = dpt_dataset_true_weights(&set);
        b = dpt_dataset_true_biases(&set);
        x = (const float *)(const void *)set.memory;
        for (int64_t i = 0; i < set.samples; i++)
            for (int k = 0; k < 3; k++) {
                double rest = (double)set.targets[i * 3 + k] - (double)b[k];

                for (int j = 0; j < 5; j++) {
                    rest -= (double)w[k * 5 + j] * (double)x[i * 5 + j];
                    x_squares += pow((double)x[i * 5 + j], 2);
                }
                sum += rest;
                sum_of_squares += rest * rest;
            }
        assert_true(fabs(sum / (3 * 4096)) < 0.02);
        assert_true(fabs(sqrt(sum_of_squares / (3 * 4096)) - 0.25) < 0.01);
        assert_true(fabs(x_squares / (15 * 4096) - 1) < 0.05);
        dpt_dataset_close(&set);
    }
}

static void seeds_differ_and_repeat(void **state)
{
    struct dpt_data_conf conf = make_conf(word, 1);
    struct dpt_dataset a, b, c;

    (void)state;
    open_set(&a, &conf, true, 1, 0);
    open_set(&b, &conf, true, 1, 0);
    open_set(&c, &conf, true, 2, 0);
    assert_memory_equal(a.memory, b.memory, 4096 * a.stride);
    assert_memory_not_equal(a.memory, c.memory, 4096 * a.stride);
    dpt_dataset_close(&a);
    dpt_dataset_close(&b);
    dpt_dataset_close(&c);
}

static void refuses_odd_shapes_and_outputs(void **state)
{
    static int64_t two[] = {3, 4}, huge[] = {65536, 65536, 2};
    const struct dpt_ints shapes[] = {{two, 2}, {huge, 3}};
    struct dpt_data_conf conf = make_conf(word, 1);
    const struct dpt_dataset_spec spec = {.conf = &conf, .paths = &conf.train, .classes = true};
    struct dpt_dataset set;
    struct dpt_error err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        conf.synthetic.shape = shapes[i];
        assert_int_equal(dpt_dataset_open(&set, &spec, &alone, &err), DPT_BAD_JOB);
        assert_non_null(strstr(err.text, "data.synthetic.shape"));
    }
    conf.synthetic.shape.n = 0;
    open_set(&set, &conf, true, 1, 0);
    assert_int_equal(dpt_dataset_check_targets(&set, 10, &err), DPT_OK);
    assert_int_equal(dpt_dataset_check_targets(&set, 5, &err), DPT_BAD_JOB);
    assert_non_null(strstr(err.text, "data.synthetic.classes is 10, the model has 5 outputs"));
    dpt_dataset_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_as_documented),
        cmocka_unit_test(labels_are_balanced),
        cmocka_unit_test(classes_can_be_learned),
        cmocka_unit_test(regression_follows_its_rule),
        cmocka_unit_test(seeds_differ_and_repeat),
        cmocka_unit_test(refuses_odd_shapes_and_outputs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
