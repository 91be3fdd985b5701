/* The least bytes of passes that go over their numbers twice, and the messages between nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "core/plan/plan.h"
#include "core/train/update/tests/trust.h"

enum { SAMPLES = 24 };

/* A job and its plan. */
struct planned {
    struct dpt_conf conf;
    struct dpt_job job;
    struct dpt_plan plan;
};

/* wanted: the optimizer; NULL: the text's. */
static void plan_on(struct planned *p, int ranks, const char *parallel, const char *model,
                    const char *optimizer, const struct dpt_variant_value *wanted)
{
    const struct dpt_plan_spec spec = {.ranks = ranks};
    struct dpt_error err = {0};
    char text[256];

    *p = (struct planned){0};
    snprintf(text, sizeof text,
             "{data: {train: synthetic}, model: %s, device: {kind: ref}, "
             "batch: {global: %d, micro: 4}, optimizer: %s, comm: {reduction: reproducible}, "
             "parallel: %s}",
             model, SAMPLES, optimizer, parallel);
    assert_int_equal(dpt_conf_parse(&p->conf, "job", text, strlen(text), &err), DPT_OK);
    assert_true(dpt_options_read(&p->conf, p->conf.root, "", dpt_job_options, &p->job));
    if (wanted != NULL)
        p->job.optimizer = *wanted;
    if (dpt_plan_open(&p->plan, &p->job, &spec, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void plan(struct planned *p, const char *model, const char *optimizer,
                 const struct dpt_variant_value *wanted)
{
    plan_on(p, 1, "{data: 1}", model, optimizer, wanted);
}

static struct dpt_workload workload(const struct planned *p)
{
    return dpt_workload_of(&p->plan.layout, p->plan.data.train.set);
}

static void unplan(struct planned *p)
{
    dpt_plan_close(&p->plan);
    dpt_conf_release(&p->conf);
}

/* Arrays of the parameters' size that an update reads or writes. */
static double arrays(const char *optimizer, const struct dpt_variant_value *wanted)
{
    struct planned p;
    struct dpt_workload w;
    double bytes, parameters;

    plan(&p, "{type: mlp, hidden: [6], outputs: 10}", optimizer, wanted);
    w = workload(&p);
    bytes = dpt_cost_of_part(&w, DPT_SPAN_OPTIMIZER).move[0].bytes;
    parameters = (double)p.plan.model.graph.parameters;
    unplan(&p);
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

/* All of its weights, whatever mesh the job has. */
static void a_rank_alone_updates_all_weights(void **state)
{
    static const char *const meshes[] = {"{data: 4}", "{shard: optimizer}",
                                         "{pipeline: 2, shard: optimizer}"};

    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        struct planned p;
        struct dpt_workload all, alone;

        plan_on(&p, 4, meshes[i], "{type: mlp, hidden: [6], outputs: 10}", "adam", NULL);
        all = workload(&p);
        alone = dpt_workload_alone(&all, 1);
        assert_true(dpt_cost_of_part(&alone, DPT_SPAN_OPTIMIZER).move[0].bytes ==
                    (3 + 2 * 2) * sizeof(float) * (double)p.plan.model.graph.parameters);
        unplan(&p);
    }
}

/* Forward reads x for the statistics, then to normalise it, and writes y; backward reads x and
 * dy for the sums, then again, and writes dx. A relu in the same passes moves no more. */
static void a_batch_norm_goes_over_its_numbers_twice(void **state)
{
    static const struct {
        enum dpt_cost_pass pass;
        bool wants_data;
        double arrays;
    } rows[] = {
        {DPT_COST_FORWARD, true, 2 + 1}, {DPT_COST_BACKWARD, true, 2 * 2 + 1},
        {DPT_COST_BACKWARD, false, 2},   {DPT_COST_WEIGHTS, false, 2},
        {DPT_COST_DATA, true, 2 + 1},
    };
    const int32_t norm[] = {3, 4};
    struct planned p;
    struct dpt_workload w;

    (void)state;
    plan(&p, "{type: sequential, layers: [flatten, {dense: 6}, batchnorm, relu, {dense: 10}]}",
         "sgd", NULL);
    w = workload(&p);
    assert_int_equal(p.plan.model.graph.nodes[3].op, DPT_OP_BATCHNORM);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int32_t n = 1; n <= 2; n++)
            assert_true(
                dpt_cost_of_nodes(&w, norm, n, rows[i].pass, rows[i].wants_data).move[0].bytes ==
                rows[i].arrays * 6 * SAMPLES * sizeof(float));
    unplan(&p);
}

/* Where only messages cost: those of recursive doubling, the fold of ranks that are left over, and
 * of the tree, with one block a node or three, or by all at once. A message takes its way and the
 * work of both ends. */
static void messages_between_nodes(void **state)
{
    const struct dpt_fabric fabric = {.latency = 1, .overhead = 10, .bandwidth = INFINITY};
    static const struct {
        int nodes;
        double allreduce, one, three, slices;
    } rows[] = {{1, 0, 0, 0, 0},   {2, 1, 2, 5, 1},   {3, 3, 4, 7, 2},
                {4, 2, 4, 7, 2.5}, {5, 4, 6, 9, 3.5}, {8, 3, 6, 9, 5}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int n = rows[i].nodes;

        assert_true(dpt_fabric_allreduce(&fabric, 1000, n, 0) == 21 * rows[i].allreduce);
        assert_true(dpt_fabric_tree(&fabric, 1000, n, 1, 0) == 21 * rows[i].one);
        assert_true(dpt_fabric_tree(&fabric, 1000, n, 3, 0) == 21 * rows[i].three);
        assert_true(dpt_fabric_slices(&fabric, 1000, n, 0) == 21 * rows[i].slices);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_moves_its_arrays),
        cmocka_unit_test(a_rank_alone_updates_all_weights),
        cmocka_unit_test(a_batch_norm_goes_over_its_numbers_twice),
        cmocka_unit_test(messages_between_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
