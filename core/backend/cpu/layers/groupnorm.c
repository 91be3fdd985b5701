#include <math.h>
#include <string.h>

#include "core/backend/cpu/fp32/gemm.h"
#include "core/backend/cpu/layers/channels.h"

/*
 * In the layout of the input: sums per channel, which are added up for the channels of a group. In
 * a team each thread takes some samples, and then, for the gradient of weight and bias, some
 * channels.
 */

enum { KEPT = 3 }; /* mean, scale and rest (DPT_NORM_REST) */

struct groupnorm {
    struct dpt_channels channels;
    struct dpt_gemm sums; /* over samples, by sub-batches */
    int64_t width;
    int statistics;    /* buffer: [sample][KEPT][channel], of the channel's group */
    int products, dys; /* buffers: [sample][channel], sums of dy x', and of dy */
};

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct groupnorm *own = node->own;
    const int64_t micro = program->spec.micro;

    DPT_TRY(dpt_cpu_read(program, node, dpt_cpu_input_layout(program, node), err));
    dpt_cpu_write(program, node, node->x_layout);
    own->channels = dpt_channels_of(node);
    own->width = dpt_channels_width(&own->channels);
    own->sums = (struct dpt_gemm){.outputs = own->width, .sub_batch = dpt_cpu_sub_batch(program)};
    own->statistics = dpt_cpu_reserve(program, KEPT * own->width * micro);
    dpt_cpu_want_scratch(program, 5 * own->width);
    if (program->spec.training) {
        own->products = dpt_cpu_reserve(program, own->width * micro);
        own->dys = dpt_cpu_reserve(program, own->width * micro);
    }
out:
    return status;
}

/* --- loops ------------------------------------------------------------------------------------ */

/* sums: of x - center, or of its square; added to. */
DPT_INLINE void sum_run(int lanes, int64_t stride, int64_t n, bool same, int64_t channel,
                        bool squares, const float *x, const double *centers, double *sums)
{
    DPT_CHANNEL_LANES(double, center, centers);
    double sum[DPT_LANES] = {0};

    for (int64_t i = 0; i < n; i++)
        DPT_EACH_LANE(c, lanes)
        {
            const double v = x[i * stride + c] - center[c];

            sum[c] += squares ? v * v : v;
        }
    DPT_EACH_LANE(c, lanes)
    sums[same ? channel : channel + c] += sum[c];
}

DPT_VECTOR static void sum_sample(const struct dpt_channels *s, bool squares, const float *x,
                                  const double *centers, double *sums)
{
    memset(sums, 0, (size_t)dpt_channels_width(s) * sizeof *sums);
#define BODY(lanes, stride, n, same, channel, at)                                                  \
    sum_run(lanes, stride, n, same, channel, squares, x + (at), centers, sums)
    DPT_CHANNEL_RUNS(s, BODY)
#undef BODY
}

/* statistics: mean of each channel's group, then its scale. */
DPT_INLINE void apply_run(int lanes, int64_t stride, int64_t n, bool same, int64_t channel,
                          const float *means, const float *scales, const float *weights,
                          const float *biases, const float *x, float *y)
{
    DPT_CHANNEL_LANES(float, mean, means);
    DPT_CHANNEL_LANES(float, scale, scales);
    DPT_CHANNEL_LANES(float, weight, weights);
    DPT_CHANNEL_LANES(float, bias, biases);

    for (int64_t i = 0; i < n; i++)
        DPT_EACH_LANE(c, lanes)
    y[i * stride + c] = (x[i * stride + c] - mean[c]) * scale[c] * weight[c] + bias[c];
}

DPT_VECTOR static void apply_sample(const struct dpt_channels *s, const float *statistics,
                                    const float *weights, const float *biases, const float *x,
                                    float *y)
{
    const float *means = statistics, *scales = statistics + dpt_channels_width(s);

#define BODY(lanes, stride, n, same, channel, at)                                                  \
    apply_run(lanes, stride, n, same, channel, means, scales, weights, biases, x + (at), y + (at))
    DPT_CHANNEL_RUNS(s, BODY)
#undef BODY
}

/* products, dys: added to. */
DPT_INLINE void sums_run(int lanes, int64_t stride, int64_t n, bool same, int64_t channel,
                         const float *means, const float *scales, const float *x, const float *dy,
                         float *products, float *dys)
{
    DPT_CHANNEL_LANES(float, mean, means);
    DPT_CHANNEL_LANES(float, scale, scales);
    double sum[DPT_LANES] = {0}, product[DPT_LANES] = {0};

    for (int64_t i = 0; i < n; i++)
        DPT_EACH_LANE(c, lanes)
        {
            const float g = dy[i * stride + c];

            sum[c] += g;
            product[c] += g * ((x[i * stride + c] - mean[c]) * scale[c]);
        }
    DPT_EACH_LANE(c, lanes)
    {
        products[same ? channel : channel + c] += (float)product[c];
        dys[same ? channel : channel + c] += (float)sum[c];
    }
}

DPT_VECTOR static void sums_sample(const struct dpt_channels *s, const float *statistics,
                                   const float *x, const float *dy, float *products, float *dys)
{
    const float *means = statistics, *scales = statistics + dpt_channels_width(s);

    memset(products, 0, (size_t)dpt_channels_width(s) * sizeof *products);
    memset(dys, 0, (size_t)dpt_channels_width(s) * sizeof *dys);
#define BODY(lanes, stride, n, same, channel, at)                                                  \
    sums_run(lanes, stride, n, same, channel, means, scales, x + (at), dy + (at), products, dys)
    DPT_CHANNEL_RUNS(s, BODY)
#undef BODY
}

/* dx = scale (g - mean of g - x' mean of (g x')), with x' what is normalised and g = dy weight;
 * sums, inners: the two means of each channel's group. */
DPT_INLINE void back_run(int lanes, int64_t stride, int64_t n, bool same, int64_t channel,
                         const float *means, const float *scales, const float *weights,
                         const float *sums, const float *inners, const float *x, const float *dy,
                         float *dx)
{
    DPT_CHANNEL_LANES(float, mean, means);
    DPT_CHANNEL_LANES(float, scale, scales);
    DPT_CHANNEL_LANES(float, weight, weights);
    DPT_CHANNEL_LANES(float, sum, sums);
    DPT_CHANNEL_LANES(float, inner, inners);

    for (int64_t i = 0; i < n; i++)
        DPT_EACH_LANE(c, lanes)
    dx[i * stride + c] = scale[c] * (dy[i * stride + c] * weight[c] - sum[c] -
                                     (x[i * stride + c] - mean[c]) * scale[c] * inner[c]);
}

DPT_VECTOR static void back_sample(const struct dpt_channels *s, const float *statistics,
                                   const float *weights, const float *sums, const float *inners,
                                   const float *x, const float *dy, float *dx)
{
    const float *means = statistics, *scales = statistics + dpt_channels_width(s);

#define BODY(lanes, stride, n, same, channel, at)                                                  \
    back_run(lanes, stride, n, same, channel, means, scales, weights, sums, inners, x + (at),      \
             dy + (at), dx + (at))
    DPT_CHANNEL_RUNS(s, BODY)
#undef BODY
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Gives all channels of a group the sum over it, divided by the group's size; zero after the last
 * channel. */
static void share(const struct dpt_cpu_node *node, int64_t width, double *sums)
{
    const int32_t size = node->in.c / node->graph->window.groups;
    const double n = (double)size * node->in.h * node->in.w;

    for (int32_t first = 0; first < node->in.c; first += size) {
        double sum = 0;

        for (int32_t c = first; c < first + size; c++)
            sum += sums[c];
        for (int32_t c = first; c < first + size; c++)
            sums[c] = sum / n;
    }
    for (int64_t c = node->in.c; c < width; c++)
        sums[c] = 0;
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct groupnorm *own = node->own;
    const int64_t n = dpt_channels_floats(&own->channels), width = own->width;
    const float *weight = dpt_cpu_param(run, node->graph->weight);
    double *means = (void *)run->scratch, *variances = means + width;
    float *shift = run->scratch + 4 * width;
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    for (int64_t row = first; row < last; row++) {
        const float *x = dpt_cpu_buffer(run, node->x) + row * n;
        float *statistics = dpt_cpu_buffer(run, own->statistics) + KEPT * row * width;
        float *scale = statistics + width, *rest = scale + width;

        memset(variances, 0, (size_t)width * sizeof *variances);
        sum_sample(&own->channels, false, x, variances, means);
        share(node, width, means);
        sum_sample(&own->channels, true, x, means, variances);
        share(node, width, variances);
        for (int64_t c = 0; c < width; c++) {
            statistics[c] = (float)means[c];
            scale[c] = c < node->in.c
                           ? (float)(1 / sqrt(variances[c] + (double)node->graph->attribute[0]))
                           : 0;
            rest[c] = DPT_NORM_REST(means[c], (double)scale[c]);
            shift[c] = dpt_cpu_param(run, node->graph->bias)[c];
            if (rest[c] != 0)
                shift[c] -= rest[c] * scale[c] * weight[c];
        }
        apply_sample(&own->channels, statistics, weight, shift, x,
                     dpt_cpu_buffer(run, node->y) + row * n);
    }
}

/* dx of a sample, from the sums over its channels. */
static void back(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int64_t row,
                 const float *products, const float *dys)
{
    const struct groupnorm *own = node->own;
    const int64_t n = dpt_channels_floats(&own->channels), width = own->width;
    const float *weight = dpt_cpu_param(run, node->graph->weight);
    const float *statistics = dpt_cpu_buffer(run, own->statistics) + KEPT * row * width,
                *scale = statistics + width, *rest = scale + width;
    double *sums = (void *)run->scratch;
    float *sum = run->scratch + 2 * width, *inner = sum + width;

    for (int64_t c = 0; c < width; c++)
        sums[c] = (double)dys[c] * weight[c];
    share(node, width, sums);
    for (int64_t c = 0; c < width; c++) {
        sum[c] = (float)sums[c];
        sums[c] = (double)products[c] * weight[c];
    }
    share(node, width, sums);
    for (int64_t c = 0; c < width; c++) {
        inner[c] = (float)sums[c];
        sum[c] -= rest[c] * scale[c] * inner[c];
    }
    back_sample(&own->channels, statistics, weight, sum, inner,
                dpt_cpu_buffer(run, node->x) + row * n, dpt_cpu_buffer(run, node->dy) + row * n,
                dpt_cpu_buffer(run, node->dx) + row * n);
}

static void backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct groupnorm *own = node->own;
    const int64_t n = dpt_channels_floats(&own->channels), width = own->width;
    float *products = dpt_cpu_buffer(run, own->products), *dys = dpt_cpu_buffer(run, own->dys);
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    for (int64_t row = first; row < last; row++) {
        const float *statistics = dpt_cpu_buffer(run, own->statistics) + KEPT * row * width,
                    *scale = statistics + width, *rest = scale + width;

        sums_sample(&own->channels, statistics, dpt_cpu_buffer(run, node->x) + row * n,
                    dpt_cpu_buffer(run, node->dy) + row * n, products + row * width,
                    dys + row * width);
        for (int64_t c = 0; c < width; c++)
            products[row * width + c] -= rest[c] * scale[c] * dys[row * width + c];
        if (node->wants_dx)
            back(run, node, row, products + row * width, dys + row * width);
    }
    dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    dpt_cpu_sum_rows(run, own->sums, node->in.c, products, node->graph->weight);
    dpt_cpu_sum_rows(run, own->sums, node->in.c, dys, node->graph->bias);
}

const struct dpt_cpu_op dpt_cpu_groupnorm = {
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .own = sizeof(struct groupnorm),
    .shares = true,
};
