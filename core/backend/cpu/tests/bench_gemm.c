/*
 * The products of dense layers against oneDNN's matrix product, one thread, the best of several
 * alternating rounds; GFLOP/s of the thread's own CPU time, so that a busy machine matters little.
 *
 *     bench_gemm [rounds]
 *
 * The purpose of ours shows only in part: threads share a product without a sum, with the same
 * bits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/backend/cpu/fp32/gemm.h"
#include "core/backend/cpu/onednn/dnnl.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/rng.h"

enum pass { FORWARD, WEIGHTS, DATA, PASSES };
enum way { OURS, THEIRS, WAYS };

struct layer {
    struct dpt_gemm p;
    float *x, *w, *b, *y, *dy, *dx, *dw, *transposed, *scratch;
};

static float *array(int64_t n, uint64_t what)
{
    float *x = dpt_alloc_array((size_t)n, sizeof *x);

    if (x == NULL)
        exit(1);
    dpt_random_uniform(1, DPT_RANDOM_SYNTHETIC, what, 0, (size_t)n, x);
    return x;
}

static void ours(const struct layer *l, enum pass pass)
{
    const struct dpt_gemm *p = &l->p;

    if (pass == FORWARD) {
        dpt_gemm_transpose(p, l->x, 0, p->inputs, l->transposed);
        dpt_gemm_forward(p, l->transposed, l->w, l->b, 0, p->outputs, l->scratch, l->y);
    } else if (pass == WEIGHTS) {
        dpt_gemm_weights(p, l->dy, l->x, false, 0, p->outputs, l->scratch, l->dw);
    } else {
        dpt_gemm_data(p, l->dy, l->w, 0, p->inputs, l->scratch, l->dx);
    }
}

/* A product of the same sizes, with nothing to transpose. */
static void theirs(const struct layer *l, enum pass pass)
{
    const int64_t rows = l->p.rows, in = l->p.inputs, out = l->p.outputs;
    struct dpt_error err;

    if (pass == FORWARD)
        dpt_dnnl_gemm(rows, out, in, l->x, l->w, l->y, &err);
    else if (pass == WEIGHTS)
        dpt_dnnl_gemm(out, in, rows, l->dy, l->x, l->dw, &err);
    else
        dpt_dnnl_gemm(rows, in, out, l->dy, l->w, l->dx, &err);
}

static void measure(int64_t rows, int64_t inputs, int64_t outputs, int rounds)
{
    static void (*const ways[])(const struct layer *l, enum pass pass) = {ours, theirs};
    const double flop = 2.0 * (double)rows * (double)inputs * (double)outputs;
    const int calls = 1 + (int)(1e9 / flop);
    struct layer l = {.p = {rows, inputs, outputs, dpt_dnnl_isa(), 0}};
    double best[PASSES][WAYS];

    l.x = array(rows * inputs, 1);
    l.w = array(outputs * inputs, 2);
    l.b = array(outputs, 3);
    l.dy = array(rows * outputs, 4);
    l.y = array(rows * outputs, 5);
    l.dx = array(rows * inputs, 6);
    l.dw = array(outputs * inputs, 7);
    l.transposed = array(dpt_gemm_transposed(&l.p), 8);
    l.scratch = array(dpt_gemm_scratch(&l.p), 9);
    for (int i = 0; i < PASSES * WAYS; i++)
        best[i / WAYS][i % WAYS] = INFINITY;
    for (int i = 0; i < rounds * PASSES * WAYS; i++) {
        double *fastest = &best[i / WAYS % PASSES][i % WAYS], start = dpt_thread_seconds();

        for (int call = 0; call < calls; call++)
            ways[i % WAYS](&l, i / WAYS % PASSES);
        *fastest = fmin(*fastest, (dpt_thread_seconds() - start) / calls);
    }
    printf("| %d rows, %d to %d |", (int)rows, (int)inputs, (int)outputs);
    for (int pass = 0; pass < PASSES; pass++)
        printf(" %.0f / %.0f |", 1e-9 * flop / best[pass][OURS], 1e-9 * flop / best[pass][THEIRS]);
    printf("\n");
    float *const all[] = {l.x, l.w, l.b, l.dy, l.y, l.dx, l.dw, l.transposed, l.scratch};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dpt_free(all[i]);
}

int main(int argc, char **argv)
{
    static const int64_t shapes[][3] = {
        {128, 784, 256}, {64, 784, 256},  {128, 256, 10}, {128, 784, 4096}, {128, 4096, 4096},
        {16, 784, 256},  {16, 3136, 128}, {16, 4096, 10}, {16, 784, 4096},
    };
    struct dpt_dnnl *dnnl;
    struct dpt_error err;

    if (dpt_dnnl_open(&dnnl, 1, &err) != DPT_OK) /* from here on on one thread */
        return 1;
    printf("GFLOP/s, ours / %s\n\n", dpt_dnnl_describe());
    printf("| layer | forward | weights | data |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        measure(shapes[i][0], shapes[i][1], shapes[i][2], argc > 1 ? atoi(argv[1]) : 5);
    dpt_dnnl_close(dnnl);
    return 0;
}
