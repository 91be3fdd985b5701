/* Opening a program: memory, lists, workspace; what does not fit; what a spec would take. */
#include "core/backend/cuda/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program_private.h"

enum { ALIGN = 256, WORKSPACE_PART = 16, LEAST_WORKSPACE = 64 << 20 };

/* --- memory that does not suffice ------------------------------------------------------------- */

/* Bytes that a program for this spec would hold with micro-batches of m; -1: none can be made.
 * workspace: of the plans for `micro`, or 0. */
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
        sum = dpt_cuda_sizes_sum(&memory_layout.sizes) - memory_layout.sizes.workspace +
              (int64_t)((double)workspace * m / rows);
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

static enum dpt_status fail_memory(const struct dpt_cuda_program *p, int64_t workspace,
                                   size_t available, size_t total, struct dpt_error *err)
{
    const struct dpt_cuda_sizes *s = &p->lists->memory_layout.sizes;
    const int64_t parameters = s->arenas + s->copies + s->dweights + s->levels;
    const int64_t values = s->values + s->rows + s->inputs, gradients = s->dy[0] + s->dy[1];
    const int64_t sum = values + gradients + parameters + s->sums + workspace;
    const int32_t fits = largest_micro(&p->spec, workspace, (int64_t)available);
    char text[7][24], advice[160];

    if (fits > 0)
        snprintf(advice, sizeof advice, "batch.micro: %d should fit", fits);
    else
        snprintf(advice, sizeof advice,
                 "no batch.micro fits: a smaller model, another GPU, or one that others use less");
    return dpt_fail(err, DPT_BAD_JOB,
                    "the GPU's memory is too small for micro-batches of %d: %s are needed (the "
                    "layers' outputs %s, their gradients %s, parameters with gradients and copies "
                    "%s, workspace %s), and %s of its %s are free; %s",
                    p->micro, dpt_cuda_bytes_text(sum, text[0]),
                    dpt_cuda_bytes_text(values, text[1]), dpt_cuda_bytes_text(gradients, text[2]),
                    dpt_cuda_bytes_text(parameters, text[3]),
                    dpt_cuda_bytes_text(s->sums + workspace, text[4]),
                    dpt_cuda_bytes_text((int64_t)available, text[5]),
                    dpt_cuda_bytes_text((int64_t)total, text[6]), advice);
}

/* --- memory ----------------------------------------------------------------------------------- */

static enum dpt_status hold_inputs(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_graph *graph = p->spec.graph;
    const int64_t micro = p->micro, in = dpt_shape_size(&graph->nodes[0].out),
                  out = p->lists->memory_layout.outputs;
    const struct {
        const char *what;
        int64_t bytes;
        void **at;
    } rows[] = {
        {"the step's numbers", sizeof *p->control, (void **)&p->control},
        {"the step's state", sizeof *p->state, (void **)&p->state},
        {"the metric sums", sizeof *p->metric_sums, (void **)&p->metric_sums},
        {"the samples", micro * in * 4, (void **)&p->input},
        {"the labels", micro * 4, (void **)&p->labels},
        {"the samples' weights", micro * 4, (void **)&p->weights},
        {"the targets", micro * out * 4, (void **)&p->targets},
        {"the samples' numbers", micro * 8, (void **)&p->sample},
        {"the samples' moves", micro * (int64_t)sizeof *p->move, (void **)&p->move},
    };
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        DPT_TRY(dpt_cuda_hold(&p->ctx, rows[i].what, rows[i].bytes, rows[i].at, err));
out:
    return status;
}

static enum dpt_status hold_values(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_cuda_sizes *s = &l->memory_layout.sizes;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_hold(&p->ctx, "the layers' outputs", s->values, (void **)&l->values, err));
    for (int k = 0; k < 2; k++)
        DPT_TRY(dpt_cuda_hold(&p->ctx, "their gradients", s->dy[k], (void **)&l->dy[k], err));
    DPT_TRY(dpt_cuda_hold(&p->ctx, "the outputs", s->rows, (void **)&l->rows, err));
    l->drows = l->rows + s->rows / 2 / (int64_t)sizeof(float);
    p->outputs = dpt_cuda_value(p, l->memory_layout.last);
    p->outputs_pitch = l->memory_layout.node[l->memory_layout.last].pitch;
    if (l->memory_layout.canonical) {
        p->outputs = l->rows;
        p->outputs_pitch = (int32_t)l->memory_layout.outputs;
    }
out:
    return status;
}

static enum dpt_status hold_parameters(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_cuda_sizes *s = &l->memory_layout.sizes;
    const int64_t floats = p->spec.graph->floats * (int64_t)sizeof(float);
    const int64_t tail = DPT_TENSOR_ALIGN * (int64_t)sizeof(float);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_hold(&p->ctx, "the parameters", floats, (void **)&p->params, err));
    if (p->spec.training)
        DPT_TRY(dpt_cuda_hold(&p->ctx, "the gradient", floats + tail, (void **)&p->gradient, err));
    DPT_TRY(
        dpt_cuda_hold(&p->ctx, "copies of the parameters", s->copies, (void **)&l->copies, err));
    DPT_TRY(
        dpt_cuda_hold(&p->ctx, "the weights' gradients", s->dweights, (void **)&l->dweights, err));
    for (int k = 0; k < l->memory_layout.levels; k++)
        DPT_TRY(dpt_cuda_hold(&p->ctx, "sums of gradients", floats, (void **)&l->level[k], err));
out:
    return status;
}

static enum dpt_status hold_sums(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const int64_t blocks = (p->micro + DPT_CUDA_LOSS_ROWS - 1) / DPT_CUDA_LOSS_ROWS;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_hold(&p->ctx, "sums", l->memory_layout.partial * 4, (void **)&l->sums, err));
    DPT_TRY(dpt_cuda_hold(&p->ctx, "counters", l->memory_layout.counters * 4, (void **)&l->counters,
                          err));
    DPT_TRY(dpt_cuda_hold(&p->ctx, "losses", blocks * DPT_CUDA_LOSS_SUMS * 8, (void **)&l->losses,
                          err));
    DPT_TRY(dpt_cuda_hold(&p->ctx, "numbers of samples", p->spec.graph->n_nodes * (int64_t)8,
                          (void **)&l->found, err));
out:
    return status;
}

/* As large as the chosen plans need. */
static enum dpt_status hold_workspace(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    enum dpt_status status = DPT_OK;

    for (const struct dpt_cuda_math *m = l->maths; m != NULL; m = m->next) {
        if (m->needs > l->workspace_bytes)
            l->workspace_bytes = m->needs;
    }
    DPT_TRY(
        dpt_cuda_hold(&p->ctx, "the workspace", l->workspace_bytes, (void **)&l->workspace, err));
    for (struct dpt_cuda_math *m = l->maths; m != NULL; m = m->next)
        DPT_TRY(dpt_cuda_bind(p, m, l->workspace, err));
out:
    return status;
}

/* It fails as a whole, and says so as a whole. Before plans are chosen the workspace is a guess. */
static enum dpt_status hold_all(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_cuda_sizes *s = &p->lists->memory_layout.sizes;
    enum dpt_status status = DPT_OK;
    size_t available, total;

    DPT_CUDA_TRY(&p->ctx.lib, cuMemGetInfo(&available, &total));
    p->lists->workspace_limit = (int64_t)total / WORKSPACE_PART;
    if (p->lists->workspace_limit < LEAST_WORKSPACE)
        p->lists->workspace_limit = LEAST_WORKSPACE;
    if (dpt_cuda_sizes_sum(s) - s->workspace > (int64_t)available)
        return fail_memory(p, s->workspace, available, total, err);
    status = hold_inputs(p, err);
    if (status == DPT_OK)
        status = hold_values(p, err);
    if (status == DPT_OK)
        status = hold_parameters(p, err);
    if (status == DPT_OK)
        status = hold_sums(p, err);
    if (status == DPT_BAD_JOB)
        return fail_memory(p, s->workspace, available, total, err);
    DPT_TRY(status);
    DPT_TRY(dpt_cuda_lists_build(p, err));
    status = hold_workspace(p, err);
    if (status == DPT_BAD_JOB)
        return fail_memory(p, p->lists->workspace_bytes, available, total, err);
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

/* A loss scale of 1: none. */
static enum dpt_status set_state(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const float one = 1;
    enum dpt_status status = DPT_OK;
    unsigned int bits;

    memcpy(&bits, &one, sizeof bits);
    DPT_CUDA_TRY(&p->ctx.lib, cuMemsetD32Async((CUdeviceptr)(uintptr_t)&p->state->loss_scale, bits,
                                               1, p->ctx.compute));
    DPT_CUDA_TRY(&p->ctx.lib, cuStreamSynchronize(p->ctx.compute));
out:
    return status;
}

enum dpt_status dpt_cuda_program_open(const struct dpt_program_spec *spec,
                                      struct dpt_cuda_program **program, struct dpt_error *err)
{
    struct dpt_cuda_program *p = calloc(1, sizeof *p);
    enum dpt_status status = DPT_OK;

    *program = NULL;
    if (p == NULL)
        return dpt_fail_memory(err, "the model", sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->spec = *spec;
    p->micro = dpt_cuda_rows(spec);
    p->lists = calloc(1, sizeof *p->lists);
    if (p->lists == NULL) {
        status = dpt_fail_memory(err, "the model", sizeof *p->lists);
        goto out;
    }
    DPT_TRY(dpt_cuda_memory_layout_make(spec, p->micro, &p->lists->memory_layout, err));
    DPT_TRY(dpt_cuda_context_open(&p->ctx, spec->device, err));
    DPT_TRY(check_precision(p, err));
    DPT_CUDA_TRY(&p->ctx.lib, cuEventCreate(&p->lists->begin, CU_EVENT_DEFAULT));
    DPT_CUDA_TRY(&p->ctx.lib, cuEventCreate(&p->lists->end, CU_EVENT_DEFAULT));
    p->lists->cache = dpt_cuda_cache_open(spec->reproducible ? NULL : spec->cache);
    DPT_TRY(hold_all(p, err));
    DPT_TRY(set_state(p, err));
    dpt_cuda_cache_save(p->lists->cache);
    p->spec.cache = p->spec.plans = NULL; /* borrowed for the call */
    *program = p;
out:
    if (status != DPT_OK)
        dpt_cuda_program_close(p);
    return status;
}

void dpt_cuda_program_close(struct dpt_cuda_program *p)
{
    struct dpt_error ignored;

    if (p == NULL)
        return;
    if (p->ctx.context != NULL) {
        dpt_cuda_context_enter(&p->ctx, &ignored);
        p->ctx.lib.cuCtxSynchronize();
    }
    if (p->lists != NULL) {
        dpt_cuda_lists_release(p);
        if (p->lists->begin != NULL)
            p->ctx.lib.cuEventDestroy(p->lists->begin);
        if (p->lists->end != NULL)
            p->ctx.lib.cuEventDestroy(p->lists->end);
        dpt_cuda_cache_close(p->lists->cache);
    }
    dpt_cuda_context_close(&p->ctx);
    pthread_mutex_destroy(&p->lock);
    free(p->lists);
    free(p);
}

/*
 * From shapes alone. The workspace is what only the plans of a device tell: here it is guessed as
 * the input and output of the largest convolution, which engines that change the layout copy, or 32
 * MiB for products.
 */
enum dpt_status dpt_cuda_program_measure(const struct dpt_program_spec *spec,
                                         struct dpt_program_bytes *bytes, struct dpt_error *err)
{
    struct dpt_cuda_memory_layout memory_layout;
    const struct dpt_cuda_sizes *s = &memory_layout.sizes;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_memory_layout_make(spec, dpt_cuda_rows(spec), &memory_layout, err));
    *bytes = (struct dpt_program_bytes){
        .values = s->values + s->dy[0] + s->dy[1] + s->rows + s->inputs,
        .scratch = s->sums + s->workspace,
        .copies = s->arenas + s->copies + s->dweights + s->levels,
    };
out:
    dpt_cuda_memory_layout_release(&memory_layout);
    return status;
}
