/*
 * fake_conv: what a graph of the fake cuDNN computes: one convolution, and the operations fused
 * after it. For the fake libcudnn only.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_CONV_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_CONV_H

#include "core/backend/cuda/tests/fake/fake.h"
#include "core/backend/cuda/tests/fake/fake_numbers.h"

enum fake_pass { FAKE_FORWARD, FAKE_DATA, FAKE_FILTER };
enum { FAKE_X, FAKE_W, FAKE_Y, FAKE_BIAS, FAKE_TENSORS };

struct fake_tensor {
    int64_t id, dims[4], strides[4], alignment;
    enum fake_type type;
    bool passing; /* between two operations */
};

struct fake_conv {
    enum fake_pass pass;
    struct fake_tensor tensor[FAKE_TENSORS]; /* x, w, y (dx, dw, dy), bias */
    int64_t before[2], after[2], stride[2], dilation[2], groups;
    float alpha, beta;
    bool bias, relu;
    bool drops_nan; /* the ReLU makes zeros of NaNs */
};

/* How an engine goes through a sum. */
struct fake_order {
    bool down;      /* from the last to the first */
    uint64_t start; /* where it begins, modulo its length */
    bool tf32;      /* fp32 factors are rounded to it */
    bool narrow;    /* ... or to half precision */
    bool sloppy;    /* sums of reduced precision: wrong by a percent, so that it shows */
};

/* Bytes that a tensor spans. */
size_t fake_tensor_bytes(const struct fake_tensor *t);
/* Whether padding, dimensions and groups fit together. */
bool fake_conv_fits(const struct fake_conv *c);
void fake_conv_run(const struct fake_conv *c, const struct fake_order *order,
                   void *const at[FAKE_TENSORS]);

#endif
