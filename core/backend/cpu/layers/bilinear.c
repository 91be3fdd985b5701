#include <string.h>

#include "core/backend/bilinear.h"
#include "core/backend/cpu/layers/channels.h"

/* Bilinear upsampling: a row of outputs lies between two rows of inputs, and each number of it
 * between two of these. In any layout. */

_Static_assert(sizeof(struct dpt_bilinear) <= DPT_RESIZE_COLUMN * sizeof(float),
               "a column's entry fits");

/* Fills in the table of columns after the row in the scratch memory; returns it. */
static const struct dpt_bilinear *columns_of(const struct dpt_cpu_resize *s, float *scratch)
{
    struct dpt_bilinear *columns = (void *)(scratch + s->in[1] * s->block);

    for (int32_t j = 0; j < s->out[1]; j++)
        columns[j] = dpt_bilinear_at(j, s->factor[1], s->in[1]);
    return columns;
}

/* Computes all columns. lanes: a constant that divides the block. */
DPT_INLINE void forward_columns(const struct dpt_cpu_resize *s, int lanes,
                                const struct dpt_bilinear *columns, const float *row, float *y)
{
    for (int32_t j = 0; j < s->out[1]; j++) {
        const float *first = row + columns[j].first * s->block;
        const float *second = row + columns[j].second * s->block;
        const float share = columns[j].share, rest = 1 - share;

        for (int64_t at = 0; at < s->block; at += lanes) {
            float sum[DPT_LANES];

            DPT_EACH_LANE(c, lanes)
            sum[c] = rest * first[at + c] + share * second[at + c];
            DPT_EACH_LANE(c, lanes)
            y[j * s->block + at + c] = sum[c];
        }
    }
}

DPT_VECTOR static void forward_planes(const struct dpt_cpu_resize *s, const float *x,
                                      float *scratch, float *y)
{
    const struct dpt_bilinear *columns = columns_of(s, scratch);
    const int64_t width = s->in[1] * s->block, out = s->out[1] * s->block;

    for (int64_t plane = 0; plane < s->planes; plane++, x += s->in[0] * width) {
        for (int32_t i = 0; i < s->out[0]; i++, y += out) {
            const struct dpt_bilinear at = dpt_bilinear_at(i, s->factor[0], s->in[0]);
            const float *first = x + at.first * width, *second = x + at.second * width;

            for (int64_t c = 0; c < width; c++)
                scratch[c] = (1 - at.share) * first[c] + at.share * second[c];
            if (s->block % 16 == 0)
                forward_columns(s, 16, columns, scratch, y);
            else if (s->block % 8 == 0)
                forward_columns(s, 8, columns, scratch, y);
            else
                forward_columns(s, 1, columns, scratch, y);
        }
    }
}

/* row: what each input gets of a row of outputs, without that row's share. */
DPT_INLINE void back_columns(const struct dpt_cpu_resize *s, int lanes,
                             const struct dpt_bilinear *columns, const float *dy, float *row)
{
    memset(row, 0, (size_t)(s->in[1] * s->block) * sizeof *row);
    for (int32_t j = 0; j < s->out[1]; j++) {
        float *first = row + columns[j].first * s->block;
        float *second = row + columns[j].second * s->block;
        const float share = columns[j].share, rest = 1 - share;

        for (int64_t at = 0; at < s->block; at += lanes) {
            float given[DPT_LANES], sum[DPT_LANES];

            DPT_EACH_LANE(c, lanes)
            given[c] = dy[j * s->block + at + c];
            DPT_EACH_LANE(c, lanes)
            sum[c] = first[at + c] + rest * given[c];
            DPT_EACH_LANE(c, lanes)
            first[at + c] = sum[c];
            if (share == 0)
                continue;
            DPT_EACH_LANE(c, lanes)
            sum[c] = second[at + c] + share * given[c];
            DPT_EACH_LANE(c, lanes)
            second[at + c] = sum[c];
        }
    }
}

DPT_VECTOR static void back_planes(const struct dpt_cpu_resize *s, const float *dy, float *scratch,
                                   float *dx)
{
    const struct dpt_bilinear *columns = columns_of(s, scratch);
    const int64_t width = s->in[1] * s->block, out = s->out[1] * s->block;

    memset(dx, 0, (size_t)(s->planes * s->in[0] * width) * sizeof *dx);
    for (int64_t plane = 0; plane < s->planes; plane++, dx += s->in[0] * width) {
        for (int32_t i = 0; i < s->out[0]; i++, dy += out) {
            const struct dpt_bilinear at = dpt_bilinear_at(i, s->factor[0], s->in[0]);
            float *first = dx + at.first * width, *second = dx + at.second * width;

            if (s->block % 16 == 0)
                back_columns(s, 16, columns, dy, scratch);
            else if (s->block % 8 == 0)
                back_columns(s, 8, columns, dy, scratch);
            else
                back_columns(s, 1, columns, dy, scratch);
            for (int64_t c = 0; c < width; c++)
                first[c] += (1 - at.share) * scratch[c];
            for (int64_t c = 0; at.share > 0 && c < width; c++)
                second[c] += at.share * scratch[c];
        }
    }
}

const struct dpt_cpu_resizer dpt_cpu_bilinear_resizer = {.forward = forward_planes,
                                                         .backward = back_planes};
