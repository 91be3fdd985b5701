#include <string.h>

#include "core/backend/cpu/fp32/gemm.h"
#include "core/backend/cpu/layers/channels.h"

/* In a team each thread takes some samples, and then, for the gradient of the slopes, some
 * channels. */

struct prelu {
    struct dpt_channels channels;
    struct dpt_gemm sums; /* over samples, by sub-batches */
    int products;         /* buffer: [sample][channel], the sum of dy x if x is not positive */
};

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct prelu *own = node->own;
    int64_t width;

    DPT_TRY(dpt_cpu_read(program, node, dpt_cpu_input_layout(program, node), err));
    dpt_cpu_write(program, node, node->x_layout);
    own->channels = dpt_channels_of(node);
    width = dpt_channels_width(&own->channels);
    own->sums = (struct dpt_gemm){.outputs = width, .sub_batch = dpt_cpu_sub_batch(program)};
    if (program->spec.training)
        own->products = dpt_cpu_reserve(program, width * program->spec.micro);
out:
    return status;
}

DPT_INLINE void forward_run(int lanes, int64_t stride, int64_t n, bool same, int64_t channel,
                            const float *slopes, const float *x, float *y)
{
    DPT_CHANNEL_LANES(float, slope, slopes);

    for (int64_t i = 0; i < n; i++)
        DPT_EACH_LANE(c, lanes)
        {
            const float v = x[i * stride + c];

            y[i * stride + c] = v < 0 ? slope[c] * v : v;
        }
}

DPT_VECTOR static void forward_sample(const struct dpt_channels *s, const float *slopes,
                                      const float *x, float *y){
#define BODY(lanes, stride, n, same, channel, at)                                                  \
    forward_run(lanes, stride, n, same, channel, slopes, x + (at), y + (at))
    DPT_CHANNEL_RUNS(s, BODY)
#undef BODY
}

/* dx: may be dy; NULL: not wanted. products: added to. */
DPT_INLINE
    void back_run(int lanes, int64_t stride, int64_t n, bool same, int64_t channel,
                  const float *slopes, const float *x, const float *dy, float *dx, float *products)
{
    DPT_CHANNEL_LANES(float, slope, slopes);
    double sums[DPT_LANES] = {0};

    for (int64_t i = 0; i < n; i++)
        DPT_EACH_LANE(c, lanes)
        {
            const float v = x[i * stride + c], g = dy[i * stride + c];

            sums[c] += v > 0 ? 0 : v * g;
        }
    for (int64_t i = 0; dx != NULL && i < n; i++)
        DPT_EACH_LANE(c, lanes)
        {
            const float v = x[i * stride + c], g = dy[i * stride + c];

            dx[i * stride + c] = v > 0 ? g : slope[c] * g;
        }
    DPT_EACH_LANE(c, lanes)
    products[same ? channel : channel + c] += (float)sums[c];
}

DPT_VECTOR static void back_sample(const struct dpt_channels *s, const float *slopes,
                                   const float *x, const float *dy, float *dx, float *products)
{
    memset(products, 0, (size_t)dpt_channels_width(s) * sizeof *products);
#define BODY(lanes, stride, n, same, channel, at)                                                  \
    back_run(lanes, stride, n, same, channel, slopes, x + (at), dy + (at),                         \
             dx == NULL ? NULL : dx + (at), products)
    DPT_CHANNEL_RUNS(s, BODY)
#undef BODY
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct prelu *own = node->own;
    const int64_t n = dpt_channels_floats(&own->channels);
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    for (int64_t row = first; row < last; row++)
        forward_sample(&own->channels, dpt_cpu_param(run, node->graph->weight),
                       dpt_cpu_buffer(run, node->x) + row * n,
                       dpt_cpu_buffer(run, node->y) + row * n);
}

static void backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct prelu *own = node->own;
    const int64_t n = dpt_channels_floats(&own->channels);
    float *products = dpt_cpu_buffer(run, own->products);
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    for (int64_t row = first; row < last; row++)
        back_sample(&own->channels, dpt_cpu_param(run, node->graph->weight),
                    dpt_cpu_buffer(run, node->x) + row * n, dpt_cpu_buffer(run, node->dy) + row * n,
                    node->wants_dx ? dpt_cpu_buffer(run, node->dx) + row * n : NULL,
                    products + row * own->sums.outputs);
    dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    dpt_cpu_sum_rows(run, own->sums, node->in.c, products, node->graph->weight);
}

const struct dpt_cpu_op dpt_cpu_prelu = {
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .own = sizeof(struct prelu),
    .shares = true,
};
