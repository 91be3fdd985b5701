/* Gradients of several micro-batches, added up on the device along the tree of core/comm/tree.h. */
#include "core/backend/cuda/program_private.h"

static enum dpt_status add_arena(struct dpt_cuda_program *p, const float *x, float *y,
                                 struct dpt_error *err)
{
    const struct dpt_cuda_add_args args = {.x = x, .y = y, .n = p->spec.graph->floats};

    return dpt_cuda_launch(&p->ctx.lib, &p->ctx.module, p->ctx.compute, DPT_CUDA_K_add, &args, err);
}

enum dpt_status dpt_cuda_tree_sum_push(struct dpt_cuda_program *p, struct dpt_cuda_tree_sum *s,
                                       bool last, float **sum, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    enum dpt_status status = DPT_OK;
    float *value = p->gradient;
    int level = 0;

    for (; s->n > 0 && (last || s->level[s->n - 1] == level); s->n--) {
        DPT_TRY(add_arena(p, value, s->value[s->n - 1], err));
        value = s->value[s->n - 1];
        level++;
    }
    *sum = value;
    if (last)
        goto out;
    if (value == p->gradient) {
        value = p->lists->sums + s->n * p->spec.graph->floats;
        DPT_CUDA_TRY(lib, cuMemcpyDtoDAsync(dpt_cuda_ptr(value), dpt_cuda_ptr(p->gradient),
                                            (size_t)p->spec.graph->floats * sizeof *value,
                                            p->ctx.compute));
    }
    s->value[s->n] = value;
    s->level[s->n++] = level;
out:
    return status;
}
