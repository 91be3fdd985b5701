#include "core/backend/cpu/onednn/dnnl_private.h"

/* The three passes of a convolution as kernels. */

static void weight_dims(const struct dpt_conv_shape *s, dnnl_dims_t dims, int *n_dims)
{
    const int grouped = s->window.groups > 1;

    if (grouped)
        dims[0] = s->window.groups;
    dims[grouped] = s->out_channels / s->window.groups;
    dims[grouped + 1] = s->in_channels / s->window.groups;
    dims[grouped + 2] = s->window.kernel[0];
    dims[grouped + 3] = s->window.kernel[1];
    *n_dims = 4 + grouped;
}

static enum dpt_memory_layout layout_of(dpt_borrowed_desc d, const dnnl_dims_t dims)
{
    for (int layout = DPT_LAYOUT_NCHW; layout <= DPT_LAYOUT_C16; layout++) {
        dpt_desc candidate = {0};
        bool same;

        if (dpt_desc_tag(&candidate, 4, dims, dpt_layout_tag((enum dpt_memory_layout)layout)) !=
            dnnl_success)
            continue;
        same = dnnl_memory_desc_equal(d, BORROW(candidate)) != 0;
        dpt_desc_free(&candidate);
        if (same)
            return (enum dpt_memory_layout)layout;
    }
    return DPT_LAYOUT_ANY;
}

static dnnl_status_t conv_descs_init(struct dpt_conv_descs *c, const struct dpt_conv_shape *s,
                                     enum dpt_memory_layout x, enum dpt_memory_layout y)
{
    const dnnl_dims_t b_dims = {s->out_channels};
    dnnl_status_t result = dnnl_success;

    c->x_dims[0] = c->y_dims[0] = s->n;
    c->x_dims[1] = s->in_channels;
    c->y_dims[1] = s->out_channels;
    for (int i = 0; i < 2; i++) {
        c->x_dims[2 + i] = s->in[i];
        c->y_dims[2 + i] = s->out[i];
        c->stride[i] = s->window.stride[i];
        c->dilation[i] = s->window.dilation[i] - 1;
        c->before[i] = s->window.before[i];
        c->after[i] = s->window.after[i];
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

static const struct {
    const char *what;
    struct dpt_argument arguments[DPT_ROLE_COUNT]; /* the bias last */
    size_t n, bias;                                /* without it; with it, 1 more if it takes one */
} passes[DPT_CONV_PASSES] = {
    [DPT_CONV_FORWARD] = {"convolution",
                          {{DPT_ROLE_X, dnnl_query_src_md, 0, DNNL_ARG_SRC},
                           {DPT_ROLE_Y, dnnl_query_dst_md, 0, DNNL_ARG_DST},
                           {DPT_ROLE_W, dnnl_query_weights_md, 0, DNNL_ARG_WEIGHTS},
                           {DPT_ROLE_B, dnnl_query_weights_md, 1, DNNL_ARG_BIAS}},
                          3,
                          1},
    [DPT_CONV_BACKWARD_DATA] = {"convolution's gradient of the input",
                                {{DPT_ROLE_X, dnnl_query_diff_src_md, 0, DNNL_ARG_DIFF_SRC},
                                 {DPT_ROLE_Y, dnnl_query_diff_dst_md, 0, DNNL_ARG_DIFF_DST},
                                 {DPT_ROLE_W, dnnl_query_weights_md, 0, DNNL_ARG_WEIGHTS}},
                                3,
                                0},
    [DPT_CONV_BACKWARD_WEIGHTS] =
        {"convolution's gradient of the weights",
         {{DPT_ROLE_X, dnnl_query_src_md, 0, DNNL_ARG_SRC},
          {DPT_ROLE_Y, dnnl_query_diff_dst_md, 0, DNNL_ARG_DIFF_DST},
          {DPT_ROLE_W, dnnl_query_diff_weights_md, 0, DNNL_ARG_DIFF_WEIGHTS},
          {DPT_ROLE_B, dnnl_query_diff_weights_md, 1, DNNL_ARG_DIFF_BIAS}},
         3,
         1},
};

enum dpt_status dpt_kernel_conv(struct dpt_dnnl *dnnl, enum dpt_conv_pass pass,
                                const struct dpt_conv_shape *shape, enum dpt_memory_layout x,
                                enum dpt_memory_layout y, struct dpt_kernel **kernel,
                                struct dpt_error *err)
{
    const size_t n = passes[pass].n + (shape->bias ? passes[pass].bias : 0);
    enum dpt_status status;
    dnnl_status_t result;
    struct dpt_conv_descs c = {0};
    dpt_desc *const owned[] = {&c.x, &c.y, &c.w, &c.b};
    dnnl_primitive_desc_t forward = NULL, pd = NULL;

    DNNL_TRY(conv_descs_init(&c, shape, x, y));
    if (pass != DPT_CONV_FORWARD)
        DNNL_TRY(dpt_conv_pd(dnnl, DPT_CONV_FORWARD, &c, NULL, &forward));
    DNNL_TRY(dpt_conv_pd(dnnl, pass, &c, forward, &pd));
out:
    status = dpt_kernel_make(result, pd, passes[pass].what, passes[pass].arguments, n, kernel, err);
    if (status == DPT_OK) {
        const dpt_desc *arg = ((struct kernel *)*kernel)->arg;

        (*kernel)->layout[DPT_ROLE_X] = layout_of(BORROW(arg[DPT_ROLE_X]), c.x_dims);
        (*kernel)->layout[DPT_ROLE_Y] = layout_of(BORROW(arg[DPT_ROLE_Y]), c.y_dims);
    }
    if (forward != NULL)
        dnnl_primitive_desc_destroy(forward);
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        dpt_desc_free(owned[i]);
    return status;
}

enum dpt_status dpt_kernel_reorder_weights(struct dpt_dnnl *dnnl,
                                           const struct dpt_conv_shape *shape,
                                           const struct dpt_kernel *conv,
                                           enum dpt_weights_move move, struct dpt_kernel **kernel,
                                           struct dpt_error *err)
{
    const dpt_borrowed_desc theirs = BORROW(((const struct kernel *)conv)->arg[DPT_ROLE_W]);
    const bool back = move != DPT_WEIGHTS_PACK, add = move == DPT_WEIGHTS_UNPACK_ADD;
    enum dpt_status status;
    dnnl_status_t result;
    dpt_desc plain = {0};
    dnnl_dims_t dims;
    int n_dims;

    weight_dims(shape, dims, &n_dims);
    result = dpt_desc_tag(&plain, n_dims, dims, n_dims == 4 ? dnnl_abcd : dnnl_abcde);
    status = dpt_kernel_move(dnnl, result, back ? theirs : BORROW(plain),
                             back ? BORROW(plain) : theirs, add, kernel, err);
    dpt_desc_free(&plain);
    return status;
}

/* --- a pair of layouts for all passes --------------------------------------------------------- */

void dpt_conv_kernels_close(struct dpt_conv_kernels *k)
{
    for (int pass = 0; pass < DPT_CONV_PASSES; pass++)
        dpt_kernel_close(k->pass[pass]);
    *k = (struct dpt_conv_kernels){0};
}

enum dpt_status dpt_conv_kernels_make(const struct dpt_conv_request *request,
                                      enum dpt_memory_layout x, enum dpt_memory_layout y,
                                      struct dpt_conv_kernels *k, struct dpt_error *err)
{
    const bool wanted[DPT_CONV_PASSES] = {true, request->data, request->weights};
    enum dpt_status status = DPT_OK;

    *k = (struct dpt_conv_kernels){.x = x, .y = y};
    for (int pass = 0; pass < DPT_CONV_PASSES; pass++) {
        if (!wanted[pass])
            continue;
        DPT_TRY(dpt_kernel_conv(request->dnnl, (enum dpt_conv_pass)pass, &request->shape, k->x,
                                k->y, &k->pass[pass], err));
        k->slow += k->pass[pass]->slow;
        k->x = k->pass[DPT_CONV_FORWARD]->layout[DPT_ROLE_X];
        k->y = k->pass[DPT_CONV_FORWARD]->layout[DPT_ROLE_Y];
        if (k->x == DPT_LAYOUT_ANY || k->y == DPT_LAYOUT_ANY)
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "oneDNN chose a layout that is not known here"));
    }
out:
    if (status != DPT_OK)
        dpt_conv_kernels_close(k);
    return status;
}

enum dpt_status dpt_conv_kernels_choose(const struct dpt_conv_request *request,
                                        struct dpt_conv_kernels *best, struct dpt_error *err)
{
    static const enum dpt_memory_layout layouts[][2] = {
        {DPT_LAYOUT_ANY, DPT_LAYOUT_ANY},   {DPT_LAYOUT_C16, DPT_LAYOUT_C16},
        {DPT_LAYOUT_C8, DPT_LAYOUT_C8},     {DPT_LAYOUT_NHWC, DPT_LAYOUT_NHWC},
        {DPT_LAYOUT_NCHW, DPT_LAYOUT_NCHW},
    };
    bool found = false;

    *best = (struct dpt_conv_kernels){0};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0] && (!found || best->slow > 0); i++) {
        struct dpt_conv_kernels k, other;
        const enum dpt_status status =
            dpt_conv_kernels_make(request, layouts[i][0], layouts[i][1], &k, err);

        if (status != DPT_OK && status != DPT_BAD_JOB) {
            dpt_conv_kernels_close(best);
            return status;
        }
        other = k;
        if (status == DPT_OK && (!found || k.slow < best->slow)) {
            other = *best;
            *best = k;
            found = true;
        }
        dpt_conv_kernels_close(&other);
    }
    return found ? DPT_OK
                 : dpt_fail(err, DPT_BAD_JOB, "%s: oneDNN has no convolution of this shape",
                            request->name);
}
