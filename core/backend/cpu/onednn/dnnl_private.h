/*
 * dnnl_private: what the dnnl files share among themselves, and what oneDNN 2.x and 3.x do
 * differently, in one vocabulary.
 *
 * A dpt_desc says what memory looks like: a struct in 2.x, a handle in 3.x. It is owned, starts as
 * {0}, and is freed with dpt_desc_free; BORROW gives what functions of oneDNN take. The rest of
 * what is used is the same in both.
 */
#ifndef DPT_BACKEND_CPU_DNNL_PRIVATE_H
#define DPT_BACKEND_CPU_DNNL_PRIVATE_H

#include <oneapi/dnnl/dnnl.h>

#include "core/backend/cpu/onednn/dnnl.h"

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

struct dpt_dnnl {
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr; /* scratch memory is ours */
    dnnl_primitive_attr_t add;  /* likewise; and the result is added to what is there */
    void (*set_threads)(int);   /* OpenMP's, for the calling thread; NULL if there is none */
    int threads;
    dnnl_stream_t streams[];
};

/* The whole of a struct dpt_kernel, which other files see as its first member. */
struct kernel {
    struct dpt_kernel seen;
    dnnl_primitive_t primitive;
    int code[DPT_ROLE_COUNT]; /* oneDNN's number of the argument; 0: it has no such one */
    dpt_desc arg[DPT_ROLE_COUNT], scratch;
};

/* The argument of a role: how it is queried from the primitive descriptor, and its number at
 * execution. */
struct dpt_argument {
    enum dpt_role role;
    dnnl_query_t query;
    int index, code;
};

/* The requested arguments of a convolution. */
struct dpt_conv_descs {
    dpt_desc x, y, w, b;
    dnnl_dims_t x_dims, y_dims, w_dims, stride, dilation, before, after;
    int w_n_dims;
    bool bias;
};

dnnl_status_t dpt_desc_tag(dpt_desc *d, int n_dims, const dnnl_dims_t dims, dnnl_format_tag_t tag);
dnnl_status_t dpt_desc_copy(dpt_desc *d, dpt_borrowed_desc from);
void dpt_desc_free(dpt_desc *d);
dnnl_status_t dpt_post_ops_add(dnnl_post_ops_t ops);

/* hint: the descriptor of the forward pass, for the backward ones; else NULL. */
dnnl_status_t dpt_conv_pd(const struct dpt_dnnl *d, enum dpt_conv_pass pass,
                          const struct dpt_conv_descs *c, const_dnnl_primitive_desc_t hint,
                          dnnl_primitive_desc_t *pd);

/* oneDNN's name of a layout. */
dnnl_format_tag_t dpt_layout_tag(enum dpt_memory_layout layout);

/* A kernel from a primitive descriptor, which is freed, with n arguments; or the failure of the
 * call that was to make the descriptor. what: "convolution". Errors: BAD_JOB, RANK, INTERNAL; then
 * *kernel is NULL. */
enum dpt_status dpt_kernel_make(dnnl_status_t result, dnnl_primitive_desc_t pd, const char *what,
                                const struct dpt_argument *arguments, size_t n,
                                struct dpt_kernel **kernel, struct dpt_error *err);
/* A kernel that moves memory described by `from` to memory described by `to`, or adds it to that.
 * result: the outcome of making the two descriptors. */
enum dpt_status dpt_kernel_move(struct dpt_dnnl *dnnl, dnnl_status_t result, dpt_borrowed_desc from,
                                dpt_borrowed_desc to, bool add, struct dpt_kernel **kernel,
                                struct dpt_error *err);

/* Does what DPT_TRY does, for a result of oneDNN's: it needs a local `result`. */
#define DNNL_TRY(call)                                                                             \
    do {                                                                                           \
        result = (call);                                                                           \
        if (result != dnnl_success)                                                                \
            goto out;                                                                              \
    } while (0)

#endif
