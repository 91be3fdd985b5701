/*
 * Synchronized batch norms: passes over ranges of nodes give the results of one micro-batch of all
 * samples, on ref and on cpu; sums over any runs of micro-batches are the same bits.
 */
#include "core/backend/tests/compare.h"
#include "core/backend/tests/whole_step.h"

enum { GRAPHS = 60 };

static void cpu_agrees_with_ref(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed += (uint64_t)net_every()) {
        struct dpt_metric_sums wanted, got;
        struct whole_step step;
        struct scene s;

        whole_step_init(&s, &step, seed);
        float *g_ref = new_arena(&s), *g = new_arena(&s);

        whole_step_of(&s, &step, &dpt_backend_ref, 0, g_ref, &wanted);
        whole_step_of(&s, &step, &dpt_backend_cpu, 1, g, &got);
        assert_same_sums(&s, &got, &wanted);
        assert_same_gradients(&s, g, g_ref, "gradient");
        dpt_free(g_ref);
        dpt_free(g);
        whole_step_release(&step);
        scene_release(&s);
    }
}

/* All samples of the step, one after another, which a norm of one micro-batch normalises alike. */
static void join_batches(const struct whole_step *step, const struct dpt_graph *g,
                         struct owned_batch *all)
{
    const size_t in = (size_t)dpt_shape_size(&g->nodes[0].out);
    struct draw d = {1};
    int32_t at = 0;

    batch_fill(all, g, step->samples, step->samples, false, &d);
    all->batch.seed = step->data[0].batch.seed;
    all->batch.step = step->data[0].batch.step;
    for (int32_t k = 0; k < step->n; at += step->data[k++].batch.count) {
        const struct owned_batch *part = &step->data[k];
        const size_t count = (size_t)part->batch.count;

        memcpy(all->input + (size_t)at * in, part->input, count * in * sizeof *all->input);
        memcpy(all->labels + at, part->labels, count * sizeof *all->labels);
        memcpy(all->sample + at, part->sample, count * sizeof *all->sample);
    }
}

/* `train` takes it like any micro-batch. */
static void is_one_micro_batch(void **state)
{
    (void)state;
    for (int k = 0; dpt_backends[k] != NULL; k++) {
        if (dpt_backends[k]->devices != NULL) /* core/backend/cuda/tests has these */
            continue;
        for (uint64_t seed = 0; dpt_backends[k]->forward != NULL && seed < GRAPHS;
             seed += (uint64_t)net_every()) {
            struct dpt_metric_sums wanted = {0}, got;
            struct draw d = {seed};
            struct whole_step step;
            struct scene s;

            whole_step_init(&s, &step, seed);
            for (int32_t i = 1; i < step.n; i++) {
                step.data[i].batch.seed = step.data[0].batch.seed;
                step.data[i].batch.step = step.data[0].batch.step;
            }
            whole_step_norms(&s.graph, true, &d);
            float *g_all = new_arena(&s), *g = new_arena(&s);

            whole_step_of(&s, &step, dpt_backends[k], 0, g, &got);
            join_batches(&step, &s.graph, &s.batch);
            s.spec.micro = step.samples;
            void *program = open_program(dpt_backends[k], &s);

            train(dpt_backends[k], &s, program, 0, false, g_all, &wanted);
            assert_same_sums(&s, &got, &wanted);
            assert_same_gradients(&s, g, g_all, "gradient");
            dpt_backends[k]->close(program);
            dpt_free(g_all);
            dpt_free(g);
            whole_step_release(&step);
            scene_release(&s);
        }
    }
}

/* Random sums of each micro-batch; the sums of [first, last) are pushed to `sums` by blocks. */
static void push_run(struct dpt_norm_sums *sums, int32_t first, int32_t last, double *leaves,
                     size_t width)
{
    struct dpt_norm_sums own = *sums;

    own.tree.n = 0;
    for (int32_t i = first; i < last; i++)
        dpt_norm_sums_push(&own, (struct dpt_block){.begin = i}, leaves + (size_t)i * width);
    for (int k = 0; k < own.tree.n; k++)
        dpt_norm_sums_push(sums, own.tree.block[k], own.value[k]);
}

/* The bits do not depend on which rank has which micro-batches, and the moments are those of all
 * numbers. */
static void sums_do_not_hang_on_ranks(void **state)
{
    enum { CHANNELS = 3, WIDTH = 2 * CHANNELS, PIXELS = 2, MOST = 30 };
    const struct dpt_shape shape = {CHANNELS, 1, PIXELS, false};

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct draw d = {seed};
        const int32_t micro = draw_int(&d, 1, 4), samples = draw_int(&d, 1, MOST * micro);
        const int32_t n = (samples + micro - 1) / micro, ranks = draw_int(&d, 1, 9);
        double x[CHANNELS][MOST * 4 * PIXELS], leaves[MOST * WIDTH], copy[MOST * WIDTH];
        struct dpt_norm_sums sums;

        for (int32_t i = 0; i < n; i++)
            for (int c = 0; c < CHANNELS; c++) {
                const int32_t end = (i + 1) * micro < samples ? (i + 1) * micro : samples;
                double mean = 0, squares = 0;

                for (int32_t k = i * micro * PIXELS; k < end * PIXELS; k++) {
                    x[c][k] = 100 * c + draw_normal(&d);
                    mean += x[c][k] / ((end - i * micro) * PIXELS);
                }
                for (int32_t k = i * micro * PIXELS; k < end * PIXELS; k++)
                    squares += (x[c][k] - mean) * (x[c][k] - mean);
                leaves[i * WIDTH + c] = mean;
                leaves[i * WIDTH + CHANNELS + c] = squares;
            }
        memcpy(copy, leaves, sizeof copy);
        dpt_norm_sums_begin(&sums, DPT_NORM_MOMENTS, &shape, micro, samples);
        for (int32_t r = 0; r < ranks; r++)
            push_run(&sums, r * n / ranks, (r + 1) * n / ranks, copy, WIDTH);
        assert_int_equal(sums.tree.n, 1);
        const double *const several = sums.value[0];

        dpt_norm_sums_begin(&sums, DPT_NORM_MOMENTS, &shape, micro, samples);
        push_run(&sums, 0, n, leaves, WIDTH);
        assert_memory_equal(sums.value[0], several, WIDTH * sizeof *several);
        for (int c = 0; c < CHANNELS; c++) {
            double mean = 0, squares = 0;

            for (int32_t k = 0; k < samples * PIXELS; k++)
                mean += x[c][k] / (samples * PIXELS);
            for (int32_t k = 0; k < samples * PIXELS; k++)
                squares += (x[c][k] - mean) * (x[c][k] - mean);
            assert_true(fabs(several[c] - mean) <= 1e-12 * (1 + fabs(mean)));
            assert_true(fabs(several[CHANNELS + c] - squares) <= 1e-10 * (1 + squares));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_agrees_with_ref),
        cmocka_unit_test(is_one_micro_batch),
        cmocka_unit_test(sums_do_not_hang_on_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
