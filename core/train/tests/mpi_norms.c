/* ranks: 1 3 */
/* A trainer whose optimizer wants norms of whole tensors: the same bits for any threads, the same
 * weights on all ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/train/tests/trust.h"
#include "core/train/trainer.h"

static struct dpt_comm comm;

static void check(enum dpt_status status, const struct dpt_error *err)
{
    if (status == DPT_OK)
        return;
    fprintf(stderr, "rank %d: %s\n", comm.world.rank, err->text);
    _exit(1); /* the launcher ends the others */
}

/* Of weights and slot behind some steps. `hidden`: few floats are updated by one thread alone. */
static uint64_t train(int threads, int hidden)
{
    char text[512];
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_log log = {.silent = true};
    struct dpt_trainer t;
    struct dpt_step_result result;
    struct dpt_error err = {0};
    uint64_t hash;

    snprintf(text, sizeof text,
             "{data: {train: synthetic}, model: {type: mlp, hidden: [%d], outputs: 10}, "
             "device: {kind: cpu, threads: %d}, batch: {global: 24, micro: 4}, "
             "comm: {reduction: reproducible}, train: {steps: 4}}",
             hidden, threads);
    check(dpt_conf_parse(&conf, "job", text, strlen(text), &err), &err);
    assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
    check(dpt_conf_validation_result(&conf, &err), &err);
    job.optimizer = trust;
    check(dpt_trainer_open(&t, &job, &comm, &log, DPT_PART_TRAIN, NULL, &err), &err);
    assert_int_equal(t.arenas.slots, 1);
    for (int step = 0; step < 4; step++)
        check(dpt_trainer_step(&t, &result, &err), &err);
    assert_int_equal(t.progress.updates, 4);
    check(dpt_trainer_check_replicas(&t, &err), &err);
    hash = dpt_hash_floats(t.arenas.params, (size_t)t.model.graph.floats, 0) +
           dpt_hash_floats(t.arenas.slot[0], (size_t)t.model.graph.floats,
                           (uint64_t)t.model.graph.floats);
    dpt_trainer_close(&t);
    dpt_conf_release(&conf);
    return hash;
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    for (int hidden = 6; hidden <= 48; hidden += 42) {
        const uint64_t alone = train(1, hidden);

        for (int threads = 2; threads <= 3; threads++)
            if (train(threads, hidden) != alone)
                fail_msg("%d threads, %d hidden ones: other bits than of one thread", threads,
                         hidden);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_do_not_matter)};
    struct dpt_error err = {0};
    int failed;

    if (dpt_comm_open(&comm, &err) != DPT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    dpt_comm_close(&comm);
    return failed;
}
