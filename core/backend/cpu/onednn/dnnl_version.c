#include "core/backend/cpu/onednn/dnnl_private.h"

#if DNNL_VERSION_MAJOR >= 3

dnnl_status_t dpt_desc_tag(dpt_desc *d, int n_dims, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(d, n_dims, dims, dnnl_f32, tag);
}

dnnl_status_t dpt_desc_copy(dpt_desc *d, dpt_borrowed_desc from)
{
    return dnnl_memory_desc_clone(d, from);
}

void dpt_desc_free(dpt_desc *d)
{
    if (*d != NULL)
        dnnl_memory_desc_destroy(*d);
    *d = NULL;
}

dnnl_status_t dpt_post_ops_add(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_f32);
}

dnnl_status_t dpt_conv_pd(const struct dpt_dnnl *d, enum dpt_conv_pass pass,
                          const struct dpt_conv_descs *c, const_dnnl_primitive_desc_t hint,
                          dnnl_primitive_desc_t *pd)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;

    if (pass == DPT_CONV_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(
            pd, d->engine, dnnl_forward_training, direct, c->x, c->w, c->b, c->y, c->stride,
            c->dilation, c->before, c->after, d->attr);
    if (pass == DPT_CONV_BACKWARD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(
            pd, d->engine, direct, c->x, c->w, c->y, c->stride, c->dilation, c->before, c->after,
            hint, d->attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(
        pd, d->engine, direct, c->x, c->w, c->b, c->y, c->stride, c->dilation, c->before, c->after,
        hint, d->attr);
}

#else

dnnl_status_t dpt_desc_tag(dpt_desc *d, int n_dims, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(d, n_dims, dims, dnnl_f32, tag);
}

dnnl_status_t dpt_desc_copy(dpt_desc *d, dpt_borrowed_desc from)
{
    *d = *from;
    return dnnl_success;
}

void dpt_desc_free(dpt_desc *d)
{
    (void)d;
}

dnnl_status_t dpt_post_ops_add(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

dnnl_status_t dpt_conv_pd(const struct dpt_dnnl *d, enum dpt_conv_pass pass,
                          const struct dpt_conv_descs *c, const_dnnl_primitive_desc_t hint,
                          dnnl_primitive_desc_t *pd)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    const dpt_desc *bias = c->bias ? &c->b : NULL;
    dnnl_convolution_desc_t op;
    dnnl_status_t result;

    if (pass == DPT_CONV_FORWARD)
        result = dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_training, direct,
                                                            &c->x, &c->w, bias, &c->y, c->stride,
                                                            c->dilation, c->before, c->after);
    else if (pass == DPT_CONV_BACKWARD_DATA)
        result = dnnl_dilated_convolution_backward_data_desc_init(
            &op, direct, &c->x, &c->w, &c->y, c->stride, c->dilation, c->before, c->after);
    else
        result = dnnl_dilated_convolution_backward_weights_desc_init(
            &op, direct, &c->x, &c->w, bias, &c->y, c->stride, c->dilation, c->before, c->after);
    if (result != dnnl_success)
        return result;
    return dnnl_primitive_desc_create(pd, &op, d->attr, d->engine, hint);
}

#endif
