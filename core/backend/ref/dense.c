#include "core/backend/ref/ref.h"

#include <string.h>

/* y = x W' + b over the rows of the micro-batch; W is [out][in]. */
static void forward(const struct dpt_ref_call *call)
{
    for (size_t i = 0; i < call->count; i++) {
        float *y = call->y + i * call->out;

        if (call->bias != NULL)
            memcpy(y, call->bias, call->out * sizeof *y);
        else
            memset(y, 0, call->out * sizeof *y);
    }
    dpt_ref_matmul_add(call->count, call->out, call->in,
                       (struct dpt_ref_matrix){call->x, call->in, 1},
                       (struct dpt_ref_matrix){call->weight, 1, call->in}, call->y, call->out);
}

/* dW += dy' x, db += sum of dy, dx += dy W */
static void backward(const struct dpt_ref_call *call)
{
    dpt_ref_matmul_add(call->out, call->in, call->count,
                       (struct dpt_ref_matrix){call->dy, 1, call->out},
                       (struct dpt_ref_matrix){call->x, call->in, 1}, call->dweight, call->in);
    for (size_t o = 0; call->dbias != NULL && o < call->out; o++) {
        double sum = 0;

        for (size_t i = 0; i < call->count; i++)
            sum += call->dy[i * call->out + o];
        call->dbias[o] += (float)sum;
    }
    if (call->dx == NULL)
        return;
    dpt_ref_matmul_add(call->count, call->in, call->out,
                       (struct dpt_ref_matrix){call->dy, call->out, 1},
                       (struct dpt_ref_matrix){call->weight, call->in, 1}, call->dx, call->in);
}

const struct dpt_ref_op dpt_ref_dense = {.forward = forward, .backward = backward};
