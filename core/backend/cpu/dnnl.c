#include "core/backend/cpu/dnnl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/cpu/dnnl_private.h"
#include "core/base/memory.h"

struct dpt_call {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    int n;
    dnnl_exec_arg_t args[DPT_ROLE_COUNT + 1];
    dnnl_memory_t memory[DPT_ROLE_COUNT]; /* by role; borrowed from args */
};

static const dnnl_format_tag_t tags[] = {
    [DPT_LAYOUT_ANY] = dnnl_format_tag_any, [DPT_LAYOUT_NCHW] = dnnl_nchw,
    [DPT_LAYOUT_NHWC] = dnnl_nhwc,          [DPT_LAYOUT_C8] = dnnl_nChw8c,
    [DPT_LAYOUT_C16] = dnnl_nChw16c,
};

dnnl_format_tag_t dpt_layout_tag(enum dpt_layout layout)
{
    return tags[layout];
}

int32_t dpt_layout_block(enum dpt_layout layout, int32_t channels)
{
    const int32_t blocks[] = {1, 1, channels, 8, 16};

    return blocks[layout];
}

int64_t dpt_layout_floats(enum dpt_layout layout, int32_t c, int32_t h, int32_t w)
{
    const int64_t block = dpt_layout_block(layout, c);

    return (c + block - 1) / block * block * h * w;
}

enum dpt_status dpt_dnnl_fail(dnnl_status_t result, const char *what, struct dpt_error *err)
{
    if (result == dnnl_out_of_memory)
        return dpt_fail(err, DPT_RANK, "not enough memory for oneDNN's %s", what);
    if (result == dnnl_unimplemented || result == dnnl_invalid_arguments)
        return dpt_fail(err, DPT_BAD_JOB, "oneDNN has no %s of this shape", what);
    return dpt_fail(err, DPT_INTERNAL, "oneDNN's %s failed (status %d)", what, (int)result);
}

/* --- the library ------------------------------------------------------------------------------ */

static struct {
    pthread_once_t once;
    char text[64], used[64];
} description = {.once = PTHREAD_ONCE_INIT};

static void describe(void)
{
    static const struct {
        dnnl_cpu_isa_t isa;
        const char *name, *used; /* used: by fp32, which is all that is computed here */
    } isas[] = {
        {dnnl_cpu_isa_sse41, "SSE4.1", "SSE4.1"},
        {dnnl_cpu_isa_avx, "AVX", "AVX"},
        {dnnl_cpu_isa_avx2, "AVX2", "AVX2"},
        {dnnl_cpu_isa_avx512_core, "AVX-512", "AVX-512"},
        {dnnl_cpu_isa_avx512_core_vnni, "AVX-512 VNNI", "AVX-512"},
        {dnnl_cpu_isa_avx512_core_bf16, "AVX-512 BF16", "AVX-512"},
        {dnnl_cpu_isa_avx512_core_amx, "AVX-512 AMX", "AVX-512"},
    };
    const dnnl_version_t *version = dnnl_version();
    const unsigned have = (unsigned)dnnl_get_effective_cpu_isa();
    const char *name = "generic CPU", *used = name;

    /* Each value holds the bits of those it extends. */
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if ((have & (unsigned)isas[i].isa) == (unsigned)isas[i].isa) {
            name = isas[i].name;
            used = isas[i].used;
        }
    }
    snprintf(description.text, sizeof description.text, "oneDNN %d.%d.%d, %s", version->major,
             version->minor, version->patch, name);
    snprintf(description.used, sizeof description.used, "oneDNN %d.%d.%d, %s", version->major,
             version->minor, version->patch, used);
}

const char *dpt_dnnl_describe(void)
{
    pthread_once(&description.once, describe);
    return description.text;
}

const char *dpt_dnnl_uses(void)
{
    pthread_once(&description.once, describe);
    return description.used;
}

/* Looked up, not linked: which OpenMP runtime is there, if any, is oneDNN's affair. */
static void (*find_set_threads(void))(int)
{
    void (*set_threads)(int);

    *(void **)&set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    return set_threads;
}

/* Each value holds the bits of those it extends. */
static const dnnl_cpu_isa_t sets[DPT_ISA_COUNT] = {
    [DPT_ISA_AVX2] = dnnl_cpu_isa_avx2,
    [DPT_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
    [DPT_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
    [DPT_ISA_AMX] = dnnl_cpu_isa_avx512_core_amx,
};

enum dpt_isa dpt_dnnl_isa(void)
{
    const unsigned have = (unsigned)dnnl_get_effective_cpu_isa();
    enum dpt_isa isa = DPT_ISA_PLAIN;

    for (int i = DPT_ISA_AVX2; i < DPT_ISA_COUNT; i++)
        if ((have & (unsigned)sets[i]) == (unsigned)sets[i])
            isa = (enum dpt_isa)i;
    return isa;
}

enum dpt_status dpt_dnnl_limit(enum dpt_isa most, struct dpt_error *err)
{
    enum dpt_isa have;

    /* It refuses a second time; what counts is what it makes use of from here on. */
    (void)dnnl_set_max_cpu_isa(sets[most]);
    have = dpt_dnnl_isa();
    if (have < most)
        return dpt_fail(err, DPT_BAD_JOB, "device.isa: %s: oneDNN has %s at most on this machine",
                        dpt_isa_names[most], dpt_isa_names[have]);
    if (have > most)
        return dpt_fail(err, DPT_BAD_JOB,
                        "device.isa: %s: this oneDNN cannot be held to it and uses %s: build it "
                        "with DNNL_ENABLE_MAX_CPU_ISA=ON",
                        dpt_isa_names[most], dpt_isa_names[have]);
    return DPT_OK;
}

void dpt_dnnl_one_thread(const struct dpt_dnnl *dnnl)
{
    if (dnnl->set_threads != NULL)
        dnnl->set_threads(1);
}

enum dpt_status dpt_dnnl_open(struct dpt_dnnl **dnnl, int threads, struct dpt_error *err)
{
    dnnl_status_t result;
    struct dpt_dnnl *d = dpt_alloc(sizeof *d + (size_t)threads * sizeof d->streams[0]);

    *dnnl = NULL;
    if (d == NULL)
        return dpt_fail_memory(err, "oneDNN's streams", (double)threads * sizeof d->streams[0]);
    d->threads = threads;
    d->set_threads = find_set_threads();
    dpt_dnnl_one_thread(d);
    DNNL_TRY(dnnl_engine_create(&d->engine, dnnl_cpu, 0));
    DNNL_TRY(dnnl_primitive_attr_create(&d->attr));
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(d->attr, dnnl_scratchpad_mode_user));
    for (int i = 0; i < threads; i++)
        DNNL_TRY(dnnl_stream_create(&d->streams[i], d->engine, dnnl_stream_in_order));
    *dnnl = d;
    return DPT_OK;
out:
    dpt_dnnl_close(d);
    return dpt_dnnl_fail(result, "engine", err);
}

void dpt_dnnl_close(struct dpt_dnnl *dnnl)
{
    if (dnnl == NULL)
        return;
    for (int i = 0; i < dnnl->threads; i++) {
        if (dnnl->streams[i] != NULL)
            dnnl_stream_destroy(dnnl->streams[i]);
    }
    if (dnnl->attr != NULL)
        dnnl_primitive_attr_destroy(dnnl->attr);
    if (dnnl->engine != NULL)
        dnnl_engine_destroy(dnnl->engine);
    dpt_free(dnnl);
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* Fills the kernel from a primitive descriptor. */
dnnl_status_t dpt_kernel_finish(struct dpt_kernel *k, const_dnnl_primitive_desc_t pd,
                                const struct dpt_argument *arguments, size_t n)
{
    dnnl_status_t result = dnnl_success;
    const char *name = NULL;

    DNNL_TRY(dnnl_primitive_create(&k->primitive, pd));
    DNNL_TRY(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name));
    k->slow = strstr(name, "ref") != NULL;
    for (size_t i = 0; i < n; i++) {
        const struct dpt_argument *a = &arguments[i];
        const dpt_borrowed_desc d = dnnl_primitive_desc_query_md(pd, a->query, 0);

        DNNL_TRY(dpt_desc_copy(&k->arg[a->role], d));
        k->used[a->role] = true;
        k->code[a->role] = a->code;
        k->floats[a->role] = (int64_t)(dnnl_memory_desc_get_size(d) / sizeof(float));
    }
    DNNL_TRY(
        dpt_desc_copy(&k->scratch, dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)));
    k->scratch_floats =
        (int64_t)((dnnl_memory_desc_get_size(BORROW(k->scratch)) + sizeof(float) - 1) /
                  sizeof(float));
    k->has_scratch = true;
out:
    return result;
}

enum dpt_status dpt_kernel_new(struct dpt_kernel **kernel, struct dpt_error *err)
{
    *kernel = dpt_alloc(sizeof **kernel);
    return *kernel != NULL ? DPT_OK : dpt_fail_memory(err, "a kernel", sizeof **kernel);
}

void dpt_kernel_close(struct dpt_kernel *kernel)
{
    if (kernel == NULL)
        return;
    for (int i = 0; i < DPT_ROLE_COUNT; i++) {
        if (kernel->used[i])
            dpt_desc_free(&kernel->arg[i]);
    }
    if (kernel->has_scratch)
        dpt_desc_free(&kernel->scratch);
    if (kernel->primitive != NULL)
        dnnl_primitive_destroy(kernel->primitive);
    dpt_free(kernel);
}

enum dpt_layout dpt_kernel_layout(const struct dpt_kernel *kernel, enum dpt_role role)
{
    return kernel->layout[role];
}

bool dpt_kernel_slow(const struct dpt_kernel *kernel)
{
    return kernel->slow;
}

int64_t dpt_kernel_floats(const struct dpt_kernel *kernel, enum dpt_role role)
{
    return kernel->floats[role];
}

int64_t dpt_kernel_scratch(const struct dpt_kernel *kernel)
{
    return kernel->scratch_floats;
}

/* --- reorders --------------------------------------------------------------------------------- */

static enum dpt_status reorder(struct dpt_dnnl *dnnl, dpt_borrowed_desc from, dpt_borrowed_desc to,
                               struct dpt_kernel **kernel, struct dpt_error *err)
{
    static const struct dpt_argument arguments[] = {
        {DPT_ROLE_X, dnnl_query_src_md, DNNL_ARG_FROM},
        {DPT_ROLE_Y, dnnl_query_dst_md, DNNL_ARG_TO},
    };
    enum dpt_status status = DPT_OK;
    dnnl_status_t result = dnnl_success;
    dnnl_primitive_desc_t pd = NULL;

    DPT_TRY(dpt_kernel_new(kernel, err));
    DNNL_TRY(
        dnnl_reorder_primitive_desc_create(&pd, from, dnnl->engine, to, dnnl->engine, dnnl->attr));
    DNNL_TRY(dpt_kernel_finish(*kernel, pd, arguments, 2));
out:
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    if (result != dnnl_success)
        status = dpt_dnnl_fail(result, "reorder", err);
    if (status != DPT_OK) {
        dpt_kernel_close(*kernel);
        *kernel = NULL;
    }
    return status;
}

enum dpt_status dpt_kernel_reorder(struct dpt_dnnl *dnnl, const int32_t dims[4],
                                   enum dpt_layout from, enum dpt_layout to,
                                   struct dpt_kernel **kernel, struct dpt_error *err)
{
    const dnnl_dims_t d = {dims[0], dims[1], dims[2], dims[3]};
    enum dpt_status status;
    dpt_desc x = {0}, y = {0};
    dnnl_status_t result;

    *kernel = NULL;
    result = dpt_desc_tag(&x, 4, d, dpt_layout_tag(from));
    if (result == dnnl_success)
        result = dpt_desc_tag(&y, 4, d, dpt_layout_tag(to));
    status = result == dnnl_success ? reorder(dnnl, BORROW(x), BORROW(y), kernel, err)
                                    : dpt_dnnl_fail(result, "reorder", err);
    dpt_desc_free(&x);
    dpt_desc_free(&y);
    return status;
}

enum dpt_status dpt_kernel_reorder_weights(struct dpt_dnnl *dnnl,
                                           const struct dpt_conv_shape *shape,
                                           const struct dpt_kernel *conv, bool back,
                                           struct dpt_kernel **kernel, struct dpt_error *err)
{
    const dpt_borrowed_desc theirs = BORROW(conv->arg[DPT_ROLE_W]);
    enum dpt_status status;
    dnnl_status_t result;
    dpt_desc plain = {0};

    *kernel = NULL;
    result = dpt_conv_canonical(shape, &plain);
    if (result != dnnl_success)
        return dpt_dnnl_fail(result, "reorder of weights", err);
    status = back ? reorder(dnnl, theirs, BORROW(plain), kernel, err)
                  : reorder(dnnl, BORROW(plain), theirs, kernel, err);
    dpt_desc_free(&plain);
    return status;
}

/* --- calls ------------------------------------------------------------------------------------ */

enum dpt_status dpt_call_open(struct dpt_call **call, struct dpt_dnnl *dnnl, int thread,
                              const struct dpt_kernel *kernel, float *scratch,
                              struct dpt_error *err)
{
    dnnl_status_t result = dnnl_success;
    struct dpt_call *c = dpt_alloc(sizeof *c);

    *call = NULL;
    if (c == NULL)
        return dpt_fail_memory(err, "a call", sizeof *c);
    c->primitive = kernel->primitive;
    c->stream = dnnl->streams[thread];
    for (int role = 0; role < DPT_ROLE_COUNT; role++) {
        if (!kernel->used[role])
            continue;
        DNNL_TRY(dnnl_memory_create(&c->memory[role], BORROW(kernel->arg[role]), dnnl->engine,
                                    DNNL_MEMORY_NONE));
        c->args[c->n].arg = kernel->code[role];
        c->args[c->n++].memory = c->memory[role];
    }
    if (kernel->scratch_floats > 0) {
        dnnl_memory_t memory;

        DNNL_TRY(dnnl_memory_create(&memory, BORROW(kernel->scratch), dnnl->engine, scratch));
        c->args[c->n].arg = DNNL_ARG_SCRATCHPAD;
        c->args[c->n++].memory = memory;
    }
    *call = c;
    return DPT_OK;
out:
    dpt_call_close(c);
    return dpt_dnnl_fail(result, "memory", err);
}

void dpt_call_close(struct dpt_call *call)
{
    if (call == NULL)
        return;
    for (int i = 0; i < call->n; i++)
        dnnl_memory_destroy(call->args[i].memory);
    dpt_free(call);
}

void dpt_call_set(struct dpt_call *call, enum dpt_role role, const float *memory)
{
    /* It only fails for a memory object that is none. oneDNN takes what it reads as mutable, too.
     */
    if (call->memory[role] != NULL)
        dnnl_memory_set_data_handle(call->memory[role], (void *)(uintptr_t)memory);
}

enum dpt_status dpt_call_run(struct dpt_call *call, struct dpt_error *err)
{
    const dnnl_status_t result =
        dnnl_primitive_execute(call->primitive, call->stream, call->n, call->args);

    return result == dnnl_success ? DPT_OK : dpt_dnnl_fail(result, "kernel", err);
}

enum dpt_status dpt_dnnl_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                              const float *a, const float *b, bool add, float *c,
                              struct dpt_error *err)
{
    const dnnl_status_t result =
        dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a,
                   transpose_a ? m : k, b, transpose_b ? k : n, add ? 1.0f : 0.0f, c, n);

    return result == dnnl_success ? DPT_OK : dpt_dnnl_fail(result, "matrix product", err);
}

enum dpt_status dpt_dnnl_gemm_alone(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                                    float *c, struct dpt_error *err)
{
    void (*const set_threads)(int) = find_set_threads();

    if (set_threads != NULL)
        set_threads(1);
    return dpt_dnnl_gemm(false, false, m, n, k, a, b, false, c, err);
}
