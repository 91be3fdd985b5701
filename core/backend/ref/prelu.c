#include "core/backend/ref/ref.h"

/* He et al. 2015: one slope per channel, equations 8 to 10. */

static void forward(const struct dpt_ref_call *call)
{
    const size_t area = call->in / (size_t)call->node->in.c;

    for (size_t i = 0; i < call->count * call->in; i++) {
        const float v = call->x[i];

        call->y[i] = v < 0 ? call->weight[i % call->in / area] * v : v;
    }
}

static void backward(const struct dpt_ref_call *call)
{
    const size_t area = call->in / (size_t)call->node->in.c;

    for (size_t i = 0; i < call->count * call->in; i++) {
        const size_t channel = i % call->in / area;
        const float v = call->x[i], dy = call->dy[i];

        if (!(v > 0))
            call->dweight[channel] += v * dy;
        if (call->dx != NULL)
            call->dx[i] += v > 0 ? dy : call->weight[channel] * dy;
    }
}

const struct dpt_ref_op dpt_ref_prelu = {.forward = forward, .backward = backward};
