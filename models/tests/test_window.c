#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base/rng.h"
#include "models/tests/build.h"

enum { TRIES = 3000 };

static int32_t pick(uint64_t seed, uint64_t what, int32_t least, int32_t most)
{
    return least + (int32_t)(dpt_random64(seed, DPT_RANDOM_SYNTHETIC, what, 0) %
                             (uint64_t)(most - least + 1));
}

/* Places where a window lies wholly within the padded input, counted one by one. */
static int32_t count_places(int32_t input, int32_t kernel, int32_t stride, int32_t dilation,
                            int32_t before, int32_t after)
{
    int32_t places = 0;

    for (int32_t at = -before; at + (kernel - 1) * dilation < input + after; at += stride)
        places++;
    return places;
}

/* Whether some window holds no number of the input, only padding. */
static bool some_window_is_empty(int32_t input, int32_t kernel, int32_t stride, int32_t before,
                                 int32_t places)
{
    for (int32_t i = 0; i < places; i++) {
        bool empty = true;

        for (int32_t k = 0; k < kernel; k++) {
            const int32_t at = i * stride - before + k;

            empty = empty && (at < 0 || at >= input);
        }
        if (empty)
            return true;
    }
    return false;
}

/* Explicit padding: as many outputs as places; none at all is an error. */
static void outputs_are_the_places_of_the_window(void **state)
{
    int built = 0, refused = 0;

    (void)state;
    for (uint64_t seed = 0; seed < TRIES; seed++) {
        const bool pool = pick(seed, 20, 0, 1) == 1;
        int32_t in[2], k[2], s[2], d[2], p[2], want[2];
        struct dpt_graph graph;
        struct dpt_error err;
        char text[400];
        enum dpt_status status;

        for (int i = 0; i < 2; i++) {
            in[i] = pick(seed, (uint64_t)i, 1, 12);
            k[i] = pick(seed, 2 + (uint64_t)i, 1, 5);
            s[i] = pick(seed, 4 + (uint64_t)i, 1, 4);
            d[i] = pool ? 1 : pick(seed, 6 + (uint64_t)i, 1, 3);
            p[i] = pick(seed, 8 + (uint64_t)i, 0, pool ? k[i] - 1 : 4);
            want[i] = count_places(in[i], k[i], s[i], d[i], p[i], p[i]);
        }
        snprintf(text, sizeof text,
                 pool ? "model: {type: sequential, layers: [{maxpool: {size: [%d, %d], stride: "
                        "[%d, %d], padding: [%d, %d]}}, flatten, {dense: 1}]}\n"
                      : "model: {type: sequential, layers: [{conv: {channels: 2, kernel: [%d, "
                        "%d], stride: [%d, %d], padding: [%d, %d], dilation: [%d, %d]}}, "
                        "flatten, {dense: 1}]}\n",
                 k[0], k[1], s[0], s[1], p[0], p[1], d[0], d[1]);
        status = build_model(text, 3, in[0], in[1], &graph, &err);
        if (status != (want[0] > 0 && want[1] > 0 ? DPT_OK : DPT_BAD_JOB))
            fail_msg("%sof %dx%d: %s", text, in[0], in[1], status == DPT_OK ? "built" : err.text);
        if (status != DPT_OK) {
            refused++;
            continue;
        }
        built++;
        for (int i = 0; i < 2; i++)
            if (pool && some_window_is_empty(in[i], k[i], s[i], p[i], want[i]))
                fail_msg("%sof %dx%d: a window holds only padding", text, in[0], in[1]);
        if (graph.nodes[1].out.h != want[0] || graph.nodes[1].out.w != want[1])
            fail_msg("%sof %dx%d: %dx%d, not %dx%d", text, in[0], in[1], graph.nodes[1].out.h,
                     graph.nodes[1].out.w, want[0], want[1]);
        dpt_graph_release(&graph);
    }
    assert_true(built > TRIES / 3 && refused > TRIES / 30);
}

/*
 * `same`: ceil(input / stride) outputs from the least padding that gives them, split evenly, the
 * odd one at the end.
 */
static void same_padding_is_tensorflows(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < TRIES; seed++) {
        const int32_t in = pick(seed, 0, 1, 17), k = pick(seed, 1, 1, 6), s = pick(seed, 2, 1, 5);
        const int32_t d = pick(seed, 3, 1, 3), want = in / s + (in % s != 0);
        const struct dpt_window *window;
        int32_t least = 0;
        struct dpt_graph graph;
        struct dpt_error err;
        char text[400];

        while (count_places(in, k, s, d, least / 2, least - least / 2) < want)
            least++;
        snprintf(text, sizeof text,
                 "model: {type: sequential, layers: [{conv: {channels: 2, kernel: [%d, 1], "
                 "stride: [%d, 1], padding: same, dilation: [%d, 1]}}, flatten]}\n",
                 k, s, d);
        if (build_model(text, 3, in, 4, &graph, &err) != DPT_OK)
            fail_msg("%sof %d: %s", text, in, err.text);
        window = &graph.nodes[1].window;
        if (graph.nodes[1].out.h != want || graph.nodes[1].out.w != 4 ||
            window->before[0] != least / 2 || window->after[0] != least - least / 2)
            fail_msg("%sof %d: %d outputs, padding %d and %d; not %d, %d and %d", text, in,
                     graph.nodes[1].out.h, window->before[0], window->after[0], want, least / 2,
                     least - least / 2);
        dpt_graph_release(&graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_the_places_of_the_window),
        cmocka_unit_test(same_padding_is_tensorflows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
