/*
 * precision: of what kind numbers are in the layers. Parameters, sums over samples and the
 * reduction are fp32 in all of them.
 */
#ifndef DPT_BACKEND_PRECISION_H
#define DPT_BACKEND_PRECISION_H

enum dpt_precision {
    DPT_PRECISION_FP32,
    DPT_PRECISION_TF32, /* fp32 tensors, but of a product's factors 11 bits */
    DPT_PRECISION_BF16, /* tensors of 8 bits */
    DPT_PRECISION_FP16, /* tensors of 11 bits and 5 of exponent: with a loss scale (loss_scale.h) */
    DPT_PRECISIONS
};

/* "fp32", "tf32", "bf16", "fp16", NULL. */
extern const char *const dpt_precision_names[DPT_PRECISIONS + 1];

#endif
