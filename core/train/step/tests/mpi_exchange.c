/* ranks: 1 2 3 4 5 8 16 */
/* Batch norms over the samples of whole steps: the same bits on any ranks as on one. How much they
 * send: core/train/tests/test_batchnorm.py. */
#include "core/base/hash.h"
#include "core/comm/tests/ranks.h"
#include "core/train/trainer.h"

struct division {
    const char *shard;
    int threads;
    int micro_batches; /* of two samples */
    bool whole;        /* the last one, too: else it has one */
};

/* The hash of weights and running statistics after two steps. */
static uint64_t train(const struct dpt_comm *ranks, const struct division *d)
{
    const int samples = 2 * d->micro_batches - !d->whole;
    char text[640];
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_log log = {.silent = true};
    struct dpt_trainer t;
    struct dpt_step_result result;
    struct dpt_error err = {0};
    uint64_t hash;

    snprintf(text, sizeof text,
             "{data: {train: synthetic, synthetic: {samples: %d, shape: [6], classes: 3}}, model: "
             "{type: sequential, layers: [{dense: 8}, {batchnorm: {statistics: batch}}, relu, "
             "{dense: 5}, {batchnorm: {statistics: batch}}, {dense: 3}]}, device: {kind: cpu, "
             "threads: %d}, batch: {global: %d, micro: 2}, comm: {reduction: reproducible}, "
             "parallel: {shard: %s}, train: {steps: 2}}",
             2 * samples, d->threads, samples, d->shard);
    CHECK_OK(dpt_conf_parse(&conf, "job", text, strlen(text), &err));
    assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
    CHECK_OK(dpt_conf_validation_result(&conf, &err));
    CHECK_OK(dpt_trainer_open(&t, &job, ranks, &log, DPT_PART_TRAIN, NULL, &err));
    for (int step = 0; step < 2; step++)
        CHECK_OK(dpt_trainer_step(&t, &result, &err));
    assert_int_equal(t.progress.updates, 2);
    CHECK_OK(dpt_trainer_check_replicas(&t, &err));
    hash = dpt_hash_floats(t.arenas.params, (size_t)t.model.graph.arena, 0);
    dpt_trainer_close(&t);
    dpt_conf_release(&conf);
    return hash;
}

/* Any number of micro-batches, also fewer than ranks, in runs or round-robin. */
static void same_bits_as_on_one_rank(void **state)
{
    static const char *const shards[] = {"none", "gradients"};
    const int ranks = comm.world.size;
    struct dpt_comm alone;
    struct dpt_error err = {0};

    (void)state;
    CHECK_OK(dpt_comm_split(&comm, comm.world.rank, &alone, &err));
    for (int n = 2; n <= 3 * ranks + 2; n += ranks > 5 ? 7 : 1)
        for (int which = 0; which < 2; which++) {
            const int threads = ranks < 4 ? 1 + n % 3 : 1;
            const struct division d = {shards[which], threads, n, n % 2 == 0};
            const uint64_t want = train(&alone, &d);

            if (train(&comm, &d) != want)
                fail_msg("%d micro-batches on %d ranks (%s): other bits than on one", n, ranks,
                         d.shard);
        }
    dpt_comm_close(&alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_as_on_one_rank)};

    return RUN_ON_ALL_RANKS(tests);
}
