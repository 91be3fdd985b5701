#include "core/backend/operation.h"

#include <string.h>

const struct dpt_operation *const dpt_operations[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_operation_##name,
    DPT_OPERATIONS(X)
#undef X
};

double dpt_operation_flops(const struct dpt_graph_node *node)
{
    const struct dpt_operation *operation = dpt_operation_of(node);

    return operation->flops != NULL ? operation->flops(node) : 0;
}

int dpt_operation_tensors(const struct dpt_graph_node *node, struct dpt_tensor *tensors)
{
    const struct dpt_operation *operation = dpt_operation_of(node);

    memset(tensors, 0, DPT_MAX_TENSORS * sizeof *tensors);
    return operation->tensors != NULL ? operation->tensors(node, tensors) : 0;
}
