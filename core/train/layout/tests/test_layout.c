#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/backend/steps.h"
#include "core/base/rng.h"
#include "core/train/layout/layout.h"
#include "core/train/update/optimizer.h"

/* A number in 1 ... most, the same for a case and a question in each run. */
static int64_t draw(uint64_t seed, uint64_t question, int64_t most)
{
    return 1 + (int64_t)(dpt_random64(seed, DPT_RANDOM_SHUFFLE, 0, question) % (uint64_t)most);
}

/* Tries all sizes from the largest down. */
static int64_t largest_that_feeds(int64_t global, int ranks)
{
    for (int64_t micro = global; micro > 0; micro--)
        if ((global + micro - 1) / micro >= ranks)
            return micro;
    return 0;
}

static void the_largest_that_feeds_all_ranks(void **state)
{
    (void)state;
    assert_int_equal(dpt_feeding_micro(100, 8), 14);
    for (int64_t global = 1; global <= 40; global++)
        for (int ranks = 1; ranks <= 45; ranks++)
            assert_int_equal(dpt_feeding_micro(global, ranks), largest_that_feeds(global, ranks));
    for (uint64_t seed = 0; seed < 3000; seed++) {
        const int64_t global = draw(seed, 0, 3000);
        const int ranks = (int)draw(seed, 1, 200);

        assert_int_equal(dpt_feeding_micro(global, ranks), largest_that_feeds(global, ranks));
    }
}

/* Whether each rank has a micro-batch, as the sampler gives them. */
static bool feeds_all(int64_t global, int32_t micro, int ranks)
{
    const struct dpt_sampler step = {.samples = global, .global = (int32_t)global, .micro = micro};

    for (int r = 0; r < ranks; r++) {
        int32_t first, last;

        dpt_sampler_partition(&step, 0, r, ranks, &first, &last);
        if (first == last)
            return false;
    }
    return true;
}

/* Chosen, it feeds every rank that there is a sample for; said by the job it is that; and under
 * `reproducible`, or with a batch norm, it does not know of ranks and threads. */
static void chosen_micro_batches(void **state)
{
    static const struct dpt_backend_steps device;
    const struct dpt_backend host = {.steps = NULL}, gpu = {.steps = &device};

    (void)state;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        struct dpt_graph graph = {0};
        struct dpt_job job = {.batch.global = draw(seed, 0, seed % 2 ? 60 : 5000)};
        const int ranks = (int)draw(seed, 1, 80), threads = (int)draw(seed, 4, 9);
        struct dpt_layout l = {
            .job = &job,
            .backend = draw(seed, 2, 3) == 1 ? &gpu : &host,
            .graph = &graph,
            .ranks = ranks,
            .replicas = ranks,
            .owners = 1,
            .sampler.global = (int32_t)job.batch.global,
            .together = draw(seed, 3, 2) == 1,
        };
        int32_t micro, fixed;

        dpt_layout_set_threads(&l, threads, (int64_t)ranks * threads, 0);
        micro = l.micro;
        if (micro < 1 || micro > job.batch.global ||
            feeds_all(job.batch.global, micro, ranks) != (job.batch.global >= ranks))
            fail_msg("seed %llu: %lld samples, %d ranks, %lld threads: micro-batches of %d",
                     (unsigned long long)seed, (long long)job.batch.global, ranks,
                     (long long)l.all_threads, micro);
        job.comm.reduction = DPT_REDUCTION_REPRODUCIBLE;
        dpt_layout_set_threads(&l, threads, (int64_t)ranks * threads, 0);
        fixed = l.micro;
        l.ranks = l.replicas = 3;
        dpt_layout_set_threads(&l, threads, draw(seed, 5, 500), 0);
        assert_int_equal(l.micro, fixed);
        job.comm.reduction = DPT_REDUCTION_ALLREDUCE;
        graph.arena = DPT_TENSOR_ALIGN; /* state */
        dpt_layout_set_threads(&l, threads, draw(seed, 5, 500), 0);
        assert_int_equal(l.micro, fixed);
        job.batch.micro = draw(seed, 6, job.batch.global);
        dpt_layout_set_threads(&l, threads, draw(seed, 5, 500), 0);
        assert_int_equal(l.micro, job.batch.micro);
    }
}

/* All combinations of what decides: only where nobody has to see each gradient a device steps, and
 * keeps the tree's order, over ranks by links. */
static void a_device_steps_where_nobody_sees_gradients(void **state)
{
    static const struct dpt_backend_steps steps;
    const struct dpt_optimizer_type by_rule = {.rule = DPT_RULE_SGD}, by_step = {0};
    const struct dpt_variant rule = {.impl = &by_rule}, own_step = {.impl = &by_step};
    struct dpt_optimizer_options options = {0};
    const struct dpt_backend with = {.name = "with", .steps = &steps},
                             without = {.name = "without"};
    const struct dpt_sampler samples = {.samples = 8};
    struct dpt_graph_node input = {0};
    const struct dpt_graph graph = {.nodes = &input, .n_nodes = 1};

    (void)state;
    for (unsigned bits = 0; bits < 1U << 10; bits++) {
        struct dpt_job job = {.batch.global = 8, .parallel.tensor = 1};
        struct dpt_layout l = {.job = &job,
                               .backend = bits & 1 ? &with : &without,
                               .graph = &graph,
                               .each_gradient = (bits & 32) != 0,
                               .linked = (bits & 128) != 0,
                               .ranks = bits & 256 ? 2 : 1,
                               .node_ranks = 1};
        const bool sums = !(bits & 4) || ((bits & 128 || !(bits & 256)) && !(bits & 512));
        struct dpt_error err;

        job.comm.reduction = bits & 4 ? DPT_REDUCTION_REPRODUCIBLE : DPT_REDUCTION_ALLREDUCE;
        job.log.hashes = (bits & 8) != 0;
        job.log.trace = (bits & 16) != 0;
        job.optimizer.variant = bits & 64 ? &own_step : &rule;
        job.optimizer.options = &options;
        job.device.precision = bits & 512 ? DPT_PRECISION_FP16 : DPT_PRECISION_FP32;
        assert_int_equal(dpt_layout_open(&l, bits & 2 ? &samples : NULL, 0, 1, &err), DPT_OK);
        assert_int_equal(l.on_device, (bits & 3) == 3 && (bits & 120) == 0 && sums);
        dpt_layout_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_that_feeds_all_ranks),
        cmocka_unit_test(chosen_micro_batches),
        cmocka_unit_test(a_device_steps_where_nobody_sees_gradients),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
