/* Chooses the plan for a convolution or a product: one that was chosen before; else, if bits must
 * follow from the job alone, the first suitable one; else the fastest one on this device, which is
 * then kept in the cache. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/backend/cuda/program/program.h"
#include "core/base/clock.h"

/* More candidates (20) gave no faster convolutions with few channels on an H100. */
enum { CANDIDATES = 6, PRODUCT_WORKSPACE = 64 << 20 };
enum { PROBLEM = 512, NAME = PROBLEM + 8, LAYER = DPT_NAME + 16 + PROBLEM }; /* bytes */

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

static void gemm_text(const struct dpt_cuda_math *m, char *text, size_t size)
{
    const struct dpt_cuda_gemm *t = &m->gemm;

    snprintf(text, size,
             "product %s %" PRId64 "x%" PRId64 "x%" PRId64 " a=%" PRId64 "%s b=%" PRId64
             "%s d=%" PRId64 "%s epilogue=%d",
             dpt_precision_names[t->precision], t->rows, t->columns, t->depth, t->a_pitch,
             t->a_transposed ? "t" : "", t->b_pitch, t->b_transposed ? "t" : "", t->d_pitch,
             t->wide ? "w" : "", (int)t->epilogue);
}

/* Describes a problem, with the device and the library's version, since plans hold for these
 * only. */
static enum dpt_status problem_text(const struct dpt_cuda_program *p, const struct dpt_cuda_math *m,
                                    char *text, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;
    char device[96] = "";
    size_t used;

    (m->dense ? gemm_text : conv_text)(m, text, PROBLEM);
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

/* Writes "+" if bias or ReLU is fused into the plan, else "-", and then the plan's own tag. */
static void full_tag(const struct dpt_cuda_math *m, char *tag)
{
    const bool fused =
        m->dense ? m->gemms.epilogue != DPT_CUDA_PLAIN : m->plans.bias || m->plans.relu;

    snprintf(tag, DPT_CUDA_FUSED_TAG, "%c%s", fused ? '+' : '-',
             m->dense ? m->gemms.algorithm[m->which].tag : m->plans.plan[m->which].tag);
}

/* Whether the bits of a plan change from run to run. */
static bool varies(const struct dpt_cuda_math *m, int which)
{
    return m->dense ? dpt_cuda_algorithm_varies(&m->gemms.algorithm[which])
                    : dpt_cuda_plan_varies(&m->plans.plan[which]);
}

/* --- choosing --------------------------------------------------------------------------------- */

/* The plans that are wanted: all; those that repeat their bits in each run; those that do not. */
enum kind { ANY, REPEATING, VARYING };

static enum dpt_status build_as(struct dpt_cuda_program *p, struct dpt_cuda_math *m, int most,
                                enum kind kind, struct dpt_error *err)
{
    const int64_t limit = p->lists->workspace_limit;
    const struct dpt_cuda_plan_request request = {
        .reproducible = kind == REPEATING,
        .varying = kind == VARYING,
        .workspace = m->dense && limit > PRODUCT_WORKSPACE ? PRODUCT_WORKSPACE : limit,
    };

    if (m->dense)
        return dpt_cuda_gemms_build(&p->ctx.lib, p->ctx.matmuls, &m->gemm, &request, most,
                                    &m->gemms, err);
    return dpt_cuda_plans_build(&p->ctx.lib, &p->ctx.plans, &m->conv, m->pass, &request, most,
                                &m->plans, err);
}

/* Builds plans that repeat their bits, since a resumed run should give the same bits as one that
 * was not stopped, or, if there are none and the job is not `reproducible`, any plans. */
static enum dpt_status build(struct dpt_cuda_program *p, struct dpt_cuda_math *m, int most,
                             struct dpt_error *err)
{
    const enum dpt_status status = build_as(p, m, most, REPEATING, err);

    if (status == DPT_OK || p->spec.reproducible)
        return status;
    dpt_cuda_math_release(m);
    return build_as(p, m, most, ANY, err);
}

/* Copies a problem without its plans. */
static struct dpt_cuda_math without_plans(const struct dpt_cuda_math *m)
{
    struct dpt_cuda_math other = *m;

    other.plans = (struct dpt_cuda_plans){0};
    other.gemms = (struct dpt_cuda_gemms){0};
    other.bound = NULL;
    return other;
}

/* Builds the plans whose bits vary, to be timed beside m's, which repeat theirs. They must fuse the
 * same operations, since times cannot be compared otherwise. Returns false if there are none. */
static bool build_varying(struct dpt_cuda_program *p, const struct dpt_cuda_math *m,
                          struct dpt_cuda_math *other)
{
    struct dpt_error ignored;

    *other = without_plans(m);
    other->gemm.epilogue = m->gemms.epilogue;
    other->conv.bias = m->plans.bias;
    other->conv.relu = m->plans.relu;
    return build_as(p, other, CANDIDATES, VARYING, &ignored) == DPT_OK &&
           other->gemms.epilogue == m->gemms.epilogue && other->plans.bias == m->plans.bias &&
           other->plans.relu == m->plans.relu;
}

/* Builds the plan of a tag; false if that is no longer possible. */
static bool rebuild(struct dpt_cuda_program *p, struct dpt_cuda_math *m, const char *tag)
{
    struct dpt_cuda_gemm gemm = m->gemm;
    struct dpt_cuda_conv conv = m->conv;
    enum dpt_status status;
    struct dpt_error ignored;

    if (*tag != '+' && *tag != '-')
        return false;
    if (*tag == '-') {
        gemm.epilogue = DPT_CUDA_PLAIN;
        conv.bias = conv.relu = false;
    }
    status = m->dense ? dpt_cuda_gemms_rebuild(&p->ctx.lib, p->ctx.matmuls, &gemm, tag + 1,
                                               &m->gemms, &ignored)
                      : dpt_cuda_plans_rebuild(&p->ctx.lib, &p->ctx.plans, &conv, m->pass, tag + 1,
                                               &m->plans, &ignored);
    return status == DPT_OK && dpt_cuda_needs(m, 0) <= p->lists->workspace_limit;
}

/* Writes "conv1 forward", a tab and the problem. */
static void write_name(const struct dpt_cuda_math *m, const char *problem, char *text, size_t size)
{
    snprintf(text, size, "%s %s\t%s", m->name, pass_names[m->pass], problem);
}

/* Whether this run may use a kept plan although its bits vary: if the job allows such plans, as an
 * earlier job may have, or if there is no other. */
static bool may_vary(struct dpt_cuda_program *p, const struct dpt_cuda_math *m)
{
    struct dpt_cuda_math other = without_plans(m);
    struct dpt_error ignored;
    bool repeats;

    if (p->spec.varying || !varies(m, 0))
        return true;
    repeats = build_as(p, &other, 1, REPEATING, &ignored) == DPT_OK;
    dpt_cuda_math_release(&other);
    return !repeats;
}

/* Writes the cache's names of a problem's plan and of its times. The plan has another name for jobs
 * that allow plans whose bits vary, since they choose among more plans. */
static void cache_names(const struct dpt_cuda_program *p, const char *problem, char *plan,
                        char *times)
{
    snprintf(plan, NAME, "%s%s", p->spec.varying ? "any " : "", problem);
    snprintf(times, NAME, "ms %s", problem);
}

/* Uses the plan that was chosen earlier for this layer, or, if plans are timed, for this problem. A
 * plan that is given to all ranks is also put into the cache, so that the next run finds it. */
static bool choose_known(struct dpt_cuda_program *p, struct dpt_cuda_math *m, const char *problem,
                         bool timed)
{
    char layer[LAYER], given[DPT_CUDA_FUSED_TAG], kept[DPT_CUDA_FUSED_TAG];
    char plan[NAME], times[NAME], ms[DPT_CUDA_FUSED_TAG];
    bool is_given, is_kept;

    write_name(m, problem, layer, sizeof layer);
    cache_names(p, problem, plan, times);
    is_given = dpt_cuda_tag_find(p->spec.plans, layer, given);
    is_kept = timed && dpt_cuda_cache_find(p->lists->cache, plan, kept);
    if (!is_given && !is_kept)
        return false;
    if (!rebuild(p, m, is_given ? given : kept) || !may_vary(p, m)) {
        dpt_cuda_math_release(m);
        return false;
    }
    if (timed && is_given && !(is_kept && strcmp(given, kept) == 0))
        dpt_cuda_cache_add(p->lists->cache, plan, given);
    if (timed && dpt_cuda_cache_find(p->lists->cache, times, ms) &&
        sscanf(ms, "%f %f", &m->ms[0], &m->ms[1]) != 2)
        m->ms[0] = m->ms[1] = 0;
    return true;
}

/* Both kinds of plans are timed, so that the log can say how much time repeatable bits cost. */
static enum dpt_status take_fastest(struct dpt_cuda_program *p, struct dpt_cuda_math *m,
                                    struct dpt_error *err)
{
    struct dpt_cuda_math other = {0}, *const kinds[] = {m, &other};
    const bool repeats = !varies(m, 0), both = repeats && build_varying(p, m, &other);
    enum dpt_status status = DPT_OK;
    float ms[2] = {0, INFINITY};

    if (dpt_cuda_found(m) > 1 || both)
        DPT_TRY(dpt_cuda_tune(p, kinds, both ? 2 : 1, ms, err));
    if (ms[1] < ms[0] && (p->spec.varying || ms[0] == INFINITY)) {
        const struct dpt_cuda_math slower = *m;

        m->plans = other.plans, other.plans = slower.plans;
        m->gemms = other.gemms, other.gemms = slower.gemms;
        m->bound = NULL; /* it is bound again when its workspace has been allocated */
        m->which = other.which;
    }
    if (!m->dense) {
        dpt_cuda_plans_keep(&m->plans, m->which);
        m->which = 0;
    }
    if (repeats && ms[0] > 0 && ms[0] < INFINITY)
        memcpy(m->ms, ms, sizeof m->ms);
out:
    dpt_cuda_math_release(&other);
    return status;
}

static enum dpt_status choose(struct dpt_cuda_program *p, struct dpt_cuda_math *m,
                              struct dpt_error *err)
{
    const bool timed = !p->spec.reproducible && p->ctx.lib.cuEventElapsedTime != NULL;
    char problem[PROBLEM], tag[DPT_CUDA_FUSED_TAG], plan[NAME], times[NAME];
    enum dpt_status status = DPT_OK;

    DPT_TRY(problem_text(p, m, problem, err));
    if (choose_known(p, m, problem, timed))
        goto out;
    DPT_TRY(build(p, m, timed ? CANDIDATES : 1, err));
    if (!timed)
        goto out;
    DPT_TRY(take_fastest(p, m, err));
    cache_names(p, problem, plan, times);
    full_tag(m, tag);
    dpt_cuda_cache_add(p->lists->cache, plan, tag);
    if (m->ms[0] > 0) {
        snprintf(tag, sizeof tag, "%.6g %.6g", (double)m->ms[0], (double)m->ms[1]);
        dpt_cuda_cache_add(p->lists->cache, times, tag);
    }
out:
    return status;
}

enum dpt_status dpt_cuda_choose(struct dpt_cuda_program *p, struct dpt_cuda_math *m,
                                struct dpt_error *err)
{
    const uint64_t start = dpt_now_ns();
    enum dpt_status status = choose(p, m, err);
    enum dpt_cuda_epilogue fused;

    dpt_cuda_startup_add(DPT_CUDA_START_PLANS, start);
    if (status != DPT_OK) {
        dpt_error_prefix(err, "%s, %s: ", m->name, pass_names[m->pass]);
        return status;
    }
    fused = m->gemms.epilogue;
    m->bias = m->dense ? fused == DPT_CUDA_BIASED || fused == DPT_CUDA_BIASED_RELU : m->plans.bias;
    m->relu = m->dense ? fused == DPT_CUDA_RELU || fused == DPT_CUDA_BIASED_RELU : m->plans.relu;
    m->needs = dpt_cuda_needs(m, m->which);
    return DPT_OK;
}

void dpt_cuda_program_plans(const void *program, struct dpt_str *text)
{
    const struct dpt_cuda_program *p = program;
    char problem[PROBLEM], layer[LAYER], tag[DPT_CUDA_FUSED_TAG];
    struct dpt_error err;

    if (p->lists->plans.text != NULL) {
        dpt_str_add(text, p->lists->plans.text, p->lists->plans.length);
        return;
    }
    for (const struct dpt_cuda_math *m = p->lists->maths; m != NULL; m = m->next) {
        if (problem_text(p, m, problem, &err) != DPT_OK)
            continue;
        write_name(m, problem, layer, sizeof layer);
        full_tag(m, tag);
        dpt_str_printf(text, "%s\t%s\n", layer, tag);
    }
}

void dpt_cuda_program_determinism(const void *program, struct dpt_str *text)
{
    const struct dpt_cuda_program *p = program;
    const struct dpt_cuda_math *most = NULL;
    double repeating = 0, fastest = 0, gap = 0, us[2];

    for (const struct dpt_cuda_math *m = p->lists->maths; m != NULL; m = m->next) {
        const double ms = (double)m->ms[0];
        /* A run that allows varying bits may still have been given a plan that repeats them. */
        const bool counts = m->ms[1] < m->ms[0] && (!p->spec.varying || varies(m, m->which));
        const double best = counts ? (double)m->ms[1] : ms;

        repeating += ms;
        fastest += best;
        if (ms - best > gap) {
            gap = ms - best;
            most = m;
        }
    }
    if (most == NULL)
        return;
    if (p->spec.varying)
        dpt_str_printf(text, "kernels that do not repeat their bits take %.1f %% less time",
                       100 * (repeating - fastest) / repeating);
    else
        dpt_str_printf(text, "deterministic kernels take %.1f %% more time",
                       100 * (repeating - fastest) / fastest);
    us[0] = 1e3 * (double)most->ms[p->spec.varying];
    us[1] = 1e3 * (double)most->ms[!p->spec.varying];
    dpt_str_printf(text, " (%s %s: %.*f us against %.*f us)", most->name, pass_names[most->pass],
                   us[0] < 100, us[0], us[1] < 100, us[1]);
}
