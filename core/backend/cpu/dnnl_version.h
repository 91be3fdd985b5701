/*
 * dnnl_version: what oneDNN 2.x and 3.x do differently, in one vocabulary. For the dnnl files only.
 *
 * A dpt_desc says what memory looks like: a struct in 2.x, a handle in 3.x. It is owned, starts as
 * {0}, and is freed with dpt_desc_free; BORROW gives what functions of oneDNN take. The rest of
 * what is used is the same in both.
 */
#ifndef DPT_BACKEND_CPU_DNNL_VERSION_H
#define DPT_BACKEND_CPU_DNNL_VERSION_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>

#include "core/backend/cpu/dnnl.h"

typedef dnnl_memory_desc_t dpt_desc;
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t dpt_borrowed_desc;
#define BORROW(d) (d)
#elif DNNL_VERSION_MAJOR == 2
typedef const dnnl_memory_desc_t *dpt_borrowed_desc;
#define BORROW(d) (&(d))
#else
#error "oneDNN 2.x or 3.x is needed"
#endif

dnnl_status_t dpt_desc_tag(dpt_desc *d, int n_dims, const dnnl_dims_t dims, dnnl_format_tag_t tag);
dnnl_status_t dpt_desc_copy(dpt_desc *d, dpt_borrowed_desc from);
void dpt_desc_free(dpt_desc *d);

/* The requested arguments of a convolution. */
struct dpt_conv_descs {
    dpt_desc x, y, w, b;
    dnnl_dims_t x_dims, y_dims, w_dims, stride, dilation, before, after;
    int w_n_dims;
    bool bias;
};

/* hint: the descriptor of the forward pass, for the backward ones; else NULL. */
dnnl_status_t dpt_conv_pd(const struct dpt_dnnl *d, enum dpt_conv_pass pass,
                          const struct dpt_conv_descs *c, const_dnnl_primitive_desc_t hint,
                          dnnl_primitive_desc_t *pd);

#endif
