/* Finds the fastest plans. Each is repeated in a graph, as a step will run it, on random numbers: a
 * device that multiplies zeros draws less power and is faster than in a real step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program_time.h"
#include "core/base/memory.h"
#include "core/base/rng.h"

enum { NOISE = 1 << 16 }; /* bytes */

/* --- numbers ---------------------------------------------------------------------------------- */

/* Makes random numbers of random bits, except that the upper bits of the exponent are fixed, so
 * that magnitudes lie between 1/128 and 2. */
static enum dpt_status make_noise(struct dpt_cuda_program *p, struct dpt_error *err)
{
    static const struct {
        uint64_t keep, set;
    } masks[DPT_PRECISIONS] = {
        [DPT_PRECISION_FP32] = {0x83ffffff83ffffff, 0x3c0000003c000000},
        [DPT_PRECISION_TF32] = {0x83ffffff83ffffff, 0x3c0000003c000000},
        [DPT_PRECISION_BF16] = {0x83ff83ff83ff83ff, 0x3c003c003c003c00},
        [DPT_PRECISION_FP16] = {0x9fff9fff9fff9fff, 0x2000200020002000},
    };
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_cuda_piece piece = {"numbers to try plans with", NOISE, (void **)&l->noise,
                                         true};
    enum dpt_status status = DPT_OK;

    if (l->noise != NULL)
        return DPT_OK;
    DPT_TRY(dpt_cuda_hold(&p->ctx, &piece, 1, err));
    for (size_t i = 0; i < NOISE / sizeof *l->noise; i++)
        l->noise[i] = (dpt_mix64(i) & masks[p->spec.precision].keep) | masks[p->spec.precision].set;
out:
    return status;
}

/* Fills an array that a plan reads with noise: the first piece is copied from the host, and then
 * the filled part is doubled until the array is full. */
static enum dpt_status fill(struct dpt_cuda_program *p, const struct dpt_cuda_array_at *array,
                            struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const CUdeviceptr at = dpt_cuda_ptr(array->at);
    int64_t done = array->bytes < NOISE ? array->bytes : NOISE;
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(lib, cuMemcpyHtoDAsync(at, p->lists->noise, (size_t)done, p->ctx.compute));
    while (done < array->bytes) {
        const int64_t more = done < array->bytes - done ? done : array->bytes - done;

        DPT_CUDA_TRY(lib,
                     cuMemcpyDtoDAsync(at + (CUdeviceptr)done, at, (size_t)more, p->ctx.compute));
        done += more;
    }
out:
    return status;
}

/* Sets the arrays to zero again, since padding has to be zero when the program is opened. */
static enum dpt_status clear(struct dpt_cuda_program *p, const struct dpt_cuda_array_at *arrays,
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int i = 0; i <= DPT_CUDA_Y; i++)
        DPT_CUDA_TRY(&p->ctx.lib, cuMemsetD8Async(dpt_cuda_ptr(arrays[i].at), 0,
                                                  (size_t)arrays[i].bytes, p->ctx.compute));
    DPT_TRY(dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err));
out:
    return status;
}

/* --- candidates ------------------------------------------------------------------------------- */

/* A plan that is timed. */
struct candidate {
    struct dpt_cuda_program *p;
    struct dpt_cuda_math *math;
    int which;
    struct dpt_cuda_repeat repeat;
};

/* Allocates the largest workspace that a candidate needs and that fits the memory; *bytes: its
 * size. */
static enum dpt_status allocate(struct dpt_cuda_program *p, struct dpt_cuda_math *const *kinds,
                                int n, CUdeviceptr *at, int64_t *bytes, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    int64_t below = INT64_MAX;
    CUresult result;

    for (*at = 0, *bytes = 0;; below = *bytes) {
        *bytes = 0;
        for (int k = 0; k < n; k++) {
            for (int i = 0; i < dpt_cuda_found(kinds[k]); i++) {
                const int64_t needs = dpt_cuda_needs(kinds[k], i);

                if (needs < below && needs > *bytes)
                    *bytes = needs;
            }
        }
        if (*bytes == 0)
            return DPT_OK;
        result = lib->cuMemAlloc(at, (size_t)*bytes);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            return dpt_cuda_check(lib, result, "cuMemAlloc", err);
    }
}

static enum dpt_status enqueue(void *arg, struct dpt_error *err)
{
    const struct candidate *c = arg;

    return dpt_cuda_run_math(c->p, c->math, false, err);
}

/* Captures a candidate, after a first run by itself, since that may load code, which is not allowed
 * in a capture. *runs: whether the first run worked. */
static enum dpt_status prepare(struct candidate *c, void *workspace, bool *runs,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *runs = false;
    c->math->which = c->which;
    DPT_TRY(dpt_cuda_bind(c->math, workspace, err));
    DPT_TRY(dpt_cuda_run_math(c->p, c->math, false, err));
    DPT_TRY(dpt_cuda_await_stream(&c->p->ctx, c->p->ctx.compute, err));
    *runs = true;
    DPT_TRY(dpt_cuda_repeat_open(c->p, enqueue, c, &c->repeat, err));
out:
    return status;
}

/* Times the candidates alternately, so that a changing clock and other users of the device affect
 * all of them alike. */
static enum dpt_status time_in_turns(struct dpt_cuda_program *p, struct candidate *c, int n,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool more = n > 1;

    for (int round = 1; more; round++) {
        more = false;
        for (int i = 0; i < n; i++) {
            if (!dpt_cuda_repeat_more(&c[i].repeat, round))
                continue;
            DPT_TRY(dpt_cuda_repeat_time(p, &c[i].repeat, err));
            more = true;
        }
    }
out:
    return status;
}

/*
 * Captures the candidates; *n: how many. One that cannot run, or not in a graph, is left out unless
 * the device itself failed. If none can be captured the first one that runs is chosen without being
 * timed, since times that are measured in another way cannot be compared.
 */
static enum dpt_status prepare_all(struct dpt_cuda_program *p, struct dpt_cuda_math *const *kinds,
                                   int n_kinds, void *workspace, int64_t bytes, struct candidate *c,
                                   int *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, failed = DPT_OK;
    int first[2] = {-1, -1};

    *n = 0;
    for (int k = 0; k < n_kinds; k++) {
        for (int i = 0; i < dpt_cuda_found(kinds[k]); i++) {
            bool runs;

            if (dpt_cuda_needs(kinds[k], i) > bytes)
                continue;
            c[*n] = (struct candidate){.p = p, .math = kinds[k], .which = i};
            failed = prepare(&c[*n], workspace, &runs, err);
            *n += failed == DPT_OK;
            if (runs && first[k] < 0)
                first[k] = i;
            if (failed != DPT_OK)
                DPT_TRY(dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err));
        }
        kinds[k]->which = first[k] < 0 ? 0 : first[k];
    }
    if (first[0] < 0 && *n == 0)
        status = failed;
out:
    return status;
}

enum dpt_status dpt_cuda_tune(struct dpt_cuda_program *p, struct dpt_cuda_math *const *kinds,
                              int n_kinds, float *ms, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;
    struct candidate *candidates = NULL;
    CUdeviceptr workspace = 0;
    const enum dpt_cuda_array written = dpt_cuda_roles[kinds[0]->pass].d;
    int64_t bytes;
    int most = 0, n = 0;

    for (int k = 0; k < n_kinds; k++) {
        most += dpt_cuda_found(kinds[k]);
        ms[k] = INFINITY;
    }
    DPT_TRY(DPT_ALLOCATE(candidates, (size_t)most, "a layer's plans", err));
    DPT_TRY(make_noise(p, err));
    DPT_TRY(allocate(p, kinds, n_kinds, &workspace, &bytes, err));
    /* The bias stays zero, since it has little influence on the power. */
    for (int i = 0; i <= DPT_CUDA_Y; i++) {
        if (i != (int)written)
            DPT_TRY(fill(p, &kinds[0]->array[i], err));
    }
    DPT_TRY(
        prepare_all(p, kinds, n_kinds, (void *)(uintptr_t)workspace, bytes, candidates, &n, err));
    DPT_TRY(time_in_turns(p, candidates, n, err));
    for (int i = 0; i < n; i++) {
        const int k = candidates[i].math == kinds[0] ? 0 : 1;

        if (candidates[i].repeat.least < ms[k]) {
            ms[k] = candidates[i].repeat.least;
            kinds[k]->which = candidates[i].which;
        }
    }
    DPT_TRY(clear(p, kinds[0]->array, err));
out:
    for (int i = 0; i < n; i++)
        dpt_cuda_repeat_close(p, &candidates[i].repeat);
    if (workspace != 0) {
        lib->cuStreamSynchronize(p->ctx.compute);
        lib->cuMemFree(workspace);
    }
    dpt_free(candidates);
    return status;
}
