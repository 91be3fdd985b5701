/* Which plan computes a convolution or a product: one that was chosen before; else the first that
 * suits where bits must follow from the job alone; else the fastest on this device, which is
 * written down. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/cuda/program_private.h"

enum { CANDIDATES = 6, PRODUCT_WORKSPACE = 64 << 20 };
enum { PROBLEM = 512, LAYER = DPT_NAME + 16 + PROBLEM }; /* bytes */

static const char *const pass_names[DPT_CUDA_PASSES] = {
    [DPT_CUDA_FORWARD] = "forward",
    [DPT_CUDA_BACKWARD_DATA] = "data",
    [DPT_CUDA_BACKWARD_FILTER] = "filter",
};

/* --- the problem as text ---------------------------------------------------------------------- */

static void conv_text(const struct dpt_cuda_math *m, char *text, size_t size)
{
    const struct dpt_cuda_conv *c = &m->conv;
    const int64_t *x = c->x, *w = c->w, *y = c->y;

    snprintf(text, size,
             "conv %s %s x=%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "/%" PRId64 " w=%" PRId64
             ",%" PRId64 ",%" PRId64 ",%" PRId64 " y=%" PRId64 ",%" PRId64 ",%" PRId64 "/%" PRId64
             " pad=%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 " stride=%" PRId64 ",%" PRId64
             " dilation=%" PRId64 ",%" PRId64 "%s%s",
             pass_names[m->pass], dpt_precision_names[c->precision], x[0], x[1], x[2], x[3],
             c->x_pitch, w[0], w[1], w[2], w[3], y[1], y[2], y[3], c->y_pitch, c->before[0],
             c->after[0], c->before[1], c->after[1], c->stride[0], c->stride[1], c->dilation[0],
             c->dilation[1], c->bias ? " bias" : "", c->relu ? " relu" : "");
}

static void product_text(const struct dpt_cuda_math *m, char *text, size_t size)
{
    const struct dpt_cuda_product *t = &m->product;

    snprintf(text, size,
             "product %s %" PRId64 "x%" PRId64 "x%" PRId64 " a=%" PRId64 "%s b=%" PRId64
             "%s d=%" PRId64 "%s epilogue=%d",
             dpt_precision_names[t->precision], t->rows, t->columns, t->depth, t->a_pitch,
             t->a_transposed ? "t" : "", t->b_pitch, t->b_transposed ? "t" : "", t->d_pitch,
             t->wide ? "w" : "", (int)t->epilogue);
}

/* With the device and the library's version, without which its plans mean nothing. */
static enum dpt_status problem_text(const struct dpt_cuda_program *p, const struct dpt_cuda_math *m,
                                    char *text, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;
    char device[96] = "";
    size_t used;

    (m->dense ? product_text : conv_text)(m, text, PROBLEM);
    DPT_CUDA_TRY(lib, cuDeviceGetName(device, sizeof device, p->ctx.device));
    used = strlen(text);
    snprintf(text + used, PROBLEM - used, " | %s | %s %d", device, m->dense ? "cuBLASLt" : "cuDNN",
             m->dense ? lib->cublaslt : lib->cudnn);
    for (char *c = text; *c != '\0'; c++) {
        if (*c == '\t' || *c == '\n')
            *c = ' ';
    }
out:
    return status;
}

/* --- running one ------------------------------------------------------------------------------ */

int64_t dpt_cuda_needs(const struct dpt_cuda_math *m, int which)
{
    return m->dense ? m->products.algorithm[which].workspace : m->plans.plan[which].workspace;
}

int dpt_cuda_found(const struct dpt_cuda_math *m)
{
    return m->dense ? m->products.n : m->plans.n;
}

/* "+" where bias or ReLU are within, "-" where they are not, and the plan's own. */
static void full_tag(const struct dpt_cuda_math *m, char *tag)
{
    const bool fused =
        m->dense ? m->products.epilogue != DPT_CUDA_PLAIN : m->plans.bias || m->plans.relu;

    snprintf(tag, DPT_CUDA_FUSED_TAG, "%c%s", fused ? '+' : '-',
             m->dense ? m->products.algorithm[m->which].tag : m->plans.plan[m->which].tag);
}

enum dpt_status dpt_cuda_bind(struct dpt_cuda_program *p, struct dpt_cuda_math *m, void *workspace,
                              struct dpt_error *err)
{
    void *pointers[DPT_CUDA_ARRAYS];

    (void)p;
    m->workspace = dpt_cuda_needs(m, m->which) > 0 ? workspace : NULL;
    if (m->dense)
        return DPT_OK;
    memcpy(pointers, m->pointers, sizeof pointers);
    if (!m->plans.bias)
        pointers[DPT_CUDA_BIAS] = NULL;
    return dpt_cuda_plan_bind(&m->plans, pointers, m->workspace, &m->bound, err);
}

enum dpt_status dpt_cuda_run_math(struct dpt_cuda_program *p, struct dpt_cuda_math *m, bool add,
                                  struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;

    if (m->dense) {
        /* What goes through the layers' layout is added on its way into the arena. */
        m->products.product.add = add && (float *)m->factors.d >= p->gradient &&
                                  (float *)m->factors.d < p->gradient + p->spec.graph->floats;
        DPT_TRY(dpt_cuda_products_run(&m->products, m->which, &m->factors, m->workspace,
                                      p->ctx.compute, err));
    } else {
        DPT_CUDNN_TRY(
            lib, cudnnBackendExecute(p->ctx.plans.handle, m->plans.plan[m->which].plan, m->bound));
    }
out:
    return status;
}

/* --- choosing --------------------------------------------------------------------------------- */

static enum dpt_status build_as(struct dpt_cuda_program *p, struct dpt_cuda_math *m, int most,
                                bool reproducible, struct dpt_error *err)
{
    const int64_t limit = p->lists->workspace_limit;
    const struct dpt_cuda_wish wish = {
        .reproducible = reproducible,
        .workspace = m->dense && limit > PRODUCT_WORKSPACE ? PRODUCT_WORKSPACE : limit,
    };

    if (m->dense)
        return dpt_cuda_products_build(&p->ctx.lib, p->ctx.matmuls, &m->product, &wish, most,
                                       &m->products, err);
    return dpt_cuda_plans_build(&p->ctx.lib, &p->ctx.plans, &m->conv, m->pass, &wish, most,
                                &m->plans, err);
}

/* A run that is stopped and goes on is to give the bits of one that was not: so plans whose bits
 * change from run to run are taken only where there are no others. */
static enum dpt_status build(struct dpt_cuda_program *p, struct dpt_cuda_math *m, int most,
                             struct dpt_error *err)
{
    const enum dpt_status status = build_as(p, m, most, true, err);

    if (status == DPT_OK || p->spec.reproducible)
        return status;
    dpt_cuda_plans_release(&m->plans);
    dpt_cuda_products_release(&m->products);
    return build_as(p, m, most, false, err);
}

/* The plan of a tag; false: it cannot be had any more. */
static bool rebuild(struct dpt_cuda_program *p, struct dpt_cuda_math *m, const char *tag)
{
    const bool fused = *tag == '+';
    struct dpt_cuda_product product = m->product;
    struct dpt_cuda_conv conv = m->conv;
    struct dpt_error ignored;

    if (!fused) {
        product.epilogue = DPT_CUDA_PLAIN;
        conv.bias = conv.relu = false;
    }
    if (*tag != '+' && *tag != '-')
        return false;
    if (m->dense)
        return dpt_cuda_products_rebuild(&p->ctx.lib, p->ctx.matmuls, &product, tag + 1,
                                         &m->products, &ignored) == DPT_OK &&
               dpt_cuda_needs(m, 0) <= p->lists->workspace_limit;
    return dpt_cuda_plans_rebuild(&p->ctx.lib, &p->ctx.plans, &conv, m->pass, tag + 1, &m->plans,
                                  &ignored) == DPT_OK &&
           dpt_cuda_needs(m, 0) <= p->lists->workspace_limit;
}

/* "conv1 forward", and behind a tab the problem. */
static void named(const struct dpt_cuda_math *m, const char *problem, char *text, size_t size)
{
    snprintf(text, size, "%s %s\t%s", m->name, pass_names[m->pass], problem);
}

/* What was chosen earlier: for this layer, or, where plans are timed, for this problem. What is
 * given to all ranks is what the next start is to find. */
static bool choose_known(struct dpt_cuda_program *p, struct dpt_cuda_math *m, const char *problem,
                         bool timed)
{
    char layer[LAYER], given[DPT_CUDA_FUSED_TAG], kept[DPT_CUDA_FUSED_TAG];
    bool is_given, is_kept;

    named(m, problem, layer, sizeof layer);
    is_given = dpt_cuda_tag_find(p->spec.plans, layer, given);
    is_kept = timed && dpt_cuda_cache_find(p->lists->cache, problem, kept);
    if (!is_given && !is_kept)
        return false;
    if (!rebuild(p, m, is_given ? given : kept)) {
        dpt_cuda_plans_release(&m->plans);
        dpt_cuda_products_release(&m->products);
        return false;
    }
    if (timed && is_given && !(is_kept && strcmp(given, kept) == 0))
        dpt_cuda_cache_add(p->lists->cache, problem, given);
    return true;
}

static enum dpt_status choose(struct dpt_cuda_program *p, struct dpt_cuda_math *m,
                              struct dpt_error *err)
{
    const bool timed = !p->spec.reproducible && p->ctx.lib.cuEventElapsedTime != NULL;
    char problem[PROBLEM], tag[DPT_CUDA_FUSED_TAG];
    enum dpt_status status = DPT_OK;
    float ms;

    DPT_TRY(problem_text(p, m, problem, err));
    if (choose_known(p, m, problem, timed))
        goto out;
    DPT_TRY(build(p, m, timed ? CANDIDATES : 1, err));
    if (!timed)
        goto out;
    if (dpt_cuda_found(m) > 1)
        DPT_TRY(dpt_cuda_tune(p, &m, 1, &ms, err));
    if (!m->dense) {
        dpt_cuda_plans_keep(&m->plans, m->which);
        m->which = 0;
    }
    full_tag(m, tag);
    dpt_cuda_cache_add(p->lists->cache, problem, tag);
out:
    return status;
}

enum dpt_status dpt_cuda_choose(struct dpt_cuda_program *p, struct dpt_cuda_math *m,
                                struct dpt_error *err)
{
    enum dpt_status status = choose(p, m, err);
    enum dpt_cuda_epilogue fused;
    struct dpt_error plain;

    if (status != DPT_OK) {
        plain = *err;
        return dpt_fail(err, status, "%s, %s: %.3900s", m->name, pass_names[m->pass], plain.text);
    }
    fused = m->products.epilogue;
    m->bias = m->dense ? fused == DPT_CUDA_BIASED || fused == DPT_CUDA_BIASED_RELU : m->plans.bias;
    m->relu = m->dense ? fused == DPT_CUDA_RELU || fused == DPT_CUDA_BIASED_RELU : m->plans.relu;
    m->needs = dpt_cuda_needs(m, m->which);
    return DPT_OK;
}

void dpt_cuda_math_release(struct dpt_cuda_math *m)
{
    if (m->plans.lib != NULL)
        dpt_cuda_plans_release(&m->plans);
    if (m->products.lib != NULL)
        dpt_cuda_products_release(&m->products);
}

void dpt_cuda_program_plans(const struct dpt_cuda_program *p, struct dpt_str *text)
{
    char problem[PROBLEM], layer[LAYER], tag[DPT_CUDA_FUSED_TAG];
    struct dpt_error err;

    for (const struct dpt_cuda_math *m = p->lists->maths; m != NULL; m = m->next) {
        if (problem_text(p, m, problem, &err) != DPT_OK)
            continue;
        named(m, problem, layer, sizeof layer);
        full_tag(m, tag);
        dpt_str_printf(text, "%s\t%s\n", layer, tag);
    }
}
