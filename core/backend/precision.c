#include "core/backend/precision.h"

#include <stddef.h>

const char *const dpt_precision_names[DPT_PRECISIONS + 1] = {
    [DPT_PRECISION_FP32] = "fp32",
    [DPT_PRECISION_TF32] = "tf32",
    [DPT_PRECISION_BF16] = "bf16",
    [DPT_PRECISION_FP16] = "fp16",
};
