/* Numbers and names of tensors, as files have them. */
#include "core/interchange/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"

/* --- numbers ---------------------------------------------------------------------------------- */

static uint64_t bits_at(const unsigned char *bytes, size_t size, bool swapped)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < size; i++)
        bits |= (uint64_t)bytes[i] << 8 * (swapped ? size - 1 - i : i);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16: a sign, 5 bits of exponent, 10 of fraction. Each is a float exactly. */
static float half(uint64_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;

    if (exponent == 0) /* 0 and subnormals: fraction x 2^-24 */
        return (sign != 0 ? -1.0F : 1.0F) * (float)fraction * 0x1p-24F;
    if (exponent == 0x1F)
        return float_of(sign | 0x7F800000U | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static float brain(uint64_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static float single(uint64_t bits)
{
    return float_of((uint32_t)bits);
}

static float twice(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static const struct {
    size_t size;
    float (*from)(uint64_t bits);
} kinds[] = {
    [DPT_FLOAT_NONE] = {0, NULL}, [DPT_FLOAT_16] = {2, half},  [DPT_FLOAT_BF16] = {2, brain},
    [DPT_FLOAT_32] = {4, single}, [DPT_FLOAT_64] = {8, twice},
};

/* The numbers of a file, whose order may be columns first, as floats in the arena's order: rows
 * first. */
static void convert(const struct dpt_weight *weight, const unsigned char *bytes, float *to)
{
    const size_t size = kinds[weight->kind].size;
    int64_t at[DPT_WEIGHT_DIMS] = {0}, stride[DPT_WEIGHT_DIMS], step = 1, source = 0;

    for (int d = 0; d < weight->n_dims; d++) {
        stride[d] = step;
        step *= weight->dims[d];
    }
    for (int64_t i = 0; i < weight->count; i++) {
        const size_t from = (size_t)(weight->fortran ? source : i);

        to[i] = kinds[weight->kind].from(bits_at(bytes + from * size, size, weight->swapped));
        for (int d = weight->n_dims - 1; d >= 0 && weight->fortran; d--) {
            source += stride[d];
            if (++at[d] < weight->dims[d])
                break;
            source -= stride[d] * at[d];
            at[d] = 0;
        }
    }
}

enum dpt_status dpt_weights_read(struct dpt_weights *w, const struct dpt_weight *weight, float *to,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)weight->count * kinds[weight->kind].size;
    const bool same = weight->kind == DPT_FLOAT_32 && !weight->swapped && !weight->fortran;
    unsigned char *bytes = NULL;

    if (weight->kind == DPT_FLOAT_NONE)
        return dpt_fail(err, DPT_BAD_DATA, "%s: %s is of the type %s, which holds no floats",
                        w->path, weight->name, weight->type);
    if (same)
        return w->format->read(w, weight, to, n, err);
    bytes = malloc(n + 1);
    if (bytes == NULL)
        return dpt_fail_memory(err, w->path, (double)n);
    DPT_TRY(w->format->read(w, weight, bytes, n, err));
    convert(weight, bytes, to);
out:
    free(bytes);
    return status;
}

/* --- for the formats -------------------------------------------------------------------------- */

const char *dpt_weight_name(const struct dpt_tensor *tensor, char buf[DPT_NAME])
{
    char *slash;

    snprintf(buf, DPT_NAME, "%s", tensor->name);
    slash = strrchr(buf, '/');
    if (slash != NULL)
        *slash = '.';
    return buf;
}

/* What PyTorch calls the count, in the place of a name's last part. */
static const char count_name[] = "num_batches_tracked", counted[] = "running_var";

/* The characters of a name up to its last dot and with it, where the rest is `part`; else 0. */
static size_t ends_in(const char *name, const char *part)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL && strcmp(dot + 1, part) == 0 ? (size_t)(dot + 1 - name) : 0;
}

bool dpt_weight_is_count(const char *name)
{
    return ends_in(name, count_name) > 0;
}

enum dpt_status dpt_weights_entries(const struct dpt_model_view *view, struct dpt_region *region,
                                    struct dpt_weight_entry **entries, size_t *n,
                                    struct dpt_error *err)
{
    const struct dpt_graph *g = view->graph;
    const size_t most = 2 * (size_t)g->n_tensors + 1;
    struct dpt_weight_entry *at = dpt_region_alloc(region, most * sizeof *at);
    char name[DPT_NAME];
    size_t prefix;

    *n = 0;
    *entries = at;
    if (at == NULL)
        return dpt_fail_memory(err, "a list of tensors", (double)most * sizeof *at);
    for (int32_t k = 0; k < g->n_tensors; k++) {
        prefix = ends_in(dpt_weight_name(&g->tensors[k], name), counted);
        if (prefix == 0)
            continue;
        at[*n] = (struct dpt_weight_entry){
            .whole = true, .bytes = &view->step, .size = sizeof view->step};
        snprintf(at[(*n)++].name, sizeof at->name, "%.*s%s", (int)prefix, name, count_name);
    }
    for (int32_t k = 0; k < g->n_tensors; k++) {
        const struct dpt_tensor *t = &g->tensors[k];

        at[*n] = (struct dpt_weight_entry){.n_dims = t->n_dims,
                                           .dims = t->dims,
                                           .bytes = view->params + t->offset,
                                           .size = (size_t)t->count * sizeof(float)};
        dpt_weight_name(t, at[(*n)++].name);
    }
    return DPT_OK;
}

enum dpt_status dpt_weights_add(struct dpt_weights *w, const char *name, size_t length,
                                struct dpt_weight **weight, struct dpt_error *err)
{
    struct dpt_weight *larger;
    char *copy;

    if (length > DPT_WEIGHT_NAME_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: a tensor's name has %zu characters", w->path,
                        length);
    if (w->n == DPT_WEIGHTS_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: holds more than %d tensors", w->path,
                        DPT_WEIGHTS_MOST);
    larger = dpt_grow(w->at, &w->capacity, w->n + 1, sizeof *larger);
    if (larger == NULL)
        return dpt_fail_memory(err, "a list of tensors", (double)w->n * sizeof *larger);
    w->at = larger;
    copy = dpt_region_strndup(&w->arena, name, length);
    if (copy == NULL)
        return dpt_fail_memory(err, "a list of tensors", (double)length);
    for (char *p = copy; p < copy + length; p++)
        *p = (char)((unsigned char)*p < ' ' || *p == 0x7F ? '?' : *p == '/' ? '.' : *p);
    *weight = &w->at[w->n++];
    **weight = (struct dpt_weight){.name = copy};
    return DPT_OK;
}

enum dpt_status dpt_weight_count(const struct dpt_weights *w, struct dpt_weight *weight,
                                 struct dpt_error *err)
{
    weight->count = 1;
    for (int d = 0; d < weight->n_dims; d++)
        if (weight->dims[d] < 0 ||
            __builtin_mul_overflow(weight->count, weight->dims[d], &weight->count) ||
            weight->count > INT64_MAX / 16)
            return dpt_fail(err, DPT_BAD_DATA, "%s: %s has a shape that no file holds", w->path,
                            weight->name);
    return DPT_OK;
}

void dpt_reals_json(const struct dpt_reals *reals, struct dpt_str *out)
{
    struct dpt_json j = {.text = *out};

    dpt_json_array(&j, NULL);
    for (size_t i = 0; i < reals->n; i++)
        dpt_json_real(&j, NULL, reals->at[i]);
    dpt_json_end(&j);
    *out = j.text;
}

void dpt_texts_json(const char *const *texts, size_t n, struct dpt_str *out)
{
    struct dpt_json j = {.text = *out};

    dpt_json_array(&j, NULL);
    for (size_t i = 0; i < n; i++)
        dpt_json_text(&j, NULL, texts[i]);
    dpt_json_end(&j);
    *out = j.text;
}
