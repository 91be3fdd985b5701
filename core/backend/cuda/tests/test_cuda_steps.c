/* Whole steps on the (fake) GPU against the same steps on the host: optimizers, micro-batches,
 * sources of samples, buckets, numbers that are not finite, loss scales. The fake does enqueued
 * work in any order that streams and events allow, so a missing event shows as other bits. */
#include "core/backend/cuda/tests/steps_device.h"

/* --- comparing -------------------------------------------------------------------------------- */

static void same_bits(const struct scene *s, const struct scene_result *a,
                      const struct scene_result *b)
{
    const size_t bytes = (size_t)s->graph.arena * sizeof(float);

    assert_memory_equal(a->params, b->params, bytes);
    assert_memory_equal(a->gradient, b->gradient, bytes);
    for (int k = 0; k < s->rule.slots; k++)
        assert_memory_equal(a->slot[k], b->slot[k], bytes);
    same_state(&a->state, &b->state);
}

static void near(const struct scene *s, const float *a, const float *b, double by, const char *what)
{
    double largest = 0;

    for (int64_t i = 0; i < s->graph.floats; i++)
        largest = fmax(largest, fabs((double)a[i]));
    for (int64_t i = 0; i < s->graph.floats; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= by * (1e-3 + largest)))
            fail_msg("seed %llu, rule %d: %s[%lld] is %g on the device, %g on the host",
                     (unsigned long long)s->plan.seed, s->plan.rule, what, (long long)i,
                     (double)a[i], (double)b[i]);
}

static void same_numbers(const struct scene *s, const struct scene_result *device,
                         const struct scene_result *host, double by)
{
    near(s, device->params, host->params, by, "params");
    for (int64_t i = s->graph.floats; i < s->graph.arena; i++)
        assert_true(fabsf(device->params[i] - host->params[i]) <=
                    (float)by * (1 + fabsf(host->params[i])));
    for (int k = 0; k < s->rule.slots; k++)
        near(s, device->slot[k], host->slot[k], by, "slot");
    assert_int_equal(device->state.samples, host->state.samples);
    assert_int_equal(device->state.withheld, host->state.withheld);
    assert_int_equal(device->state.withheld_update, host->state.withheld_update);
    assert_int_equal(device->state.skipped, host->state.skipped);
    assert_int_equal(device->state.weightless, host->state.weightless);
    if (by < 1e-3)
        assert_true(fabs(device->state.correct - host->state.correct) <=
                    by * (1 + host->state.correct));
    assert_true(fabs(device->state.weight - host->state.weight) <= 1e-6 * host->state.weight);
    assert_true(fabs(device->state.loss - host->state.loss) <= by * (1 + fabs(host->state.loss)));
    if (isfinite(host->state.norm))
        assert_true(fabs(device->state.norm - host->state.norm) <= by * (1 + host->state.norm));
}

static void as_on_the_host(const struct scene_plan *plan, double by)
{
    struct scene_result host, device;
    struct scene s;

    scene_open(&s, plan);
    host_run(&s, &host);
    device_run(&s, &device);
    same_numbers(&s, &device, &host, by);
    result_close(&host), result_close(&device);
    scene_close(&s);
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Every optimizer, with one to three micro-batches, from staging buffers and from the device's
 * memory. */
static void optimizers(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed += (uint64_t)net_every()) {
        const struct scene_plan plan = random_plan(seed);

        as_on_the_host(&plan, 2e-5);
    }
}

/* Values that several layers read, with micro-batches that are added up and buckets. */
static void joins(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct scene_plan plan = random_plan(seed + 600);

        plan.net = 2;
        plan.reduces = seed % 2;
        plan.ranks = plan.reduces ? 2 : 1;
        plan.bucket = 1000;
        as_on_the_host(&plan, 2e-5);
    }
}

/* Groups of tensors with rates and decays of their own, as many buckets as there are, and frozen
 * tensors: these keep their bits, and those before all learned tensors are not sent. */
static void groups(void **state)
{
    int64_t left_out = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 15; seed++) {
        struct scene_plan plan = random_plan(seed + 900);
        struct scene_result device;
        struct dpt_error err;
        int64_t travel = 0;
        struct device d;
        struct scene s;

        plan.net = (int)(seed % 3);
        plan.grouped = true;
        plan.reduces = seed % 2;
        plan.ranks = plan.reduces ? 2 : 1;
        plan.bucket = seed % 4 == 1 ? 1 : 1000;
        as_on_the_host(&plan, 2e-5);
        scene_open(&s, &plan);
        device_run(&s, &device);
        for (int32_t k = 0; k < s.graph.n_tensors; k++) {
            const struct dpt_tensor *t = &s.graph.tensors[k];

            if (t->frozen)
                assert_memory_equal(device.params + t->offset, s.params + t->offset,
                                    (size_t)t->count * sizeof(float));
            else if (!t->state)
                assert_memory_not_equal(device.params + t->offset, s.params + t->offset,
                                        (size_t)t->count * sizeof(float));
        }
        OK(device_open(&d, &s, &err));
        for (int i = 0; i < cuda->steps->buckets(d.steps); i++) {
            float *at, *tail;
            size_t n;

            OK(cuda->steps->bucket(d.steps, i, &at, &n, &tail, &err));
            travel += (int64_t)n;
        }
        left_out += plan.reduces ? s.graph.arena + DPT_TENSOR_ALIGN - travel : 0;
        device_close(&d);
        result_close(&device);
        scene_close(&s);
    }
    assert_true(left_out > 1000);
}

/* The gradient in buckets of any size, summed over two ranks in pinned memory or on the device. */
static void sums_over_ranks(void **state)
{
    (void)state;
    fake_set("FAKEGPU_PROTECT", "0"); /* as for an MPI that reads the device's memory */
    for (uint64_t seed = 0; seed < 9; seed++) {
        struct scene_plan plan = random_plan(seed + 100);

        plan.reduces = true;
        plan.ranks = 2;
        plan.on_device = seed % 3 == 2 && !real_device();
        plan.bucket = seed % 2 ? 1000 : seed % 4 ? 1 : 1 << 20;
        as_on_the_host(&plan, 2e-5);
    }
    fake_set("FAKEGPU_PROTECT", NULL);
}

/* Samples with weights other than 1, and a step whose samples have weight 0: it has no update, with
 * or without skipping NaN, and the steps after it have. */
static void weights(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed += (uint64_t)net_every()) {
        struct scene_plan plan = random_plan(seed + 400);

        plan.weighted = true;
        plan.weightless = seed % 3 == 0 ? 2 : 0;
        plan.reduces = seed % 4 == 3;
        plan.ranks = plan.reduces ? 2 : 1;
        plan.bucket = 1000;
        plan.skip = seed % 2;
        plan.bad = plan.skip && !plan.stored ? 3 : 0;
        as_on_the_host(&plan, 2e-5);
    }
}

/* A rank without samples gives zeros, and takes the others' sums. */
static void nothing_to_do(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct scene_plan plan = random_plan(seed + 150);
        struct dpt_steps_state reported;
        struct dpt_error err;
        struct scene_result r;
        struct scene s;
        struct device d;

        plan.reduces = true;
        plan.bucket = 1500;
        scene_open(&s, &plan);
        result_open(&r, &s);
        reported.scale = dpt_loss_scale_start(false, 1);
        OK(device_open(&d, &s, &err));
        OK(cuda->steps->put(d.steps, r.params, r.slot, &reported.scale, &err));
        OK(device_steps(&d, 1, 2, &err));
        OK(cuda->steps->read(d.steps, &reported, &err));
        assert_true(reported.samples > 0);
        OK(cuda->steps->compute(d.steps, 0, 0, 1, 2, &err));
        for (int i = 0; i < cuda->steps->buckets(d.steps); i++) {
            float *at, *tail;
            size_t n;

            OK(cuda->steps->bucket(d.steps, i, &at, &n, &tail, &err));
            for (size_t k = 0; k < n; k++)
                assert_true(at[k] == 0);
            if (tail != NULL)
                tail[0] = 2.5f, tail[1] = 5, tail[2] = 3, tail[3] = 5;
            OK(cuda->steps->give(d.steps, i, &err));
        }
        OK(cuda->steps->update(d.steps, 0.1, 3, &err));
        OK(cuda->steps->read(d.steps, &reported, &err));
        assert_int_equal(reported.samples, 5); /* since the last one */
        assert_true(reported.norm == 0 && !reported.withheld);
        device_close(&d);
        result_close(&r);
        scene_close(&s);
    }
}

/* The bits do not depend on the order in which the device's streams run, on a second thread that
 * fills the staging buffers, nor on where the samples come from. A sum over one rank changes
 * none. */
static void any_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct scene_plan plan = random_plan(seed + 200);
        struct scene_result first, other;
        struct scene s;

        plan.steps = 6;
        scene_open(&s, &plan);
        device_run(&s, &first);
        for (int i = 0; i < 8; i++) {
            char text[16];

            snprintf(text, sizeof text, "%d", i + 2);
            fake_set("FAKEGPU_SEED", text);
            s.plan.threaded = i & 1;
            s.plan.stored = i & 2;
            s.plan.reduces = (i & 4) && plan.seed % 2 == 0; /* else it adds along the tree */
            s.plan.bucket = 2000;
            device_run(&s, &other);
            same_bits(&s, &first, &other);
            result_close(&other);
        }
        fake_set("FAKEGPU_SEED", NULL);
        result_close(&first);
        scene_close(&s);
    }
}

/* State that is fetched and sent back continues with the same bits. */
static void goes_on(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct scene_plan plan = random_plan(seed + 300);
        struct scene_result whole, parts;
        struct dpt_steps_state reported;
        struct dpt_error err;
        struct device d;
        struct scene s;

        scene_open(&s, &plan);
        device_run(&s, &whole);
        result_open(&parts, &s);
        reported.scale = dpt_loss_scale_start(false, 1);
        OK(device_open(&d, &s, &err));
        for (int step = 1; step <= plan.steps; step++) {
            OK(cuda->steps->put(d.steps, parts.params, parts.slot, &reported.scale, &err));
            OK(device_steps(&d, step, step, &err));
            OK(cuda->steps->read(d.steps, &reported, &err));
            OK(cuda->steps->get(d.steps, parts.params, parts.slot, parts.gradient, &err));
            parts.state.loss += reported.loss;
            parts.state.samples += reported.samples;
        }
        device_close(&d);
        assert_int_equal(parts.state.samples, whole.state.samples);
        assert_true(fabs(parts.state.loss - whole.state.loss) <= 1e-12 * whole.state.loss);
        parts.state = whole.state;
        same_bits(&s, &whole, &parts);
        result_close(&whole), result_close(&parts);
        scene_close(&s);
    }
}

/* Data larger than a piece of pinned memory (4 MiB) arrive whole: a data set with gaps between its
 * samples, and arenas there and back. */
static void large_arrays(void **state)
{
    const struct dpt_loss_scale scale = dpt_loss_scale_start(false, 1);
    struct scene_plan plan = random_plan(350);
    struct scene_result sent, got;
    struct draw draw = {5};
    struct dpt_error err;
    struct device d;
    struct scene s;

    (void)state;
    plan.net = 0, plan.steps = 2, plan.stored = plan.u8 = true;
    for (int gaps = 0; gaps < 2; gaps++) {
        plan.gaps = gaps == 1;
        plan.samples = 200000; /* of 48 bytes */
        as_on_the_host(&plan, 2e-5);
    }
    plan.samples = 0;
    plan.micro = plan.micros = 1;
    plan.hidden = 50000;
    scene_open(&s, &plan);
    result_open(&sent, &s), result_open(&got, &s);
    for (int32_t k = 0; k < s.graph.n_tensors; k++)
        for (int64_t i = 0; i < s.graph.tensors[k].count; i++) {
            sent.params[s.graph.tensors[k].offset + i] = (float)draw_uniform(&draw);
            sent.slot[0][s.graph.tensors[k].offset + i] = (float)draw_uniform(&draw);
        }
    OK(device_open(&d, &s, &err));
    OK(cuda->steps->put(d.steps, sent.params, sent.slot, &scale, &err));
    OK(cuda->steps->get(d.steps, got.params, got.slot, NULL, &err));
    same_bits(&s, &sent, &got);
    device_close(&d);
    result_close(&sent), result_close(&got);
    scene_close(&s);
}

/* A NaN withholds its update, and all later ones unless it is to be skipped. */
static void not_a_number(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed += (uint64_t)net_every()) {
        struct scene_plan plan = random_plan(seed + 400);

        plan.net = 0; /* a max-pool may lose one */
        plan.stored = false;
        plan.micro = 4;
        plan.bad = 2;
        plan.skip = seed & 1;
        plan.reduces = seed & 2;
        plan.bucket = 500;
        as_on_the_host(&plan, 2e-5);
    }
}

/* With half floats, too large a scale is halved until gradients are finite; those updates are left
 * out, and counted. */
static void half_floats(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct scene_plan plan = random_plan(seed + 500);
        struct scene_result device;
        struct scene s;
        int64_t left;

        plan.net = 0;
        plan.precision = DPT_PRECISION_FP16;
        plan.steps = 6;
        plan.micros = 1;
        plan.micro = 6;
        plan.gain = seed < 2 ? 40 : 1;
        scene_open(&s, &plan);
        device_run(&s, &device);
        left = device.state.scale.overflows;
        assert_true(device.state.scale.scale == ldexpf(DPT_LOSS_SCALE_FIRST, -(int)left));
        assert_true(device.state.skipped == 0 && !device.state.withheld);
        /* The last step is short of two. */
        assert_in_range(left, seed < 2 ? 1 : 0, 5);
        assert_true(device.state.samples == (6 - left) * 6 - 2 ||
                    device.state.samples == (6 - left) * 6);
        for (int64_t i = 0; i < s.graph.floats; i++)
            assert_true(isfinite(device.params[i]));
        if (seed >= 2 && left == 0) {
            struct scene_result host;

            host_run(&s, &host);
            near(&s, device.params, host.params, 0.02, "params");
            result_close(&host);
        }
        result_close(&device);
        scene_close(&s);
    }
}

/* --- calls in other orders -------------------------------------------------------------------- */

/* A step whose staging buffer is computed twice, and whose gradient is fetched before the
 * update. */
static void careful_step(struct device *d, int step, float *before)
{
    const struct scene *s = d->scene;
    const int which = step % s->plan.staging_buffers;
    struct dpt_error err;

    OK(fill(d, step, &err));
    for (int i = 0; i < 2; i++)
        OK(cuda->steps->compute(d->steps, which, scene_micros(s, step), s->plan.seed,
                                (uint64_t)step, &err));
    OK(cuda->steps->get(d->steps, NULL, NULL, before, &err));
    OK(cuda->steps->update(d->steps, scene_rate(step), step, &err));
}

/* No request in between, and no missing wait, changes the results. */
static void other_orders(void **state)
{
    const struct dpt_loss_scale scale = dpt_loss_scale_start(false, 1);

    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        const struct scene_plan plan = random_plan(seed + 800);
        struct scene_result whole, other;
        struct dpt_error err;
        struct device d;
        char text[16];
        struct scene s;

        snprintf(text, sizeof text, "%d", (int)seed + 1);
        fake_set("FAKEGPU_SEED", text);
        scene_open(&s, &plan);
        device_run(&s, &whole);
        result_open(&other, &s);
        OK(device_open(&d, &s, &err));
        /* The state is replaced while steps are still in flight. */
        for (int i = 0; i < 2; i++) {
            OK(cuda->steps->put(d.steps, s.params, other.slot, &scale, &err));
            OK(device_steps(&d, 1, i == 0 ? 2 : plan.steps, &err));
        }
        OK(cuda->steps->get(d.steps, other.params, other.slot, other.gradient, &err));
        OK(cuda->steps->read(d.steps, &other.state, &err));
        same_bits(&s, &whole, &other);
        for (int k = 0; k < s.rule.slots; k++)
            memset(other.slot[k], 0, (size_t)s.graph.floats * 4);
        OK(cuda->steps->put(d.steps, s.params, other.slot, &scale, &err));
        for (int step = 1; step <= plan.steps; step++)
            careful_step(&d, step, other.gradient);
        OK(cuda->steps->read(d.steps, &other.state, &err));
        OK(cuda->steps->get(d.steps, other.params, other.slot, NULL, &err));
        same_bits(&s, &whole, &other);
        device_close(&d);
        result_close(&whole), result_close(&other);
        scene_close(&s);
    }
    fake_set("FAKEGPU_SEED", NULL);
}

/* With growing memory: the program does not fit; its steps do not (and the error says what would);
 * the data set does not and comes from the host; everything fits. */
static void memory_runs_out(void **state)
{
    int refused = 0, advised = 0, staged = 0, stored = 0;

    (void)state;
    if (real_device())
        skip();
    for (int large = 0; large < 2; large++) {
        struct scene_plan plan = random_plan(900);
        const int enough = stored + 2;
        struct scene s;

        plan.net = 0, plan.micros = 1 + large, plan.staging_buffers = 2, plan.steps = 1;
        plan.micro =
            large ? 48 : 2; /* the staging buffers are larger than the data set, or smaller */
        plan.stored = true;
        scene_open(&s, &plan);
        for (double bytes = 1 << 13; bytes < 1e9 && stored < enough; bytes *= 1.1) {
            struct dpt_error err = {.text = ""};
            struct dpt_staging_buffer staging_buffer;
            struct device d;
            char text[32];

            snprintf(text, sizeof text, "%.0f", bytes);
            fake_set("FAKEGPU_MEMORY", text);
            if (device_open(&d, &s, &err) == DPT_OK) {
                OK(cuda->steps->staging_buffer(d.steps, 0, &staging_buffer, &err));
                *(staging_buffer.input == NULL ? &stored : &staged) += 1;
            } else {
                assert_int_equal(err.status, DPT_BAD_JOB);
                refused++;
                advised += d.program != NULL && strstr(err.text, "would fit") != NULL;
            }
            device_close(&d);
        }
        scene_close(&s);
    }
    fake_set("FAKEGPU_MEMORY", NULL);
    if (refused == 0 || advised == 0 || staged == 0 || stored == 0)
        fail_msg("%d refused, %d of them advised, %d with rooms, %d with the data set", refused,
                 advised, staged, stored);
}

/* --- where the time goes ---------------------------------------------------------------------- */

static void fetch(struct device *d, struct scene_result *r)
{
    struct dpt_error err;

    device_read(d, &r->state);
    OK(cuda->steps->get(d->steps, r->params, r->slot, r->gradient, &err));
}

/* Half of the job; then a profiled step, whose launches are all reported with their times in a
 * graph, and which restores what they changed; then the rest. */
static void run_and_ask(const struct scene *s, struct scene_result *r)
{
    const struct dpt_loss_scale scale =
        dpt_loss_scale_start(s->plan.precision == DPT_PRECISION_FP16, 1);
    struct dpt_span_sum sums[DPT_SPAN_NODES + 64 * DPT_SPAN_PASSES] = {{0}};
    struct dpt_spans spans = {.sum = sums};
    struct dpt_launch_cost costs[128];
    struct scene_result before;
    struct dpt_error err;
    struct device d;
    int n, updates = 0;

    result_open(r, s), result_open(&before, s);
    OK(device_open(&d, s, &err));
    OK(cuda->steps->put(d.steps, r->params, r->slot, &scale, &err));
    OK(device_steps(&d, 1, 2, &err));
    cuda->profile(d.program, 0, &spans);
    dpt_spans_begin(&spans);
    OK(device_steps(&d, 3, 3, &err));
    cuda->profile(d.program, 0, NULL);
    fetch(&d, &before);
    OK(cuda->launches(d.program, costs, 128, &n, &err));
    r->state = before.state;
    fetch(&d, r);
    same_bits(s, &before, r);
    assert_in_range(n, 8, 100);
    for (int i = 0; i < n; i++) {
        const bool library = strncmp(costs[i].what, "product", 7) == 0 ||
                             strncmp(costs[i].what, "convolution", 11) == 0;
        const double us = costs[i].seconds / (double)costs[i].calls * 1e6;

        if (strcmp(costs[i].what, "zeros") != 0 && fabs(us - (library ? 500 : 300)) > 1)
            fail_msg("%s of '%s' takes %g us", costs[i].what, costs[i].node, us);
        updates += costs[i].node[0] == '\0' && costs[i].flops == 0;
    }
    /* Samples, norm, the optimizer; rates if ranks reduce; the norm in order along the tree. */
    assert_in_range(updates, 3, 5);
    OK(device_steps(&d, 4, s->plan.steps, &err));
    fetch(&d, r);
    device_close(&d);
    result_close(&before);
}

static void asking_changes_nothing(void **state)
{
    (void)state;
    if (real_device())
        skip(); /* its clock cannot be set */
    for (uint64_t seed = 0; seed < 10; seed += (uint64_t)net_every()) {
        struct scene_plan plan = random_plan(700 + seed);
        struct scene_result plain, asked;
        struct scene s;

        plan.precision = (enum dpt_precision)(seed % DPT_PRECISIONS);
        plan.steps = 5;
        plan.reduces = seed % 3 == 0;
        plan.bucket = 900;
        scene_open(&s, &plan);
        device_run(&s, &plain);
        fake_set("FAKEGPU_TAKES", "dpt_cuda_:900:300,engine:20:500,algorithm:20:500");
        run_and_ask(&s, &asked);
        fake_set("FAKEGPU_TAKES", NULL);
        same_bits(&s, &plain, &asked);
        result_close(&plain), result_close(&asked);
        scene_close(&s);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers),      cmocka_unit_test(joins),
        cmocka_unit_test(groups),          cmocka_unit_test(sums_over_ranks),
        cmocka_unit_test(nothing_to_do),   cmocka_unit_test(weights),
        cmocka_unit_test(any_order),       cmocka_unit_test(goes_on),
        cmocka_unit_test(large_arrays),    cmocka_unit_test(not_a_number),
        cmocka_unit_test(half_floats),     cmocka_unit_test(other_orders),
        cmocka_unit_test(memory_runs_out), cmocka_unit_test(asking_changes_nothing),
    };

    (void)argc;
    if (!cuda_begin(argv))
        return left_out("neither a GPU nor one that is faked");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
