#include <string.h>

#include "core/backend/cpu/layers/channels.h"

/*
 * Adaptive average pools, and upsampling, which is one whose bins are one number: a row of outputs
 * is the sum of the rows of its bin, of which the bins along it are added up. In any layout.
 */

/* n numbers share m others: number i takes [*first, *last) of them. Outputs share the inputs by
 * this rule, and inputs share the outputs in whose bins they are. */
DPT_INLINE void share_of(int32_t i, int64_t n, int64_t m, int32_t *first, int32_t *last)
{
    *first = (int32_t)(i * m / n);
    *last = (int32_t)(((i + (int64_t)1) * m + n - 1) / n);
}

/* Fills in the scratch memory's table of n columns' shares of m; returns it. */
static int32_t (*columns_of(const struct dpt_cpu_resize *s, int32_t n, int32_t m,
                            float *scratch))[2]
{
    int32_t(*columns)[2] = (void *)(scratch + s->in[1] * s->block);

    for (int32_t j = 0; j < n; j++)
        share_of(j, n, m, &columns[j][0], &columns[j][1]);
    return columns;
}

DPT_INLINE void forward_columns(const struct dpt_cpu_resize *s, int64_t block,
                                const int32_t (*columns)[2], int32_t rows, const float *sums,
                                float *y)
{
    for (int32_t j = 0; j < s->out[1]; j++) {
        const int32_t first = columns[j][0], last = columns[j][1];
        const float scale = 1.0f / (float)(rows * (last - first));

        for (int64_t c = 0; c < block; c++)
            y[j * block + c] = sums[first * block + c];
        for (int32_t k = first + 1; k < last; k++)
            for (int64_t c = 0; c < block; c++)
                y[j * block + c] += sums[k * block + c];
        for (int64_t c = 0; c < block; c++)
            y[j * block + c] *= scale;
    }
}

/* Equal rows, those of an upsampling, are copied. */
DPT_VECTOR static void forward_planes(const struct dpt_cpu_resize *s, const float *x,
                                      float *scratch, float *y)
{
    const int32_t(*columns)[2] = (const int32_t(*)[2])columns_of(s, s->out[1], s->in[1], scratch);
    const int64_t width = s->in[1] * s->block, out = s->out[1] * s->block;

    for (int64_t plane = 0; plane < s->planes; plane++, x += s->in[0] * width) {
        int32_t before[2] = {-1, -1};

        for (int32_t i = 0; i < s->out[0]; i++, y += out) {
            const float *sums = scratch;
            int32_t first, last;

            share_of(i, s->out[0], s->in[0], &first, &last);
            if (first == before[0] && last == before[1]) {
                memcpy(y, y - out, (size_t)out * sizeof *y);
                continue;
            }
            before[0] = first, before[1] = last;
            if (last - first == 1)
                sums = x + first * width;
            else
                memcpy(scratch, x + first * width, (size_t)width * sizeof *x);
            for (int32_t k = first + 1; k < last; k++)
                for (int64_t c = 0; c < width; c++)
                    scratch[c] += x[k * width + c];
            if (s->block == 1)
                forward_columns(s, 1, columns, last - first, sums, y);
            else if (s->block == 16)
                forward_columns(s, 16, columns, last - first, sums, y);
            else
                forward_columns(s, s->block, columns, last - first, sums, y);
        }
    }
}

/* sums: what each input gets of a row of outputs, without the rows' part of a bin's size. For fewer
 * outputs than inputs: each output gives to the inputs of its bin in `columns`. */
DPT_INLINE void give(const struct dpt_cpu_resize *s, int64_t block, const int32_t (*columns)[2],
                     const float *dy, float *sums)
{
    memset(sums, 0, (size_t)(s->in[1] * block) * sizeof *sums);
    for (int32_t j = 0; j < s->out[1]; j++) {
        const float scale = 1.0f / (float)(columns[j][1] - columns[j][0]);

        for (int32_t k = columns[j][0]; k < columns[j][1]; k++)
            for (int64_t c = 0; c < block; c++)
                sums[k * block + c] += dy[j * block + c] * scale;
    }
}

/* For fewer inputs than outputs: each input takes from the outputs in `columns`, in whose bins it
 * is. lanes: a constant that divides the block. */
DPT_INLINE void take(const struct dpt_cpu_resize *s, int lanes, const int32_t (*columns)[2],
                     const float *dy, float *sums)
{
    const bool whole = s->out[1] % s->in[1] == 0;

    for (int32_t k = 0; k < s->in[1]; k++)
        for (int64_t first = 0; first < s->block; first += lanes) {
            float sum[DPT_LANES] = {0};

            for (int32_t j = columns[k][0]; j < columns[k][1]; j++) {
                int32_t begin = 0, end = 1;
                float scale = 1;

                if (!whole) {
                    share_of(j, s->out[1], s->in[1], &begin, &end);
                    scale = 1.0f / (float)(end - begin);
                }
                DPT_EACH_LANE(c, lanes)
                sum[c] += dy[j * s->block + first + c] * scale;
            }
            DPT_EACH_LANE(c, lanes)
            sums[k * s->block + first + c] = sum[c];
        }
}

/* Each input takes from outputs that lie apart, in planes, and is the bin of equally many. */
DPT_INLINE void take_run(const struct dpt_cpu_resize *s, const float *dy, float *sums)
{
    const int32_t factor = s->out[1] / s->in[1];

    for (int32_t k = 0; k < s->in[1]; k++) {
        float sum = 0;

        for (int32_t j = 0; j < factor; j++)
            sum += dy[k * factor + j];
        sums[k] = sum;
    }
}

DPT_INLINE void back_columns(const struct dpt_cpu_resize *s, const int32_t (*columns)[2],
                             const float *dy, float *sums)
{
    if (s->out[1] <= s->in[1] && s->block == 1)
        give(s, 1, columns, dy, sums);
    else if (s->out[1] <= s->in[1])
        give(s, s->block, columns, dy, sums);
    else if (s->block == 1 && s->out[1] % s->in[1] == 0)
        take_run(s, dy, sums);
    else if (s->block % 16 == 0)
        take(s, 16, columns, dy, sums);
    else if (s->block % 8 == 0)
        take(s, 8, columns, dy, sums);
    else
        take(s, 1, columns, dy, sums);
}

DPT_VECTOR static void back_planes(const struct dpt_cpu_resize *s, const float *dy, float *scratch,
                                   float *dx)
{
    const int32_t few = s->out[1] < s->in[1] ? s->out[1] : s->in[1];
    const int32_t many = s->out[1] < s->in[1] ? s->in[1] : s->out[1];
    const int32_t(*columns)[2] = (const int32_t(*)[2])columns_of(s, few, many, scratch);
    const int64_t width = s->in[1] * s->block, out = s->out[1] * s->block;

    memset(dx, 0, (size_t)(s->planes * s->in[0] * width) * sizeof *dx);
    for (int64_t plane = 0; plane < s->planes; plane++, dx += s->in[0] * width) {
        for (int32_t i = 0; i < s->out[0]; i++, dy += out) {
            int32_t first, last;
            float scale;

            share_of(i, s->out[0], s->in[0], &first, &last);
            scale = 1.0f / (float)(last - first);
            back_columns(s, columns, dy, scratch);
            for (int32_t k = first; k < last; k++)
                for (int64_t c = 0; c < width; c++)
                    dx[k * width + c] += scratch[c] * scale;
        }
    }
}

static const struct dpt_cpu_resizer sharing = {.forward = forward_planes, .backward = back_planes};

static enum dpt_status plan(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                            struct dpt_error *err)
{
    const enum dpt_memory_layout layout = dpt_cpu_input_layout(program, node);
    const int32_t block = dpt_layout_block(layout, node->in.c);
    enum dpt_status status = DPT_OK;
    struct dpt_cpu_resize *own = node->own;

    *own = (struct dpt_cpu_resize){
        .resizer = node->graph->op == DPT_OP_BILINEAR ? &dpt_cpu_bilinear_resizer : &sharing,
        .planes = (int64_t)program->spec.micro * ((node->in.c + block - 1) / block),
        .block = block,
        .in = {node->in.h, node->in.w},
        .out = {node->out.h, node->out.w},
        .factor = {node->graph->window.kernel[0], node->graph->window.kernel[1]},
    };
    DPT_TRY(dpt_cpu_read(program, node, layout, err));
    dpt_cpu_write(program, node, layout);
    dpt_cpu_want_scratch(program, (int64_t)node->in.w * block +
                                      DPT_RESIZE_COLUMN *
                                          (node->in.w > node->out.w ? node->in.w : node->out.w));
out:
    return status;
}

static void forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_resize *own = node->own;

    own->resizer->forward(own, dpt_cpu_buffer(run, node->x), run->scratch,
                          dpt_cpu_buffer(run, node->y));
}

static void backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_cpu_resize *own = node->own;

    own->resizer->backward(own, dpt_cpu_buffer(run, node->dy), run->scratch,
                           dpt_cpu_buffer(run, node->dx));
}

#define RESIZE                                                                                     \
    {                                                                                              \
        .plan = plan, .forward = forward, .backward = backward,                                    \
        .own = sizeof(struct dpt_cpu_resize),                                                      \
    }
const struct dpt_cpu_op dpt_cpu_adaptive_avgpool = RESIZE, dpt_cpu_upsample = RESIZE,
                        dpt_cpu_bilinear = RESIZE;
