/*
 * Passes over ranges of nodes (struct dpt_pass), for synchronized batch norms and pipeline stages.
 *
 * Each micro-batch in flight has a program of its own: so its samples, activations and their
 * gradients stay on the device from pass to pass. Plans and parameters, and memory that is only
 * used within a pass, are the first program's. The lists are those of a whole pass; for a range
 * only the entries of its nodes run. A synchronized norm sums over its micro-batch at the end of
 * one range, and normalises at the beginning of the next one, by statistics that the host writes in
 * between, from the sums of all micro-batches. program_stage.c has what a stage gets and gives.
 *
 * The first thread of a team computes. The others return at once, since nobody looks at the results
 * of a pass before all have returned from dpt_pool_run.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program_norms.h"
#include "core/backend/cuda/program/program_passes.h"
#include "core/backend/cuda/program/program_stage.h"
#include "core/base/str.h"

/* --- a program for each micro-batch ----------------------------------------------------------- */

static bool is_norm(const struct dpt_cuda_program *p, int32_t i)
{
    return i > 0 && i < p->spec.graph->n_nodes && p->spec.graph->nodes[i].whole_step;
}

/* The number of programs for micro-batches in flight. A team computes one micro-batch at a time. */
static int count_of(const struct dpt_program_spec *spec)
{
    const int in_flight = spec->in_flight > 1 ? spec->in_flight : 1;

    if (spec->team != NULL)
        return in_flight;
    for (int32_t i = 0; spec->training && i < spec->graph->n_nodes; i++)
        if (spec->graph->nodes[i].whole_step)
            return spec->threads * in_flight;
    return in_flight > 1 ? spec->threads * in_flight : 1;
}

/* Reports that memory for the other micro-batches' programs is missing, although the first one's
 * fitted. */
static enum dpt_status fail_memory(const struct dpt_cuda_program *p, int n, struct dpt_error *err)
{
    size_t available = 0, total = 0;
    char text[2][32];

    p->ctx.lib.cuMemGetInfo(&available, &total);
    return dpt_fail(err, DPT_BAD_JOB,
                    "the GPU's memory is too small for %s: all %d micro-batches "
                    "that this rank has %s are there at once, and after %d of them %s of "
                    "its %s are free; take more GPUs, %s",
                    dpt_cuda_is_stage(p) ? "its stage" : "`statistics: batch`", n,
                    dpt_cuda_is_stage(p) ? "under way" : "of a step", p->n_others + 1,
                    dpt_show_bytes((double)available, text[0]),
                    dpt_show_bytes((double)total, text[1]),
                    dpt_cuda_is_stage(p) ? "a smaller batch.micro, or `schedule: 1f1b`"
                                         : "a smaller batch.global, or `statistics: micro`");
}

static struct dpt_cuda_program *program_of(const struct dpt_cuda_program *p, int worker, int flight)
{
    const int number = worker * (p->spec.in_flight > 1 ? p->spec.in_flight : 1) + flight;

    return number == 0 ? p->first : p->others[number - 1];
}

struct dpt_cuda_program *dpt_cuda_flight(const struct dpt_cuda_program *p, int flight)
{
    return program_of(p, 0, flight);
}

float *dpt_cuda_pass_value(const void *program, int worker, int flight, int32_t node, bool gradient,
                           size_t *floats)
{
    return dpt_cuda_stage_value(program_of(program, worker, flight), node, gradient, floats);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Opens the others, with the plans of the first one. */
static enum dpt_status open_others(struct dpt_cuda_program *p, const struct dpt_program_spec *spec,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_program_spec alone = *spec;
    struct dpt_str plans = {0};
    const int n = count_of(spec);

    if (n == 1)
        return DPT_OK;
    dpt_cuda_program_plans(p, &plans);
    p->others = calloc((size_t)n - 1, sizeof(void *));
    if (p->others == NULL || plans.failed)
        DPT_TRY(dpt_fail_memory(err, "the model", (double)n * sizeof(void *)));
    alone.threads = alone.in_flight = 1;
    alone.plans = plans.text;
    while (p->n_others < n - 1) {
        void *other;

        status = dpt_cuda_program_open(&alone, p, &other, err);
        if (status == DPT_BAD_JOB)
            status = fail_memory(p, n, err);
        DPT_TRY(status);
        p->others[p->n_others++] = other;
    }
out:
    dpt_str_release(&plans);
    return status;
}

void dpt_cuda_programs_close(void *program)
{
    struct dpt_cuda_program *p = program;

    for (int i = 0; p != NULL && i < p->n_others; i++)
        dpt_cuda_program_close(p->others[i]);
    if (p != NULL)
        free(p->others);
    dpt_cuda_program_close(p);
}

enum dpt_status dpt_cuda_programs_open(const struct dpt_program_spec *spec, void **program,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_program *p;

    DPT_TRY(dpt_cuda_program_open(spec, NULL, program, err));
    p = *program;
    DPT_TRY(open_others(p, spec, err));
    DPT_TRY(dpt_cuda_hold_edges(p, err));
    for (int i = 0; i < p->n_others; i++)
        DPT_TRY(dpt_cuda_hold_edges(p->others[i], err));
    DPT_TRY(dpt_cuda_hold_sums(p, err));
out:
    if (status != DPT_OK) {
        dpt_cuda_programs_close(*program);
        *program = NULL;
    }
    return status;
}

enum dpt_status dpt_cuda_programs_measure(const struct dpt_program_spec *spec,
                                          struct dpt_program_bytes *bytes, struct dpt_error *err)
{
    const int n = count_of(spec);
    enum dpt_status status = dpt_cuda_program_measure(spec, bytes, err);

    if (status == DPT_OK) {
        bytes->values *= n;
        bytes->sums = dpt_cuda_sums_bytes(spec);
    }
    return status;
}

/* --- what a norm sums, and what it normalises by ---------------------------------------------- */

static float *statistics_of(const struct dpt_cuda_program *p, int32_t norm)
{
    return (float *)(void *)(p->lists->values + dpt_cuda_node_layout_of(p, norm)->saved);
}

/* The number of values per channel that the statistics cover. */
static double numbers_of(const struct dpt_graph_node *node, const struct dpt_pass *pass)
{
    return (double)pass->samples * node->in.h * node->in.w;
}

/* Writes the rows of `statistics` that the kernels read forward, or those that they read
 * backward. */
static enum dpt_status send_statistics(struct dpt_cuda_program *p, int32_t norm, bool backward,
                                       const struct dpt_pass *pass, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[norm];
    const size_t channels = (size_t)node->in.c,
                 pitch = (size_t)dpt_cuda_node_layout_of(p, norm)->pitch;
    const double n = numbers_of(node, pass), eps = (double)node->attribute[DPT_BATCHNORM_EPS];
    const size_t n_rows =
        backward ? DPT_CUDA_STATISTICS - DPT_CUDA_STATISTICS_FORWARD : DPT_CUDA_STATISTICS_FORWARD;
    float *rows = p->lists->norm_rows;

    memset(rows, 0, n_rows * pitch * sizeof *rows);
    for (size_t c = 0; c < channels; c++) {
        const double first = pass->all[c], second = pass->all[channels + c] / n;
        const double scale = 1 / sqrt(second + eps);

        rows[c] = (float)(backward ? first / n : first);
        rows[pitch + c] = (float)(backward ? second : scale);
        if (!backward)
            rows[2 * pitch + c] = DPT_NORM_REST(first, scale);
    }
    return dpt_cuda_to_device(
        &p->ctx, statistics_of(p, norm) + (backward ? DPT_CUDA_STATISTICS_FORWARD * pitch : 0),
        rows, n_rows * pitch * sizeof *rows, err);
}

static enum dpt_status fetch_sums(struct dpt_cuda_program *p, int32_t norm, struct dpt_error *err)
{
    const size_t pitch = (size_t)dpt_cuda_node_layout_of(p, norm)->pitch;

    return dpt_cuda_to_host(&p->ctx, p->lists->norm_sums,
                            statistics_of(p, norm) + DPT_CUDA_STATISTICS * pitch,
                            2 * pitch * sizeof(double), err);
}

/* A norm that passes nothing back has no sums. */
static void give_sums(const struct dpt_cuda_program *p, int32_t norm, bool summed, double *own)
{
    const size_t channels = (size_t)p->spec.graph->nodes[norm].in.c,
                 pitch = (size_t)dpt_cuda_node_layout_of(p, norm)->pitch;

    memset(own, 0, 2 * channels * sizeof *own);
    for (size_t row = 0; summed && row < 2; row++)
        memcpy(own + row * channels, p->lists->norm_sums + row * pitch, channels * sizeof *own);
}

/* --- gradients and state ---------------------------------------------------------------------- */

/* Whether the device computes the sum for a tensor of a node; else the sum is zero. */
static bool is_computed(const struct dpt_cuda_program *p, int32_t node, int32_t tensor)
{
    return dpt_cuda_node_layout_of(p, node)->live && !dpt_cuda_tensor_of(p, tensor)->frozen;
}

/* from: an arena on the device. */
static enum dpt_status fetch(struct dpt_cuda_program *p, const float *from, int32_t node,
                             const int32_t tensors[2], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < 2; k++) {
        const struct dpt_tensor *t = tensors[k] < 0 ? NULL : dpt_cuda_tensor_of(p, tensors[k]);

        if (t != NULL && is_computed(p, node, tensors[k]))
            DPT_TRY(dpt_cuda_to_host(&p->ctx, p->lists->arena + t->offset, from + t->offset,
                                     (size_t)t->count * sizeof(float), err));
    }
out:
    return status;
}

/* Writes what was fetched to the caller's arena, or adds it. */
static void give(const struct dpt_cuda_program *p, int32_t node, const int32_t tensors[2],
                 const struct dpt_pass *pass)
{
    for (int k = 0; k < 2; k++) {
        const struct dpt_tensor *t = tensors[k] < 0 ? NULL : dpt_cuda_tensor_of(p, tensors[k]);
        const bool computed = t != NULL && is_computed(p, node, tensors[k]);

        for (int64_t i = t != NULL ? t->offset : 0; t != NULL && i < t->offset + t->count; i++) {
            const float x = computed ? p->lists->arena[i] : 0;

            pass->gradient[i] = pass->add ? pass->gradient[i] + x : x; /* -0 stays what it is */
            if (i == p->first->unsound)
                pass->gradient[i] = NAN; /* as hand_over in program_host.c */
        }
    }
}

/* The micro-batch's contribution to the running statistics of a synchronized norm. */
static void give_state(const struct dpt_cuda_program *p, int32_t norm, const struct dpt_pass *pass)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[norm];
    const double n = numbers_of(node, pass), samples = (double)pass->batch->count;
    float *means = p->lists->arena + dpt_cuda_tensor_of(p, node->mean)->offset;
    float *variances = p->lists->arena + dpt_cuda_tensor_of(p, node->variance)->offset;

    for (int32_t c = 0; c < node->in.c; c++) {
        means[c] = (float)(samples * pass->all[c]);
        variances[c] = (float)(samples * pass->all[node->in.c + c] / (n > 1 ? n - 1 : 1));
    }
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Waits for everything enqueued; messages of other micro-batches are passed on meanwhile. */
static enum dpt_status wait_for(struct dpt_cuda_program *p, const struct dpt_pass *pass,
                                struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    CUresult result = CUDA_ERROR_NOT_READY;
    enum dpt_status status = DPT_OK;

    if (pass->between == NULL)
        return dpt_cuda_wait(p, err);
    DPT_CUDA_TRY(lib, cuEventRecord(p->lists->end, p->ctx.compute));
    while (result == CUDA_ERROR_NOT_READY) {
        pass->between(pass->arg);
        result = lib->cuEventQuery(p->lists->end);
    }
    status = dpt_cuda_check(lib, result, "cuEventQuery", err);
out:
    return status;
}

/* Searches a node's parameters. */
static enum dpt_status search_params(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const int32_t tensors[] = {node->weight, node->bias, node->mean, node->variance};
    enum dpt_status status = DPT_OK;

    for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
        const struct dpt_tensor *t = tensors[k] < 0 ? NULL : dpt_cuda_tensor_of(p, tensors[k]);

        if (t != NULL)
            DPT_TRY(dpt_cuda_launch(
                &p->ctx.lib, &p->ctx.module, p->ctx.compute, DPT_CUDA_K_nonfinite_f32,
                &(struct dpt_cuda_scan_args){.x = dpt_cuda_at(p, p->params, t->offset),
                                             .n = t->count,
                                             .found = p->lists->found + p->spec.graph->n_nodes + i},
                err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_find_nonfinite(struct dpt_cuda_program *p, int32_t count, int32_t first,
                                        int32_t last, struct dpt_nonfinite *bad,
                                        struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const int32_t n = p->spec.graph->n_nodes;
    struct dpt_cuda_lists *l = p->lists;
    const size_t bytes = 2 * (size_t)n * sizeof *l->found;
    enum dpt_status status = DPT_OK;

    for (int32_t i = 0; i < 2 * n; i++)
        l->positions[i] = INT64_MAX;
    DPT_TRY(dpt_cuda_to_device(&p->ctx, l->found, l->positions, bytes, err));
    for (int32_t i = first; i < last; i++) {
        const struct dpt_cuda_node_layout *f = &l->memory_layout.node[i];
        const bool joined = dpt_cuda_is_joined(&l->memory_layout, i);
        const struct dpt_cuda_scan_args args = {.x = joined ? dpt_cuda_gradient(p, f->dy)
                                                            : dpt_cuda_value(p, i),
                                                .n = (int64_t)count * f->h * f->w * f->pitch,
                                                .found = l->found + i};

        if (joined)
            DPT_TRY(dpt_cuda_norm_alone(p, i, err));
        if (f->live && f->tensor == i)
            DPT_TRY(dpt_cuda_launch(lib, &p->ctx.module, p->ctx.compute,
                                    dpt_cuda_typed(p, DPT_CUDA_K_nonfinite_f32), &args, err));
        if (f->live)
            DPT_TRY(search_params(p, i, err));
    }
    DPT_TRY(dpt_cuda_to_host(&p->ctx, l->positions, l->found, bytes, err));
    DPT_TRY(dpt_cuda_wait(p, err));
    for (int32_t i = first; i < last && bad->node < 0; i++) {
        const struct dpt_cuda_node_layout *f = &l->memory_layout.node[i];
        const int64_t at = (int64_t)l->positions[i];

        /* Parameters that are not finite concern all samples. */
        if (at != INT64_MAX)
            *bad = (struct dpt_nonfinite){i, l->first +
                                                 (int32_t)(at / ((int64_t)f->h * f->w * f->pitch))};
        else if (l->positions[n + i] != INT64_MAX)
            *bad = (struct dpt_nonfinite){i, l->first};
    }
out:
    return status;
}

static enum dpt_status forward_alone(struct dpt_cuda_program *p, const struct dpt_pass *pass,
                                     struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const struct dpt_graph_node *nodes = p->spec.graph->nodes;
    const int32_t end = pass->last;
    const bool sums = is_norm(p, end) && dpt_cuda_node_layout_of(p, end)->live;
    enum dpt_status status = DPT_OK;

    (void)metric_sums;
    if (pass->first == p->spec.first)
        DPT_TRY(dpt_cuda_send_sub_batch(p, pass->batch, 0, err));
    if (pass->first == p->spec.first) /* in units (core/train/mesh/units.h) the first one gets it */
        DPT_TRY(dpt_cuda_move_edge(p, DPT_CUDA_EDGE_IN, false, err));
    if (is_norm(p, pass->first) && dpt_cuda_node_layout_of(p, pass->first)->live)
        DPT_TRY(send_statistics(p, pass->first, false, pass, err));
    DPT_TRY(dpt_cuda_enqueue_range(p, DPT_CUDA_FORWARD_LIST, pass->first, end, end, !pass->infers,
                                   err));
    if (end == p->spec.last)
        DPT_TRY(dpt_cuda_move_edge(p, DPT_CUDA_EDGE_OUT, false, err));
    if (pass->infers && end == p->spec.graph->n_nodes)
        DPT_TRY(dpt_cuda_fetch_outputs(p, pass->batch->count, err));
    if (sums)
        DPT_TRY(fetch_sums(p, end, err));
    for (int32_t i = pass->first; i < end; i++)
        if (!is_norm(p, i) && !pass->infers)
            DPT_TRY(
                fetch(p, p->gradient, i, (const int32_t[]){nodes[i].mean, nodes[i].variance}, err));
    DPT_TRY(wait_for(p, pass, err));
    if (pass->nonfinite != NULL && pass->nonfinite->node < 0)
        DPT_TRY(
            dpt_cuda_find_nonfinite(p, pass->batch->count, pass->first, end, pass->nonfinite, err));
    for (int32_t i = pass->first; i < end && !pass->infers; i++) {
        if (is_norm(p, i))
            give_state(p, i, pass);
        give(p, i, (const int32_t[]){nodes[i].mean, nodes[i].variance}, pass);
    }
    if (is_norm(p, end))
        give_sums(p, end, sums, pass->own);
out:
    return status;
}

static enum dpt_status backward_alone(struct dpt_cuda_program *p, const struct dpt_pass *pass,
                                      struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const struct dpt_graph_node *nodes = p->spec.graph->nodes;
    const int32_t end = pass->first - 1;
    const int32_t begin =
        pass->last > pass->first && is_norm(p, pass->last - 1) ? pass->last - 1 : DPT_CUDA_NONE;
    const bool sums = is_norm(p, end) && dpt_cuda_node_layout_of(p, end)->wants_dy;
    const int32_t last = begin != DPT_CUDA_NONE ? begin : pass->last; /* of those with gradients */
    const int32_t first = is_norm(p, end) ? end : pass->first;
    const bool more = pass->batch->more;
    enum dpt_status status = DPT_OK;
    float *sum;

    (void)metric_sums;
    if (begin != DPT_CUDA_NONE && dpt_cuda_node_layout_of(p, begin)->wants_dy)
        DPT_TRY(send_statistics(p, begin, true, pass, err));
    if (pass->last == p->spec.last)
        DPT_TRY(dpt_cuda_move_edge(p, DPT_CUDA_EDGE_OUT, true, err));
    DPT_TRY(
        dpt_cuda_enqueue_range(p, DPT_CUDA_BACKWARD_LIST, pass->first, pass->last, end, true, err));
    if (pass->first == p->spec.first)
        DPT_TRY(dpt_cuda_move_edge(p, DPT_CUDA_EDGE_IN, true, err));
    DPT_TRY(dpt_cuda_enqueue_gradient(p, pass->first, pass->last, false, err));
    DPT_TRY(dpt_cuda_add_gradient(p, pass->batch->before, !more,
                                  dpt_graph_from(p->spec.graph, first, false),
                                  dpt_graph_from(p->spec.graph, last, false), &sum, err));
    if (sums)
        DPT_TRY(fetch_sums(p, end, err));
    for (int32_t i = first; i < last && !more; i++)
        DPT_TRY(fetch(p, sum, i, (const int32_t[]){nodes[i].weight, nodes[i].bias}, err));
    DPT_TRY(wait_for(p, pass, err));
    for (int32_t i = first; i < last && !more; i++)
        give(p, i, (const int32_t[]){nodes[i].weight, nodes[i].bias}, pass);
    if (is_norm(p, end))
        give_sums(p, end, sums, pass->own);
out:
    return status;
}

static enum dpt_status loss_alone(struct dpt_cuda_program *p, const struct dpt_pass *pass,
                                  struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_run_list(p, DPT_CUDA_LOSS_LIST, !pass->infers, false, err));
    DPT_TRY(dpt_cuda_fetch_metric_sums(p, 0, err));
    DPT_TRY(dpt_cuda_wait(p, err));
    dpt_cuda_add_metric_sums(metric_sums, &p->lists->metric_sums[0]);
out:
    return status;
}

/* One of the three above. */
typedef enum dpt_status pass_fn(struct dpt_cuda_program *p, const struct dpt_pass *pass,
                                struct dpt_metric_sums *metric_sums, struct dpt_error *err);

static enum dpt_status run_pass(pass_fn *run, void *program, int worker,
                                const struct dpt_pass *pass, struct dpt_metric_sums *metric_sums,
                                struct dpt_error *err)
{
    struct dpt_cuda_program *p = program;
    enum dpt_status status;

    if (p->spec.team != NULL && worker != 0)
        return DPT_OK;
    p = program_of(p, worker, pass->flight);
    status = dpt_cuda_lock(p, err);
    if (status == DPT_OK)
        status = run(p, pass, metric_sums, err);
    dpt_cuda_unlock(p, status);
    return status;
}

enum dpt_status dpt_cuda_pass_forward(void *program, int worker, const struct dpt_pass *pass,
                                      struct dpt_error *err)
{
    return run_pass(forward_alone, program, worker, pass, NULL, err);
}

enum dpt_status dpt_cuda_pass_loss(void *program, int worker, const struct dpt_pass *pass,
                                   struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    return run_pass(loss_alone, program, worker, pass, metric_sums, err);
}

enum dpt_status dpt_cuda_pass_backward(void *program, int worker, const struct dpt_pass *pass,
                                       struct dpt_error *err)
{
    return run_pass(backward_alone, program, worker, pass, NULL, err);
}
