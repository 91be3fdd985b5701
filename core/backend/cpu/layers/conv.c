#include "core/backend/cpu/layers/conv_ways.h"
#include "core/base/memory.h"

/* A convolution: each pass by the first way that fits. */

static const struct dpt_conv_way *const ways[] = {
#define X(name) &dpt_conv_##name,
    DPT_CONV_WAYS(X)
#undef X
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static bool computes(const struct dpt_conv_way *way, enum dpt_conv_pass pass)
{
    return pass == DPT_CONV_FORWARD         ? way->forward != NULL
           : pass == DPT_CONV_BACKWARD_DATA ? way->data != NULL || way->backward != NULL
                                            : way->weights != NULL || way->backward != NULL;
}

/* Chooses the way of a pass. Errors: BAD_JOB, RANK. */
static enum dpt_status choose(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                              enum dpt_conv_pass pass, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conv *conv = node->own;

    for (int i = 0; i < WAYS; i++) {
        bool fits;

        if (!computes(ways[i], pass))
            continue;
        DPT_TRY(ways[i]->fits(program, node, pass, &fits, err));
        if (fits) {
            conv->way[pass] = ways[i];
            return DPT_OK;
        }
    }
    status = dpt_fail(err, DPT_BAD_JOB, "%s: no code for a convolution of this shape", node->name);
out:
    return status;
}

static enum dpt_status plan_conv(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conv *conv = node->own;

    conv->shape = dpt_cpu_conv_shape(program, node);
    conv->n_weights = program->spec.graph->tensors[node->graph->weight].count;
    DPT_TRY(choose(program, node, DPT_CONV_FORWARD, err));
    DPT_TRY(conv->way[DPT_CONV_FORWARD]->plan(program, node, DPT_CONV_FORWARD, err));
    dpt_conv_plan_weights(program, node);
    dpt_cpu_give_rounded(program, node->x, conv->x);
out:
    return status;
}

static bool learns(const struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    const struct dpt_graph *graph = program->spec.graph;

    return dpt_graph_updates(graph, node->graph->weight) ||
           dpt_graph_updates(graph, node->graph->bias);
}

/* The way that computes both gradients at once, or NULL. */
static const struct dpt_conv_way *way_of_both(const struct dpt_conv *conv)
{
    const struct dpt_conv_way *way = conv->way[DPT_CONV_BACKWARD_WEIGHTS];

    return way != NULL && way->backward != NULL ? way : NULL;
}

static enum dpt_status plan_gradients(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                      struct dpt_error *err)
{
    static const enum dpt_conv_pass passes[] = {DPT_CONV_BACKWARD_DATA, DPT_CONV_BACKWARD_WEIGHTS};
    const struct dpt_conv *conv = node->own;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < 2; i++) {
        const struct dpt_conv_way *way = conv->way[passes[i]];

        if (way != NULL && (way_of_both(conv) == NULL || passes[i] == DPT_CONV_BACKWARD_WEIGHTS))
            DPT_TRY(way->plan(program, node, passes[i], err));
    }
out:
    return status;
}

static enum dpt_status plan_conv_backward(struct dpt_cpu_program *program,
                                          struct dpt_cpu_node *node, struct dpt_error *err)
{
    struct dpt_conv *conv = node->own;
    const struct dpt_conv_way *both;
    enum dpt_status status = DPT_OK;

    DPT_TRY(choose(program, node, DPT_CONV_BACKWARD_WEIGHTS, err));
    both = way_of_both(conv);
    if (node->wants_dx)
        DPT_TRY(choose(program, node, DPT_CONV_BACKWARD_DATA, err));
    if (both != NULL && both->rounds)
        return plan_gradients(program, node, err);
    if (both == NULL && !learns(program, node))
        conv->way[DPT_CONV_BACKWARD_WEIGHTS] = NULL;
    conv->back_x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    conv->dy = dpt_cpu_take_rounded(program, node->dy,
                                    dpt_conv_listed(node) ? node->pool->y_floats : node->y_floats);
    status = plan_gradients(program, node, err);
    dpt_cpu_give_rounded(program, node->x, conv->back_x);
    dpt_cpu_give_rounded(program, node->dy, conv->dy);
out:
    return status;
}

static void refresh_conv(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int thread,
                         int *task)
{
    static const enum dpt_conv_pass passes[] = {DPT_CONV_FORWARD, DPT_CONV_BACKWARD_DATA};
    const struct dpt_conv *conv = node->own;

    for (int i = 0; i < 2; i++)
        if (conv->way[passes[i]] != NULL && dpt_cpu_own_task(run, thread, task))
            conv->way[passes[i]]->refresh(run, node, passes[i]);
}

static void conv_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    conv->way[DPT_CONV_FORWARD]->forward(run, node);
}

static void conv_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    if (way_of_both(conv) != NULL) {
        way_of_both(conv)->backward(run, node);
        return;
    }
    dpt_cpu_round(run, node->dy, conv->dy, 0, node->y_floats);
    dpt_cpu_round(run, node->x, conv->back_x, 0, node->x_floats);
    if (conv->way[DPT_CONV_BACKWARD_WEIGHTS] != NULL)
        conv->way[DPT_CONV_BACKWARD_WEIGHTS]->weights(run, node);
    if (node->wants_dx) {
        dpt_cpu_mark(run, node, DPT_PASS_WEIGHTS);
        conv->way[DPT_CONV_BACKWARD_DATA]->data(run, node);
    }
}

static void close_conv(struct dpt_cpu_node *node)
{
    struct dpt_conv *conv = node->own;

#if DPT_CPU_ONEDNN
    dpt_conv_kernels_close(&conv->onednn.kernels);
#endif
    dpt_direct_close(conv->direct.conv);
    dpt_free(conv->lists.sparse);
    dpt_free(conv->patches.taps);
    dpt_free(conv->patches.numbers);
    dpt_bf16_conv_close(conv->bf16.conv);
}

static const char *name_way(const struct dpt_cpu_node *node, enum dpt_span_pass pass)
{
    const struct dpt_conv *conv = node->own;
    const struct dpt_conv_way *way =
        conv->way[pass == DPT_PASS_FORWARD   ? DPT_CONV_FORWARD
                  : pass == DPT_PASS_WEIGHTS ? DPT_CONV_BACKWARD_WEIGHTS
                                             : DPT_CONV_BACKWARD_DATA];

    return way != NULL ? way->name : NULL;
}

const struct dpt_cpu_op dpt_cpu_conv = {
    .plan = plan_conv,
    .plan_backward = plan_conv_backward,
    .refresh = refresh_conv,
    .forward = conv_forward,
    .backward = conv_backward,
    .way = name_way,
    .close = close_conv,
    .own = sizeof(struct dpt_conv),
    .takes_norm = true,
};
