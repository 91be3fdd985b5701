#include "core/backend/ref/ref.h"

#include <string.h>

#include "core/backend/bf16.h"

/* The outputs that this rank computes, and the inputs whose gradient it does: all, unless ranks
 * divide the layer. */
static struct dpt_range outputs_of(const struct dpt_ref_call *call)
{
    return call->node->divided ? call->node->own_outputs
                               : (struct dpt_range){0, (int64_t)call->out};
}

static void gather(const struct dpt_ref_call *call, bool gradient, float *values)
{
    const struct dpt_divided *divided = call->pass->divided;

    divided->gather(divided->arg, call->index, gradient, values, (int64_t)call->count);
}

/* y = x W' + b over the rows of the micro-batch; W is [out][in]. */
static void forward(const struct dpt_ref_call *call)
{
    const struct dpt_range own = outputs_of(call);

    for (size_t i = 0; i < call->count; i++) {
        float *y = call->y + i * call->out;

        if (call->bias != NULL)
            memcpy(y, call->bias, call->out * sizeof *y);
        else
            memset(y, 0, call->out * sizeof *y);
    }
    dpt_ref_matmul_add(call->count, (size_t)(own.last - own.first), call->in,
                       (struct dpt_ref_matrix){call->x, call->in, 1},
                       (struct dpt_ref_matrix){call->weight, 1, call->in}, call->y + own.first,
                       call->out);
    if (call->node->divided)
        gather(call, false, call->y);
}

/* dx += dy W for this rank's inputs, whose columns of weights it gets; the other ranks give the
 * rest. */
static void divided_dx(const struct dpt_ref_call *call)
{
    const struct dpt_divided *divided = call->pass->divided;
    const struct dpt_range *own = &call->node->own_inputs;
    const size_t columns = (size_t)(own->last - own->first);
    const float *weight = divided->columns(divided->arg, call->index);

    if (call->columns != NULL) {
        dpt_bf16_round((int64_t)(call->out * columns), weight, call->columns);
        weight = call->columns;
    }
    dpt_ref_matmul_add(
        call->count, columns, call->out, (struct dpt_ref_matrix){call->dy, call->out, 1},
        (struct dpt_ref_matrix){weight, columns, 1}, call->dx + own->first, call->in);
    gather(call, true, call->dx);
}

/* dW += dy' x, db += sum of dy, dx += dy W */
static void backward(const struct dpt_ref_call *call)
{
    const struct dpt_range own = outputs_of(call);

    dpt_ref_matmul_add((size_t)(own.last - own.first), call->in, call->count,
                       (struct dpt_ref_matrix){call->dy + own.first, 1, call->out},
                       (struct dpt_ref_matrix){call->x, call->in, 1}, call->dweight, call->in);
    for (size_t o = 0; call->dbias != NULL && o < call->out; o++) {
        double sum = 0;

        for (size_t i = 0; i < call->count; i++)
            sum += call->dy[i * call->out + o];
        call->dbias[o] += (float)sum;
    }
    if (call->dx == NULL)
        return;
    if (call->node->divided)
        divided_dx(call);
    else
        dpt_ref_matmul_add(call->count, call->in, call->out,
                           (struct dpt_ref_matrix){call->dy, call->out, 1},
                           (struct dpt_ref_matrix){call->weight, call->in, 1}, call->dx, call->in);
}

const struct dpt_ref_op dpt_ref_dense = {.forward = forward, .backward = backward};
