#include "core/backend/cpu/dnnl_private.h"

/* The three passes of a convolution as kernels. */

static void weight_dims(const struct dpt_conv_shape *s, dnnl_dims_t dims, int *n_dims)
{
    const int grouped = s->groups > 1;

    if (grouped)
        dims[0] = s->groups;
    dims[grouped] = s->out_channels / s->groups;
    dims[grouped + 1] = s->in_channels / s->groups;
    dims[grouped + 2] = s->kernel[0];
    dims[grouped + 3] = s->kernel[1];
    *n_dims = 4 + grouped;
}

dnnl_status_t dpt_conv_canonical(const struct dpt_conv_shape *shape, dpt_desc *d)
{
    dnnl_dims_t dims;
    int n_dims;

    weight_dims(shape, dims, &n_dims);
    return dpt_desc_tag(d, n_dims, dims, n_dims == 4 ? dnnl_abcd : dnnl_abcde);
}

static enum dpt_layout layout_of(dpt_borrowed_desc d, const dnnl_dims_t dims)
{
    for (int layout = DPT_LAYOUT_NCHW; layout <= DPT_LAYOUT_C16; layout++) {
        dpt_desc candidate = {0};
        bool same;

        if (dpt_desc_tag(&candidate, 4, dims, dpt_layout_tag((enum dpt_layout)layout)) !=
            dnnl_success)
            continue;
        same = dnnl_memory_desc_equal(d, BORROW(candidate)) != 0;
        dpt_desc_free(&candidate);
        if (same)
            return (enum dpt_layout)layout;
    }
    return DPT_LAYOUT_ANY;
}

static dnnl_status_t conv_descs_init(struct dpt_conv_descs *c, const struct dpt_conv_shape *s,
                                     enum dpt_layout x, enum dpt_layout y)
{
    const dnnl_dims_t b_dims = {s->out_channels};
    dnnl_status_t result = dnnl_success;

    c->x_dims[0] = c->y_dims[0] = s->n;
    c->x_dims[1] = s->in_channels;
    c->y_dims[1] = s->out_channels;
    for (int i = 0; i < 2; i++) {
        c->x_dims[2 + i] = s->in[i];
        c->y_dims[2 + i] = s->out[i];
        c->stride[i] = s->stride[i];
        c->dilation[i] = s->dilation[i] - 1;
        c->before[i] = s->before[i];
        c->after[i] = s->after[i];
    }
    weight_dims(s, c->w_dims, &c->w_n_dims);
    c->bias = s->bias;
    DNNL_TRY(dpt_desc_tag(&c->x, 4, c->x_dims, dpt_layout_tag(x)));
    DNNL_TRY(dpt_desc_tag(&c->y, 4, c->y_dims, dpt_layout_tag(y)));
    DNNL_TRY(dpt_desc_tag(&c->w, c->w_n_dims, c->w_dims, dnnl_format_tag_any));
    if (c->bias)
        DNNL_TRY(dpt_desc_tag(&c->b, 1, b_dims, dnnl_a));
out:
    return result;
}

static void conv_descs_free(struct dpt_conv_descs *c)
{
    dpt_desc_free(&c->x);
    dpt_desc_free(&c->y);
    dpt_desc_free(&c->w);
    dpt_desc_free(&c->b);
}

static const struct {
    const char *what;
    struct dpt_argument arguments[DPT_ROLE_COUNT]; /* the bias last */
    size_t n;                                      /* without the bias */
    bool takes_bias;
} passes[] = {
    [DPT_CONV_FORWARD] = {"convolution",
                          {{DPT_ROLE_X, dnnl_query_src_md, DNNL_ARG_SRC},
                           {DPT_ROLE_Y, dnnl_query_dst_md, DNNL_ARG_DST},
                           {DPT_ROLE_W, dnnl_query_weights_md, DNNL_ARG_WEIGHTS},
                           {DPT_ROLE_B, dnnl_query_weights_md, DNNL_ARG_BIAS}},
                          3,
                          true},
    [DPT_CONV_BACKWARD_DATA] = {"convolution's gradient of the input",
                                {{DPT_ROLE_X, dnnl_query_diff_src_md, DNNL_ARG_DIFF_SRC},
                                 {DPT_ROLE_Y, dnnl_query_diff_dst_md, DNNL_ARG_DIFF_DST},
                                 {DPT_ROLE_W, dnnl_query_weights_md, DNNL_ARG_WEIGHTS}},
                                3,
                                false},
    [DPT_CONV_BACKWARD_WEIGHTS] = {"convolution's gradient of the weights",
                                   {{DPT_ROLE_X, dnnl_query_src_md, DNNL_ARG_SRC},
                                    {DPT_ROLE_Y, dnnl_query_diff_dst_md, DNNL_ARG_DIFF_DST},
                                    {DPT_ROLE_W, dnnl_query_diff_weights_md, DNNL_ARG_DIFF_WEIGHTS},
                                    {DPT_ROLE_B, dnnl_query_diff_weights_md, DNNL_ARG_DIFF_BIAS}},
                                   3,
                                   true},
};

/* The bias is a plain vector; as an argument it has no query of its own (index 1 of the weights),
 * so it is put in by hand. */
static dnnl_status_t add_bias(struct dpt_kernel *k, const struct dpt_argument *a, const dpt_desc *b)
{
    k->used[a->role] = true;
    k->code[a->role] = a->code;
    k->floats[a->role] = (int64_t)(dnnl_memory_desc_get_size(BORROW(*b)) / sizeof(float));
    return dpt_desc_copy(&k->arg[a->role], BORROW(*b));
}

enum dpt_status dpt_kernel_conv(struct dpt_dnnl *dnnl, enum dpt_conv_pass pass,
                                const struct dpt_conv_shape *shape, enum dpt_layout x,
                                enum dpt_layout y, struct dpt_kernel **kernel,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    dnnl_status_t result = dnnl_success;
    struct dpt_conv_descs c = {0};
    dnnl_primitive_desc_t forward = NULL, pd = NULL;

    *kernel = NULL;
    DPT_TRY(dpt_kernel_new(kernel, err));
    DNNL_TRY(conv_descs_init(&c, shape, x, y));
    if (pass != DPT_CONV_FORWARD)
        DNNL_TRY(dpt_conv_pd(dnnl, DPT_CONV_FORWARD, &c, NULL, &forward));
    DNNL_TRY(dpt_conv_pd(dnnl, pass, &c, forward, &pd));
    DNNL_TRY(dpt_kernel_finish(*kernel, pd, passes[pass].arguments, passes[pass].n));
    if (shape->bias && passes[pass].takes_bias)
        DNNL_TRY(add_bias(*kernel, &passes[pass].arguments[passes[pass].n], &c.b));
    (*kernel)->layout[DPT_ROLE_X] = layout_of(BORROW((*kernel)->arg[DPT_ROLE_X]), c.x_dims);
    (*kernel)->layout[DPT_ROLE_Y] = layout_of(BORROW((*kernel)->arg[DPT_ROLE_Y]), c.y_dims);
out:
    if (forward != NULL)
        dnnl_primitive_desc_destroy(forward);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    conv_descs_free(&c);
    if (result != dnnl_success)
        status = dpt_dnnl_fail(result, passes[pass].what, err);
    if (status != DPT_OK) {
        dpt_kernel_close(*kernel);
        *kernel = NULL;
    }
    return status;
}
