#include "core/backend/bf16.h"

#include "core/backend/operation.h"

DPT_VECTOR void dpt_bf16_round(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dpt_bf16_nearest(x[i]);
}

bool dpt_bf16_rounds(const struct dpt_graph_node *node)
{
    const enum dpt_operation_class kind = dpt_operation_of(node)->kind;

    return kind == DPT_CLASS_CONV || kind == DPT_CLASS_GEMM;
}
