#include "core/backend/bf16.h"
#include "core/backend/cpu/bf16/bf16_conv.h"
#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/fp32/sparse.h"
#include "core/backend/cpu/fp32/winograd.h"
#include "core/backend/cpu/layers/conv_weights.h"
#include "core/backend/cpu/program/program.h"
#include "core/backend/fold.h"
#include "core/base/memory.h"

/*
 * Each pass may want its weights in an order of its own. Copies in these orders, shared by all
 * workers, are updated in refresh; the gradient of the weights comes in such an order too and is
 * put into the canonical one.
 */
struct copy {
    int call; /* canonical order -> the pass's; NONE: the pass is not wanted */
    float *weights;
};

struct conv {
    struct dpt_conv_shape shape;
    struct dpt_conv_kernels kernels; /* those not yet made into calls */
    struct copy forward_weights, data_weights;
    int forward, data; /* calls */
    struct dpt_conv_weights weights;
    /* Buffers of the operands: what the node reads, in forward and in backward, and the gradient of
     * its output, or of its pool's; the nodes' buffers, or rounded copies. */
    int x, back_x, dy;
    int64_t n_weights;
    struct dpt_bf16_conv *bf16; /* all passes, if the CPU has instructions for it */
    float *bf16_weights, *bf16_data;
    struct dpt_winograd winograd; /* forward, if it has kernels */
    float *winograd_weights;
    struct dpt_sparse *sparse; /* the backward passes, if the pool is `listed`; else NULL */
    float *sparse_weights;
    int sparse_scratch; /* buffer */
    float
        *folded_bias; /* with a batch norm in the weights: zeros up to a multiple of 16 after it */
};

struct dpt_conv_shape dpt_cpu_conv_shape(const struct dpt_cpu_program *program,
                                         const struct dpt_cpu_node *node)
{
    return (struct dpt_conv_shape){.n = program->spec.micro,
                                   .in_channels = node->in.c,
                                   .out_channels = node->out.c,
                                   .in = {node->in.h, node->in.w},
                                   .out = {node->out.h, node->out.w},
                                   .window = node->graph->window,
                                   .bias = node->graph->bias >= 0 || node->norm != NULL};
}

/* Whether the backward passes work on lists. */
static bool lists(const struct dpt_cpu_node *node)
{
    return node->pool != NULL && node->pool->listed;
}

/* Requests oneDNN's kernels for the passes that our own kernels do not compute. */
static struct dpt_conv_request request_of(const struct dpt_cpu_program *program,
                                          const struct dpt_cpu_node *node)
{
    const bool backward = program->spec.training && !lists(node);

    return (struct dpt_conv_request){.dnnl = program->dnnl,
                                     .name = node->name,
                                     .shape = dpt_cpu_conv_shape(program, node),
                                     .data = backward && node->wants_dx,
                                     .weights = backward};
}

static enum dpt_status open_copy(struct dpt_cpu_program *program, const struct dpt_cpu_node *node,
                                 const struct dpt_kernel *kernel, struct copy *copy,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct conv *conv = node->own;
    struct dpt_kernel *pack;

    dpt_cpu_copy(program, node, kernel->floats[DPT_ROLE_W], &copy->weights);
    DPT_TRY(dpt_kernel_reorder_weights(program->dnnl, &conv->shape, kernel, DPT_WEIGHTS_PACK, &pack,
                                       err));
    copy->call =
        dpt_cpu_call(program, pack, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

static void close_conv(struct dpt_cpu_node *node)
{
    struct conv *conv = node->own;

    dpt_conv_kernels_close(&conv->kernels);
    dpt_free(conv->sparse);
    dpt_bf16_conv_close(conv->bf16);
}

static const float *bias_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;

    return node->norm != NULL ? conv->folded_bias : dpt_cpu_param(run, node->graph->bias);
}

static bool is_plain(const struct dpt_window *w)
{
    for (int i = 0; i < 2; i++)
        if (w->stride[i] != 1 || w->dilation[i] != 1)
            return false;
    return w->groups == 1;
}

/* --- Winograd --------------------------------------------------------------------------------- */

/* Backward uses oneDNN's kernels in the same layouts, and must have no fallback there. */
static enum dpt_status make_backward(struct dpt_cpu_program *program,
                                     const struct dpt_cpu_node *node, struct dpt_conv_kernels *k,
                                     struct dpt_error *err)
{
    const struct dpt_conv_request request = request_of(program, node);
    enum dpt_status status = DPT_OK;

    if (!request.weights)
        return DPT_OK;
    DPT_TRY(dpt_conv_kernels_make(&request, DPT_LAYOUT_C16, DPT_LAYOUT_C16, k, err));
    if (k->slow > 0)
        status = dpt_fail(err, DPT_BAD_JOB, "%s: no fast kernels for it", node->name);
    dpt_kernel_close(k->pass[DPT_CONV_FORWARD]);
    k->pass[DPT_CONV_FORWARD] = NULL;
out:
    return status;
}

/* Plans the output of a convolution that computes the max-pool after it. */
static void write_output(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    if (node->pool != NULL) {
        node->pool->fused = true;
        /* The output is planned here, where it is computed and where the input still exists. */
        dpt_cpu_write(program, node->pool, DPT_LAYOUT_C16);
    }
    dpt_cpu_write(program, node, DPT_LAYOUT_C16);
}

/* *chosen: whether forward goes this way. */
static enum dpt_status plan_winograd(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                     bool *chosen, struct dpt_error *err)
{
    const struct dpt_window *window = &node->graph->window;
    enum dpt_status status = DPT_OK;
    struct conv *conv = node->own;
    struct dpt_winograd w = {.in_channels = node->in.c,
                             .out_channels = node->out.c,
                             .in = {node->in.h, node->in.w},
                             .out = {node->out.h, node->out.w},
                             .before = {window->before[0], window->before[1]},
                             .relu = node->relu,
                             .kernels = dpt_winograd_kernels(dpt_dnnl_isa())};

    if (node->pool != NULL) {
        w.pool = true;
        w.relu |= node->pool->relu;
        w.pooled[0] = node->pool->out.h;
        w.pooled[1] = node->pool->out.w;
    }
    *chosen = false;
    if (window->kernel[0] != 3 || window->kernel[1] != 3 || !is_plain(window) ||
        !dpt_winograd_pays(&w))
        return DPT_OK;
    status = make_backward(program, node, &conv->kernels, err);
    if (status != DPT_OK) {
        dpt_conv_kernels_close(&conv->kernels);
        return status == DPT_BAD_JOB ? DPT_OK : status;
    }
    *chosen = true;
    conv->winograd = w;
    DPT_TRY(dpt_cpu_read(program, node, DPT_LAYOUT_C16, err));
    conv->x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    write_output(program, node);
    dpt_cpu_want_scratch(program, dpt_winograd_scratch(&w));
    dpt_cpu_copy(program, node, dpt_winograd_packed(&w), &conv->winograd_weights);
out:
    return status;
}

static void winograd_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;
    const struct dpt_cpu_node *to = node->pool != NULL ? node->pool : node;
    const bool keeps_argmax = run->training && to->argmax != DPT_CPU_NONE;

    dpt_winograd_forward(&conv->winograd, run->program->spec.micro,
                         dpt_cpu_round(run, node->x, conv->x, 0, node->x_floats),
                         conv->winograd_weights, bias_of(run, node), run->scratch,
                         dpt_cpu_buffer(run, to->y),
                         keeps_argmax ? (void *)dpt_cpu_buffer(run, to->argmax) : NULL);
}

/* --- in bf16, by the CPU's own instructions --------------------------------------------------- */

/* oneDNN 3.7.2's kernels for bf16 would make resnet20's step at most 6 % faster, not counting that
 * results are written as fp32 and weights packed at each step. That is not worth a second set of
 * bits for each version of the library. */
const struct dpt_bf16_kernels *dpt_cpu_conv_bf16(const struct dpt_cpu_program *program,
                                                 const struct dpt_cpu_node *conv)
{
    return dpt_cpu_rounds(program) && conv->graph->window.groups == 1
               ? dpt_bf16_kernels(dpt_dnnl_isa())
               : NULL;
}

static enum dpt_status plan_bf16(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 const struct dpt_bf16_kernels *kernels, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct conv *conv = node->own;
    const bool backward = program->spec.training && node->wants_dy;
    const bool planes = node->in.c <= DPT_BF16_FEW && !(backward && node->wants_dx) &&
                        node->n_inputs == 1 &&
                        dpt_cpu_input_layout(program, node) == DPT_LAYOUT_NCHW;
    struct dpt_bf16_conv_shape shape = {.in_channels = node->in.c,
                                        .out_channels = node->out.c,
                                        .in = {node->in.h, node->in.w},
                                        .out = {node->out.h, node->out.w},
                                        .window = node->graph->window,
                                        .x = planes ? DPT_LAYOUT_NCHW : DPT_LAYOUT_C16,
                                        .x_bf16 = program->nodes[node->inputs[0]].y_bf16,
                                        .relu = node->relu,
                                        .backward = backward,
                                        .wants_dx = node->wants_dx};

    if (node->pool != NULL) {
        shape.pool = true;
        shape.relu |= node->pool->relu;
        shape.pooled[0] = node->pool->out.h;
        shape.pooled[1] = node->pool->out.w;
    }
    DPT_TRY(dpt_bf16_conv_open(&shape, kernels, program->spec.micro, &conv->bf16, err));
    DPT_TRY(dpt_cpu_read(program, node, shape.x, err));
    conv->x = node->x;
    write_output(program, node);
    dpt_cpu_want_scratch(program, dpt_bf16_conv_scratch(conv->bf16));
    dpt_cpu_copy(program, node, dpt_bf16_conv_packed(conv->bf16, false), &conv->bf16_weights);
out:
    return status;
}

static void bf16_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;
    const struct dpt_cpu_node *to = node->pool != NULL ? node->pool : node;
    const bool keeps_argmax = run->training && to->argmax != DPT_CPU_NONE;

    dpt_bf16_conv_forward(conv->bf16, run->program->spec.micro, dpt_cpu_buffer(run, node->x),
                          conv->bf16_weights, bias_of(run, node),
                          node->n_inputs > 1 ? dpt_cpu_buffer(run, node->other) : NULL,
                          run->scratch, dpt_cpu_buffer(run, to->y),
                          keeps_argmax ? (void *)dpt_cpu_buffer(run, to->argmax) : NULL);
}

static void bf16_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;
    const struct dpt_graph *graph = run->program->spec.graph;
    const bool adds = node->add[0].within;
    const int known = adds ? node->add[0].known : DPT_CPU_NONE;
    const struct dpt_bf16_conv_work work = {
        .count = run->batch->count,
        .micro = run->program->spec.micro,
        .x = dpt_cpu_buffer(run, node->x),
        .dy = dpt_cpu_buffer(run, node->dy),
        .dy_bf16 = node->dy_bf16,
        .argmax = node->pool != NULL ? (void *)dpt_cpu_buffer(run, node->pool->argmax) : NULL,
        .packed = conv->bf16_data,
        .scratch = run->scratch,
        .add = run->add,
        .dw = dpt_graph_updates(graph, node->graph->weight)
                  ? dpt_cpu_gradient(run, node->graph->weight)
                  : NULL,
        .db = dpt_cpu_gradient(run, node->graph->bias),
        .dx = node->wants_dx ? dpt_cpu_buffer(run, node->dx) : NULL,
        .added = adds ? dpt_cpu_buffer(run, node->add[0].a) : NULL,
        .known = known != DPT_CPU_NONE ? dpt_cpu_buffer(run, known) : NULL,
    };

    dpt_bf16_conv_backward(conv->bf16, &work);
}

/* --- the direct way --------------------------------------------------------------------------- */

/* A kernel as a call, which owns it from here. */
static int take_call(struct dpt_cpu_program *program, struct conv *conv, enum dpt_conv_pass pass,
                     int x, int y, int w, int b)
{
    struct dpt_kernel *kernel = conv->kernels.pass[pass];

    conv->kernels.pass[pass] = NULL;
    return dpt_cpu_call(program, kernel, x, y, w, b);
}

static enum dpt_status plan_direct(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                   struct dpt_error *err)
{
    struct conv *conv = node->own;
    struct dpt_conv_kernels *k = &conv->kernels;
    const struct dpt_conv_request request = request_of(program, node);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_conv_kernels_choose(&request, k, err));
    DPT_TRY(dpt_cpu_read(program, node, k->x, err));
    conv->x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    dpt_cpu_write(program, node, k->y);
    DPT_TRY(open_copy(program, node, k->pass[DPT_CONV_FORWARD], &conv->forward_weights, err));
    conv->forward =
        take_call(program, conv, DPT_CONV_FORWARD, conv->x, node->y, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

/* --- a batch norm in the weights, and rounded ones -------------------------------------------- */

static void plan_weights(struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    struct conv *conv = node->own;

    if (conv->n_weights > program->folded &&
        (node->norm != NULL || (dpt_cpu_rounds(program) && conv->bf16 == NULL)))
        program->folded = conv->n_weights;
    if (node->norm != NULL)
        dpt_cpu_copy(program, node, (node->out.c + DPT_LANES - 1) / DPT_LANES * DPT_LANES,
                     &conv->folded_bias);
}

/* The weights as the passes read them: if they differ from the parameters they lie in memory of the
 * calling worker. */
static const float *weights_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;
    const float *weights = dpt_cpu_param(run, node->graph->weight);
    const int memory = run->program->refreshed;
    float *own = memory == DPT_CPU_NONE ? run->worker->values : dpt_cpu_buffer(run, memory);

    if (node->norm != NULL) {
        dpt_fold(run->program->spec.graph, node->graph, node->norm, run->params, run->state, own,
                 conv->folded_bias);
        weights = own;
    }
    if (dpt_cpu_rounds(run->program) && conv->bf16 == NULL) {
        dpt_bf16_round(conv->n_weights, weights, own);
        weights = own;
    }
    return weights;
}

static enum dpt_status plan_conv(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct conv *conv = node->own;
    const struct dpt_bf16_kernels *kernels = dpt_cpu_conv_bf16(program, node);
    bool chosen = kernels != NULL;

    conv->shape = dpt_cpu_conv_shape(program, node);
    conv->n_weights = program->spec.graph->tensors[node->graph->weight].count;
    conv->forward_weights.call = conv->data_weights.call = DPT_CPU_NONE;
    if (kernels != NULL)
        DPT_TRY(plan_bf16(program, node, kernels, err));
    else
        DPT_TRY(plan_winograd(program, node, &chosen, err));
    if (!chosen)
        DPT_TRY(plan_direct(program, node, err));
    plan_weights(program, node);
    dpt_cpu_give_rounded(program, node->x, conv->x);
out:
    return status;
}

/* --- lists ------------------------------------------------------------------------------------ */

static struct dpt_sparse_shape sparse_shape(const struct dpt_cpu_node *node)
{
    const struct dpt_window *w = &node->graph->window;

    return (struct dpt_sparse_shape){.in_channels = node->in.c,
                                     .out_channels = node->out.c,
                                     .in = {node->in.h, node->in.w},
                                     .out = {node->out.h, node->out.w},
                                     .kernel = {w->kernel[0], w->kernel[1]},
                                     .before = {w->before[0], w->before[1]},
                                     .pooled = {node->pool->out.h, node->pool->out.w},
                                     .x = node->x_layout,
                                     .y = node->y_layout,
                                     .wants_dx = node->wants_dx};
}

bool dpt_cpu_conv_lists(const struct dpt_cpu_program *program, const struct dpt_cpu_node *conv)
{
    const struct dpt_sparse_shape shape = sparse_shape(conv);

    return dpt_cpu_conv_bf16(program, conv) != NULL ||
           (is_plain(&conv->graph->window) && dpt_sparse_fits(&shape));
}

static enum dpt_status plan_lists(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  struct dpt_error *err)
{
    struct conv *conv = node->own;
    const struct dpt_sparse_shape shape = sparse_shape(node);
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_sparse_open(&shape, dpt_dnnl_isa(), &conv->sparse, err));
    conv->sparse_scratch = dpt_cpu_reserve(program, dpt_sparse_scratch(conv->sparse));
    if (node->wants_dx)
        dpt_cpu_copy(program, node, dpt_sparse_packed(conv->sparse), &conv->sparse_weights);
out:
    return status;
}

static void backward_by_lists(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;
    const struct dpt_sparse_work work = {
        .count = run->batch->count,
        .micro = run->program->spec.micro,
        .x = dpt_cpu_round(run, node->x, conv->back_x, 0, node->x_floats),
        .dy = dpt_cpu_round(run, node->dy, conv->dy, 0, node->pool->y_floats),
        .argmax = (const void *)dpt_cpu_buffer(run, node->pool->argmax),
        .packed = conv->sparse_weights,
        .scratch = dpt_cpu_buffer(run, conv->sparse_scratch),
        .add = run->add,
        .dw = dpt_cpu_gradient(run, node->graph->weight),
        .db = dpt_cpu_gradient(run, node->graph->bias),
        .dx = node->wants_dx ? dpt_cpu_buffer(run, node->dx) : NULL,
    };

    dpt_sparse_backward(conv->sparse, &work);
}

/* --- backward --------------------------------------------------------------------------------- */

static enum dpt_status plan_conv_backward(struct dpt_cpu_program *program,
                                          struct dpt_cpu_node *node, struct dpt_error *err)
{
    struct conv *conv = node->own;
    struct dpt_kernel **kernels = conv->kernels.pass;
    enum dpt_status status = DPT_OK;

    if (conv->bf16 != NULL) {
        if (node->wants_dx)
            dpt_cpu_copy(program, node, dpt_bf16_conv_packed(conv->bf16, true), &conv->bf16_data);
        return DPT_OK;
    }
    conv->back_x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    conv->dy = dpt_cpu_take_rounded(program, node->dy,
                                    lists(node) ? node->pool->y_floats : node->y_floats);
    if (lists(node)) {
        status = plan_lists(program, node, err);
        goto out;
    }
    if (node->wants_dx) {
        DPT_TRY(
            open_copy(program, node, kernels[DPT_CONV_BACKWARD_DATA], &conv->data_weights, err));
        conv->data = take_call(program, conv, DPT_CONV_BACKWARD_DATA, node->dx, conv->dy,
                               DPT_CPU_NONE, DPT_CPU_NONE);
    }
    status = dpt_conv_weights_plan(program, node, &conv->shape, &kernels[DPT_CONV_BACKWARD_WEIGHTS],
                                   conv->back_x, conv->dy, &conv->weights, err);
out:
    dpt_cpu_give_rounded(program, node->x, conv->back_x);
    dpt_cpu_give_rounded(program, node->dy, conv->dy);
    return status;
}

static void refresh_copy(const struct dpt_cpu_run *run, const struct copy *copy,
                         const float *weights)
{
    dpt_cpu_set(run, copy->call, DPT_ROLE_X, weights);
    dpt_cpu_set(run, copy->call, DPT_ROLE_Y, copy->weights);
    dpt_cpu_execute(run, copy->call);
}

static void refresh_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;
    const float *weights = weights_of(run, node);

    if (conv->bf16 != NULL)
        dpt_bf16_conv_pack(conv->bf16, false, weights, conv->bf16_weights);
    else if (conv->winograd.kernels != NULL)
        dpt_winograd_pack(&conv->winograd, weights, conv->winograd_weights);
    else
        refresh_copy(run, &conv->forward_weights, weights);
}

static void refresh_conv(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int thread,
                         int *task)
{
    const struct conv *conv = node->own;

    if (dpt_cpu_own_task(run, thread, task))
        refresh_forward(run, node);
    if (conv->data_weights.call != DPT_CPU_NONE && dpt_cpu_own_task(run, thread, task))
        refresh_copy(run, &conv->data_weights, weights_of(run, node));
    if (conv->bf16_data != NULL && dpt_cpu_own_task(run, thread, task))
        dpt_bf16_conv_pack(conv->bf16, true, weights_of(run, node), conv->bf16_data);
    if (conv->sparse_weights != NULL && dpt_cpu_own_task(run, thread, task))
        dpt_sparse_pack(conv->sparse, weights_of(run, node), conv->sparse_weights);
}

static void conv_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;

    if (conv->bf16 != NULL || conv->winograd.kernels != NULL) {
        (conv->bf16 != NULL ? bf16_forward : winograd_forward)(run, node);
        return;
    }
    dpt_cpu_round(run, node->x, conv->x, 0, node->x_floats);
    dpt_cpu_set(run, conv->forward, DPT_ROLE_W, conv->forward_weights.weights);
    if (conv->shape.bias)
        dpt_cpu_set(run, conv->forward, DPT_ROLE_B, bias_of(run, node));
    dpt_cpu_execute(run, conv->forward);
    if (node->relu)
        dpt_relu(node->y_floats, 0, dpt_cpu_buffer(run, node->y), dpt_cpu_buffer(run, node->y));
}

static void conv_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct conv *conv = node->own;

    if (conv->bf16 != NULL || conv->sparse != NULL) {
        (conv->bf16 != NULL ? bf16_backward : backward_by_lists)(run, node);
        return;
    }
    dpt_cpu_round(run, node->dy, conv->dy, 0, node->y_floats);
    dpt_cpu_round(run, node->x, conv->back_x, 0, node->x_floats);
    dpt_conv_weights_run(run, node, &conv->weights);
    if (node->wants_dx) {
        dpt_cpu_mark(run, node, DPT_PASS_WEIGHTS);
        dpt_cpu_set(run, conv->data, DPT_ROLE_W, conv->data_weights.weights);
        dpt_cpu_execute(run, conv->data);
    }
}

const struct dpt_cpu_op dpt_cpu_conv = {
    .plan = plan_conv,
    .plan_backward = plan_conv_backward,
    .refresh = refresh_conv,
    .forward = conv_forward,
    .backward = conv_backward,
    .close = close_conv,
    .own = sizeof(struct conv),
    .takes_norm = true,
};
