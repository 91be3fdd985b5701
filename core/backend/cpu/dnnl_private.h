/*
 * dnnl_private: what the dnnl files share among themselves.
 */
#ifndef DPT_BACKEND_CPU_DNNL_PRIVATE_H
#define DPT_BACKEND_CPU_DNNL_PRIVATE_H

#include "core/backend/cpu/dnnl_version.h"

struct dpt_dnnl {
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr; /* scratch memory is ours */
    void (*set_threads)(int);   /* OpenMP's, for the calling thread; NULL where there is none */
    int threads;
    dnnl_stream_t streams[];
};

struct dpt_kernel {
    dnnl_primitive_t primitive;
    bool slow; /* one of oneDNN's fallbacks */
    bool used[DPT_ROLE_COUNT];
    int code[DPT_ROLE_COUNT]; /* oneDNN's number of the argument */
    dpt_desc arg[DPT_ROLE_COUNT];
    int64_t floats[DPT_ROLE_COUNT];
    enum dpt_layout layout[DPT_ROLE_COUNT]; /* of X and Y */
    bool has_scratch;
    dpt_desc scratch;
    int64_t scratch_floats;
};

/* Which argument a role is: how it is queried from the primitive descriptor, and its number at
 * execution. */
struct dpt_argument {
    enum dpt_role role;
    dnnl_query_t query;
    int code;
};

/* oneDNN's name of a layout. */
dnnl_format_tag_t dpt_layout_tag(enum dpt_layout layout);

/* Turns oneDNN's result into ours. what: "convolution". */
enum dpt_status dpt_dnnl_fail(dnnl_status_t result, const char *what, struct dpt_error *err);

/* An empty kernel; then filled from a primitive descriptor, n arguments. */
enum dpt_status dpt_kernel_new(struct dpt_kernel **kernel, struct dpt_error *err);
dnnl_status_t dpt_kernel_finish(struct dpt_kernel *kernel, const_dnnl_primitive_desc_t pd,
                                const struct dpt_argument *arguments, size_t n);

/* Weights in canonical order. */
dnnl_status_t dpt_conv_canonical(const struct dpt_conv_shape *shape, dpt_desc *d);

/* As DPT_TRY, with oneDNN's result: needs a local `result`. */
#define DNNL_TRY(call)                                                                             \
    do {                                                                                           \
        result = (call);                                                                           \
        if (result != dnnl_success)                                                                \
            goto out;                                                                              \
    } while (0)

#endif
