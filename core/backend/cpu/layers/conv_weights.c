#include "core/backend/bf16.h"
#include "core/backend/cpu/layers/conv_ways.h"
#include "core/backend/fold.h"

/* What a convolution's ways share: its shape, the weights and the bias as they read them, and the
 * output. */

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

void dpt_conv_write_output(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    if (node->pool != NULL) {
        node->pool->fused = true;
        /* The output is planned here, where it is computed and where the input still exists. */
        dpt_cpu_write(program, node->pool, DPT_LAYOUT_C16);
    }
    dpt_cpu_write(program, node, DPT_LAYOUT_C16);
}

/* Whether the passes read weights that are rounded for them. */
static bool reads_rounded(const struct dpt_cpu_program *program, const struct dpt_conv *conv)
{
    return dpt_cpu_rounds(program) && !conv->way[DPT_CONV_FORWARD]->rounds;
}

void dpt_conv_plan_weights(struct dpt_cpu_program *program, const struct dpt_cpu_node *node)
{
    struct dpt_conv *conv = node->own;

    if (conv->n_weights > program->folded && (node->norm != NULL || reads_rounded(program, conv)))
        program->folded = conv->n_weights;
    if (node->norm != NULL)
        dpt_cpu_copy(program, node, (node->out.c + DPT_LANES - 1) / DPT_LANES * DPT_LANES,
                     &conv->folded_bias);
}

const float *dpt_conv_weights_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;
    const float *weights = dpt_cpu_param(run, node->graph->weight);
    const int memory = run->program->refreshed;
    float *own = memory == DPT_CPU_NONE ? run->worker->values : dpt_cpu_buffer(run, memory);

    if (node->norm != NULL) {
        dpt_fold(run->program->spec.graph, node->graph, node->norm, run->params, run->state, own,
                 conv->folded_bias);
        weights = own;
    }
    if (reads_rounded(run->program, conv)) {
        dpt_bf16_round(conv->n_weights, weights, own);
        weights = own;
    }
    return weights;
}

const float *dpt_conv_bias_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_conv *conv = node->own;

    return node->norm != NULL ? conv->folded_bias : dpt_cpu_param(run, node->graph->bias);
}

void *dpt_conv_argmax(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_node *to = node->pool != NULL ? node->pool : node;

    return run->training && to->argmax != DPT_CPU_NONE ? dpt_cpu_buffer(run, to->argmax) : NULL;
}
