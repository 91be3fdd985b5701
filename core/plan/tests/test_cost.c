/* The least bytes that an update moves, of an optimizer with a pass more than others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/plan/cost.h"
#include "core/train/tests/trust.h"

/* Arrays of the parameters' size that an update reads or writes. wanted: NULL: the text's. */
static double arrays(const char *optimizer, const struct dpt_variant_value *wanted)
{
    char text[256];
    struct dpt_comm comm = {.world.size = 1, .node.size = 1, .leaders.size = 1, .nodes = 1};
    struct dpt_conf conf = {0};
    struct dpt_job job = {0};
    struct dpt_trainer t;
    struct dpt_error err = {0};
    double bytes, parameters;

    snprintf(text, sizeof text,
             "{data: {train: synthetic}, model: {type: mlp, hidden: [6], outputs: 10}, "
             "device: {kind: ref}, batch: {global: 24, micro: 4}, optimizer: %s}",
             optimizer);
    assert_int_equal(dpt_conf_parse(&conf, "job", text, strlen(text), &err), DPT_OK);
    assert_true(dpt_options_read(&conf, conf.root, "", dpt_job_options, &job));
    if (wanted != NULL)
        job.optimizer = *wanted;
    if (dpt_trainer_plan(&t, &job, &comm, 1, DPT_PART_TRAIN, &err) != DPT_OK)
        fail_msg("%s", err.text);
    bytes = dpt_cost_of_part(&t, DPT_SPAN_OPTIMIZER).move[0].bytes;
    parameters = (double)t.model.graph.parameters;
    dpt_trainer_close(&t);
    dpt_conf_release(&conf);
    return bytes / sizeof(float) / parameters;
}

/* sgd keeps no slot, but its arena is there and counted; adam has two. What needs norms of tensors
 * first reads weights and gradient and changes its slot; then it reads that, and changes the
 * weights. */
static void an_update_moves_its_arrays(void **state)
{
    (void)state;
    assert_true(arrays("sgd", NULL) == 3 + 2 * 1);
    assert_true(arrays("adam", NULL) == 3 + 2 * 2);
    assert_true(arrays("sgd", &trust) == (2 + 2) + (2 + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_update_moves_its_arrays)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
