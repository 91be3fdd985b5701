#include "core/backend/cpu/conv_kernels.h"

#include <stddef.h>

void dpt_conv_kernels_close(struct dpt_conv_kernels *k)
{
    dpt_kernel_close(k->forward);
    dpt_kernel_close(k->data);
    dpt_kernel_close(k->weights);
    *k = (struct dpt_conv_kernels){0};
}

enum dpt_status dpt_conv_kernels_make(const struct dpt_conv_request *request, enum dpt_layout x,
                                      enum dpt_layout y, struct dpt_conv_kernels *k,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *k = (struct dpt_conv_kernels){0};
    DPT_TRY(
        dpt_kernel_conv(request->dnnl, DPT_CONV_FORWARD, &request->shape, x, y, &k->forward, err));
    k->x = dpt_kernel_layout(k->forward, DPT_ROLE_X);
    k->y = dpt_kernel_layout(k->forward, DPT_ROLE_Y);
    k->slow = dpt_kernel_slow(k->forward);
    if (k->x == DPT_LAYOUT_ANY || k->y == DPT_LAYOUT_ANY) {
        status = dpt_fail(err, DPT_BAD_JOB, "oneDNN chose a layout that is not known here");
        goto out;
    }
    if (request->data) {
        DPT_TRY(dpt_kernel_conv(request->dnnl, DPT_CONV_BACKWARD_DATA, &request->shape, k->x, k->y,
                                &k->data, err));
        k->slow += dpt_kernel_slow(k->data);
    }
    if (request->weights) {
        DPT_TRY(dpt_kernel_conv(request->dnnl, DPT_CONV_BACKWARD_WEIGHTS, &request->shape, k->x,
                                k->y, &k->weights, err));
        k->slow += dpt_kernel_slow(k->weights);
    }
out:
    if (status != DPT_OK)
        dpt_conv_kernels_close(k);
    return status;
}

enum dpt_status dpt_conv_kernels_choose(const struct dpt_conv_request *request,
                                        struct dpt_conv_kernels *best, struct dpt_error *err)
{
    static const enum dpt_layout layouts[][2] = {
        {DPT_LAYOUT_ANY, DPT_LAYOUT_ANY},   {DPT_LAYOUT_C16, DPT_LAYOUT_C16},
        {DPT_LAYOUT_C8, DPT_LAYOUT_C8},     {DPT_LAYOUT_NHWC, DPT_LAYOUT_NHWC},
        {DPT_LAYOUT_NCHW, DPT_LAYOUT_NCHW},
    };
    enum dpt_status status = DPT_BAD_JOB;
    struct dpt_conv_kernels k;

    *best = (struct dpt_conv_kernels){0};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        status = dpt_conv_kernels_make(request, layouts[i][0], layouts[i][1], &k, err);
        if (status == DPT_OK && (best->forward == NULL || k.slow < best->slow)) {
            dpt_conv_kernels_close(best);
            *best = k;
        } else if (status == DPT_OK) {
            dpt_conv_kernels_close(&k);
        }
        if (status != DPT_OK && status != DPT_BAD_JOB)
            break;
        if (best->forward != NULL && best->slow == 0)
            break;
    }
    if (best->forward == NULL)
        return status == DPT_BAD_JOB
                   ? dpt_fail(err, status, "%s: oneDNN has no convolution of this shape",
                              request->name)
                   : status;
    return DPT_OK;
}
