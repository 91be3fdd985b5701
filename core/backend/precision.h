/*
 * precision: of what kind numbers are in the layers. Parameters, sums over samples and the
 * reduction are fp32 in all of them.
 */
#ifndef DPT_BACKEND_PRECISION_H
#define DPT_BACKEND_PRECISION_H

#include "core/base/str.h"

/* tf32: fp32 tensors, but of a product's factors 11 bits; bf16: tensors of 8 bits; fp16: tensors of
 * 11 bits and 5 of exponent: with a loss scale (loss_scale.h). */
#define DPT_PRECISION_LIST(X)                                                                      \
    X(DPT_PRECISION_FP32, "fp32")                                                                  \
    X(DPT_PRECISION_TF32, "tf32")                                                                  \
    X(DPT_PRECISION_BF16, "bf16")                                                                  \
    X(DPT_PRECISION_FP16, "fp16")
enum dpt_precision { DPT_PRECISION_LIST(DPT_LIST_NAME) DPT_PRECISIONS };

/* Ends with NULL. */
extern const char *const dpt_precision_names[DPT_PRECISIONS + 1];

#endif
