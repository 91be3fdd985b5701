#include "core/interchange/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"

const char *dpt_weight_name(const struct dpt_tensor *tensor, char buf[DPT_NAME])
{
    char *slash;

    snprintf(buf, DPT_NAME, "%s", tensor->name);
    slash = strrchr(buf, '/');
    if (slash != NULL)
        *slash = '.';
    return buf;
}

enum dpt_status dpt_weights_add(struct dpt_weights *w, const char *name, size_t length,
                                struct dpt_weight **weight, struct dpt_error *err)
{
    char *copy;

    if (length > DPT_WEIGHT_NAME_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: a tensor's name has %zu characters", w->path,
                        length);
    if (w->n == DPT_WEIGHTS_MOST)
        return dpt_fail(err, DPT_BAD_DATA, "%s: holds more than %d tensors", w->path,
                        DPT_WEIGHTS_MOST);
    if ((w->n & (w->n - 1)) == 0) { /* full: the capacity is n's next power of two */
        const size_t capacity = w->n == 0 ? 1 : 2 * w->n;
        struct dpt_weight *more = dpt_region_alloc(&w->arena, capacity * sizeof *more);

        if (more == NULL)
            return dpt_fail_memory(err, "a list of tensors", (double)capacity * sizeof *more);
        if (w->n > 0)
            memcpy(more, w->at, w->n * sizeof *more);
        w->at = more;
    }
    copy = dpt_region_strndup(&w->arena, name, length);
    if (copy == NULL)
        return dpt_fail_memory(err, "a list of tensors", (double)length);
    for (char *p = copy; p < copy + length; p++)
        *p = (unsigned char)*p < ' ' || *p == 0x7F ? '?' : *p == '/' ? '.' : *p;
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

const char *dpt_dims_text(int n, const int64_t *dims, char buf[DPT_DIMS_TEXT])
{
    size_t used = (size_t)snprintf(buf, DPT_DIMS_TEXT, "[");

    for (int d = 0; d < n; d++)
        used += (size_t)snprintf(buf + used, DPT_DIMS_TEXT - used, "%s%" PRId64, d > 0 ? ", " : "",
                                 dims[d]);
    snprintf(buf + used, DPT_DIMS_TEXT - used, "]");
    return buf;
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
