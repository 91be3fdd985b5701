/* Opens a program: allocates memory, builds the lists, chooses the workspace; explains what does
 * not fit; measures what a spec would need. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program.h"
#include "core/base/memory.h"

enum { WORKSPACE_PART = 16, LEAST_WORKSPACE = 64 << 20 };
enum { ROUNDED = 512 }; /* bytes to which the driver rounds up each allocation */

/* --- memory that does not suffice ------------------------------------------------------------- */

/* Device memory in bytes of a program for this spec with micro-batches of m samples; -1: such a
 * program is impossible. workspace: bytes that the plans for `micro` need, or 0. */
static int64_t bytes_of(const struct dpt_program_spec *spec, int32_t m, int64_t workspace)
{
    const int32_t rows = dpt_cuda_rows(spec);
    struct dpt_program_spec other = *spec;
    struct dpt_cuda_memory_layout memory_layout;
    struct dpt_error ignored;
    int64_t sum = -1;

    other.micro = spec->micro / rows * m;
    other.sub_batch = spec->sub_batch > 0 ? m : 0;
    if (dpt_cuda_memory_layout_make(&other, m, &memory_layout, &ignored) == DPT_OK)
        sum = dpt_cuda_regions_sum(&memory_layout, 0, DPT_CUDA_WORKSPACE) +
              (int64_t)((double)workspace * m / rows) + DPT_CUDA_REGIONS * ROUNDED;
    dpt_cuda_memory_layout_release(&memory_layout);
    return sum;
}

/* The largest micro-batch that would fit; 0: none. */
static int32_t largest_micro(const struct dpt_program_spec *spec, int64_t workspace,
                             int64_t available)
{
    int32_t fits = 0, above = dpt_cuda_rows(spec);

    while (above - fits > 1) {
        const int32_t m = fits + (above - fits) / 2;
        const int64_t bytes = bytes_of(spec, m, workspace);

        if (bytes >= 0 && bytes <= available)
            fits = m;
        else
            above = m;
    }
    return fits;
}

/* also: what else the user should know; "" is nothing. */
static enum dpt_status fail_memory(const struct dpt_cuda_program *p, int64_t workspace,
                                   size_t available, size_t total, const char *also,
                                   struct dpt_error *err)
{
    const struct dpt_cuda_memory_layout *m = &p->lists->memory_layout;
    const int64_t values = dpt_cuda_regions_sum(m, 0, DPT_CUDA_DY);
    const int64_t gradients = dpt_cuda_regions_sum(m, DPT_CUDA_DY, DPT_CUDA_PARAMS);
    const int64_t parameters = dpt_cuda_regions_sum(m, DPT_CUDA_PARAMS, DPT_CUDA_PARTIAL);
    const int64_t scratch =
        dpt_cuda_regions_sum(m, DPT_CUDA_PARTIAL, DPT_CUDA_WORKSPACE) + workspace;
    const int64_t sum = values + gradients + parameters + scratch;
    const int32_t fits = largest_micro(&p->spec, workspace, (int64_t)available);
    char text[7][32], advice[160];

    if (fits > 0)
        snprintf(advice, sizeof advice, "batch.micro: %d should fit", fits);
    else
        snprintf(advice, sizeof advice,
                 "no batch.micro fits: a smaller model, parallel.pipeline, another GPU, or one "
                 "that others use less");
    return dpt_fail(
        err, DPT_BAD_JOB,
        "the GPU's memory is too small for micro-batches of %d: %s are needed (the "
        "layers' outputs %s, their gradients %s, parameters with gradients and copies "
        "%s, workspace %s), and %s of its %s are free; %s%s",
        p->micro, dpt_show_bytes((double)sum, text[0]), dpt_show_bytes((double)values, text[1]),
        dpt_show_bytes((double)gradients, text[2]), dpt_show_bytes((double)parameters, text[3]),
        dpt_show_bytes((double)scratch, text[4]), dpt_show_bytes((double)available, text[5]),
        dpt_show_bytes((double)total, text[6]), advice, also);
}

/* --- memory ----------------------------------------------------------------------------------- */

struct region {
    const char *what;
    void **at;
};

static void regions_of(struct dpt_cuda_program *p, struct region regions[DPT_CUDA_WORKSPACE])
{
    struct dpt_cuda_lists *l = p->lists;
    const struct region rows[DPT_CUDA_WORKSPACE] = {
        [DPT_CUDA_CONTROL] = {"the step's numbers", (void **)&p->control},
        [DPT_CUDA_STATE] = {"the step's state", (void **)&p->state},
        [DPT_CUDA_METRIC_SUMS] = {"the metric sums", (void **)&p->metric_sums},
        [DPT_CUDA_INPUT] = {"the samples", (void **)&p->input},
        [DPT_CUDA_LABELS] = {"the labels", (void **)&p->labels},
        [DPT_CUDA_WEIGHTS] = {"the samples' weights", (void **)&p->weights},
        [DPT_CUDA_TARGETS] = {"the targets", (void **)&p->targets},
        [DPT_CUDA_SAMPLE] = {"the samples' numbers", (void **)&p->sample},
        [DPT_CUDA_VALUES] = {"the layers' outputs", (void **)&l->values},
        [DPT_CUDA_OUTPUTS] = {"the outputs", (void **)&l->rows},
        [DPT_CUDA_DY] = {"their gradients", (void **)&l->gradients},
        [DPT_CUDA_PARAMS] = {"the parameters", (void **)&p->params},
        [DPT_CUDA_GRADIENT] = {"the gradient", (void **)&p->gradient},
        [DPT_CUDA_COPIES] = {"copies of the parameters", (void **)&l->copies},
        [DPT_CUDA_DWEIGHTS] = {"the weights' gradients", (void **)&l->dweights},
        [DPT_CUDA_SUMS] = {"sums of gradients", (void **)&l->sums},
        [DPT_CUDA_PARTIAL] = {"sums", (void **)&l->partial},
        [DPT_CUDA_COUNTERS] = {"counters", (void **)&l->counters},
        [DPT_CUDA_PARTIAL_ASIDE] = {"sums", (void **)&l->partial_aside},
        [DPT_CUDA_COUNTERS_ASIDE] = {"counters", (void **)&l->counters_aside},
        [DPT_CUDA_LOSSES] = {"losses", (void **)&l->losses},
        [DPT_CUDA_FOUND] = {"numbers of samples", (void **)&l->found},
    };

    memcpy(regions, rows, sizeof rows);
}

/* The first of the regions for which a program uses those of the first program. */
static enum dpt_cuda_region own_regions(const struct dpt_cuda_program *p)
{
    return p->first == p ? DPT_CUDA_WORKSPACE : DPT_CUDA_PARAMS;
}

static enum dpt_status hold_regions(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_cuda_memory_layout *m = &l->memory_layout;
    struct region rows[DPT_CUDA_WORKSPACE], firsts[DPT_CUDA_WORKSPACE];
    enum dpt_status status = DPT_OK;

    regions_of(p, rows);
    regions_of(p->first, firsts);
    for (int i = 0; i < (int)own_regions(p); i++) {
        const struct dpt_cuda_piece piece = {rows[i].what, m->bytes[i], rows[i].at, false};

        DPT_TRY(dpt_cuda_hold(&p->ctx, &piece, 1, err));
    }
    for (int i = (int)own_regions(p); i < DPT_CUDA_WORKSPACE; i++)
        *rows[i].at = *firsts[i].at;
    l->drows = l->rows + m->bytes[DPT_CUDA_OUTPUTS] / 2 / (int64_t)sizeof(float);
out:
    return status;
}

/* Allocates the workspace, as large as the chosen plans need. The second branch of backward has a
 * part of its own. */
static enum dpt_status hold_workspace(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    struct dpt_cuda_piece piece = {.what = "the workspace", .at = (void **)&l->workspace};
    const bool apart = dpt_cuda_has_branches(&p->spec);
    enum dpt_status status = DPT_OK;
    int64_t needs[2] = {0};

    for (const struct dpt_cuda_math *m = l->maths; m != NULL; m = m->next) {
        int64_t *most = &needs[apart && m->pass == DPT_CUDA_BACKWARD_FILTER];

        *most = m->needs > *most ? m->needs : *most;
    }
    l->workspace_most = needs[0] > needs[1] ? needs[0] : needs[1];
    l->workspace_bytes = 0;
    dpt_cuda_take(&l->workspace_bytes, needs[0]);
    needs[0] = dpt_cuda_take(&l->workspace_bytes, needs[1]); /* where the second part begins */
    if (l->workspace_bytes <= p->first->lists->workspace_bytes)
        l->workspace = p->first->lists->workspace;
    piece.bytes = l->workspace_bytes;
    if (p->first == p || l->workspace == NULL)
        DPT_TRY(dpt_cuda_hold(&p->ctx, &piece, 1, err));
    for (struct dpt_cuda_math *m = l->maths; m != NULL; m = m->next)
        DPT_TRY(dpt_cuda_bind(
            m, l->workspace + (apart && m->pass == DPT_CUDA_BACKWARD_FILTER ? needs[0] : 0), err));
out:
    return status;
}

/*
 * Builds the lists, and allocates the workspace. Plans that were chosen before, here or elsewhere,
 * may need more than there is now. Then plans are chosen again among those that need less, as often
 * as it takes; if bits must follow from the job alone they are kept, and so they are in programs
 * beside the first one, which use its workspace. *most: out, the bytes that the first choice needs.
 * Errors: BAD_JOB: the workspace does not fit, or a layer has no plan at all; RANK.
 */
static enum dpt_status build_and_fit(struct dpt_cuda_program *p, int64_t *most,
                                     struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    enum dpt_status status = DPT_OK;
    size_t available, total;

    DPT_TRY(dpt_cuda_lists_build(p, err));
    status = hold_workspace(p, err);
    *most = l->workspace_bytes;
    while (status == DPT_BAD_JOB && !p->spec.reproducible && p->first == p) {
        l->refitted = true;
        DPT_CUDA_TRY(&p->ctx.lib, cuMemGetInfo(&available, &total));
        l->workspace_limit = l->workspace_most - 1;
        if (l->workspace_limit > (int64_t)available)
            l->workspace_limit = (int64_t)available;
        DPT_TRY(dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err));
        dpt_cuda_lists_clear(p);
        DPT_TRY(dpt_cuda_lists_build(p, err));
        status = hold_workspace(p, err);
    }
out:
    return status;
}

/* Allocates all regions. If any of them fails, the message is about the sum. The workspace is
 * estimated, since plans are not chosen yet. */
static enum dpt_status hold_all(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_cuda_memory_layout *m = &p->lists->memory_layout;
    const int64_t guess = m->bytes[DPT_CUDA_WORKSPACE];
    enum dpt_status status = DPT_OK;
    size_t available, total;
    int64_t most = 0;

    DPT_CUDA_TRY(&p->ctx.lib, cuMemGetInfo(&available, &total));
    p->lists->workspace_limit = (int64_t)total / WORKSPACE_PART;
    if (p->lists->workspace_limit < LEAST_WORKSPACE)
        p->lists->workspace_limit = LEAST_WORKSPACE;
    if (dpt_cuda_regions_sum(m, 0, own_regions(p)) > (int64_t)available)
        return fail_memory(p, guess, available, total, "", err);
    status = hold_regions(p, err);
    if (status == DPT_BAD_JOB)
        return fail_memory(p, guess, available, total, "", err);
    DPT_TRY(status);
    status = build_and_fit(p, &most, err);
    if (status == DPT_BAD_JOB && most > 0)
        return fail_memory(p, most, available, total,
                           p->spec.reproducible
                               ? "; with `comm.reduction: reproducible` no kernels that need less "
                                 "workspace are taken instead, since their bits may differ; with "
                                 "`allreduce` they are"
                               : "",
                           err);
out:
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* bf16 and the tensor cores' tf32 came with compute capability 8.0. */
static enum dpt_status check_precision(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const bool bf16 = p->spec.precision == DPT_PRECISION_BF16;
    enum dpt_status status = DPT_OK;
    char name[96] = "";
    int major;

    if (!bf16 && p->spec.precision != DPT_PRECISION_TF32)
        return DPT_OK;
    DPT_CUDA_TRY(
        &p->ctx.lib,
        cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, p->ctx.device));
    if (major >= 8)
        goto out;
    DPT_CUDA_TRY(&p->ctx.lib, cuDeviceGetName(name, sizeof name, p->ctx.device));
    status =
        dpt_fail(err, DPT_BAD_JOB,
                 "precision %s needs a GPU of compute capability 8.0 or later (A100, L4, H100), "
                 "and %s has %d.x: %s would do",
                 bf16 ? "bf16" : "tf32", name, major, bf16 ? "fp16 or fp32" : "fp32");
out:
    return status;
}

enum dpt_status dpt_cuda_set_loss_scale(struct dpt_cuda_program *p, float loss_scale,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    unsigned int bits;

    memcpy(&bits, &loss_scale, sizeof bits);
    DPT_CUDA_TRY(&p->ctx.lib,
                 cuMemsetD32Async(dpt_cuda_ptr(&p->state->loss_scale), bits, 1, p->ctx.compute));
    DPT_TRY(dpt_cuda_await_stream(&p->ctx, p->ctx.compute, err));
out:
    return status;
}

enum dpt_status dpt_cuda_program_open(const struct dpt_program_spec *spec,
                                      struct dpt_cuda_program *first, void **program,
                                      struct dpt_error *err)
{
    struct dpt_cuda_program *p = calloc(1, sizeof *p);
    enum dpt_status status = DPT_OK;

    *program = NULL;
    if (p == NULL)
        return dpt_fail_memory(err, "the model", sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->first = first != NULL ? first : p;
    p->unsound = -1;
    p->spec = *spec;
    p->ops = dpt_cuda_ops;
    p->micro = dpt_cuda_rows(spec);
    DPT_TRY(DPT_ALLOCATE(p->lists, 1, "the model", err));
    DPT_TRY(dpt_cuda_fold_graph(spec, &p->folded, err));
    p->unfolded = spec->graph;
    p->spec.graph = &p->folded;
    DPT_TRY(dpt_cuda_memory_layout_make(&p->spec, p->micro, &p->lists->memory_layout, err));
    if (first != NULL)
        dpt_cuda_context_beside(&p->ctx, &first->ctx);
    else
        DPT_TRY(dpt_cuda_context_open(&p->ctx, spec->device, err));
    p->ctx.waits = spec->waits;
    DPT_TRY(check_precision(p, err));
    DPT_TRY(dpt_cuda_event(&p->ctx, CU_EVENT_DEFAULT, &p->lists->begin, err));
    DPT_TRY(dpt_cuda_event(&p->ctx, CU_EVENT_DEFAULT, &p->lists->end, err));
    p->lists->cache = dpt_cuda_cache_open(spec->reproducible ? NULL : spec->cache);
    DPT_TRY(hold_all(p, err));
    DPT_TRY(dpt_cuda_set_loss_scale(p, 1, err)); /* no scaling */
    /* A plan chosen for the memory that others leave today may be slower than the cached one. */
    if (!p->lists->refitted)
        dpt_cuda_cache_save(p->lists->cache);
    p->spec.cache = p->spec.plans = NULL; /* borrowed for the call */
    *program = p;
out:
    if (status != DPT_OK)
        dpt_cuda_program_close(p);
    return status;
}

void dpt_cuda_program_close(void *program)
{
    struct dpt_cuda_program *p = program;
    struct dpt_error ignored;

    if (p == NULL)
        return;
    if (p->ctx.context != NULL) {
        dpt_cuda_context_enter(&p->ctx, &ignored);
        dpt_cuda_await_all(&p->ctx);
    }
    if (p->lists != NULL) {
        dpt_cuda_lists_release(p);
        dpt_cuda_cache_close(p->lists->cache);
    }
    dpt_cuda_context_close(&p->ctx);
    pthread_mutex_destroy(&p->lock);
    free(p->folded.nodes);
    dpt_free(p->lists);
    free(p);
}

/*
 * Computed from shapes alone. Only the plans of a device determine the size of the workspace, so it
 * is estimated: the input and output of the largest convolution, which plans that change the layout
 * copy, or 32 MiB for matrix products.
 */
enum dpt_status dpt_cuda_program_measure(const struct dpt_program_spec *spec,
                                         struct dpt_program_bytes *bytes, struct dpt_error *err)
{
    struct dpt_cuda_memory_layout memory_layout = {0};
    struct dpt_program_spec folding = *spec;
    enum dpt_status status = DPT_OK;
    struct dpt_graph folded;

    DPT_TRY(dpt_cuda_fold_graph(spec, &folded, err));
    folding.graph = &folded;
    DPT_TRY(dpt_cuda_memory_layout_make(&folding, dpt_cuda_rows(spec), &memory_layout, err));
    *bytes = (struct dpt_program_bytes){
        .values = dpt_cuda_regions_sum(&memory_layout, 0, DPT_CUDA_PARAMS),
        .scratch = dpt_cuda_regions_sum(&memory_layout, DPT_CUDA_PARTIAL, DPT_CUDA_REGIONS),
        .copies = dpt_cuda_regions_sum(&memory_layout, DPT_CUDA_PARAMS, DPT_CUDA_PARTIAL),
    };
out:
    dpt_cuda_memory_layout_release(&memory_layout);
    free(folded.nodes);
    return status;
}
