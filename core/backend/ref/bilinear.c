#include "core/backend/bilinear.h"

#include "core/backend/ref/ref.h"

/* An input next to an output, and its share in the output. */
struct corner {
    size_t input;
    double weight;
};

/* Lists the up to four inputs of an output in a plane; returns how many there are. */
static int corners_of(const struct dpt_graph_node *node, int32_t row, int32_t column,
                      struct corner corners[4])
{
    const struct dpt_bilinear r = dpt_bilinear_at(row, node->window.kernel[0], node->in.h);
    const struct dpt_bilinear c = dpt_bilinear_at(column, node->window.kernel[1], node->in.w);
    int n = 0;

    for (int32_t i = r.first; i <= r.second; i++) {
        for (int32_t j = c.first; j <= c.second; j++) {
            const float of_row = i == r.first ? 1 - r.share : r.share;
            const float of_column = j == c.first ? 1 - c.share : c.share;

            corners[n].input = (size_t)i * (size_t)node->in.w + (size_t)j;
            corners[n++].weight = (double)of_row * of_column;
        }
    }
    return n;
}

static void interpolate(const struct dpt_ref_call *call, int32_t row, int32_t column, size_t input,
                        size_t output)
{
    struct corner corners[4];
    const int n = corners_of(call->node, row, column, corners);
    double sum = 0;

    for (int k = 0; k < n; k++)
        sum += corners[k].weight * call->x[input + corners[k].input];
    call->y[output] = (float)sum;
}

static void share_out(const struct dpt_ref_call *call, int32_t row, int32_t column, size_t input,
                      size_t output)
{
    struct corner corners[4];
    const int n = corners_of(call->node, row, column, corners);

    for (int k = 0; k < n; k++)
        call->dx[input + corners[k].input] += (float)(corners[k].weight * call->dy[output]);
}

const struct dpt_ref_op dpt_ref_bilinear = {.forward_each = interpolate,
                                            .backward_each = share_out};
