/*
 * Sums of micro-batches' gradients on the device, so that the host gets one for several: along the
 * tree of core/comm/sums/tree.h, or, if that is not required, from the first to the last.
 *
 * The partial sums of a tree are the values of its nodes to the left of the next leaf: one for each
 * binary one in the leaf's number. So the number alone determines which of them exist, and ranges
 * of floats may be added up one after another, each over all leaves.
 */
#include "core/backend/cuda/program/program_passes.h"

/* Bytes that are left free: libraries allocate when they are first used, and a search for numbers
 * that are not finite opens another program. */
enum { MARGIN = 256 << 20 };

static bool is_tree(const struct dpt_program_spec *spec)
{
    return spec->reproducible || spec->micro > dpt_cuda_rows(spec);
}

/* The number of partial sums of n micro-batches. */
static int levels_of(const struct dpt_program_spec *spec, int32_t adds)
{
    return is_tree(spec) ? dpt_cuda_levels(adds) : adds > 1;
}

static int32_t sub_batches_of(const struct dpt_program_spec *spec)
{
    return (spec->micro + dpt_cuda_rows(spec) - 1) / dpt_cuda_rows(spec);
}

/* The number of partial sums beside those of a batch's sub-batches. */
static int more_levels(const struct dpt_program_spec *spec)
{
    const int32_t own = sub_batches_of(spec);

    return spec->training && spec->adds > own ? levels_of(spec, spec->adds) - dpt_cuda_levels(own)
                                              : 0;
}

int64_t dpt_cuda_sums_bytes(const struct dpt_program_spec *spec)
{
    return more_levels(spec) * spec->graph->arena * (int64_t)sizeof(float);
}

enum dpt_status dpt_cuda_hold_sums(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const int64_t bytes = p->spec.graph->arena * (int64_t)sizeof(float);
    const int own = dpt_cuda_levels(sub_batches_of(&p->spec));
    struct dpt_cuda_piece piece = {.what = "sums of gradients",
                                   .at = (void **)&p->lists->more_sums};
    int more = more_levels(&p->spec);
    enum dpt_status status = DPT_OK;
    size_t available, total;

    DPT_CUDA_TRY(&p->ctx.lib, cuMemGetInfo(&available, &total));
    while (more > 0 &&
           (size_t)(more * bytes) + (total / 16 < MARGIN ? total / 16 : MARGIN) > available)
        more--;
    piece.bytes = more * bytes;
    if (more > 0)
        status = dpt_cuda_hold(&p->ctx, &piece, 1, err);
    if (status == DPT_BAD_JOB) { /* another program has taken the memory meanwhile */
        more = 0;
        status = DPT_OK;
    }
    p->lists->adds = p->spec.adds;
    if (more < more_levels(&p->spec))
        p->lists->adds = is_tree(&p->spec) ? (int32_t)(((int64_t)2 << (own + more)) - 1) : 1;
    if (p->lists->adds < sub_batches_of(&p->spec))
        p->lists->adds = sub_batches_of(&p->spec);
out:
    return status;
}

int32_t dpt_cuda_adds(const void *program)
{
    const struct dpt_cuda_program *p = program;

    return p->lists->adds;
}

/* The arena of a partial sum. */
static float *sum_at(const struct dpt_cuda_program *p, int number)
{
    const struct dpt_cuda_lists *l = p->first->lists;
    const int own = dpt_cuda_levels(sub_batches_of(&p->spec));
    float *const from = number < own ? l->sums : l->more_sums;

    return from + (number < own ? number : number - own) * p->spec.graph->arena;
}

enum dpt_status dpt_cuda_add_gradient(struct dpt_cuda_program *p, int32_t number, bool last,
                                      size_t begin, size_t end, float **sum, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const bool tree = is_tree(&p->spec);
    int n = tree ? __builtin_popcount((unsigned)number) : number > 0;
    struct dpt_cuda_add_args args = {.x = p->gradient + begin, .n = (int64_t)(end - begin)};
    enum dpt_status status = DPT_OK;

    *sum = p->gradient;
    for (int level = 0; n > 0 && (last || !tree || (number >> level & 1)); level++) {
        *sum = sum_at(p, --n);
        args.y = *sum + begin;
        if (args.n > 0)
            DPT_TRY(
                dpt_cuda_launch(lib, &p->ctx.module, p->ctx.compute, DPT_CUDA_K_add, &args, err));
        args.x = args.y;
    }
    if (!last && *sum == p->gradient && args.n > 0)
        DPT_CUDA_TRY(lib, cuMemcpyDtoDAsync(dpt_cuda_ptr(sum_at(p, n) + begin),
                                            dpt_cuda_ptr(p->gradient + begin),
                                            (end - begin) * sizeof **sum, p->ctx.compute));
out:
    return status;
}
