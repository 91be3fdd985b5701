#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/backend/steps.h"
#include "core/base/rng.h"
#include "core/train/setup/batch_sizing.h"
#include "core/train/trainer.h"

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

/* Whether each rank has a micro-batch, as the sampler deals them. */
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
        struct dpt_job job = {.batch.global = draw(seed, 0, seed % 2 ? 60 : 5000)};
        struct dpt_comm comm = {.world.size = (int)draw(seed, 1, 80)}, other = {.world.size = 3};
        struct dpt_trainer t = {
            .job = &job,
            .comm = &comm,
            .mesh = dpt_mesh_whole(&comm),
            .backend = draw(seed, 2, 3) == 1 ? &gpu : &host,
            .team = {.together = draw(seed, 3, 2) == 1,
                     .all_threads = comm.world.size * draw(seed, 4, 9)},
        };
        const int32_t micro = dpt_trainer_choose_micro(&t);
        int32_t fixed;

        if (micro < 1 || micro > job.batch.global ||
            feeds_all(job.batch.global, micro, comm.world.size) !=
                (job.batch.global >= comm.world.size))
            fail_msg("seed %llu: %lld samples, %d ranks, %lld threads: micro-batches of %d",
                     (unsigned long long)seed, (long long)job.batch.global, comm.world.size,
                     (long long)t.team.all_threads, micro);
        job.comm.reduction = DPT_REDUCTION_REPRODUCIBLE;
        fixed = dpt_trainer_choose_micro(&t);
        t.comm = t.mesh.replicas = &other;
        t.team.all_threads = draw(seed, 5, 500);
        assert_int_equal(dpt_trainer_choose_micro(&t), fixed);
        job.comm.reduction = DPT_REDUCTION_ALLREDUCE;
        t.model.graph.arena = DPT_TENSOR_ALIGN; /* state */
        assert_int_equal(dpt_trainer_choose_micro(&t), fixed);
        job.batch.micro = draw(seed, 6, job.batch.global);
        assert_int_equal(dpt_trainer_choose_micro(&t), job.batch.micro);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_that_feeds_all_ranks),
        cmocka_unit_test(chosen_micro_batches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
