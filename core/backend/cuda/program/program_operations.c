#include "core/backend/cuda/program/program.h"

const struct dpt_cuda_op *const dpt_cuda_ops[DPT_OP_COUNT] = {
#define X(NAME, name) [DPT_OP_##NAME] = &dpt_cuda_##name,
    DPT_OPERATIONS(X)
#undef X
};
