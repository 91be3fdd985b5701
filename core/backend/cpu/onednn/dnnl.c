#include "core/backend/cpu/onednn/dnnl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/onednn/dnnl_private.h"
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

dnnl_format_tag_t dpt_layout_tag(enum dpt_memory_layout layout)
{
    return tags[layout];
}

/* Turns oneDNN's result into ours. */
static enum dpt_status dnnl_fail(dnnl_status_t result, const char *what, struct dpt_error *err)
{
    if (result == dnnl_out_of_memory)
        return dpt_fail(err, DPT_RANK, "not enough memory for oneDNN's %s", what);
    if (result == dnnl_unimplemented || result == dnnl_invalid_arguments)
        return dpt_fail(err, DPT_BAD_JOB, "oneDNN has no %s of this shape", what);
    return dpt_fail(err, DPT_INTERNAL, "oneDNN's %s failed (status %d)", what, (int)result);
}

/* --- the library ------------------------------------------------------------------------------ */

/* oneDNN's instruction sets. Each value holds the bits of the sets it extends. The sets after the
 * first FP32_SETS make no difference to fp32, which is all that is computed here. On arm64 the same
 * bits mean other sets, which its header does not name: of SVE's two longest ones, 2 has the former
 * and 3 the latter. */
static const struct {
    unsigned bits;
    enum dpt_isa isa;
    const char *name;
} sets[] = {
#if DPT_ARM64
    {0x01, DPT_ISA_NEON, "NEON"},          {0x03, DPT_ISA_NEON, "NEON, SVE 128"},
    {0x07, DPT_ISA_NEON, "NEON, SVE 256"}, {0x1f, DPT_ISA_NEON, "NEON, SVE 512"},
    {0x27, DPT_ISA_NEON, "NEON, SVE 512"},
#else
    {dnnl_cpu_isa_sse41, DPT_ISA_PLAIN, "SSE4.1"},
    {dnnl_cpu_isa_avx, DPT_ISA_PLAIN, "AVX"},
    {dnnl_cpu_isa_avx2, DPT_ISA_AVX2, "AVX2"},
    {dnnl_cpu_isa_avx512_core, DPT_ISA_AVX512, "AVX-512"},
    {dnnl_cpu_isa_avx512_core_vnni, DPT_ISA_AVX512, "AVX-512 VNNI"},
    {dnnl_cpu_isa_avx512_core_bf16, DPT_ISA_AVX512_BF16, "AVX-512 BF16"},
    {dnnl_cpu_isa_avx512_core_amx, DPT_ISA_AMX, "AVX-512 AMX"},
#endif
};
enum { SETS = sizeof sets / sizeof sets[0], FP32_SETS = DPT_ARM64 ? SETS : 4 };

/* The last of the first n sets that oneDNN makes use of; -1: none. */
static int find_set(int n)
{
    const unsigned have = (unsigned)dnnl_get_effective_cpu_isa();

    do
        n--;
    while (n >= 0 && (have & sets[n].bits) != sets[n].bits);
    return n;
}

static struct {
    pthread_once_t once;
    char text[64], used[64];
} description = {.once = PTHREAD_ONCE_INIT};

static void describe(void)
{
    struct {
        char *text;
        int set;
    } texts[] = {{description.text, find_set(SETS)}, {description.used, find_set(FP32_SETS)}};
    const dnnl_version_t *v = dnnl_version();

    while (texts[0].set > 0 && sets[texts[0].set].isa > dpt_isa_here())
        texts[0].set--;
    for (int i = 0; i < 2; i++)
        snprintf(texts[i].text, sizeof description.text, "oneDNN %d.%d.%d, %s", v->major, v->minor,
                 v->patch, texts[i].set < 0 ? "generic CPU" : sets[texts[i].set].name);
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

/* It is looked up, not linked: oneDNN decides which OpenMP runtime is loaded, if any. */
static void (*find_set_threads(void))(int)
{
    void (*set_threads)(int);

    *(void **)&set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    return set_threads;
}

enum dpt_isa dpt_dnnl_isa(void)
{
    const int set = find_set(SETS);

    return set < 0 ? DPT_ISA_PLAIN : sets[set].isa;
}

enum dpt_status dpt_dnnl_limit(enum dpt_isa most, struct dpt_error *err)
{
    enum dpt_isa have;
    int set = 0;

    while (sets[set].isa != most)
        set++;
    /* oneDNN refuses a second call; what counts is the set that it uses from here on. */
    (void)dnnl_set_max_cpu_isa((dnnl_cpu_isa_t)sets[set].bits);
#if DPT_ARM64
    setenv("ONEDNN_MAX_CPU_ISA", "advanced_simd", 1); /* the call is one of x86-64 */
#endif
    have = dpt_dnnl_isa();
    if (have < most)
        return dpt_fail(err, DPT_BAD_JOB, "device.isa: %s: oneDNN has %s at most on this machine",
                        dpt_isa_names[most], dpt_isa_names[have]);
    if (have > most || find_set(FP32_SETS) > set)
        return dpt_fail(err, DPT_BAD_JOB,
                        "device.isa: %s: this oneDNN cannot be held to it and uses %s: build it "
                        "with DNNL_ENABLE_MAX_CPU_ISA=ON",
                        dpt_isa_names[most], sets[find_set(SETS)].name);
    return DPT_OK;
}

void dpt_dnnl_one_thread(const struct dpt_dnnl *dnnl)
{
    if (dnnl->set_threads != NULL)
        dnnl->set_threads(1);
}

static dnnl_status_t open_add(dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t result;

    DNNL_TRY(dnnl_primitive_attr_create(attr));
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user));
    DNNL_TRY(dnnl_post_ops_create(&ops));
    DNNL_TRY(dpt_post_ops_add(ops));
    DNNL_TRY(dnnl_primitive_attr_set_post_ops(*attr, ops));
out:
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    return result;
}

enum dpt_status dpt_dnnl_open(struct dpt_dnnl **dnnl, int threads, struct dpt_error *err)
{
    dnnl_status_t result;
    struct dpt_dnnl *d = dpt_alloc(sizeof *d + (size_t)threads * sizeof(dnnl_stream_t));

    *dnnl = NULL;
    if (d == NULL)
        return dpt_fail_memory(err, "oneDNN's streams", (double)threads * sizeof(dnnl_stream_t));
    d->threads = threads;
    d->set_threads = find_set_threads();
    dpt_dnnl_one_thread(d);
    DNNL_TRY(dnnl_engine_create(&d->engine, dnnl_cpu, 0));
    DNNL_TRY(dnnl_primitive_attr_create(&d->attr));
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(d->attr, dnnl_scratchpad_mode_user));
    DNNL_TRY(open_add(&d->add));
    for (int i = 0; i < threads; i++)
        DNNL_TRY(dnnl_stream_create(&d->streams[i], d->engine, dnnl_stream_in_order));
    *dnnl = d;
    return DPT_OK;
out:
    dpt_dnnl_close(d);
    return dnnl_fail(result, "engine", err);
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
    if (dnnl->add != NULL)
        dnnl_primitive_attr_destroy(dnnl->add);
    if (dnnl->engine != NULL)
        dnnl_engine_destroy(dnnl->engine);
    dpt_free(dnnl);
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* Fills the kernel from a primitive descriptor. */
static dnnl_status_t finish(struct kernel *k, const_dnnl_primitive_desc_t pd,
                            const struct dpt_argument *arguments, size_t n)
{
    dnnl_status_t result = dnnl_success;
    const char *name = NULL;

    DNNL_TRY(dnnl_primitive_create(&k->primitive, pd));
    DNNL_TRY(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name));
    k->seen.slow = strstr(name, "ref") != NULL;
    for (size_t i = 0; i < n; i++) {
        const struct dpt_argument *a = &arguments[i];
        const dpt_borrowed_desc d = dnnl_primitive_desc_query_md(pd, a->query, a->index);

        DNNL_TRY(dpt_desc_copy(&k->arg[a->role], d));
        k->code[a->role] = a->code;
        k->seen.floats[a->role] = (int64_t)(dnnl_memory_desc_get_size(d) / sizeof(float));
    }
    DNNL_TRY(
        dpt_desc_copy(&k->scratch, dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)));
    k->seen.scratch =
        (int64_t)((dnnl_memory_desc_get_size(BORROW(k->scratch)) + sizeof(float) - 1) /
                  sizeof(float));
out:
    return result;
}

enum dpt_status dpt_kernel_make(dnnl_status_t result, dnnl_primitive_desc_t pd, const char *what,
                                const struct dpt_argument *arguments, size_t n,
                                struct dpt_kernel **kernel, struct dpt_error *err)
{
    struct kernel *k = dpt_alloc(sizeof *k);

    *kernel = (struct dpt_kernel *)k;
    if (k == NULL)
        result = dnnl_out_of_memory;
    if (result == dnnl_success)
        result = finish(k, pd, arguments, n);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    if (result == dnnl_success)
        return DPT_OK;
    dpt_kernel_close(*kernel);
    *kernel = NULL;
    return dnnl_fail(result, what, err);
}

enum dpt_status dpt_kernel_move(struct dpt_dnnl *dnnl, dnnl_status_t result, dpt_borrowed_desc from,
                                dpt_borrowed_desc to, bool add, struct dpt_kernel **kernel,
                                struct dpt_error *err)
{
    static const struct dpt_argument arguments[] = {
        {DPT_ROLE_X, dnnl_query_src_md, 0, DNNL_ARG_FROM},
        {DPT_ROLE_Y, dnnl_query_dst_md, 0, DNNL_ARG_TO},
    };
    dnnl_primitive_desc_t pd = NULL;

    if (result == dnnl_success)
        result = dnnl_reorder_primitive_desc_create(&pd, from, dnnl->engine, to, dnnl->engine,
                                                    add ? dnnl->add : dnnl->attr);
    return dpt_kernel_make(result, pd, "reorder", arguments, 2, kernel, err);
}

enum dpt_status dpt_kernel_reorder(struct dpt_dnnl *dnnl, const int32_t dims[4],
                                   enum dpt_memory_layout from, enum dpt_memory_layout to,
                                   struct dpt_kernel **kernel, struct dpt_error *err)
{
    const dnnl_dims_t d = {dims[0], dims[1], dims[2], dims[3]};
    enum dpt_status status;
    dpt_desc x = {0}, y = {0};
    dnnl_status_t result = dpt_desc_tag(&x, 4, d, dpt_layout_tag(from));

    if (result == dnnl_success)
        result = dpt_desc_tag(&y, 4, d, dpt_layout_tag(to));
    status = dpt_kernel_move(dnnl, result, BORROW(x), BORROW(y), false, kernel, err);
    dpt_desc_free(&x);
    dpt_desc_free(&y);
    return status;
}

void dpt_kernel_close(struct dpt_kernel *kernel)
{
    struct kernel *k = (struct kernel *)kernel;

    if (k == NULL)
        return;
    for (int i = 0; i < DPT_ROLE_COUNT; i++)
        dpt_desc_free(&k->arg[i]);
    dpt_desc_free(&k->scratch);
    if (k->primitive != NULL)
        dnnl_primitive_destroy(k->primitive);
    dpt_free(k);
}

/* --- calls ------------------------------------------------------------------------------------ */

enum dpt_status dpt_call_open(struct dpt_call **call, struct dpt_dnnl *dnnl, int thread,
                              const struct dpt_kernel *kernel, float *scratch,
                              struct dpt_error *err)
{
    const struct kernel *k = (const struct kernel *)kernel;
    dnnl_status_t result = dnnl_success;
    struct dpt_call *c = dpt_alloc(sizeof *c);

    *call = NULL;
    if (c == NULL)
        return dpt_fail_memory(err, "a call", sizeof *c);
    c->primitive = k->primitive;
    c->stream = dnnl->streams[thread];
    for (int role = 0; role < DPT_ROLE_COUNT; role++) {
        if (k->code[role] == 0)
            continue;
        DNNL_TRY(dnnl_memory_create(&c->memory[role], BORROW(k->arg[role]), dnnl->engine,
                                    DNNL_MEMORY_NONE));
        c->args[c->n].arg = k->code[role];
        c->args[c->n++].memory = c->memory[role];
    }
    if (kernel->scratch > 0) {
        dnnl_memory_t memory;

        DNNL_TRY(dnnl_memory_create(&memory, BORROW(k->scratch), dnnl->engine, scratch));
        c->args[c->n].arg = DNNL_ARG_SCRATCHPAD;
        c->args[c->n++].memory = memory;
    }
    *call = c;
    return DPT_OK;
out:
    dpt_call_close(c);
    return dnnl_fail(result, "memory", err);
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
    /* It only fails for an invalid memory object. oneDNN takes what it reads as mutable, too. */
    if (call->memory[role] != NULL)
        dnnl_memory_set_data_handle(call->memory[role], (void *)(uintptr_t)memory);
}

enum dpt_status dpt_call_run(struct dpt_call *call, struct dpt_error *err)
{
    const dnnl_status_t result =
        dnnl_primitive_execute(call->primitive, call->stream, call->n, call->args);

    return result == dnnl_success ? DPT_OK : dnnl_fail(result, "kernel", err);
}

enum dpt_status dpt_dnnl_gemm(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                              float *c, struct dpt_error *err)
{
    void (*const set_threads)(int) = find_set_threads();
    dnnl_status_t result;

    if (set_threads != NULL)
        set_threads(1);
    result = dnnl_sgemm('N', 'N', m, n, k, 1.0f, a, k, b, n, 0.0f, c, n);
    return result == dnnl_success ? DPT_OK : dnnl_fail(result, "matrix product", err);
}
