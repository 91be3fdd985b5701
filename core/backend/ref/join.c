#include <string.h>

#include "core/backend/ref/ref.h"

/* Joins of two values. Both inputs may be the same node's, whose gradient both parts are added to;
 * either gradient may not be wanted. */

/* dx += factor dy, number by number; factor NULL: 1. */
static void add_to(float *dx, const float *dy, const float *factor, size_t n)
{
    for (size_t i = 0; dx != NULL && i < n; i++)
        dx[i] += factor != NULL ? dy[i] * factor[i] : dy[i];
}

static void add_forward(const struct dpt_ref_call *call)
{
    for (size_t i = 0; i < call->count * call->out; i++)
        call->y[i] = call->x[i] + call->x_other[i];
}

static void add_backward(const struct dpt_ref_call *call)
{
    add_to(call->dx, call->dy, NULL, call->count * call->out);
    add_to(call->dx_other, call->dy, NULL, call->count * call->out);
}

const struct dpt_ref_op dpt_ref_add = {.forward = add_forward, .backward = add_backward};

static void multiply_forward(const struct dpt_ref_call *call)
{
    for (size_t i = 0; i < call->count * call->out; i++)
        call->y[i] = call->x[i] * call->x_other[i];
}

static void multiply_backward(const struct dpt_ref_call *call)
{
    add_to(call->dx, call->dy, call->x_other, call->count * call->out);
    add_to(call->dx_other, call->dy, call->x, call->count * call->out);
}

const struct dpt_ref_op dpt_ref_multiply = {.forward = multiply_forward,
                                            .backward = multiply_backward};

static void concat_forward(const struct dpt_ref_call *call)
{
    for (size_t row = 0; row < call->count; row++) {
        float *y = call->y + row * call->out;

        memcpy(y, call->x + row * call->in, call->in * sizeof *y);
        memcpy(y + call->in, call->x_other + row * call->other, call->other * sizeof *y);
    }
}

static void concat_backward(const struct dpt_ref_call *call)
{
    for (size_t row = 0; row < call->count; row++) {
        const float *dy = call->dy + row * call->out;

        if (call->dx != NULL)
            add_to(call->dx + row * call->in, dy, NULL, call->in);
        if (call->dx_other != NULL)
            add_to(call->dx_other + row * call->other, dy + call->in, NULL, call->other);
    }
}

const struct dpt_ref_op dpt_ref_concat = {.forward = concat_forward, .backward = concat_backward};
