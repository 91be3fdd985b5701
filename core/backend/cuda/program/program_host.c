/*
 * The backend's table: parameters, gradients and samples are in host memory, and each call waits
 * for its micro-batch. Whole steps on the device are in steps.c.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/backend.h"
#include "core/backend/cuda/program/program_norms.h"
#include "core/backend/cuda/program/program_passes.h"

/* --- train and infer -------------------------------------------------------------------------- */

/* Copies the gradient to the caller's arena, except the floats between tensors, which must not
 * change. A parameter that is not finite gets a NaN, whatever a library's ReLU made of it. */
static void hand_over(const struct dpt_cuda_program *p, float *gradient, bool add)
{
    const struct dpt_graph *graph = p->spec.graph;

    for (int32_t t = 0; t < graph->n_tensors; t++) {
        const struct dpt_tensor *tensor = &graph->tensors[t];
        const float *from = p->lists->arena + tensor->offset;
        float *to = gradient + tensor->offset;

        if (add) {
            for (int64_t i = 0; i < tensor->count; i++)
                to[i] += from[i];
        } else {
            memcpy(to, from, (size_t)tensor->count * sizeof *to);
        }
    }
    if (p->first->unsound >= 0)
        gradient[p->first->unsound] = NAN;
}

static enum dpt_status train_alone(struct dpt_cuda_program *p, const struct dpt_batch *batch,
                                   float *gradient, bool add, struct dpt_metric_sums *metric_sums,
                                   struct dpt_error *err)
{
    const int32_t sub_batches = (batch->count + p->micro - 1) / p->micro;
    const size_t floats = (size_t)p->spec.graph->arena, bytes = floats * sizeof *gradient;
    enum dpt_status status = DPT_OK;
    float *sum = p->gradient;

    for (int32_t sub_batch = 0; sub_batch < sub_batches; sub_batch++) {
        DPT_TRY(dpt_cuda_send_sub_batch(p, batch, sub_batch, err));
        DPT_TRY(dpt_cuda_run_list(p, DPT_CUDA_FORWARD_LIST, true, false, err));
        DPT_TRY(dpt_cuda_enqueue_loss(p, false, NULL, err));
        DPT_TRY(dpt_cuda_enqueue_backward(p, false, NULL, NULL, err));
        DPT_TRY(dpt_cuda_enqueue_gradient(p, 0, p->spec.graph->n_nodes, false, err));
        DPT_TRY(dpt_cuda_fetch_metric_sums(p, sub_batch, err));
        DPT_TRY(dpt_cuda_add_gradient(p, batch->before + sub_batch,
                                      !batch->more && sub_batch + 1 == sub_batches, 0, floats, &sum,
                                      err));
    }
    if (bytes > 0 && !batch->more)
        DPT_TRY(dpt_cuda_to_host(&p->ctx, p->lists->arena, sum, bytes, err));
    DPT_TRY(dpt_cuda_wait(p, err));
    if (!batch->more)
        hand_over(p, gradient, add);
    for (int32_t sub_batch = 0; sub_batch < sub_batches; sub_batch++)
        dpt_cuda_add_metric_sums(&metric_sums[sub_batch], &p->lists->metric_sums[sub_batch]);
    if (p->first->unsound >= 0)
        metric_sums[0].loss = (double)NAN;
out:
    dpt_cuda_mark(p, DPT_SPAN_OTHER);
    return status;
}

static enum dpt_status train(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *gradient, bool add,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct dpt_cuda_program *p = opened;
    enum dpt_status status = DPT_OK;

    (void)params; /* the device has them since the last refresh */
    if (p->spec.team == NULL || worker == 0) {
        status = dpt_cuda_lock(p, err);
        if (status == DPT_OK)
            status = train_alone(p, batch, gradient, add, metric_sums, err);
        dpt_cuda_unlock(p, status);
    }
    if (p->spec.team != NULL)
        dpt_pool_barrier(p->spec.team);
    return status;
}

static enum dpt_status infer_alone(struct dpt_cuda_program *p, const struct dpt_batch *batch,
                                   int32_t sub_batch, float *outputs,
                                   struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    const int64_t out = p->lists->memory_layout.outputs, first = (int64_t)sub_batch * p->micro;
    const int64_t left = batch->count - first, rows = left < p->micro ? left : p->micro;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_send_sub_batch(p, batch, sub_batch, err));
    DPT_TRY(dpt_cuda_run_list(p, DPT_CUDA_FORWARD_LIST, false, false, err));
    if (metric_sums != NULL) {
        DPT_TRY(dpt_cuda_run_list(p, DPT_CUDA_LOSS_LIST, false, false, err));
        DPT_TRY(dpt_cuda_fetch_metric_sums(p, sub_batch, err));
    }
    if (outputs != NULL)
        DPT_TRY(dpt_cuda_fetch_outputs(p, rows, err));
    DPT_TRY(dpt_cuda_wait(p, err));
    if (outputs != NULL)
        memcpy(outputs + first * out, p->lists->answers, (size_t)(rows * out) * sizeof *outputs);
    if (metric_sums != NULL)
        dpt_cuda_add_metric_sums(metric_sums, &p->lists->metric_sums[sub_batch]);
out:
    dpt_cuda_mark(p, DPT_SPAN_OTHER);
    return status;
}

static enum dpt_status infer(void *opened, int worker, const struct dpt_batch *batch,
                             const float *params, float *outputs,
                             struct dpt_metric_sums *metric_sums, struct dpt_error *err)
{
    struct dpt_cuda_program *p = opened;
    enum dpt_status status = dpt_cuda_lock(p, err);

    (void)worker, (void)params;
    for (int32_t sub_batch = 0; status == DPT_OK && sub_batch * p->micro < batch->count;
         sub_batch++)
        status = infer_alone(p, batch, sub_batch, outputs, metric_sums, err);
    dpt_cuda_unlock(p, status);
    return status;
}

/* Looks for a parameter that is not finite among floats [begin, end) of the arena, and fetches its
 * number with the next wait. */
static enum dpt_status look_at_params(struct dpt_cuda_program *p, int which, size_t begin,
                                      size_t end, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    struct dpt_cuda_lists *l = p->lists;
    const size_t bytes = sizeof *l->found;
    const struct dpt_cuda_scan_args args = {
        .x = p->params + begin, .n = (int64_t)(end - begin), .found = l->found + which};
    enum dpt_status status = DPT_OK;

    l->positions[which] = INT64_MAX;
    if (begin >= end)
        return DPT_OK;
    DPT_TRY(dpt_cuda_to_device(&p->ctx, l->found + which, l->positions + which, bytes, err));
    DPT_TRY(
        dpt_cuda_launch(lib, &p->ctx.module, p->ctx.compute, DPT_CUDA_K_nonfinite_f32, &args, err));
    DPT_TRY(dpt_cuda_to_host(&p->ctx, l->positions + which, l->found + which, bytes, err));
out:
    return status;
}

/* Copies the parameters of the nodes [first, last), or of all, to the device. */
static enum dpt_status upload(struct dpt_cuda_program *p, const float *params, const float *state,
                              int32_t first, int32_t last, struct dpt_error *err)
{
    const struct dpt_graph *graph = p->spec.graph;
    /* The learned tensors, and the state. */
    const size_t begin[] = {dpt_graph_from(graph, first, false),
                            dpt_graph_from(graph, first, true)};
    const size_t end[] = {dpt_graph_from(graph, last, false), dpt_graph_from(graph, last, true)};
    const float *const from[] = {params, state};
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < 2; k++)
        if (begin[k] < end[k])
            memcpy(p->lists->arena + begin[k], from[k] + begin[k],
                   (end[k] - begin[k]) * sizeof *params);
    dpt_cuda_fold_params(p, params, state, first, last, p->lists->arena);
    for (int k = 0; k < 2; k++)
        if (begin[k] < end[k])
            DPT_TRY(dpt_cuda_to_device(&p->ctx, p->params + begin[k], p->lists->arena + begin[k],
                                       (end[k] - begin[k]) * sizeof *params, err));
    for (int k = 0; k < 2; k++)
        DPT_TRY(look_at_params(p, k, begin[k], end[k], err));
    DPT_TRY(dpt_cuda_enqueue_layouts(p, first, last, err));
    DPT_TRY(dpt_cuda_wait(p, err));
    for (int k = 0; k < 2; k++) {
        const int64_t found = (int64_t)p->lists->positions[k];

        if (p->unsound >= (int64_t)begin[k] && p->unsound < (int64_t)end[k])
            p->unsound = -1;
        if (found != INT64_MAX)
            p->unsound = (int64_t)begin[k] + found;
    }
out:
    return status;
}

static enum dpt_status refresh_nodes(void *opened, int worker, const float *params,
                                     const float *state, int32_t first, int32_t last,
                                     struct dpt_error *err)
{
    struct dpt_cuda_program *p = opened;
    enum dpt_status status;

    if (worker != 0)
        return DPT_OK;
    status = dpt_cuda_lock(p, err);
    if (status == DPT_OK)
        status = upload(p, params, state, first, last, err);
    dpt_cuda_unlock(p, status);
    return status;
}

static enum dpt_status refresh(void *opened, int worker, const float *params, struct dpt_error *err)
{
    const struct dpt_cuda_program *p = opened;

    return refresh_nodes(opened, worker, params, params, 0, p->spec.graph->n_nodes, err);
}

/* --- the rest --------------------------------------------------------------------------------- */

static enum dpt_status find_nonfinite(void *opened, int worker, const struct dpt_batch *batch,
                                      const float *params, struct dpt_nonfinite *bad,
                                      struct dpt_error *err)
{
    struct dpt_cuda_program *p = opened;
    struct dpt_program_spec unfolded = p->spec;
    enum dpt_status status;

    *bad = (struct dpt_nonfinite){-1, -1};
    unfolded.graph = p->unfolded;
    if (dpt_cuda_folds(p))
        return dpt_backend_find_plain(&dpt_backend_cuda, &unfolded, batch, params, bad, err);
    status = infer(opened, worker, batch, params, NULL, NULL, err);
    if (status != DPT_OK)
        return status;
    status = dpt_cuda_lock(p, err);
    if (status == DPT_OK)
        status = dpt_cuda_find_nonfinite(p, batch->count - p->lists->first, 0,
                                         p->spec.graph->n_nodes, bad, err);
    dpt_cuda_unlock(p, status);
    return status;
}

static void profile(void *opened, int worker, struct dpt_spans *spans)
{
    struct dpt_cuda_program *p = opened;

    if (worker != 0)
        return;
    p->lists->spans = spans;
    for (int i = 0; i < p->n_others; i++)
        p->others[i]->lists->spans = spans;
}

static enum dpt_status launches(void *opened, struct dpt_launch_cost *costs, int most, int *n,
                                struct dpt_error *err)
{
    struct dpt_cuda_program *p = opened;
    enum dpt_status status = dpt_cuda_lock(p, err);

    if (status == DPT_OK)
        status = dpt_cuda_program_costs(p, costs, most, n, err);
    dpt_cuda_unlock(p, status);
    return status;
}

static int32_t runs_in(const void *opened, int32_t node, bool backward)
{
    const struct dpt_cuda_program *p = opened;
    const struct dpt_graph *graph = p->spec.graph;
    const struct dpt_cuda_node_layout *f = &p->lists->memory_layout.node[node];

    if (dpt_cuda_is_joined(&p->lists->memory_layout, node) && !backward)
        return f->joined;
    if (dpt_operation_of(&graph->nodes[node])->kind == DPT_CLASS_NOTHING || !f->skipped)
        return node;
    return f->reader != DPT_CUDA_NONE && p->lists->memory_layout.node[f->reader].relu &&
                   dpt_cuda_ops[graph->nodes[f->reader].op]->takes_relu
               ? f->reader
               : runs_in(opened, graph->nodes[node].inputs[0], backward);
}

static enum dpt_status scale(void *opened, float loss_scale, struct dpt_error *err)
{
    struct dpt_cuda_program *p = opened;
    enum dpt_status status = dpt_cuda_lock(p, err);

    if (status == DPT_OK)
        status = dpt_cuda_set_loss_scale(p, loss_scale, err);
    dpt_cuda_unlock(p, status);
    for (int i = 0; i < p->n_others && status == DPT_OK; i++)
        status = scale(p->others[i], loss_scale, err);
    return status;
}

static int64_t bytes(const void *opened)
{
    const struct dpt_cuda_program *p = opened;
    int64_t sum = p->ctx.bytes;

    for (int i = 0; i < p->n_others; i++)
        sum += p->others[i]->ctx.bytes;
    return sum;
}

/* A GPU computes one micro-batch at a time, so its threads always share it. */
static bool teams(const struct dpt_graph *graph)
{
    (void)graph;
    return true;
}

static pthread_once_t described = PTHREAD_ONCE_INIT;
static char description[160];

static void describe_once(void)
{
    struct dpt_cuda_library lib;
    struct dpt_error ignored;

    snprintf(description, sizeof description, "no driver, cuDNN or cuBLASLt here");
    if (dpt_cuda_library_open(&lib, DPT_CUDA_NEEDED, NULL, &ignored) == DPT_OK) {
        dpt_cuda_library_text(&lib, description);
        dpt_cuda_library_close(&lib);
    }
}

static const char *describe(void)
{
    pthread_once(&described, describe_once);
    return description;
}

const struct dpt_backend dpt_backend_cuda = {
    .name = "cuda",
    .summary = "NVIDIA GPUs: cuDNN, cuBLASLt, own kernels",
    .precisions = 1u << DPT_PRECISION_FP32 | 1u << DPT_PRECISION_TF32 | 1u << DPT_PRECISION_BF16 |
                  1u << DPT_PRECISION_FP16,
    .steps = &dpt_cuda_steps,
    .devices = &dpt_cuda_devices,
    .describe = describe,
    .uses = describe,
    .numerics = 1,
    .teams = teams,
    .open = dpt_cuda_programs_open,
    .close = dpt_cuda_programs_close,
    .adds = dpt_cuda_adds,
    .bytes = bytes,
    .measure = dpt_cuda_programs_measure,
    .refresh = refresh,
    .refresh_nodes = refresh_nodes,
    .train = train,
    .forward = dpt_cuda_pass_forward,
    .loss = dpt_cuda_pass_loss,
    .backward = dpt_cuda_pass_backward,
    .value = dpt_cuda_pass_value,
    .infer = infer,
    .find_nonfinite = find_nonfinite,
    .profile = profile,
    .plans = dpt_cuda_program_plans,
    .determinism = dpt_cuda_program_determinism,
    .launches = launches,
    .runs_in = runs_in,
    .scale = scale,
};
