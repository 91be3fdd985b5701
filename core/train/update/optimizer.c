#include "core/train/update/optimizer.h"

#include <math.h>
#include <string.h>

#include "core/base/nontemporal.h"
#include "core/base/prefetch.h"
#include "core/base/sum_of_squares.h"
#include "core/base/vector.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define ROW(name) extern const struct dpt_variant dpt_##name;
DPT_OPTIMIZERS(ROW)
#undef ROW

#define ROW(name) &dpt_##name,
const struct dpt_variant *const dpt_optimizer_variants[] = {DPT_OPTIMIZERS(ROW) NULL};
#undef ROW

/* --- rules ------------------------------------------------------------------------------------ */

#define RULE(name)                                                                                 \
    DPT_INLINE void rule_##name(struct dpt_element *x, float g, const struct dpt_scalars *f)
#include "core/backend/optimizers.inc"
#undef RULE

/* The loop of a rule: float, one pass over memory. */
#define LOOP(X, NAME, name, slots)                                                                 \
    DPT_INLINE void some_##name(const struct dpt_scalars *f, float scale, size_t n,                \
                                float *restrict params, const float *restrict gradient,            \
                                float *restrict first, float *restrict second)                     \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            struct dpt_element x = {params[i], (slots) > 0 ? first[i] : 0,                         \
                                    (slots) > 1 ? second[i] : 0};                                  \
                                                                                                   \
            rule_##name(&x, gradient[i] * scale, f);                                               \
            if ((slots) > 0)                                                                       \
                first[i] = x.m;                                                                    \
            if ((slots) > 1)                                                                       \
                second[i] = x.v;                                                                   \
            params[i] = x.p;                                                                       \
        }                                                                                          \
    }                                                                                              \
    DPT_VECTOR static void pass_##name(const struct dpt_scalars f, float scale, size_t n,          \
                                       float *restrict params, const float *restrict gradient,     \
                                       float *restrict first, float *restrict second,              \
                                       bool for_others)                                            \
    {                                                                                              \
        _Alignas(DPT_ALIGN) float line[DPT_LINE];                                                  \
                                                                                                   \
        while (n >= DPT_LINE) {                                                                    \
            dpt_prefetch(params);                                                                  \
            dpt_prefetch(gradient);                                                                \
            if ((slots) > 0)                                                                       \
                dpt_prefetch(first);                                                               \
            if ((slots) > 1)                                                                       \
                dpt_prefetch(second);                                                              \
            if (for_others)                                                                        \
                memcpy(line, params, sizeof line);                                                 \
            some_##name(&f, scale, DPT_LINE, for_others ? line : params, gradient, first, second); \
            if (for_others)                                                                        \
                dpt_copy_nontemporal(params, line, DPT_LINE);                                      \
            params += DPT_LINE;                                                                    \
            gradient += DPT_LINE;                                                                  \
            first += (slots) > 0 ? DPT_LINE : 0;                                                   \
            second += (slots) > 1 ? DPT_LINE : 0;                                                  \
            n -= DPT_LINE;                                                                         \
        }                                                                                          \
        some_##name(&f, scale, n, params, gradient, first, second);                                \
    }
DPT_RULES(LOOP, )
#undef LOOP

_Static_assert((int)DPT_RULE_MOST_SLOTS <= (int)DPT_MAX_SLOTS, "slots of a rule");

static void run_rule(enum dpt_rule_kind kind, bool for_others,
                     const struct dpt_optimizer_part *part)
{
#define LOOPS(X, NAME, name, slots) [DPT_RULE_##NAME] = pass_##name,
    static void (*const loops[DPT_RULE_COUNT])(
        const struct dpt_scalars f, float scale, size_t n, float *restrict params,
        const float *restrict gradient, float *restrict first, float *restrict second,
        bool for_others) = {DPT_RULES(LOOPS, )};
#undef LOOPS

    loops[kind](*part->f, part->scale, part->n, part->params, part->gradient, part->slot[0],
                part->slot[1], for_others);
}

/*
 * Numbers below 2^-126 count as zero from here on. A relu whose output is always zero gives many
 * zero gradients, and their running means shrink into that range and stay there. Such numbers
 * contribute nothing and take 3 to 100 times as long (an MLP's update by Adam: 84 us with them, 57
 * without).
 */
static unsigned without_denormals(void)
{
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
    const unsigned before = _mm_getcsr();

    _mm_setcsr(before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    return before;
#elif defined(__aarch64__)
    const uint64_t flush_to_zero = UINT64_C(1) << 24; /* inputs below 2^-126, too */
    uint64_t before;

    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | flush_to_zero));
    return (unsigned)before;
#else
    return 0;
#endif
}

static void as_before(unsigned mode)
{
#if defined(__x86_64__)
    _mm_setcsr(mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
#else
    (void)mode;
#endif
}

/* --- what the rows say ------------------------------------------------------------------------ */

static const struct dpt_optimizer_type *type_of(const struct dpt_variant_value *optimizer)
{
    return optimizer->variant->impl;
}

int dpt_optimizer_slots(const struct dpt_variant_value *optimizer)
{
    const struct dpt_optimizer_type *type = type_of(optimizer);

    return type->slots_used != NULL ? type->slots_used(optimizer->options) : type->slots;
}

const char *const *dpt_optimizer_slot_names(const struct dpt_variant_value *optimizer)
{
    return type_of(optimizer)->slot_names;
}

double dpt_optimizer_lr(const struct dpt_variant_value *optimizer)
{
    return ((const struct dpt_optimizer_options *)optimizer->options)->lr;
}

const struct dpt_groups *dpt_optimizer_groups(const struct dpt_variant_value *optimizer)
{
    return &((const struct dpt_optimizer_options *)optimizer->options)->groups;
}

struct dpt_rule dpt_optimizer_rule(const struct dpt_variant_value *optimizer)
{
    const struct dpt_optimizer_type *type = type_of(optimizer);

    return (struct dpt_rule){
        .kind = type->rule_of != NULL ? type->rule_of(optimizer->options) : type->rule,
        .slots = dpt_optimizer_slots(optimizer),
        .options = optimizer->options,
        .scalars = type->scalars,
        .decay = ((const struct dpt_optimizer_options *)optimizer->options)->weight_decay,
        .decoupled = type->decoupled,
    };
}

/* --- a step ----------------------------------------------------------------------------------- */

/* A step of a job's optimizer over its arenas. */
struct pass {
    const struct dpt_optimizer_type *type;
    const void *options;
    struct dpt_rule rule;
    const struct dpt_update *update;
    struct dpt_scalars decays, spares; /* for tensors that decay, and for the others */
    struct dpt_scalars own;            /* of the current tensor, if a group matches it */
    float *params, *const *slot;
    const float *gradient;
};

static struct pass make_pass(const struct dpt_variant_value *optimizer,
                             const struct dpt_update *update, float *params, const float *gradient,
                             float *const *slot)
{
    const struct dpt_rule rule = dpt_optimizer_rule(optimizer);
    const struct dpt_rule_group group = {1, rule.decay};
    struct pass pass = {.type = type_of(optimizer),
                        .options = optimizer->options,
                        .rule = rule,
                        .update = update,
                        .decays = dpt_rule_scalars(&rule, &group, update->lr, update->step),
                        .params = params,
                        .slot = slot,
                        .gradient = gradient};

    pass.spares = pass.decays;
    pass.spares.keep = 1;
    pass.spares.l2 = 0;
    return pass;
}

/* Sets the scalars for the parts of a tensor; to be called before them. */
static const struct dpt_scalars *scalars_of(struct pass *pass, const struct dpt_tensor *tensor)
{
    const struct dpt_rule_group group = dpt_rule_group_of(&pass->rule, tensor);

    if (tensor->lr_scale == 0 && !tensor->decays_alone)
        return tensor->decay ? &pass->decays : &pass->spares;
    pass->own = dpt_rule_scalars(&pass->rule, &group, pass->update->lr, pass->update->step);
    return &pass->own;
}

static struct dpt_optimizer_part part_of(const struct pass *pass, const struct dpt_tensor *tensor,
                                         const struct dpt_scalars *f, size_t first, size_t n)
{
    struct dpt_optimizer_part part = {.f = f,
                                      .scale = pass->update->scale,
                                      .spared = !tensor->decay,
                                      .n = n,
                                      .params = pass->params + first,
                                      .gradient = pass->gradient + first};

    for (int k = 0; k < pass->rule.slots; k++)
        part.slot[k] = pass->slot[k] + first;
    return part;
}

size_t dpt_optimizer_chunks(const struct dpt_variant_value *optimizer,
                            const struct dpt_graph *graph)
{
    return type_of(optimizer)->direction != NULL ? dpt_graph_chunk_count(graph) : 0;
}

void dpt_optimizer_measure(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                           const struct dpt_update *update, size_t first, size_t last,
                           float *params, const float *gradient, float *const *slot,
                           double *squares)
{
    struct pass pass = make_pass(optimizer, update, params, gradient, slot);
    const unsigned mode = without_denormals();
    float direction[DPT_SUM_OF_SQUARES_CHUNK];
    size_t before = 0; /* chunks of the tensors before */

    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const struct dpt_tensor *t = &graph->tensors[k];
        const struct dpt_scalars *f = scalars_of(&pass, t);
        const size_t chunks = dpt_tensor_chunks(t), tensor_end = (size_t)(t->offset + t->count);
        const size_t begin = first > before ? first - before : 0;
        const size_t end = last < before + chunks ? last - before : chunks;

        for (size_t chunk = begin; last > before && chunk < end && !t->frozen; chunk++) {
            const size_t at = dpt_tensor_chunk(t, chunk);
            const size_t next = chunk + 1 < chunks ? dpt_tensor_chunk(t, chunk + 1) : tensor_end;
            const struct dpt_optimizer_part part = part_of(&pass, t, f, at, next - at);
            double *sums = &squares[DPT_OPTIMIZER_SQUARES * (before + chunk)];

            pass.type->direction(pass.options, &part, direction);
            sums[0] = dpt_sum_of_squares(part.params, part.n);
            sums[1] = dpt_sum_of_squares(direction, part.n);
        }
        before += chunks;
    }
    as_before(mode);
}

/* The norms of a tensor whose chunks begin at `squares`, summed in the order of the chunks. */
static struct dpt_optimizer_norms add_up(const struct dpt_tensor *t, const double *squares)
{
    double params = 0, direction = 0;

    for (size_t chunk = 0; chunk < dpt_tensor_whole_chunks(t); chunk++) {
        params += squares[DPT_OPTIMIZER_SQUARES * chunk];
        direction += squares[DPT_OPTIMIZER_SQUARES * chunk + 1];
    }
    return (struct dpt_optimizer_norms){sqrt(params), sqrt(direction)};
}

/* Updates the moving average of weights that were just updated. */
static void average_part(const struct pass *pass, const struct dpt_optimizer_part *updated,
                         size_t first)
{
    const struct dpt_scalars f = {.factor = {(float)pass->update->average}};
    struct dpt_optimizer_part part = *updated;

    part.f = &f;
    part.slot[0] = pass->slot[pass->rule.slots] + first;
    run_rule(DPT_RULE_AVERAGE, false, &part);
}

/* Updates the floats [first, last) of a tensor. If there is a moving average it goes block by
 * block, so that the weights are still in the cache for the average. squares: of the tensor's
 * chunks. */
static void update_tensor(struct pass *pass, const struct dpt_tensor *t, const double *squares,
                          size_t first, size_t last)
{
    enum { BLOCK = 8 * 1024 };
    const bool rule = pass->rule.kind != DPT_RULE_NONE;
    const bool averages = pass->update->average > 0;
    const struct dpt_scalars *f = scalars_of(pass, t);
    const struct dpt_optimizer_norms norms =
        rule ? (struct dpt_optimizer_norms){0} : add_up(t, squares);

    for (size_t n; first < last; first += n) {
        n = averages && last - first > BLOCK ? BLOCK : last - first;

        const struct dpt_optimizer_part part = part_of(pass, t, f, first, n);

        if (rule)
            run_rule(pass->rule.kind, pass->update->for_others, &part);
        else
            pass->type->step(pass->options, &part, &norms);
        if (averages)
            average_part(pass, &part, first);
    }
}

void dpt_optimizer_apply(const struct dpt_variant_value *optimizer, const struct dpt_graph *graph,
                         const struct dpt_update *update, size_t begin, size_t end, float *params,
                         const float *gradient, float *const *slot, const double *squares)
{
    struct pass pass = make_pass(optimizer, update, params, gradient, slot);
    const unsigned mode = without_denormals();
    size_t chunks = 0; /* of the tensors before */

    for (int32_t k = 0; k < graph->n_tensors; k++) {
        const struct dpt_tensor *t = &graph->tensors[k];
        const size_t first = (size_t)t->offset > begin ? (size_t)t->offset : begin;
        const size_t last =
            (size_t)(t->offset + t->count) < end ? (size_t)(t->offset + t->count) : end;

        if (first < last && !t->frozen)
            update_tensor(&pass, t,
                          squares != NULL ? squares + DPT_OPTIMIZER_SQUARES * chunks : NULL, first,
                          last);
        chunks += dpt_tensor_whole_chunks(t);
    }
    as_before(mode);
}
