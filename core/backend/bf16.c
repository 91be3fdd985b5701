#include "core/backend/bf16.h"

#include <string.h>

#include "core/backend/operation.h"
#include "core/base/vector.h"

DPT_VECTOR void dpt_bf16_round(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits, rounded;

        memcpy(&bits, &x[i], sizeof bits);
        rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
        rounded = (bits & 0x7f800000) == 0 ? bits & 0x80000000 : rounded;
        rounded = (bits & 0x7fffffff) > 0x7f800000 ? (bits & 0xffff0000) | 0x400000 : rounded;
        memcpy(&y[i], &rounded, sizeof rounded);
    }
}

bool dpt_bf16_rounds(const struct dpt_graph_node *node)
{
    const enum dpt_operation_class kind = dpt_operation_of(node)->kind;

    return kind == DPT_CLASS_CONV || kind == DPT_CLASS_GEMM;
}
