#include <math.h>

#include "core/backend/cpu/fp32/gemm.h"
#include "core/backend/cpu/layers/channels.h"

/* Over all numbers of a sample, which lie in canonical layout. In a team each thread takes some
 * samples, and then, for the gradient of weight and bias, some of their numbers. */

enum { LANES = DPT_LANES };
enum { KEPT = 3 }; /* mean, scale and rest (DPT_NORM_REST) */

struct layernorm {
    struct dpt_gemm sums; /* over samples, by sub-batches */
    int statistics;       /* buffer: KEPT of each sample */
    int products;         /* buffer: dy times what is normalised */
};

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct layernorm *own = node->own;

    own->sums = (struct dpt_gemm){.outputs = dpt_shape_size(&node->in),
                                  .sub_batch = dpt_cpu_sub_batch(program)};
    DPT_TRY(dpt_cpu_read(program, node, DPT_LAYOUT_NCHW, err));
    dpt_cpu_write(program, node, DPT_LAYOUT_NCHW);
    own->statistics = dpt_cpu_reserve(program, KEPT * (int64_t)program->spec.micro);
    if (program->spec.training)
        own->products = dpt_cpu_reserve(program, node->y_floats);
out:
    return status;
}

static double sum_of(const double *lanes)
{
    double sum = 0;

    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

/* Sums in lanes, whose order does not depend on the machine. statistics: out: KEPT. */
DPT_VECTOR static void normalise(int64_t n, float eps, const float *restrict x,
                                 const float *restrict weight, const float *restrict bias,
                                 float *restrict y, float *restrict statistics)
{
    double lanes[LANES] = {0}, mean;
    float center, scale, rest;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        DPT_EACH_LANE(c, LANES)
    lanes[c] += x[i + c];
    for (; i < n; i++)
        lanes[i % LANES] += x[i];
    mean = sum_of(lanes) / (double)n;
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = 0;
    for (i = 0; i + LANES <= n; i += LANES)
        DPT_EACH_LANE(c, LANES)
    lanes[c] += (x[i + c] - mean) * (x[i + c] - mean);
    for (; i < n; i++)
        lanes[i % LANES] += (x[i] - mean) * (x[i] - mean);
    statistics[0] = center = (float)mean;
    statistics[1] = scale = (float)(1 / sqrt(sum_of(lanes) / (double)n + (double)eps));
    statistics[2] = rest = DPT_NORM_REST(mean, (double)scale);
    for (i = 0; i < n; i++)
        y[i] = (x[i] - center - rest) * scale * weight[i] + bias[i];
}

/* dx = scale (g - mean of g - x' mean of (g x')), with x' what is normalised and g = dy weight;
 * NULL: not wanted. products: out: dy x'. */
DPT_VECTOR static void back(int64_t n, const float *restrict statistics, const float *restrict x,
                            const float *restrict weight, const float *restrict dy,
                            float *restrict products, float *restrict dx)
{
    const float center = statistics[0], scale = statistics[1], rest = statistics[2];
    double sums[LANES] = {0}, inner[LANES] = {0};
    float sum, normal;
    int64_t i = 0;

    for (int64_t k = 0; k < n; k++)
        products[k] = dy[k] * ((x[k] - center - rest) * scale);
    if (dx == NULL)
        return;
    for (; i + LANES <= n; i += LANES)
        DPT_EACH_LANE(c, LANES)
        {
            sums[c] += dy[i + c] * weight[i + c];
            inner[c] += products[i + c] * weight[i + c];
        }
    for (; i < n; i++) {
        sums[i % LANES] += dy[i] * weight[i];
        inner[i % LANES] += products[i] * weight[i];
    }
    sum = (float)(sum_of(sums) / (double)n);
    normal = (float)(sum_of(inner) / (double)n);
    for (i = 0; i < n; i++)
        dx[i] = scale * (dy[i] * weight[i] - sum - (x[i] - center - rest) * scale * normal);
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct layernorm *own = node->own;
    const int64_t n = own->sums.outputs;
    const float *weight = dpt_cpu_param(run, node->graph->weight);
    const float *bias = dpt_cpu_param(run, node->graph->bias);
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    for (int64_t row = first; row < last; row++)
        normalise(n, node->graph->attribute[0], dpt_cpu_buffer(run, node->x) + row * n, weight,
                  bias, dpt_cpu_buffer(run, node->y) + row * n,
                  dpt_cpu_buffer(run, own->statistics) + KEPT * row);
}

static void backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct layernorm *own = node->own;
    const int64_t n = own->sums.outputs;
    const float *dy = dpt_cpu_buffer(run, node->dy);
    float *products = dpt_cpu_buffer(run, own->products);
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    for (int64_t row = first; row < last; row++)
        back(n, dpt_cpu_buffer(run, own->statistics) + KEPT * row,
             dpt_cpu_buffer(run, node->x) + row * n, dpt_cpu_param(run, node->graph->weight),
             dy + row * n, products + row * n,
             node->wants_dx ? dpt_cpu_buffer(run, node->dx) + row * n : NULL);
    dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    dpt_cpu_sum_rows(run, own->sums, n, products, node->graph->weight);
    dpt_cpu_sum_rows(run, own->sums, n, dy, node->graph->bias);
}

const struct dpt_cpu_op dpt_cpu_layernorm = {
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .own = sizeof(struct layernorm),
    .shares = true,
};
