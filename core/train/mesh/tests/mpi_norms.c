/* ranks: 1 3 */
/* A trainer whose optimizer wants norms of whole tensors: the same bits for any threads, the same
 * weights on all ranks. */
#include "core/base/hash.h"
#include "core/comm/tests/ranks.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/trainer.h"
#include "core/train/update/tests/trust.h"

/* The hash of a slot, each part of which has one owner. */
static uint64_t hash_shards(const struct dpt_trainer *t)
{
    const struct dpt_slice own = t->reduction.type->slice(t, comm.world.rank, 0);
    int64_t mine = (int64_t)dpt_hash_floats(t->arenas.slot[0] + own.begin, own.end - own.begin,
                                            (uint64_t)t->model.graph.floats + own.begin);
    struct dpt_error err;

    CHECK_OK(dpt_group_sum_ints(&comm.world, &mine, &mine, 1, &err));
    return (uint64_t)mine;
}

/* The hash of weights and slot after some steps. `hidden`: few floats are updated by one thread
 * alone. */
static uint64_t train(int threads, int hidden, const char *shard)
{
    char text[512];
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_log log = {.silent = true};
    struct dpt_trainer t;
    struct dpt_step_result result;
    struct dpt_error err = {0};
    const bool sharded = strcmp(shard, "none") != 0;
    uint64_t hash;

    snprintf(text, sizeof text,
             "{data: {train: synthetic}, model: {type: mlp, hidden: [%d], outputs: 10}, "
             "device: {kind: cpu, threads: %d}, batch: {global: 24, micro: 4}, "
             "comm: {reduction: reproducible}, parallel: {shard: %s}, train: {steps: 4}}",
             hidden, threads, shard);
    CHECK_OK(dpt_conf_parse(&conf, "job", text, strlen(text), &err));
    assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
    CHECK_OK(dpt_conf_validation_result(&conf, &err));
    job.optimizer = trust;
    CHECK_OK(dpt_trainer_open(&t, &job, &comm, &log, DPT_PART_TRAIN, NULL, &err));
    assert_int_equal(t.arenas.slots, 1);
    for (int step = 0; step < 4; step++)
        CHECK_OK(dpt_trainer_step(&t, &result, &err));
    assert_int_equal(t.progress.updates, 4);
    CHECK_OK(dpt_trainer_check_replicas(&t, &err));
    hash = dpt_hash_floats(t.arenas.params, (size_t)t.model.graph.floats, 0);
    if (!sharded || comm.world.size == 1)
        hash += dpt_hash_floats(t.arenas.slot[0], (size_t)t.model.graph.floats,
                                (uint64_t)t.model.graph.floats);
    else
        hash += hash_shards(&t);
    dpt_trainer_close(&t);
    dpt_conf_release(&conf);
    return hash;
}

static void threads_do_not_matter(void **state)
{
    static const char *const kinds[] = {"optimizer", "gradients", "parameters"};

    (void)state;
    for (int hidden = 6; hidden <= 48; hidden += 42) {
        const uint64_t alone = train(1, hidden, "none");

        for (int threads = 2; threads <= 3; threads++)
            for (int kind = threads - 2; kind < 3; kind += 2)
                if (train(threads, hidden, kinds[kind]) != alone)
                    fail_msg("%d threads, %d hidden ones, %s: other bits than of one thread",
                             threads, hidden, kinds[kind]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_do_not_matter)};

    return RUN_ON_ALL_RANKS(tests);
}
