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

enum dpt_status dpt_operation_check(const struct dpt_graph_node *node, struct dpt_error *err)
{
    const struct dpt_window *w = &node->window;

    for (int axis = 0; dpt_operation_of(node)->kind == DPT_CLASS_POOL && axis < 2; axis++) {
        if (w->kernel[axis] > 0 &&
            (w->before[axis] >= w->kernel[axis] || w->after[axis] >= w->kernel[axis]))
            return dpt_fail(err, DPT_BAD_JOB,
                            "%s: the padding must be smaller than the kernel, else a window can "
                            "lie on padding alone",
                            node->name);
    }
    return DPT_OK;
}
